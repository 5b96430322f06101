/* argmax and argmin along one axis: the first NaN if there is one, else the first of the extreme values.
 *
 * Set before including (all are reset at the end, so the header can be included again):
 *   CV_ARGREDUCE_NAME   name of the generated function
 *   CV_ARGREDUCE_DT     dtype short of x, any
 *   CV_ARGREDUCE_OP     max or min
 *
 *   void NAME(ctx, const void *x, int64_t *out, int64_t outer, int64_t n, int64_t inner)
 *
 * x is [outer, n, inner], out [outer, inner]. n == 0 with anything to write is cv_fail(CV_EDOMAIN, 0, 0).
 *
 * Along contiguous rows it takes two passes, the extreme value and then the first place that equals it: both run at
 * the speed of memory, and no index vector is carried along. Across rows the index is carried per lane.
 */
#include "cuvil/element.h"
#include "cuvil/runtime.h"
#include "cuvil/vec.h"

#ifndef CUVIL_ARGREDUCE_H
#define CUVIL_ARGREDUCE_H

typedef struct cv_argreduce_job {
  const void *x;
  int64_t *out;
  int64_t n, inner;
} cv_argreduce_job;

#define CV_ARGREDUCE_OP_max 1
#define CV_ARGREDUCE_OP_min 2
#define CV_ARGREDUCE_CAT4_(a, b, c, d) a##b##c##d
#define CV_ARGREDUCE_CAT4(a, b, c, d) CV_ARGREDUCE_CAT4_(a, b, c, d)

/* bool is compared as its bytes. */
#define CV_ARGREDUCE_MEM_bool u8
#define CV_ARGREDUCE_MEM_i8 i8
#define CV_ARGREDUCE_MEM_i16 i16
#define CV_ARGREDUCE_MEM_i32 i32
#define CV_ARGREDUCE_MEM_i64 i64
#define CV_ARGREDUCE_MEM_u8 u8
#define CV_ARGREDUCE_MEM_u16 u16
#define CV_ARGREDUCE_MEM_u32 u32
#define CV_ARGREDUCE_MEM_u64 u64
#define CV_ARGREDUCE_MEM_f16 f16
#define CV_ARGREDUCE_MEM_bf16 bf16
#define CV_ARGREDUCE_MEM_f32 f32
#define CV_ARGREDUCE_MEM_f64 f64

#endif /* CUVIL_ARGREDUCE_H */

#define CV_ARGREDUCE_FN_(suffix) CV_ELEM_PASTE(CV_ARGREDUCE_NAME, suffix)
#define CV_ARGREDUCE_M_ CV_ELEM_PASTE(CV_ARGREDUCE_MEM_, CV_ARGREDUCE_DT)
#define CV_ARGREDUCE_R_ CV_ELEM_REG(CV_ARGREDUCE_M_)
#define CV_ARGREDUCE_T_ CV_ELEM_PASTE(cv_elem_, CV_ARGREDUCE_M_)
#define CV_ARGREDUCE_V_ CV_ELEM_PASTE(cv_v, CV_ARGREDUCE_R_)
#define CV_ARGREDUCE_CALL_(stem, dt) CV_ELEM_PASTE(stem, dt)
#define CV_ARGREDUCE_ON_(stem) CV_ELEM_PASTE(stem, CV_ARGREDUCE_R_)
#if CV_ELEM_PASTE(CV_ARGREDUCE_OP_, CV_ARGREDUCE_OP) == CV_ARGREDUCE_OP_max
#define CV_ARGREDUCE_BEYOND_ CV_ARGREDUCE_ON_(cv_gt_)
#define CV_ARGREDUCE_SCALAR_(a, b) ((a) > (b))
#else
#define CV_ARGREDUCE_BEYOND_ CV_ARGREDUCE_ON_(cv_lt_)
#define CV_ARGREDUCE_SCALAR_(a, b) ((a) < (b))
#endif
#if CV_ELEM_IS_FLOAT(CV_ARGREDUCE_M_)
#define CV_ARGREDUCE_NAN_(v) ((v) != (v))
#else
#define CV_ARGREDUCE_NAN_(v) 0
#endif
#define CV_ARGREDUCE_PICK_ CV_ARGREDUCE_CAT4(cv_, CV_ARGREDUCE_OP, _, CV_ARGREDUCE_R_)
#define CV_ARGREDUCE_FOLD_ CV_ARGREDUCE_CAT4(cv_h, CV_ARGREDUCE_OP, _, CV_ARGREDUCE_R_)

