/* UTF-8 to str for text that is well formed, which is nearly all of it: measure once, write once.

   CPython's own decoder widens the string each time a wider character turns up; on text with accents, CJK and emoji
   that costs more than the rest of the parser. Anything malformed is left to it: it knows the replacement rules. */

#ifndef LEVADA_UTF8_H
#define LEVADA_UTF8_H

#include <Python.h>
#include <stdint.h>
#include <string.h>

#if defined(__SSE2__) || defined(_M_X64)
#include <emmintrin.h>
#endif
#if defined(_MSC_VER)
#include <intrin.h>
#endif

#if defined(_MSC_VER)
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
#if defined(__SSE2__) || defined(_M_X64)
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

static inline int levada_tail(unsigned char byte) { return (byte & 0xC0) == 0x80; }

/* Count the characters of the `size` bytes at `p` and find the widest; -1 where they are malformed.
   Reads p[0 .. size-1] only: each lead byte is checked against what is left before its tail is read. */
static Py_ssize_t levada_utf8_measure(const unsigned char *p, Py_ssize_t size, Py_UCS4 *widest)
{
    const unsigned char *end = p + size;
    Py_ssize_t count = 0;
    Py_UCS4 top = 0x7F;
    while (p < end) {
        if (end - p >= 16) {
            int run = levada_ascii_run(p);
            p += run;
            count += run;
            if (run == 16)
                continue;
        }
        else if (size >= 16 && levada_ascii_run(end - 16) == 16) {
            count += end - p;  /* the rest lies within 16 bytes of ASCII, the usual end of a line of JSON */
            break;
        }
        unsigned char lead = *p;
        if (lead < 0x80) {
            p += 1;
        }
        else if (lead < 0xE0) {
            if (lead < 0xC2 || end - p < 2 || !levada_tail(p[1]))
                return -1;
            if (lead > 0xC3) {
                if (top < 0xFFFF)
                    top = 0xFFFF;
            }
            else if (top < 0xFF) {
                top = 0xFF;
            }
            p += 2;
        }
        else if (lead < 0xF0) {
            if (end - p < 3 || !levada_tail(p[1]) || !levada_tail(p[2]))
                return -1;
            if ((lead == 0xE0 && p[1] < 0xA0) || (lead == 0xED && p[1] > 0x9F))
                return -1;
            if (top < 0xFFFF)
                top = 0xFFFF;
            p += 3;
        }
        else {
            if (lead > 0xF4 || end - p < 4 || !levada_tail(p[1]) || !levada_tail(p[2]) || !levada_tail(p[3]))
                return -1;
            if ((lead == 0xF0 && p[1] < 0x90) || (lead == 0xF4 && p[1] > 0x8F))
                return -1;
            top = 0x10FFFF;
            p += 4;
        }
        count += 1;
    }
    *widest = top;
    return count;
}

/* Write well-formed UTF-8 as characters of TYPE. `out` has room for as many as were counted. */
#define LEVADA_UTF8_WRITE(NAME, TYPE)                                                                     \
    static void NAME(const unsigned char *LEVADA_RESTRICT p, Py_ssize_t size,                             \
                     TYPE *LEVADA_RESTRICT out, Py_ssize_t count)                                         \
    {                                                                                                     \
        const unsigned char *end = p + size;                                                              \
        TYPE *out_end = out + count;                                                                      \
        while (p < end) {                                                                                 \
            if (end - p >= 16 && out_end - out >= 16) {                                                   \
                int run = levada_ascii_run(p);                                                            \
                for (int i = 0; i < 16; i++)  /* all 16, so that it vectorises; what is no ASCII is overwritten */ \
                    out[i] = (TYPE)p[i];                                                                  \
                p += run;                                                                                 \
                out += run;                                                                               \
                if (run == 16)                                                                            \
                    continue;                                                                             \
            }                                                                                             \
            else if (end - p < 16 && size >= 16 && count >= 16 && levada_ascii_run(end - 16) == 16) {      \
                for (int i = 0; i < 16; i++)  /* some of them again, with the same values */              \
                    out_end[i - 16] = (TYPE)end[i - 16];                                                  \
                return;                                                                                   \
            }                                                                                             \
            Py_UCS4 lead = *p;                                                                            \
            if (lead < 0x80) {                                                                            \
                *out++ = (TYPE)lead;                                                                      \
                p += 1;                                                                                   \
            }                                                                                             \
            else if (lead < 0xE0) {                                                                       \
                *out++ = (TYPE)((lead & 0x1F) << 6 | (p[1] & 0x3F));                                      \
                p += 2;                                                                                   \
            }                                                                                             \
            else if (lead < 0xF0) {                                                                       \
                *out++ = (TYPE)((lead & 0x0F) << 12 | (Py_UCS4)(p[1] & 0x3F) << 6 | (p[2] & 0x3F));       \
                p += 3;                                                                                   \
            }                                                                                             \
            else {                                                                                        \
                *out++ = (TYPE)((lead & 0x07) << 18 | (Py_UCS4)(p[1] & 0x3F) << 12                        \
                                | (Py_UCS4)(p[2] & 0x3F) << 6 | (p[3] & 0x3F));                           \
                p += 4;                                                                                   \
            }                                                                                             \
        }                                                                                                 \
    }

LEVADA_UTF8_WRITE(levada_utf8_write1, Py_UCS1)
LEVADA_UTF8_WRITE(levada_utf8_write2, Py_UCS2)
LEVADA_UTF8_WRITE(levada_utf8_write4, Py_UCS4)

/* Return the `size` bytes at `p` as str; what is malformed becomes U+FFFD by the Encoding Standard. */
static PyObject *levada_utf8_decode(const unsigned char *p, Py_ssize_t size)
{
    Py_UCS4 widest;
    Py_ssize_t count = levada_utf8_measure(p, size, &widest);
    if (count < 0 || count <= 1)  /* CPython shares the empty and the one-character strings */
        return PyUnicode_DecodeUTF8((const char *)p, size, "replace");
    PyObject *text = PyUnicode_New(count, widest);
    if (text == NULL)
        return NULL;
    if (widest == 0x7F)
        memcpy(PyUnicode_1BYTE_DATA(text), p, (size_t)size);
    else if (widest == 0xFF)
        levada_utf8_write1(p, size, PyUnicode_1BYTE_DATA(text), count);
    else if (widest == 0xFFFF)
        levada_utf8_write2(p, size, PyUnicode_2BYTE_DATA(text), count);
    else
        levada_utf8_write4(p, size, PyUnicode_4BYTE_DATA(text), count);
    return text;
}

#endif
