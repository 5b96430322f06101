/* What convolution templates share: the geometry of a convolution, and which input positions its outputs read. */
#ifndef CUVIL_CONV_SHAPE_H
#define CUVIL_CONV_SHAPE_H

#include "cuvil/gemm.h"

/* Axes are depth, height, width; a convolution of fewer axes has leading ones of size 1, stride 1, dilation 1 and
 * padding 0. An output position o and a tap t read the input at (o * stride + t * dilation - padding) / input_dilation
 * where that is a whole number inside the input, else zero. Padding after the end is what `out` implies. */
typedef struct {
    int64_t batch, groups, channels, out_channels; /* channels of all groups */
    int64_t in[3], kernel[3], out[3];
    int64_t stride[3], dilation[3], input_dilation[3], padding[3]; /* padding may be negative */
    int64_t x_strides[5];                                          /* batch, channel, depth, height, width */
} cv_conv_shape;

#define CVC_PIXELS(s) ((s)->out[0] * (s)->out[1] * (s)->out[2])
#define CVC_TAPS(s) ((s)->kernel[0] * (s)->kernel[1] * (s)->kernel[2])

/* Output elements i0, i0 + i_step, ... (count of them) read input elements at x0, x0 + x_step, ... */
typedef struct {
    int64_t i0, i_step, x0, x_step, count;
} cvc_piece;

CV_INLINE int64_t cvc_floor_div(int64_t a, int64_t b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

/* The input index that position `at` (in the dilated, unpadded input) reads on an axis, or -1. */
CV_INLINE int64_t cvc_index(int64_t at, int64_t size, int64_t input_dilation) {
    if (at < 0) return -1;
    if (input_dilation != 1) {
        if (at % input_dilation) return -1;
        at /= input_dilation;
    }
    return at < size ? at : -1;
}

/* Of outputs [0, count) of a row, those that read inside the input, when output 0 reads position `at`. */
CV_FUNC cvc_piece cvc_clip(int64_t at, int64_t count, int64_t size, int64_t stride, int64_t input_dilation) {
    int64_t step = 1, x_step = stride, first = 0;
    if (input_dilation == 1 && at >= 0 && at + (count - 1) * stride < size) return (cvc_piece){0, 1, at, stride, count};
    if (input_dilation != 1) {
        int64_t a = stride, b = input_dilation;
        while (b) {
            int64_t r = a % b;
            a = b;
            b = r;
        }
        step = input_dilation / a;
        x_step = stride / a;
        while (first < step && (at + first * stride) % input_dilation != 0) first++;
        if (first == step) return (cvc_piece){0, 1, 0, 1, 0};
    }
    int64_t x = cvc_floor_div(at + first * stride, input_dilation); /* exact */
    int64_t low = x < 0 ? cvg_ceil_div(-x, x_step) : 0;
    int64_t asked = first < count ? cvg_ceil_div(count - first, step) : 0;
    int64_t high = cvg_min(asked, cvc_floor_div(size - 1 - x, x_step) + 1);
    if (high <= low) return (cvc_piece){0, 1, 0, 1, 0};
    return (cvc_piece){first + low * step, step, x + low * x_step, x_step, high - low};
}

#endif
