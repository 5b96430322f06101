/* Indexed reads and writes: take, take_along_axis, gather and scatter (set, add, mul, max, min).
 *
 * Reads move bytes and are plain functions: cv_take (gather along an index tuple) and cv_take_along_axis.
 * Scatter is a template. Set before including (reset at the end, so the header can be included again):
 *   CV_SCATTER_NAME   name of the generated function
 *   CV_SCATTER_DT     dtype short of x, updates and out
 *   CV_SCATTER_OP     set, add, mul, max or min (bool: add and max are "or", mul and min are "and")
 * Without CV_SCATTER_NAME the header only declares the plain functions.
 *
 *   void NAME(ctx, const void *x, const void *updates, void *out, int64_t outer, const cv_index_tuple *tuple,
 *             int64_t inner, const int64_t update_stride[3], int mode)
 *
 * x and out are [outer, size_0, ..., size_{k-1}, inner]; updates are [outer, count, inner] with the element strides
 * given (0 broadcasts), count being the number of index tuples. out may be x, else x is copied first.
 * Updates of one location apply in order: the last set wins, halves round after each step. The order does not
 * depend on the number of threads, which divide the destination.
 *
 * Modes: CV_INDEX_ERROR (cv_fail(CV_EINDEX, index, size) for the first offender; scatter then changes nothing),
 * CV_INDEX_CLIP, CV_INDEX_WRAP, CV_INDEX_FILL (reads give the fill value, writes are dropped). Under ERROR and
 * FILL a negative index counts from the end; under CLIP it is 0. Indexing an axis of size 0 fails under every
 * mode but FILL.
 */
#include "cuvil/element.h"
#include "cuvil/runtime.h"
#include "cuvil/vec.h"

#ifndef CUVIL_SCATTER_H
#define CUVIL_SCATTER_H

enum { CV_INDEX_ERROR = 0, CV_INDEX_CLIP = 1, CV_INDEX_WRAP = 2, CV_INDEX_FILL = 3 };

/* k index arrays, broadcast together, for k neighbouring axes. */
typedef struct cv_index_tuple {
  int axes;                  /* k >= 1 */
  int rank;                  /* rank of the broadcast index arrays, <= CV_INDEX_RANK */
  int dtype;                 /* CV_ELEM_ID(...) of every index array: an integer dtype */
  const int64_t *size;       /* [axes] sizes of the indexed axes */
  const int64_t *shape;      /* [rank] the broadcast shape */
  const void *const *index;  /* [axes] the arrays */
  const int64_t *stride;     /* [axes][rank] their strides in elements, 0 where broadcast */
} cv_index_tuple;

#define CV_INDEX_RANK 16
#define CV_INDEX_CHUNK 256

CV_ELEM_INLINE int64_t cv_tuple_load(const void *p, int64_t at, int dtype) {
  switch (dtype) {
    case CV_ELEM_ID_i64: return ((const int64_t *)p)[at];
    case CV_ELEM_ID_i32: return ((const int32_t *)p)[at];
    case CV_ELEM_ID_i16: return ((const int16_t *)p)[at];
    case CV_ELEM_ID_i8: return ((const int8_t *)p)[at];
    case CV_ELEM_ID_u32: return ((const uint32_t *)p)[at];
    case CV_ELEM_ID_u16: return ((const uint16_t *)p)[at];
    case CV_ELEM_ID_u8: return ((const uint8_t *)p)[at];
    default: { /* u64: beyond int64 no array reaches */
      uint64_t v = ((const uint64_t *)p)[at];
      return v > INT64_MAX ? INT64_MAX : (int64_t)v;
    }
  }
}

/* The position in [0, size), -1 for a filled or dropped one, -2 for an error. */
CV_ELEM_INLINE int64_t cv_tuple_resolve(int64_t i, int64_t size, int mode) {
  if (i >= 0 && i < size) return i;
  if (mode == CV_INDEX_ERROR || mode == CV_INDEX_FILL) {
    if (i < 0 && i >= -size) return i + size;
    return mode == CV_INDEX_FILL ? -1 : -2;
  }
  if (size == 0) return -2;
  if (mode == CV_INDEX_CLIP) return i < 0 ? 0 : size - 1;
  i %= size;
  return i < 0 ? i + size : i;
}

