/* Convolution of channels-last arrays, (batch, *spatial, channels), with fused epilogue; a template as conv.h is.
 *
 * docs/design/layout.md tells how to use it. In short: define CV_CONV_NAME, CV_CONV_ACC, CV_CONV_X_T, CV_CONV_W_T and
 * CV_CONV_STORE, include this file, call CV_CONV_NAME##_run.
 *
 * With CV_CONV_DEPTHWISE defined it makes the kernel for groups of one input and one output channel.
 *
 * Method. The matrix of input patches times weights: rows are output pixels of all images, columns output channels, and
 * k runs over (tap, input channel), channel fastest. Channels lie together, so the patch of a pixel is a few runs of
 * memory, one for each row of the kernel's taps, and packing tiles of the patch matrix is copying. The depthwise kernel
 * adds taps to a few pixels at once, lanes running along the channels.
 */
#ifndef CUVIL_CONV_LAST_H
#define CUVIL_CONV_LAST_H

#include "cuvil/conv_shape.h"
#include "cuvil/gemm.h"

#endif

/* ================================================================ the template */
#ifdef CV_CONV_NAME

#define CVL_(suffix) CVG_PASTE(CV_CONV_NAME, suffix)
#define CVL_T CVG_PASTE(cv_elem_reg_, CV_CONV_ACC)
#define CVL_V CVG_PASTE(cv_v, CV_CONV_ACC)
#define CVL_X_MEM CVG_PASTE(cv_elem_, CV_CONV_X_T)
#define CVL_W_MEM CVG_PASTE(cv_elem_, CV_CONV_W_T)
#define CVL_CAST(dt) CVG_PASTE4(cv_cast_, CV_ELEM_REG(dt), _, CV_CONV_ACC)
#define CVL_STORE CVG_PASTE(cv_store_, CV_CONV_ACC)
#define CVL_STORE_PART CVG_PASTE(cv_store_part_, CV_CONV_ACC)
#define CVL_LOAD(p) CVL_CAST(CV_CONV_X_T)(CVG_PASTE(cv_load_, CV_CONV_X_T)(p))
#define CVL_LOAD_PART(p, count) CVL_CAST(CV_CONV_X_T)(CVG_PASTE(cv_load_part_, CV_CONV_X_T)(p, count))

#ifndef CV_CONV_DEPTHWISE

typedef struct {
    const cv_conv_shape *shape;
    const void *env; /* the kernel's own */
    const CVL_X_MEM *x, *x_end;
    const CVL_W_MEM *w;
    int64_t channels, out_channels; /* of a group */
    int64_t together;               /* taps of a row of taps that lie in one run of memory */
} CVL_(_geometry);

/* Writes `count` elements: those of x, or zeros where x is null. */
CV_INLINE void CVL_(_copy)(CVL_T *to, const CVL_X_MEM *x, int64_t count) {
    for (int64_t l = 0; l < count; l += CV_LANES) {
        int64_t part = cvg_min(CV_LANES, count - l);
        CVL_STORE_PART(to + l, x ? CVL_LOAD_PART(x + l, part) : (CVL_V){}, part);
    }
}

/* Of `count` elements those in [low, high) of x, and zeros around them. */
CV_FUNC __attribute__((noinline)) void CVL_(_copy_inside)(CVL_T *to, const CVL_X_MEM *x, int64_t low, int64_t high,
                                                          int64_t count) {
    low = cvg_min(cvg_max(low, 0), count);
    high = cvg_min(cvg_max(high, low), count);
    CVL_(_copy)(to, 0, low);
    CVL_(_copy)(to + low, x + low, high - low);
    CVL_(_copy)(to + high, 0, count - high);
}

/* A whole row of a chunk for each of some pixels: elements [from, from + CV_CHUNK) of their runs. A function of its own
 * has the registers for it. */
CV_FUNC __attribute__((noinline)) void CVL_(_copy_chunks)(CVL_T *to, const CVL_X_MEM *const *lines, int64_t offset,
                                                          const int64_t *low, const int64_t *high, int64_t from,
                                                          int64_t pixels) {
    for (int64_t i = 0; i < pixels; i++, to += CV_CHUNK) {
        const CVL_X_MEM *x = lines[i] + offset;
        if (low[i] <= from && high[i] >= from + CV_CHUNK) {
            _Pragma("GCC unroll 8") for (int l = 0; l < CV_CHUNK; l += CV_LANES) CVL_STORE(to + l, CVL_LOAD(x + l));
        } else {
            CVL_(_copy_inside)(to, x, low[i] - from, high[i] - from, CV_CHUNK);
        }
    }
}

