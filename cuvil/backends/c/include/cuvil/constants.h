/* What loading a program does with its constants: a hash of their elements, and copies out of transposed views.
 * Part of the runtime library (runtime.c); kernels do not include it.
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
#ifndef CUVIL_CONSTANTS_H
#define CUVIL_CONSTANTS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

enum { CV_DIGEST_BLOCK = 1024, CV_DIGEST_PASSES = 4, CV_DIGEST_SHIFT = 64 };
#define CV_DIGEST_KEY (CV_DIGEST_BLOCK + (CV_DIGEST_PASSES - 1) * CV_DIGEST_SHIFT)

static inline void cv_digest_block(const uint8_t *data, const uint8_t *key, uint64_t sum[CV_DIGEST_PASSES]) {
#if defined(__AVX512F__)
    __m512i acc[CV_DIGEST_PASSES];
    for (int t = 0; t < CV_DIGEST_PASSES; t++) acc[t] = _mm512_setzero_si512();
    for (int at = 0; at < CV_DIGEST_BLOCK; at += 64) {
        const __m512i m = _mm512_loadu_si512(data + at);
        for (int t = 0; t < CV_DIGEST_PASSES; t++) {
            const __m512i x = _mm512_add_epi32(m, _mm512_loadu_si512(key + at + t * CV_DIGEST_SHIFT));
            acc[t] = _mm512_add_epi64(acc[t], _mm512_mul_epu32(x, _mm512_srli_epi64(x, 32)));
        }
    }
    for (int t = 0; t < CV_DIGEST_PASSES; t++) sum[t] = (uint64_t)_mm512_reduce_add_epi64(acc[t]);
#elif defined(__AVX2__)
    __m256i acc[CV_DIGEST_PASSES];
    for (int t = 0; t < CV_DIGEST_PASSES; t++) acc[t] = _mm256_setzero_si256();
    for (int at = 0; at < CV_DIGEST_BLOCK; at += 32) {
        const __m256i m = _mm256_loadu_si256((const __m256i *)(data + at));
        for (int t = 0; t < CV_DIGEST_PASSES; t++) {
            const __m256i k = _mm256_loadu_si256((const __m256i *)(key + at + t * CV_DIGEST_SHIFT));
            const __m256i x = _mm256_add_epi32(m, k);
            acc[t] = _mm256_add_epi64(acc[t], _mm256_mul_epu32(x, _mm256_srli_epi64(x, 32)));
        }
    }
    for (int t = 0; t < CV_DIGEST_PASSES; t++) {
        uint64_t part[4];
        _mm256_storeu_si256((__m256i *)part, acc[t]);
        sum[t] = part[0] + part[1] + part[2] + part[3];
    }
#else
    for (int t = 0; t < CV_DIGEST_PASSES; t++) sum[t] = 0;
    for (int at = 0; at < CV_DIGEST_BLOCK; at += 8) {
        uint32_t m[2], k[2];
        memcpy(m, data + at, 8);
        for (int t = 0; t < CV_DIGEST_PASSES; t++) {
            memcpy(k, key + at + t * CV_DIGEST_SHIFT, 8);
            sum[t] += (uint64_t)(uint32_t)(m[0] + k[0]) * (uint32_t)(m[1] + k[1]);
        }
    }
#endif
}

__attribute__((visibility("default"))) void cv_digest(const void *data, int64_t bytes, const void *key, void *out) {
    const uint8_t *from = data;
    uint8_t *to = out;
    uint64_t sum[CV_DIGEST_PASSES];
    for (; bytes >= CV_DIGEST_BLOCK; bytes -= CV_DIGEST_BLOCK, from += CV_DIGEST_BLOCK, to += sizeof sum) {
        cv_digest_block(from, key, sum);
        memcpy(to, sum, sizeof sum);
    }
    if (bytes > 0) {
        uint8_t last[CV_DIGEST_BLOCK] = {0};
        memcpy(last, from, (size_t)bytes);
        cv_digest_block(last, key, sum);
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

__attribute__((visibility("default"))) int cv_transpose(
    void *to, const void *from, int64_t rows, int64_t columns, int size) {
    switch (size) {
    case 1: cv_transpose_uint8_t(to, from, rows, columns); return 0;
    case 2: cv_transpose_uint16_t(to, from, rows, columns); return 0;
    case 4: cv_transpose_uint32_t(to, from, rows, columns); return 0;
    case 8: cv_transpose_uint64_t(to, from, rows, columns); return 0;
    default: return 1;
    }
}

#endif
