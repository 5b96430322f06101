/* Register-tiled inner products on packed panels, the engine of gemm.h and conv.h.
 *
 * runtime.c includes this with CV_MICROKERNEL_BODIES and so compiles the kernels once per machine; generated code
 * sees the tile constants and reaches the kernels through ctx->microkernels.
 *
 * A microkernel computes, for i < rows and j < columns,
 *     c[i][j] (+)= sum over k < depth of A[i][k] * b[k * ldb + j]
 * with A[i][k] = a[(k / CV_CHUNK * rows + i) * CV_CHUNK + k % CV_CHUNK]
 * as one chain of multiply-adds in the order of k: the value of an element depends on neither the rows nor the
 * columns that are computed with it. Integers wrap.
 */
#ifndef CUVIL_MICROKERNEL_H
#define CUVIL_MICROKERNEL_H

#include <stdint.h>

#include "cuvil/vec.h"

/* Rows of a full tile. AVX-512: 14 rows of 2 vectors are 28 accumulators, and 2 registers hold the row of B and 1 the
 * element of A. 16 registers of 256 bits, or 32 of 128, hold 6 rows of 16 elements of 32 bits. */
#if CV_LANES == 16
#define CV_MR 14
#else
#define CV_MR 6
#endif
/* Columns of a panel of B: two registers. */
#define CV_NR_f32 (2 * CV_LANES)
#define CV_NR_i32 (2 * CV_LANES)
#define CV_NR_f64 CV_LANES
#define CV_NR_i64 CV_LANES
/* Largest depth of a block, a multiple of CV_CHUNK. CV_KC rows of a panel of B (64 KiB on AVX-512, 32 KiB elsewhere)
 * need not fit into the first-level cache, which is fed from the second in time; what they save is passes over
 * unfinished tiles. Whole K in the second-level cache is slower from about 1024 on. */
#define CV_KC 512
/* A tile of A is packed as chunks of CV_CHUNK columns, each with its rows one after the other: copying packs it, every
 * address in a kernel is a small constant away from one pointer (one byte in the instruction), and no two rows share a
 * cache set. The last chunk of a tile has the full length too. */
#define CV_CHUNK 16
/* Tiles of few rows compute two panels at once: a single one would wait for the latency of its few chains. More rows
 * would not fit into the registers. */
#if CV_LANES == 16
#define CV_WIDE_ROWS 4
#else
#define CV_WIDE_ROWS 2
#endif

/* `next` is the distance from b to the panel after it; only the kernels for two panels use it, and they write the
 * second tile CV_MR * NR elements after the first. c has rows of NR elements. Each step of k prefetches the line at
 * `ahead` into the second-level cache and moves `ahead` on by ahead_step bytes: memory that the caller wants soon (any
 * address will do). */
typedef void (*cv_microkernel)(int64_t depth, const void *a, const void *b, int64_t ldb, int64_t next, void *c,
                               int accumulate, const void *ahead, int64_t ahead_step);

/* [rows - 1] */
struct cv_microkernels {
    cv_microkernel full_f32[CV_MR], half_f32[CV_MR], wide_f32[CV_WIDE_ROWS];
    cv_microkernel full_i32[CV_MR], half_i32[CV_MR];
    cv_microkernel full_f64[CV_MR], full_i64[CV_MR];
};

/* Products of narrow elements: bfloat16 with float32 sums, int8 with int32 sums. A group of elements that follow each
 * other along K (2 or 4, 32 bits together) takes the place of one element above: the depth counts groups, a tile of A
 * has its groups in chunks of CV_CHUNK, and a row of a panel of B has the group of each column. The depth is a multiple
 * of CV_CHUNK: operands are filled up with zeros. Subnormal bfloat16 values count as 0, and so do subnormal sums.
 *
 * `rows` is the height of a full tile, `step` what the time of a tile grows by. Kernels may read A, and write c, up to
 * a multiple of `step` rows; what they write beyond their rows has no meaning. begin and end frame the use of the
 * kernels by a thread. */
#define CV_NARROW_ROWS 32
struct cv_narrow_kernels {
    int rows, step, depth; /* largest depth of a block, in groups */
    void (*begin)(void), (*end)(void);
    cv_microkernel full[CV_NARROW_ROWS], half[CV_NARROW_ROWS];
};
/* Groups need a vector of CV_LANES 32-bit lanes in one register; other machines multiply wide elements. */
#if CV_LANES == 16
#define CV_HAS_NARROW 1
#endif

#ifdef CV_MICROKERNEL_BODIES

