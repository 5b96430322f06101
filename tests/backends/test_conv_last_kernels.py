"""The channels-last convolution templates against NumPy: axes, groups, strides, dilations, paddings and dtypes."""

from __future__ import annotations

import ctypes
import dataclasses

import numpy as np
import pytest
from hypothesis import example, given, settings

from .c_library import compile_c, instruction_sets
from .test_conv_kernels import (
    DEEP,
    EMPTY,
    POINTWISE,
    RESNET_STEM,
    STRIDED,
    TALL_STRIDE,
    TRANSPOSED,
    WIDE_ROWS,
    Case,
    cases,
    check,
    convolve,
    operands,
)
from .test_gemm import NUMPY, wide

SOURCE = r"""
#include "cuvil/gemm.h"

typedef struct {
    cv_elem_@ACC *out;
    const cv_elem_@ACC *bias;
    int64_t channels, pixels;
} env;

static inline void store(const env *e, int64_t m, int64_t n, int64_t count, cv_v@ACC v) {
    cv_store_part_@ACC(e->out + m * e->channels + n, cv_add_@ACC(v, cv_load_part_@ACC(e->bias + n, count)), count);
}

#define CV_CONV_NAME conv
#define CV_CONV_ACC @ACC
#define CV_CONV_X_T @X
#define CV_CONV_W_T @W
#define CV_CONV_STORE(e, m, n, count, v) store(e, m, n, count, v)
@DEFINES
#include "cuvil/conv_last.h"
int64_t packed_bytes(const cv_conv_shape *s) { return conv_packed_w_bytes(s); }
void pack(cv_ctx *ctx, const cv_conv_shape *s, void *to, const void *w) { conv_pack_w(ctx, s, to, w); }
void run(cv_ctx *ctx, const env *e, const cv_conv_shape *s, const void *x, const void *w) { conv_run(ctx, e, s, x, w); }
"""


def library(acc: str, x: str, w: str, *, depthwise: bool, flags: tuple[str, ...] = ()) -> ctypes.CDLL:
    defines = "#define CV_CONV_DEPTHWISE" if depthwise else ""
    text = SOURCE.replace("@ACC", acc).replace("@X", x).replace("@W", w).replace("@DEFINES", defines)
    lib = compile_c(text, *flags)
    lib.run.argtypes = [ctypes.c_void_p] * 5
    lib.pack.argtypes = [ctypes.c_void_p] * 4
    lib.packed_bytes.restype, lib.packed_bytes.argtypes = ctypes.c_int64, [ctypes.c_void_p]
    return lib


def run_case(
    case: Case, acc: str, x_type: str, w_type: str, *, depthwise: bool = False, flags: tuple[str, ...] = ()
) -> None:
    case = dataclasses.replace(case, layout="channels last", group_out=1 if depthwise else case.group_out)
    x, w, bias = operands(case, acc, x_type, w_type)
    got = convolve(library(acc, x_type, w_type, depthwise=depthwise, flags=flags), case, x, w, bias, acc, flags)
    last = got.reshape(case.batch, *case.out, case.groups * case.group_out).transpose(0, 4, 1, 2, 3)
    check(last, wide(x, acc), wide(w, acc), bias, case, acc)


WIDE_KERNEL = Case(1, 1, 17, 5, (1, 9, 12), (1, 2, 5), dilation=(1, 1, 1), padding=(0, 1, 4), end_padding=(0, 0, 3))
DILATED = Case(2, 1, 65, 40, (1, 9, 9), (1, 3, 3), dilation=(1, 2, 2), padding=(0, 2, 2), end_padding=(0, 2, 2))
CHANNELS = Case(2, 70, 1, 1, (1, 12, 23), (1, 3, 3), padding=(0, 1, 1), end_padding=(0, 1, 1))


@pytest.mark.parametrize("flags", instruction_sets(), ids=lambda flags: "".join(flags) or "native")
@settings(max_examples=80, deadline=None)
@given(case=cases())
@example(case=RESNET_STEM)
@example(case=DEEP)
@example(case=POINTWISE)
@example(case=TRANSPOSED)
@example(case=EMPTY)
@example(case=WIDE_KERNEL)
@example(case=DILATED)
def test_float32(flags: tuple[str, ...], case: Case) -> None:
    run_case(case, "f32", "f32", "f32", flags=flags)


@pytest.mark.parametrize(
    ("acc", "x_type", "w_type"),
    [("f32", "f16", "f32"), ("f32", "u8", "bf16"), ("f64", "f64", "f64"), ("i32", "u8", "i8"), ("i64", "i64", "i32")],
)
@settings(max_examples=25, deadline=None)
@given(case=cases())
def test_dtypes(acc: str, x_type: str, w_type: str, case: Case) -> None:
    run_case(case, acc, x_type, w_type)


@pytest.mark.parametrize("flags", instruction_sets(), ids=lambda flags: "".join(flags) or "native")
@settings(max_examples=60, deadline=None)
@given(case=cases(depthwise=True))
@example(case=WIDE_ROWS)
@example(case=STRIDED)
@example(case=TALL_STRIDE)
@example(case=CHANNELS)
@example(case=dataclasses.replace(CHANNELS, stride=(1, 2, 2)))
@example(case=dataclasses.replace(CHANNELS, input_dilation=(1, 1, 2)))
@example(case=dataclasses.replace(EMPTY, group_channels=1))
def test_depthwise(flags: tuple[str, ...], case: Case) -> None:
    run_case(case, "f32", "f32", "f32", depthwise=True, flags=flags)


@pytest.mark.parametrize(
    ("acc", "x_type", "w_type"),
    [("f32", "bf16", "f16"), ("f64", "f32", "f64"), ("i32", "i8", "i8"), ("i64", "i32", "u8")],
)
@settings(max_examples=15, deadline=None)
@given(case=cases(depthwise=True))
def test_depthwise_dtypes(acc: str, x_type: str, w_type: str, case: Case) -> None:
    run_case(case, acc, x_type, w_type, depthwise=True)


@pytest.mark.parametrize("depthwise", [False, True])
def test_result_does_not_depend_on_the_threads(depthwise: bool) -> None:
    case = Case(2, 48 if depthwise else 1, 1 if depthwise else 20, 1 if depthwise else 40, (1, 15, 17), (1, 3, 3),
                padding=(0, 1, 1), end_padding=(0, 1, 1), layout="channels last")  # fmt: skip
    x, w, bias = operands(case, "f32", "f32", "f32")
    lib = library("f32", "f32", "f32", depthwise=depthwise)
    results = [convolve(lib, dataclasses.replace(case, workers=n), x, w, bias, "f32") for n in (1, 2, 5, 64)]
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)
    assert results[0].dtype == NUMPY["f32"]
