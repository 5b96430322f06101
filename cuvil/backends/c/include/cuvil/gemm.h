/* Matrix product with fused prologue and epilogue; a template that a kernel includes once per product.
 *
 * docs/design/gemm.md tells how to use it. In short: define CV_GEMM_NAME, CV_GEMM_ACC, CV_GEMM_A_T, CV_GEMM_B_T and
 * CV_GEMM_STORE (and, where wanted, the other hooks), include this file, call CV_GEMM_NAME##_run.
 *
 * Method. The product is cut into tasks, each a block of rows times a range of panels (CV_NR columns), for whole K.
 * A task goes through K in blocks of CV_KC; for each it packs its rows of A (they stay in the second-level cache) and
 * goes through its panels; a panel of B (packed beforehand, or here, or used where it lies) stays in the first-level
 * cache while the tiles of the rows pass over it. Tiles wait in scratch memory between blocks of K, so the store hook
 * sees finished sums only. A task never shares an element of the result with another one, and the order of the
 * additions of an element is that of k, so the result does not depend on who ran what.
 */
#ifndef CUVIL_GEMM_H
#define CUVIL_GEMM_H

#include "cuvil/element.h"
#include "cuvil/microkernel.h"
#include "cuvil/runtime.h"
#include "cuvil/vec.h"

/* An operand. Strides count elements; a packed operand's data come from _pack_a or _pack_b and only its batch_stride is
 * used, in elements of CV_GEMM_ACC. */
typedef struct {
    const void *data;
    int64_t row_stride, col_stride, batch_stride;
    int packed;
} cv_matrix;

#define CVG_PASTE_(a, b) a##b
#define CVG_PASTE(a, b) CVG_PASTE_(a, b)
#define CVG_PASTE3_(a, b, c) a##b##c
#define CVG_PASTE3(a, b, c) CVG_PASTE3_(a, b, c)
#define CVG_PASTE4_(a, b, c, d) a##b##c##d
#define CVG_PASTE4(a, b, c, d) CVG_PASTE4_(a, b, c, d)

/* At most this much of a product is one task: 16 tiles of rows keep its part of A in the second-level cache, and so do
 * 32 panels its unfinished tiles where K is cut. More panels save packing A again. */
#define CVG_TASK_TILES 16
#define CVG_TASK_PANELS(k) ((k) > CV_KC ? 32 : 256)
/* Multiply-adds under which a task is not worth another thread's attention (about a microsecond). */
#define CVG_TASK_MIN 65536

CV_INLINE int64_t cvg_min(int64_t a, int64_t b) { return a < b ? a : b; }
CV_INLINE int64_t cvg_max(int64_t a, int64_t b) { return a > b ? a : b; }
CV_INLINE int64_t cvg_ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }
CV_INLINE int64_t cvg_round_up(int64_t a, int64_t b) { return cvg_ceil_div(a, b) * b; }

/* How M rows and N columns are cut: tiles of rows_per_tile rows, tasks of task_tiles by task_panels. */
typedef struct {
    int64_t tiles, rows_per_tile, panels;
    int64_t task_tiles, task_panels;
    int64_t task_rows, task_columns; /* tasks along each axis */
} cvg_plan;

/* Tiles have at most mr rows, and as near as can be a multiple of `step`.
 * Costs are in multiply-adds of a vector pair, per k: a row of a panel costs 1, packing a row of A or a panel of B the
 * given amounts. Chooses the cut whose slowest worker has the least to do. */
CV_FUNC cvg_plan cvg_make_plan(int64_t batch, int64_t m, int64_t n, int64_t k, int64_t mr, int64_t step, int64_t nr,
                               int workers, double pack_a, double pack_b) {
    cvg_plan p;
    p.tiles = cvg_ceil_div(m, mr);
    p.rows_per_tile = p.tiles ? cvg_round_up(cvg_ceil_div(m, p.tiles), step) : 1;
    p.tiles = cvg_ceil_div(m, p.rows_per_tile);
    p.panels = cvg_ceil_div(n, nr);
    int64_t least_rows = cvg_ceil_div(p.tiles, CVG_TASK_TILES * CV_MR / mr);
    int64_t least_columns = cvg_ceil_div(p.panels, CVG_TASK_PANELS(k));
    double best = 0;
    int64_t cut_rows = least_rows, cut_columns = least_columns;
    int64_t worth = cvg_max((int64_t)((double)batch * (double)m * (double)n * ((double)k + 8) / CVG_TASK_MIN), 1);
    if (workers > 1 && batch * least_rows * least_columns < 16 * (int64_t)workers) {
        for (int64_t r = least_rows; r <= cvg_min(p.tiles, least_rows + 2 * workers); r++) {
            for (int64_t c = least_columns; c <= cvg_min(p.panels, least_columns + 2 * workers); c++) {
                int64_t tasks = batch * r * c;
                if (tasks > worth && (r > least_rows || c > least_columns)) break;
                double rows = (double)(cvg_ceil_div(p.tiles, r) * p.rows_per_tile);
                double panels = (double)cvg_ceil_div(p.panels, c);
                double task = rows * panels + rows * pack_a + panels * pack_b + 2;
                /* Cores differ in speed: some wait for a part of the last task, less when tasks are small. */
                double cost = (double)cvg_ceil_div(tasks, workers) * task + 0.1 * task;
                if (best == 0 || cost < best) {
                    best = cost;
                    cut_rows = r;
                    cut_columns = c;
                }
            }
        }
    }
    p.task_tiles = cut_rows ? cvg_ceil_div(p.tiles, cut_rows) : 1;
    p.task_panels = cut_columns ? cvg_ceil_div(p.panels, cut_columns) : 1;
    p.task_rows = cvg_ceil_div(p.tiles, p.task_tiles);
    p.task_columns = cvg_ceil_div(p.panels, p.task_panels);
    return p;
}

