/* LSTM and GRU: one layer, one direction, PyTorch's gate order and weight layout.
 *
 * Set before including (all are reset at the end, so the header can be included again):
 *   CV_RNN_NAME   prefix of the generated functions
 *   CV_RNN_CELL   lstm or gru
 *   CV_RNN_DT     f32 or f64 (halves are converted outside)
 *
 *   int64_t NAME_packed_elements(int64_t input, int64_t hidden)
 *   void NAME_pack(const T *w_ih, const T *w_hh, const T *b_ih, const T *b_hh, int64_t input, int64_t hidden,
 *                  T *packed)
 *   void NAME(cv_ctx *ctx, const cv_rnn *args)
 *
 * Weights: w_ih [gates * hidden, input], w_hh [gates * hidden, hidden], biases [gates * hidden] or NULL; gates are
 * i, f, g, o (lstm) or r, z, n (gru). pack is run once for constant weights; packed is 64-byte aligned.
 *
 *   lstm: c' = sigmoid(f) c + sigmoid(i) tanh(g);  h' = sigmoid(o) tanh(c')
 *   gru:  n' = tanh(n_x + sigmoid(r) n_h);         h' = (1 - sigmoid(z)) n' + sigmoid(z) h
 *
 * Method: hidden units lie in panels of CV_LANES; the gates of a panel are the columns of one or more tiles of the
 * micro-kernels (two gates of float32 a tile), and a tile's weights are [k][column], so a step streams contiguous
 * memory. The input's share of the gates is one product for as many steps as fit the second-level cache; only the
 * recurrent share is left to the loop. Steps go through the panels by turns forwards and backwards: what the last
 * step read last is still in the cache. A single step takes both shares of a panel at once.
 */
#include "cuvil/element.h"
#include "cuvil/math.h"
#include "cuvil/microkernel.h"
#include "cuvil/runtime.h"
#include "cuvil/vec.h"

#ifndef CUVIL_RNN_H
#define CUVIL_RNN_H

typedef struct cv_rnn {
  const void *x;      /* [steps, batch, input] with the strides given and unit stride last */
  const void *h0;     /* [batch, hidden], or NULL for zeros */
  const void *c0;     /* lstm: [batch, hidden], or NULL for zeros */
  const void *packed; /* from NAME_pack */
  void *y;            /* [steps, batch, hidden] with the strides given and unit stride last; may be NULL */
  void *h;            /* [batch, hidden] the last h; may be NULL */
  void *c;            /* lstm: [batch, hidden] the last c; may be NULL */
  int64_t steps, batch, input, hidden;
  int64_t x_stride[2], y_stride[2]; /* of step and batch, in elements */
  int reverse;                      /* go from the last step to the first */
} cv_rnn;

#define CV_RNN_GATES_OF_lstm 4
#define CV_RNN_GATES_OF_gru 3

/* Bytes of gate values kept at once. Each is written and read once; the weights of the input are read once for each
 * such piece. */
#define CV_RNN_GATE_BYTES (4 << 20)

CV_INLINE int64_t cv_rnn_min(int64_t a, int64_t b) { return a < b ? a : b; }

#endif /* CUVIL_RNN_H */

#define CV_RNN_FN_(suffix) CV_ELEM_PASTE(CV_RNN_NAME, suffix)
#define CV_RNN_T_ CV_ELEM_PASTE(cv_elem_, CV_RNN_DT)
#define CV_RNN_V_ CV_ELEM_PASTE(cv_v, CV_RNN_DT)
#define CV_RNN_OP_(stem) CV_ELEM_PASTE(stem, CV_RNN_DT)
#define CV_RNN_GATES_ CV_ELEM_PASTE(CV_RNN_GATES_OF_, CV_RNN_CELL)
#define CV_RNN_WIDTH_ (CV_RNN_GATES_ * CV_LANES) /* gate values of a panel */
#define CV_RNN_NR_ CV_ELEM_PASTE(CV_NR_, CV_RNN_DT)
#define CV_RNN_TILES_ ((CV_RNN_WIDTH_ + CV_RNN_NR_ - 1) / CV_RNN_NR_) /* tiles of a panel; the last may be half one */
#define CV_RNN_BLOCK_ (CV_RNN_TILES_ * CV_MR * CV_RNN_NR_)            /* elements of a block: rows by a panel */