#if defined(__AVX512F__) && CV_LANES == 16
#define CVM_BYTES 64
#elif defined(__AVX2__)
#define CVM_BYTES 32
#else
#define CVM_BYTES 16
#endif

#define CVM_PREFETCH(p) __builtin_prefetch(p, 0, 2)

#define CVM_TYPES(dt, T)                                                               \
    typedef T cvm_##dt __attribute__((vector_size(CVM_BYTES)));                        \
    typedef T cvm_##dt##_mem __attribute__((vector_size(CVM_BYTES), aligned(sizeof(T)), may_alias));
CVM_TYPES(f32, float)
CVM_TYPES(f64, double)
CVM_TYPES(i32, int32_t)
CVM_TYPES(i64, int64_t)

#define CVM_TILE(dt, c, i, j) ((c) + ((j) / PER) * CV_MR * CV_NR_##dt + (i) * CV_NR_##dt + ((j) % PER) * LANES)

/* The loops over rows and vectors have constant trip counts and unroll completely, so acc lives in registers. */
#define CVM_KERNEL(dt, T, name, ROWS, COLUMNS, PANELS, UNROLL)                                                         \
    static void cvm_##name##_##dt##_##ROWS(int64_t depth, const void *pa, const void *pb, int64_t ldb, int64_t next,   \
                                           void *pc, int accumulate, const void *pahead, int64_t ahead_step) {         \
        enum { LANES = CVM_BYTES / sizeof(T), PER = (COLUMNS) / LANES, VECTORS = PER * PANELS };                       \
        const T *a = (const T *)pa + (ROWS) / 2 * CV_CHUNK, *b = pb; /* the middle row */                              \
        T *c = pc;                                                                                                     \
        const char *ahead = pahead, *chunk = (const char *)((const T *)pa + (ROWS) * CV_CHUNK); /* the next one */     \
        cvm_##dt acc[ROWS][VECTORS];                                                                                   \
        _Pragma("GCC unroll 16") for (int i = 0; i < ROWS; i++) {                                                      \
            _Pragma("GCC unroll 16") for (int j = 0; j < VECTORS; j++) {                                               \
                acc[i][j] = (cvm_##dt){};                                                                              \
                if (accumulate) acc[i][j] = *(cvm_##dt##_mem *)CVM_TILE(dt, c, i, j);                                  \
            }                                                                                                          \
        }                                                                                                              \
        for (; depth > 0; depth -= CV_CHUNK) {                                                                         \
            int64_t length = depth < CV_CHUNK ? depth : CV_CHUNK;                                                      \
            _Pragma(UNROLL) for (int64_t k = 0; k < length; k++) {                                                     \
                cvm_##dt row[VECTORS];                                                                                 \
                _Pragma("GCC unroll 16") for (int j = 0; j < VECTORS; j++) {                                           \
                    row[j] = *(const cvm_##dt##_mem *)(b + (j / PER) * next + (j % PER) * LANES);                      \
                }                                                                                                      \
                _Pragma("GCC unroll 16") for (int i = 0; i < ROWS; i++) {                                              \
                    T x = a[(i - (ROWS) / 2) * CV_CHUNK];                                                              \
                    _Pragma("GCC unroll 16") for (int j = 0; j < VECTORS; j++) acc[i][j] += x * row[j];                \
                }                                                                                                      \
                CVM_PREFETCH(ahead);                                                                                   \
                if (ROWS > CV_WIDE_ROWS) { /* else A is small */                                                       \
                    __builtin_prefetch(chunk, 0, 3);                                                                   \
                    chunk += 64;                                                                                       \
                }                                                                                                      \
                ahead += ahead_step;                                                                                   \
                a++;                                                                                                   \
                b += ldb;                                                                                              \
            }                                                                                                          \
            a += (ROWS - 1) * CV_CHUNK; /* from the end of the chunk's first row to the next chunk */                  \
        }                                                                                                              \
        _Pragma("GCC unroll 16") for (int i = 0; i < ROWS; i++) {                                                      \
            _Pragma("GCC unroll 16") for (int j = 0; j < VECTORS; j++) {                                               \
                *(cvm_##dt##_mem *)CVM_TILE(dt, c, i, j) = acc[i][j];                                                  \
            }                                                                                                          \
        }                                                                                                              \
    }
#define CVM_ROLLED "GCC unroll 1"
#define CVM_UNROLLED "GCC unroll 4"
#define CVM_FULL(dt, T, ROWS) CVM_KERNEL(dt, T, full, ROWS, CV_NR_##dt, 1, CVM_UNROLLED)
#define CVM_HALF(dt, T, ROWS) CVM_KERNEL(dt, T, half, ROWS, CV_NR_##dt / 2, 1, CVM_ROLLED)
#define CVM_WIDE(dt, T, ROWS) CVM_KERNEL(dt, T, wide, ROWS, CV_NR_##dt, 2, CVM_UNROLLED)

#if CV_MR == 14
#define CVM_EACH(F, dt, T)                                                                                   \
    F(dt, T, 1) F(dt, T, 2) F(dt, T, 3) F(dt, T, 4) F(dt, T, 5) F(dt, T, 6) F(dt, T, 7) F(dt, T, 8)          \
    F(dt, T, 9) F(dt, T, 10) F(dt, T, 11) F(dt, T, 12) F(dt, T, 13) F(dt, T, 14)
#define CVM_ROW(n)                                                                                           \
    {cvm_##n##_1, cvm_##n##_2, cvm_##n##_3, cvm_##n##_4, cvm_##n##_5, cvm_##n##_6, cvm_##n##_7, cvm_##n##_8, \
     cvm_##n##_9, cvm_##n##_10, cvm_##n##_11, cvm_##n##_12, cvm_##n##_13, cvm_##n##_14}
#else
#define CVM_EACH(F, dt, T) F(dt, T, 1) F(dt, T, 2) F(dt, T, 3) F(dt, T, 4) F(dt, T, 5) F(dt, T, 6)
#define CVM_ROW(n) {cvm_##n##_1, cvm_##n##_2, cvm_##n##_3, cvm_##n##_4, cvm_##n##_5, cvm_##n##_6}
#endif
CVM_EACH(CVM_FULL, f32, float)
CVM_EACH(CVM_HALF, f32, float)
CVM_WIDE(f32, float, 1) CVM_WIDE(f32, float, 2)
#if CV_WIDE_ROWS == 4
CVM_WIDE(f32, float, 3) CVM_WIDE(f32, float, 4)
#define CVM_WIDE_ROW {cvm_wide_f32_1, cvm_wide_f32_2, cvm_wide_f32_3, cvm_wide_f32_4}
#else
#define CVM_WIDE_ROW {cvm_wide_f32_1, cvm_wide_f32_2}
#endif
CVM_EACH(CVM_FULL, i32, int32_t)
CVM_EACH(CVM_HALF, i32, int32_t)
CVM_EACH(CVM_FULL, f64, double)
CVM_EACH(CVM_FULL, i64, int64_t)

static const struct cv_microkernels cv_microkernel_table = {
    .full_f32 = CVM_ROW(full_f32), .half_f32 = CVM_ROW(half_f32),
    .wide_f32 = CVM_WIDE_ROW,
    .full_i32 = CVM_ROW(full_i32), .half_i32 = CVM_ROW(half_i32),
    .full_f64 = CVM_ROW(full_f64), .full_i64 = CVM_ROW(full_i64),
};

/* ---------------------------------------------------------------- narrow elements */

#if CV_LANES == 16 && (defined(__AVX512BF16__) || defined(__AVX512VNNI__) || defined(__AMX_TILE__))
#include <immintrin.h>

static void cvm_nothing(void) {}
#define CVM_NARROW_ROW14(n)                                                                                      \
    {n##_1, n##_2, n##_3, n##_4, n##_5, n##_6, n##_7, n##_8, n##_9, n##_10, n##_11, n##_12, n##_13, n##_14}
#define CVM_NARROW_EACH14(F, ...)                                                                                \
    F(1, __VA_ARGS__) F(2, __VA_ARGS__) F(3, __VA_ARGS__) F(4, __VA_ARGS__) F(5, __VA_ARGS__) F(6, __VA_ARGS__)  \
    F(7, __VA_ARGS__) F(8, __VA_ARGS__) F(9, __VA_ARGS__) F(10, __VA_ARGS__) F(11, __VA_ARGS__)                  \
    F(12, __VA_ARGS__) F(13, __VA_ARGS__) F(14, __VA_ARGS__)

/* The register tiles of the wide kernels. SUM(acc, x, row) adds the products of the groups x (the same in all lanes)
 * and row; EACH(row) and LAST are for what all rows of A need. */
#define CVM_NARROW_KERNEL(ROWS, name, V, ZERO, COLUMNS, SUM, EACH, LAST)                                          \
    static void name##_##ROWS(int64_t depth, const void *pa, const void *pb, int64_t ldb, int64_t next, void *c,  \
                              int accumulate, const void *pahead, int64_t ahead_step) {                           \
        enum { VECTORS = (COLUMNS) / 16 };                                                                        \
        const int32_t *a = (const int32_t *)pa + (ROWS) / 2 * CV_CHUNK, *b = pb;                                  \
        const char *ahead = pahead, *chunk = (const char *)((const int32_t *)pa + (ROWS) * CV_CHUNK);             \
        (void)next;                                                                                               \
        V acc[ROWS][VECTORS], all[VECTORS];                                                                       \
        _Pragma("GCC unroll 16") for (int j = 0; j < VECTORS; j++) {                                              \
            all[j] = ZERO;                                                                                        \
            _Pragma("GCC unroll 16") for (int i = 0; i < ROWS; i++) {                                             \
                acc[i][j] = ZERO;                                                                                 \
                if (accumulate) __builtin_memcpy(&acc[i][j], (char *)c + (i * 32 + j * 16) * 4, 64);              \
            }                                                                                                     \
        }                                                                                                         \
        for (; depth > 0; depth -= CV_CHUNK) {                                                                    \
            _Pragma("GCC unroll 4") for (int64_t k = 0; k < CV_CHUNK; k++) {                                      \
                __m512i row[VECTORS];                                                                             \
                _Pragma("GCC unroll 16") for (int j = 0; j < VECTORS; j++) {                                      \
                    row[j] = _mm512_loadu_si512(b + j * 16);                                                      \
                    EACH                                                                                          \
                }                                                                                                 \
                _Pragma("GCC unroll 16") for (int i = 0; i < ROWS; i++) {                                         \
                    __m512i x = _mm512_set1_epi32(a[(i - (ROWS) / 2) * CV_CHUNK]);                                \
                    _Pragma("GCC unroll 16") for (int j = 0; j < VECTORS; j++) acc[i][j] = SUM;                   \
                }                                                                                                 \
                CVM_PREFETCH(ahead);                                                                              \
                __builtin_prefetch(chunk, 0, 3);                                                                  \
                chunk += 64;                                                                                      \
                ahead += ahead_step;                                                                              \
                a++;                                                                                              \
                b += ldb;                                                                                         \
            }                                                                                                     \
            a += (ROWS - 1) * CV_CHUNK;                                                                           \
        }                                                                                                         \
        _Pragma("GCC unroll 16") for (int j = 0; j < VECTORS; j++) {                                              \
            _Pragma("GCC unroll 16") for (int i = 0; i < ROWS; i++) {                                             \
                LAST __builtin_memcpy((char *)c + (i * 32 + j * 16) * 4, &acc[i][j], 64);                         \
            }                                                                                                     \
        }                                                                                                         \
        (void)all;                                                                                                \
    }

#if defined(__AVX512BF16__)
#define CVM_HAS_AVX512_BF16 1
#define CVM_BF16_SUM _mm512_dpbf16_ps(acc[i][j], (__m512bh)x, (__m512bh)row[j])
CVM_NARROW_EACH14(CVM_NARROW_KERNEL, cvm_bf16_full, __m512, _mm512_setzero_ps(), 32, CVM_BF16_SUM, , )
CVM_NARROW_EACH14(CVM_NARROW_KERNEL, cvm_bf16_half, __m512, _mm512_setzero_ps(), 16, CVM_BF16_SUM, , )
static const struct cv_narrow_kernels cvm_avx512_bf16 = {
    14, 1, 512, cvm_nothing, cvm_nothing, CVM_NARROW_ROW14(cvm_bf16_full), CVM_NARROW_ROW14(cvm_bf16_half)};
#endif

#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
/* Tiles 0 ... 3 hold 32 rows by 32 columns of the result, 4 and 5 rows of A, 6 and 7 columns of B. */
static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} __attribute__((aligned(64))) cvm_amx_config = {
    .palette = 1, .bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
static void cvm_amx_begin(void) { _tile_loadconfig(&cvm_amx_config); }
static void cvm_amx_end(void) { _tile_release(); }

#define CVM_AMX_KERNEL(ROWS, name, HIGH, WIDE, DOT)                                                               \
    static void name##_##ROWS(int64_t depth, const void *pa, const void *pb, int64_t ldb, int64_t next, void *c,  \
                              int accumulate, const void *pahead, int64_t ahead_step) {                           \
        const char *a = pa, *b = pb, *ahead = pahead;                                                             \
        (void)next;                                                                                               \
        if (accumulate) {                                                                                         \
            _tile_loadd(0, (char *)c, 128);                                                                       \
            if (WIDE) _tile_loadd(1, (char *)c + 64, 128);                                                        \
            if (HIGH) _tile_loadd(2, (char *)c + 2048, 128);                                                      \
            if (HIGH && WIDE) _tile_loadd(3, (char *)c + 2048 + 64, 128);                                         \
        } else {                                                                                                  \
            _tile_zero(0);                                                                                        \
            if (WIDE) _tile_zero(1);                                                                              \
            if (HIGH) _tile_zero(2);                                                                              \
            if (HIGH && WIDE) _tile_zero(3);                                                                      \
        }                                                                                                         \
        for (; depth > 0; depth -= CV_CHUNK) {                                                                    \
            _tile_loadd(6, b, ldb * 4);                                                                           \
            _tile_loadd(4, a, 64);                                                                                \
            DOT(0, 4, 6);                                                                                         \
            if (WIDE) {                                                                                           \
                _tile_loadd(7, b + 64, ldb * 4);                                                                  \
                DOT(1, 4, 7);                                                                                     \
            }                                                                                                     \
            if (HIGH) {                                                                                           \
                _tile_loadd(5, a + 1024, 64);                                                                     \
                DOT(2, 5, 6);                                                                                     \
                if (WIDE) DOT(3, 5, 7);                                                                           \
            }                                                                                                     \
            _Pragma("GCC unroll 16") for (int k = 0; k < CV_CHUNK; k++, ahead += ahead_step) CVM_PREFETCH(ahead); \
            a += (ROWS) * 64;                                                                                     \
            b += CV_CHUNK * ldb * 4;                                                                              \
        }                                                                                                         \
        _tile_stored(0, (char *)c, 128);                                                                          \
        if (WIDE) _tile_stored(1, (char *)c + 64, 128);                                                           \
        if (HIGH) _tile_stored(2, (char *)c + 2048, 128);                                                         \
        if (HIGH && WIDE) _tile_stored(3, (char *)c + 2048 + 64, 128);                                            \
    }
#define CVM_AMX_LOW(F, ...)                                                                                       \
    F(1, __VA_ARGS__) F(2, __VA_ARGS__) F(3, __VA_ARGS__) F(4, __VA_ARGS__) F(5, __VA_ARGS__) F(6, __VA_ARGS__)   \
    F(7, __VA_ARGS__) F(8, __VA_ARGS__) F(9, __VA_ARGS__) F(10, __VA_ARGS__) F(11, __VA_ARGS__)                   \
    F(12, __VA_ARGS__) F(13, __VA_ARGS__) F(14, __VA_ARGS__) F(15, __VA_ARGS__) F(16, __VA_ARGS__)
#define CVM_AMX_HIGH(F, ...)                                                                                      \
    F(17, __VA_ARGS__) F(18, __VA_ARGS__) F(19, __VA_ARGS__) F(20, __VA_ARGS__) F(21, __VA_ARGS__)                \
    F(22, __VA_ARGS__) F(23, __VA_ARGS__) F(24, __VA_ARGS__) F(25, __VA_ARGS__) F(26, __VA_ARGS__)                \
    F(27, __VA_ARGS__) F(28, __VA_ARGS__) F(29, __VA_ARGS__) F(30, __VA_ARGS__) F(31, __VA_ARGS__)                \
    F(32, __VA_ARGS__)
#define CVM_AMX_ROW(n)                                                                                            \
    {n##_1,  n##_2,  n##_3,  n##_4,  n##_5,  n##_6,  n##_7,  n##_8,  n##_9,  n##_10, n##_11,                      \
     n##_12, n##_13, n##_14, n##_15, n##_16, n##_17, n##_18, n##_19, n##_20, n##_21, n##_22,                      \
     n##_23, n##_24, n##_25, n##_26, n##_27, n##_28, n##_29, n##_30, n##_31, n##_32}
/* A panel of depth 256 stays in the first-level cache, which half of the operands must come from. */
#define CVM_AMX_SET(name, DOT)                                                                                    \
    CVM_AMX_LOW(CVM_AMX_KERNEL, cvm_amx_##name##_full, 0, 1, DOT)                                                 \
    CVM_AMX_HIGH(CVM_AMX_KERNEL, cvm_amx_##name##_full, 1, 1, DOT)                                                \
    CVM_AMX_LOW(CVM_AMX_KERNEL, cvm_amx_##name##_half, 0, 0, DOT)                                                 \
    CVM_AMX_HIGH(CVM_AMX_KERNEL, cvm_amx_##name##_half, 1, 0, DOT)                                                \
    static const struct cv_narrow_kernels cvm_amx_##name = {                                                      \
        32, 16, 256, cvm_amx_begin, cvm_amx_end, CVM_AMX_ROW(cvm_amx_##name##_full),                              \
        CVM_AMX_ROW(cvm_amx_##name##_half)};
#define CVM_HAS_AMX_BF16 1
CVM_AMX_SET(bf16, _tile_dpbf16ps)
#endif
#endif

#endif
#endif
