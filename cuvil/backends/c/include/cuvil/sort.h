/* Stable sort, argsort, top_k and searchsorted along one axis, for every dtype.
 *
 * Set before including (all are reset at the end, so the header can be included again):
 *   CV_SORT_NAME   prefix of the generated functions
 *   CV_SORT_DT     dtype short of the elements (f32 f64 f16 bf16 i8 ... u64 bool)
 *
 * Arrays are row-major [outer, n, inner] and sorted along n. Generated, with NAME = CV_SORT_NAME:
 *   void NAME_sort(ctx, const void *x, void *out, outer, n, inner, int descending)
 *   void NAME_argsort(ctx, const void *x, int64_t *out, outer, n, inner, int descending)
 *   void NAME_top_k(ctx, const void *x, void *values, int64_t *indices, outer, n, inner, k, int largest)
 *   void NAME_searchsorted(ctx, const void *sorted, const void *values, int64_t *out, rows, n, m, int right)
 *
 * Order: sort and argsort are stable in both directions, -0.0 equals 0.0, NaN sorts last in both directions.
 * top_k gives sorted results, the lower index first among equals; NaN counts as the largest value.
 * searchsorted takes rows sorted ascending with NaN last, NaN again being the largest; right = 0 is side "left".
 *
 * Method: each element becomes an unsigned key with the wanted order and is paired with its position, which
 * makes any sort stable. Keys up to 32 bits share one uint64 with the position; wider ones use a pair of words.
 */
#include "cuvil/element.h"
#include "cuvil/runtime.h"
#include "cuvil/vec.h"

#ifndef CUVIL_SORT_H
#define CUVIL_SORT_H

typedef struct cv_sort_pair {
  uint64_t key, pos;
} cv_sort_pair;

/* Keys: unsigned integers whose order is the ascending order of the values; NaN is all ones. */
CV_ELEM_INLINE uint32_t cv_sort_key_bool(const uint8_t *p) { return *p != 0; }
CV_ELEM_INLINE uint32_t cv_sort_key_u8(const uint8_t *p) { return *p; }
CV_ELEM_INLINE uint32_t cv_sort_key_u16(const uint16_t *p) { return *p; }
CV_ELEM_INLINE uint32_t cv_sort_key_u32(const uint32_t *p) { return *p; }
CV_ELEM_INLINE uint64_t cv_sort_key_u64(const uint64_t *p) { return *p; }
CV_ELEM_INLINE uint32_t cv_sort_key_i8(const int8_t *p) { return (uint8_t)(*p ^ INT8_MIN); }
CV_ELEM_INLINE uint32_t cv_sort_key_i16(const int16_t *p) { return (uint16_t)(*p ^ INT16_MIN); }
CV_ELEM_INLINE uint32_t cv_sort_key_i32(const int32_t *p) { return (uint32_t)*p ^ 0x80000000u; }
CV_ELEM_INLINE uint64_t cv_sort_key_i64(const int64_t *p) { return (uint64_t)*p ^ 0x8000000000000000u; }

#define CV_SORT_FLOAT_KEY_(dt, elem, word, sword, bits, inf)                                 \
  CV_ELEM_INLINE word cv_sort_key_##dt(const elem *p) {                                      \
    elem v = *p + 0; /* -0.0 + 0 is 0.0 */                                                   \
    word u, top = (word)1 << (bits - 1);                                                     \
    memcpy(&u, &v, bits / 8);                                                                \
    word nan = (u & ~top) > (inf) ? ~(word)0 : 0;                                            \
    return (u ^ ((word)((sword)u >> (bits - 1)) | top)) | nan;                               \
  }
CV_SORT_FLOAT_KEY_(f32, float, uint32_t, int32_t, 32, 0x7f800000u)
CV_SORT_FLOAT_KEY_(f64, double, uint64_t, int64_t, 64, 0x7ff0000000000000u)
#undef CV_SORT_FLOAT_KEY_

#define CV_SORT_HALF_KEY_(dt, inf)                                                   \
  CV_ELEM_INLINE uint32_t cv_sort_key_##dt(const uint16_t *p) {                      \
    uint32_t u = *p, mag = u & 0x7fffu;                                              \
    if (mag > (inf)) return 0xffffu;                                                 \
    if (mag == 0) return 0x8000u;                                                    \
    return (u & 0x8000u) ? (~u & 0xffffu) : (u | 0x8000u);                           \
  }
CV_SORT_HALF_KEY_(f16, 0x7c00u)
CV_SORT_HALF_KEY_(bf16, 0x7f80u)
#undef CV_SORT_HALF_KEY_