/* Panels [u], in each its tiles, in each the rows of the input, of h and of the two biases, in each the columns. */
static __attribute__((unused)) int64_t CV_RNN_FN_(_packed_elements)(int64_t input, int64_t hidden) {
  return (hidden + CV_LANES - 1) / CV_LANES * (input + hidden + 2) * CV_RNN_WIDTH_;
}

static __attribute__((unused)) void CV_RNN_FN_(_pack)(const CV_RNN_T_ *w_ih, const CV_RNN_T_ *w_hh,
                                                      const CV_RNN_T_ *b_ih, const CV_RNN_T_ *b_hh, int64_t input,
                                                      int64_t hidden, CV_RNN_T_ *packed) {
  for (int64_t u0 = 0; u0 < hidden; u0 += CV_LANES) {
    for (int first = 0; first < CV_RNN_WIDTH_; first += CV_RNN_NR_) {
      int last = (int)cv_rnn_min(first + CV_RNN_NR_, CV_RNN_WIDTH_);
      for (int64_t k = 0; k < input + hidden + 2; k++) {
        for (int column = first; column < last; column++) {
          int64_t unit = u0 + column % CV_LANES, row = column / CV_LANES * hidden + unit;
          CV_RNN_T_ w = 0;
          if (unit < hidden) {
            if (k < input)
              w = w_ih[row * input + k];
            else if (k < input + hidden)
              w = w_hh[row * hidden + k - input];
            else if (k == input + hidden)
              w = b_ih ? b_ih[row] : 0;
            else
              w = b_hh ? b_hh[row] : 0;
          }
          *packed++ = w;
        }
      }
    }
  }
}

/* Rows (step, batch row) lie in blocks of at most CV_MR: several steps of a small batch, or a part of one step. */
typedef struct CV_RNN_FN_(_job) {
  const cv_rnn *a;
  const struct cv_microkernels *kernels;
  int64_t panels, room; /* panels of hidden units; elements of a row of c */
  int64_t depth_x, depth_h; /* input and hidden, rounded up to chunks */
  int64_t parts, part_rows; /* blocks of a step, and rows of all but the last of them */
  int64_t steps_per_block;
  int64_t first, count; /* steps of this piece, in order of processing */
  CV_RNN_T_ *x;         /* [block]: the input rows of this piece, packed for the micro-kernels */
  CV_RNN_T_ *gates;     /* [block][panel]: tiles of gate values */
  CV_RNN_T_ *h[2];      /* [part], packed; by turns */
  CV_RNN_T_ *c;         /* [batch][room] */
  CV_RNN_T_ *share;     /* gru: [part][panel], the recurrent share of the gates */
  int64_t step;         /* the step of a parallel region over panels */
} CV_RNN_FN_(_job);

/* The tile of row i of a block and of a gate's columns. */
CV_INLINE CV_RNN_T_ *CV_RNN_FN_(_gate)(CV_RNN_T_ *block, int64_t i, int g) {
  return block + g * CV_LANES / CV_RNN_NR_ * CV_MR * CV_RNN_NR_ + i * CV_RNN_NR_ + g * CV_LANES % CV_RNN_NR_;
}

CV_INLINE int64_t CV_RNN_FN_(_rows)(const CV_RNN_FN_(_job) *job, int64_t part) {
  return cv_rnn_min(job->part_rows, job->a->batch - part * job->part_rows);
}

/* Offset of hidden unit u of a batch row in packed h. */
CV_INLINE int64_t CV_RNN_FN_(_at)(const CV_RNN_FN_(_job) *job, int64_t n, int64_t u) {
  int64_t part = n / job->part_rows, i = n % job->part_rows;
  return part * CV_MR * job->depth_h + (u / CV_CHUNK * CV_RNN_FN_(_rows)(job, part) + i) * CV_CHUNK + u % CV_CHUNK;
}