/* Transposes CV_LANES vectors of 32-bit lanes in place: step s exchanges the off-diagonal s by s blocks. */
#ifdef CVI_HAS_SHUFFLEVECTOR
#define CVG_TWO(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define CVG_TWO(a, b, ...) __builtin_shuffle(a, b, (cv_vi32){__VA_ARGS__})
#endif
#define CVG_EXCHANGE(s, LOW, HIGH)                                                 \
    _Pragma("GCC unroll 16") for (int i = 0; i < CV_LANES; i++) {                  \
        if (!(i & s)) {                                                            \
            cv_vi32 a = v[i], b = v[i | s];                                        \
            v[i] = CVG_TWO(a, b, LOW);                                             \
            v[i | s] = CVG_TWO(a, b, HIGH);                                        \
        }                                                                          \
    }
#if CV_LANES == 16
#define CVG_LOW1 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30
#define CVG_HIGH1 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31
#define CVG_LOW2 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29
#define CVG_HIGH2 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31
#define CVG_LOW4 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27
#define CVG_HIGH4 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31
#define CVG_LOW8 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23
#define CVG_HIGH8 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31
#else
#define CVG_LOW1 0, 8, 2, 10, 4, 12, 6, 14
#define CVG_HIGH1 1, 9, 3, 11, 5, 13, 7, 15
#define CVG_LOW2 0, 1, 8, 9, 4, 5, 12, 13
#define CVG_HIGH2 2, 3, 10, 11, 6, 7, 14, 15
#define CVG_LOW4 0, 1, 2, 3, 8, 9, 10, 11
#define CVG_HIGH4 4, 5, 6, 7, 12, 13, 14, 15
#endif
CV_FUNC void cvg_transpose(cv_vi32 v[CV_LANES]) {
    CVG_EXCHANGE(1, CVG_LOW1, CVG_HIGH1)
    CVG_EXCHANGE(2, CVG_LOW2, CVG_HIGH2)
    CVG_EXCHANGE(4, CVG_LOW4, CVG_HIGH4)
#if CV_LANES == 16
    CVG_EXCHANGE(8, CVG_LOW8, CVG_HIGH8)
#endif
}

/* Groups of narrow elements (microkernel.h), one a lane: of two or four vectors that hold the elements of a group each
 * (across), and of vectors that hold groups one after the other (along). */
#ifdef CV_HAS_NARROW
CV_INLINE cv_vu32 cvg_bits_bf16(cv_vf32 v) {
    cv_vu32 u = (cv_vu32)v, even = u + 0x7fff + ((u >> 16) & 1);
    return (cv_vu32)cv_select_i32((cv_vbool)(v == v), (cv_vi32)even, (cv_vi32)(u | 0x400000));
}
CV_INLINE cv_vi32 cvg_across_bf16(const float *from, int64_t stride) {
    cv_vu32 low = cvg_bits_bf16(cv_load_f32(from)), high = cvg_bits_bf16(cv_load_f32(from + stride));
    return (cv_vi32)((low >> 16) | (high & 0xffff0000u));
}
CV_INLINE void cvg_along_bf16(void *to, const float *from, int64_t stride) {
#if defined(__AVX512BF16__) && defined(__x86_64__)
    cv_vi32 packed;
    __asm__("vcvtne2ps2bf16 %2, %1, %0" : "=v"(packed) : "v"(cv_load_f32(from + stride)), "v"(cv_load_f32(from)));
    cv_store_i32(to, packed);
#else
    cv_store_bf16(to, cv_load_f32(from));
    cv_store_bf16((uint16_t *)to + CV_LANES, cv_load_f32(from + stride));
#endif
}
#endif

#endif

/* ================================================================ the template
 *
 * Without CV_GEMM_NAME the file declares only what all products share.
 */
#ifdef CV_GEMM_NAME

#define CVG_(suffix) CVG_PASTE(CV_GEMM_NAME, suffix)
#define CVG_T CVG_PASTE(cv_elem_reg_, CV_GEMM_ACC)
#define CVG_V CVG_PASTE(cv_v, CV_GEMM_ACC)
#define CVG_NR CVG_PASTE(CV_NR_, CV_GEMM_ACC)
#define CVG_LOAD_ACC CVG_PASTE(cv_load_, CV_GEMM_ACC)
#define CVG_STORE_ACC CVG_PASTE(cv_store_, CV_GEMM_ACC)
#define CVG_STORE_PART_ACC CVG_PASTE(cv_store_part_, CV_GEMM_ACC)
#define CVG_CAST(dt) CVG_PASTE4(cv_cast_, CV_ELEM_REG(dt), _, CV_GEMM_ACC)
#define CVG_LOAD(dt, p) CVG_CAST(dt)(CVG_PASTE(cv_load_, dt)(p))
#define CVG_LOAD_PART(dt, p, n) CVG_CAST(dt)(CVG_PASTE(cv_load_part_, dt)(p, n))
#define CVG_LOAD_STRIDED(dt, p, s, n) CVG_CAST(dt)(CVG_PASTE(cv_load_strided_, dt)(p, s, n))
#define CVG_A_MEM CVG_PASTE(cv_elem_, CV_GEMM_A_T)
#define CVG_B_MEM CVG_PASTE(cv_elem_, CV_GEMM_B_T)
/* Is the accumulation type one with 32 bits, whose panel is two vectors? */
#define CVG_IS_F32 (CV_ELEM_ID(CV_GEMM_ACC) == CV_ELEM_ID_f32)
#define CVG_IS_32 (CVG_IS_F32 || CV_ELEM_ID(CV_GEMM_ACC) == CV_ELEM_ID_i32)
/* Where the processor has a unit for narrow elements, operands are packed to groups of CVG_GROUP of them. */
#if defined(CV_GEMM_BF16) && defined(CV_HAS_NARROW)
#define CVG_GROUP 2
#define CVG_KIND bf16
#define CVG_NARROW_OF(ctx) ((ctx)->bf16)
#else
#define CVG_NARROW_OF(ctx) ((const struct cv_narrow_kernels *)0)
#endif
#ifdef CVG_GROUP
#define CVG_NARROW(call) ((call)->narrow)
#else
#define CVG_NARROW(call) 0
#endif

