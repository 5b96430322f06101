/* Scaled dot-product attention, forward: out = softmax(scale * q k^T [masked]) v, blocked with an online softmax.
 *
 * Set before including (all are reset at the end, so the header can be included again):
 *   CV_ATTENTION_NAME   name of the generated function
 *   CV_ATTENTION_DT     dtype short of q, k, v and out: f32 f16 bf16 (computed in float32) or f64
 *   CV_ATTENTION_MASK   dtype short of the mask: bool (true attends) or f32 f64 f16 bf16 (added to the scaled scores);
 *                       leave undefined where there is none
 *
 *   void NAME(cv_ctx *ctx, const cv_attention *args)
 *
 * Values: a row whose every key is masked is NaN (0 / 0, as softmax of all -inf); NaN in a row's scores makes the
 * row NaN; a masked key still multiplies its value by zero, so an infinite or NaN value shows in every row, as in the
 * written-out formula; no finite input overflows on the way. No keys at all gives zeros.
 *
 * Method: query rows lie in tiles of the micro-kernels' columns (query heads that share a key/value head are stacked as
 * rows). A worker takes some tiles of one key/value head at a time and goes through the keys in blocks, which it packs
 * once for all of them. Lanes are queries: scores lie transposed [key][query], so that the row maximum and sum are
 * lane-wise and both products, k q^T and v^T p^T, run on the micro-kernels of matrix products.
 * Four rows or fewer (decoding) take another way: k and v are read in place, lanes run along the depth, and where there
 * are few heads the keys are divided too.
 */
#include "cuvil/element.h"
#include "cuvil/math.h"
#include "cuvil/microkernel.h"
#include "cuvil/runtime.h"
#include "cuvil/transpose.h"
#include "cuvil/vec.h"

#ifndef CUVIL_ATTENTION_H
#define CUVIL_ATTENTION_H

typedef struct cv_attention {
  const void *q;    /* [batch, heads, queries, depth] */
  const void *k;    /* [batch, kv_heads, keys, depth] */
  const void *v;    /* [batch, kv_heads, keys, value_depth] */
  const void *mask; /* broadcast by strides to [batch, heads, queries, keys]; NULL without CV_ATTENTION_MASK */
  void *out;        /* [batch, heads, queries, value_depth] */
  int64_t batch, heads, kv_heads, queries, keys, depth, value_depth; /* heads % kv_heads == 0 */
  int64_t q_stride[4], k_stride[4], v_stride[4], mask_stride[4], out_stride[4]; /* in elements, may be 0 or negative */
  double scale;
  int causal; /* query i sees keys j <= i */
} cv_attention;

/* Keys per block: the scores of a tile take 32 KiB of float32 on AVX-512. */
#define CV_ATTENTION_KEYS 256
/* Tiles that share a packed block of keys, and bytes of their queries and results: half of a second-level cache. */
#define CV_ATTENTION_TILES 16
#define CV_ATTENTION_TILE_BYTES (512 * 1024)
#define CV_ATTENTION_FEW 4
/* Keys of a task on the way for few rows, where there are fewer heads than CV_ATTENTION_HEADS. */
#define CV_ATTENTION_SPLIT 512
#define CV_ATTENTION_HEADS 16