CV_INLINE const CV_RNN_T_ *CV_RNN_FN_(_weights)(const CV_RNN_FN_(_job) *job, int64_t p, int tile, int64_t k) {
  int64_t depth = job->a->input + job->a->hidden + 2;
  int64_t columns = cv_rnn_min(CV_RNN_NR_, CV_RNN_WIDTH_ - tile * CV_RNN_NR_);
  return (const CV_RNN_T_ *)job->a->packed + p * depth * CV_RNN_WIDTH_ + depth * tile * CV_RNN_NR_ + k * columns;
}

/* rows of a (packed, `stride` rows a chunk) times tile `tile` of panel p from row k0 of its weights on, added to c.
 * Meanwhile the weights at `ahead` come into the second-level cache. */
CV_INLINE void CV_RNN_FN_(_multiply)(const CV_RNN_FN_(_job) *job, int64_t rows, const CV_RNN_T_ *a, int64_t p,
                                     int tile, int64_t k0, CV_RNN_T_ *c, int64_t depth, const void *ahead) {
  const struct cv_microkernels *m = job->kernels;
  const CV_RNN_T_ *b = CV_RNN_FN_(_weights)(job, p, tile, k0);
#if CV_ELEM_ID(CV_RNN_DT) == CV_ELEM_ID_f32
  if (CV_RNN_WIDTH_ - tile * CV_RNN_NR_ < CV_RNN_NR_) {
    m->half_f32[rows - 1](depth, a, b, CV_RNN_NR_ / 2, 0, c, 1, ahead, 64);
    return;
  }
#endif
  m->CV_ELEM_PASTE(full_, CV_RNN_DT)[rows - 1](depth, a, b, CV_RNN_NR_, 0, c, 1, ahead, 64);
}

/* h of the parts [first, last) of the batch times the recurrent weights of panel p, added to their tiles, which lie
 * `apart` elements from each other. */
static __attribute__((unused)) void CV_RNN_FN_(_recur)(const CV_RNN_FN_(_job) *job, const CV_RNN_T_ *h, int64_t first,
                                                       int64_t last, int64_t p, CV_RNN_T_ *c, int64_t apart) {
  int64_t input = job->a->input, hidden = job->a->hidden;
#if CV_ELEM_ID(CV_RNN_DT) == CV_ELEM_ID_f32 && CV_RNN_GATES_ == 4
  if (job->part_rows <= CV_WIDE_ROWS) {
    /* Few rows wait for the weights' bytes: both tiles at once, without hints that only take slots. */
    const CV_RNN_T_ *b = CV_RNN_FN_(_weights)(job, p, 0, input);
    job->kernels->wide_f32[job->part_rows - 1](hidden, h, b, CV_RNN_NR_, CV_RNN_FN_(_weights)(job, p, 1, input) - b, c,
                                               1, h, 0);
    return;
  }
#endif
  for (int tile = 0; tile < CV_RNN_TILES_; tile++) {
    for (int64_t k = 0; k < hidden; k += CV_KC) {
      int64_t depth = cv_rnn_min(CV_KC, hidden - k);
      /* The parts share the hints for the weights that come next. */
      const char *ahead = (const char *)CV_RNN_FN_(_weights)(job, p, tile, input + k + CV_KC);
      for (int64_t part = first; part < last; part++) {
        int64_t rows = CV_RNN_FN_(_rows)(job, part);
        CV_RNN_FN_(_multiply)(job, rows, h + part * CV_MR * job->depth_h + k * rows, p, tile, input + k,
                              c + part * apart + tile * CV_MR * CV_RNN_NR_, depth, ahead);
        ahead += depth * 64;
      }
    }
  }
}