/* The dtype that vectors of elements are compared in: bool as its bytes. */
#define CV_SORT_MEM_bool u8
#define CV_SORT_MEM_i8 i8
#define CV_SORT_MEM_i16 i16
#define CV_SORT_MEM_i32 i32
#define CV_SORT_MEM_i64 i64
#define CV_SORT_MEM_u8 u8
#define CV_SORT_MEM_u16 u16
#define CV_SORT_MEM_u32 u32
#define CV_SORT_MEM_u64 u64
#define CV_SORT_MEM_f16 f16
#define CV_SORT_MEM_bf16 bf16
#define CV_SORT_MEM_f32 f32
#define CV_SORT_MEM_f64 f64

enum { CV_SORT_ASCENDING = 0, CV_SORT_DESCENDING = 1, CV_SORT_LARGEST = 2 };

/* Below these lengths the histograms of a radix sort cost more than merging. */
#define CV_SORT_RADIX_MIN 256
#define CV_SORT_RUN 8

#define CV_SORT_LESS_u64(a, b) ((a) < (b))
#define CV_SORT_LESS_pair(a, b) ((a).key < (b).key) /* stable merging keeps positions in order */
#define CV_SORT_DIGIT_u64(v, shift) (((v) >> (shift)) & 255u)
#define CV_SORT_DIGIT_pair(v, shift) (((v).key >> (shift)) & 255u)

/* Sorts a[0..n) with tmp[0..n) as room; the key is bits [low, low + bits) of the key word. Returns where the
 * result lies: a or tmp. The input's positions ascend, and every step is stable. */
