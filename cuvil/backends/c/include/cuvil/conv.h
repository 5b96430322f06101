/* Convolution of 1 to 3 spatial axes with fused epilogue; a template that a kernel includes once per convolution.
 *
 * docs/design/gemm.md tells how to use it. In short: define CV_CONV_NAME, CV_CONV_ACC, CV_CONV_X_T, CV_CONV_W_T and
 * CV_CONV_STORE, include this file, call CV_CONV_NAME##_run. With CV_CONV_DEPTHWISE defined it makes the kernel for
 * one input channel a group.
 *
 * Method. Weights times the matrix of input patches: rows are output channels, columns output pixels, and k runs over
 * (tap, input channel), channel fastest, so that the geometry of a tap is worked out once for all channels. Weights are
 * packed beforehand; panels of the patch matrix are packed from the input as gemm.h asks for them. CV_CONV_FEW_PIXELS
 * exchanges rows and columns: 49 pixels fill whole tiles of rows, but not whole panels of columns.
 * The depthwise kernel copies a band of a channel, with its padding, to scratch memory, and adds the taps there.
 */
#ifndef CUVIL_CONV_H
#define CUVIL_CONV_H

#include "cuvil/conv_shape.h"
#include "cuvil/gemm.h"

/* Elements 0, 2, 4, ... and 1, 3, 5, ... of two vectors. */
#if CV_LANES == 16
#define CVC_EVEN 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define CVC_ODD 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#else
#define CVC_EVEN 0, 2, 4, 6, 8, 10, 12, 14
#define CVC_ODD 1, 3, 5, 7, 9, 11, 13, 15
#endif
CV_INLINE cv_vi32 cvc_even(cv_vi32 a, cv_vi32 b) { return CVG_TWO(a, b, CVC_EVEN); }
CV_INLINE cv_vi32 cvc_odd(cv_vi32 a, cv_vi32 b) { return CVG_TWO(a, b, CVC_ODD); }

#endif

/* ================================================================ the template
 *
 * Without CV_CONV_NAME the file declares only what all convolutions share.
 */
#ifdef CV_CONV_NAME

#define CVC_(suffix) CVG_PASTE(CV_CONV_NAME, suffix)
#define CVC_T CVG_PASTE(cv_elem_reg_, CV_CONV_ACC)
#define CVC_V CVG_PASTE(cv_v, CV_CONV_ACC)
#define CVC_X_MEM CVG_PASTE(cv_elem_, CV_CONV_X_T)
#define CVC_W_MEM CVG_PASTE(cv_elem_, CV_CONV_W_T)
#define CVC_IS_32 (CV_ELEM_ID(CV_CONV_ACC) == CV_ELEM_ID_f32 || CV_ELEM_ID(CV_CONV_ACC) == CV_ELEM_ID_i32)
#define CVC_CAST(dt) CVG_PASTE4(cv_cast_, CV_ELEM_REG(dt), _, CV_CONV_ACC)
#define CVC_STORE CVG_PASTE(cv_store_, CV_CONV_ACC)
#define CVC_STORE_PART CVG_PASTE(cv_store_part_, CV_CONV_ACC)
#ifndef CV_CONV_MAP_X
#define CV_CONV_MAP_X(env, n, channel, v) (v)
#endif
/* Elements of the input as the accumulation type, through the prologue. */
#define CVC_X(env, n, c, v) CV_CONV_MAP_X(env, n, c, CVC_CAST(CV_CONV_X_T)(v))
#define CVC_LOAD(env, n, c, p) CVC_X(env, n, c, CVG_PASTE(cv_load_, CV_CONV_X_T)(p))
#define CVC_LOAD_PART(env, n, c, p, count) CVC_X(env, n, c, CVG_PASTE(cv_load_part_, CV_CONV_X_T)(p, count))
#define CVC_LOAD_STRIDED(env, n, c, p, stride, count) \
    CVC_X(env, n, c, CVG_PASTE(cv_load_strided_, CV_CONV_X_T)(p, stride, count))