/* Columns [k, k + depth) of the patches of `rows` pixels of a group, from pixel `row` on, as a tile of A. */
CV_FUNC void CVL_(_pack_pixels)(const CVL_(_geometry) *g, int64_t group, CVL_T *to, int64_t row, int64_t rows,
                                int64_t k, int64_t depth) {
    const cv_conv_shape *s = g->shape;
    /* A run is the channels of one tap or, where neighbouring taps are neighbours in memory, of a row of taps. Of that
     * of a pixel, elements [low, high) are inside the input, if its row of the input is; line + its place is the first. */
    int64_t length = g->together * g->channels, runs = s->kernel[2] / g->together;
    const CVL_X_MEM *images[CV_MR], *lines[CV_MR];
    int64_t columns[CV_MR], low[CV_MR], high[CV_MR];
    /* Segments: pixels of one row of an image. */
    int64_t segments = 0, ends[CV_MR], planes[CV_MR], heights[CV_MR];
    int64_t w = row % s->out[2], h = row / s->out[2], d = h / s->out[1], n = d / s->out[0];
    h -= d * s->out[1];
    d -= n * s->out[0];
    for (int64_t i = 0; i < rows; w = 0, segments++) {
        const CVL_X_MEM *image = g->x + n * s->x_strides[0] + group * g->channels;
        planes[segments] = d * s->stride[0] - s->padding[0];
        heights[segments] = h * s->stride[1] - s->padding[1];
        int64_t end = ends[segments] = cvg_min(i + s->out[2] - w, rows);
        for (int64_t at = w * s->stride[2] - s->padding[2]; i < end; i++, at += s->stride[2]) {
            images[i] = image;
            columns[i] = at;
            lines[i] = image + at * s->x_strides[4];
            low[i] = cvg_min(cvg_max(-at, 0), g->together) * g->channels;
            high[i] = cvg_min(cvg_max(s->in[2] - at, 0), g->together) * g->channels;
        }
        if (++h == s->out[1]) {
            h = 0;
            if (++d == s->out[0]) {
                d = 0;
                n++;
            }
        }
    }
    int64_t run = k / length, skip = k - run * length;
    int64_t th = run / runs, tw = (run - th * runs) * g->together, td = th / s->kernel[1];
    th -= td * s->kernel[1];
    for (int64_t done = 0; done < depth;) {
        int64_t count = cvg_min(length - skip, depth - done);
        if (g->together == 1) {
            for (int64_t i = 0; i < rows; i++) {
                int64_t iw = cvc_index(columns[i] + tw * s->dilation[2], s->in[2], s->input_dilation[2]);
                low[i] = 0;
                high[i] = iw < 0 ? 0 : length;
                lines[i] = images[i] + iw * s->x_strides[4];
            }
        }
        for (int64_t segment = 0, first = 0; segment < segments; first = ends[segment++]) {
            int64_t id = cvc_index(planes[segment] + td * s->dilation[0], s->in[0], s->input_dilation[0]);
            int64_t ih = cvc_index(heights[segment] + th * s->dilation[1], s->in[1], s->input_dilation[1]);
            int64_t offset = id * s->x_strides[2] + ih * s->x_strides[3], outside = id < 0 || ih < 0;
            for (int64_t start = 0; start < count;) { /* what lies in one chunk */
                int64_t in_chunk = (done + start) & (CV_CHUNK - 1), part = cvg_min(CV_CHUNK - in_chunk, count - start);
                int64_t whole = cvg_round_up(part, CV_LANES), from = skip + start, end = from + part;
                CVL_T *out = to + (done + start - in_chunk) * rows + in_chunk + first * CV_CHUNK;
                /* Copied in whole vectors where the chunk has room: what is too much will be overwritten. */
                int fits = in_chunk + whole <= CV_CHUNK;
                start += part;
                if (outside) {
                    for (int64_t i = first; i < ends[segment]; i++, out += CV_CHUNK) CVL_(_copy)(out, 0, part);
                } else if (part == CV_CHUNK) {
                    CVL_(_copy_chunks)(out, lines + first, offset + from, low + first, high + first, from,
                                       ends[segment] - first);
                } else {
                    for (int64_t i = first; i < ends[segment]; i++, out += CV_CHUNK) {
                        const CVL_X_MEM *x = lines[i] + offset + from;
                        int inside = low[i] <= from && high[i] >= end;
                        if (inside && fits && x + whole <= g->x_end) {
                            for (int64_t l = 0; l < whole; l += CV_LANES) CVL_STORE(out + l, CVL_LOAD(x + l));
                        } else if (inside) {
                            CVL_(_copy)(out, x, part);
                        } else {
                            CVL_(_copy_inside)(out, x, low[i] - from, high[i] - from, part);
                        }
                    }
                }
            }
        }
        done += count;
        skip = 0;
        tw += g->together;
        if (tw == s->kernel[2]) {
            tw = 0;
            if (++th == s->kernel[1]) {
                th = 0;
                td++;
            }
        }
    }
}

