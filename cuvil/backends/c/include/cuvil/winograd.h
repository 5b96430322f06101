/* Winograd's convolution of channels-last float32 images with 3 x 3 kernels, stride 1; a template as conv_last.h is.
 *
 * docs/design/layout.md tells how to use it, and how large its error is. Define CV_CONV_NAME, CV_CONV_TILE (2 or 4)
 * and CV_CONV_STORE, include this file, call CV_CONV_NAME##_run.
 *
 * Method (Lavin and Gray, 2015). A tile of TILE x TILE outputs is the inverse transform of the element-wise products of
 * transformed weights and a transformed patch of (TILE + 2) x (TILE + 2) inputs; summed over channels, the products are
 * (TILE + 2)^2 matrix products of tiles by channels. Weights are transformed and packed beforehand. A task takes some
 * tiles and some panels of output channels: it transforms its patches straight into packed operands, which stay in the
 * second-level cache while its panels pass, and after each panel transforms the sums back and stores them.
 */
#ifndef CUVIL_WINOGRAD_H
#define CUVIL_WINOGRAD_H

#include "cuvil/conv_shape.h"
#include "cuvil/gemm.h"

/* Bytes of transformed patches that a task keeps in the second-level cache: half of one of 2 MiB. */
#define CVW_PATCH_BYTES (1 << 20)
/* Largest tiles of rows in a task. */
#define CVW_MOST_TILES 8

CV_INLINE cv_vf32 cvw_times(float c, cv_vf32 v) { return cv_mul_f32(cv_splat_f32(c), v); }

/* One-dimensional transforms of vectors `step` apart, by the interpolation points 0, 1, -1, (2, -2,) infinity. */
CV_INLINE void cvw_input_2(cv_vf32 *to, const cv_vf32 *d, int step) {
    cv_vf32 a = d[0], b = d[step], c = d[2 * step], e = d[3 * step];
    to[0] = a - c;
    to[step] = b + c;
    to[2 * step] = c - b;
    to[3 * step] = b - e;
}
CV_INLINE void cvw_output_2(cv_vf32 *to, const cv_vf32 *m, int step) {
    cv_vf32 sum = m[step] + m[2 * step], difference = m[step] - m[2 * step];
    to[0] = m[0] + sum;
    to[step] = difference - m[3 * step];
}
CV_INLINE void cvw_input_4(cv_vf32 *to, const cv_vf32 *d, int step) {
    cv_vf32 d0 = d[0], d1 = d[step], d2 = d[2 * step], d3 = d[3 * step], d4 = d[4 * step], d5 = d[5 * step];
    cv_vf32 a = d4 - cvw_times(4, d2), b = d3 - cvw_times(4, d1), c = d4 - d2, e = cvw_times(2, d3 - d1);
    to[0] = cvw_times(4, d0) + (d4 - cvw_times(5, d2));
    to[step] = a + b;
    to[2 * step] = a - b;
    to[3 * step] = c + e;
    to[4 * step] = c - e;
    to[5 * step] = cvw_times(4, d1) + (d5 - cvw_times(5, d3));
}
CV_INLINE void cvw_output_4(cv_vf32 *to, const cv_vf32 *m, int step) {
    cv_vf32 m1 = m[step], m2 = m[2 * step], m3 = m[3 * step], m4 = m[4 * step];
    cv_vf32 s = m1 + m2, d = m1 - m2, t = m3 + m4, e = m3 - m4;
    to[0] = m[0] + s + t;
    to[step] = d + cvw_times(2, e);
    to[2 * step] = s + cvw_times(4, t);
    to[3 * step] = d + cvw_times(8, e) + m[5 * step];
}

/* Rows of G, which transforms weights along one axis. */
static const double cvw_weights_2[4][3] = {{1, 0, 0}, {0.5, 0.5, 0.5}, {0.5, -0.5, 0.5}, {0, 0, 1}};
static const double cvw_weights_4[6][3] = {{1.0 / 4, 0, 0},
                                           {-1.0 / 6, -1.0 / 6, -1.0 / 6},
                                           {-1.0 / 6, 1.0 / 6, -1.0 / 6},
                                           {1.0 / 24, 1.0 / 12, 1.0 / 6},
                                           {1.0 / 24, -1.0 / 12, 1.0 / 6},
                                           {0, 0, 1}};

/* Columns of the panel that starts at column n: the last one takes half where that is enough. */
CV_INLINE int64_t cvw_width(int64_t n, int64_t columns) { return columns - n <= CV_NR_f32 / 2 ? CV_NR_f32 / 2 : CV_NR_f32; }