/* The input's share of the gates of panel p, for all rows of the piece. */
static __attribute__((unused)) void CV_RNN_FN_(_project_panel)(const CV_RNN_FN_(_job) *job, int64_t p) {
  const cv_rnn *a = job->a;
  int64_t input = a->input, hidden = a->hidden;
  int64_t blocks = (job->count + job->steps_per_block - 1) / job->steps_per_block * job->parts;
  for (int64_t block = 0; block < blocks; block++) {
    CV_RNN_T_ *c = job->gates + (block * job->panels + p) * CV_RNN_BLOCK_;
    for (int64_t i = 0; i < CV_MR; i++) {
      for (int g = 0; g < CV_RNN_GATES_; g++) {
        int tile = g * CV_LANES / CV_RNN_NR_, column = g * CV_LANES % CV_RNN_NR_;
        CV_RNN_V_ b = CV_RNN_OP_(cv_load_)(CV_RNN_FN_(_weights)(job, p, tile, input + hidden) + column);
        /* The candidate gate of a GRU multiplies the recurrent share, bias included, before it is added. */
        if (CV_RNN_GATES_ == 4 || g < 2)
          b = CV_RNN_OP_(cv_add_)(
              b, CV_RNN_OP_(cv_load_)(CV_RNN_FN_(_weights)(job, p, tile, input + hidden + 1) + column));
        CV_RNN_OP_(cv_store_)(CV_RNN_FN_(_gate)(c, i, g), b);
      }
    }
  }
  for (int tile = 0; tile < CV_RNN_TILES_; tile++) {
    for (int64_t k = 0; k < input; k += CV_KC) {
      int64_t depth = cv_rnn_min(CV_KC, input - k);
      for (int64_t block = 0; block < blocks; block++) {
        int64_t left = job->count - block * job->steps_per_block;
        int64_t rows = job->parts > 1 ? CV_RNN_FN_(_rows)(job, block % job->parts)
                                      : cv_rnn_min(job->steps_per_block, left) * a->batch;
        CV_RNN_FN_(_multiply)(job, rows, job->x + block * CV_MR * job->depth_x + k * rows, p, tile, k,
                              job->gates + (block * job->panels + p) * CV_RNN_BLOCK_ + tile * CV_MR * CV_RNN_NR_,
                              depth, CV_RNN_FN_(_weights)(job, p, tile, k + CV_KC));
      }
    }
  }
}

static __attribute__((unused)) void CV_RNN_FN_(_project)(void *arg, int64_t begin, int64_t end, int worker) {
  (void)worker;
  for (int64_t p = begin; p < end; p++) CV_RNN_FN_(_project_panel)((const CV_RNN_FN_(_job) *)arg, p);
}

CV_INLINE CV_RNN_V_ CV_RNN_FN_(_sigmoid)(CV_RNN_V_ x) {
  CV_RNN_V_ one = CV_RNN_OP_(cv_splat_)(1);
  return CV_RNN_OP_(cv_div_)(one, CV_RNN_OP_(cv_add_)(one, CV_RNN_OP_(cv_exp_)(CV_RNN_OP_(cv_neg_)(x))));
}