#ifndef CV_GEMM_A_OFFSET
#define CV_GEMM_A_OFFSET(env, batch) ((batch) * call->a.batch_stride)
#endif
#ifndef CV_GEMM_B_OFFSET
#define CV_GEMM_B_OFFSET(env, batch) ((batch) * call->b.batch_stride)
#endif

typedef struct {
    cv_ctx *ctx;
    const void *env;
    const struct cv_narrow_kernels *narrow; /* or null */
    int64_t batch, m, n, k;                 /* k counts groups where the kernels are narrow, whole chunks of them */
    int64_t elements;                       /* K */
    cv_matrix a, b;
    int64_t mr;    /* rows of a full tile */
    int64_t depth; /* of a block of K */
    int in_place;  /* the kernels read B where it lies */
    int64_t tasks, step, next_task;
    size_t a_bytes, b_bytes, c_bytes; /* of the parts of a worker's scratch */
    cvg_plan plan;
} CVG_(_call);

/* ---------------------------------------------------------------- packing A */

#ifndef CV_GEMM_PACK_A
/* Rows [row, row + rows) and columns [k, k + depth) of A as one tile. */
CV_FUNC void CVG_(_pack_tile)(const CVG_(_call) *call, CVG_T *to, int64_t batch, const CVG_A_MEM *a, int64_t row,
                              int64_t rows, int64_t k, int64_t depth) {
    (void)batch, (void)a, (void)call;
#ifndef CV_GEMM_LOAD_A
    int64_t rs = call->a.row_stride, cs = call->a.col_stride;
#endif
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < depth; j += CV_CHUNK) {
            CVG_T *out = to + j * rows + i * CV_CHUNK;
            int64_t length = cvg_min(CV_CHUNK, depth - j), l = 0;
#ifdef CV_GEMM_LOAD_A
            for (; l + CV_LANES <= length; l += CV_LANES) {
                CVG_STORE_ACC(out + l, CV_GEMM_LOAD_A(call->env, batch, (row + i), (k + j + l), CV_LANES));
            }
            if (l < length) {
                CVG_STORE_PART_ACC(out + l, CV_GEMM_LOAD_A(call->env, batch, (row + i), (k + j + l), (length - l)),
                                   length - l);
            }
#else
            const CVG_A_MEM *in = a + (row + i) * rs + (k + j) * cs;
            if (cs == 1) {
                for (; l + CV_LANES <= length; l += CV_LANES) CVG_STORE_ACC(out + l, CVG_LOAD(CV_GEMM_A_T, in + l));
                if (l < length) {
                    CVG_STORE_PART_ACC(out + l, CVG_LOAD_PART(CV_GEMM_A_T, in + l, length - l), length - l);
                }
            } else {
                for (; l < length; l += CV_LANES) {
                    int64_t count = cvg_min(CV_LANES, length - l);
                    CVG_STORE_PART_ACC(out + l, CVG_LOAD_STRIDED(CV_GEMM_A_T, in + l * cs, cs, count), count);
                }
            }
#endif
        }
    }
}
#define CVG_PACK_TILE CVG_(_pack_tile)
#else
#define CVG_PACK_TILE(call, to, batch, a, row, rows, k, depth) \
    CV_GEMM_PACK_A((call)->env, batch, to, row, rows, k, depth)
#endif

#ifdef CVG_GROUP
/* The same as groups: the elements are packed as they are, a few at a time, and then narrowed. */
CV_FUNC void CVG_(_pack_narrow_tile)(const CVG_(_call) *call, CVG_T *to, int64_t batch, const CVG_A_MEM *a, int64_t row,
                                     int64_t rows, int64_t k, int64_t depth) {
    enum { DEPTH = 128 }; /* a multiple of the elements of a chunk */
    (void)a, (void)batch;
    CVG_T wide[CV_MR * DEPTH] __attribute__((aligned(64)));
    for (int64_t part = 0; part < rows; part += CV_MR) {
        int64_t height = cvg_min(rows - part, CV_MR);
        for (int64_t done = 0; done < depth; done += DEPTH / CVG_GROUP) {
            int64_t from = (k + done) * CVG_GROUP, groups = cvg_min(DEPTH / CVG_GROUP, depth - done);
            int64_t length = cvg_max(cvg_min(groups * CVG_GROUP, call->elements - from), 0);
            if (length < groups * CVG_GROUP) memset(wide, 0, sizeof wide);
            if (length) CVG_PACK_TILE(call, wide, batch, a, row + part, height, from, length);
            for (int64_t g = 0; g < groups; g += CV_CHUNK) {
                for (int64_t i = 0; i < height; i++) {
                    CVG_PASTE(cvg_along_, CVG_KIND)(to + (done + g) * rows + (part + i) * CV_CHUNK,
                                                    wide + (g * CVG_GROUP * height) + i * CV_CHUNK, height * CV_CHUNK);
                }
            }
        }
    }
}
#endif