/* Weights (k, n) of a group: `count` along k, that is along the channels of one tap after the other. */
CV_INLINE CVL_V CVL_(_load_weights)(const CVL_(_geometry) *g, int64_t n, int64_t k, int64_t count) {
    int64_t taps = CVC_TAPS(g->shape), offsets[CV_LANES] = {0};
    for (int64_t l = 0; l < count; l++) {
        offsets[l] = (n * g->channels + (k + l) % g->channels) * taps + (k + l) / g->channels;
    }
    return CVL_CAST(CV_CONV_W_T)(CVG_PASTE(cv_gather_, CV_CONV_W_T)(g->w, offsets, count));
}

CV_INLINE void CVL_(_store)(const CVL_(_geometry) *g, int64_t group, int64_t m, int64_t n, int64_t count, CVL_V v) {
    CV_CONV_STORE(g->env, m, (group * g->out_channels + n), count, v);
}

#define CV_GEMM_NAME CVL_(_product)
#ifdef CV_CONV_BF16
#define CV_GEMM_BF16 1
#endif
#define CV_GEMM_ACC CV_CONV_ACC
#define CV_GEMM_A_T CV_CONV_X_T
#define CV_GEMM_B_T CV_CONV_W_T
#define CV_GEMM_PACK_A(e, batch, to, row, rows, k, depth) CVL_(_pack_pixels)(e, batch, to, row, rows, k, depth)
#define CV_GEMM_LOAD_B_ALONG_K(e, batch, k, n, count) CVL_(_load_weights)(e, n, k, count)
#define CV_GEMM_STORE(e, batch, m, n, count, v) CVL_(_store)(e, batch, m, n, count, v)
#include "cuvil/gemm.h"

CV_FUNC int64_t CVL_(_packed_group_bytes)(const cv_conv_shape *s) {
    if (s->groups < 1) return 0;
    return CVG_PASTE(CVL_(_product), _packed_b_bytes)(s->channels / s->groups * CVC_TAPS(s),
                                                      s->out_channels / s->groups);
}
CV_FUNC int64_t CVL_(_packed_w_bytes)(const cv_conv_shape *s) { return s->groups * CVL_(_packed_group_bytes)(s); }

CV_FUNC CVL_(_geometry) CVL_(_geometry_of)(const cv_conv_shape *s, const void *env, const void *x, const void *w) {
    /* At least one channel, since positions are divided by it, be the contraction of no elements at all. */
    int64_t channels = cvg_max(s->channels / s->groups, 1);
    /* Images follow each other, and the last element of one is its last channel's. */
    int64_t last = (s->in[0] - 1) * s->x_strides[2] + (s->in[1] - 1) * s->x_strides[3] + (s->in[2] - 1) * s->x_strides[4];
    const CVL_X_MEM *start = x, *end = start;
    if (x && s->batch > 0) end += (s->batch - 1) * s->x_strides[0] + last + s->channels;
    CVL_(_geometry) g = {s, env, start, end, w, channels, s->out_channels / s->groups, 1};
    if (s->groups == 1 && s->dilation[2] == 1 && s->input_dilation[2] == 1 && s->x_strides[4] == channels) {
        g.together = s->kernel[2];
    }
    return g;
}

/* Packs contiguous weights of shape (out_channels, channels / groups, *kernel) into _packed_w_bytes(s) bytes. */
CV_FUNC void CVL_(_pack_w)(cv_ctx *ctx, const cv_conv_shape *s, void *to, const void *w) {
    if (s->groups < 1) return;
    CVL_(_geometry) g = CVL_(_geometry_of)(s, 0, 0, w);
    int64_t k = s->channels / s->groups * CVC_TAPS(s), bytes = CVL_(_packed_group_bytes)(s);
    for (int64_t i = 0; i < s->groups; i++, g.w += g.out_channels * k) {
        CVG_PASTE(CVL_(_product), _pack_b)(ctx, &g, (char *)to + i * bytes, (cv_matrix){0}, k, g.out_channels);
    }
}

