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
 * Method: hidden units lie in panels of CV_LANES; a panel's weights are [k][gate][lane], so a step streams one
 * contiguous piece of memory and has all gates of its units in registers. The input's share of the gates is one
 * blocked product for as many steps as fit the second-level cache; only the recurrent share is left to the loop.
 */
#include "cuvil/element.h"
#include "cuvil/math.h"
#include "cuvil/panel.h"
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

/* Bytes of gate values kept at once: half of a usual second-level cache. */
#define CV_RNN_GATE_BYTES (512 * 1024)
/* Rows of a register block. */
#define CV_RNN_ROWS 4
/* Depth of a piece of a panel that stays in the first-level cache while all rows pass over it. */
#define CV_RNN_DEPTH 96

#endif /* CUVIL_RNN_H */

#define CV_RNN_FN_(suffix) CV_ELEM_PASTE(CV_RNN_NAME, suffix)
#define CV_RNN_T_ CV_ELEM_PASTE(cv_elem_, CV_RNN_DT)
#define CV_RNN_V_ CV_ELEM_PASTE(cv_v, CV_RNN_DT)
#define CV_RNN_OP_(stem) CV_ELEM_PASTE(stem, CV_RNN_DT)
#define CV_RNN_PART_ CV_ELEM_PASTE(CV_PANEL_PART_, CV_RNN_DT)
#define CV_RNN_GATES_ CV_ELEM_PASTE(CV_RNN_GATES_OF_, CV_RNN_CELL)
#define CV_RNN_WIDTH_ (CV_RNN_GATES_ * CV_LANES) /* elements of one panel row */

static __attribute__((unused)) int64_t CV_RNN_FN_(_packed_elements)(int64_t input, int64_t hidden) {
  /* input rows, hidden rows, and one row for each bias */
  return (hidden + CV_LANES - 1) / CV_LANES * (input + hidden + 2) * CV_RNN_WIDTH_;
}