/* ---------------------------------------------------------------- packing B */

#ifndef CV_GEMM_PACK_B

/* CVG_B_DOWN: count elements of column n of B from row k on; CVG_B_ACROSS: of row k from column n on. The hooks give
 * one of the two; memory gives both. */
#if defined(CV_GEMM_LOAD_B_ALONG_K)
#define CVG_B_DOWN(k, n, count) CV_GEMM_LOAD_B_ALONG_K(call->env, batch, (k), (n), (count))
#elif defined(CV_GEMM_LOAD_B)
#define CVG_B_ACROSS(k, n, count) CV_GEMM_LOAD_B(call->env, batch, (k), (n), (count))
#else
#define CVG_B_AT(k, n) (b + (k) * call->b.row_stride + (n) * call->b.col_stride)
#define CVG_B_DOWN(k, n, count) CVG_LOAD_PART(CV_GEMM_B_T, CVG_B_AT(k, n), count)
#define CVG_B_ACROSS(k, n, count) CVG_LOAD_PART(CV_GEMM_B_T, CVG_B_AT(k, n), count)
#endif

/* Columns [n, n + columns) and rows [k, k + depth) of B as a panel of `width` columns; the columns beyond are zeros.
 * This one is for B whose columns are contiguous. */
#ifdef CVG_B_DOWN
CV_FUNC void CVG_(_pack_panel_down)(const CVG_(_call) *call, CVG_T *to, int64_t batch, const CVG_B_MEM *b, int64_t k,
                                    int64_t depth, int64_t n, int64_t columns, int64_t width) {
    (void)batch, (void)b, (void)call;
    for (int64_t j = 0; j < width; j += CV_LANES) {
        int64_t count = cvg_max(cvg_min(CV_LANES, columns - j), 0);
        for (int64_t i = 0; i < depth; i += CV_LANES) {
            int64_t length = cvg_min(CV_LANES, depth - i);
#if CVG_IS_32
            cv_vi32 square[CV_LANES];
            if (count == CV_LANES && length == CV_LANES) {
                _Pragma("GCC unroll 16") for (int l = 0; l < CV_LANES; l++) {
                    square[l] = (cv_vi32)CVG_B_DOWN(k + i, n + j + l, CV_LANES);
                }
            } else {
                for (int64_t l = 0; l < CV_LANES; l++) {
                    square[l] = l < count ? (cv_vi32)CVG_B_DOWN(k + i, n + j + l, length) : (cv_vi32){};
                }
            }
            cvg_transpose(square);
            for (int64_t l = 0; l < length; l++) CVG_STORE_ACC(to + (i + l) * width + j, (CVG_V)square[l]);
#else
            for (int64_t l = 0; l < CV_LANES; l++) {
                CVG_T column[CV_LANES] = {0};
                if (l < count) CVG_STORE_ACC(column, CVG_B_DOWN(k + i, n + j + l, length));
                for (int64_t r = 0; r < length; r++) to[(i + r) * width + j + l] = column[r];
            }
#endif
        }
    }
}
#endif

/* The same for B whose rows are contiguous or, where memory has neither, strided. */
#ifdef CVG_B_ACROSS
CV_FUNC void CVG_(_pack_panel_across)(const CVG_(_call) *call, CVG_T *to, int64_t batch, const CVG_B_MEM *b, int64_t k,
                                      int64_t depth, int64_t n, int64_t columns, int64_t width) {
    (void)batch, (void)b, (void)call;
    for (int64_t j = 0; j < width; j += CV_LANES) {
        int64_t count = cvg_max(cvg_min(CV_LANES, columns - j), 0);
        CVG_T *out = to + j;
#ifdef CVG_B_AT
        int64_t stride = call->b.col_stride;
        if (stride != 1) {
            for (int64_t i = k; i < k + depth; i++, out += width) {
                CVG_STORE_ACC(out, CVG_LOAD_STRIDED(CV_GEMM_B_T, CVG_B_AT(i, n + j), stride, count));
            }
            continue;
        }
#endif
        if (count == CV_LANES) {
            for (int64_t i = k; i < k + depth; i++, out += width) {
                CVG_STORE_ACC(out, CVG_B_ACROSS(i, n + j, CV_LANES));
            }
            continue;
        }
        for (int64_t i = k; i < k + depth; i++, out += width) {
            CVG_STORE_ACC(out, (CVG_V){});
            if (count) CVG_STORE_PART_ACC(out, CVG_B_ACROSS(i, n + j, count), count);
        }
    }
}
#endif