CV_ELEM_INLINE int64_t cv_tuple_count(const cv_index_tuple *t) {
  int64_t count = 1;
  for (int d = 0; d < t->rank; d++) count *= t->shape[d];
  return count;
}

/* Flat positions of tuples [begin, end) over the indexed axes, -1 where filled or dropped. Returns the first
 * tuple that is in error, or -1; *bad and *size then say which index of which axis. */
static __attribute__((unused)) int64_t cv_tuple_flatten(const cv_index_tuple *t, int mode, int64_t begin,
                                                        int64_t end, int64_t *flat, int64_t *bad, int64_t *size) {
  int64_t at[CV_INDEX_RANK] = {0}, rest = begin;
  for (int d = t->rank - 1; d >= 0; d--) {
    at[d] = rest % t->shape[d];
    rest /= t->shape[d];
  }
  for (int64_t i = begin; i < end; i++) {
    int64_t position = 0;
    int dropped = 0;
    for (int a = 0; a < t->axes; a++) {
      const int64_t *stride = t->stride + (int64_t)a * t->rank;
      int64_t offset = 0;
      for (int d = 0; d < t->rank; d++) offset += at[d] * stride[d];
      int64_t given = cv_tuple_load(t->index[a], offset, t->dtype);
      int64_t p = cv_tuple_resolve(given, t->size[a], mode);
      if (p == -2) {
        *bad = given;
        *size = t->size[a];
        return i;
      }
      dropped |= p < 0;
      position = position * t->size[a] + p;
    }
    flat[i - begin] = dropped ? -1 : position;
    for (int d = t->rank - 1; d >= 0 && ++at[d] == t->shape[d]; d--) at[d] = 0;
  }
  return -1;
}

/* The first error of all threads, so that the report does not depend on their timing. */
typedef struct cv_tuple_error {
  int64_t where; /* INT64_MAX: none */
  int64_t bad, size;
  char lock;
} cv_tuple_error;

static __attribute__((unused)) void cv_tuple_note(cv_tuple_error *e, int64_t where, int64_t bad, int64_t size) {
  while (__atomic_test_and_set(&e->lock, __ATOMIC_ACQUIRE)) {
  }
  if (where < e->where) {
    e->where = where;
    e->bad = bad;
    e->size = size;
  }
  __atomic_clear(&e->lock, __ATOMIC_RELEASE);
}

CV_ELEM_INLINE void cv_tuple_copy(char *dst, const char *src, int64_t bytes) {
  /* Fixed sizes become single moves; the usual rows are one element or long. */
  switch (bytes) {
    case 1: *dst = *src; return;
    case 2: memcpy(dst, src, 2); return;
    case 4: memcpy(dst, src, 4); return;
    case 8: memcpy(dst, src, 8); return;
    default: memcpy(dst, src, (size_t)bytes);
  }
}

CV_ELEM_INLINE void cv_tuple_fill(char *dst, const void *fill, int64_t elements, int itemsize) {
  for (int64_t i = 0; i < elements; i++) memcpy(dst + i * itemsize, fill, (size_t)itemsize);
}

typedef struct cv_take_job {
  const char *x;
  char *out;
  const cv_index_tuple *tuple;
  const void *index;
  const void *fill;
  cv_tuple_error error;
  int64_t count, rows, inner, n;
  int itemsize, mode, dtype;
} cv_take_job;