CV_FUNC void CVL_(_run)(cv_ctx *ctx, const void *env, const cv_conv_shape *s, const void *x, const void *packed_w) {
    if (s->groups < 1) return;
    CVL_(_geometry) g = CVL_(_geometry_of)(s, env, x, 0);
    int64_t k = s->channels / s->groups * CVC_TAPS(s);
    cv_matrix weights = {packed_w, 0, 0, CVL_(_packed_group_bytes)(s) / (int64_t)sizeof(CVL_T), 1}, patches = {0};
    CVG_PASTE(CVL_(_product), _run)(ctx, &g, s->groups, s->batch * CVC_PIXELS(s), g.out_channels, k, patches, weights);
}

#else /* ================================================================ depthwise */

typedef struct {
    cv_ctx *ctx;
    const void *env;
    const cv_conv_shape *shape;
    const CVL_X_MEM *x;
    const CVL_T *w; /* [tap][channel] */
} CVL_(_call);

CV_FUNC int64_t CVL_(_packed_w_bytes)(const cv_conv_shape *s) {
    return CVC_TAPS(s) * s->channels * (int64_t)sizeof(CVL_T);
}

/* Weights (channels, 1, *kernel) as rows of channels, one for each tap. */
CV_FUNC void CVL_(_pack_w)(cv_ctx *ctx, const cv_conv_shape *s, void *to, const void *w) {
    (void)ctx;
    const CVL_W_MEM *from = w;
    CVL_T *out = to;
    int64_t taps = CVC_TAPS(s);
    for (int64_t t = 0; t < taps; t++) {
        for (int64_t c = 0; c < s->channels; c += CV_LANES) {
            int64_t count = cvg_min(CV_LANES, s->channels - c);
            CVL_V v = CVL_CAST(CV_CONV_W_T)(
                CVG_PASTE(cv_load_strided_, CV_CONV_W_T)(from + c * taps + t, taps, count));
            CVL_STORE_PART(out + t * s->channels + c, v, count);
        }
    }
}

/* PIXELS neighbouring outputs of VECTORS vectors of channels; their accumulators live in registers while the taps pass.
 * More than one pixel are all inside the input or all outside with every tap of a row of taps. */
