/* Cumulative sum, product, maximum and minimum along one axis.
 *
 * Set before including (all are reset at the end, so the header can be included again):
 *   CV_SCAN_NAME   name of the generated function
 *   CV_SCAN_OP     add, mul, max or min (max and min propagate NaN)
 *   CV_SCAN_IN     dtype short of x in memory
 *   CV_SCAN_ACC    dtype short of the running value: f32 f64 i8 ... u64 (f32 for halves)
 *   CV_SCAN_OUT    dtype short of y in memory
 *
 *   void NAME(ctx, const void *x, void *y, outer, n, inner, int include_initial, int reverse)
 *
 * x is [outer, n, inner]; y is [outer, n, inner], or [outer, n + 1, inner] with include_initial, where the first
 * element is the identity (0, 1, -inf or the least integer, inf or the greatest). reverse scans from the end:
 * y[i] covers x[i..n), and the identity comes last. Every running value is converted to CV_SCAN_OUT once.
 */
#include "cuvil/element.h"
#include "cuvil/runtime.h"
#include "cuvil/vec.h"

#ifndef CUVIL_SCAN_H
#define CUVIL_SCAN_H



typedef struct cv_scan_job {
  const void *x;
  void *y;
  int64_t n, inner;
  int initial, reverse;
} cv_scan_job;

#define CV_SCAN_OP_add 1
#define CV_SCAN_OP_mul 2
#define CV_SCAN_OP_max 3
#define CV_SCAN_OP_min 4

#define CV_SCAN_LEAST_i8 INT8_MIN
#define CV_SCAN_LEAST_i16 INT16_MIN
#define CV_SCAN_LEAST_i32 INT32_MIN
#define CV_SCAN_LEAST_i64 INT64_MIN
#define CV_SCAN_LEAST_u8 0
#define CV_SCAN_LEAST_u16 0
#define CV_SCAN_LEAST_u32 0
#define CV_SCAN_LEAST_u64 0
#define CV_SCAN_LEAST_f32 (-__builtin_inff())
#define CV_SCAN_LEAST_f64 (-__builtin_inff())
#define CV_SCAN_GREATEST_i8 INT8_MAX
#define CV_SCAN_GREATEST_i16 INT16_MAX
#define CV_SCAN_GREATEST_i32 INT32_MAX
#define CV_SCAN_GREATEST_i64 INT64_MAX
#define CV_SCAN_GREATEST_u8 UINT8_MAX
#define CV_SCAN_GREATEST_u16 UINT16_MAX
#define CV_SCAN_GREATEST_u32 UINT32_MAX
#define CV_SCAN_GREATEST_u64 UINT64_MAX
#define CV_SCAN_GREATEST_f32 __builtin_inff()
#define CV_SCAN_GREATEST_f64 __builtin_inf()

#define CV_SCAN_CAT4_(a, b, c, d) a##b##c##d
#define CV_SCAN_CAT4(a, b, c, d) CV_SCAN_CAT4_(a, b, c, d)
#define CV_SCAN_CAT3_(a, b, c) a##b##c
#define CV_SCAN_CAT3(a, b, c) CV_SCAN_CAT3_(a, b, c)

#endif /* CUVIL_SCAN_H */

#define CV_SCAN_FN_(suffix) CV_ELEM_PASTE(CV_SCAN_NAME, suffix)
#define CV_SCAN_TIN_ CV_ELEM_PASTE(cv_elem_, CV_SCAN_IN)
#define CV_SCAN_TOUT_ CV_ELEM_PASTE(cv_elem_, CV_SCAN_OUT)
#define CV_SCAN_TACC_ CV_ELEM_PASTE(cv_elem_reg_, CV_SCAN_ACC)
#define CV_SCAN_VACC_ CV_ELEM_PASTE(cv_v, CV_SCAN_ACC)
#define CV_SCAN_ID_ CV_ELEM_PASTE(CV_SCAN_OP_, CV_SCAN_OP)
#define CV_SCAN_CALL_(stem, dt) CV_ELEM_PASTE(stem, dt)

