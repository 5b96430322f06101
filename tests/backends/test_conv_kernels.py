"""The convolution templates against NumPy: axes, groups, strides, dilations, paddings, dtypes, layouts, hooks."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from .c_library import compile_c, context, error, instruction_sets
from .test_gemm import NUMPY, aligned, draw, wide

SOURCE = r"""
#include "cuvil/conv.h"

typedef struct {
    cv_elem_@ACC *out;
    const cv_elem_@ACC *bias;
    int64_t channels, pixels;
} env;

static inline void store(const env *e, int64_t n, int64_t oc, int64_t pixel, int64_t count, cv_v@ACC v) {
    cv_store_part_@ACC(e->out + (n * e->channels + oc) * e->pixels + pixel,
                       cv_add_@ACC(v, cv_splat_@ACC(e->bias[oc])), count);
}

#define CV_CONV_ACC @ACC
#define CV_CONV_X_T @X
#define CV_CONV_W_T @W
#define CV_CONV_STORE(e, n, oc, pixel, count, v) store(e, n, oc, pixel, count, v)
@HOOKS
"""
GENERAL = r"""
#define CV_CONV_NAME conv
#include "cuvil/conv.h"
int64_t packed_bytes(const cv_conv_shape *s) { return conv_packed_w_bytes(s); }
void pack(cv_ctx *ctx, const cv_conv_shape *s, void *to, const void *w) { conv_pack_w(ctx, s, to, w); }
void run(cv_ctx *ctx, const env *e, const cv_conv_shape *s, const void *x, const void *w) { conv_run(ctx, e, s, x, w); }
"""
FEW_PIXELS = "#define CV_CONV_FEW_PIXELS\n" + GENERAL
DEPTHWISE = r"""
#define CV_CONV_NAME conv
#define CV_CONV_DEPTHWISE
#include "cuvil/conv.h"
void run(cv_ctx *ctx, const env *e, const cv_conv_shape *s, const void *x, const void *w) { conv_run(ctx, e, s, x, w); }
"""
Triple = tuple[int, int, int]


class Shape(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("batch", "groups", "channels", "out_channels")),
        *(
            (name, ctypes.c_int64 * 3)
            for name in ("in_", "kernel", "out", "stride", "dilation", "input_dilation", "padding")
        ),
        ("x_strides", ctypes.c_int64 * 5),
    ]


class Env(ctypes.Structure):
    _fields_ = [
        ("out", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("channels", ctypes.c_int64),
        ("pixels", ctypes.c_int64),
    ]


@dataclasses.dataclass(frozen=True)
class Case:
    batch: int
    groups: int
    group_channels: int
    group_out: int
    size: Triple
    kernel: Triple
    stride: Triple = (1, 1, 1)
    dilation: Triple = (1, 1, 1)
    input_dilation: Triple = (1, 1, 1)
    padding: Triple = (0, 0, 0)
    end_padding: Triple = (0, 0, 0)
    layout: str = "contiguous"
    workers: int = 2
    seed: int = 0

    @property
    def out(self) -> Triple:
        def axis(i: int) -> int:
            dilated = max((self.size[i] - 1) * self.input_dilation[i] + 1, 0) if self.size[i] else 0
            room = dilated + self.padding[i] + self.end_padding[i] - (self.kernel[i] - 1) * self.dilation[i] - 1
            return max(room // self.stride[i] + 1, 0)

        return axis(0), axis(1), axis(2)


@st.composite
def cases(draw_from: st.DrawFn, depthwise: bool = False) -> Case:
    axes = draw_from(st.integers(1, 3))

    def triple(values: st.SearchStrategy[int], lead: int) -> Triple:
        drawn = [draw_from(values) for _ in range(axes)]
        full = [lead] * (3 - axes) + drawn
        return full[0], full[1], full[2]

    limit = {1: 70, 2: 20, 3: 7}[axes]
    case = Case(
        batch=draw_from(st.sampled_from([0, 1, 1, 2])),
        groups=draw_from(st.sampled_from([1, 1, 2, 3])),
        group_channels=1 if depthwise else draw_from(st.sampled_from([1, 2, 3, 17])),
        group_out=draw_from(st.sampled_from([1, 2] if depthwise else [1, 2, 5, 15, 20])),
        size=triple(st.integers(0 if draw_from(st.integers(0, 9)) == 0 else 1, limit), 1),
        kernel=triple(st.integers(1, 4), 1),
        stride=triple(st.sampled_from([1, 1, 2, 3]), 1),
        dilation=triple(st.sampled_from([1, 1, 2]), 1),
        input_dilation=triple(st.sampled_from([1, 1, 1, 2, 3]), 1),
        padding=triple(st.integers(-1, 3), 0),
        end_padding=triple(st.integers(-1, 3), 0),
        layout=draw_from(st.sampled_from(["contiguous", "channels last", "every second", "reversed"])),
        workers=draw_from(st.sampled_from([1, 2])),
        seed=draw_from(st.integers(0, 2**32 - 1)),
    )
    assume(case.batch * np.prod(case.out) * case.groups * case.group_out < 400_000)
    return case


def reference(x: np.ndarray, w: np.ndarray, case: Case) -> np.ndarray:
    """The convolution by its definition: for every tap, a strided window of the dilated and padded input."""
    shape = (case.batch, case.groups * case.group_out, *case.out)
    if 0 in shape:
        return np.zeros(shape, x.dtype)
    spans = [(o - 1) * s + (k - 1) * d + 1 for o, s, k, d in zip(case.out, case.stride, case.kernel, case.dilation)]
    padded = np.zeros((*x.shape[:2], *(max(span, 0) for span in spans)), x.dtype)
    source, target = [slice(None)] * 2, [slice(None)] * 2
    for size, span, pad, dilation in zip(case.size, spans, case.padding, case.input_dilation):
        inside = [i for i in range(size) if 0 <= i * dilation + pad < span]
        first, last = (inside[0], inside[-1]) if inside else (0, -1)
        source.append(slice(first, last + 1))
        target.append(slice(first * dilation + pad, last * dilation + pad + 1, dilation) if inside else slice(0, 0))
    padded[tuple(target)] = x[tuple(source)]
    grouped = padded.reshape(case.batch, case.groups, case.group_channels, *padded.shape[2:])
    weights = w.reshape(case.groups, case.group_out, case.group_channels, *case.kernel)
    out = np.zeros((case.batch, case.groups, case.group_out, *case.out), x.dtype)
    for tap in itertools.product(*(range(k) for k in case.kernel)):
        window = [
            slice(t * d, t * d + (o - 1) * s + 1, s) for t, d, o, s in zip(tap, case.dilation, case.out, case.stride)
        ]
        with np.errstate(over="ignore"):
            patch = grouped[(slice(None), slice(None), slice(None), *window)]
            out += np.einsum("ngcdhw,gmc->ngmdhw", patch, weights[(..., *tap)])
    return out.reshape(shape)


def laid_out(rng: np.random.Generator, dtype: str, layout: str, shape: tuple[int, ...]) -> np.ndarray:
    n, c, d, h, w = shape
    if layout == "channels last":
        return draw(rng, dtype, (n, d, h, w, c)).transpose(0, 4, 1, 2, 3)
    if layout == "every second":
        return draw(rng, dtype, (n, c, d, 2 * h, 2 * w))[..., ::2, ::2]
    if layout == "reversed":
        return draw(rng, dtype, shape)[..., ::-1, ::-1]
    return draw(rng, dtype, shape)


def library(template: str, acc: str, x: str, w: str, hooks: str = "", flags: tuple[str, ...] = ()) -> ctypes.CDLL:
    text = SOURCE.replace("@ACC", acc).replace("@X", x).replace("@W", w).replace("@HOOKS", hooks) + template
    lib = compile_c(text, *flags)
    lib.run.argtypes = [ctypes.c_void_p] * 5
    if template != DEPTHWISE:
        lib.pack.argtypes = [ctypes.c_void_p] * 4
        lib.packed_bytes.restype, lib.packed_bytes.argtypes = ctypes.c_int64, [ctypes.c_void_p]
    return lib


def convolve(
    lib: ctypes.CDLL, case: Case, x: np.ndarray, w: np.ndarray, bias: np.ndarray, acc: str, flags: tuple[str, ...] = ()
) -> np.ndarray:
    channels = case.groups * case.group_out
    guard = np.full(channels * case.batch * int(np.prod(case.out)) + 16, 77, NUMPY[acc])
    out = guard[:-16].reshape(case.batch, channels, *case.out)
    three = ctypes.c_int64 * 3
    shape = Shape(
        case.batch,
        case.groups,
        case.groups * case.group_channels,
        channels,
        three(*case.size),
        three(*case.kernel),
        three(*case.out),
        three(*case.stride),
        three(*case.dilation),
        three(*case.input_dilation),
        three(*case.padding),
        (ctypes.c_int64 * 5)(*(s // x.itemsize for s in x.strides)),
    )
    env = Env(guard.ctypes.data, bias.ctypes.data, channels, int(np.prod(case.out)))
    with context(case.workers, *flags) as ctx:
        weights = w.ctypes.data
        if hasattr(lib, "pack"):
            size = lib.packed_bytes(ctypes.byref(shape))
            room = aligned(size)
            lib.pack(ctx, ctypes.byref(shape), room.ctypes.data, weights)
            assert (room[size:] == 0xA5).all()
            weights = room.ctypes.data
        lib.run(ctx, ctypes.byref(env), ctypes.byref(shape), x.ctypes.data, weights)
        assert error(ctx)[0] == 0
    assert (guard[-16:] == 77).all()
    return out


def operands(case: Case, acc: str, x_type: str, w_type: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(case.seed)
    x = laid_out(rng, x_type, case.layout, (case.batch, case.groups * case.group_channels, *case.size))
    w = draw(rng, w_type, (case.groups * case.group_out, case.group_channels, *case.kernel))
    return x, w, draw(rng, acc, (case.groups * case.group_out,))


def run_case(template: str, acc: str, x_type: str, w_type: str, case: Case, flags: tuple[str, ...] = ()) -> None:
    x, w, bias = operands(case, acc, x_type, w_type)
    got = convolve(library(template, acc, x_type, w_type, flags=flags), case, x, w, bias, acc, flags)
    check(got, wide(x, acc), wide(w, acc), bias, case, acc)


def check(got: np.ndarray, x: np.ndarray, w: np.ndarray, bias: np.ndarray, case: Case, acc: str) -> None:
    added = bias[:, None, None, None]
    with np.errstate(over="ignore"):
        expected = reference(x, w, case) + added
    if acc[0] == "i":
        assert (got == expected).all()
        return
    terms = case.group_channels * int(np.prod(case.kernel))
    bound = (terms + 3) * np.finfo(NUMPY[acc]).eps * (reference(np.abs(x), np.abs(w), case) + np.abs(added)) + 1e-30
    assert (np.abs(got - expected) <= bound).all()


RESNET_STEM = Case(1, 1, 3, 20, (1, 37, 41), (1, 7, 7), (1, 2, 2), padding=(0, 3, 3), end_padding=(0, 3, 3))
DEEP = Case(2, 1, 70, 33, (1, 7, 7), (1, 3, 3), padding=(0, 1, 1), end_padding=(0, 1, 1))
POINTWISE = Case(2, 2, 20, 31, (2, 9, 11), (1, 1, 1))
TRANSPOSED = Case(1, 1, 8, 9, (1, 6, 5), (1, 4, 4), input_dilation=(1, 2, 2), padding=(0, 2, 2), end_padding=(0, 2, 2))
EMPTY = Case(1, 2, 3, 4, (1, 0, 5), (1, 1, 1), padding=(0, 2, 0), end_padding=(0, 1, 0))


@pytest.mark.parametrize("flags", instruction_sets(), ids=lambda flags: "".join(flags) or "native")
@settings(max_examples=80, deadline=None)
@given(case=cases())
@example(case=RESNET_STEM)
@example(case=DEEP)
@example(case=POINTWISE)
@example(case=TRANSPOSED)
@example(case=EMPTY)
def test_float32(flags: tuple[str, ...], case: Case) -> None:
    run_case(GENERAL, "f32", "f32", "f32", case, flags)


@pytest.mark.parametrize(
    ("acc", "x_type", "w_type"),
    [("f32", "f16", "f32"), ("f32", "u8", "bf16"), ("f64", "f64", "f64"), ("i32", "u8", "i8"), ("i64", "i64", "i32")],
)
@settings(max_examples=25, deadline=None)
@given(case=cases())
def test_dtypes(acc: str, x_type: str, w_type: str, case: Case) -> None:
    run_case(GENERAL, acc, x_type, w_type, case)


@pytest.mark.parametrize("flags", instruction_sets(), ids=lambda flags: "".join(flags) or "native")
@settings(max_examples=50, deadline=None)
@given(case=cases())
@example(case=RESNET_STEM)
@example(case=DEEP)
@example(case=POINTWISE)
@example(case=TRANSPOSED)
@example(case=EMPTY)
@example(case=Case(2, 1, 300, 70, (1, 1, 1), (1, 1, 1)))
def test_few_pixels(flags: tuple[str, ...], case: Case) -> None:
    run_case(FEW_PIXELS, "f32", "f32", "f32", case, flags)


@pytest.mark.parametrize(
    ("acc", "x_type", "w_type"), [("f64", "f64", "f32"), ("i32", "u8", "i8"), ("f32", "f16", "f16")]
)
@settings(max_examples=15, deadline=None)
@given(case=cases())
def test_few_pixels_dtypes(acc: str, x_type: str, w_type: str, case: Case) -> None:
    run_case(FEW_PIXELS, acc, x_type, w_type, case)


WIDE_ROWS = Case(1, 3, 1, 1, (1, 30, 150), (1, 3, 3), padding=(0, 1, 1), end_padding=(0, 1, 1))
STRIDED = Case(1, 2, 1, 2, (1, 41, 67), (1, 5, 3), (1, 2, 2), padding=(0, 2, 1), end_padding=(0, 2, 1))
HIGH = Case(1, 1, 1, 1, (1, 2000, 9), (1, 3, 3), (1, 1, 3), dilation=(1, 5, 1), padding=(0, 5, 1))
TALL_STRIDE = Case(1, 1, 1, 1, (1, 40, 40), (1, 2, 2), (1, 5, 5))


@pytest.mark.parametrize("flags", instruction_sets(), ids=lambda flags: "".join(flags) or "native")
@settings(max_examples=60, deadline=None)
@given(case=cases(depthwise=True))
@example(case=WIDE_ROWS)
@example(case=STRIDED)
@example(case=HIGH)
@example(case=TALL_STRIDE)
@example(case=dataclasses.replace(EMPTY, group_channels=1))
def test_depthwise(flags: tuple[str, ...], case: Case) -> None:
    run_case(DEPTHWISE, "f32", "f32", "f32", case, flags)


@pytest.mark.parametrize(
    ("acc", "x_type", "w_type"),
    [("f32", "bf16", "f16"), ("f64", "f32", "f64"), ("i32", "i8", "i8"), ("i64", "i32", "u8")],
)
@settings(max_examples=15, deadline=None)
@given(case=cases(depthwise=True))
def test_depthwise_dtypes(acc: str, x_type: str, w_type: str, case: Case) -> None:
    run_case(DEPTHWISE, acc, x_type, w_type, case)


@pytest.mark.parametrize("template", [GENERAL, FEW_PIXELS, DEPTHWISE], ids=["general", "few", "depthwise"])
def test_padding_is_zero_after_the_prologue(template: str) -> None:
    """A prologue that maps 0 to 1 must not reach the padding."""
    hook = "#define CV_CONV_MAP_X(e, n, channel, v) cv_add_f32(v, cv_splat_f32((float)(channel) + 1))\n"
    case = Case(2, 3, 1, 2, (1, 9, 37), (1, 3, 3), (1, 1, 2), padding=(0, 2, 1), end_padding=(0, 1, 2))
    x, w, bias = operands(case, "f32", "f32", "f32")
    got = convolve(library(template, "f32", "f32", "f32", hook), case, x, w, bias, "f32")
    mapped = wide(x, "f32") + (np.arange(3.0) + 1)[:, None, None, None]
    check(got, mapped, wide(w, "f32"), bias, case, "f32")


def test_input_is_not_read_outside() -> None:
    """NaNs all around the input never reach the result."""
    room = np.full((3 + 2, 11 + 8, 13 + 8), np.nan, np.float32)
    room[1:-1, 4:-4, 4:-4] = np.random.default_rng(1).standard_normal((3, 11, 13))
    x = room[None, 1:-1, None, 4:-4, 4:-4]
    case = Case(1, 1, 3, 4, (1, 11, 13), (1, 3, 3), padding=(0, 2, 2), end_padding=(0, 2, 2))
    _, w, bias = operands(case, "f32", "f32", "f32")
    got = convolve(library(GENERAL, "f32", "f32", "f32"), case, x, w, bias, "f32")
    check(got, wide(x, "f32"), wide(w, "f32"), bias, case, "f32")