CV_FUNC void CVG_(_pack_panel)(const CVG_(_call) *call, CVG_T *to, int64_t batch, const CVG_B_MEM *b, int64_t k,
                               int64_t depth, int64_t n, int64_t columns, int64_t width) {
#if defined(CVG_B_DOWN) && defined(CVG_B_ACROSS)
    if (call->b.row_stride == 1 && call->b.col_stride != 1) {
        CVG_(_pack_panel_down)(call, to, batch, b, k, depth, n, columns, width);
    } else {
        CVG_(_pack_panel_across)(call, to, batch, b, k, depth, n, columns, width);
    }
#elif defined(CVG_B_DOWN)
    CVG_(_pack_panel_down)(call, to, batch, b, k, depth, n, columns, width);
#else
    CVG_(_pack_panel_across)(call, to, batch, b, k, depth, n, columns, width);
#endif
}
#undef CVG_B_AT
#undef CVG_B_DOWN
#undef CVG_B_ACROSS
#define CVG_PACK_PANEL CVG_(_pack_panel)
#else
#define CVG_PACK_PANEL(call, to, batch, b, k, depth, n, columns, width) \
    CV_GEMM_PACK_B((call)->env, batch, to, k, depth, n, columns, width)
#endif

#ifdef CVG_GROUP
CV_FUNC void CVG_(_pack_narrow_panel)(const CVG_(_call) *call, CVG_T *to, int64_t batch, const CVG_B_MEM *b, int64_t k,
                                      int64_t depth, int64_t n, int64_t columns, int64_t width) {
    enum { DEPTH = 64 };
    (void)b, (void)batch;
    CVG_T wide[DEPTH * CVG_NR] __attribute__((aligned(64)));
    for (int64_t done = 0; done < depth; done += DEPTH / CVG_GROUP) {
        int64_t from = (k + done) * CVG_GROUP, groups = cvg_min(DEPTH / CVG_GROUP, depth - done);
        int64_t length = cvg_max(cvg_min(groups * CVG_GROUP, call->elements - from), 0);
        if (length < groups * CVG_GROUP) memset(wide, 0, sizeof wide);
        if (length) CVG_PACK_PANEL(call, wide, batch, b, from, length, n, columns, width);
        for (int64_t g = 0; g < groups; g++) {
            for (int64_t j = 0; j < width; j += CV_LANES) {
                cv_store_i32((int32_t *)to + (done + g) * width + j,
                             CVG_PASTE(cvg_across_, CVG_KIND)(wide + g * CVG_GROUP * width + j, width));
            }
        }
    }
}
#endif

/* Width of the panel that starts at column n: the last one takes half where that is enough. */
CV_FUNC int64_t CVG_(_width)(int64_t n, int64_t columns) {
    (void)n, (void)columns;
#if CVG_IS_32
    if (columns - n <= CVG_NR / 2) return CVG_NR / 2;
#endif
    return CVG_NR;
}

/* ---------------------------------------------------------------- tasks */

#ifndef CV_GEMM_STORE_TILE
CV_FUNC void CVG_(_store_tile)(const CVG_(_call) *call, int64_t batch, int64_t row, int64_t rows, int64_t n,
                               int64_t columns, const CVG_T *tile) {
    (void)call, (void)batch, (void)row, (void)n;
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j += CV_LANES) {
            CVG_V value = CVG_LOAD_ACC(tile + i * CVG_NR + j);
            int64_t count = cvg_min(columns - j, CV_LANES);
#if CV_LANES == 16 /* masks make a part as cheap as a whole vector: one copy of the hook will do */
            CV_GEMM_STORE(call->env, batch, (row + i), (n + j), count, value);
#else
            if (count == CV_LANES) {
                CV_GEMM_STORE(call->env, batch, (row + i), (n + j), CV_LANES, value);
            } else {
                CV_GEMM_STORE(call->env, batch, (row + i), (n + j), count, value);
            }
#endif
        }
    }
}
#define CVG_STORE_TILE CVG_(_store_tile)
#else
#define CVG_STORE_TILE(call, batch, row, rows, n, columns, tile) \
    CV_GEMM_STORE_TILE((call)->env, batch, row, rows, n, columns, tile)
#endif