#if CV_SCAN_ID_ == CV_SCAN_OP_add
#define CV_SCAN_IDENTITY_ ((CV_SCAN_TACC_)0)
#define CV_SCAN_STEP_(a, b) ((CV_SCAN_TACC_)((a) + (b)))
#elif CV_SCAN_ID_ == CV_SCAN_OP_mul
#define CV_SCAN_IDENTITY_ ((CV_SCAN_TACC_)1)
#define CV_SCAN_STEP_(a, b) ((CV_SCAN_TACC_)((a) * (b)))
#elif CV_SCAN_ID_ == CV_SCAN_OP_max
#define CV_SCAN_IDENTITY_ ((CV_SCAN_TACC_)CV_SCAN_CALL_(CV_SCAN_LEAST_, CV_SCAN_ACC))
#define CV_SCAN_STEP_(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
#elif CV_SCAN_ID_ == CV_SCAN_OP_min
#define CV_SCAN_IDENTITY_ ((CV_SCAN_TACC_)CV_SCAN_CALL_(CV_SCAN_GREATEST_, CV_SCAN_ACC))
#define CV_SCAN_STEP_(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
#else
#error "CV_SCAN_OP is add, mul, max or min"
#endif

#if CV_ELEM_ID(CV_ELEM_REG(CV_SCAN_IN)) == CV_ELEM_ID(CV_SCAN_ACC)
#define CV_SCAN_WIDEN_(v) (v)
#else
#define CV_SCAN_WIDEN_(v) CV_SCAN_CAT4(cv_cast_, CV_ELEM_REG(CV_SCAN_IN), _, CV_SCAN_ACC)(v)
#endif
#if CV_ELEM_ID(CV_ELEM_REG(CV_SCAN_OUT)) == CV_ELEM_ID(CV_SCAN_ACC)
#define CV_SCAN_NARROW_(v) (v)
#else
#define CV_SCAN_NARROW_(v) CV_SCAN_CAT4(cv_cast_, CV_SCAN_ACC, _, CV_ELEM_REG(CV_SCAN_OUT))(v)
#endif

/* One column of one outer row at a time: for inner shorter than a vector. */
static __attribute__((unused)) void CV_SCAN_FN_(_columns)(void *arg, int64_t begin, int64_t end, int worker) {
  const cv_scan_job *job = (const cv_scan_job *)arg;
  int64_t n = job->n, inner = job->inner, length = n + job->initial;
  int64_t step = job->reverse ? -inner : inner;
  (void)worker;
  for (int64_t u = begin; u < end; u++) {
    int64_t o = u / inner, c = u % inner;
    const CV_SCAN_TIN_ *x = (const CV_SCAN_TIN_ *)job->x + o * n * inner + c;
    CV_SCAN_TOUT_ *y = (CV_SCAN_TOUT_ *)job->y + o * length * inner + c;
    if (job->reverse) {
      x += (n - 1) * inner;
      y += (length - 1) * inner;
    }
    CV_SCAN_TACC_ acc = CV_SCAN_IDENTITY_;
    if (job->initial) {
      CV_SCAN_CALL_(cv_elem_put_, CV_SCAN_OUT)(y, (CV_ELEM_PASTE(cv_elem_reg_, CV_SCAN_OUT))acc);
      y += step;
    }
    for (int64_t i = 0; i < n; i++) {
      CV_SCAN_TACC_ v = (CV_SCAN_TACC_)CV_SCAN_CALL_(cv_elem_get_, CV_SCAN_IN)(x + i * step);
      acc = CV_SCAN_STEP_(acc, v);
      CV_SCAN_CALL_(cv_elem_put_, CV_SCAN_OUT)(y + i * step, (CV_ELEM_PASTE(cv_elem_reg_, CV_SCAN_OUT))acc);
    }
  }
}