/* One step of parts [begin, end) of the batch and of panel p. */
static __attribute__((unused)) void CV_RNN_FN_(_advance)(const CV_RNN_FN_(_job) *job, int64_t s, int64_t begin,
                                                         int64_t end, int64_t p) {
  const cv_rnn *a = job->a;
  const CV_RNN_T_ *before = job->h[s & 1];
  CV_RNN_T_ *after = job->h[(s + 1) & 1];
  int64_t t = a->reverse ? a->steps - 1 - s : s, at = s - job->first;
  int64_t block = at / job->steps_per_block * job->parts, row = at % job->steps_per_block * a->batch;
  int64_t u = p * CV_LANES, units = cv_rnn_min(a->hidden - u, CV_LANES), apart = job->panels * CV_RNN_BLOCK_;
  CV_RNN_T_ *gates = job->gates + (block * job->panels + p) * CV_RNN_BLOCK_ + row * CV_RNN_NR_;
#if CV_RNN_GATES_ == 4
  CV_RNN_FN_(_recur)(job, before, begin, end, p, gates, apart);
#else
  CV_RNN_T_ *shares = job->share + p * CV_RNN_BLOCK_;
  const CV_RNN_T_ *b_hh =
      CV_RNN_FN_(_weights)(job, p, 2 * CV_LANES / CV_RNN_NR_, a->input + a->hidden + 1) + 2 * CV_LANES % CV_RNN_NR_;
  for (int64_t n = begin * job->part_rows; n < cv_rnn_min(end * job->part_rows, a->batch); n++) {
    CV_RNN_T_ *share = shares + n / job->part_rows * apart;
    int64_t i = n % job->part_rows;
    CV_RNN_OP_(cv_store_)(CV_RNN_FN_(_gate)(share, i, 0), CV_RNN_OP_(cv_splat_)(0));
    CV_RNN_OP_(cv_store_)(CV_RNN_FN_(_gate)(share, i, 1), CV_RNN_OP_(cv_splat_)(0));
    CV_RNN_OP_(cv_store_)(CV_RNN_FN_(_gate)(share, i, 2), CV_RNN_OP_(cv_load_)(b_hh));
  }
  CV_RNN_FN_(_recur)(job, before, begin, end, p, shares, apart);
#endif
  for (int64_t n = begin * job->part_rows; n < cv_rnn_min(end * job->part_rows, a->batch); n++) {
    CV_RNN_T_ *gate = gates + n / job->part_rows * apart;
    int64_t i = n % job->part_rows;
#define CV_RNN_GATE_(from, g) CV_RNN_OP_(cv_load_)(CV_RNN_FN_(_gate)(from, i, g))
#if CV_RNN_GATES_ == 4
    CV_RNN_T_ *state = job->c + n * job->room + u;
    CV_RNN_V_ in = CV_RNN_FN_(_sigmoid)(CV_RNN_GATE_(gate, 0)), forget = CV_RNN_FN_(_sigmoid)(CV_RNN_GATE_(gate, 1));
    CV_RNN_V_ cell = CV_RNN_OP_(cv_tanh_)(CV_RNN_GATE_(gate, 2)), out = CV_RNN_FN_(_sigmoid)(CV_RNN_GATE_(gate, 3));
    CV_RNN_V_ c = CV_RNN_OP_(cv_add_)(CV_RNN_OP_(cv_mul_)(forget, CV_RNN_OP_(cv_load_)(state)),
                                      CV_RNN_OP_(cv_mul_)(in, cell));
    CV_RNN_OP_(cv_store_)(state, c);
    CV_RNN_V_ next = CV_RNN_OP_(cv_mul_)(out, CV_RNN_OP_(cv_tanh_)(c));
#else
    CV_RNN_T_ *share = shares + n / job->part_rows * apart;
    CV_RNN_V_ reset = CV_RNN_FN_(_sigmoid)(CV_RNN_OP_(cv_add_)(CV_RNN_GATE_(gate, 0), CV_RNN_GATE_(share, 0)));
    CV_RNN_V_ update = CV_RNN_FN_(_sigmoid)(CV_RNN_OP_(cv_add_)(CV_RNN_GATE_(gate, 1), CV_RNN_GATE_(share, 1)));
    CV_RNN_V_ fresh = CV_RNN_OP_(cv_tanh_)(
        CV_RNN_OP_(cv_add_)(CV_RNN_GATE_(gate, 2), CV_RNN_OP_(cv_mul_)(reset, CV_RNN_GATE_(share, 2))));
    CV_RNN_V_ keep = CV_RNN_OP_(cv_sub_)(CV_RNN_OP_(cv_splat_)(1), update);
    CV_RNN_V_ next = CV_RNN_OP_(cv_add_)(
        CV_RNN_OP_(cv_mul_)(keep, fresh),
        CV_RNN_OP_(cv_mul_)(update, CV_RNN_OP_(cv_load_)(before + CV_RNN_FN_(_at)(job, n, u))));
#endif
#undef CV_RNN_GATE_
    CV_RNN_OP_(cv_store_)(after + CV_RNN_FN_(_at)(job, n, u), next);
    if (a->y)
      CV_RNN_OP_(cv_store_part_)((CV_RNN_T_ *)a->y + t * a->y_stride[0] + n * a->y_stride[1] + u, next, units);
  }
}

/* All steps of the piece for parts [begin, end) of the batch: no thread waits for another. */
static __attribute__((unused)) void CV_RNN_FN_(_over_batch)(void *arg, int64_t begin, int64_t end, int worker) {
  const CV_RNN_FN_(_job) *job = (const CV_RNN_FN_(_job) *)arg;
  (void)worker;
  for (int64_t s = job->first; s < job->first + job->count; s++)
    for (int64_t p = 0; p < job->panels; p++)
      CV_RNN_FN_(_advance)(job, s, begin, end, s & 1 ? job->panels - 1 - p : p);
}