CV_FUNC void CVG_(_task)(const CVG_(_call) *call, int64_t task, char *scratch) {
    const cvg_plan *plan = &call->plan;
    const struct cv_microkernels *kernels = call->ctx->microkernels;
    int64_t column_task = task % plan->task_columns, row_task = task / plan->task_columns % plan->task_rows;
    int64_t batch = task / plan->task_columns / plan->task_rows;
    int64_t first_tile = row_task * plan->task_tiles, end_tile = cvg_min(first_tile + plan->task_tiles, plan->tiles);
    int64_t first_panel = column_task * plan->task_panels;
    int64_t end_panel = cvg_min(first_panel + plan->task_panels, plan->panels);
    int64_t tiles = end_tile - first_tile, per = plan->rows_per_tile;
    int64_t first_row = first_tile * per, end_row = cvg_min(end_tile * per, call->m);
    CVG_T *a_room = (CVG_T *)scratch, *b_room = (CVG_T *)(scratch + call->a_bytes);
    CVG_T *c_room = (CVG_T *)(scratch + call->a_bytes + call->b_bytes);
    int64_t packed_depth = cvg_round_up(call->k, CV_CHUNK);
    const CVG_A_MEM *a = 0;
    const CVG_B_MEM *b = 0;
    const CVG_T *packed_a = 0, *packed_b = 0;
    (void)a, (void)b;
    if (call->a.packed) packed_a = (const CVG_T *)call->a.data + CV_GEMM_A_OFFSET(call->env, batch);
    else if (call->a.data) a = (const CVG_A_MEM *)call->a.data + CV_GEMM_A_OFFSET(call->env, batch);
    if (call->b.packed) packed_b = (const CVG_T *)call->b.data + CV_GEMM_B_OFFSET(call->env, batch);
    else if (call->b.data) b = (const CVG_B_MEM *)call->b.data + CV_GEMM_B_OFFSET(call->env, batch);

    int64_t k = 0;
    do { /* once for K = 0, which stores zeros */
        int64_t depth = cvg_min(call->depth, call->k - k), padded = cvg_round_up(depth, CV_CHUNK);
        int last = k + depth >= call->k;
        if (!packed_a) {
            for (int64_t r = first_row; r < end_row; r += per) {
                CVG_T *to = a_room + (r - first_row) * padded;
#ifdef CVG_GROUP
                if (call->narrow) {
                    CVG_(_pack_narrow_tile)(call, to, batch, a, r, cvg_min(per, end_row - r), k, depth);
                    continue;
                }
#endif
                CVG_PACK_TILE(call, to, batch, a, r, cvg_min(per, end_row - r), k, depth);
            }
        }
        for (int64_t panel = first_panel; panel < end_panel;) {
            int64_t n = panel * CVG_NR, width = CVG_(_width)(n, call->n), columns = cvg_min(width, call->n - n);
            int64_t together = 1, ldb = width, next = call->k * CVG_NR;
            const CVG_T *at = b_room;
#if CVG_IS_F32
            int can_pair = !CVG_NARROW(call) && end_row - first_row <= CV_WIDE_ROWS &&
                           call->n - n >= 2 * CVG_NR && panel + 1 < end_panel;
#endif
            if (packed_b) {
                at = packed_b + n * call->k + k * width;
#if CVG_IS_F32
                if (can_pair) together = 2;
#endif
            } else if (call->in_place && columns == width) {
                at = (const CVG_T *)b + k * call->b.row_stride + n;
                ldb = call->b.row_stride;
                next = CVG_NR;
#if CVG_IS_F32
                if (can_pair) together = 2;
#endif
#ifdef CVG_GROUP
            } else if (call->narrow) {
                CVG_(_pack_narrow_panel)(call, b_room, batch, b, k, depth, n, columns, width);
#endif
            } else {
                CVG_PACK_PANEL(call, b_room, batch, b, k, depth, n, columns, width);
            }
            for (int64_t t = 0; t < tiles; t++) {
                int64_t row = first_row + t * per, rows = cvg_min(per, end_row - row);
                const CVG_T *tile_a = packed_a ? packed_a + row * packed_depth + k * rows
                                               : a_room + (row - first_row) * padded;
                CVG_T *c = c_room;
                if (call->k > call->depth) c += ((panel - first_panel) * tiles + t) * call->mr * CVG_NR;
                cv_microkernel kernel = kernels->CVG_PASTE(full_, CV_GEMM_ACC)[cvg_min(rows, CV_MR) - 1];
#if CVG_IS_32
                if (width != CVG_NR) kernel = kernels->CVG_PASTE(half_, CV_GEMM_ACC)[cvg_min(rows, CV_MR) - 1];
#endif
#if CVG_IS_F32
                if (together == 2) kernel = kernels->wide_f32[rows - 1];
#endif
#ifdef CVG_GROUP
                if (call->narrow) kernel = (width == CVG_NR ? call->narrow->full : call->narrow->half)[rows - 1];
#endif
                const char *ahead = (const char *)tile_a;
                int64_t ahead_step = 0;
                if (packed_a && panel == first_panel && (t + 1 < tiles || !last)) { /* the tile of A that comes next */
                    int64_t at_row = t + 1 < tiles ? row + rows : first_row, at_k = t + 1 < tiles ? k : k + depth;
                    ahead = (const char *)(packed_a + at_row * packed_depth + at_k * cvg_min(per, end_row - at_row));
                    ahead_step = 64;
                } else if (packed_b) { /* the next panel, as many lines with each tile as K has steps */
                    ahead = (const char *)(at + together * next) + t * depth * 64;
                    ahead_step = 64;
                } else if (!CVG_NARROW(call) && t * 64 < CVG_NR * (int64_t)sizeof(CVG_B_MEM)) {
                    /* one line of its rows with each tile */
#if defined(CV_GEMM_AHEAD_B)
                    ahead_step = CV_GEMM_AHEAD_B_STEP(call->env) * (int64_t)sizeof(CVG_B_MEM);
                    if (ahead_step) ahead = (const char *)CV_GEMM_AHEAD_B(call->env, batch, k, n + CVG_NR) + t * 64;
#elif !defined(CV_GEMM_LOAD_B) && !defined(CV_GEMM_LOAD_B_ALONG_K)
                    ahead_step = call->b.row_stride * (int64_t)sizeof(CVG_B_MEM);
                    ahead = (const char *)(b + k * call->b.row_stride + (n + together * CVG_NR) * call->b.col_stride) +
                            t * 64;
#endif
                }
#ifdef CV_GEMM_AHEAD_C
                if (last && rows > CV_WIDE_ROWS) {
                    for (int64_t i = 0; i < rows; i++) CV_GEMM_AHEAD_C(call->env, batch, (row + i), n);
                }
#endif
                kernel(depth, tile_a, at, ldb, next, c, k > 0, ahead, ahead_step);
                if (last) {
                    for (int64_t i = 0; i < rows; i += CV_MR) {
                        CVG_STORE_TILE(call, batch, row + i, cvg_min(rows - i, CV_MR), n, columns, c + i * CVG_NR);
                    }
                    if (together == 2) {
                        CVG_STORE_TILE(call, batch, row, rows, n + CVG_NR, CVG_NR, c + CV_MR * CVG_NR);
                    }
                }
            }
            panel += together;
        }
        k += depth;
    } while (k < call->k);
}