/* CV_LANES neighbouring columns at a time. */
static __attribute__((unused)) void CV_SCAN_FN_(_lanes)(void *arg, int64_t begin, int64_t end, int worker) {
  const cv_scan_job *job = (const cv_scan_job *)arg;
  int64_t n = job->n, inner = job->inner, length = n + job->initial;
  int64_t step = job->reverse ? -inner : inner, groups = (inner + CV_LANES - 1) / CV_LANES;
  (void)worker;
  for (int64_t u = begin; u < end; u++) {
    int64_t o = u / groups, c = u % groups * CV_LANES;
    int64_t lanes = inner - c < CV_LANES ? inner - c : CV_LANES;
    const CV_SCAN_TIN_ *x = (const CV_SCAN_TIN_ *)job->x + o * n * inner + c;
    CV_SCAN_TOUT_ *y = (CV_SCAN_TOUT_ *)job->y + o * length * inner + c;
    if (job->reverse) {
      x += (n - 1) * inner;
      y += (length - 1) * inner;
    }
    CV_SCAN_VACC_ acc = CV_SCAN_CALL_(cv_splat_, CV_SCAN_ACC)(CV_SCAN_IDENTITY_);
    if (job->initial) {
      CV_SCAN_CALL_(cv_store_part_, CV_SCAN_OUT)(y, CV_SCAN_NARROW_(acc), lanes);
      y += step;
    }
    if (lanes == CV_LANES) {
      for (int64_t i = 0; i < n; i++) {
        acc = CV_SCAN_CAT4(cv_, CV_SCAN_OP, _, CV_SCAN_ACC)(
            acc, CV_SCAN_WIDEN_(CV_SCAN_CALL_(cv_load_, CV_SCAN_IN)(x + i * step)));
        CV_SCAN_CALL_(cv_store_, CV_SCAN_OUT)(y + i * step, CV_SCAN_NARROW_(acc));
      }
    } else {
      for (int64_t i = 0; i < n; i++) {
        acc = CV_SCAN_CAT4(cv_, CV_SCAN_OP, _, CV_SCAN_ACC)(
            acc, CV_SCAN_WIDEN_(CV_SCAN_CALL_(cv_load_part_, CV_SCAN_IN)(x + i * step, lanes)));
        CV_SCAN_CALL_(cv_store_part_, CV_SCAN_OUT)(y + i * step, CV_SCAN_NARROW_(acc), lanes);
      }
    }
  }
}

static __attribute__((unused)) void CV_SCAN_NAME(cv_ctx *ctx, const void *x, void *y, int64_t outer, int64_t n,
                                                 int64_t inner, int include_initial, int reverse) {
  cv_scan_job job = {.x = x, .y = y, .n = n, .inner = inner, .initial = include_initial != 0,
                     .reverse = reverse != 0};
  if (outer == 0 || inner == 0 || n + job.initial == 0) return;
  if (inner < CV_LANES)
    cv_parallel(ctx, outer * inner, 1 + 16384 / (n + 1), CV_SCAN_FN_(_columns), &job);
  else
    cv_parallel(ctx, outer * ((inner + CV_LANES - 1) / CV_LANES), 1 + 4096 / (n + 1), CV_SCAN_FN_(_lanes), &job);
}

#undef CV_SCAN_FN_
#undef CV_SCAN_TIN_
#undef CV_SCAN_TOUT_
#undef CV_SCAN_TACC_
#undef CV_SCAN_VACC_
#undef CV_SCAN_ID_
#undef CV_SCAN_CALL_
#undef CV_SCAN_IDENTITY_
#undef CV_SCAN_STEP_
#undef CV_SCAN_WIDEN_
#undef CV_SCAN_NARROW_
#undef CV_SCAN_NAME
#undef CV_SCAN_OP
#undef CV_SCAN_IN
#undef CV_SCAN_ACC
#undef CV_SCAN_OUT
