/* UTF-8 to str for text that is well formed, which is nearly all of it: measure once, write once.

   CPython's own decoder widens the string each time a wider character turns up; on text with accents, CJK and emoji
   that costs more than the rest of the parser. Anything malformed is left to it: it knows the replacement rules.

   Runs of ASCII are taken a block at a time: 32 bytes where the processor has AVX2 (asked once, at import), else 16.
   Invariants: `p` never passes `end`; a block is read only where `end - p` is a block or more; a block is written only
   where `out_end - out` is a block or more. What a block writes beyond its run of ASCII is overwritten by what follows,
   because each of the characters that are left has its place. */

#ifndef LEVADA_UTF8_H
#define LEVADA_UTF8_H

#include <Python.h>
#include <stdint.h>
#include <string.h>

#if defined(__SSE2__) || defined(_M_X64)
#define LEVADA_SSE2 1
#include <emmintrin.h>
#endif
#if defined(__GNUC__) && defined(__x86_64__)
#define LEVADA_AVX2 1
#include <immintrin.h>
#endif
#if defined(_MSC_VER)
#include <intrin.h>
#define LEVADA_RESTRICT __restrict
#else
#define LEVADA_RESTRICT restrict
#endif

static inline int levada_lowest_bit(unsigned int mask)
{
#if defined(_MSC_VER)
    unsigned long index;
    _BitScanForward(&index, mask);
    return (int)index;
#else
    return __builtin_ctz(mask);
#endif
}

/* Return how many of the 16 bytes at `p` come before the first that is not ASCII. `p` needs no alignment. */
static inline int levada_ascii_run(const unsigned char *p)
{
#ifdef LEVADA_SSE2
    unsigned int mask = (unsigned int)_mm_movemask_epi8(_mm_loadu_si128((const __m128i *)p));
    return mask ? levada_lowest_bit(mask) : 16;
#else
    uint64_t word[2];
    memcpy(word, p, 16);
    if (((word[0] | word[1]) & UINT64_C(0x8080808080808080)) == 0)
        return 16;
    int run = 0;
    while (p[run] < 0x80)
        run++;
    return run;
#endif
}

/* Return how many of the last `left` bytes before `end` come before the first that is not ASCII; left < 16, and the
   16 bytes before `end` are there to be read. */
static inline int levada_ascii_tail(const unsigned char *end, int left)
{
#ifdef LEVADA_SSE2
    unsigned int mask = (unsigned int)_mm_movemask_epi8(_mm_loadu_si128((const __m128i *)(end - 16)));
    mask >>= 16 - left;
    return mask ? levada_lowest_bit(mask) : left;
#else
    int run = 0;
    while (run < left && end[run - left] < 0x80)
        run++;
    return run;
#endif
}

static inline void levada_widen1(const unsigned char *LEVADA_RESTRICT p, Py_UCS1 *LEVADA_RESTRICT out)
{
    memcpy(out, p, 16);
}

static inline void levada_widen2(const unsigned char *LEVADA_RESTRICT p, Py_UCS2 *LEVADA_RESTRICT out)
{
    for (int i = 0; i < 16; i++)
        out[i] = p[i];
}

static inline void levada_widen4(const unsigned char *LEVADA_RESTRICT p, Py_UCS4 *LEVADA_RESTRICT out)
{
    for (int i = 0; i < 16; i++)
        out[i] = p[i];
}

#ifdef LEVADA_AVX2
#define LEVADA_TARGET_AVX2 __attribute__((target("avx2")))

LEVADA_TARGET_AVX2 static inline int levada_ascii_run_avx2(const unsigned char *p)
{
    unsigned int mask = (unsigned int)_mm256_movemask_epi8(_mm256_loadu_si256((const __m256i *)p));
    return mask ? __builtin_ctz(mask) : 32;
}

LEVADA_TARGET_AVX2 static inline int levada_ascii_tail_avx2(const unsigned char *end, int left)
{
    unsigned int mask = (unsigned int)_mm256_movemask_epi8(_mm256_loadu_si256((const __m256i *)(end - 32)));
    mask >>= 32 - left;
    return mask ? __builtin_ctz(mask) : left;
}

LEVADA_TARGET_AVX2 static inline void levada_widen1_avx2(const unsigned char *p, Py_UCS1 *out)
{
    _mm256_storeu_si256((__m256i *)out, _mm256_loadu_si256((const __m256i *)p));
}

LEVADA_TARGET_AVX2 static inline void levada_widen2_avx2(const unsigned char *p, Py_UCS2 *out)
{
    for (int i = 0; i < 32; i += 16)
        _mm256_storeu_si256((__m256i *)(out + i), _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(p + i))));
}