static __attribute__((unused)) void cv_take_body(void *arg, int64_t begin, int64_t end, int worker) {
  cv_take_job *job = (cv_take_job *)arg;
  int64_t flat[CV_INDEX_CHUNK], bytes = job->inner * job->itemsize;
  (void)worker;
  while (begin < end) {
    int64_t o = begin / job->count, first = begin % job->count, left = job->count - first;
    int64_t m = end - begin < left ? end - begin : left;
    if (m > CV_INDEX_CHUNK) m = CV_INDEX_CHUNK;
    int64_t bad = 0, size = 0, wrong = cv_tuple_flatten(job->tuple, job->mode, first, first + m, flat, &bad, &size);
    if (wrong >= 0) {
      cv_tuple_note(&job->error, wrong, bad, size);
      return;
    }
    const char *x = job->x + o * job->rows * bytes;
    char *out = job->out + begin * bytes;
    for (int64_t i = 0; i < m; i++, out += bytes) {
      if (flat[i] >= 0)
        cv_tuple_copy(out, x + flat[i] * bytes, bytes);
      else
        cv_tuple_fill(out, job->fill, job->inner, job->itemsize);
    }
    begin += m;
  }
}

/* out[o, t, :] = x[o, tuple t, :] with x [outer, sizes..., inner], out [outer, count, inner], elements of itemsize
 * bytes. fill points at one element and is read under CV_INDEX_FILL only. */
static __attribute__((unused)) void cv_take(cv_ctx *ctx, const void *x, void *out, int64_t outer,
                                            const cv_index_tuple *tuple, int64_t inner, int itemsize, int mode,
                                            const void *fill) {
  cv_take_job job = {.x = (const char *)x, .out = (char *)out, .tuple = tuple, .fill = fill,
                     .error = {.where = INT64_MAX}, .count = cv_tuple_count(tuple), .rows = 1, .inner = inner,
                     .itemsize = itemsize, .mode = mode};
  for (int a = 0; a < tuple->axes; a++) job.rows *= tuple->size[a];
  if (outer * job.count == 0) return;
  cv_parallel(ctx, outer * job.count, 1 + 65536 / (16 + inner * itemsize), cv_take_body, &job);
  if (job.error.where != INT64_MAX) cv_fail(ctx, CV_EINDEX, job.error.bad, job.error.size);
}

static __attribute__((unused)) void cv_take_along_body(void *arg, int64_t begin, int64_t end, int worker) {
  cv_take_job *job = (cv_take_job *)arg;
  int64_t inner = job->inner, item = job->itemsize;
  (void)worker;
  for (int64_t r = begin; r < end; r++) { /* r runs over outer and the positions along the axis */
    const char *x = job->x + r / job->count * job->n * inner * item;
    char *out = job->out + r * inner * item;
    for (int64_t c = 0; c < inner; c++, out += item) {
      int64_t given = cv_tuple_load(job->index, r * inner + c, job->dtype);
      int64_t p = cv_tuple_resolve(given, job->n, job->mode);
      if (p == -2) {
        cv_tuple_note(&job->error, r * inner + c, given, job->n);
        return;
      }
      cv_tuple_copy(out, p >= 0 ? x + (p * inner + c) * item : (const char *)job->fill, item);
    }
  }
}

/* out[o, j, c] = x[o, index[o, j, c], c] with x [outer, n, inner], index and out [outer, m, inner]; dtype is the
 * CV_ELEM_ID of the index array. */
static __attribute__((unused)) void cv_take_along_axis(cv_ctx *ctx, const void *x, const void *index, void *out,
                                                       int64_t outer, int64_t n, int64_t m, int64_t inner, int dtype,
                                                       int itemsize, int mode, const void *fill) {
  cv_take_job job = {.x = (const char *)x, .out = (char *)out, .index = index, .fill = fill,
                     .error = {.where = INT64_MAX}, .count = m, .inner = inner, .n = n, .itemsize = itemsize,
                     .mode = mode, .dtype = dtype};
  if (outer * m * inner == 0) return;
  cv_parallel(ctx, outer * m, 1 + 8192 / (inner + 1), cv_take_along_body, &job);
  if (job.error.where != INT64_MAX) cv_fail(ctx, CV_EINDEX, job.error.bad, job.error.size);
}

typedef struct cv_scatter_job {
  const char *x, *updates;
  char *out;
  const cv_index_tuple *tuple;
  int64_t *flat;
  cv_tuple_error error;
  int64_t count, rows, inner, outer_stride, row_stride, step;
  int mode;
} cv_scatter_job;