/* Workers take the next few tasks until none is left: they are rarely equally fast. */
CV_FUNC void CVG_(_work)(void *arg, int64_t begin, int64_t end, int worker) {
    (void)begin, (void)end;
    CVG_(_call) *call = arg;
    int64_t task = __atomic_fetch_add(&call->next_task, call->step, __ATOMIC_RELAXED);
    if (task >= call->tasks) return;
    char *scratch = cv_scratch(call->ctx, worker, call->a_bytes + call->b_bytes + call->c_bytes);
    if (!scratch) return; /* cv_scratch has set the error */
#ifdef CVG_GROUP
    if (call->narrow) call->narrow->begin();
#endif
    while (task < call->tasks) {
        for (int64_t i = task; i < cvg_min(task + call->step, call->tasks); i++) CVG_(_task)(call, i, scratch);
        task = __atomic_fetch_add(&call->next_task, call->step, __ATOMIC_RELAXED);
    }
#ifdef CVG_GROUP
    if (call->narrow) call->narrow->end();
#endif
}

/* A call whose kernels and unit of K are chosen. */
CV_FUNC CVG_(_call) CVG_(_begin)(cv_ctx *ctx, const void *env, int64_t batch, int64_t m, int64_t n, int64_t k,
                                 cv_matrix a, cv_matrix b) {
    CVG_(_call) call = {.ctx = ctx, .env = env, .narrow = CVG_NARROW_OF(ctx), .batch = batch, .m = m, .n = n, .k = k,
                        .elements = k, .a = a, .b = b, .mr = CV_MR};
#ifdef CVG_GROUP
    if (call.narrow) {
        call.k = cvg_round_up(cvg_ceil_div(k, CVG_GROUP), CV_CHUNK);
        call.mr = call.narrow->rows;
    }
#endif
    return call;
}
/* Bytes behind packed A that kernels may read. */
CV_INLINE size_t CVG_(_slack)(const CVG_(_call) *call) { return CVG_NARROW(call) ? (size_t)call->mr * 64 : 0; }
CV_INLINE int64_t CVG_(_step)(const CVG_(_call) *call) { return CVG_NARROW(call) ? call->narrow->step : 1; }

CV_FUNC void CVG_(_run)(cv_ctx *ctx, const void *env, int64_t batch, int64_t m, int64_t n, int64_t k, cv_matrix a,
                        cv_matrix b) {
    if (batch <= 0 || m <= 0 || n <= 0) return;
    CVG_(_call) call = CVG_(_begin)(ctx, env, batch, m, n, k, a, b);
    k = call.k;
    /* Blocks of K of about the same depth. */
    int64_t deepest = CVG_NARROW(&call) ? call.narrow->depth : CV_KC;
    call.depth = cvg_round_up(cvg_ceil_div(k, cvg_max(cvg_ceil_div(k, deepest), 1)), CV_CHUNK);
#if !defined(CV_GEMM_LOAD_B) && !defined(CV_GEMM_LOAD_B_ALONG_K) && !defined(CV_GEMM_PACK_B)
    /* Packing pays when several tiles use the panel. */
    call.in_place = CV_ELEM_ID(CV_GEMM_B_T) == CV_ELEM_ID(CV_GEMM_ACC) && !b.packed && b.col_stride == 1 &&
                    m <= 2 * CV_MR && !CVG_NARROW(&call);
#endif
    /* Few rows: A is small, each panel is used once, so K needs no blocks (unless a last panel must be packed). */
    if (m <= CV_WIDE_ROWS && b.packed) call.depth = k;
#ifdef CV_GEMM_PACK_B
    double pack_b = 10;
#else
    double pack_b = b.packed || call.in_place ? 0.5 : 4;
#endif
#ifdef CV_GEMM_PACK_A
    double pack_a = 1;
#else
    double pack_a = a.packed ? 0.0 : 0.25;
#endif
    call.plan = cvg_make_plan(batch, m, n, k, call.mr, CVG_(_step)(&call), CVG_NR, cv_workers(ctx), pack_a, pack_b);
    const cvg_plan *plan = &call.plan;
    call.tasks = batch * plan->task_rows * plan->task_columns;
    int64_t depth = cvg_min(call.depth, k);
    int64_t tiles = k > call.depth ? plan->task_tiles * plan->task_panels : 2;
    if (!a.packed) {
        call.a_bytes = (size_t)(plan->task_tiles * plan->rows_per_tile * cvg_round_up(depth, CV_CHUNK)) * sizeof(CVG_T);
        call.a_bytes += CVG_(_slack)(&call);
    }
    if (!b.packed) call.b_bytes = (size_t)(cvg_min(depth, CV_KC) * CVG_NR) * sizeof(CVG_T);
    call.c_bytes = (size_t)(tiles * call.mr * CVG_NR) * sizeof(CVG_T);
    double macs = (double)m * (double)n * ((double)k + 8) / (double)(plan->task_rows * plan->task_columns);
    call.step = cvg_max((int64_t)(CVG_TASK_MIN / macs), 1);
    cv_parallel(ctx, cvg_ceil_div(call.tasks, call.step), 1, CVG_(_work), &call);
}

/* ---------------------------------------------------------------- operands packed beforehand */

