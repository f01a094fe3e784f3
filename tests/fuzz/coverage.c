/* What the coverage driver sees of the extension: gcc's -fsanitize-coverage=trace-pc calls the first function at every
 * basic block. Linked into the sanitizer build only. The module's own code is not traced (no_sanitize_coverage). */

#include <stdint.h>

#define EDGES (1 << 16)

static uint8_t hits[EDGES];    /* of this program, by edge; stops at 255 */
static uint8_t seen[EDGES];    /* of all programs: the buckets each edge has been in, one bit each */
static uint32_t touched[EDGES]; /* the edges of this program, so that nobody walks the whole map */
static uint32_t touched_edges;
static uint32_t previous;

__attribute__((visibility("hidden"), no_sanitize_coverage, no_sanitize("address", "undefined")))
void __sanitizer_cov_trace_pc(void)
{
    /* relative to a place in this module, so that a random load address changes nothing */
    uint32_t here = (uint32_t)((uintptr_t)__builtin_return_address(0) - (uintptr_t)hits) * 2654435761u >> 16;
    uint32_t edge = (here ^ previous) & (EDGES - 1);
    if (hits[edge] == 0)
        touched[touched_edges++] = edge;
    if (hits[edge] < 255)
        hits[edge]++;
    previous = here >> 1;
}

/* As AFL counts: once, twice, three times, up to 7, 15, 31, 127, more. */
__attribute__((no_sanitize_coverage))
static uint8_t bucket_of(uint8_t count)
{
    return count < 4 ? 1 << (count - 1) : count < 8 ? 8 : count < 16 ? 16 : count < 32 ? 32 : count < 128 ? 64 : 128;
}

/* End a program: return how many edges it took that were new, or new in how often they were taken; forget its own. */
__attribute__((visibility("default"), no_sanitize_coverage))
int levada_coverage_new(void)
{
    int found = 0;
    for (uint32_t i = 0; i < touched_edges; i++) {
        uint8_t bucket = bucket_of(hits[touched[i]]);
        found += !(seen[touched[i]] & bucket);
        seen[touched[i]] |= bucket;
        hits[touched[i]] = 0;
    }
    touched_edges = previous = 0;
    return found;
}

/* Return how many edges any program has taken. */
__attribute__((visibility("default"), no_sanitize_coverage))
int levada_coverage_edges(void)
{
    int edges = 0;
    for (uint32_t i = 0; i < EDGES; i++)
        edges += seen[i] != 0;
    return edges;
}