LEVADA_TARGET_AVX2 static inline void levada_widen4_avx2(const unsigned char *p, Py_UCS4 *out)
{
    for (int i = 0; i < 32; i += 8)
        _mm256_storeu_si256((__m256i *)(out + i), _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p + i))));
}
#endif

static inline int levada_tail(unsigned char byte) { return (byte & 0xC0) == 0x80; }

/* Count the characters of the `size` bytes at `p` and find the widest; -1 where they are malformed.
   Reads p[0 .. size-1] only: each lead byte is checked against what is left before its tail is read. */
#define LEVADA_UTF8_MEASURE(NAME, TARGET, BLOCK, ASCII_RUN, ASCII_TAIL)                                       \
    TARGET static Py_ssize_t NAME(const unsigned char *p, Py_ssize_t size, Py_UCS4 *widest)                   \
    {                                                                                                         \
        const unsigned char *end = p + size;                                                                  \
        Py_ssize_t count = 0;                                                                                 \
        Py_UCS4 top = 0x7F;                                                                                   \
        while (p < end) {                                                                                     \
            if (end - p >= BLOCK) {                                                                           \
                int run = ASCII_RUN(p);                                                                       \
                p += run;                                                                                     \
                count += run;                                                                                 \
                if (run == BLOCK)                                                                             \
                    continue;                                                                                 \
            }                                                                                                 \
            else if (size >= BLOCK) {                                                                         \
                int run = ASCII_TAIL(end, (int)(end - p));                                                    \
                p += run;                                                                                     \
                count += run;                                                                                 \
                if (p == end)                                                                                 \
                    break;                                                                                    \
            }                                                                                                 \
            do { /* on to the next ASCII: wide characters come together */                                    \
                unsigned char lead = *p;                                                                      \
                if (lead < 0x80) {                                                                            \
                    p += 1;                                                                                   \
                }                                                                                             \
                else if (lead < 0xE0) {                                                                       \
                    if (lead < 0xC2 || end - p < 2 || !levada_tail(p[1]))                                     \
                        return -1;                                                                            \
                    Py_UCS4 reach = lead > 0xC3 ? 0xFFFF : 0xFF;                                              \
                    if (top < reach)                                                                          \
                        top = reach;                                                                          \
                    p += 2;                                                                                   \
                }                                                                                             \
                else if (lead < 0xF0) {                                                                       \
                    if (end - p < 3 || !levada_tail(p[1]) || !levada_tail(p[2]))                              \
                        return -1;                                                                            \
                    if ((lead == 0xE0 && p[1] < 0xA0) || (lead == 0xED && p[1] > 0x9F))                       \
                        return -1;                                                                            \
                    if (top < 0xFFFF)                                                                         \
                        top = 0xFFFF;                                                                         \
                    p += 3;                                                                                   \
                }                                                                                             \
                else {                                                                                        \
                    if (lead > 0xF4 || end - p < 4 || !levada_tail(p[1]) || !levada_tail(p[2]))               \
                        return -1;                                                                            \
                    if (!levada_tail(p[3]) || (lead == 0xF0 && p[1] < 0x90) || (lead == 0xF4 && p[1] > 0x8F)) \
                        return -1;                                                                            \
                    top = 0x10FFFF;                                                                           \
                    p += 4;                                                                                   \
                }                                                                                             \
                count += 1;                                                                                   \
            } while (p < end && *p >= 0x80);                                                                  \
        }                                                                                                     \
        *widest = top;                                                                                        \
        return count;                                                                                         \
    }

