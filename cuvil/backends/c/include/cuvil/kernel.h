/* What generated loop kernels use besides vec.h and math.h: index arithmetic, guarded and windowed memory
 * access, checked data-dependent indices, and tail handling of accumulators. */
#ifndef CUVIL_KERNEL_H
#define CUVIL_KERNEL_H

#include "cuvil/element.h"
#include "cuvil/vec.h"
#include "cuvil/runtime.h"

/* Complex numbers exist in memory only: kernels compute with their parts. */
typedef struct { float re, im; } cv_c64;
typedef struct { double re, im; } cv_c128;

CV_INLINE int64_t cv_imin(int64_t a, int64_t b) { return a < b ? a : b; }
CV_INLINE int64_t cv_imax(int64_t a, int64_t b) { return a > b ? a : b; }

/* Floor division and modulo of index expressions whose numerator may be negative. */
CV_INLINE int64_t cv_fdiv(int64_t a, int64_t b) {
    const int64_t q = a / b;
    return q - ((a % b != 0) & ((a ^ b) < 0));
}
CV_INLINE int64_t cv_fmodi(int64_t a, int64_t b) { return a - b * cv_fdiv(a, b); }

/* Tasks worth a thread: enough iterations to outweigh waking it. `work` is element operations per iteration. */
CV_INLINE int64_t cv_grain(int64_t work) { return work >= 65536 ? 1 : 65536 / (work > 0 ? work : 1); }

/* A data-dependent index: the position in [0, size), or -1 where there is none. */
CV_INLINE int64_t cv_index_error(cv_ctx *ctx, int64_t i, int64_t size) {
    const int64_t at = i < 0 ? i + size : i;
    if ((uint64_t)at < (uint64_t)size) return at;
    cv_fail(ctx, CV_EINDEX, i, size);
    return -1;
}
CV_INLINE int64_t cv_index_fill(cv_ctx *ctx, int64_t i, int64_t size) {
    (void)ctx;
    const int64_t at = i < 0 ? i + size : i;
    return (uint64_t)at < (uint64_t)size ? at : -1;
}
CV_INLINE int64_t cv_index_clip(cv_ctx *ctx, int64_t i, int64_t size) {
    if (size == 0) { cv_fail(ctx, CV_EINDEX, i, size); return -1; }
    return i < 0 ? 0 : i >= size ? size - 1 : i;
}
CV_INLINE int64_t cv_index_wrap(cv_ctx *ctx, int64_t i, int64_t size) {
    if (size == 0) { cv_fail(ctx, CV_EINDEX, i, size); return -1; }
    return cv_fmodi(i, size);
}

/* Lanes [first, last) as a mask. */
CV_INLINE cv_vbool cv_lane_range(int64_t first, int64_t last) {
    const int64_t f = first < 0 ? 0 : first > CV_LANES ? CV_LANES : first;
    const int64_t l = last < 0 ? 0 : last > CV_LANES ? CV_LANES : last;
    return cv_tail_mask(l) & ~cv_tail_mask(f);
}

CV_INLINE cv_vbool cv_mask_from(const int32_t *lanes) {
    cv_vbool m;
    __builtin_memcpy(&m, lanes, sizeof m);
    return m;
}

/* cv_load_window: lanes [first, last) of p[0..], 0 elsewhere; memory outside the window is not touched. (An empty window
 * must not become a masked load of no lanes: far from any array that takes hundreds of cycles.)
 * cv_gather_guarded: p[off[l]] where off[l] >= 0, 0 elsewhere.
 * cv_tail: v in the first n lanes, `rest` behind them. */