#ifndef CV_CONV_DEPTHWISE

typedef struct {
    const cv_conv_shape *shape;
    const void *env; /* the kernel's own */
    const CVC_X_MEM *x;
    const CVC_W_MEM *w;
    int64_t channels, out_channels; /* of a group */
    int pointwise;                  /* one tap, and pixels of the output lie as those of the input */
} CVC_(_geometry);

/* Copies a piece of `channels` consecutive channels to rows of a panel. */
CV_FUNC void CVC_(_copy_piece)(const CVC_(_geometry) *g, CVC_T *to, int64_t width, const CVC_X_MEM *x, cvc_piece p,
                               int64_t n, int64_t channel, int64_t channels) {
    (void)n;
    int64_t plane = g->shape->x_strides[1];
    x += p.x0 + channel * plane;
    to += p.i0;
    for (int64_t done = 0; done < p.count; done += CV_LANES) {
        int64_t count = cvg_min(CV_LANES, p.count - done);
        const CVC_X_MEM *in = x + done * p.x_step;
        CVC_T *out = to + done * p.i_step;
        int64_t c = channel, end = channel + channels;
        if (p.i_step != 1) {
            for (; c < end; c++, in += plane, out += width) {
                CVC_T lanes[CV_LANES];
                CVC_STORE(lanes, CVC_LOAD_STRIDED(g->env, n, c, in, p.x_step, count));
                for (int64_t l = 0; l < count; l++) out[l * p.i_step] = lanes[l];
            }
        } else if (p.x_step == 1 && count == CV_LANES) {
            for (; c < end; c++, in += plane, out += width) CVC_STORE(out, CVC_LOAD(g->env, n, c, in));
        } else if (p.x_step == 1) {
            for (; c < end; c++, in += plane, out += width) {
                CVC_STORE_PART(out, CVC_LOAD_PART(g->env, n, c, in, count), count);
            }
#if CVC_IS_32
        } else if (p.x_step == 2) {
            int64_t reach = 2 * count - 1, low = cvg_min(reach, CV_LANES), high = reach - low;
            for (; c < end; c++, in += plane, out += width) {
                CVC_V a = CVC_LOAD_PART(g->env, n, c, in, low), b = CVC_LOAD_PART(g->env, n, c, in + low, high);
                CVC_STORE_PART(out, (CVC_V)cvc_even((cv_vi32)a, (cv_vi32)b), count);
            }
#endif
        } else {
            for (; c < end; c++, in += plane, out += width) {
                CVC_STORE_PART(out, CVC_LOAD_STRIDED(g->env, n, c, in, p.x_step, count), count);
            }
        }
    }
}

