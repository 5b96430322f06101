/* The register-blocked product that attention and recurrent layers are made of: a few rows times a panel of vectors.
 *
 *   cv_panel_<dt>(mr, nv, a, a_row, a_k, b, b_k, c, c_row, depth)      dt: f32, f64
 *
 * c[i][j] += sum over k < depth of a[i * a_row + k * a_k] * b[k * b_k + j], for i < mr and j < nv parts, where a part
 * is CV_PANEL_PART_<dt> elements (one machine register). b and c are aligned to a part; mr is 1, 4 or 8 (8 with
 * nv <= CV_PANEL_WIDE only) and nv is 1 ... CV_PANEL_NV.
 */
#ifndef CUVIL_PANEL_H
#define CUVIL_PANEL_H

#include "cuvil/vec.h"

/* Accumulators of a block fill about half of the register file: 32 registers with AVX-512 and on AArch64 (where a
 * part is two of them), 16 elsewhere. */
#if CV_LANES == 16
#define CV_PANEL_NV 4
#define CV_PANEL_WIDE 2
#else
#define CV_PANEL_NV 2
#define CV_PANEL_WIDE 1
#endif

#define CV_PANEL_PART_f32 CV_LANES
#define CV_PANEL_PART_f64 (CV_LANES / 2)

/* mr and nv are literals, so the accumulators are registers once the loops are unrolled. */
#define CV_PANEL_BLOCK_(dt, T, mr, nv)                                                                        \
  CV_FUNC __attribute__((noinline)) void cv_panel_##dt##_##mr##x##nv(                                         \
      const T *a, int64_t a_row, int64_t a_k, const T *b, int64_t b_k, T *c, int64_t c_row, int64_t depth) {  \
    enum { PART = CV_PANEL_PART_##dt };                                                                       \
    cvi_p##dt acc[mr][nv];                                                                                    \
    _Pragma("GCC unroll 8") for (int i = 0; i < mr; i++)                                                      \
    _Pragma("GCC unroll 4") for (int j = 0; j < nv; j++)                                                      \
        acc[i][j] = *(const cvi_p##dt *)(c + i * c_row + j * PART);                                           \
    for (int64_t k = 0; k < depth; k++) {                                                                     \
      cvi_p##dt row[nv];                                                                                      \
      _Pragma("GCC unroll 4") for (int j = 0; j < nv; j++) row[j] = *(const cvi_p##dt *)(b + j * PART);       \
      _Pragma("GCC unroll 8") for (int i = 0; i < mr; i++) {                                                  \
        T x = a[i * a_row];                                                                                   \
        _Pragma("GCC unroll 4") for (int j = 0; j < nv; j++) acc[i][j] += x * row[j];                         \
      }                                                                                                       \
      a += a_k;                                                                                               \
      b += b_k;                                                                                               \
    }                                                                                                         \
    _Pragma("GCC unroll 8") for (int i = 0; i < mr; i++)                                                      \
    _Pragma("GCC unroll 4") for (int j = 0; j < nv; j++)                                                      \
        *(cvi_p##dt *)(c + i * c_row + j * PART) = acc[i][j];                                                 \
  }

#if CV_PANEL_NV == 4
#define CV_PANEL_BLOCKS_(dt, T)                                                                         \
  CV_PANEL_BLOCK_(dt, T, 1, 1) CV_PANEL_BLOCK_(dt, T, 1, 2) CV_PANEL_BLOCK_(dt, T, 1, 3)                \
  CV_PANEL_BLOCK_(dt, T, 1, 4) CV_PANEL_BLOCK_(dt, T, 4, 1) CV_PANEL_BLOCK_(dt, T, 4, 2)                \
  CV_PANEL_BLOCK_(dt, T, 4, 3) CV_PANEL_BLOCK_(dt, T, 4, 4) CV_PANEL_BLOCK_(dt, T, 8, 1)                \
  CV_PANEL_BLOCK_(dt, T, 8, 2)
#else
#define CV_PANEL_BLOCKS_(dt, T)                                                                         \
  CV_PANEL_BLOCK_(dt, T, 1, 1) CV_PANEL_BLOCK_(dt, T, 1, 2) CV_PANEL_BLOCK_(dt, T, 4, 1)                \
  CV_PANEL_BLOCK_(dt, T, 4, 2) CV_PANEL_BLOCK_(dt, T, 8, 1)
#endif
CV_PANEL_BLOCKS_(f32, float)
CV_PANEL_BLOCKS_(f64, double)

#define CV_PANEL_CALL_(dt, mr, nv) cv_panel_##dt##_##mr##x##nv(a, a_row, a_k, b, b_k, c, c_row, depth)
#if CV_PANEL_NV == 4
#define CV_PANEL_PICK_(dt)                                             \
  switch (mr * 16 + nv) {                                              \
    case 0x11: CV_PANEL_CALL_(dt, 1, 1); return;                       \
    case 0x12: CV_PANEL_CALL_(dt, 1, 2); return;                       \
    case 0x13: CV_PANEL_CALL_(dt, 1, 3); return;                       \
    case 0x14: CV_PANEL_CALL_(dt, 1, 4); return;                       \
    case 0x41: CV_PANEL_CALL_(dt, 4, 1); return;                       \
    case 0x42: CV_PANEL_CALL_(dt, 4, 2); return;                       \
    case 0x43: CV_PANEL_CALL_(dt, 4, 3); return;                       \
    case 0x44: CV_PANEL_CALL_(dt, 4, 4); return;                       \
    case 0x81: CV_PANEL_CALL_(dt, 8, 1); return;                       \
    case 0x82: CV_PANEL_CALL_(dt, 8, 2); return;                       \
    default: __builtin_unreachable();                                  \
  }
#else
#define CV_PANEL_PICK_(dt)                                             \
  switch (mr * 16 + nv) {                                              \
    case 0x11: CV_PANEL_CALL_(dt, 1, 1); return;                       \
    case 0x12: CV_PANEL_CALL_(dt, 1, 2); return;                       \
    case 0x41: CV_PANEL_CALL_(dt, 4, 1); return;                       \
    case 0x42: CV_PANEL_CALL_(dt, 4, 2); return;                       \
    case 0x81: CV_PANEL_CALL_(dt, 8, 1); return;                       \
    default: __builtin_unreachable();                                  \
  }
#endif

#define CV_PANEL_DISPATCH_(dt, T)                                                                             \
  CV_FUNC void cv_panel_##dt(int mr, int nv, const T *a, int64_t a_row, int64_t a_k, const T *b, int64_t b_k, \
                             T *c, int64_t c_row, int64_t depth) {                                            \
    CV_PANEL_PICK_(dt)                                                                                        \
  }
CV_PANEL_DISPATCH_(f32, float)
CV_PANEL_DISPATCH_(f64, double)

/* mr rows that a panel of nv parts wants for full speed. */
CV_INLINE int cv_panel_rows(int nv) { return nv <= CV_PANEL_WIDE ? 8 : 4; }

#endif
