/* Copies with the axes in another order, where the axis that is contiguous in the source is not the last one of the
 * result: blocks that use whole cache lines of both sides; of four-byte elements they are transposed in registers.
 *
 *   cv_permute(ctx, src, dst, itemsize, rank, size, stride, axis)
 *
 * dst is dense, of these sizes; its element [i0, i1, ...] is src[i0 * stride[0] + i1 * stride[1] + ...] (elements of
 * itemsize 1, 2, 4 or 8 bytes). stride[axis] is 1, axis < rank - 1, rank <= CV_PERMUTE_RANK. */
#ifndef CUVIL_PERMUTE_H
#define CUVIL_PERMUTE_H

#include "cuvil/kernel.h"
#include "cuvil/runtime.h"
#include "cuvil/transpose.h"

#define CV_PERMUTE_RANK 16
/* Elements of the source's contiguous axis that a task takes: whole cache lines of four-byte elements, two blocks. */
#define CV_PERMUTE_STRIP 32

typedef struct {
    const char *src;
    char *dst;
    const int64_t *size, *stride;
    int64_t step[CV_PERMUTE_RANK]; /* of dst */
    int64_t strips;
    int itemsize, rank, axis;
} cv_permute_job;

/* dst[i * dst_row + j] = src[j * src_row + i] for i < n, j < m. */
CV_INLINE void cv_permute_block_4(const char *src, int64_t src_row, char *dst, int64_t dst_row, int64_t n, int64_t m) {
    const float *from = (const float *)(const void *)src; /* bits: vectors are moved, never computed with */
    float *to = (float *)(void *)dst;
    for (int64_t j = 0; j < m; j += CV_LANES) {
        for (int64_t i = 0; i < n; i += CV_LANES) {
            const int64_t rows = cv_imin(CV_LANES, m - j), columns = cv_imin(CV_LANES, n - i);
            cv_vf32 v[CV_LANES];
            if (rows == CV_LANES && columns == CV_LANES) {
                _Pragma("GCC unroll 16") for (int l = 0; l < CV_LANES; l++)
                    v[l] = cv_load_f32(from + (j + l) * src_row + i);
                cv_transpose_f32(v);
                _Pragma("GCC unroll 16") for (int l = 0; l < CV_LANES; l++)
                    cv_store_f32(to + (i + l) * dst_row + j, v[l]);
                continue;
            }
            for (int l = 0; l < CV_LANES; l++)
                v[l] = l < rows ? cv_load_part_f32(from + (j + l) * src_row + i, columns) : (cv_vf32){};
            cv_transpose_f32(v);
            for (int l = 0; l < columns; l++) cv_store_part_f32(to + (i + l) * dst_row + j, v[l], rows);
        }
    }
}

#define CV_PERMUTE_BLOCK(size, T)                                                                             \
    CV_INLINE void cv_permute_block_##size(const char *src, int64_t src_row, char *dst, int64_t dst_row,      \
                                           int64_t n, int64_t m) {                                            \
        const T *from = (const T *)(const void *)src;                                                         \
        T *to = (T *)(void *)dst;                                                                             \
        for (int64_t j0 = 0; j0 < m; j0 += 32) {                                                              \
            const int64_t last = cv_imin(j0 + 32, m);                                                         \
            for (int64_t i = 0; i < n; i++)                                                                   \
                for (int64_t j = j0; j < last; j++) to[i * dst_row + j] = from[j * src_row + i];              \
        }                                                                                                     \
    }
CV_PERMUTE_BLOCK(1, uint8_t)
CV_PERMUTE_BLOCK(2, uint16_t)
CV_PERMUTE_BLOCK(8, uint64_t)

CV_FUNC void cv_permute_body(void *arg, int64_t begin, int64_t end, int worker) {
    const cv_permute_job *p = (const cv_permute_job *)arg;
    (void)worker;
    for (int64_t task = begin; task < end; task++) {
        const int64_t first = task % p->strips * CV_PERMUTE_STRIP;
        int64_t rest = task / p->strips, from = first, to = first * p->step[p->axis];
        for (int k = p->rank - 2; k >= 0; k--) {
            if (k == p->axis) continue;
            const int64_t i = rest % p->size[k];
            rest /= p->size[k];
            from += i * p->stride[k];
            to += i * p->step[k];
        }
        const char *src = p->src + from * p->itemsize;
        char *dst = p->dst + to * p->itemsize;
        const int64_t src_row = p->stride[p->rank - 1], dst_row = p->step[p->axis];
        const int64_t n = cv_imin(CV_PERMUTE_STRIP, p->size[p->axis] - first), m = p->size[p->rank - 1];
        if (p->itemsize == 4)
            cv_permute_block_4(src, src_row, dst, dst_row, n, m);
        else if (p->itemsize == 8)
            cv_permute_block_8(src, src_row, dst, dst_row, n, m);
        else if (p->itemsize == 2)
            cv_permute_block_2(src, src_row, dst, dst_row, n, m);
        else
            cv_permute_block_1(src, src_row, dst, dst_row, n, m);
    }
}

CV_FUNC void cv_permute(cv_ctx *ctx, const void *src, void *dst, int itemsize, int rank, const int64_t *size,
                        const int64_t *stride, int axis) {
    cv_permute_job job = {.src = (const char *)src, .dst = (char *)dst, .size = size, .stride = stride,
                          .itemsize = itemsize, .rank = rank, .axis = axis};
    int64_t step = 1, outer = 1;
    for (int k = rank - 1; k >= 0; k--) {
        job.step[k] = step;
        step *= size[k];
        if (k != axis && k != rank - 1) outer *= size[k];
    }
    if (step == 0) return;
    job.strips = (size[axis] + CV_PERMUTE_STRIP - 1) / CV_PERMUTE_STRIP;
    cv_parallel(ctx, outer * job.strips, cv_grain(CV_PERMUTE_STRIP * size[rank - 1]), cv_permute_body, &job);
}

#endif