/* Rows [k, k + depth) of the patch matrix of a batch element and group, columns (pixels) [pixel, pixel + columns). */
CV_FUNC void CVC_(_pack_patches)(const CVC_(_geometry) *g, int64_t batch, CVC_T *to, int64_t k, int64_t depth,
                                 int64_t pixel, int64_t columns, int64_t width) {
    const cv_conv_shape *s = g->shape;
    int64_t n = batch / s->groups, group = batch % s->groups;
    const CVC_X_MEM *x = g->x + n * s->x_strides[0];
    int64_t hw = s->out[1] * s->out[2];
    int64_t d0 = pixel / hw, h0 = pixel / s->out[2] % s->out[1], w0 = pixel % s->out[2];
    int64_t tap = k / g->channels, channel = k % g->channels, rest = depth;
    int64_t td = tap / (s->kernel[1] * s->kernel[2]), th = tap / s->kernel[2] % s->kernel[1], tw = tap % s->kernel[2];
    while (rest > 0) {
        int64_t channels = cvg_min(g->channels - channel, rest);
        cvc_piece pieces[2 * CV_LANES]; /* no more than columns: each has at least one */
        int64_t count = 0, covered = 0;
        int64_t d = d0, h = h0, w = w0;
        for (int64_t at = 0; at < columns;) {
            int64_t length = cvg_min(s->out[2] - w, columns - at);
            int64_t id = cvc_index(d * s->stride[0] + td * s->dilation[0] - s->padding[0], s->in[0],
                                   s->input_dilation[0]);
            int64_t ih = cvc_index(h * s->stride[1] + th * s->dilation[1] - s->padding[1], s->in[1],
                                   s->input_dilation[1]);
            if (id >= 0 && ih >= 0) {
                cvc_piece p = cvc_clip(w * s->stride[2] + tw * s->dilation[2] - s->padding[2], length, s->in[2],
                                       s->stride[2], s->input_dilation[2]);
                if (p.count) {
                    p.i0 += at;
                    p.x0 = id * s->x_strides[2] + ih * s->x_strides[3] + p.x0 * s->x_strides[4];
                    p.x_step *= s->x_strides[4];
                    pieces[count++] = p;
                    covered += p.count;
                }
            }
            at += length;
            w = 0;
            if (++h == s->out[1]) {
                h = 0;
                d++;
            }
        }
        if (covered < width) {
            for (int64_t i = 0; i < channels * width; i += CV_LANES) CVC_STORE(to + i, (CVC_V){});
        }
        for (int64_t i = 0; i < count; i++) {
            CVC_(_copy_piece)(g, to, width, x, pieces[i], n, group * g->channels + channel, channels);
        }
        to += channels * width;
        rest -= channels;
        channel = 0;
        if (++tw == s->kernel[2]) {
            tw = 0;
            if (++th == s->kernel[1]) {
                th = 0;
                td++;
            }
        }
    }
}

/* Where the rows of the next panel will be read: of use for one tap, where the channels are all there is to fetch. */
CV_INLINE const void *CVC_(_next_patches)(const CVC_(_geometry) *g, int64_t batch, int64_t k, int64_t pixel) {
    const cv_conv_shape *s = g->shape;
    int64_t channel = batch % s->groups * g->channels + k;
    return g->x + batch / s->groups * s->x_strides[0] + channel * s->x_strides[1] + pixel;
}

/* Weights (m, k) of a group for _pack_a: `count` along k, that is along the channels of one tap after the other. */
CV_INLINE CVC_V CVC_(_load_weights)(const CVC_(_geometry) *g, int64_t m, int64_t k, int64_t count) {
    int64_t taps = CVC_TAPS(g->shape), offsets[CV_LANES] = {0};
    for (int64_t l = 0; l < count; l++) {
        offsets[l] = (m * g->channels + (k + l) % g->channels) * taps + (k + l) / g->channels;
    }
    return CVC_CAST(CV_CONV_W_T)(CVG_PASTE(cv_gather_, CV_CONV_W_T)(g->w, offsets, count));
}

#define CV_GEMM_NAME CVC_(_product)
#ifdef CV_CONV_BF16
#define CV_GEMM_BF16 1
#endif
#define CV_GEMM_ACC CV_CONV_ACC
#ifndef CV_CONV_FEW_PIXELS

CV_INLINE void CVC_(_store_pixels)(const CVC_(_geometry) *g, int64_t batch, int64_t m, int64_t pixel, int64_t count,
                                   CVC_V v) {
    int64_t n = batch / g->shape->groups, channel = batch % g->shape->groups * g->out_channels + m;
    (void)n, (void)channel;
    CV_CONV_STORE(g->env, n, channel, pixel, count, v);
}

#define CV_GEMM_A_T CV_CONV_W_T
#define CV_GEMM_B_T CV_CONV_X_T
#define CV_GEMM_LOAD_A(e, batch, m, k, count) CVC_(_load_weights)(e, m, k, count)
#define CV_GEMM_PACK_B(e, batch, to, k, depth, n, columns, width) \
    CVC_(_pack_patches)(e, batch, to, k, depth, n, columns, width)