#endif

/* ================================================================ the template */
#ifdef CV_CONV_NAME

#define CVW_(suffix) CVG_PASTE(CV_CONV_NAME, suffix)
#define CVW_SIDE (CV_CONV_TILE + 2)
#define CVW_PRODUCTS (CVW_SIDE * CVW_SIDE)
#define CVW_INPUT CVG_PASTE(cvw_input_, CV_CONV_TILE)
#define CVW_OUTPUT CVG_PASTE(cvw_output_, CV_CONV_TILE)
#define CVW_WEIGHTS CVG_PASTE(cvw_weights_, CV_CONV_TILE)

typedef struct {
    cv_ctx *ctx;
    const void *env;
    const cv_conv_shape *shape;
    const float *x, *w;
    float *packed;
    int64_t down, across, tiles; /* tiles of an image along its axes, and of all images */
    int64_t row_blocks, column_blocks, block_panels, panels;
    int64_t depth, plane;        /* channels rounded up to whole chunks; elements of one product's operand */
    int64_t next_task;
    size_t patch_bytes, sum_bytes;
} CVW_(_call);

CV_FUNC int64_t CVW_(_packed_w_bytes)(const cv_conv_shape *s) {
    int64_t whole = s->out_channels / CV_NR_f32 * CV_NR_f32;
    int64_t columns = whole + (s->out_channels > whole ? cvw_width(whole, s->out_channels) : 0);
    return columns * s->channels * CVW_PRODUCTS * (int64_t)sizeof(float);
}

/* A panel: for each product its rows of channels. The weights are (out_channels, channels, 3, 3). */
CV_FUNC void CVW_(_pack_panels)(void *arg, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const CVW_(_call) *call = arg;
    int64_t channels = call->shape->channels, columns = call->shape->out_channels;
    for (int64_t panel = begin; panel < end; panel++) {
        int64_t n = panel * CV_NR_f32, width = cvw_width(n, columns);
        float *to = call->packed + n * channels * CVW_PRODUCTS;
        for (int64_t c = 0; c < channels; c++) {
            for (int64_t j = 0; j < width; j++) {
                double half[CVW_SIDE][3] = {{0}};
                if (n + j < columns) {
                    const float *w = call->w + ((n + j) * channels + c) * 9;
                    for (int i = 0; i < CVW_SIDE; i++) {
                        for (int t = 0; t < 3; t++) {
                            for (int r = 0; r < 3; r++) half[i][t] += CVW_WEIGHTS[i][r] * (double)w[r * 3 + t];
                        }
                    }
                }
                for (int i = 0; i < CVW_PRODUCTS; i++) {
                    const double *g = CVW_WEIGHTS[i % CVW_SIDE], *h = half[i / CVW_SIDE];
                    to[(i * channels + c) * width + j] = (float)(h[0] * g[0] + h[1] * g[1] + h[2] * g[2]);
                }
            }
        }
    }
}

/* Transforms contiguous weights of shape (out_channels, channels, 3, 3) into _packed_w_bytes(s) bytes. */
CV_FUNC void CVW_(_pack_w)(cv_ctx *ctx, const cv_conv_shape *s, void *to, const void *w) {
    CVW_(_call) call = {.ctx = ctx, .shape = s, .w = w, .packed = to};
    cv_parallel(ctx, cvg_ceil_div(s->out_channels, CV_NR_f32), 1, CVW_(_pack_panels), &call);
}