#define CV_SORT_CORE_(kind, elem)                                                                         \
  static __attribute__((unused)) elem *cv_sort_core_##kind(elem *a, elem *tmp, int64_t n, int low,       \
                                                           int bits) {                                    \
    if (n < CV_SORT_RADIX_MIN) {                                                                          \
      for (int64_t s = 0; s < n; s += CV_SORT_RUN) {                                                      \
        int64_t e = s + CV_SORT_RUN < n ? s + CV_SORT_RUN : n;                                            \
        for (int64_t i = s + 1; i < e; i++) {                                                             \
          elem v = a[i];                                                                                  \
          int64_t j = i;                                                                                  \
          for (; j > s && CV_SORT_LESS_##kind(v, a[j - 1]); j--) a[j] = a[j - 1];                         \
          a[j] = v;                                                                                       \
        }                                                                                                 \
      }                                                                                                   \
      for (int64_t w = CV_SORT_RUN; w < n; w *= 2) {                                                      \
        for (int64_t s = 0; s < n; s += 2 * w) {                                                          \
          int64_t i = s, m = s + w < n ? s + w : n, j = m, e = s + 2 * w < n ? s + 2 * w : n, o = s;      \
          while (i < m && j < e) {                                                                        \
            int right = CV_SORT_LESS_##kind(a[j], a[i]);                                                  \
            tmp[o++] = right ? a[j] : a[i];                                                               \
            j += right;                                                                                   \
            i += !right;                                                                                  \
          }                                                                                               \
          while (i < m) tmp[o++] = a[i++];                                                                \
          while (j < e) tmp[o++] = a[j++];                                                                \
        }                                                                                                 \
        elem *swap = a;                                                                                   \
        a = tmp;                                                                                          \
        tmp = swap;                                                                                       \
      }                                                                                                   \
      return a;                                                                                           \
    }                                                                                                     \
    int64_t count[8][256];                                                                                \
    int digits = (bits + 7) / 8;                                                                          \
    memset(count, 0, (size_t)digits * sizeof count[0]);                                                   \
    for (int64_t i = 0; i < n; i++)                                                                       \
      for (int d = 0; d < digits; d++) count[d][CV_SORT_DIGIT_##kind(a[i], low + 8 * d)]++;               \
    for (int d = 0; d < digits; d++) {                                                                    \
      int shift = low + 8 * d;                                                                            \
      int64_t *c = count[d], sum = 0;                                                                     \
      if (c[CV_SORT_DIGIT_##kind(a[0], shift)] == n) continue; /* this digit is the same everywhere */    \
      for (int b = 0; b < 256; b++) {                                                                     \
        int64_t here = c[b];                                                                              \
        c[b] = sum;                                                                                       \
        sum += here;                                                                                      \
      }                                                                                                   \
      for (int64_t i = 0; i < n; i++) tmp[c[CV_SORT_DIGIT_##kind(a[i], shift)]++] = a[i];                 \
      elem *swap = a;                                                                                     \
      a = tmp;                                                                                            \
      tmp = swap;                                                                                         \
    }                                                                                                     \
    return a;                                                                                             \
  }
CV_SORT_CORE_(u64, uint64_t)
CV_SORT_CORE_(pair, cv_sort_pair)
#undef CV_SORT_CORE_

typedef struct cv_sort_job {
  cv_ctx *ctx;
  const void *x;
  const void *needles;
  void *values;
  int64_t *indices;
  int64_t n, inner, k;
  int order;
} cv_sort_job;

#endif /* CUVIL_SORT_H */

#define CV_SORT_FN_(suffix) CV_ELEM_PASTE(CV_SORT_NAME, suffix)
#define CV_SORT_ELEM_ CV_ELEM_PASTE(cv_elem_, CV_SORT_DT)
#define CV_SORT_M_ CV_ELEM_PASTE(CV_SORT_MEM_, CV_SORT_DT)
#define CV_SORT_R_ CV_ELEM_REG(CV_SORT_M_)
#define CV_SORT_V_ CV_ELEM_PASTE(cv_v, CV_SORT_R_)
#define CV_SORT_ON_(stem) CV_ELEM_PASTE(stem, CV_SORT_R_)
#define CV_SORT_KEY_ CV_ELEM_PASTE(cv_sort_key_, CV_SORT_DT)
#define CV_SORT_BITS_ (8 * (int)sizeof(CV_SORT_ELEM_))
#define CV_SORT_WIDE_                                                                                     \
  (CV_ELEM_ID(CV_SORT_DT) == CV_ELEM_ID_i64 || CV_ELEM_ID(CV_SORT_DT) == CV_ELEM_ID_u64 ||                \
   CV_ELEM_ID(CV_SORT_DT) == CV_ELEM_ID_f64)

/* The key of one element in the wanted order. */
CV_ELEM_INLINE uint64_t CV_SORT_FN_(_key)(const CV_SORT_ELEM_ *p, int order) {
  const uint64_t ones = ~(uint64_t)0 >> (64 - CV_SORT_BITS_);
  uint64_t key = CV_SORT_KEY_(p);
  if (order == CV_SORT_ASCENDING) return key;
#if CV_ELEM_IS_FLOAT(CV_SORT_DT)
  if (order == CV_SORT_DESCENDING && key == ones) return ones; /* NaN stays last */
#endif
  return ~key & ones;
}

/* Writes the first k of the row's order: values, indices or both. order[] holds words or pairs. */
static __attribute__((unused)) void CV_SORT_FN_(_emit)(const cv_sort_job *job, int64_t row, const void *sorted,
                                                       int paired) {
  int64_t o = row / job->inner, c = row % job->inner;
  const CV_SORT_ELEM_ *x = (const CV_SORT_ELEM_ *)job->x + o * job->n * job->inner + c;
  CV_SORT_ELEM_ *values = job->values ? (CV_SORT_ELEM_ *)job->values + o * job->k * job->inner + c : NULL;
  int64_t *indices = job->indices ? job->indices + o * job->k * job->inner + c : NULL;
  for (int64_t i = 0; i < job->k; i++) {
    int64_t pos = paired ? (int64_t)((const cv_sort_pair *)sorted)[i].pos
                         : (int64_t)(((const uint64_t *)sorted)[i] & 0xffffffffu);
    if (values) values[i * job->inner] = x[pos * job->inner];
    if (indices) indices[i * job->inner] = pos;
  }
}

/* The first i >= from where a whole vector of contiguous elements may hold one that beats bar, or the tail. */
CV_ELEM_INLINE int64_t CV_SORT_FN_(_skip)(const CV_SORT_ELEM_ *x, int64_t from, int64_t n, const CV_SORT_ELEM_ *bar,
                                          int order) {
  CV_SORT_V_ limit = CV_SORT_ON_(cv_splat_)(CV_ELEM_PASTE(cv_elem_get_, CV_SORT_M_)(bar));
  for (; from + CV_LANES <= n; from += CV_LANES) {
    CV_SORT_V_ v = CV_ELEM_PASTE(cv_load_, CV_SORT_M_)(x + from);
    cv_vbool better = order == CV_SORT_ASCENDING ? CV_SORT_ON_(cv_lt_)(v, limit) : CV_SORT_ON_(cv_gt_)(v, limit);
#if CV_ELEM_IS_FLOAT(CV_SORT_DT)
    /* NaN beats everything or is beaten by everything: let the keys tell. */
    better |= CV_SORT_ON_(cv_ne_)(v, v) | CV_SORT_ON_(cv_ne_)(limit, limit);
#endif
    if (cv_hor(better)) break;
  }
  return from;
}

/* Whole rows [begin, end): k == n elements are wanted. */
static __attribute__((unused)) void CV_SORT_FN_(_rows)(void *arg, int64_t begin, int64_t end, int worker) {
  const cv_sort_job *job = (const cv_sort_job *)arg;
  int64_t n = job->n, inner = job->inner;
  int paired = CV_SORT_WIDE_ || n > (int64_t)UINT32_MAX;
  size_t unit = paired ? sizeof(cv_sort_pair) : sizeof(uint64_t);
  char *room = (char *)cv_scratch(job->ctx, worker, 2 * (size_t)n * unit);
  if (!room) return;
  for (int64_t row = begin; row < end; row++) {
    const CV_SORT_ELEM_ *x = (const CV_SORT_ELEM_ *)job->x + row / inner * n * inner + row % inner;
    if (paired) {
      cv_sort_pair *a = (cv_sort_pair *)room;
      for (int64_t i = 0; i < n; i++)
        a[i] = (cv_sort_pair){CV_SORT_FN_(_key)(x + i * inner, job->order), (uint64_t)i};
      CV_SORT_FN_(_emit)(job, row, cv_sort_core_pair(a, a + n, n, 0, CV_SORT_BITS_), 1);
    } else {
      uint64_t *a = (uint64_t *)room;
      for (int64_t i = 0; i < n; i++)
        a[i] = CV_SORT_FN_(_key)(x + i * inner, job->order) << 32 | (uint64_t)i;
      CV_SORT_FN_(_emit)(job, row, cv_sort_core_u64(a, a + n, n, 32, CV_SORT_BITS_), 0);
    }
  }
}

/* Rows [begin, end) where k < n: keep a buffer of candidates no worse than the k-th best so far; when it is
 * full, sort it and keep k. An element equal to the k-th best comes later, so it never replaces it. */
static __attribute__((unused)) void CV_SORT_FN_(_best_rows)(void *arg, int64_t begin, int64_t end, int worker) {
  const cv_sort_job *job = (const cv_sort_job *)arg;
  int64_t n = job->n, inner = job->inner, k = job->k;
  int64_t capacity = 2 * k > 512 ? 2 * k : 512;
  int paired = CV_SORT_WIDE_ || n > (int64_t)UINT32_MAX;
  size_t unit = paired ? sizeof(cv_sort_pair) : sizeof(uint64_t);
  char *room = (char *)cv_scratch(job->ctx, worker, 2 * (size_t)capacity * unit);
  if (!room) return;
  for (int64_t row = begin; row < end; row++) {
    const CV_SORT_ELEM_ *x = (const CV_SORT_ELEM_ *)job->x + row / inner * n * inner + row % inner;
    int64_t used = 0;
    uint64_t bar = ~(uint64_t)0; /* keys >= bar are out, once there is a bar */
    int barred = 0;
    int64_t candidate = 0;              /* the next i that may beat the bar */
    const CV_SORT_ELEM_ *limit = NULL;  /* the element whose key is the bar */
    if (paired) {
      cv_sort_pair *a = (cv_sort_pair *)room, *b = a + capacity;
      for (int64_t i = 0; i < n; i++) {
        if (barred && inner == 1 && i >= candidate) {
          i = CV_SORT_FN_(_skip)(x, i, n, limit, job->order);
          if (i == n) break;
          candidate = i + CV_LANES;
        }
        uint64_t key = CV_SORT_FN_(_key)(x + i * inner, job->order);
        if (barred && key >= bar) continue;
        a[used++] = (cv_sort_pair){key, (uint64_t)i};
        if (used == capacity) {
          cv_sort_pair *s = cv_sort_core_pair(a, b, used, 0, CV_SORT_BITS_);
          b = s == a ? b : a;
          a = s;
          used = k;
          bar = a[k - 1].key;
          limit = x + (int64_t)a[k - 1].pos * inner;
          barred = 1;
        }
      }
      CV_SORT_FN_(_emit)(job, row, cv_sort_core_pair(a, b, used, 0, CV_SORT_BITS_), 1);
    } else {
      uint64_t *a = (uint64_t *)room, *b = a + capacity;
      for (int64_t i = 0; i < n; i++) {
        if (barred && inner == 1 && i >= candidate) {
          i = CV_SORT_FN_(_skip)(x, i, n, limit, job->order);
          if (i == n) break;
          candidate = i + CV_LANES;
        }
        uint64_t key = CV_SORT_FN_(_key)(x + i * inner, job->order);
        if (barred && key >= bar) continue;
        a[used++] = key << 32 | (uint64_t)i;
        if (used == capacity) {
          uint64_t *s = cv_sort_core_u64(a, b, used, 32, CV_SORT_BITS_);
          b = s == a ? b : a;
          a = s;
          used = k;
          bar = a[k - 1] >> 32;
          limit = x + (int64_t)(a[k - 1] & 0xffffffffu) * inner;
          barred = 1;
        }
      }
      CV_SORT_FN_(_emit)(job, row, cv_sort_core_u64(a, b, used, 32, CV_SORT_BITS_), 0);
    }
  }
}

static __attribute__((unused)) void CV_SORT_FN_(_run)(cv_sort_job *job, int64_t outer) {
  int64_t rows = outer * job->inner, grain = 1 + 16384 / (job->n + 1);
  if (rows == 0 || job->k == 0) return;
  cv_parallel(job->ctx, rows, grain,
              2 * job->k < job->n ? CV_SORT_FN_(_best_rows) : CV_SORT_FN_(_rows), job);
}

static __attribute__((unused)) void CV_SORT_FN_(_sort)(cv_ctx *ctx, const void *x, void *out, int64_t outer,
                                                       int64_t n, int64_t inner, int descending) {
  cv_sort_job job = {.ctx = ctx, .x = x, .values = out, .n = n, .inner = inner, .k = n,
                     .order = descending ? CV_SORT_DESCENDING : CV_SORT_ASCENDING};
  CV_SORT_FN_(_run)(&job, outer);
}

static __attribute__((unused)) void CV_SORT_FN_(_argsort)(cv_ctx *ctx, const void *x, int64_t *out, int64_t outer,
                                                          int64_t n, int64_t inner, int descending) {
  cv_sort_job job = {.ctx = ctx, .x = x, .indices = out, .n = n, .inner = inner, .k = n,
                     .order = descending ? CV_SORT_DESCENDING : CV_SORT_ASCENDING};
  CV_SORT_FN_(_run)(&job, outer);
}

/* values or indices may be NULL when unwanted; 0 <= k <= n is the caller's to check (CV_EDOMAIN here). */
static __attribute__((unused)) void CV_SORT_FN_(_top_k)(cv_ctx *ctx, const void *x, void *values,
                                                        int64_t *indices, int64_t outer, int64_t n,
                                                        int64_t inner, int64_t k, int largest) {
  if (k < 0 || k > n) {
    cv_fail(ctx, CV_EDOMAIN, k, n);
    return;
  }
  cv_sort_job job = {.ctx = ctx, .x = x, .values = values, .indices = indices, .n = n, .inner = inner, .k = k,
                     .order = largest ? CV_SORT_LARGEST : CV_SORT_ASCENDING};
  CV_SORT_FN_(_run)(&job, outer);
}

static __attribute__((unused)) void CV_SORT_FN_(_search)(void *arg, int64_t begin, int64_t end, int worker) {
  const cv_sort_job *job = (const cv_sort_job *)arg;
  (void)worker;
  for (int64_t i = begin; i < end; i++) {
    const CV_SORT_ELEM_ *row = (const CV_SORT_ELEM_ *)job->x + i / job->k * job->n;
    uint64_t needle = CV_SORT_KEY_((const CV_SORT_ELEM_ *)job->needles + i);
    int64_t low = 0, count = job->n;
    while (count > 0) {
      int64_t half = count >> 1;
      uint64_t key = CV_SORT_KEY_(row + low + half);
      int go = job->order ? key <= needle : key < needle;
      low = go ? low + half + 1 : low;
      count = go ? count - half - 1 : half;
    }
    job->indices[i] = low;
  }
}

/* sorted [rows, n], values [rows, m] -> out [rows, m]; a single sorted sequence is rows = 1. */
static __attribute__((unused)) void CV_SORT_FN_(_searchsorted)(cv_ctx *ctx, const void *sorted, const void *values,
                                                               int64_t *out, int64_t rows, int64_t n, int64_t m,
                                                               int right) {
  cv_sort_job job = {.ctx = ctx, .x = sorted, .needles = values, .indices = out, .n = n, .inner = 1, .k = m,
                     .order = right};
  if (rows * m > 0) cv_parallel(ctx, rows * m, 2048, CV_SORT_FN_(_search), &job);
}

#undef CV_SORT_FN_
#undef CV_SORT_ELEM_
#undef CV_SORT_M_
#undef CV_SORT_R_
#undef CV_SORT_V_
#undef CV_SORT_ON_
#undef CV_SORT_KEY_
#undef CV_SORT_BITS_
#undef CV_SORT_WIDE_
#undef CV_SORT_NAME
#undef CV_SORT_DT
