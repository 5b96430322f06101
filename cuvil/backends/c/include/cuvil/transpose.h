/* Square blocks of float32 in registers: transposing them, and adding up the lanes of many vectors at once. */
#ifndef CUVIL_TRANSPOSE_H
#define CUVIL_TRANSPOSE_H

#include "cuvil/vec.h"

/* CVT_LOW(a, b, k): lane l is a[l] where bit k of l is clear, else b[l - k];
 * CVT_HIGH(a, b, k): lane l is a[l + k] where bit k of l is clear, else b[l]. */
#ifdef CVI_HAS_SHUFFLEVECTOR
#define CVT_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define CVT_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (cv_vi32){__VA_ARGS__})
#endif
#if CV_LANES == 16
#define CVT_LOW1 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30
#define CVT_HIGH1 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31
#define CVT_LOW2 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29
#define CVT_HIGH2 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31
#define CVT_LOW4 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27
#define CVT_HIGH4 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31
#define CVT_LOW8 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23
#define CVT_HIGH8 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31
#else
#define CVT_LOW1 0, 8, 2, 10, 4, 12, 6, 14
#define CVT_HIGH1 1, 9, 3, 11, 5, 13, 7, 15
#define CVT_LOW2 0, 1, 8, 9, 4, 5, 12, 13
#define CVT_HIGH2 2, 3, 10, 11, 6, 7, 14, 15
#define CVT_LOW4 0, 1, 2, 3, 8, 9, 10, 11
#define CVT_HIGH4 4, 5, 6, 7, 12, 13, 14, 15
#endif

#define CVT_STAGE(v, k)                                                                    \
    _Pragma("GCC unroll 16") for (int i = 0; i < CV_LANES; i++) {                          \
        if (i & (k)) continue;                                                             \
        cv_vf32 a = (v)[i], b = (v)[i + (k)];                                              \
        (v)[i] = CVT_SHUFFLE(a, b, CVT_LOW##k);                                            \
        (v)[i + (k)] = CVT_SHUFFLE(a, b, CVT_HIGH##k);                                     \
    }

/* Lane j of vector i changes places with lane i of vector j. */
CV_INLINE void cv_transpose_f32(cv_vf32 v[CV_LANES]) {
#if CV_LANES == 16
    CVT_STAGE(v, 8)
#endif
    CVT_STAGE(v, 4)
    CVT_STAGE(v, 2)
    CVT_STAGE(v, 1)
}

#define CVT_ADD(v, k)                                                                      \
    _Pragma("GCC unroll 16") for (int i = 0; i < (k); i++) {                               \
        cv_vf32 a = (v)[i], b = (v)[i + (k)];                                              \
        (v)[i] = CVT_SHUFFLE(a, b, CVT_LOW##k) + CVT_SHUFFLE(a, b, CVT_HIGH##k);           \
    }

/* Lane i is the sum of the lanes of vector i; v is used up. */
CV_INLINE cv_vf32 cv_sums_f32(cv_vf32 v[CV_LANES]) {
#if CV_LANES == 16
    CVT_ADD(v, 8)
#endif
    CVT_ADD(v, 4)
    CVT_ADD(v, 2)
    CVT_ADD(v, 1)
    return v[0];
}

#endif