CV_INLINE int64_t cv_attention_round(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/* A power of two <= 1/keys: weights scaled by it sum to at most 1, so no sum of finite values overflows. */
CV_INLINE double cv_attention_shrink(int64_t keys) {
  double c = 1;
  for (int64_t n = 1; n < keys; n *= 2) c *= 0.5;
  return c;
}

CV_INLINE int64_t cv_attention_min(int64_t a, int64_t b) { return a < b ? a : b; }

/* shrink * e^x for x <= 0 or NaN, to 2^-23: of weights that are divided by their sum, more is not seen. One degree and
 * one part of ln2 less than cv_exp_f32, no upper bound, and the scale is in the coefficients. What would be subnormal
 * is zero: a masked score is -inf, and an instruction that underflows takes a hundred cycles. */
typedef struct { cv_vf32 c0, c2, c3, c4, c5, least; } cv_attention_exp_f32;
CV_INLINE cv_attention_exp_f32 cv_attention_exp_init_f32(float shrink) {
  int exponent = (int)(cv_elem_bits_f32(shrink) >> 23) - 127;
  return (cv_attention_exp_f32){cvi_all_f32(shrink), cvi_all_f32(0x1.fffdfcp-2f * shrink),
                                cvi_all_f32(0x1.5557aep-3f * shrink), cvi_all_f32(0x1.572a1ep-5f * shrink),
                                cvi_all_f32(0x1.10626ep-7f * shrink),
                                cvi_all_f32((float)(-125 - exponent) * 0x1.62e43p-1f)};
}
CV_INLINE cv_vf32 cv_attention_weight_f32(const cv_attention_exp_f32 *e, cv_vf32 x) {
#if !CVI_GCC_AVX512
  cv_vi32 small = x < e->least;
  x = cvi_gtsel_f32(e->least, x);
#endif
  cv_vf32 n = cvi_nearest_f32(x * 0x1.715476p+0f);
  cv_vf32 r = x - n * 0x1.62e43p-1f;
  cv_vf32 p = e->c0 + r * (e->c0 + r * (e->c2 + r * (e->c3 + r * (e->c4 + r * e->c5))));
#if CVI_GCC_AVX512
  /* Lanes that are not less (comparison 5), NaN among them. */
  return __builtin_ia32_scalefps512_mask(p, n, (cv_vf32){}, __builtin_ia32_cmpps512_mask(x, e->least, 5, -1, 4), 4);
#else
  return cvi_blend_f32(small, (cv_vf32){}, cvi_scale_f32(p, n));
#endif
}
typedef struct { cv_vf64 shrink; } cv_attention_exp_f64;
CV_INLINE cv_attention_exp_f64 cv_attention_exp_init_f64(double shrink) {
  return (cv_attention_exp_f64){cv_splat_f64(shrink)};
}
CV_INLINE cv_vf64 cv_attention_weight_f64(const cv_attention_exp_f64 *e, cv_vf64 x) {
  return cv_mul_f64(cv_exp_f64(x), e->shrink);
}

#endif /* CUVIL_ATTENTION_H */

#define CV_ATTENTION_FN_(suffix) CV_ELEM_PASTE(CV_ATTENTION_NAME, suffix)
#define CV_ATTENTION_R_ CV_ELEM_REG(CV_ATTENTION_DT) /* f32 or f64 */
#define CV_ATTENTION_SINGLE_ (CV_ELEM_ID(CV_ATTENTION_R_) == CV_ELEM_ID_f32)
#define CV_ATTENTION_MEM_ CV_ELEM_PASTE(cv_elem_, CV_ATTENTION_DT)
#define CV_ATTENTION_T_ CV_ELEM_PASTE(cv_elem_, CV_ATTENTION_R_)
#define CV_ATTENTION_V_ CV_ELEM_PASTE(cv_v, CV_ATTENTION_R_)
#define CV_ATTENTION_OP_(stem) CV_ELEM_PASTE(stem, CV_ATTENTION_R_)
#define CV_ATTENTION_NR_ CV_ELEM_PASTE(CV_NR_, CV_ATTENTION_R_) /* query rows of a tile */
#define CV_ATTENTION_PLAIN_ (CV_ELEM_ID(CV_ATTENTION_DT) == CV_ELEM_ID(CV_ATTENTION_R_))
#ifdef CV_ATTENTION_MASK
#define CV_ATTENTION_MASKED_ 1
#define CV_ATTENTION_BOOLEAN_ CV_ELEM_IS_BOOL(CV_ATTENTION_MASK)
#define CV_ATTENTION_MT_ CV_ELEM_PASTE(cv_elem_, CV_ATTENTION_MASK)
#define CV_ATTENTION_MGET_ CV_ELEM_PASTE(cv_elem_get_, CV_ATTENTION_MASK)
#else
#define CV_ATTENTION_MASKED_ 0
#define CV_ATTENTION_BOOLEAN_ 0
#endif

/* Where the rows of one key/value head lie: row r is query r % queries of query head group * g + r / queries. */
typedef struct CV_ATTENTION_FN_(_job) {
  cv_ctx *ctx;
  const cv_attention *a;
  int64_t group, rows, tiles; /* tiles of a key/value head */
  int64_t value_rows;         /* rows of v^T in a micro-kernel's tile */
  int64_t splits;             /* few rows: parts that the keys are divided into */
  CV_ATTENTION_T_ *partial;   /* few rows: results of the parts, [head][split][row][value room + 2] */
} CV_ATTENTION_FN_(_job);

/* n elements with any stride as compute type, followed by zeros up to room. */
CV_INLINE void CV_ATTENTION_FN_(_fetch)(const CV_ATTENTION_MEM_ *src, int64_t stride, int64_t n, int64_t room,
                                        CV_ATTENTION_T_ *dst) {
  if (stride == 1) {
    int64_t i = 0;
    for (; i + CV_LANES <= n; i += CV_LANES)
      CV_ATTENTION_OP_(cv_store_)(dst + i, CV_ELEM_PASTE(cv_load_, CV_ATTENTION_DT)(src + i));
    if (i < room) CV_ATTENTION_OP_(cv_store_)(dst + i, CV_ELEM_PASTE(cv_load_part_, CV_ATTENTION_DT)(src + i, n - i));
    return;
  }
  for (int64_t i = 0; i < n; i++) dst[i] = CV_ELEM_PASTE(cv_elem_get_, CV_ATTENTION_DT)(src + i * stride);
  for (int64_t i = n; i < room; i++) dst[i] = 0;
}

CV_INLINE void CV_ATTENTION_FN_(_put)(CV_ATTENTION_MEM_ *dst, int64_t stride, int64_t n, const CV_ATTENTION_T_ *src) {
  int64_t i = 0;
  if (stride == 1) {
    for (; i + CV_LANES <= n; i += CV_LANES)
      CV_ELEM_PASTE(cv_store_, CV_ATTENTION_DT)(dst + i, CV_ATTENTION_OP_(cv_load_)(src + i));
    if (i < n) CV_ELEM_PASTE(cv_store_part_, CV_ATTENTION_DT)(dst + i, CV_ATTENTION_OP_(cv_load_)(src + i), n - i);
    return;
  }
  for (; i < n; i++) CV_ELEM_PASTE(cv_elem_put_, CV_ATTENTION_DT)(dst + i * stride, src[i]);
}

/* CV_LANES rows of src, of `columns` elements rounded up to whole vectors, become columns: to[c] gets the c-th elements
 * of all rows times factor. */
#define CV_ATTENTION_TURN_(src, src_row, columns, to, factor)                                            \
  do {                                                                                                   \
    for (int64_t c0_ = 0; c0_ < (columns); c0_ += CV_LANES) {                                            \
      CV_ATTENTION_T_ turned_[CV_LANES][CV_LANES] __attribute__((aligned(64)));                          \
      CV_ATTENTION_FN_(_turn)((src) + c0_, src_row, turned_, factor);                                    \
      int n_ = (int)cv_attention_min(CV_LANES, (columns) - c0_);                                         \
      for (int l_ = 0; l_ < n_; l_++) {                                                                  \
        int64_t c = c0_ + l_;                                                                            \
        CV_ATTENTION_OP_(cv_store_)(to, CV_ATTENTION_OP_(cv_load_)(turned_[l_]));                        \
      }                                                                                                  \
    }                                                                                                    \
  } while (0)
CV_INLINE void CV_ATTENTION_FN_(_turn)(const CV_ATTENTION_T_ *src, int64_t src_row,
                                       CV_ATTENTION_T_ turned[CV_LANES][CV_LANES], CV_ATTENTION_T_ factor) {
#if CV_ATTENTION_SINGLE_
  cv_vf32 v[CV_LANES];
  _Pragma("GCC unroll 16") for (int r = 0; r < CV_LANES; r++) v[r] = cv_load_f32(src + r * src_row);
  cv_transpose_f32(v);
  _Pragma("GCC unroll 16") for (int r = 0; r < CV_LANES; r++) cv_store_f32(turned[r], v[r] * factor);
#else
  for (int r = 0; r < CV_LANES; r++)
    for (int c = 0; c < CV_LANES; c++) turned[c][r] = src[r * src_row + c] * factor;
#endif
}

/* The micro-kernel for a tile of rows whose columns are used up to `used`. */
CV_INLINE cv_microkernel CV_ATTENTION_FN_(_kernel)(const CV_ATTENTION_FN_(_job) *job, int64_t rows, int64_t used) {
#if CV_ATTENTION_SINGLE_
  if (used <= CV_NR_f32 / 2) return job->ctx->microkernels->half_f32[rows - 1];
#endif
  (void)used;
  return job->ctx->microkernels->CV_ELEM_PASTE(full_, CV_ATTENTION_R_)[rows - 1];
}

/* ------------------------------------------------------------------ tiles of query rows */

typedef struct CV_ATTENTION_FN_(_tile) {
  CV_ATTENTION_T_ *q;     /* [depth][NR], scaled */
  CV_ATTENTION_T_ *o;     /* [value_depth][NR] */
  CV_ATTENTION_T_ *max;   /* [NR] */
  CV_ATTENTION_T_ *sum;   /* [NR] */
  int64_t *query;         /* [NR] query number of each row */
  int64_t *mask;          /* [NR] mask offset of each row */
  int64_t row;            /* the first row */
  int64_t first, last;    /* least and greatest query number */
  int rows, used;         /* rows in use; the same in whole vectors */
  int same_mask;          /* every row has the same mask offset */
  int begun;              /* o holds something */
} CV_ATTENTION_FN_(_tile);

static __attribute__((unused)) void CV_ATTENTION_FN_(_load_tile)(const CV_ATTENTION_FN_(_job) *job,
                                                                 CV_ATTENTION_FN_(_tile) *t, int64_t b, int64_t kv,
                                                                 int64_t row, CV_ATTENTION_T_ *temporary) {
  const cv_attention *a = job->a;
  int64_t room = cv_attention_round(a->depth, CV_LANES);
  t->row = row;
  t->rows = (int)cv_attention_min(job->rows - row, CV_ATTENTION_NR_);
  t->used = (int)cv_attention_round(t->rows, CV_LANES);
  t->first = INT64_MAX;
  t->last = -1;
  t->same_mask = 1;
  t->begun = 0;
  for (int r = 0; r < CV_ATTENTION_NR_; r++) {
    /* Rows past the end have the place of the last one and zeros for a query: computed, never stored. */
    int64_t at = row + (r < t->rows ? r : t->rows - 1);
    int64_t i = at % a->queries, h = kv * job->group + at / a->queries;
    t->query[r] = i;
    t->first = i < t->first ? i : t->first;
    t->last = i > t->last ? i : t->last;
    t->mask[r] = b * a->mask_stride[0] + h * a->mask_stride[1] + i * a->mask_stride[2];
    t->same_mask &= t->mask[r] == t->mask[0];
    t->max[r] = -__builtin_inff();
    t->sum[r] = 0;
  }
  for (int r0 = 0; r0 < t->used; r0 += CV_LANES) {
    for (int r = 0; r < CV_LANES; r++) {
      int64_t at = row + r0 + r, i = t->query[r0 + r], h = kv * job->group + at / a->queries;
      const CV_ATTENTION_MEM_ *q = (const CV_ATTENTION_MEM_ *)a->q + b * a->q_stride[0] + h * a->q_stride[1] +
                                   i * a->q_stride[2];
      if (r0 + r < t->rows)
        CV_ATTENTION_FN_(_fetch)(q, a->q_stride[3], a->depth, room, temporary + r * room);
      else
        memset(temporary + r * room, 0, (size_t)room * sizeof *temporary);
    }
    CV_ATTENTION_TURN_(temporary, room, a->depth, t->q + c * CV_ATTENTION_NR_ + r0, (CV_ATTENTION_T_)a->scale);
  }
}

#if CV_ATTENTION_MASKED_
/* Mask values of keys [j0, j0 + n) and all rows of a tile, as numbers (boolean: 0 where a key is hidden), [key][NR]. */
static __attribute__((unused)) void CV_ATTENTION_FN_(_turn_mask)(const cv_attention *a,
                                                                 const CV_ATTENTION_FN_(_tile) *t,
                                                                 CV_ATTENTION_T_ *turned, int64_t j0, int64_t n) {
  const CV_ATTENTION_MT_ *mask = (const CV_ATTENTION_MT_ *)a->mask + j0 * a->mask_stride[3];
#if CV_ATTENTION_SINGLE_ && CV_ELEM_ID(CV_ATTENTION_MASK) != CV_ELEM_ID_f64
  if (a->mask_stride[3] == 1) {
    for (int r0 = 0; r0 < t->used; r0 += CV_LANES) {
      for (int64_t j = 0; j < n; j += CV_LANES) {
        cv_vf32 v[CV_LANES];
        int64_t live = cv_attention_min(CV_LANES, n - j);
        _Pragma("GCC unroll 16") for (int r = 0; r < CV_LANES; r++) {
#if CV_ATTENTION_BOOLEAN_
          v[r] = (cv_vf32)cv_load_part_bool(mask + t->mask[r0 + r] + j, live); /* bits of 0 or NaN */
#else
          v[r] = CV_ELEM_PASTE(cv_load_part_, CV_ATTENTION_MASK)(mask + t->mask[r0 + r] + j, live);
#endif
        }
        cv_transpose_f32(v);
        for (int l = 0; l < live; l++) cv_store_f32(turned + (j + l) * CV_ATTENTION_NR_ + r0, v[l]);
      }
    }
    return;
  }
#endif
  for (int r = 0; r < t->used; r++)
    for (int64_t j = 0; j < n; j++)
      turned[j * CV_ATTENTION_NR_ + r] =
          (CV_ATTENTION_T_)CV_ATTENTION_MGET_(mask + t->mask[r] + j * a->mask_stride[3]);
}
#endif

/* Scores [key][NR] of n keys from j0 on: mask them. turned has room for as many mask values. */
static __attribute__((unused)) void CV_ATTENTION_FN_(_mask_tile)(const cv_attention *a,
                                                                 const CV_ATTENTION_FN_(_tile) *t,
                                                                 CV_ATTENTION_T_ *s, CV_ATTENTION_T_ *turned,
                                                                 int64_t j0, int64_t n) {
  const CV_ATTENTION_V_ hidden = CV_ATTENTION_OP_(cv_splat_)(-__builtin_inff());
  int used = t->used;
  (void)turned;
#if CV_ATTENTION_MASKED_
  if (t->same_mask) {
    const CV_ATTENTION_MT_ *mask = (const CV_ATTENTION_MT_ *)a->mask + t->mask[0] + j0 * a->mask_stride[3];
    for (int64_t j = 0; j < n; j++) {
      CV_ATTENTION_T_ *p = s + j * CV_ATTENTION_NR_;
#if CV_ATTENTION_BOOLEAN_
      if (mask[j * a->mask_stride[3]]) continue;
      for (int r = 0; r < used; r += CV_LANES) CV_ATTENTION_OP_(cv_store_)(p + r, hidden);
#else
      CV_ATTENTION_V_ m =
          CV_ATTENTION_OP_(cv_splat_)((CV_ATTENTION_T_)CV_ATTENTION_MGET_(mask + j * a->mask_stride[3]));
      for (int r = 0; r < used; r += CV_LANES)
        CV_ATTENTION_OP_(cv_store_)(p + r, CV_ATTENTION_OP_(cv_add_)(CV_ATTENTION_OP_(cv_load_)(p + r), m));
#endif
    }
  } else {
    CV_ATTENTION_FN_(_turn_mask)(a, t, turned, j0, n);
    for (int64_t j = 0; j < n; j++) {
      for (int r = 0; r < used; r += CV_LANES) {
        CV_ATTENTION_T_ *p = s + j * CV_ATTENTION_NR_ + r;
        CV_ATTENTION_V_ m = CV_ATTENTION_OP_(cv_load_)(turned + j * CV_ATTENTION_NR_ + r);
        CV_ATTENTION_V_ x = CV_ATTENTION_OP_(cv_load_)(p);
#if CV_ATTENTION_BOOLEAN_
        x = CV_ATTENTION_OP_(cv_select_)(CV_ATTENTION_OP_(cv_eq_)(m, CV_ATTENTION_OP_(cv_splat_)(0)), hidden, x);
#else
        x = CV_ATTENTION_OP_(cv_add_)(x, m);
#endif
        CV_ATTENTION_OP_(cv_store_)(p, x);
      }
    }
  }
#endif
  if (a->causal && j0 + n - 1 > t->first) {
    for (int r = 0; r < used; r += CV_LANES) {
      int32_t lanes[CV_LANES]; /* keys of this block that the row sees */
      int64_t all = n;         /* keys that every row sees */
      for (int l = 0; l < CV_LANES; l++) {
        int64_t seen = t->query[r + l] + 1 - j0;
        lanes[l] = (int32_t)(seen < 0 ? 0 : seen > n ? n : seen);
        all = cv_attention_min(all, lanes[l]);
      }
      cv_vi32 seen = cv_load_i32(lanes);
      for (int64_t j = all; j < n; j++) {
        CV_ATTENTION_T_ *p = s + j * CV_ATTENTION_NR_ + r;
        cv_vbool c = cv_gt_i32(seen, cv_splat_i32((int32_t)j));
        CV_ATTENTION_OP_(cv_store_)(p, CV_ATTENTION_OP_(cv_select_)(c, CV_ATTENTION_OP_(cv_load_)(p), hidden));
      }
    }
  }
}

/* Scores to weights, in place; the running maximum, sum and output follow. */
static __attribute__((unused)) void CV_ATTENTION_FN_(_weigh_tile)(const CV_ATTENTION_FN_(_tile) *t,
                                                                  CV_ATTENTION_T_ *s, int64_t n, int64_t values,
                                                                  CV_ATTENTION_T_ shrink) {
  enum { NR = CV_ATTENTION_NR_, CHAINS = 4 };
  const CV_ATTENTION_V_ nothing = CV_ATTENTION_OP_(cv_splat_)(-__builtin_inff()), zero = CV_ATTENTION_OP_(cv_splat_)(0);
  const CV_ELEM_PASTE(cv_attention_exp_, CV_ATTENTION_R_) e = CV_ATTENTION_OP_(cv_attention_exp_init_)(shrink);
  for (int r = 0; r < t->used; r += CV_LANES) {
    CV_ATTENTION_V_ before = CV_ATTENTION_OP_(cv_load_)(t->max + r), m[CHAINS];
    for (int i = 0; i < CHAINS; i++) m[i] = before;
    /* NaN never becomes the maximum; its weight is NaN all the same. */
#define CV_ATTENTION_MAX_(x, m) CV_ATTENTION_OP_(cv_select_)(CV_ATTENTION_OP_(cv_gt_)(x, m), x, m)
    int64_t j = 0;
    for (; j + CHAINS <= n; j += CHAINS)
      _Pragma("GCC unroll 4") for (int i = 0; i < CHAINS; i++) {
        CV_ATTENTION_V_ x = CV_ATTENTION_OP_(cv_load_)(s + (j + i) * NR + r);
        m[i] = CV_ATTENTION_MAX_(x, m[i]);
      }
    for (; j < n; j++) {
      CV_ATTENTION_V_ x = CV_ATTENTION_OP_(cv_load_)(s + j * NR + r);
      m[0] = CV_ATTENTION_MAX_(x, m[0]);
    }
    m[0] = CV_ATTENTION_MAX_(m[1], m[0]);
    m[2] = CV_ATTENTION_MAX_(m[3], m[2]);
    CV_ATTENTION_V_ max = CV_ATTENTION_MAX_(m[2], m[0]);
    CV_ATTENTION_OP_(cv_store_)(t->max + r, max);
    /* With nothing seen yet every weight is exp(-inf - 0) = 0, never exp(-inf + inf). */
    max = CV_ATTENTION_OP_(cv_select_)(CV_ATTENTION_OP_(cv_eq_)(max, nothing), zero, max);
    CV_ATTENTION_V_ sum[2] = {zero, zero};
    if (t->begun) {
      CV_ATTENTION_V_ fade = CV_ATTENTION_OP_(cv_exp_)(CV_ATTENTION_OP_(cv_sub_)(before, max));
      sum[0] = CV_ATTENTION_OP_(cv_mul_)(CV_ATTENTION_OP_(cv_load_)(t->sum + r), fade);
      if (cv_hor(CV_ATTENTION_OP_(cv_ne_)(fade, CV_ATTENTION_OP_(cv_splat_)(1))))
        for (int64_t d = 0; d < values; d++) {
          CV_ATTENTION_T_ *o = t->o + d * NR + r;
          CV_ATTENTION_OP_(cv_store_)(o, CV_ATTENTION_OP_(cv_mul_)(CV_ATTENTION_OP_(cv_load_)(o), fade));
        }
    }
    CV_ATTENTION_T_ *p = s + r;
    for (j = 0; j + 2 <= n; j += 2, p += 2 * NR)
      _Pragma("GCC unroll 2") for (int i = 0; i < 2; i++) {
        CV_ATTENTION_V_ x = CV_ATTENTION_OP_(cv_sub_)(CV_ATTENTION_OP_(cv_load_)(p + i * NR), max);
        x = CV_ATTENTION_OP_(cv_attention_weight_)(&e, x);
        CV_ATTENTION_OP_(cv_store_)(p + i * NR, x);
        sum[i] = CV_ATTENTION_OP_(cv_add_)(sum[i], x);
      }
    if (j < n) {
      CV_ATTENTION_V_ x = CV_ATTENTION_OP_(cv_sub_)(CV_ATTENTION_OP_(cv_load_)(p), max);
      x = CV_ATTENTION_OP_(cv_attention_weight_)(&e, x);
      CV_ATTENTION_OP_(cv_store_)(p, x);
      sum[0] = CV_ATTENTION_OP_(cv_add_)(sum[0], x);
    }
    CV_ATTENTION_OP_(cv_store_)(t->sum + r, CV_ATTENTION_OP_(cv_add_)(sum[0], sum[1]));
  }
}

/* Rows of a tile of keys of a block of n: almost equal, at most CV_MR. */
CV_INLINE int64_t CV_ATTENTION_FN_(_key_rows)(int64_t n) {
  int64_t tiles = (n + CV_MR - 1) / CV_MR;
  return (n + tiles - 1) / tiles;
}

/* Packs n rows of v, transposed: tiles of rows of v^T, [chunk][row][CV_CHUNK]. Returns whether all is finite. */
static __attribute__((unused)) int CV_ATTENTION_FN_(_pack_values)(const CV_ATTENTION_FN_(_job) *job,
                                                                  const CV_ATTENTION_MEM_ *v, int64_t n,
                                                                  CV_ATTENTION_T_ *packed, const int64_t *place,
                                                                  CV_ATTENTION_T_ *temporary) {
  const cv_attention *a = job->a;
  int64_t values = a->value_depth, room = cv_attention_round(values, CV_LANES);
  CV_ATTENTION_V_ naught = CV_ATTENTION_OP_(cv_splat_)(0);
  const CV_ATTENTION_V_ zero = naught;
  for (int64_t j = 0; j < n; j += CV_LANES) {
    for (int l = 0; l < CV_LANES; l++) {
      CV_ATTENTION_T_ *to = temporary + l * room;
      if (j + l < n)
        CV_ATTENTION_FN_(_fetch)(v + (j + l) * a->v_stride[2], a->v_stride[3], values, room, to);
      else
        memset(to, 0, (size_t)room * sizeof *to);
      if (a->causal)
        for (int64_t d = 0; d < room; d += CV_LANES)
          naught = CV_ATTENTION_OP_(cv_add_)(
              naught, CV_ATTENTION_OP_(cv_mul_)(CV_ATTENTION_OP_(cv_load_)(to + d), zero));
    }
    int64_t chunk = j / CV_CHUNK, within = j % CV_CHUNK;
    CV_ATTENTION_TURN_(temporary, room, values, packed + place[2 * c] + chunk * place[2 * c + 1] + within, 1);
  }
  return !cv_hor(CV_ATTENTION_OP_(cv_ne_)(naught, zero));
}

static __attribute__((unused)) void CV_ATTENTION_FN_(_pack_keys)(const cv_attention *a, const CV_ATTENTION_MEM_ *k,
                                                                 int64_t n, CV_ATTENTION_T_ *packed) {
  int64_t rows = CV_ATTENTION_FN_(_key_rows)(n), room = cv_attention_round(a->depth, CV_CHUNK);
  for (int64_t j = 0; j < n; j++) {
    int64_t first = j / rows * rows, height = cv_attention_min(rows, n - first);
    const CV_ATTENTION_MEM_ *from = k + j * a->k_stride[2];
    CV_ATTENTION_T_ *to = packed + first * room + (j - first) * CV_CHUNK;
    for (int64_t d = 0; d < a->depth; d += CV_CHUNK) {
      int64_t length = cv_attention_min(CV_CHUNK, a->depth - d);
      CV_ATTENTION_FN_(_fetch)(from + d * a->k_stride[3], a->k_stride[3], length,
                               cv_attention_round(length, CV_LANES), to + d * height);
    }
  }
}

static __attribute__((unused)) void CV_ATTENTION_FN_(_store_tile)(const CV_ATTENTION_FN_(_job) *job,
                                                                  const CV_ATTENTION_FN_(_tile) *t, int64_t b,
                                                                  int64_t kv, CV_ATTENTION_T_ *temporary) {
  enum { NR = CV_ATTENTION_NR_ };
  const cv_attention *a = job->a;
  int64_t values = a->value_depth, room = cv_attention_round(values, CV_LANES);
  for (int r0 = 0; r0 < t->used; r0 += CV_LANES) {
    CV_ATTENTION_V_ inverse =
        CV_ATTENTION_OP_(cv_div_)(CV_ATTENTION_OP_(cv_splat_)(1), CV_ATTENTION_OP_(cv_load_)(t->sum + r0));
    for (int64_t d = 0; d < values; d++) {
      CV_ATTENTION_T_ *o = t->o + d * NR + r0;
      CV_ATTENTION_OP_(cv_store_)(o, CV_ATTENTION_OP_(cv_mul_)(CV_ATTENTION_OP_(cv_load_)(o), inverse));
    }
    for (int64_t d = 0; d < room; d += CV_LANES)
      CV_ATTENTION_TURN_(t->o + d * NR + r0, NR, CV_LANES, temporary + c * room + d, 1);
    for (int r = 0; r < CV_LANES && r0 + r < t->rows; r++) {
      int64_t at = t->row + r0 + r, h = kv * job->group + at / a->queries;
      CV_ATTENTION_MEM_ *out = (CV_ATTENTION_MEM_ *)a->out + b * a->out_stride[0] + h * a->out_stride[1] +
                               t->query[r0 + r] * a->out_stride[2];
      CV_ATTENTION_FN_(_put)(out, a->out_stride[3], values, temporary + r * room);
    }
  }
}

/* Elements of a tile's state. o has whole vectors of rows, for transposing. */
CV_INLINE int64_t CV_ATTENTION_FN_(_tile_words)(const cv_attention *a) {
  int64_t rows = a->depth + cv_attention_round(a->value_depth, CV_LANES) + 2;
  return cv_attention_round(rows * CV_ATTENTION_NR_, 64);
}

/* Tile numbers [begin, end) count the tiles of all key/value heads; under a causal mask later tiles of a head cost more,
 * so they are taken from both ends by turns and any range of them costs alike. */
static __attribute__((unused)) void CV_ATTENTION_FN_(_tiles)(void *arg, int64_t begin, int64_t end, int worker) {
  enum { NR = CV_ATTENTION_NR_, KEYS = CV_ATTENTION_KEYS };
  const CV_ATTENTION_FN_(_job) *job = (const CV_ATTENTION_FN_(_job) *)arg;
  const cv_attention *a = job->a;
  int64_t depth = a->depth, room = cv_attention_round(depth, CV_CHUNK), values = a->value_depth;
  int64_t wide = cv_attention_round(depth > values ? depth : values, CV_LANES);
  int64_t per_tile = CV_ATTENTION_FN_(_tile_words)(a);
  int64_t most = CV_ATTENTION_TILE_BYTES / (per_tile * (int64_t)sizeof(CV_ATTENTION_T_));
  most = most < 1 ? 1 : cv_attention_min(most, CV_ATTENTION_TILES);
  int64_t block = cv_attention_min(a->keys, KEYS), chunked = cv_attention_round(block, CV_CHUNK);
  size_t words = (size_t)(block * NR * (1 + CV_ATTENTION_MASKED_) + block * room + chunked * values +
                          CV_LANES * wide + most * per_tile);
  char *scratch = (char *)cv_scratch(job->ctx, worker, words * sizeof(CV_ATTENTION_T_) +
                                                           (size_t)(most * 2 * NR + 2 * values) * sizeof(int64_t));
  if (!scratch) return;
  CV_ATTENTION_T_ *s = (CV_ATTENTION_T_ *)scratch, *turned = s + block * NR;
  CV_ATTENTION_T_ *temporary = turned + block * NR * CV_ATTENTION_MASKED_, *states = temporary + CV_LANES * wide;
  CV_ATTENTION_T_ *k = states + most * per_tile, *v = k + block * room;
  int64_t *place = (int64_t *)(scratch + words * sizeof(CV_ATTENTION_T_)), *integers = place + 2 * values;
  CV_ATTENTION_FN_(_tile) tile[CV_ATTENTION_TILES];
  for (int64_t i = 0; i < most; i++) {
    tile[i].max = states + i * per_tile;
    tile[i].sum = tile[i].max + NR;
    tile[i].q = tile[i].sum + NR;
    tile[i].o = tile[i].q + depth * NR;
    tile[i].query = integers + i * 2 * NR;
    tile[i].mask = tile[i].query + NR;
  }
  /* Of each row of packed v^T: its offset and the distance of its chunks. */
  for (int64_t d = 0; d < values; d++) {
    int64_t first = d / job->value_rows * job->value_rows, rows = cv_attention_min(job->value_rows, values - first);
    place[2 * d] = first * chunked + (d - first) * CV_CHUNK;
    place[2 * d + 1] = rows * CV_CHUNK;
  }
  const CV_ATTENTION_T_ shrink = (CV_ATTENTION_T_)cv_attention_shrink(a->keys);
  while (begin < end) {
    int64_t head = begin / job->tiles, b = head / a->kv_heads, kv = head % a->kv_heads, first = begin % job->tiles;
    int64_t count = cv_attention_min(cv_attention_min(end - begin, job->tiles - first), most);
    int64_t last = -1; /* greatest query number of these tiles */
    for (int64_t i = 0; i < count; i++) {
      int64_t at = first + i;
      if (a->causal) at = at % 2 ? job->tiles - 1 - at / 2 : at / 2;
      CV_ATTENTION_FN_(_load_tile)(job, &tile[i], b, kv, at * NR, temporary);
      last = tile[i].last > last ? tile[i].last : last;
    }
    const CV_ATTENTION_MEM_ *keys = (const CV_ATTENTION_MEM_ *)a->k + b * a->k_stride[0] + kv * a->k_stride[1];
    const CV_ATTENTION_MEM_ *vals = (const CV_ATTENTION_MEM_ *)a->v + b * a->v_stride[0] + kv * a->v_stride[1];
    for (int64_t j0 = 0; j0 < a->keys; j0 += KEYS) {
      int64_t n = cv_attention_min(a->keys - j0, KEYS), key_rows = CV_ATTENTION_FN_(_key_rows)(n);
      /* A block that no row of a tile sees adds zero times its values: nothing, where they are finite. */
      int finite = CV_ATTENTION_FN_(_pack_values)(job, vals + j0 * a->v_stride[2], n, v, place, temporary);
      if (a->causal && finite && j0 > last) continue;
      CV_ATTENTION_FN_(_pack_keys)(a, keys + j0 * a->k_stride[2], n, k);
      for (int64_t i = 0; i < count; i++) {
        CV_ATTENTION_FN_(_tile) *t = &tile[i];
        if (a->causal && finite && j0 > t->last) continue;
        for (int64_t j = 0; j < n; j += key_rows) {
          int64_t rows = cv_attention_min(key_rows, n - j);
          CV_ATTENTION_FN_(_kernel)(job, rows, t->used)(depth, k + j * room, t->q, NR, 0, s + j * NR, 0,
                                                        k + (j + rows) * room, 64);
        }
        CV_ATTENTION_FN_(_mask_tile)(a, t, s, turned, j0, n);
        CV_ATTENTION_FN_(_weigh_tile)(t, s, n, values, shrink);
        for (int64_t d = 0; d < values; d += job->value_rows) {
          int64_t rows = cv_attention_min(job->value_rows, values - d);
          CV_ATTENTION_FN_(_kernel)(job, rows, t->used)(n, v + d * chunked, s, NR, 0, t->o + d * NR, t->begun,
                                                        v + (d + rows) * chunked, 64);
        }
        t->begun = 1;
      }
    }
    for (int64_t i = 0; i < count; i++) CV_ATTENTION_FN_(_store_tile)(job, &tile[i], b, kv, temporary);
    begin += count;
  }
}

/* ------------------------------------------------------------------ few rows: decoding */

/* Scores of `rows` rows and up to CV_LANES keys: lane i of row r goes to s[r * KEYS + i]. Depth is rounded up to whole
 * vectors, both sides padded with zeros. */
CV_INLINE void CV_ATTENTION_FN_(_scores)(const CV_ATTENTION_T_ *q, const CV_ATTENTION_T_ *k, int64_t k_row, int rows,
                                         int64_t n, int64_t room, CV_ATTENTION_T_ *s) {
  for (int r = 0; r < rows; r++, q += room, s += CV_ATTENTION_KEYS) {
#if CV_ATTENTION_SINGLE_
    if (n >= CV_LANES) {
      cv_vf32 sum[CV_LANES];
      _Pragma("GCC unroll 16") for (int i = 0; i < CV_LANES; i++) sum[i] = cv_load_f32(q) * cv_load_f32(k + i * k_row);
      for (int64_t d = CV_LANES; d < room; d += CV_LANES)
        _Pragma("GCC unroll 16") for (int i = 0; i < CV_LANES; i++)
          sum[i] += cv_load_f32(q + d) * cv_load_f32(k + i * k_row + d);
      cv_store_f32(s, cv_sums_f32(sum));
      continue;
    }
#endif
    for (int64_t i = 0; i < n; i++) {
      CV_ATTENTION_V_ sum = CV_ATTENTION_OP_(cv_splat_)(0);
      for (int64_t d = 0; d < room; d += CV_LANES)
        sum = CV_ATTENTION_OP_(cv_add_)(
            sum, CV_ATTENTION_OP_(cv_mul_)(CV_ATTENTION_OP_(cv_load_)(q + d), CV_ATTENTION_OP_(cv_load_)(k + i * k_row + d)));
      s[i] = CV_ATTENTION_OP_(cv_hsum_)(sum);
    }
  }
}

/* Parts [begin, end) of the keys of all heads. */
static __attribute__((unused)) void CV_ATTENTION_FN_(_few)(void *arg, int64_t begin, int64_t end, int worker) {
  enum { NR = CV_ATTENTION_NR_, KEYS = CV_ATTENTION_KEYS, FEW = CV_ATTENTION_FEW };
  const CV_ATTENTION_FN_(_job) *job = (const CV_ATTENTION_FN_(_job) *)arg;
  const cv_attention *a = job->a;
  int64_t depth = a->depth, room = cv_attention_round(depth, CV_LANES);
  int64_t values = a->value_depth, value_room = cv_attention_round(values, CV_LANES);
  int64_t tiles = (values + NR - 1) / NR;
  size_t words = (size_t)(FEW * room + 2 * FEW * KEYS + CV_LANES * room + KEYS * value_room + tiles * CV_MR * NR +
                          CV_MR * NR);
  CV_ATTENTION_T_ *q = (CV_ATTENTION_T_ *)cv_scratch(job->ctx, worker, words * sizeof(CV_ATTENTION_T_));
  if (!q) return;
  CV_ATTENTION_T_ *s = q + FEW * room, *weights = s + FEW * KEYS, *lines = weights + FEW * KEYS;
  CV_ATTENTION_T_ *v = lines + CV_LANES * room, *o = v + KEYS * value_room;
  const CV_ATTENTION_T_ shrink = (CV_ATTENTION_T_)cv_attention_shrink(a->keys);
  const CV_ELEM_PASTE(cv_attention_exp_, CV_ATTENTION_R_) e = CV_ATTENTION_OP_(cv_attention_exp_init_)(shrink);
  /* k and v are used where they lie if they hold compute-type elements in whole vectors. */
  int k_direct = CV_ATTENTION_PLAIN_ && a->k_stride[3] == 1 && room == depth;
  int v_direct = CV_ATTENTION_PLAIN_ && a->v_stride[3] == 1 && value_room == values;
  int rows = (int)job->rows;
  for (int64_t part = begin; part < end; part++) {
    int64_t head = part / job->splits, b = head / a->kv_heads, kv = head % a->kv_heads;
    int64_t from = job->splits == 1 ? 0 : part % job->splits * CV_ATTENTION_SPLIT;
    int64_t to = job->splits == 1 ? a->keys : cv_attention_min(from + CV_ATTENTION_SPLIT, a->keys);
    const CV_ATTENTION_MEM_ *keys = (const CV_ATTENTION_MEM_ *)a->k + b * a->k_stride[0] + kv * a->k_stride[1];
    const CV_ATTENTION_MEM_ *vals = (const CV_ATTENTION_MEM_ *)a->v + b * a->v_stride[0] + kv * a->v_stride[1];
    CV_ATTENTION_T_ max[FEW], sum[FEW];
    memset(o, 0, (size_t)(tiles * CV_MR * NR) * sizeof(CV_ATTENTION_T_));
    for (int r = 0; r < rows; r++) {
      int64_t h = kv * job->group + r / a->queries, i = r % a->queries;
      CV_ATTENTION_FN_(_fetch)((const CV_ATTENTION_MEM_ *)a->q + b * a->q_stride[0] + h * a->q_stride[1] +
                                   i * a->q_stride[2], a->q_stride[3], depth, room, q + r * room);
      for (int64_t d = 0; d < room; d++) q[r * room + d] *= (CV_ATTENTION_T_)a->scale;
      max[r] = -__builtin_inff();
      sum[r] = 0;
    }
    for (int64_t j0 = from; j0 < to; j0 += KEYS) {
      int64_t n = cv_attention_min(to - j0, KEYS);
      for (int64_t j = 0; j < n; j += CV_LANES) {
        const CV_ATTENTION_MEM_ *key = keys + (j0 + j) * a->k_stride[2];
        int64_t live = cv_attention_min(CV_LANES, n - j);
        if (k_direct) {
          CV_ATTENTION_FN_(_scores)(q, (const CV_ATTENTION_T_ *)(const void *)key, a->k_stride[2], rows, live, room,
                                    s + j);
          continue;
        }
        for (int64_t l = 0; l < live; l++)
          CV_ATTENTION_FN_(_fetch)(key + l * a->k_stride[2], a->k_stride[3], depth, room, lines + l * room);
        if (room) CV_ATTENTION_FN_(_scores)(q, lines, room, rows, live, room, s + j);
      }
      for (int r = 0; r < rows; r++) {
        CV_ATTENTION_T_ *row = s + r * KEYS;
        int64_t i = r % a->queries;
        if (room == 0) memset(row, 0, (size_t)n * sizeof *row);
#if CV_ATTENTION_MASKED_
        int64_t h = kv * job->group + r / a->queries;
        const CV_ATTENTION_MT_ *mask = (const CV_ATTENTION_MT_ *)a->mask + b * a->mask_stride[0] +
                                       h * a->mask_stride[1] + i * a->mask_stride[2] + j0 * a->mask_stride[3];
        for (int64_t j = 0; j < n; j++) {
          CV_ATTENTION_T_ m = (CV_ATTENTION_T_)CV_ATTENTION_MGET_(mask + j * a->mask_stride[3]);
          row[j] = CV_ATTENTION_BOOLEAN_ ? (m != 0 ? row[j] : (CV_ATTENTION_T_)-__builtin_inff()) : row[j] + m;
        }
#endif
        if (a->causal)
          for (int64_t j = i + 1 > j0 ? i + 1 - j0 : 0; j < n; j++) row[j] = -__builtin_inff();
        for (int64_t j = n; j < cv_attention_round(n, CV_LANES); j++) row[j] = -__builtin_inff();
        CV_ATTENTION_V_ top = CV_ATTENTION_OP_(cv_splat_)(max[r]);
        for (int64_t j = 0; j < n; j += CV_LANES) {
          CV_ATTENTION_V_ x = CV_ATTENTION_OP_(cv_load_)(row + j);
          top = CV_ATTENTION_MAX_(x, top);
        }
        CV_ATTENTION_T_ highest = CV_ATTENTION_OP_(cv_hmax_)(top);
        CV_ATTENTION_V_ centre = CV_ATTENTION_OP_(cv_splat_)(highest == -__builtin_inff() ? 0 : highest);
        CV_ATTENTION_T_ fade = CV_ATTENTION_OP_(cv_lane_)(
            CV_ATTENTION_OP_(cv_exp_)(CV_ATTENTION_OP_(cv_sub_)(CV_ATTENTION_OP_(cv_splat_)(max[r]), centre)), 0);
        CV_ATTENTION_V_ total = CV_ATTENTION_OP_(cv_splat_)(0);
        for (int64_t j = 0; j < n; j += CV_LANES) {
          CV_ATTENTION_V_ x = CV_ATTENTION_OP_(cv_sub_)(CV_ATTENTION_OP_(cv_load_)(row + j), centre);
          x = CV_ATTENTION_OP_(cv_attention_weight_)(&e, x);
          CV_ATTENTION_OP_(cv_store_)(weights + (j / CV_CHUNK * rows + r) * CV_CHUNK + j % CV_CHUNK, x);
          total = CV_ATTENTION_OP_(cv_add_)(total, x);
        }
        sum[r] = sum[r] * fade + CV_ATTENTION_OP_(cv_hsum_)(total);
        max[r] = highest;
        if (fade != 1)
          for (int64_t d = 0; d < values; d += CV_LANES) {
            CV_ATTENTION_T_ *p = o + d / NR * CV_MR * NR + r * NR + d % NR;
            CV_ATTENTION_OP_(cv_store_)(
                p, CV_ATTENTION_OP_(cv_mul_)(CV_ATTENTION_OP_(cv_load_)(p), CV_ATTENTION_OP_(cv_splat_)(fade)));
          }
      }
      const CV_ATTENTION_T_ *panel = v;
      int64_t step = value_room;
      if (v_direct) {
        panel = (const CV_ATTENTION_T_ *)(const void *)(vals + j0 * a->v_stride[2]);
        step = a->v_stride[2];
      } else {
        for (int64_t j = 0; j < n; j++)
          CV_ATTENTION_FN_(_fetch)(vals + (j0 + j) * a->v_stride[2], a->v_stride[3], values, value_room,
                                   v + j * value_room);
      }
      for (int64_t d = 0; d < value_room;) {
        CV_ATTENTION_T_ *c = o + d / NR * CV_MR * NR;
#if CV_ATTENTION_SINGLE_
        if (value_room - d >= 2 * NR && rows <= CV_WIDE_ROWS) {
          job->ctx->microkernels->wide_f32[rows - 1](n, weights, panel + d, step, NR, c, 1, weights, 0);
          d += 2 * NR;
          continue;
        }
#endif
        CV_ATTENTION_FN_(_kernel)(job, rows, value_room - d)(n, weights, panel + d, step, 0, c, 1, weights, 0);
        d += NR;
      }
    }
    for (int r = 0; r < rows; r++) {
      CV_ATTENTION_T_ *whole = o + tiles * CV_MR * NR; /* one row */
      CV_ATTENTION_MEM_ *out = (CV_ATTENTION_MEM_ *)a->out + b * a->out_stride[0] +
                               (kv * job->group + r / a->queries) * a->out_stride[1] + r % a->queries * a->out_stride[2];
      CV_ATTENTION_T_ *partial = job->partial + (part * rows + r) * (value_room + 2);
      CV_ATTENTION_V_ inverse = CV_ATTENTION_OP_(cv_splat_)(1 / sum[r]);
      for (int64_t d = 0; d < value_room; d += CV_LANES) {
        CV_ATTENTION_V_ x = CV_ATTENTION_OP_(cv_load_)(o + d / NR * CV_MR * NR + r * NR + d % NR);
        if (job->splits > 1) {
          CV_ATTENTION_OP_(cv_store_)(partial + d, x);
          continue;
        }
        CV_ATTENTION_OP_(cv_store_)(whole, CV_ATTENTION_OP_(cv_mul_)(x, inverse));
        CV_ATTENTION_FN_(_put)(out + d * a->out_stride[3], a->out_stride[3], cv_attention_min(CV_LANES, values - d),
                               whole);
      }
      if (job->splits > 1) {
        partial[value_room] = max[r];
        partial[value_room + 1] = sum[r];
      }
    }
  }
}

/* Puts the parts of each row together, in their order. */
static __attribute__((unused)) void CV_ATTENTION_FN_(_join)(const CV_ATTENTION_FN_(_job) *job) {
  const cv_attention *a = job->a;
  int64_t values = a->value_depth, room = cv_attention_round(values, CV_LANES), apart = job->rows * (room + 2);
  for (int64_t row = 0; row < a->batch * a->kv_heads * job->rows; row++) {
    int64_t head = row / job->rows, b = head / a->kv_heads, kv = head % a->kv_heads, r = row % job->rows;
    CV_ATTENTION_T_ *first = job->partial + head * job->splits * apart + r * (room + 2);
    CV_ATTENTION_T_ max = -__builtin_inff(), sum = 0;
    for (int64_t i = 0; i < job->splits; i++) {
      CV_ATTENTION_T_ m = first[i * apart + room];
      max = m > max ? m : max;
    }
    CV_ATTENTION_V_ centre = CV_ATTENTION_OP_(cv_splat_)(max == -__builtin_inff() ? 0 : max);
    for (int64_t i = 0; i < job->splits; i++) {
      CV_ATTENTION_T_ *part = first + i * apart;
      CV_ATTENTION_V_ fade = CV_ATTENTION_OP_(cv_exp_)(
          CV_ATTENTION_OP_(cv_sub_)(CV_ATTENTION_OP_(cv_splat_)(part[room]), centre));
      sum += part[room + 1] * CV_ATTENTION_OP_(cv_lane_)(fade, 0);
      for (int64_t d = 0; d < room; d += CV_LANES) {
        CV_ATTENTION_V_ x = CV_ATTENTION_OP_(cv_mul_)(CV_ATTENTION_OP_(cv_load_)(part + d), fade);
        if (i > 0) x = CV_ATTENTION_OP_(cv_add_)(CV_ATTENTION_OP_(cv_load_)(first + d), x);
        CV_ATTENTION_OP_(cv_store_)(first + d, x);
      }
    }
    CV_ATTENTION_V_ inverse = CV_ATTENTION_OP_(cv_splat_)(1 / sum);
    for (int64_t d = 0; d < room; d += CV_LANES)
      CV_ATTENTION_OP_(cv_store_)(first + d, CV_ATTENTION_OP_(cv_mul_)(CV_ATTENTION_OP_(cv_load_)(first + d), inverse));
    CV_ATTENTION_FN_(_put)((CV_ATTENTION_MEM_ *)a->out + b * a->out_stride[0] +
                               (kv * job->group + r / a->queries) * a->out_stride[1] + r % a->queries * a->out_stride[2],
                           a->out_stride[3], values, first);
  }
}

static __attribute__((unused)) void CV_ATTENTION_NAME(cv_ctx *ctx, const cv_attention *a) {
  if (a->batch * a->heads * a->queries * a->value_depth == 0) return;
  if (a->keys == 0) {
    for (int64_t row = 0; row < a->batch * a->heads * a->queries; row++) {
      int64_t i = row % a->queries, h = row / a->queries % a->heads, b = row / a->queries / a->heads;
      CV_ATTENTION_MEM_ *out = (CV_ATTENTION_MEM_ *)a->out + b * a->out_stride[0] + h * a->out_stride[1] +
                               i * a->out_stride[2];
      for (int64_t d = 0; d < a->value_depth; d++) out[d * a->out_stride[3]] = 0;
    }
    return;
  }
  CV_ATTENTION_FN_(_job) job = {.ctx = ctx, .a = a, .group = a->heads / a->kv_heads, .splits = 1};
  job.rows = job.group * a->queries;
  int64_t heads = a->batch * a->kv_heads;
  if (job.rows <= CV_ATTENTION_FEW) {
    if (heads < CV_ATTENTION_HEADS) job.splits = (a->keys + CV_ATTENTION_SPLIT - 1) / CV_ATTENTION_SPLIT;
    if (job.splits > 1) {
      int64_t words = heads * job.splits * job.rows * (cv_attention_round(a->value_depth, CV_LANES) + 2);
      job.partial = (CV_ATTENTION_T_ *)cv_scratch_shared(ctx, (size_t)words * sizeof(CV_ATTENTION_T_));
      if (!job.partial) return;
    }
    int64_t work = a->keys / job.splits * (a->depth + a->value_depth);
    cv_parallel(ctx, heads * job.splits, 1 + 32768 / (work + 1), CV_ATTENTION_FN_(_few), &job);
    if (job.splits > 1) CV_ATTENTION_FN_(_join)(&job);
    return;
  }
  job.tiles = (job.rows + CV_ATTENTION_NR_ - 1) / CV_ATTENTION_NR_;
  int64_t value_tiles = (a->value_depth + CV_MR - 1) / CV_MR;
  job.value_rows = (a->value_depth + value_tiles - 1) / value_tiles;
  int64_t work = CV_ATTENTION_NR_ * a->keys * (a->depth + a->value_depth);
  cv_parallel(ctx, heads * job.tiles, 1 + 524288 / (work + 1), CV_ATTENTION_FN_(_tiles), &job);
}

#undef CV_ATTENTION_FN_
#undef CV_ATTENTION_R_
#undef CV_ATTENTION_SINGLE_
#undef CV_ATTENTION_MEM_
#undef CV_ATTENTION_T_
#undef CV_ATTENTION_V_
#undef CV_ATTENTION_OP_
#undef CV_ATTENTION_NR_
#undef CV_ATTENTION_PLAIN_
#undef CV_ATTENTION_MASKED_
#undef CV_ATTENTION_BOOLEAN_
#undef CV_ATTENTION_TURN_
#undef CV_ATTENTION_MAX_
#ifdef CV_ATTENTION_MT_
#undef CV_ATTENTION_MT_
#undef CV_ATTENTION_MGET_
#endif
#undef CV_ATTENTION_NAME
#undef CV_ATTENTION_DT
#ifdef CV_ATTENTION_MASK
#undef CV_ATTENTION_MASK
#endif