#define CV_GEMM_AHEAD_B(e, batch, k, n) CVC_(_next_patches)(e, batch, k, n)
#define CV_GEMM_AHEAD_B_STEP(e) \
    (((const CVC_(_geometry) *)(e))->pointwise * ((const CVC_(_geometry) *)(e))->shape->x_strides[1])
#define CV_GEMM_STORE(e, batch, m, n, count, v) CVC_(_store_pixels)(e, batch, m, n, count, v)
#define CV_GEMM_A_OFFSET(e, batch) ((batch) % ((const CVC_(_geometry) *)(e))->shape->groups * call->a.batch_stride)
#include "cuvil/gemm.h"
#define CVC_PACKED_BYTES(k, out_channels) CVG_PASTE(CVC_(_product), _packed_a_bytes)(out_channels, k)

#else /* rows are pixels, columns are output channels */

/* A vector of every row of a square of CV_LANES by CV_LANES elements to one of every column. */
CV_INLINE void CVC_(_transpose)(CVC_V v[CV_LANES]) {
#if CVC_IS_32
    cv_vi32 square[CV_LANES];
    _Pragma("GCC unroll 16") for (int l = 0; l < CV_LANES; l++) square[l] = (cv_vi32)v[l];
    cvg_transpose(square);
    _Pragma("GCC unroll 16") for (int l = 0; l < CV_LANES; l++) v[l] = (CVC_V)square[l];
#else
    CVC_T from[CV_LANES][CV_LANES], to[CV_LANES][CV_LANES];
    for (int l = 0; l < CV_LANES; l++) CVC_STORE(from[l], v[l]);
    for (int i = 0; i < CV_LANES * CV_LANES; i++) to[i % CV_LANES][i / CV_LANES] = from[i / CV_LANES][i % CV_LANES];
    for (int l = 0; l < CV_LANES; l++) v[l] = CVG_PASTE(cv_load_, CV_CONV_ACC)(to[l]);
#endif
}

/* The patches of `rows` (<= CV_LANES) pixels as a tile of A: as a panel, then transposed square by square. */
CV_FUNC void CVC_(_pack_pixels)(const CVC_(_geometry) *g, int64_t batch, CVC_T *to, int64_t pixel, int64_t rows,
                                int64_t k, int64_t depth) {
    enum { DEPTH = 64 }; /* at a time */
    CVC_T panel[DEPTH * CV_LANES] __attribute__((aligned(64)));
    for (int64_t done = 0; done < depth; done += DEPTH, to += rows * DEPTH) {
        int64_t length = cvg_min(DEPTH, depth - done);
        CVC_(_pack_patches)(g, batch, panel, k + done, length, pixel, rows, CV_LANES);
        for (int64_t j = 0; j < length; j += CV_LANES) {
            CVC_V square[CV_LANES];
            for (int64_t l = 0; l < CV_LANES; l++) {
                square[l] = (CVC_V){};
                if (j + l < length) square[l] = CVG_PASTE(cv_load_, CV_CONV_ACC)(panel + (j + l) * CV_LANES);
            }
            CVC_(_transpose)(square);
            CVC_T *out = to + j / CV_CHUNK * rows * CV_CHUNK + j % CV_CHUNK;
            for (int64_t i = 0; i < rows; i++) CVC_STORE(out + i * CV_CHUNK, square[i]);
        }
    }
}

CV_FUNC void CVC_(_store_channels)(const CVC_(_geometry) *g, int64_t batch, int64_t pixel, int64_t rows, int64_t column,
                                   int64_t columns, const CVC_T *tile) {
    int64_t n = batch / g->shape->groups, channel = batch % g->shape->groups * g->out_channels + column;
    (void)n;
    for (int64_t j = 0; j < columns; j += CV_LANES) {
        CVC_V square[CV_LANES];
        for (int64_t i = 0; i < CV_LANES; i++) {
            square[i] = (CVC_V){};
            if (i < rows) {
                square[i] = CVG_PASTE(cv_load_, CV_CONV_ACC)(tile + i * CVG_PASTE(CV_NR_, CV_CONV_ACC) + j);
            }
        }
        CVC_(_transpose)(square);
        for (int64_t l = 0; l < cvg_min(CV_LANES, columns - j); l++) {
            CV_CONV_STORE(g->env, n, (channel + j + l), pixel, rows, square[l]);
        }
    }
}

