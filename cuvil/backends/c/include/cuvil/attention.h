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
 * Method: a task owns up to two tiles of query rows of one key/value head (query heads that share it are stacked as
 * rows) and goes once through the keys in blocks. Lanes are queries: scores lie transposed [key][query], so the row
 * maximum and sum are lane-wise, a key row is broadcast as it lies, and only queries and a full mask are transposed.
 * Four rows or fewer (decoding) take another way: lanes run along the depth, and k and v are read in place.
 */
#include "cuvil/element.h"
#include "cuvil/math.h"
#include "cuvil/panel.h"
#include "cuvil/runtime.h"
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

/* Keys per block: k, v and the scores of a tile stay in the first-level cache for depths up to 64. */
#define CV_ATTENTION_KEYS 64
/* Query tiles per task: each block of keys is copied once for all of them. */
#define CV_ATTENTION_TILES 2
#define CV_ATTENTION_FEW 4
/* Keys per block on the way for few rows. */
#define CV_ATTENTION_STREAM 256

CV_INLINE int64_t cv_attention_round(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/* A power of two <= 1/keys: weights scaled by it sum to at most 1, so no sum of finite values overflows. */
CV_INLINE double cv_attention_shrink(int64_t keys) {
  double c = 1;
  for (int64_t n = 1; n < keys; n *= 2) c *= 0.5;
  return c;
}

#define CV_ATTENTION_CAT3_(a, b, c) a##b##c
#define CV_ATTENTION_CAT3(a, b, c) CV_ATTENTION_CAT3_(a, b, c)

#endif /* CUVIL_ATTENTION_H */

#define CV_ATTENTION_FN_(suffix) CV_ELEM_PASTE(CV_ATTENTION_NAME, suffix)
#define CV_ATTENTION_R_ CV_ELEM_REG(CV_ATTENTION_DT) /* f32 or f64 */
#define CV_ATTENTION_MEM_ CV_ELEM_PASTE(cv_elem_, CV_ATTENTION_DT)
#define CV_ATTENTION_T_ CV_ELEM_PASTE(cv_elem_, CV_ATTENTION_R_)
#define CV_ATTENTION_V_ CV_ELEM_PASTE(cv_v, CV_ATTENTION_R_)
#define CV_ATTENTION_P_ CV_ELEM_PASTE(cvi_p, CV_ATTENTION_R_)
#define CV_ATTENTION_OP_(stem) CV_ELEM_PASTE(stem, CV_ATTENTION_R_)
#define CV_ATTENTION_PART_ CV_ELEM_PASTE(CV_PANEL_PART_, CV_ATTENTION_R_)
#define CV_ATTENTION_TILE_ (CV_PANEL_NV * CV_ATTENTION_PART_) /* query rows of a tile */
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
  int64_t group, rows, tiles, chunks; /* tiles per chunk, chunks per key/value head */
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

CV_INLINE void CV_ATTENTION_FN_(_put)(CV_ATTENTION_MEM_ *dst, int64_t stride, int64_t n, const CV_ATTENTION_T_ *src,
                                      CV_ATTENTION_T_ factor) {
  CV_ATTENTION_V_ f = CV_ATTENTION_OP_(cv_splat_)(factor);
  int64_t i = 0;
  if (stride == 1) {
    for (; i < n; i += CV_LANES) {
      CV_ATTENTION_V_ x = CV_ATTENTION_OP_(cv_mul_)(CV_ATTENTION_OP_(cv_load_)(src + i), f);
      if (n - i >= CV_LANES)
        CV_ELEM_PASTE(cv_store_, CV_ATTENTION_DT)(dst + i, x);
      else
        CV_ELEM_PASTE(cv_store_part_, CV_ATTENTION_DT)(dst + i, x, n - i);
    }
    return;
  }
  for (; i < n; i++) CV_ELEM_PASTE(cv_elem_put_, CV_ATTENTION_DT)(dst + i * stride, src[i] * factor);
}

/* ------------------------------------------------------------------ tiles of query rows */

typedef struct CV_ATTENTION_FN_(_tile) {
  CV_ATTENTION_T_ *q;     /* [depth][TILE], scaled */
  CV_ATTENTION_T_ *o;     /* [TILE][value room] */
  CV_ATTENTION_T_ *max;   /* [TILE] */
  CV_ATTENTION_T_ *sum;   /* [TILE] */
  int64_t *query;         /* [TILE] query number of each row */
  int64_t *mask;          /* [TILE] mask offset of each row */
  int64_t first, last;    /* least and greatest query number */
  int rows, nv;           /* rows in use; parts in use, a whole number of CV_LANES groups */
  int same_mask;          /* every row has the same mask offset */
} CV_ATTENTION_FN_(_tile);

static __attribute__((unused)) void CV_ATTENTION_FN_(_load_tile)(const CV_ATTENTION_FN_(_job) *job,
                                                                 CV_ATTENTION_FN_(_tile) *t, int64_t b, int64_t kv,
                                                                 int64_t row, CV_ATTENTION_T_ *temporary) {
  const cv_attention *a = job->a;
  int64_t left = job->rows - row, room = cv_attention_round(a->depth, CV_LANES);
  t->rows = left < CV_ATTENTION_TILE_ ? (int)left : CV_ATTENTION_TILE_;
  t->nv = (int)(cv_attention_round(t->rows, CV_LANES) / CV_ATTENTION_PART_);
  t->first = INT64_MAX;
  t->last = -1;
  t->same_mask = 1;
  for (int r = 0; r < CV_ATTENTION_TILE_; r++) {
    /* Rows past the end repeat the last one: computed, never stored. */
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
  CV_ATTENTION_T_ scale = (CV_ATTENTION_T_)a->scale;
  for (int r0 = 0; r0 < t->nv * CV_ATTENTION_PART_; r0 += CV_LANES) {
    for (int r = 0; r < CV_LANES; r++) {
      int64_t i = t->query[r0 + r], at = row + (r0 + r < t->rows ? r0 + r : t->rows - 1);
      int64_t h = kv * job->group + at / a->queries;
      const CV_ATTENTION_MEM_ *q = (const CV_ATTENTION_MEM_ *)a->q + b * a->q_stride[0] + h * a->q_stride[1] +
                                   i * a->q_stride[2];
      CV_ATTENTION_FN_(_fetch)(q, a->q_stride[3], a->depth, room, temporary + r * room);
    }
    for (int64_t d = 0; d < a->depth; d++)
      for (int r = 0; r < CV_LANES; r++) t->q[d * CV_ATTENTION_TILE_ + r0 + r] = temporary[r * room + d] * scale;
  }
}

/* Scores [key][TILE] of n keys from j0 on: mask them. transposed has room for as many mask values. */
static __attribute__((unused)) void CV_ATTENTION_FN_(_mask_tile)(const CV_ATTENTION_FN_(_job) *job,
                                                                 const CV_ATTENTION_FN_(_tile) *t,
                                                                 CV_ATTENTION_T_ *s, CV_ATTENTION_T_ *transposed,
                                                                 int64_t j0, int64_t n) {
  const cv_attention *a = job->a;
  const CV_ATTENTION_V_ hidden = CV_ATTENTION_OP_(cv_splat_)(-__builtin_inff());
  int used = t->nv * CV_ATTENTION_PART_;
  (void)transposed;
#if CV_ATTENTION_MASKED_
  const CV_ATTENTION_MT_ *mask = (const CV_ATTENTION_MT_ *)a->mask + j0 * a->mask_stride[3];
  int distinct = t->same_mask ? 1 : used; /* mask rows */
  for (int r = 0; r < distinct; r++)
    for (int64_t j = 0; j < n; j++)
      transposed[j * CV_ATTENTION_TILE_ + r] =
          (CV_ATTENTION_T_)CV_ATTENTION_MGET_(mask + t->mask[r] + j * a->mask_stride[3]);
  for (int64_t j = 0; j < n; j++) {
    const CV_ATTENTION_T_ *from = transposed + j * CV_ATTENTION_TILE_;
    for (int r = 0; r < used; r += CV_LANES) {
      CV_ATTENTION_T_ *p = s + j * CV_ATTENTION_TILE_ + r;
      CV_ATTENTION_V_ m = t->same_mask ? CV_ATTENTION_OP_(cv_splat_)(*from) : CV_ATTENTION_OP_(cv_load_)(from + r);
      CV_ATTENTION_V_ x = CV_ATTENTION_OP_(cv_load_)(p);
#if CV_ATTENTION_BOOLEAN_
      x = CV_ATTENTION_OP_(cv_select_)(CV_ATTENTION_OP_(cv_ne_)(m, CV_ATTENTION_OP_(cv_splat_)(0)), x, hidden);
#else
      x = CV_ATTENTION_OP_(cv_add_)(x, m);
#endif
      CV_ATTENTION_OP_(cv_store_)(p, x);
    }
  }
#endif
  if (a->causal && j0 + n - 1 > t->first) {
    for (int r = 0; r < used; r += CV_LANES) {
      int32_t lanes[CV_LANES]; /* keys of this block that the row sees */
      for (int l = 0; l < CV_LANES; l++) {
        int64_t seen = t->query[r + l] + 1 - j0;
        lanes[l] = (int32_t)(seen < 0 ? 0 : seen > n ? n : seen);
      }
      cv_vi32 seen = cv_load_i32(lanes);
      for (int64_t j = 0; j < n; j++) {
        CV_ATTENTION_T_ *p = s + j * CV_ATTENTION_TILE_ + r;
        cv_vbool c = cv_gt_i32(seen, cv_splat_i32((int32_t)j));
        CV_ATTENTION_OP_(cv_store_)(p, CV_ATTENTION_OP_(cv_select_)(c, CV_ATTENTION_OP_(cv_load_)(p), hidden));
      }
    }
  }
}

/* Scores to weights, in place; the running maximum, sum and output follow. */
static __attribute__((unused)) void CV_ATTENTION_FN_(_weigh_tile)(const CV_ATTENTION_FN_(_tile) *t,
                                                                  CV_ATTENTION_T_ *s, int64_t n, int64_t value_room,
                                                                  CV_ATTENTION_T_ shrink) {
  enum { TILE = CV_ATTENTION_TILE_, PART = CV_ATTENTION_PART_ };
  CV_ATTENTION_T_ old[TILE] __attribute__((aligned(64))), fade[TILE] __attribute__((aligned(64)));
  int used = t->nv * PART;
  for (int r = 0; r < used; r += PART) {
    CV_ATTENTION_P_ m0 = *(CV_ATTENTION_P_ *)(t->max + r), m1 = m0;
    *(CV_ATTENTION_P_ *)(old + r) = m0;
    const CV_ATTENTION_T_ *p = s + r;
    int64_t j = 0;
    /* NaN never becomes the maximum; its weight is NaN all the same. */
    for (; j + 2 <= n; j += 2, p += 2 * TILE) {
      m0 = CV_ATTENTION_OP_(cvi_gtsel_)(*(const CV_ATTENTION_P_ *)p, m0);
      m1 = CV_ATTENTION_OP_(cvi_gtsel_)(*(const CV_ATTENTION_P_ *)(p + TILE), m1);
    }
    if (j < n) m0 = CV_ATTENTION_OP_(cvi_gtsel_)(*(const CV_ATTENTION_P_ *)p, m0);
    *(CV_ATTENTION_P_ *)(t->max + r) = CV_ATTENTION_OP_(cvi_gtsel_)(m0, m1);
  }
  const CV_ATTENTION_V_ nothing = CV_ATTENTION_OP_(cv_splat_)(-__builtin_inff()), zero = CV_ATTENTION_OP_(cv_splat_)(0),
                        less = CV_ATTENTION_OP_(cv_splat_)(shrink);
  int faded = 0;
  for (int r = 0; r < used; r += CV_LANES) {
    CV_ATTENTION_V_ max = CV_ATTENTION_OP_(cv_load_)(t->max + r), before = CV_ATTENTION_OP_(cv_load_)(old + r);
    /* With nothing seen yet every weight is exp(-inf - 0) = 0, never exp(-inf + inf). */
    max = CV_ATTENTION_OP_(cv_select_)(CV_ATTENTION_OP_(cv_eq_)(max, nothing), zero, max);
    CV_ATTENTION_V_ f = CV_ATTENTION_OP_(cv_exp_)(CV_ATTENTION_OP_(cv_sub_)(before, max));
    CV_ATTENTION_V_ sum0 = CV_ATTENTION_OP_(cv_mul_)(CV_ATTENTION_OP_(cv_load_)(t->sum + r), f), sum1 = zero;
    CV_ATTENTION_OP_(cv_store_)(fade + r, f);
    faded |= cv_hor(CV_ATTENTION_OP_(cv_ne_)(f, CV_ATTENTION_OP_(cv_splat_)(1)));
    CV_ATTENTION_T_ *p = s + r;
    for (int64_t j = 0; j < n; j += 2, p += 2 * TILE) {
      /* The row after an odd last one is room of the score block: computed and ignored. */
      CV_ATTENTION_V_ x = CV_ATTENTION_OP_(cv_exp_)(CV_ATTENTION_OP_(cv_sub_)(CV_ATTENTION_OP_(cv_load_)(p), max));
      CV_ATTENTION_V_ y =
          CV_ATTENTION_OP_(cv_exp_)(CV_ATTENTION_OP_(cv_sub_)(CV_ATTENTION_OP_(cv_load_)(p + TILE), max));
      x = CV_ATTENTION_OP_(cv_mul_)(x, less);
      y = CV_ATTENTION_OP_(cv_mul_)(y, less);
      CV_ATTENTION_OP_(cv_store_)(p, x);
      CV_ATTENTION_OP_(cv_store_)(p + TILE, y);
      sum0 = CV_ATTENTION_OP_(cv_add_)(sum0, x);
      if (j + 1 < n) sum1 = CV_ATTENTION_OP_(cv_add_)(sum1, y);
    }
    CV_ATTENTION_OP_(cv_store_)(t->sum + r, CV_ATTENTION_OP_(cv_add_)(sum0, sum1));
  }
  if (!faded) return;
  for (int r = 0; r < t->rows; r++) {
    if (fade[r] == 1) continue;
    for (int64_t d = 0; d < value_room; d += PART) *(CV_ATTENTION_P_ *)(t->o + r * value_room + d) *= fade[r];
  }
}

static __attribute__((unused)) void CV_ATTENTION_FN_(_chunks)(void *arg, int64_t begin, int64_t end, int worker) {
  enum { TILE = CV_ATTENTION_TILE_, PART = CV_ATTENTION_PART_, NV = CV_PANEL_NV, KEYS = CV_ATTENTION_KEYS };
  const CV_ATTENTION_FN_(_job) *job = (const CV_ATTENTION_FN_(_job) *)arg;
  const cv_attention *a = job->a;
  int64_t depth = a->depth, room = cv_attention_round(depth, CV_LANES);
  int64_t values = a->value_depth, value_room = cv_attention_round(values, CV_LANES);
  int64_t per_tile = TILE * depth + TILE * value_room + 2 * TILE;
  per_tile = cv_attention_round(per_tile, 64);
  size_t words = (size_t)(CV_ATTENTION_TILES * per_tile + KEYS * room + KEYS * value_room +
                          KEYS * TILE * (1 + CV_ATTENTION_MASKED_) +
                          CV_LANES * (room > value_room ? room : value_room) + 64);
  char *scratch = (char *)cv_scratch(job->ctx, worker,
                                     words * sizeof(CV_ATTENTION_T_) + CV_ATTENTION_TILES * TILE * 2 * sizeof(int64_t));
  if (!scratch) return;
  CV_ATTENTION_T_ *s = (CV_ATTENTION_T_ *)scratch, *transposed = s + KEYS * TILE;
  CV_ATTENTION_T_ *k = transposed + KEYS * TILE * CV_ATTENTION_MASKED_, *v = k + KEYS * room;
  CV_ATTENTION_T_ *temporary = v + KEYS * value_room;
  CV_ATTENTION_T_ *floats = temporary + cv_attention_round(CV_LANES * (room > value_room ? room : value_room), 64);
  int64_t *integers = (int64_t *)(scratch + words * sizeof(CV_ATTENTION_T_));
  CV_ATTENTION_FN_(_tile) tile[CV_ATTENTION_TILES];
  for (int i = 0; i < CV_ATTENTION_TILES; i++) {
    CV_ATTENTION_T_ *at = floats + i * per_tile;
    tile[i].max = at;
    tile[i].sum = at + TILE;
    tile[i].o = at + 2 * TILE;
    tile[i].q = at + 2 * TILE + TILE * value_room;
    tile[i].query = integers + i * 2 * TILE;
    tile[i].mask = integers + i * 2 * TILE + TILE;
  }
  const CV_ATTENTION_T_ shrink = (CV_ATTENTION_T_)cv_attention_shrink(a->keys);
  for (int64_t task = begin; task < end; task++) {
    int64_t head = task / job->chunks, b = head / a->kv_heads, kv = head % a->kv_heads, chunk = task % job->chunks;
    /* Under a causal mask later chunks cost more: alternate ends, so that any range of tasks costs alike. */
    chunk = chunk % 2 ? job->chunks - 1 - chunk / 2 : chunk / 2;
    int64_t row = chunk * job->tiles * TILE;
    int tiles = 0;
    for (; tiles < job->tiles && row + tiles * TILE < job->rows; tiles++) {
      CV_ATTENTION_FN_(_load_tile)(job, &tile[tiles], b, kv, row + tiles * TILE, temporary);
      memset(tile[tiles].o, 0, (size_t)(TILE * value_room) * sizeof(CV_ATTENTION_T_));
    }
    const CV_ATTENTION_MEM_ *keys = (const CV_ATTENTION_MEM_ *)a->k + b * a->k_stride[0] + kv * a->k_stride[1];
    const CV_ATTENTION_MEM_ *vals = (const CV_ATTENTION_MEM_ *)a->v + b * a->v_stride[0] + kv * a->v_stride[1];
    for (int64_t j0 = 0; j0 < a->keys; j0 += KEYS) {
      int64_t n = a->keys - j0 < KEYS ? a->keys - j0 : KEYS;
      for (int64_t j = 0; j < n; j++)
        CV_ATTENTION_FN_(_fetch)(vals + (j0 + j) * a->v_stride[2], a->v_stride[3], values, value_room,
                                 v + j * value_room);
      int skip = 0; /* bit i: no row of tile i sees a key of this block, and every value times zero is zero */
      if (a->causal) {
        for (int i = 0; i < tiles; i++) skip |= (j0 > tile[i].last) << i;
        if (skip) {
          CV_ATTENTION_P_ naught = {0};
          for (int64_t d = 0; d < n * value_room; d += PART) naught += *(const CV_ATTENTION_P_ *)(v + d) * 0;
          for (int l = 0; l < PART; l++)
            if (naught[l] != 0) skip = 0;
          if (skip == (1 << tiles) - 1) continue;
        }
      }
      for (int64_t j = 0; j < n; j++)
        CV_ATTENTION_FN_(_fetch)(keys + (j0 + j) * a->k_stride[2], a->k_stride[3], depth, room, k + j * room);
      int64_t padded = cv_attention_round(n, 8);
      if (padded > n) memset(k + n * room, 0, (size_t)((padded - n) * room) * sizeof(CV_ATTENTION_T_));
      for (int i = 0; i < tiles; i++) {
        const CV_ATTENTION_FN_(_tile) *t = &tile[i];
        if (skip >> i & 1) continue;
        int used = t->nv * PART, mr = cv_panel_rows(t->nv);
        memset(s, 0, (size_t)(padded * TILE) * sizeof(CV_ATTENTION_T_));
        for (int64_t j = 0; j < padded; j += mr)
          CV_ATTENTION_OP_(cv_panel_)(mr, t->nv, k + j * room, room, 1, t->q, TILE, s + j * TILE, TILE, depth);
        CV_ATTENTION_FN_(_mask_tile)(job, t, s, transposed, j0, n);
        CV_ATTENTION_FN_(_weigh_tile)(t, s, n, value_room, shrink);
        for (int64_t d = 0; d < value_room; d += NV * PART) {
          int64_t parts = (value_room - d) / PART;
          int nv = parts < NV ? (int)parts : NV, block = cv_panel_rows(nv);
          for (int r = 0; r < used; r += block)
            CV_ATTENTION_OP_(cv_panel_)(block, nv, s + r, 1, TILE, v + d, value_room, t->o + r * value_room + d,
                                        value_room, n);
        }
      }
    }
    for (int i = 0; i < tiles; i++) {
      const CV_ATTENTION_FN_(_tile) *t = &tile[i];
      for (int r = 0; r < t->rows; r++) {
        int64_t at = row + i * TILE + r, h = kv * job->group + at / a->queries;
        CV_ATTENTION_MEM_ *out = (CV_ATTENTION_MEM_ *)a->out + b * a->out_stride[0] + h * a->out_stride[1] +
                                 t->query[r] * a->out_stride[2];
        CV_ATTENTION_FN_(_put)(out, a->out_stride[3], values, t->o + r * value_room, 1 / t->sum[r]);
      }
    }
  }
}

/* ------------------------------------------------------------------ few rows: decoding */

/* Scores of one row and one key: depth rounded up to whole vectors, both sides padded with zeros. */
CV_INLINE CV_ATTENTION_T_ CV_ATTENTION_FN_(_dot)(const CV_ATTENTION_T_ *x, const CV_ATTENTION_T_ *y, int64_t room) {
  CV_ATTENTION_V_ sum = CV_ATTENTION_OP_(cv_splat_)(0);
  for (int64_t d = 0; d < room; d += CV_LANES)
    sum = CV_ATTENTION_OP_(cv_add_)(
        sum, CV_ATTENTION_OP_(cv_mul_)(CV_ATTENTION_OP_(cv_load_)(x + d), CV_ATTENTION_OP_(cv_load_)(y + d)));
  return CV_ATTENTION_OP_(cv_hsum_)(sum);
}

static __attribute__((unused)) void CV_ATTENTION_FN_(_few)(void *arg, int64_t begin, int64_t end, int worker) {
  enum { PART = CV_ATTENTION_PART_, NV = CV_PANEL_NV, KEYS = CV_ATTENTION_STREAM, FEW = CV_ATTENTION_FEW };
  const CV_ATTENTION_FN_(_job) *job = (const CV_ATTENTION_FN_(_job) *)arg;
  const cv_attention *a = job->a;
  int64_t depth = a->depth, room = cv_attention_round(depth, CV_LANES);
  int64_t values = a->value_depth, value_room = cv_attention_round(values, CV_LANES);
  size_t words = (size_t)(FEW * (room + value_room + KEYS) + room + KEYS * value_room + 64);
  CV_ATTENTION_T_ *q = (CV_ATTENTION_T_ *)cv_scratch(job->ctx, worker, words * sizeof(CV_ATTENTION_T_));
  if (!q) return;
  CV_ATTENTION_T_ *s = q + FEW * room, *v = s + FEW * KEYS, *o = v + KEYS * value_room, *line = o + FEW * value_room;
  const CV_ATTENTION_T_ shrink = (CV_ATTENTION_T_)cv_attention_shrink(a->keys);
  /* k and v are used where they lie if they hold compute-type elements in whole vectors. v's panels are loaded as
   * aligned parts. */
  int k_direct = CV_ATTENTION_PLAIN_ && a->k_stride[3] == 1 && room == depth;
  int v_direct = CV_ATTENTION_PLAIN_ && a->v_stride[3] == 1 && value_room == values &&
                 a->v_stride[2] % PART == 0 && a->v_stride[1] % PART == 0 && a->v_stride[0] % PART == 0 &&
                 (uintptr_t)a->v % (PART * sizeof(CV_ATTENTION_T_)) == 0;
  int rows = (int)job->rows, mr = rows == 1 ? 1 : FEW;
  for (int64_t head = begin; head < end; head++) {
    int64_t b = head / a->kv_heads, kv = head % a->kv_heads;
    const CV_ATTENTION_MEM_ *keys = (const CV_ATTENTION_MEM_ *)a->k + b * a->k_stride[0] + kv * a->k_stride[1];
    const CV_ATTENTION_MEM_ *vals = (const CV_ATTENTION_MEM_ *)a->v + b * a->v_stride[0] + kv * a->v_stride[1];
    CV_ATTENTION_T_ max[FEW], sum[FEW];
    memset(o, 0, (size_t)(FEW * value_room) * sizeof(CV_ATTENTION_T_));
    for (int r = 0; r < rows; r++) {
      int64_t h = kv * job->group + r / a->queries, i = r % a->queries;
      CV_ATTENTION_FN_(_fetch)((const CV_ATTENTION_MEM_ *)a->q + b * a->q_stride[0] + h * a->q_stride[1] +
                                   i * a->q_stride[2], a->q_stride[3], depth, room, q + r * room);
      for (int64_t d = 0; d < room; d++) q[r * room + d] *= (CV_ATTENTION_T_)a->scale;
      max[r] = -__builtin_inff();
      sum[r] = 0;
    }
    for (int64_t j0 = 0; j0 < a->keys; j0 += KEYS) {
      int64_t n = a->keys - j0 < KEYS ? a->keys - j0 : KEYS;
      for (int64_t j = 0; j < n; j++) {
        const CV_ATTENTION_MEM_ *key = keys + (j0 + j) * a->k_stride[2];
        const CV_ATTENTION_T_ *x = (const CV_ATTENTION_T_ *)(const void *)key;
        if (!k_direct) {
          CV_ATTENTION_FN_(_fetch)(key, a->k_stride[3], depth, room, line);
          x = line;
        }
        for (int r = 0; r < rows; r++) s[r * KEYS + j] = CV_ATTENTION_FN_(_dot)(q + r * room, x, room);
      }
      for (int r = 0; r < mr; r++) {
        CV_ATTENTION_T_ *row = s + r * KEYS;
        if (r >= rows) { /* rows that only fill a block of four */
          memset(row, 0, (size_t)n * sizeof *row);
          continue;
        }
        int64_t i = r % a->queries;
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
          top = CV_ATTENTION_OP_(cv_select_)(CV_ATTENTION_OP_(cv_gt_)(x, top), x, top);
        }
        CV_ATTENTION_T_ highest = CV_ATTENTION_OP_(cv_hmax_)(top);
        CV_ATTENTION_V_ centre = CV_ATTENTION_OP_(cv_splat_)(highest == -__builtin_inff() ? 0 : highest);
        CV_ATTENTION_T_ fade = CV_ATTENTION_OP_(cv_lane_)(
            CV_ATTENTION_OP_(cv_exp_)(CV_ATTENTION_OP_(cv_sub_)(CV_ATTENTION_OP_(cv_splat_)(max[r]), centre)), 0);
        CV_ATTENTION_V_ total = CV_ATTENTION_OP_(cv_splat_)(0), less = CV_ATTENTION_OP_(cv_splat_)(shrink);
        for (int64_t j = 0; j < n; j += CV_LANES) {
          CV_ATTENTION_V_ x = CV_ATTENTION_OP_(cv_load_)(row + j);
          x = CV_ATTENTION_OP_(cv_mul_)(CV_ATTENTION_OP_(cv_exp_)(CV_ATTENTION_OP_(cv_sub_)(x, centre)), less);
          CV_ATTENTION_OP_(cv_store_)(row + j, x);
          total = CV_ATTENTION_OP_(cv_add_)(total, x);
        }
        sum[r] = sum[r] * fade + CV_ATTENTION_OP_(cv_hsum_)(total);
        max[r] = highest;
        if (fade != 1)
          for (int64_t d = 0; d < value_room; d += PART) *(CV_ATTENTION_P_ *)(o + r * value_room + d) *= fade;
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
      for (int64_t d = 0; d < value_room; d += NV * PART) {
        int64_t parts = (value_room - d) / PART;
        CV_ATTENTION_OP_(cv_panel_)(mr, parts < NV ? (int)parts : NV, s, KEYS, 1, panel + d, step, o + d,
                                    value_room, n);
      }
    }
    for (int r = 0; r < rows; r++) {
      int64_t h = kv * job->group + r / a->queries, i = r % a->queries;
      CV_ATTENTION_FN_(_put)((CV_ATTENTION_MEM_ *)a->out + b * a->out_stride[0] + h * a->out_stride[1] +
                                 i * a->out_stride[2], a->out_stride[3], values, o + r * value_room, 1 / sum[r]);
    }
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
  CV_ATTENTION_FN_(_job) job = {.ctx = ctx, .a = a, .group = a->heads / a->kv_heads};
  job.rows = job.group * a->queries;
  int64_t heads = a->batch * a->kv_heads;
  if (job.rows <= CV_ATTENTION_FEW) {
    cv_parallel(ctx, heads, 1 + 32768 / (a->keys * (a->depth + a->value_depth) + 1), CV_ATTENTION_FN_(_few), &job);
    return;
  }
  /* Few tasks: one tile each, so that more threads have work. It depends on shapes alone, as results must. */
  int64_t tiles = (job.rows + CV_ATTENTION_TILE_ - 1) / CV_ATTENTION_TILE_;
  job.tiles = heads * tiles < 32 ? 1 : CV_ATTENTION_TILES;
  job.chunks = (tiles + job.tiles - 1) / job.tiles;
  int64_t work = job.tiles * CV_ATTENTION_TILE_ * a->keys * (a->depth + a->value_depth);
  cv_parallel(ctx, heads * job.chunks, 1 + 524288 / (work + 1), CV_ATTENTION_FN_(_chunks), &job);
}

#undef CV_ATTENTION_FN_
#undef CV_ATTENTION_R_
#undef CV_ATTENTION_MEM_
#undef CV_ATTENTION_T_
#undef CV_ATTENTION_V_
#undef CV_ATTENTION_P_
#undef CV_ATTENTION_OP_
#undef CV_ATTENTION_PART_
#undef CV_ATTENTION_TILE_
#undef CV_ATTENTION_PLAIN_
#undef CV_ATTENTION_MASKED_
#undef CV_ATTENTION_BOOLEAN_
#undef CV_ATTENTION_MT_
#undef CV_ATTENTION_MGET_
#undef CV_ATTENTION_NAME
#undef CV_ATTENTION_DT
#undef CV_ATTENTION_MASK