/* The transformed patch of a tile as row i of `rows` of a tile of A, for all products and channels. */
CV_FUNC void CVW_(_patch)(const CVW_(_call) *call, float *to, int64_t tile, int64_t i, int64_t rows) {
    const cv_conv_shape *s = call->shape;
    int64_t across = tile % call->across, down = tile / call->across % call->down;
    const float *image = call->x + tile / call->across / call->down * s->x_strides[0];
    int64_t h = down * CV_CONV_TILE - s->padding[1], w = across * CV_CONV_TILE - s->padding[2];
    int inside = h >= 0 && w >= 0 && h + CVW_SIDE <= s->in[1] && w + CVW_SIDE <= s->in[2];
    for (int64_t c = 0; c < s->channels; c += CV_LANES) {
        int64_t count = cvg_min(CV_LANES, s->channels - c);
        const float *from = image + h * s->x_strides[3] + w * s->x_strides[4] + c;
        cv_vf32 patch[CVW_PRODUCTS], half[CVW_PRODUCTS];
        if (inside && count == CV_LANES) {
            for (int y = 0; y < CVW_SIDE; y++) {
                _Pragma("GCC unroll 6") for (int x = 0; x < CVW_SIDE; x++) {
                    patch[y * CVW_SIDE + x] = cv_load_f32(from + y * s->x_strides[3] + x * s->x_strides[4]);
                }
            }
        } else {
            for (int y = 0; y < CVW_SIDE; y++) {
                for (int x = 0; x < CVW_SIDE; x++) {
                    int in = h + y >= 0 && h + y < s->in[1] && w + x >= 0 && w + x < s->in[2];
                    patch[y * CVW_SIDE + x] =
                        in ? cv_load_part_f32(from + y * s->x_strides[3] + x * s->x_strides[4], count) : (cv_vf32){};
                }
            }
        }
        for (int x = 0; x < CVW_SIDE; x++) CVW_INPUT(half + x, patch + x, CVW_SIDE);
        for (int y = 0; y < CVW_SIDE; y++) CVW_INPUT(patch + y * CVW_SIDE, half + y * CVW_SIDE, 1);
        float *at = to + (c - c % CV_CHUNK) * rows + i * CV_CHUNK + c % CV_CHUNK;
        for (int p = 0; p < CVW_PRODUCTS; p++) cv_store_f32(at + p * call->plane, patch[p]);
    }
}

/* Transforms the sums of a tile back and stores its outputs: `columns` channels from n on. */
CV_FUNC void CVW_(_outputs)(const CVW_(_call) *call, const float *sums, int64_t step, int64_t tile, int64_t n,
                            int64_t columns) {
    const cv_conv_shape *s = call->shape;
    int64_t across = tile % call->across, down = tile / call->across % call->down;
    int64_t image = tile / call->across / call->down;
    int64_t h = down * CV_CONV_TILE, w = across * CV_CONV_TILE;
    int64_t height = cvg_min(CV_CONV_TILE, s->out[1] - h), width = cvg_min(CV_CONV_TILE, s->out[2] - w);
    int64_t pixel = (image * s->out[1] + h) * s->out[2] + w;
    for (int64_t j = 0; j < columns; j += CV_LANES) {
        int64_t count = cvg_min(CV_LANES, columns - j);
        cv_vf32 m[CVW_PRODUCTS], half[CV_CONV_TILE * CVW_SIDE], out[CV_CONV_TILE * CV_CONV_TILE];
        for (int p = 0; p < CVW_PRODUCTS; p++) m[p] = cv_load_f32(sums + p * step + j);
        for (int x = 0; x < CVW_SIDE; x++) CVW_OUTPUT(half + x, m + x, CVW_SIDE);
        for (int y = 0; y < CV_CONV_TILE; y++) CVW_OUTPUT(out + y * CV_CONV_TILE, half + y * CVW_SIDE, 1);
        for (int64_t y = 0; y < height; y++) {
            for (int64_t x = 0; x < width; x++) {
                CV_CONV_STORE(call->env, (pixel + y * s->out[2] + x), (n + j), count, out[y * CV_CONV_TILE + x]);
            }
        }
    }
}

CV_FUNC void CVW_(_task)(const CVW_(_call) *call, int64_t task, char *scratch) {
    const cv_conv_shape *s = call->shape;
    const struct cv_microkernels *kernels = call->ctx->microkernels;
    int64_t row_block = task / call->column_blocks, column_block = task % call->column_blocks;
    int64_t first = row_block * call->tiles / call->row_blocks, end = (row_block + 1) * call->tiles / call->row_blocks;
    int64_t groups = cvg_ceil_div(end - first, CV_MR), per = cvg_ceil_div(end - first, groups);
    float *patches = (float *)scratch, *sums = (float *)(scratch + call->patch_bytes);
    for (int64_t t = first; t < end; t++) {
        int64_t i = (t - first) % per, start = t - i;
        CVW_(_patch)(call, patches + (start - first) * call->depth, t, i, cvg_min(per, end - start));
    }
    int64_t panel = column_block * call->block_panels, end_panel = cvg_min(panel + call->block_panels, call->panels);
    int64_t step = groups * CV_MR * CV_NR_f32; /* from one product's sums to the next one's */
    for (; panel < end_panel; panel++) {
        int64_t n = panel * CV_NR_f32, width = cvw_width(n, s->out_channels);
        const float *b = call->w + n * s->channels * CVW_PRODUCTS;
        for (int p = 0; p < CVW_PRODUCTS; p++, b += s->channels * width) {
            for (int64_t g = 0; g < groups; g++) {
                int64_t row = g * per, rows = cvg_min(per, end - first - row);
                cv_microkernel kernel = width == CV_NR_f32 ? kernels->full_f32[rows - 1] : kernels->half_f32[rows - 1];
                const char *ahead = (const char *)(b + s->channels * width) + g * s->channels * 64;
                kernel(s->channels, patches + p * call->plane + row * call->depth, b, width, 0,
                       sums + p * step + g * CV_MR * CV_NR_f32, 0, ahead, 64);
            }
        }
        for (int64_t t = first; t < end; t++) {
            int64_t g = (t - first) / per, i = (t - first) % per;
            CVW_(_outputs)(call, sums + (g * CV_MR + i) * CV_NR_f32, step, t, n, cvg_min(width, s->out_channels - n));
        }
    }
}