#define CV_GEMM_A_T CV_CONV_X_T
#define CV_GEMM_B_T CV_CONV_W_T
#define CV_GEMM_PACK_A(e, batch, to, row, rows, k, depth) CVC_(_pack_pixels)(e, batch, to, row, rows, k, depth)
#define CV_GEMM_LOAD_B_ALONG_K(e, batch, k, n, count) CVC_(_load_weights)(e, n, k, count)
#define CV_GEMM_STORE_TILE(e, batch, row, rows, n, columns, tile) \
    CVC_(_store_channels)(e, batch, row, rows, n, columns, tile)
#define CV_GEMM_B_OFFSET(e, batch) ((batch) % ((const CVC_(_geometry) *)(e))->shape->groups * call->b.batch_stride)
#include "cuvil/gemm.h"
#define CVC_PACKED_BYTES(k, out_channels) CVG_PASTE(CVC_(_product), _packed_b_bytes)(k, out_channels)

#endif

/* Bytes of one group's packed weights, and of all. */
CV_FUNC int64_t CVC_(_packed_group_bytes)(const cv_conv_shape *s) {
    if (s->groups < 1) return 0;
    return CVC_PACKED_BYTES(s->channels / s->groups * CVC_TAPS(s), s->out_channels / s->groups);
}
CV_FUNC int64_t CVC_(_packed_w_bytes)(const cv_conv_shape *s) { return s->groups * CVC_(_packed_group_bytes)(s); }

CV_FUNC CVC_(_geometry) CVC_(_geometry_of)(const cv_conv_shape *s, const void *env, const void *x, const void *w) {
    /* At least one channel, since positions are divided by it, be the contraction of no elements at all. */
    int64_t channels = cvg_max(s->channels / s->groups, 1);
    return (CVC_(_geometry)){s, env, x, w, channels, s->out_channels / s->groups, 0};
}

/* Packs contiguous weights of shape (out_channels, channels / groups, *kernel) into _packed_w_bytes(s) bytes. */
CV_FUNC void CVC_(_pack_w)(cv_ctx *ctx, const cv_conv_shape *s, void *to, const void *w) {
    if (s->groups < 1) return;
    CVC_(_geometry) g = CVC_(_geometry_of)(s, 0, 0, w);
    int64_t k = s->channels / s->groups * CVC_TAPS(s), bytes = CVC_(_packed_group_bytes)(s);
    for (int64_t i = 0; i < s->groups; i++, g.w += g.out_channels * k) {
#ifdef CV_CONV_FEW_PIXELS
        CVG_PASTE(CVC_(_product), _pack_b)(ctx, &g, (char *)to + i * bytes, (cv_matrix){0}, k, g.out_channels);
#else
        CVG_PASTE(CVC_(_product), _pack_a)(ctx, &g, (char *)to + i * bytes, (cv_matrix){0}, g.out_channels, k);
#endif
    }
}