static __attribute__((unused)) void cv_scatter_flatten_body(void *arg, int64_t begin, int64_t end, int worker) {
  cv_scatter_job *job = (cv_scatter_job *)arg;
  int64_t bad = 0, size = 0;
  (void)worker;
  int64_t wrong = cv_tuple_flatten(job->tuple, job->mode, begin, end, job->flat + begin, &bad, &size);
  if (wrong >= 0) cv_tuple_note(&job->error, wrong, bad, size);
}

#define CV_SCATTER_OP_set 0
#define CV_SCATTER_OP_add 1
#define CV_SCATTER_OP_mul 2
#define CV_SCATTER_OP_max 3
#define CV_SCATTER_OP_min 4
#define CV_SCATTER_CAT4_(a, b, c, d) a##b##c##d
#define CV_SCATTER_CAT4(a, b, c, d) CV_SCATTER_CAT4_(a, b, c, d)

#endif /* CUVIL_SCATTER_H */

#ifdef CV_SCATTER_NAME

#define CV_SCATTER_FN_(suffix) CV_ELEM_PASTE(CV_SCATTER_NAME, suffix)
#define CV_SCATTER_T_ CV_ELEM_PASTE(cv_elem_, CV_SCATTER_DT)
#define CV_SCATTER_REG_ CV_ELEM_PASTE(cv_elem_reg_, CV_SCATTER_DT)
#define CV_SCATTER_GET_ CV_ELEM_PASTE(cv_elem_get_, CV_SCATTER_DT)
#define CV_SCATTER_PUT_ CV_ELEM_PASTE(cv_elem_put_, CV_SCATTER_DT)
#define CV_SCATTER_ID_ CV_ELEM_PASTE(CV_SCATTER_OP_, CV_SCATTER_OP)
#define CV_SCATTER_VOP_ CV_SCATTER_CAT4(cv_, CV_SCATTER_OP, _, CV_ELEM_REG(CV_SCATTER_DT))

#if CV_SCATTER_ID_ == CV_SCATTER_OP_set
#define CV_SCATTER_STEP_(a, b) (b)
#elif CV_ELEM_IS_BOOL(CV_SCATTER_DT)
#if CV_SCATTER_ID_ == CV_SCATTER_OP_add || CV_SCATTER_ID_ == CV_SCATTER_OP_max
#define CV_SCATTER_STEP_(a, b) ((a) | (b))
#else
#define CV_SCATTER_STEP_(a, b) ((a) & (b))
#endif
#elif CV_SCATTER_ID_ == CV_SCATTER_OP_add
#define CV_SCATTER_STEP_(a, b) ((CV_SCATTER_REG_)((a) + (b)))
#elif CV_SCATTER_ID_ == CV_SCATTER_OP_mul
#define CV_SCATTER_STEP_(a, b) ((CV_SCATTER_REG_)((a) * (b)))
#elif CV_SCATTER_ID_ == CV_SCATTER_OP_max
#define CV_SCATTER_STEP_(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
#else
#define CV_SCATTER_STEP_(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
#endif

CV_ELEM_INLINE void CV_SCATTER_FN_(_row)(CV_SCATTER_T_ *out, const CV_SCATTER_T_ *u, int64_t inner, int64_t step) {
#if CV_SCATTER_ID_ == CV_SCATTER_OP_set
  if (step == 1) {
    cv_tuple_copy((char *)out, (const char *)u, inner * (int64_t)sizeof *out);
    return;
  }
#elif !CV_ELEM_IS_BOOL(CV_SCATTER_DT)
  if (step == 1 && inner >= CV_LANES) {
    int64_t c = 0;
    for (; c + CV_LANES <= inner; c += CV_LANES)
      CV_ELEM_PASTE(cv_store_, CV_SCATTER_DT)
    (out + c, CV_SCATTER_VOP_(CV_ELEM_PASTE(cv_load_, CV_SCATTER_DT)(out + c),
                              CV_ELEM_PASTE(cv_load_, CV_SCATTER_DT)(u + c)));
    if (c < inner)
      CV_ELEM_PASTE(cv_store_part_, CV_SCATTER_DT)
    (out + c,
     CV_SCATTER_VOP_(CV_ELEM_PASTE(cv_load_part_, CV_SCATTER_DT)(out + c, inner - c),
                     CV_ELEM_PASTE(cv_load_part_, CV_SCATTER_DT)(u + c, inner - c)),
     inner - c);
    return;
  }
#endif
  for (int64_t c = 0; c < inner; c++) {
#if CV_SCATTER_ID_ == CV_SCATTER_OP_set
    out[c] = u[c * step];
#else
    CV_SCATTER_REG_ a = CV_SCATTER_GET_(out + c), b = CV_SCATTER_GET_(u + c * step);
    CV_SCATTER_PUT_(out + c, CV_SCATTER_STEP_(a, b));
#endif
  }
}