static __attribute__((unused)) void CV_RNN_FN_(_pack)(const CV_RNN_T_ *w_ih, const CV_RNN_T_ *w_hh,
                                                      const CV_RNN_T_ *b_ih, const CV_RNN_T_ *b_hh, int64_t input,
                                                      int64_t hidden, CV_RNN_T_ *packed) {
  for (int64_t u0 = 0; u0 < hidden; u0 += CV_LANES) {
    for (int64_t k = 0; k < input + hidden + 2; k++) {
      for (int g = 0; g < CV_RNN_GATES_; g++) {
        for (int l = 0; l < CV_LANES; l++) {
          int64_t row = g * hidden + u0 + l;
          CV_RNN_T_ w = 0;
          if (u0 + l < hidden) {
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

typedef struct CV_RNN_FN_(_job) {
  const cv_rnn *a;
  int64_t panels, room, width; /* panels of hidden units; elements of one row of h or c, and of gates */
  int64_t first, count;        /* steps of this piece, in order of processing */
  const CV_RNN_T_ *x;          /* input rows of this piece: row (s - first) * batch + n */
  int64_t x_row;
  CV_RNN_T_ *gates; /* [count][batch][width] */
  CV_RNN_T_ *h[2];  /* [batch][room], by turns */
  CV_RNN_T_ *c;     /* [batch][room] */
  CV_RNN_T_ *share; /* gru: [batch][width], the recurrent share of the gates */
  int64_t step;     /* the step of a parallel region over panels */
} CV_RNN_FN_(_job);

/* a [rows, depth] times a panel [depth, CV_RNN_WIDTH_], added to c. */
static __attribute__((unused)) void CV_RNN_FN_(_product)(int64_t rows, const CV_RNN_T_ *a, int64_t a_row,
                                                         const CV_RNN_T_ *b, CV_RNN_T_ *c, int64_t c_row,
                                                         int64_t depth) {
  int64_t piece = rows > CV_RNN_ROWS ? CV_RNN_DEPTH : depth;
  for (int64_t k = 0; k < depth; k += piece) {
    int64_t length = depth - k < piece ? depth - k : piece;
    for (int j = 0; j < CV_RNN_WIDTH_; j += CV_PANEL_NV * CV_RNN_PART_) {
      int parts = (CV_RNN_WIDTH_ - j) / CV_RNN_PART_;
      parts = parts < CV_PANEL_NV ? parts : CV_PANEL_NV;
      for (int64_t r = 0; r < rows;) {
        int mr = rows - r >= CV_RNN_ROWS ? CV_RNN_ROWS : 1;
        CV_RNN_OP_(cv_panel_)(mr, parts, a + r * a_row + k, a_row, 1, b + k * CV_RNN_WIDTH_ + j, CV_RNN_WIDTH_,
                              c + r * c_row + j, c_row, length);
        r += mr;
      }
    }
  }
}

CV_INLINE const CV_RNN_T_ *CV_RNN_FN_(_panel)(const CV_RNN_FN_(_job) *job, int64_t p, int64_t k) {
  return (const CV_RNN_T_ *)job->a->packed + (p * (job->a->input + job->a->hidden + 2) + k) * CV_RNN_WIDTH_;
}

/* The input's share of the gates of panels [begin, end), for all rows of the piece. */
static __attribute__((unused)) void CV_RNN_FN_(_project)(void *arg, int64_t begin, int64_t end, int worker) {
  const CV_RNN_FN_(_job) *job = (const CV_RNN_FN_(_job) *)arg;
  int64_t input = job->a->input, hidden = job->a->hidden, rows = job->count * job->a->batch;
  (void)worker;
  for (int64_t p = begin; p < end; p++) {
    const CV_RNN_T_ *b_ih = CV_RNN_FN_(_panel)(job, p, input + hidden), *b_hh = b_ih + CV_RNN_WIDTH_;
    CV_RNN_T_ *gates = job->gates + p * CV_RNN_WIDTH_;
    for (int64_t r = 0; r < rows; r++) {
      for (int g = 0; g < CV_RNN_GATES_; g++) {
        CV_RNN_V_ b = CV_RNN_OP_(cv_load_)(b_ih + g * CV_LANES);
        /* The candidate gate of a GRU multiplies the recurrent share, bias included, before it is added. */
        if (CV_RNN_GATES_ == 4 || g < 2) b = CV_RNN_OP_(cv_add_)(b, CV_RNN_OP_(cv_load_)(b_hh + g * CV_LANES));
        CV_RNN_OP_(cv_store_)(gates + r * job->width + g * CV_LANES, b);
      }
    }
    CV_RNN_FN_(_product)(rows, job->x, job->x_row, CV_RNN_FN_(_panel)(job, p, 0), gates, job->width, input);
  }
}

CV_INLINE CV_RNN_V_ CV_RNN_FN_(_sigmoid)(CV_RNN_V_ x) {
  CV_RNN_V_ one = CV_RNN_OP_(cv_splat_)(1);
  return CV_RNN_OP_(cv_div_)(one, CV_RNN_OP_(cv_add_)(one, CV_RNN_OP_(cv_exp_)(CV_RNN_OP_(cv_neg_)(x))));
}

/* One step of the batch rows [n0, n1) and the panels [p0, p1). */
static __attribute__((unused)) void CV_RNN_FN_(_advance)(const CV_RNN_FN_(_job) *job, int64_t s, int64_t n0, int64_t n1,
                                                         int64_t p0, int64_t p1) {
  const cv_rnn *a = job->a;
  const CV_RNN_T_ *before = job->h[s & 1];
  CV_RNN_T_ *after = job->h[(s + 1) & 1];
  int64_t room = job->room, t = a->reverse ? a->steps - 1 - s : s;
  for (int64_t p = p0; p < p1; p++) {
    const CV_RNN_T_ *w = CV_RNN_FN_(_panel)(job, p, a->input);
    int64_t u = p * CV_LANES, units = a->hidden - u < CV_LANES ? a->hidden - u : CV_LANES;
    CV_RNN_T_ *gates = job->gates + (s - job->first) * a->batch * job->width + p * CV_RNN_WIDTH_;
#if CV_RNN_GATES_ == 4
    CV_RNN_FN_(_product)(n1 - n0, before + n0 * room, room, w, gates + n0 * job->width, job->width, a->hidden);
#else
    CV_RNN_T_ *shares = job->share + p * CV_RNN_WIDTH_;
    const CV_RNN_T_ *b_hh = CV_RNN_FN_(_panel)(job, p, a->input + a->hidden + 1);
    for (int64_t n = n0; n < n1; n++) {
      memset(shares + n * job->width, 0, 2 * CV_LANES * sizeof *shares);
      memcpy(shares + n * job->width + 2 * CV_LANES, b_hh + 2 * CV_LANES, CV_LANES * sizeof *shares);
    }
    CV_RNN_FN_(_product)(n1 - n0, before + n0 * room, room, w, shares + n0 * job->width, job->width, a->hidden);
#endif
    for (int64_t n = n0; n < n1; n++) {
        const CV_RNN_T_ *gate = gates + n * job->width;
        int64_t at = n * room + u;
        CV_RNN_V_ h;
#if CV_RNN_GATES_ == 4
        CV_RNN_V_ in = CV_RNN_FN_(_sigmoid)(CV_RNN_OP_(cv_load_)(gate));
        CV_RNN_V_ forget = CV_RNN_FN_(_sigmoid)(CV_RNN_OP_(cv_load_)(gate + CV_LANES));
        CV_RNN_V_ cell = CV_RNN_OP_(cv_tanh_)(CV_RNN_OP_(cv_load_)(gate + 2 * CV_LANES));
        CV_RNN_V_ out = CV_RNN_FN_(_sigmoid)(CV_RNN_OP_(cv_load_)(gate + 3 * CV_LANES));
        CV_RNN_V_ c = CV_RNN_OP_(cv_add_)(CV_RNN_OP_(cv_mul_)(forget, CV_RNN_OP_(cv_load_)(job->c + at)),
                                          CV_RNN_OP_(cv_mul_)(in, cell));
        CV_RNN_OP_(cv_store_)(job->c + at, c);
        h = CV_RNN_OP_(cv_mul_)(out, CV_RNN_OP_(cv_tanh_)(c));
#else
        const CV_RNN_T_ *rec = shares + n * job->width;
        CV_RNN_V_ reset = CV_RNN_FN_(_sigmoid)(
            CV_RNN_OP_(cv_add_)(CV_RNN_OP_(cv_load_)(gate), CV_RNN_OP_(cv_load_)(rec)));
        CV_RNN_V_ update = CV_RNN_FN_(_sigmoid)(
            CV_RNN_OP_(cv_add_)(CV_RNN_OP_(cv_load_)(gate + CV_LANES), CV_RNN_OP_(cv_load_)(rec + CV_LANES)));
        CV_RNN_V_ fresh = CV_RNN_OP_(cv_tanh_)(
            CV_RNN_OP_(cv_add_)(CV_RNN_OP_(cv_load_)(gate + 2 * CV_LANES),
                                CV_RNN_OP_(cv_mul_)(reset, CV_RNN_OP_(cv_load_)(rec + 2 * CV_LANES))));
        CV_RNN_V_ keep = CV_RNN_OP_(cv_sub_)(CV_RNN_OP_(cv_splat_)(1), update);
        h = CV_RNN_OP_(cv_add_)(CV_RNN_OP_(cv_mul_)(keep, fresh),
                                CV_RNN_OP_(cv_mul_)(update, CV_RNN_OP_(cv_load_)(before + at)));
#endif
        CV_RNN_OP_(cv_store_)(after + at, h);
        if (a->y)
          CV_RNN_OP_(cv_store_part_)
        ((CV_RNN_T_ *)a->y + t * a->y_stride[0] + n * a->y_stride[1] + u, h, units);
    }
  }
}

/* All steps of the piece for blocks [begin, end) of batch rows: no thread waits for another. */
static __attribute__((unused)) void CV_RNN_FN_(_over_batch)(void *arg, int64_t begin, int64_t end, int worker) {
  const CV_RNN_FN_(_job) *job = (const CV_RNN_FN_(_job) *)arg;
  int64_t n1 = end * CV_RNN_ROWS < job->a->batch ? end * CV_RNN_ROWS : job->a->batch;
  (void)worker;
  for (int64_t s = job->first; s < job->first + job->count; s++)
    CV_RNN_FN_(_advance)(job, s, begin * CV_RNN_ROWS, n1, 0, job->panels);
}

/* One step for panels [begin, end): each thread keeps its own share of the weights in its cache. */
static __attribute__((unused)) void CV_RNN_FN_(_over_panels)(void *arg, int64_t begin, int64_t end, int worker) {
  const CV_RNN_FN_(_job) *job = (const CV_RNN_FN_(_job) *)arg;
  (void)worker;
  CV_RNN_FN_(_advance)(job, job->step, 0, job->a->batch, begin, end);
}

static __attribute__((unused)) void CV_RNN_NAME(cv_ctx *ctx, const cv_rnn *a) {
  CV_RNN_FN_(_job) job = {.a = a};
  int64_t batch = a->batch, hidden = a->hidden, input = a->input;
  job.panels = (hidden + CV_LANES - 1) / CV_LANES;
  /* Rows an odd number of vectors apart: powers of two would put all rows of a block into a few cache sets. */
  job.room = job.panels * CV_LANES | CV_LANES;
  job.width = job.panels * CV_RNN_WIDTH_ | CV_LANES;
  if (batch * hidden == 0) return;
  int64_t piece = CV_RNN_GATE_BYTES / (batch * job.width * (int64_t)sizeof(CV_RNN_T_));
  piece = piece < 1 ? 1 : piece;
  piece = piece < a->steps ? piece : a->steps;
  /* Rows of x are used where they lie if one stride leads through a whole piece. */
  int forward_rows = !a->reverse && (batch == 1 || a->x_stride[0] == batch * a->x_stride[1]);
  int64_t state = batch * job.room, copied = forward_rows ? 0 : piece * batch * input;
  int64_t shared = CV_RNN_GATES_ == 4 ? 0 : batch * job.width;
  job.gates = (CV_RNN_T_ *)cv_scratch_shared(
      ctx, (size_t)(piece * batch * job.width + 3 * state + shared + copied) * sizeof(CV_RNN_T_));
  if (!job.gates) return;
  job.h[0] = job.gates + piece * batch * job.width;
  job.h[1] = job.h[0] + state;
  job.c = job.h[1] + state;
  job.share = job.c + state;
  CV_RNN_T_ *rows = job.share + shared;
  memset(job.h[0], 0, (size_t)(3 * state) * sizeof(CV_RNN_T_));
  for (int64_t n = 0; n < batch; n++) {
    if (a->h0) memcpy(job.h[0] + n * job.room, (const CV_RNN_T_ *)a->h0 + n * hidden, (size_t)hidden * sizeof *rows);
    if (a->c0) memcpy(job.c + n * job.room, (const CV_RNN_T_ *)a->c0 + n * hidden, (size_t)hidden * sizeof *rows);
  }
  int64_t per_panel = batch * hidden * CV_RNN_WIDTH_; /* multiply-adds of one step of one panel */
  /* A region costs microseconds: worth it per step only where a step has that much work. Small batches of big
   * layers divide the panels, the rest divides the batch. */
  int by_panels = job.panels * per_panel > 400000 && (batch < 4 * CV_RNN_ROWS || job.panels * per_panel > 8000000);
  for (job.first = 0; job.first < a->steps; job.first += job.count) {
    job.count = a->steps - job.first < piece ? a->steps - job.first : piece;
    if (forward_rows) {
      job.x = (const CV_RNN_T_ *)a->x + job.first * a->x_stride[0];
      job.x_row = batch == 1 ? a->x_stride[0] : a->x_stride[1];
    } else {
      for (int64_t s = 0; s < job.count; s++) {
        int64_t t = a->reverse ? a->steps - 1 - job.first - s : job.first + s;
        for (int64_t n = 0; n < batch; n++)
          memcpy(rows + (s * batch + n) * input,
                 (const CV_RNN_T_ *)a->x + t * a->x_stride[0] + n * a->x_stride[1], (size_t)input * sizeof *rows);
      }
      job.x = rows;
      job.x_row = input;
    }
    int64_t projection = job.count * batch * (input + 1) * CV_RNN_WIDTH_;
    cv_parallel(ctx, job.panels, 1 + 262144 / projection, CV_RNN_FN_(_project), &job);
    if (by_panels) {
      for (job.step = job.first; job.step < job.first + job.count; job.step++)
        cv_parallel(ctx, job.panels, 1 + 131072 / per_panel, CV_RNN_FN_(_over_panels), &job);
    } else {
      int64_t block = job.count * CV_RNN_ROWS * job.panels * hidden * CV_RNN_WIDTH_;
      cv_parallel(ctx, (batch + CV_RNN_ROWS - 1) / CV_RNN_ROWS, 1 + 262144 / block, CV_RNN_FN_(_over_batch), &job);
    }
  }
  for (int64_t n = 0; n < batch; n++) {
    if (a->h)
      memcpy((CV_RNN_T_ *)a->h + n * hidden, job.h[a->steps & 1] + n * job.room, (size_t)hidden * sizeof *rows);
    if (a->c) memcpy((CV_RNN_T_ *)a->c + n * hidden, job.c + n * job.room, (size_t)hidden * sizeof *rows);
  }
}

#undef CV_RNN_FN_
#undef CV_RNN_T_
#undef CV_RNN_V_
#undef CV_RNN_OP_
#undef CV_RNN_PART_
#undef CV_RNN_GATES_
#undef CV_RNN_WIDTH_
#undef CV_RNN_NAME
#undef CV_RNN_CELL
#undef CV_RNN_DT
