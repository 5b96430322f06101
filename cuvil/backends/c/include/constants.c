/* What loading a program does with its constants: a hash of their elements, and copies out of transposed views.
 * A library of its own beside runtime.c: it compiles in a moment, and programs are looked up by these hashes while the
 * rest of the runtime is still being compiled.
 *
 *   cv_digest(data, bytes, key, out)
 *       NH of UMAC (Black, Halevi, Krawczyk, Krovetz, Rogaway 1999; RFC 4418) with four Toeplitz iterations: for each
 *       block of CV_DIGEST_BLOCK bytes, the last one padded with zeros, four 64-bit sums
 *           sum[t] = sum over i of (m[2i] + k[2i + 16 t]) * (m[2i+1] + k[2i + 1 + 16 t])
 *       of 32-bit words m and k. For two different blocks and a key that is drawn at random, all four agree with
 *       probability 2^-128, whoever chose the blocks without knowing the key. `out` gets 32 bytes a block; its reader
 *       hashes those, and the length, with a hash for messages of any length. Runs at the speed of memory.
 *   cv_transpose(to, from, rows, columns, size)
 *       to[c][r] = from[r][c], both dense, elements of 1, 2, 4 or 8 bytes; nonzero for another size.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { CV_DIGEST_BLOCK = 1024, CV_DIGEST_PASSES = 4, CV_DIGEST_SHIFT = 64 };
#define CV_DIGEST_KEY (CV_DIGEST_BLOCK + (CV_DIGEST_PASSES - 1) * CV_DIGEST_SHIFT)

/* The compiler splits a vector that is wider than the hardware's. */
typedef uint32_t words __attribute__((vector_size(64)));
typedef uint64_t pairs __attribute__((vector_size(64)));

static inline words load(const uint8_t *p) {
    words x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* The product of the two words of each pair. */
static inline pairs products(words x) {
#if defined(__AVX512F__) && !defined(__clang__)
    /* GCC does not see that the upper halves are 0, and multiplies 64 bits by 64 bits. */
    typedef int ints __attribute__((vector_size(64)));
    typedef long long longs __attribute__((vector_size(64)));
    return (pairs)__builtin_ia32_pmuludq512_mask((ints)x, (ints)((pairs)x >> 32), (longs){0}, (unsigned char)-1);
#else
    return ((pairs)x & UINT64_C(0xffffffff)) * ((pairs)x >> 32);
#endif
}

static inline void digest_block(const uint8_t *data, const uint8_t *key, uint64_t sum[CV_DIGEST_PASSES]) {
    pairs acc[CV_DIGEST_PASSES] = {{0}};
    for (int at = 0; at < CV_DIGEST_BLOCK; at += 64) {
        const words m = load(data + at);
        for (int t = 0; t < CV_DIGEST_PASSES; t++) acc[t] += products(m + load(key + at + t * CV_DIGEST_SHIFT));
    }
    for (int t = 0; t < CV_DIGEST_PASSES; t++) {
        sum[t] = 0;
        for (int i = 0; i < 8; i++) sum[t] += acc[t][i];
    }
}

void cv_digest(const void *data, int64_t bytes, const void *key, void *out) {
    const uint8_t *from = data;
    uint8_t *to = out;
    uint64_t sum[CV_DIGEST_PASSES];
    for (; bytes >= CV_DIGEST_BLOCK; bytes -= CV_DIGEST_BLOCK, from += CV_DIGEST_BLOCK, to += sizeof sum) {
        digest_block(from, key, sum);
        memcpy(to, sum, sizeof sum);
    }
    if (bytes > 0) {
        uint8_t last[CV_DIGEST_BLOCK] = {0};
        memcpy(last, from, (size_t)bytes);
        digest_block(last, key, sum);
        memcpy(to, sum, sizeof sum);
    }
}

/* 16 columns of 4-byte elements are one cache line of the source; 64 rows of it keep to the first-level cache and, at
 * any distance of the rows, to the first-level TLB. */
enum { CV_TRANSPOSE_ROWS = 64, CV_TRANSPOSE_COLUMNS = 16 };

#define CV_TRANSPOSE(type)                                                                                            \
    static void cv_transpose_##type(type *to, const type *from, int64_t rows, int64_t columns) {                      \
        for (int64_t c = 0; c < columns; c += CV_TRANSPOSE_COLUMNS) {                                                 \
            const int64_t cend = columns - c < CV_TRANSPOSE_COLUMNS ? columns : c + CV_TRANSPOSE_COLUMNS;             \
            for (int64_t r = 0; r < rows; r += CV_TRANSPOSE_ROWS) {                                                   \
                const int64_t rend = rows - r < CV_TRANSPOSE_ROWS ? rows : r + CV_TRANSPOSE_ROWS;                     \
                for (int64_t j = c; j < cend; j++)                                                                    \
                    for (int64_t i = r; i < rend; i++) to[j * rows + i] = from[i * columns + j];                      \
            }                                                                                                         \
        }                                                                                                             \
    }
CV_TRANSPOSE(uint8_t)
CV_TRANSPOSE(uint16_t)
CV_TRANSPOSE(uint32_t)
CV_TRANSPOSE(uint64_t)
#undef CV_TRANSPOSE

int cv_transpose(
    void *to, const void *from, int64_t rows, int64_t columns, int size) {
    switch (size) {
    case 1: cv_transpose_uint8_t(to, from, rows, columns); return 0;
    case 2: cv_transpose_uint16_t(to, from, rows, columns); return 0;
    case 4: cv_transpose_uint32_t(to, from, rows, columns); return 0;
    case 8: cv_transpose_uint64_t(to, from, rows, columns); return 0;
    default: return 1;
    }
}