/* Sizes are those of the larger form where the processor decides which it is; unused memory is not touched. */
CV_FUNC int64_t CVG_(_packed_a_bytes)(int64_t m, int64_t k) {
    int64_t bytes = m * cvg_round_up(k, CV_CHUNK) * (int64_t)sizeof(CVG_T);
#ifdef CVG_GROUP
    int64_t groups = cvg_round_up(cvg_ceil_div(k, CVG_GROUP), CV_CHUNK);
    bytes = cvg_max(bytes, m * groups * (int64_t)sizeof(CVG_T) + CV_NARROW_ROWS * 64);
#endif
    return bytes;
}

/* The panels of B one after the other, each with whole K. */
CV_FUNC int64_t CVG_(_packed_b_bytes)(int64_t k, int64_t n) {
    int64_t whole = n / CVG_NR * CVG_NR, columns = whole + (n > whole ? CVG_(_width)(whole, n) : 0);
#ifdef CVG_GROUP
    k = cvg_max(k, cvg_round_up(cvg_ceil_div(k, CVG_GROUP), CV_CHUNK));
#endif
    return columns * k * (int64_t)sizeof(CVG_T);
}

typedef struct {
    CVG_(_call) call;
    CVG_T *to;
} CVG_(_packing);

#ifndef CV_GEMM_PACK_A
CV_FUNC void CVG_(_pack_a_tiles)(void *arg, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const CVG_(_packing) *p = arg;
    const CVG_(_call) *call = &p->call;
    int64_t per = call->plan.rows_per_tile;
    for (int64_t t = begin; t < end; t++) {
        int64_t row = t * per, rows = cvg_min(per, call->m - row);
        CVG_T *to = p->to + row * cvg_round_up(call->k, CV_CHUNK);
#ifdef CVG_GROUP
        if (call->narrow) {
            CVG_(_pack_narrow_tile)(call, to, 0, call->a.data, row, rows, 0, call->k);
            continue;
        }
#endif
        CVG_(_pack_tile)(call, to, 0, call->a.data, row, rows, 0, call->k);
    }
}

/* Writes _packed_a_bytes(m, k) bytes for m rows of A. Rows of the same number must be packed together. */
CV_FUNC void CVG_(_pack_a)(cv_ctx *ctx, const void *env, void *to, cv_matrix a, int64_t m, int64_t k) {
    CVG_(_packing) p = {CVG_(_begin)(ctx, env, 1, m, 1, k, a, (cv_matrix){0}), to};
    p.call.plan = cvg_make_plan(1, m, 1, p.call.k, p.call.mr, CVG_(_step)(&p.call), CVG_NR, 1, 0, 0);
    cv_parallel(ctx, p.call.plan.tiles, cvg_max(CVG_TASK_MIN / (CV_MR * (k + 1)), 1), CVG_(_pack_a_tiles), &p);
}
#endif

#ifndef CV_GEMM_PACK_B
CV_FUNC void CVG_(_pack_b_panels)(void *arg, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const CVG_(_packing) *p = arg;
    const CVG_(_call) *call = &p->call;
    for (int64_t panel = begin; panel < end; panel++) {
        int64_t n = panel * CVG_NR, width = CVG_(_width)(n, call->n), columns = cvg_min(width, call->n - n);
        CVG_T *to = p->to + n * call->k;
#ifdef CVG_GROUP
        if (call->narrow) {
            CVG_(_pack_narrow_panel)(call, to, 0, call->b.data, 0, call->k, n, columns, width);
            continue;
        }
#endif
        CVG_(_pack_panel)(call, to, 0, call->b.data, 0, call->k, n, columns, width);
    }
}

/* Writes _packed_b_bytes(k, n) bytes. */
CV_FUNC void CVG_(_pack_b)(cv_ctx *ctx, const void *env, void *to, cv_matrix b, int64_t k, int64_t n) {
    CVG_(_packing) p = {CVG_(_begin)(ctx, env, 1, 1, n, k, (cv_matrix){0}, b), to};
    cv_parallel(ctx, cvg_ceil_div(n, CVG_NR), cvg_max(CVG_TASK_MIN / (CVG_NR * (k + 1)), 1), CVG_(_pack_b_panels), &p);
}
#endif

#undef CV_GEMM_NAME
#undef CV_GEMM_ACC
#undef CV_GEMM_A_T
#undef CV_GEMM_B_T
#undef CV_GEMM_STORE
#undef CV_GEMM_LOAD_A
#undef CV_GEMM_LOAD_B
#undef CV_GEMM_LOAD_B_ALONG_K
#undef CV_GEMM_PACK_A
#undef CV_GEMM_PACK_B
#undef CV_GEMM_STORE_TILE
#undef CV_GEMM_AHEAD_C
#undef CV_GEMM_BF16
#undef CV_GEMM_AHEAD_B
#undef CV_GEMM_AHEAD_B_STEP
#undef CV_GEMM_A_OFFSET
#undef CV_GEMM_B_OFFSET
#undef CVG_
#undef CVG_T
#undef CVG_V
#undef CVG_NR
#undef CVG_LOAD_ACC
#undef CVG_STORE_ACC
#undef CVG_STORE_PART_ACC
#undef CVG_CAST
#undef CVG_LOAD
#undef CVG_LOAD_PART
#undef CVG_LOAD_STRIDED
#undef CVG_A_MEM
#undef CVG_B_MEM
#undef CVG_IS_F32
#undef CVG_IS_32
#undef CVG_GROUP
#undef CVG_KIND
#undef CVG_NARROW
#undef CVG_NARROW_OF
#undef CVG_PACK_TILE
#undef CVG_PACK_PANEL
#undef CVG_STORE_TILE

#endif