/* Any stride: one element after the other. */
CV_ELEM_INLINE int64_t CV_ARGREDUCE_FN_(_strided)(const CV_ARGREDUCE_T_ *x, int64_t n, int64_t stride) {
  CV_ELEM_PASTE(cv_elem_reg_, CV_ARGREDUCE_M_) best = CV_ARGREDUCE_CALL_(cv_elem_get_, CV_ARGREDUCE_M_)(x);
  int64_t at = 0;
  for (int64_t i = 1; i < n && !CV_ARGREDUCE_NAN_(best); i++) { /* a NaN ends the search */
    CV_ELEM_PASTE(cv_elem_reg_, CV_ARGREDUCE_M_) v = CV_ARGREDUCE_CALL_(cv_elem_get_, CV_ARGREDUCE_M_)(x + i * stride);
    if (CV_ARGREDUCE_SCALAR_(v, best) || CV_ARGREDUCE_NAN_(v)) {
      best = v;
      at = i;
    }
  }
  return at;
}

CV_ELEM_INLINE int64_t CV_ARGREDUCE_FN_(_contiguous)(const CV_ARGREDUCE_T_ *x, int64_t n) {
  enum { AHEAD = 4 };
  if (n < 2 * CV_LANES) return CV_ARGREDUCE_FN_(_strided)(x, n, 1);
  CV_ARGREDUCE_V_ best = CV_ARGREDUCE_CALL_(cv_load_, CV_ARGREDUCE_M_)(x);
  CV_ARGREDUCE_V_ b1 = best, b2 = best, b3 = best;
  int64_t i = CV_LANES;
  for (; i + AHEAD * CV_LANES <= n; i += AHEAD * CV_LANES) {
    best = CV_ARGREDUCE_PICK_(best, CV_ARGREDUCE_CALL_(cv_load_, CV_ARGREDUCE_M_)(x + i));
    b1 = CV_ARGREDUCE_PICK_(b1, CV_ARGREDUCE_CALL_(cv_load_, CV_ARGREDUCE_M_)(x + i + CV_LANES));
    b2 = CV_ARGREDUCE_PICK_(b2, CV_ARGREDUCE_CALL_(cv_load_, CV_ARGREDUCE_M_)(x + i + 2 * CV_LANES));
    b3 = CV_ARGREDUCE_PICK_(b3, CV_ARGREDUCE_CALL_(cv_load_, CV_ARGREDUCE_M_)(x + i + 3 * CV_LANES));
  }
  for (; i + CV_LANES <= n; i += CV_LANES)
    best = CV_ARGREDUCE_PICK_(best, CV_ARGREDUCE_CALL_(cv_load_, CV_ARGREDUCE_M_)(x + i));
  /* The last vector overlaps what was seen, which an extreme value does not mind. */
  best = CV_ARGREDUCE_PICK_(best, CV_ARGREDUCE_CALL_(cv_load_, CV_ARGREDUCE_M_)(x + n - CV_LANES));
  best = CV_ARGREDUCE_PICK_(CV_ARGREDUCE_PICK_(best, b1), CV_ARGREDUCE_PICK_(b2, b3));
  CV_ELEM_PASTE(cv_elem_reg_, CV_ARGREDUCE_M_) extreme = CV_ARGREDUCE_FOLD_(best);
  CV_ARGREDUCE_V_ wanted = CV_ARGREDUCE_ON_(cv_splat_)(extreme);
  int nan = CV_ARGREDUCE_NAN_(extreme);
  for (i = 0; i + CV_LANES <= n; i += CV_LANES) {
    CV_ARGREDUCE_V_ v = CV_ARGREDUCE_CALL_(cv_load_, CV_ARGREDUCE_M_)(x + i);
    if (cv_hor(nan ? CV_ARGREDUCE_ON_(cv_ne_)(v, v) : CV_ARGREDUCE_ON_(cv_eq_)(v, wanted))) break;
  }
  /* Within one vector, or in the tail, the first place is the scalar search's. */
  int64_t left = n - i < CV_LANES ? n - i : CV_LANES;
  return i + CV_ARGREDUCE_FN_(_strided)(x + i, left, 1);
}