CV_FUNC void CVC_(_run)(cv_ctx *ctx, const void *env, const cv_conv_shape *shape, const void *x, const void *packed_w) {
    if (shape->groups < 1) return;
    cv_conv_shape s = *shape;
    const int64_t *xs = s.x_strides;
    int pointwise = xs[4] == 1 && xs[3] == s.in[2] && xs[2] == s.in[1] * s.in[2];
    for (int i = 0; i < 3; i++) {
        pointwise &= s.kernel[i] == 1 && s.stride[i] == 1 && s.padding[i] == 0 && s.input_dilation[i] == 1 &&
                     s.in[i] == s.out[i];
    }
    if (pointwise) { /* one long row: no panel is cut at a row's end */
        s.in[2] = s.out[2] = CVC_PIXELS(shape);
        s.in[0] = s.in[1] = s.out[0] = s.out[1] = 1;
    }
    CVC_(_geometry) g = CVC_(_geometry_of)(&s, env, x, 0);
    g.pointwise = pointwise;
    int64_t k = s.channels / s.groups * CVC_TAPS(&s);
    cv_matrix weights = {packed_w, 0, 0, CVC_(_packed_group_bytes)(&s) / (int64_t)sizeof(CVC_T), 1}, patches = {0};
#ifdef CV_CONV_FEW_PIXELS
    CVG_PASTE(CVC_(_product), _run)(ctx, &g, s.batch * s.groups, CVC_PIXELS(&s), g.out_channels, k, patches, weights);
#else
    CVG_PASTE(CVC_(_product), _run)(ctx, &g, s.batch * s.groups, g.out_channels, CVC_PIXELS(&s), k, weights, patches);
#endif
}

#else /* ================================================================ depthwise */

/* Scratch memory of a band of input rows: half a small first-level cache. */
#define CVC_BAND_BYTES 32768

typedef struct {
    cv_ctx *ctx;
    const void *env;
    const cv_conv_shape *shape;
    const CVC_X_MEM *x;
    const CVC_W_MEM *w;
    int64_t out_per_channel;
    int64_t band, bands;                      /* output rows of a band, bands of an output plane */
    int64_t phase_length, row_length, height; /* of scratch: elements of a phase and a row, rows of a plane */
    int64_t x_bytes, tap_bytes;
} CVC_(_call);

/* One input row with its padding, to `row`: position p (0 is the first that output 0 reads) goes to
 * row[p % stride * phase_length + p / stride], so that neighbouring outputs read neighbouring elements. */
CV_FUNC void CVC_(_copy_row)(const CVC_(_call) *call, CVC_T *row, const CVC_X_MEM *x, int64_t n, int64_t channel) {
    (void)n, (void)channel;
    const cv_conv_shape *s = call->shape;
    int64_t stride = s->stride[2], step = s->x_strides[4], dilation = s->input_dilation[2];
    int64_t span = (s->out[2] - 1) * stride + (s->kernel[2] - 1) * s->dilation[2] + 1;
    for (int64_t i = 0; i < call->row_length; i += CV_LANES) CVC_STORE(row + i, (CVC_V){});
    if (!x) return;
    for (int64_t phase = 0; phase < stride; phase++) {
        int64_t outputs = cvg_ceil_div(cvg_max(span - phase, 0), stride);
        cvc_piece p = cvc_clip(phase - s->padding[2], outputs, s->in[2], stride, dilation);
        const CVC_X_MEM *in = x + p.x0 * step;
        CVC_T *out = row + phase * call->phase_length + p.i0;
        int64_t x_step = p.x_step * step;
        for (int64_t i = 0; i < p.count; i += CV_LANES) {
            int64_t count = cvg_min(CV_LANES, p.count - i);
            CVC_V v;
            if (x_step == 1) {
                v = CVC_LOAD_PART(call->env, n, channel, in + i, count);
#if CVC_IS_32
            } else if (x_step == 2) {
                int64_t reach = 2 * count - 1, low = cvg_min(reach, CV_LANES), high = reach - low;
                CVC_V a = CVC_LOAD_PART(call->env, n, channel, in + 2 * i, low);
                CVC_V b = CVC_LOAD_PART(call->env, n, channel, in + 2 * i + low, high);
                v = (CVC_V)cvc_even((cv_vi32)a, (cv_vi32)b);
#endif
            } else {
                v = CVC_LOAD_STRIDED(call->env, n, channel, in + i * x_step, x_step, count);
            }
            if (p.i_step == 1) {
                CVC_STORE_PART(out + i, v, count);
            } else {
                CVC_T lanes[CV_LANES];
                CVC_STORE(lanes, v);
                for (int64_t l = 0; l < count; l++) out[(i + l) * p.i_step] = lanes[l];
            }
        }
    }
}