/* One step for panels [begin, end): each thread keeps its own share of the weights in its cache. */
static __attribute__((unused)) void CV_RNN_FN_(_over_panels)(void *arg, int64_t begin, int64_t end, int worker) {
  const CV_RNN_FN_(_job) *job = (const CV_RNN_FN_(_job) *)arg;
  (void)worker;
  for (int64_t p = begin; p < end; p++)
    CV_RNN_FN_(_advance)(job, job->step, 0, job->parts, job->step & 1 ? begin + end - 1 - p : p);
}

/* The only step, both shares. */
static __attribute__((unused)) void CV_RNN_FN_(_single)(void *arg, int64_t begin, int64_t end, int worker) {
  const CV_RNN_FN_(_job) *job = (const CV_RNN_FN_(_job) *)arg;
  (void)worker;
  for (int64_t p = begin; p < end; p++) {
    CV_RNN_FN_(_project_panel)(job, p);
    CV_RNN_FN_(_advance)(job, 0, 0, job->parts, p);
  }
}

/* Packs the input rows of blocks [begin, end) of the piece. */
static __attribute__((unused)) void CV_RNN_FN_(_pack_input)(void *arg, int64_t begin, int64_t end, int worker) {
  const CV_RNN_FN_(_job) *job = (const CV_RNN_FN_(_job) *)arg;
  const cv_rnn *a = job->a;
  (void)worker;
  for (int64_t block = begin; block < end; block++) {
    int64_t s0 = block / job->parts * job->steps_per_block, part = block % job->parts;
    int64_t steps = cv_rnn_min(job->steps_per_block, job->count - s0), rows = CV_RNN_FN_(_rows)(job, part);
    CV_RNN_T_ *to = job->x + block * CV_MR * job->depth_x;
    for (int64_t s = 0; s < steps; s++) {
      int64_t t = a->reverse ? a->steps - 1 - job->first - s0 - s : job->first + s0 + s;
      for (int64_t i = 0; i < rows; i++) {
        const CV_RNN_T_ *x =
            (const CV_RNN_T_ *)a->x + t * a->x_stride[0] + (part * job->part_rows + i) * a->x_stride[1];
        for (int64_t k = 0; k < a->input; k += CV_CHUNK)
          memcpy(to + (k / CV_CHUNK * steps * rows + s * rows + i) * CV_CHUNK, x + k,
                 (size_t)cv_rnn_min(CV_CHUNK, a->input - k) * sizeof *x);
      }
    }
  }
}