static __attribute__((unused)) void CV_ARGREDUCE_FN_(_rows)(void *arg, int64_t begin, int64_t end, int worker) {
  const cv_argreduce_job *job = (const cv_argreduce_job *)arg;
  int64_t n = job->n, inner = job->inner;
  (void)worker;
  for (int64_t r = begin; r < end; r++) {
    const CV_ARGREDUCE_T_ *x = (const CV_ARGREDUCE_T_ *)job->x + r / inner * n * inner + r % inner;
    job->out[r] = inner == 1 ? CV_ARGREDUCE_FN_(_contiguous)(x, n) : CV_ARGREDUCE_FN_(_strided)(x, n, inner);
  }
}

static __attribute__((unused)) void CV_ARGREDUCE_FN_(_lanes)(void *arg, int64_t begin, int64_t end, int worker) {
  const cv_argreduce_job *job = (const cv_argreduce_job *)arg;
  int64_t n = job->n, inner = job->inner, groups = (inner + CV_LANES - 1) / CV_LANES;
  (void)worker;
  for (int64_t g = begin; g < end; g++) {
    int64_t o = g / groups, c = g % groups * CV_LANES;
    /* The last group overlaps its neighbour: inner holds at least one whole vector. */
    if (c + CV_LANES > inner) c = inner - CV_LANES;
    const CV_ARGREDUCE_T_ *x = (const CV_ARGREDUCE_T_ *)job->x + o * n * inner + c;
    CV_ARGREDUCE_V_ best = CV_ARGREDUCE_CALL_(cv_load_, CV_ARGREDUCE_M_)(x);
    cv_vi64 at = cv_splat_i64(0);
    for (int64_t i = 1; i < n; i++) {
      CV_ARGREDUCE_V_ v = CV_ARGREDUCE_CALL_(cv_load_, CV_ARGREDUCE_M_)(x + i * inner);
      cv_vbool take = CV_ARGREDUCE_BEYOND_(v, best);
#if CV_ELEM_IS_FLOAT(CV_ARGREDUCE_M_)
      take |= CV_ARGREDUCE_ON_(cv_ne_)(v, v) & CV_ARGREDUCE_ON_(cv_eq_)(best, best);
#endif
      if (!cv_hor(take)) continue;
      best = CV_ARGREDUCE_ON_(cv_select_)(take, v, best);
      at = cv_select_i64(take, cv_splat_i64(i), at);
    }
    cv_store_i64(job->out + o * inner + c, at);
  }
}

static __attribute__((unused)) void CV_ARGREDUCE_NAME(cv_ctx *ctx, const void *x, int64_t *out, int64_t outer,
                                                      int64_t n, int64_t inner) {
  cv_argreduce_job job = {.x = x, .out = out, .n = n, .inner = inner};
  if (outer * inner == 0) return;
  if (n == 0) {
    cv_fail(ctx, CV_EDOMAIN, 0, 0);
    return;
  }
  if (inner >= CV_LANES)
    cv_parallel(ctx, outer * ((inner + CV_LANES - 1) / CV_LANES), 1 + 8192 / n, CV_ARGREDUCE_FN_(_lanes), &job);
  else
    cv_parallel(ctx, outer * inner, 1 + 65536 / n, CV_ARGREDUCE_FN_(_rows), &job);
}

#undef CV_ARGREDUCE_FN_
#undef CV_ARGREDUCE_M_
#undef CV_ARGREDUCE_R_
#undef CV_ARGREDUCE_T_
#undef CV_ARGREDUCE_V_
#undef CV_ARGREDUCE_CALL_
#undef CV_ARGREDUCE_ON_
#undef CV_ARGREDUCE_BEYOND_
#undef CV_ARGREDUCE_SCALAR_
#undef CV_ARGREDUCE_NAN_
#undef CV_ARGREDUCE_PICK_
#undef CV_ARGREDUCE_FOLD_
#undef CV_ARGREDUCE_NAME
#undef CV_ARGREDUCE_DT
#undef CV_ARGREDUCE_OP