#define CV_KERNEL_ACCESS(DT, MEM, VEC, REG)                                                                  \
    CV_INLINE VEC cv_load_window_##DT(const MEM *p, int64_t first, int64_t last) {                           \
        if (last <= 0 || first >= last || first >= CV_LANES) return cv_splat_##REG(0);                       \
        if (first <= 0) return cv_load_part_##DT(p, last > CV_LANES ? CV_LANES : last);                      \
        MEM lanes[CV_LANES] = {0};                                                                           \
        for (int64_t l = first; l < last && l < CV_LANES; ++l) lanes[l] = p[l];                              \
        return cv_load_##DT(lanes);                                                                          \
    }                                                                                                        \
    CV_INLINE VEC cv_gather_guarded_##DT(const MEM *p, const int64_t *off) {                                 \
        MEM lanes[CV_LANES];                                                                                 \
        for (int l = 0; l < CV_LANES; ++l) lanes[l] = off[l] >= 0 ? p[off[l]] : (MEM)0;                      \
        return cv_load_##DT(lanes);                                                                          \
    }                                                                                                        \
    CV_INLINE void cv_scatter_##DT(MEM *p, const int64_t *off, VEC v) {                                      \
        MEM lanes[CV_LANES];                                                                                 \
        cv_store_##DT(lanes, v);                                                                             \
        for (int l = 0; l < CV_LANES; ++l)                                                                   \
            if (off[l] >= 0) p[off[l]] = lanes[l];                                                           \
    }

CV_KERNEL_ACCESS(f32, float, cv_vf32, f32)
CV_KERNEL_ACCESS(f64, double, cv_vf64, f64)
CV_KERNEL_ACCESS(f16, uint16_t, cv_vf32, f32)
CV_KERNEL_ACCESS(bf16, uint16_t, cv_vf32, f32)
CV_KERNEL_ACCESS(i8, int8_t, cv_vi8, i8)
CV_KERNEL_ACCESS(i16, int16_t, cv_vi16, i16)
CV_KERNEL_ACCESS(i32, int32_t, cv_vi32, i32)
CV_KERNEL_ACCESS(i64, int64_t, cv_vi64, i64)
CV_KERNEL_ACCESS(u8, uint8_t, cv_vu8, u8)
CV_KERNEL_ACCESS(u16, uint16_t, cv_vu16, u16)
CV_KERNEL_ACCESS(u32, uint32_t, cv_vu32, u32)
CV_KERNEL_ACCESS(u64, uint64_t, cv_vu64, u64)
CV_KERNEL_ACCESS(bool, uint8_t, cv_vbool, bool)

/* Integers have no negative powers: the first n lanes of an exponent are checked. */
#define CV_KERNEL_EXPONENT(DT, VEC)                                                                          \
    CV_INLINE void cv_check_exponent_##DT(cv_ctx *ctx, VEC exponent, int64_t n) {                            \
        const cv_vbool negative = cv_lt_##DT(exponent, cv_splat_##DT(0)) & cv_tail_mask(n);                  \
        if (cv_hor(negative)) cv_fail(ctx, CV_EPOWER, (int64_t)cv_hmin_##DT(exponent), 0);                   \
    }
CV_KERNEL_EXPONENT(i8, cv_vi8)
CV_KERNEL_EXPONENT(i16, cv_vi16)
CV_KERNEL_EXPONENT(i32, cv_vi32)
CV_KERNEL_EXPONENT(i64, cv_vi64)

#define CV_KERNEL_TAIL(DT, VEC)                                                                              \
    CV_INLINE VEC cv_tail_##DT(VEC v, int64_t n, VEC rest) {                                                 \
        return n >= CV_LANES ? v : cv_select_##DT(cv_tail_mask(n), v, rest);                                 \
    }
CV_KERNEL_TAIL(f32, cv_vf32)
CV_KERNEL_TAIL(f64, cv_vf64)
CV_KERNEL_TAIL(i8, cv_vi8)
CV_KERNEL_TAIL(i16, cv_vi16)
CV_KERNEL_TAIL(i32, cv_vi32)
CV_KERNEL_TAIL(i64, cv_vi64)
CV_KERNEL_TAIL(u8, cv_vu8)
CV_KERNEL_TAIL(u16, cv_vu16)
CV_KERNEL_TAIL(u32, cv_vu32)
CV_KERNEL_TAIL(u64, cv_vu64)
CV_KERNEL_TAIL(bool, cv_vbool)

#endif