#define CVL_PIXELS 6
#define CVL_VECTORS 2
#define CVL_DEPTHWISE(PIXELS, VECTORS, LOAD, STORE)                                                                   \
    {                                                                                                                 \
        CVL_V acc[PIXELS][VECTORS];                                                                                   \
        _Pragma("GCC unroll 8") for (int i = 0; i < PIXELS; i++)                                                      \
            _Pragma("GCC unroll 4") for (int v = 0; v < VECTORS; v++) acc[i][v] = (CVL_V){};                          \
        for (int64_t td = 0; td < s->kernel[0]; td++) {                                                               \
            int64_t id = cvc_index(at[0] + td * s->dilation[0], s->in[0], s->input_dilation[0]);                      \
            for (int64_t th = 0; id >= 0 && th < s->kernel[1]; th++) {                                                \
                int64_t ih = cvc_index(at[1] + th * s->dilation[1], s->in[1], s->input_dilation[1]);                  \
                if (ih < 0) continue;                                                                                 \
                const CVL_X_MEM *line = image + id * s->x_strides[2] + ih * s->x_strides[3] + c;                      \
                const CVL_T *tap = call->w + ((td * s->kernel[1] + th) * s->kernel[2]) * s->channels + c;             \
                for (int64_t tw = 0; tw < s->kernel[2]; tw++, tap += s->channels) {                                   \
                    int64_t iw = cvc_index(at[2] + tw * s->dilation[2], s->in[2], s->input_dilation[2]);              \
                    if (iw < 0) continue;                                                                             \
                    const CVL_X_MEM *from = line + iw * s->x_strides[4];                                              \
                    _Pragma("GCC unroll 4") for (int v = 0; v < VECTORS; v++) {                                       \
                        CVL_V weight = LOAD##_W(tap + v * CV_LANES);                                                  \
                        _Pragma("GCC unroll 8") for (int i = 0; i < PIXELS; i++) {                                    \
                            acc[i][v] = CVG_PASTE(cv_add_, CV_CONV_ACC)(                                              \
                                acc[i][v], CVG_PASTE(cv_mul_, CV_CONV_ACC)(                                           \
                                               weight, LOAD##_X(from + i * step + v * CV_LANES)));                    \
                        }                                                                                             \
                    }                                                                                                 \
                }                                                                                                     \
            }                                                                                                         \
        }                                                                                                             \
        for (int i = 0; i < PIXELS; i++) {                                                                            \
            for (int v = 0; v < VECTORS; v++) {                                                                       \
                CV_CONV_STORE(call->env, (pixel + w + i), (c + v * CV_LANES), STORE, acc[i][v]);                      \
            }                                                                                                         \
        }                                                                                                             \
    }
#define CVL_WHOLE_W(p) CVG_PASTE(cv_load_, CV_CONV_ACC)(p)
#define CVL_WHOLE_X(p) CVL_LOAD(p)
#define CVL_PART_W(p) CVG_PASTE(cv_load_part_, CV_CONV_ACC)(p, count)
#define CVL_PART_X(p) CVL_LOAD_PART(p, count)

/* Task: a row of outputs of an image. */
CV_FUNC void CVL_(_rows)(void *arg, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const CVL_(_call) *call = arg;
    const cv_conv_shape *s = call->shape;
    int64_t stride = s->stride[2], step = stride * s->x_strides[4], plain = s->input_dilation[2] == 1;
    int64_t reach = (s->kernel[2] - 1) * s->dilation[2];
    /* Outputs [inner, outer) read all taps of a row inside the input. */
    int64_t inner = cvg_min(cvg_max(cvg_ceil_div(cvg_max(s->padding[2], 0), stride), 0), s->out[2]);
    int64_t outer = plain ? cvg_min(cvc_floor_div(s->in[2] - 1 - reach + s->padding[2], stride) + 1, s->out[2]) : 0;
    for (int64_t row = begin; row < end; row++) {
        int64_t h = row % s->out[1], d = row / s->out[1] % s->out[0], n = row / s->out[1] / s->out[0];
        int64_t pixel = row * s->out[2];
        int64_t at[3] = {d * s->stride[0] - s->padding[0], h * s->stride[1] - s->padding[1], 0};
        const CVL_X_MEM *image = call->x + n * s->x_strides[0];
        for (int64_t c = 0; c < s->channels;) {
            int64_t count = cvg_min(s->channels - c, CV_LANES), vectors = 1;
            if (s->channels - c >= CVL_VECTORS * CV_LANES) vectors = CVL_VECTORS;
            for (int64_t w = 0; w < s->out[2];) {
                at[2] = w * stride - s->padding[2];
                if (plain && w >= inner && w + CVL_PIXELS <= outer && count == CV_LANES) {
                    if (vectors == CVL_VECTORS) CVL_DEPTHWISE(CVL_PIXELS, CVL_VECTORS, CVL_WHOLE, CV_LANES)
                    else CVL_DEPTHWISE(CVL_PIXELS, 1, CVL_WHOLE, CV_LANES)
                    w += CVL_PIXELS;
                } else {
                    if (vectors == CVL_VECTORS) CVL_DEPTHWISE(1, CVL_VECTORS, CVL_WHOLE, CV_LANES)
                    else CVL_DEPTHWISE(1, 1, CVL_PART, count)
                    w++;
                }
            }
            c += vectors * CV_LANES;
        }
    }
}

CV_FUNC void CVL_(_run)(cv_ctx *ctx, const void *env, const cv_conv_shape *s, const void *x, const void *packed_w) {
    if (s->batch < 1 || s->channels < 1 || CVC_PIXELS(s) < 1) return;
    CVL_(_call) call = {ctx, env, s, x, packed_w};
    int64_t macs = s->out[2] * s->channels * (CVC_TAPS(s) + 8) / CV_LANES;
    cv_parallel(ctx, s->batch * s->out[0] * s->out[1], cvg_max(CVG_TASK_MIN / 4 / macs, 1), CVL_(_rows), &call);
}

#undef CVL_DEPTHWISE
#undef CVL_PIXELS
#undef CVL_VECTORS
#undef CVL_WHOLE_W
#undef CVL_WHOLE_X
#undef CVL_PART_W
#undef CVL_PART_X
#endif

#undef CV_CONV_NAME
#undef CV_CONV_ACC
#undef CV_CONV_X_T
#undef CV_CONV_W_T
#undef CV_CONV_STORE
#undef CV_CONV_DEPTHWISE
#undef CV_CONV_BF16
#undef CVL_
#undef CVL_T
#undef CVL_V
#undef CVL_X_MEM
#undef CVL_W_MEM
#undef CVL_CAST
#undef CVL_STORE
#undef CVL_STORE_PART
#undef CVL_LOAD
#undef CVL_LOAD_PART

#endif