CV_FUNC void CVW_(_work)(void *arg, int64_t begin, int64_t end, int worker) {
    (void)begin, (void)end;
    CVW_(_call) *call = arg;
    int64_t tasks = call->row_blocks * call->column_blocks;
    int64_t task = __atomic_fetch_add(&call->next_task, 1, __ATOMIC_RELAXED);
    if (task >= tasks) return;
    char *scratch = cv_scratch(call->ctx, worker, call->patch_bytes + call->sum_bytes);
    if (!scratch) return; /* cv_scratch has set the error */
    for (; task < tasks; task = __atomic_fetch_add(&call->next_task, 1, __ATOMIC_RELAXED)) {
        CVW_(_task)(call, task, scratch);
    }
}

CV_FUNC void CVW_(_run)(cv_ctx *ctx, const void *env, const cv_conv_shape *s, const void *x, const void *packed_w) {
    if (s->batch < 1 || s->out_channels < 1 || CVC_PIXELS(s) < 1) return;
    CVW_(_call) call = {.ctx = ctx, .env = env, .shape = s, .x = x, .w = packed_w};
    call.down = cvg_ceil_div(s->out[1], CV_CONV_TILE);
    call.across = cvg_ceil_div(s->out[2], CV_CONV_TILE);
    call.tiles = s->batch * call.down * call.across;
    call.panels = cvg_ceil_div(s->out_channels, CV_NR_f32);
    call.depth = cvg_round_up(cvg_max(s->channels, 1), CV_CHUNK);
    /* As many tiles as the cache holds patches of, in whole tiles of rows; then blocks of columns, until the workers
     * have enough. Columns cost their transforms of the patches again, rows the weights from afar again. */
    int64_t most = CVW_PATCH_BYTES / (call.depth * CVW_PRODUCTS * (int64_t)sizeof(float)) / CV_MR * CV_MR;
    most = cvg_min(cvg_max(most, CV_MR), CVW_MOST_TILES * CV_MR);
    call.row_blocks = cvg_ceil_div(call.tiles, most);
    int64_t workers = cv_workers(ctx);
    if (call.row_blocks < 4 * workers) { /* an even share for each */
        int64_t even = cvg_round_up(call.row_blocks, workers);
        if (call.tiles / even >= CV_MR - 2) call.row_blocks = even;
    }
    int64_t columns = call.row_blocks % workers ? cvg_ceil_div(workers, call.row_blocks) : 1;
    call.block_panels = cvg_ceil_div(call.panels, cvg_min(columns, call.panels));
    call.column_blocks = cvg_ceil_div(call.panels, call.block_panels);
    int64_t rows = cvg_round_up(cvg_ceil_div(call.tiles, call.row_blocks), CV_MR);
    /* Another line between the operands of neighbouring products, lest they all fall into the same sets of the cache. */
    call.plane = rows * call.depth + 16;
    call.patch_bytes = (size_t)(call.plane * CVW_PRODUCTS) * sizeof(float);
    call.sum_bytes = (size_t)(rows * CV_NR_f32 * CVW_PRODUCTS) * sizeof(float);
    cv_parallel(ctx, call.row_blocks * call.column_blocks, 1, CVW_(_work), &call);
}

#undef CV_CONV_NAME
#undef CV_CONV_TILE
#undef CV_CONV_STORE
#undef CVW_
#undef CVW_SIDE
#undef CVW_PRODUCTS
#undef CVW_INPUT
#undef CVW_OUTPUT
#undef CVW_WEIGHTS

#endif