/* Rows of outputs whose accumulators live in registers together. */
#define CVC_ROWS 4

#define CVC_ACCUMULATE(ROWS)                                                                                          \
    for (int64_t w = 0; w < s->out[2]; w += CV_LANES) {                                                               \
        CVC_V acc[ROWS];                                                                                              \
        _Pragma("GCC unroll 4") for (int r = 0; r < ROWS; r++) acc[r] = (CVC_V){};                                    \
        for (int64_t t = 0; t < taps; t++) {                                                                          \
            CVC_V weight = CVG_PASTE(cv_splat_, CV_CONV_ACC)(weights[t]);                                             \
            const CVC_T *in = room + (h - h0) * s->stride[1] * call->row_length + offsets[t] + w;                     \
            _Pragma("GCC unroll 4") for (int r = 0; r < ROWS; r++) {                                                  \
                acc[r] = CVG_PASTE(cv_add_, CV_CONV_ACC)(                                                             \
                    acc[r], CVG_PASTE(cv_mul_, CV_CONV_ACC)(                                                          \
                                weight, CVG_PASTE(cv_load_, CV_CONV_ACC)(in + r * s->stride[1] * call->row_length))); \
            }                                                                                                         \
        }                                                                                                             \
        int64_t count = cvg_min(CV_LANES, s->out[2] - w);                                                             \
        for (int r = 0; r < ROWS; r++) {                                                                              \
            int64_t pixel = (d * s->out[1] + h + r) * s->out[2] + w;                                                  \
            CV_CONV_STORE(call->env, n, out_channel, pixel, count, acc[r]);                                           \
        }                                                                                                             \
    }

/* Task: a batch element, an input channel, an output plane and a band of its rows. */
CV_FUNC void CVC_(_tasks)(void *arg, int64_t begin, int64_t end, int worker) {
    const CVC_(_call) *call = arg;
    const cv_conv_shape *s = call->shape;
    char *scratch = cv_scratch(call->ctx, worker, (size_t)(call->x_bytes + call->tap_bytes * 2));
    if (!scratch) return; /* cv_scratch has set the error */
    CVC_T *room = (CVC_T *)scratch, *weights = (CVC_T *)(scratch + call->x_bytes);
    int64_t *offsets = (int64_t *)(scratch + call->x_bytes + call->tap_bytes);
    int64_t taps = CVC_TAPS(s);
    for (int64_t t = 0; t < taps; t++) {
        int64_t td = t / (s->kernel[1] * s->kernel[2]), th = t / s->kernel[2] % s->kernel[1], tw = t % s->kernel[2];
        int64_t at = tw * s->dilation[2];
        offsets[t] = (td * call->height + th * s->dilation[1]) * call->row_length +
                     at % s->stride[2] * call->phase_length + at / s->stride[2];
    }
    for (int64_t task = begin; task < end; task++) {
        int64_t band = task % call->bands, d = task / call->bands % s->out[0];
        int64_t channel = task / call->bands / s->out[0] % s->channels;
        int64_t n = task / call->bands / s->out[0] / s->channels;
        int64_t h0 = band * call->band, h1 = cvg_min(h0 + call->band, s->out[1]);
        const CVC_X_MEM *x = call->x + n * s->x_strides[0] + channel * s->x_strides[1];
        int64_t height = (h1 - 1 - h0) * s->stride[1] + (s->kernel[1] - 1) * s->dilation[1] + 1;
        for (int64_t td = 0; td < s->kernel[0]; td++) {
            int64_t id = cvc_index(d * s->stride[0] + td * s->dilation[0] - s->padding[0], s->in[0],
                                   s->input_dilation[0]);
            for (int64_t i = 0; i < height; i++) {
                int64_t ih = cvc_index(h0 * s->stride[1] + i - s->padding[1], s->in[1], s->input_dilation[1]);
                CVC_(_copy_row)(call, room + (td * call->height + i) * call->row_length,
                                id < 0 || ih < 0 ? 0 : x + id * s->x_strides[2] + ih * s->x_strides[3], n, channel);
            }
        }
        for (int64_t m = 0; m < call->out_per_channel; m++) {
            int64_t out_channel = channel * call->out_per_channel + m;
            const CVC_W_MEM *w = call->w + out_channel * taps;
            for (int64_t t = 0; t < taps; t += CV_LANES) {
                int64_t count = cvg_min(CV_LANES, taps - t);
                CVC_STORE_PART(weights + t, CVC_CAST(CV_CONV_W_T)(CVG_PASTE(cv_load_part_, CV_CONV_W_T)(w + t, count)),
                               count);
            }
            int64_t h = h0;
            for (; h + CVC_ROWS <= h1; h += CVC_ROWS) {
                CVC_ACCUMULATE(CVC_ROWS)
            }
            for (; h < h1; h++) {
                CVC_ACCUMULATE(1)
            }
        }
    }
}