/* Destination rows [begin, end) of outer * rows: copy them, then apply every update that falls into them. */
static __attribute__((unused)) void CV_SCATTER_FN_(_body)(void *arg, int64_t begin, int64_t end, int worker) {
  const cv_scatter_job *job = (const cv_scatter_job *)arg;
  int64_t rows = job->rows, inner = job->inner;
  CV_SCATTER_T_ *out = (CV_SCATTER_T_ *)job->out;
  const CV_SCATTER_T_ *updates = (const CV_SCATTER_T_ *)job->updates;
  (void)worker;
  if (job->x != job->out)
    memcpy(out + begin * inner, job->x + begin * inner * (int64_t)sizeof *out,
           (size_t)((end - begin) * inner) * sizeof *out);
  for (int64_t o = begin / rows; o * rows < end; o++) {
    int64_t low = begin - o * rows > 0 ? begin - o * rows : 0;
    int64_t high = end - o * rows < rows ? end - o * rows : rows;
    for (int64_t t = 0; t < job->count; t++) {
      int64_t r = job->flat[t];
      if (r < low || r >= high) continue;
      CV_SCATTER_FN_(_row)(out + (o * rows + r) * inner,
                           updates + o * job->outer_stride + t * job->row_stride, inner, job->step);
    }
  }
}

static __attribute__((unused)) void CV_SCATTER_NAME(cv_ctx *ctx, const void *x, const void *updates, void *out,
                                                    int64_t outer, const cv_index_tuple *tuple, int64_t inner,
                                                    const int64_t update_stride[3], int mode) {
  cv_scatter_job job = {.x = (const char *)x, .updates = (const char *)updates, .out = (char *)out, .tuple = tuple,
                        .error = {.where = INT64_MAX}, .count = cv_tuple_count(tuple), .rows = 1, .inner = inner,
                        .outer_stride = update_stride[0], .row_stride = update_stride[1],
                        .step = update_stride[2], .mode = mode};
  for (int a = 0; a < tuple->axes; a++) job.rows *= tuple->size[a];
  if (job.count > 0 && outer > 0) {
    job.flat = (int64_t *)cv_scratch_shared(ctx, (size_t)job.count * sizeof(int64_t));
    if (!job.flat) return;
    cv_parallel(ctx, job.count, 8192, cv_scatter_flatten_body, &job);
    if (job.error.where != INT64_MAX) {
      cv_fail(ctx, CV_EINDEX, job.error.bad, job.error.size);
      return;
    }
  }
  if (outer * job.rows * inner == 0) return;
  cv_parallel(ctx, outer * job.rows, 1 + 32768 / (inner + 1), CV_SCATTER_FN_(_body), &job);
}

#undef CV_SCATTER_FN_
#undef CV_SCATTER_T_
#undef CV_SCATTER_REG_
#undef CV_SCATTER_GET_
#undef CV_SCATTER_PUT_
#undef CV_SCATTER_ID_
#undef CV_SCATTER_VOP_
#undef CV_SCATTER_STEP_
#undef CV_SCATTER_NAME
#undef CV_SCATTER_DT
#undef CV_SCATTER_OP
#endif /* CV_SCATTER_NAME */