static __attribute__((unused)) void CV_RNN_NAME(cv_ctx *ctx, const cv_rnn *a) {
  CV_RNN_FN_(_job) job = {.a = a, .kernels = ctx->microkernels};
  int64_t batch = a->batch, hidden = a->hidden, input = a->input;
  if (batch * hidden == 0) return;
  job.panels = (hidden + CV_LANES - 1) / CV_LANES;
  /* Rows an odd number of vectors apart: powers of two would put many rows into a few cache sets. */
  job.room = job.panels * CV_LANES | CV_LANES;
  job.depth_x = (input + CV_CHUNK - 1) / CV_CHUNK * CV_CHUNK;
  job.depth_h = (hidden + CV_CHUNK - 1) / CV_CHUNK * CV_CHUNK;
  job.parts = (batch + CV_MR - 1) / CV_MR;
  job.part_rows = (batch + job.parts - 1) / job.parts;
  job.parts = (batch + job.part_rows - 1) / job.part_rows;
  job.steps_per_block = job.parts > 1 ? 1 : CV_MR / batch;
  int64_t per_step_group = job.parts * job.panels * CV_RNN_BLOCK_ * (int64_t)sizeof(CV_RNN_T_);
  int64_t groups = CV_RNN_GATE_BYTES / per_step_group;
  int64_t piece = cv_rnn_min((groups < 1 ? 1 : groups) * job.steps_per_block, a->steps);
  int64_t blocks = (piece + job.steps_per_block - 1) / job.steps_per_block * job.parts;
  int64_t gates = blocks * job.panels * CV_RNN_BLOCK_, inputs = blocks * CV_MR * job.depth_x;
  int64_t packed_h = job.parts * CV_MR * job.depth_h, state = batch * job.room;
  int64_t shared = CV_RNN_GATES_ == 4 ? 0 : job.parts * job.panels * CV_RNN_BLOCK_;
  job.gates =
      (CV_RNN_T_ *)cv_scratch_shared(ctx, (size_t)(gates + inputs + 2 * packed_h + state + shared) * sizeof(CV_RNN_T_));
  if (!job.gates) return;
  job.share = job.gates + gates;
  job.x = job.share + shared;
  job.h[0] = job.x + inputs;
  job.h[1] = job.h[0] + packed_h;
  job.c = job.h[1] + packed_h;
  memset(job.h[0], 0, (size_t)(2 * packed_h + state) * sizeof(CV_RNN_T_));
  for (int64_t n = 0; n < batch; n++) {
    for (int64_t u = 0; a->h0 && u < hidden; u += CV_CHUNK)
      memcpy(job.h[0] + CV_RNN_FN_(_at)(&job, n, u), (const CV_RNN_T_ *)a->h0 + n * hidden + u,
             (size_t)cv_rnn_min(CV_CHUNK, hidden - u) * sizeof *job.c);
    if (a->c0) memcpy(job.c + n * job.room, (const CV_RNN_T_ *)a->c0 + n * hidden, (size_t)hidden * sizeof *job.c);
  }
  int64_t per_panel = batch * hidden * CV_RNN_WIDTH_; /* multiply-adds of one step of one panel */
  /* A region costs microseconds: worth it per step only where a step has that much work. Layers whose weights fill
   * the caches divide the panels, the rest divides the batch. */
  int64_t weight_bytes = job.panels * hidden * CV_RNN_WIDTH_ * (int64_t)sizeof(CV_RNN_T_);
  int by_panels = job.panels * per_panel > 400000 && (job.parts == 1 || weight_bytes > 1 << 20);
  for (job.first = 0; job.first < a->steps; job.first += job.count) {
    job.count = cv_rnn_min(a->steps - job.first, piece);
    int64_t filled = (job.count + job.steps_per_block - 1) / job.steps_per_block * job.parts;
    cv_parallel(ctx, filled, 1 + 65536 / (CV_MR * input + 1), CV_RNN_FN_(_pack_input), &job);
    int64_t projection = job.count * batch * (input + 1) * CV_RNN_WIDTH_;
    if (a->steps == 1 && (by_panels || job.parts == 1)) {
      cv_parallel(ctx, job.panels, 1 + 131072 / (per_panel + projection), CV_RNN_FN_(_single), &job);
      continue;
    }
    cv_parallel(ctx, job.panels, 1 + 262144 / projection, CV_RNN_FN_(_project), &job);
    if (by_panels) {
      for (job.step = job.first; job.step < job.first + job.count; job.step++)
        cv_parallel(ctx, job.panels, 1 + 131072 / per_panel, CV_RNN_FN_(_over_panels), &job);
    } else {
      int64_t block = job.count * job.part_rows * job.panels * hidden * CV_RNN_WIDTH_;
      cv_parallel(ctx, job.parts, 1 + 262144 / block, CV_RNN_FN_(_over_batch), &job);
    }
  }
  for (int64_t n = 0; n < batch; n++) {
    for (int64_t u = 0; a->h && u < hidden; u += CV_CHUNK)
      memcpy((CV_RNN_T_ *)a->h + n * hidden + u, job.h[a->steps & 1] + CV_RNN_FN_(_at)(&job, n, u),
             (size_t)cv_rnn_min(CV_CHUNK, hidden - u) * sizeof *job.c);
    if (a->c) memcpy((CV_RNN_T_ *)a->c + n * hidden, job.c + n * job.room, (size_t)hidden * sizeof *job.c);
  }
}

#undef CV_RNN_FN_
#undef CV_RNN_T_
#undef CV_RNN_V_
#undef CV_RNN_OP_
#undef CV_RNN_GATES_
#undef CV_RNN_WIDTH_
#undef CV_RNN_NR_
#undef CV_RNN_TILES_
#undef CV_RNN_BLOCK_
#undef CV_RNN_NAME
#undef CV_RNN_CELL
#undef CV_RNN_DT