CV_FUNC void CVC_(_run)(cv_ctx *ctx, const void *env, const cv_conv_shape *s, const void *x, const void *w) {
    if (s->batch < 1 || s->channels < 1 || s->out_channels < 1 || CVC_PIXELS(s) < 1) return;
    CVC_(_call) call = {.ctx = ctx, .env = env, .shape = s, .x = x, .w = w};
    call.out_per_channel = s->out_channels / s->channels;
    int64_t span = (s->out[2] - 1) * s->stride[2] + (s->kernel[2] - 1) * s->dilation[2] + 1;
    /* Vectors are loaded whole: the last one of a phase may begin at its last element. */
    call.phase_length = cvg_round_up(cvg_ceil_div(cvg_max(span, 1), s->stride[2]) + CV_LANES, CV_LANES);
    call.row_length = call.phase_length * s->stride[2];
    int64_t halo = (s->kernel[1] - 1) * s->dilation[1] + 1 - s->stride[1]; /* input rows beyond stride times outputs */
    int64_t row_bytes = call.row_length * cvg_max(s->kernel[0], 1) * (int64_t)sizeof(CVC_T);
    int64_t rows = (CVC_BAND_BYTES / row_bytes - halo) / s->stride[1];
    rows = rows / CVC_ROWS * CVC_ROWS;
    call.band = cvg_min(cvg_max(rows, CVC_ROWS), s->out[1]);
    call.bands = cvg_ceil_div(s->out[1], call.band);
    call.height = cvg_max(call.band * s->stride[1] + halo, 0);
    call.x_bytes = cvg_round_up(row_bytes * cvg_max(call.height, 1), 64);
    call.tap_bytes = cvg_round_up(CVC_TAPS(s) * 8, 64) + 64;
    int64_t task_macs = call.band * s->out[2] * (CVC_TAPS(s) + 8) * call.out_per_channel;
    cv_parallel(ctx, s->batch * s->channels * s->out[0] * call.bands, cvg_max(CVG_TASK_MIN / 4 / task_macs, 1),
                CVC_(_tasks), &call);
}

#undef CVC_ACCUMULATE
#undef CVC_ROWS
#undef CVC_BAND_BYTES
#endif

#undef CV_CONV_NAME
#undef CV_CONV_ACC
#undef CV_CONV_X_T
#undef CV_CONV_W_T
#undef CV_CONV_STORE
#undef CV_CONV_MAP_X
#undef CV_CONV_DEPTHWISE
#undef CV_CONV_FEW_PIXELS
#undef CV_CONV_BF16
#undef CVC_
#undef CVC_T
#undef CVC_V
#undef CVC_X_MEM
#undef CVC_W_MEM
#undef CVC_IS_32
#undef CVC_CAST
#undef CVC_STORE
#undef CVC_STORE_PART
#undef CVC_PACKED_BYTES
#undef CVC_X
#undef CVC_LOAD
#undef CVC_LOAD_PART
#undef CVC_LOAD_STRIDED

#endif