/* Write well-formed UTF-8 as `count` characters of TYPE, as many as were measured. */
#define LEVADA_UTF8_WRITE(NAME, TARGET, TYPE, BLOCK, ASCII_RUN, ASCII_TAIL, WIDEN)                        \
    TARGET static void NAME(const unsigned char *LEVADA_RESTRICT p, Py_ssize_t size,                      \
                            TYPE *LEVADA_RESTRICT out, Py_ssize_t count)                                  \
    {                                                                                                     \
        const unsigned char *end = p + size;                                                              \
        TYPE *out_end = out + count;                                                                      \
        while (p < end) {                                                                                 \
            if (end - p >= BLOCK && out_end - out >= BLOCK) {                                             \
                int run = ASCII_RUN(p);                                                                   \
                WIDEN(p, out);                                                                            \
                p += run;                                                                                 \
                out += run;                                                                               \
                if (run == BLOCK)                                                                         \
                    continue;                                                                             \
            }                                                                                             \
            else if (end - p < BLOCK && size >= BLOCK) {                                                  \
                int left = (int)(end - p), run = ASCII_TAIL(end, left);                                   \
                if (run == left && count >= BLOCK && ASCII_RUN(end - BLOCK) == BLOCK) {                   \
                    WIDEN(end - BLOCK, out_end - BLOCK); /* some of them again, with the same values */   \
                    return;                                                                               \
                }                                                                                         \
                for (int i = 0; i < run; i++)                                                             \
                    out[i] = p[i];                                                                        \
                p += run;                                                                                 \
                out += run;                                                                               \
                if (p == end)                                                                             \
                    return;                                                                               \
            }                                                                                             \
            do {                                                                                          \
                Py_UCS4 lead = *p;                                                                        \
                if (lead < 0x80) {                                                                        \
                    *out++ = (TYPE)lead;                                                                  \
                    p += 1;                                                                               \
                }                                                                                         \
                else if (lead < 0xE0) {                                                                   \
                    *out++ = (TYPE)((lead & 0x1F) << 6 | (p[1] & 0x3F));                                  \
                    p += 2;                                                                               \
                }                                                                                         \
                else if (lead < 0xF0) {                                                                   \
                    *out++ = (TYPE)((lead & 0x0F) << 12 | (Py_UCS4)(p[1] & 0x3F) << 6 | (p[2] & 0x3F));   \
                    p += 3;                                                                               \
                }                                                                                         \
                else {                                                                                    \
                    *out++ = (TYPE)((lead & 0x07) << 18 | (Py_UCS4)(p[1] & 0x3F) << 12                    \
                                    | (Py_UCS4)(p[2] & 0x3F) << 6 | (p[3] & 0x3F));                       \
                    p += 4;                                                                               \
                }                                                                                         \
            } while (p < end && *p >= 0x80);                                                              \
        }                                                                                                 \
    }

LEVADA_UTF8_MEASURE(levada_measure, , 16, levada_ascii_run, levada_ascii_tail)
LEVADA_UTF8_WRITE(levada_write1, , Py_UCS1, 16, levada_ascii_run, levada_ascii_tail, levada_widen1)
LEVADA_UTF8_WRITE(levada_write2, , Py_UCS2, 16, levada_ascii_run, levada_ascii_tail, levada_widen2)
LEVADA_UTF8_WRITE(levada_write4, , Py_UCS4, 16, levada_ascii_run, levada_ascii_tail, levada_widen4)

#ifdef LEVADA_AVX2
LEVADA_UTF8_MEASURE(levada_measure_avx2, LEVADA_TARGET_AVX2, 32, levada_ascii_run_avx2, levada_ascii_tail_avx2)
LEVADA_UTF8_WRITE(levada_write1_avx2, LEVADA_TARGET_AVX2, Py_UCS1, 32, levada_ascii_run_avx2, levada_ascii_tail_avx2,
                  levada_widen1_avx2)
LEVADA_UTF8_WRITE(levada_write2_avx2, LEVADA_TARGET_AVX2, Py_UCS2, 32, levada_ascii_run_avx2, levada_ascii_tail_avx2,
                  levada_widen2_avx2)
LEVADA_UTF8_WRITE(levada_write4_avx2, LEVADA_TARGET_AVX2, Py_UCS4, 32, levada_ascii_run_avx2, levada_ascii_tail_avx2,
                  levada_widen4_avx2)

/* Written once, at import, before any thread can decode; only read after that. */
static int levada_has_avx2 = 0;
#define LEVADA_CHOOSE(NAME) (levada_has_avx2 ? NAME##_avx2 : NAME)
#else
#define LEVADA_CHOOSE(NAME) NAME
#endif

/* Ask the processor what it has. LEVADA_NO_AVX2 in the environment makes the other way testable. */
static void levada_utf8_init(void)
{
#ifdef LEVADA_AVX2
    __builtin_cpu_init();
    levada_has_avx2 = __builtin_cpu_supports("avx2") && getenv("LEVADA_NO_AVX2") == NULL;
#endif
}

/* Return the `size` bytes at `p` as str; what is malformed becomes U+FFFD by the Encoding Standard. */
static PyObject *levada_utf8_decode(const unsigned char *p, Py_ssize_t size)
{
    Py_UCS4 widest = 0;
    Py_ssize_t count = LEVADA_CHOOSE(levada_measure)(p, size, &widest);
    if (count <= 1) /* malformed; or empty, or one character: CPython shares those strings */
        return PyUnicode_DecodeUTF8((const char *)p, size, "replace");
    PyObject *text = PyUnicode_New(count, widest);
    if (text == NULL)
        return NULL;
    if (widest == 0x7F)
        memcpy(PyUnicode_1BYTE_DATA(text), p, (size_t)size);
    else if (widest == 0xFF)
        LEVADA_CHOOSE(levada_write1)(p, size, PyUnicode_1BYTE_DATA(text), count);
    else if (widest == 0xFFFF)
        LEVADA_CHOOSE(levada_write2)(p, size, PyUnicode_2BYTE_DATA(text), count);
    else
        LEVADA_CHOOSE(levada_write4)(p, size, PyUnicode_4BYTE_DATA(text), count);
    return text;
}

#endif
