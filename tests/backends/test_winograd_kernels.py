"""Winograd's convolution against NumPy in float64, within the bound that docs/design/layout.md states."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cuvil.ops.channels_last import WINOGRAD_TILES

from .c_library import compile_c, instruction_sets
from .test_conv_kernels import Case, convolve, operands, reference

SOURCE = r"""
#include "cuvil/gemm.h"

typedef struct {
    float *out;
    const float *bias;
    int64_t channels, pixels;
} env;

static inline void store(const env *e, int64_t m, int64_t n, int64_t count, cv_vf32 v) {
    cv_store_part_f32(e->out + m * e->channels + n, cv_add_f32(v, cv_load_part_f32(e->bias + n, count)), count);
}

#define CV_CONV_NAME conv
#define CV_CONV_TILE @TILE
#define CV_CONV_STORE(e, m, n, count, v) store(e, m, n, count, v)
#include "cuvil/winograd.h"
int64_t packed_bytes(const cv_conv_shape *s) { return conv_packed_w_bytes(s); }
void pack(cv_ctx *ctx, const cv_conv_shape *s, void *to, const void *w) { conv_pack_w(ctx, s, to, w); }
void run(cv_ctx *ctx, const env *e, const cv_conv_shape *s, const void *x, const void *w) { conv_run(ctx, e, s, x, w); }
"""


def library(tile: int, flags: tuple[str, ...] = ()) -> ctypes.CDLL:
    lib = compile_c(SOURCE.replace("@TILE", str(tile)), *flags)
    lib.run.argtypes = [ctypes.c_void_p] * 5
    lib.pack.argtypes = [ctypes.c_void_p] * 4
    lib.packed_bytes.restype, lib.packed_bytes.argtypes = ctypes.c_int64, [ctypes.c_void_p]
    return lib


@st.composite
def cases(draw: st.DrawFn) -> Case:
    sizes = st.integers(0 if draw(st.integers(0, 9)) == 0 else 1, 23)
    pads = st.integers(0, 3)
    return Case(
        batch=draw(st.sampled_from([0, 1, 1, 2, 5])),
        groups=1,
        group_channels=draw(st.sampled_from([0, 1, 3, 16, 17, 64, 70])),
        group_out=draw(st.sampled_from([0, 1, 5, 16, 32, 33, 40])),
        size=(1, draw(sizes), draw(sizes)),
        kernel=(1, 3, 3),
        padding=(0, draw(pads), draw(pads)),
        end_padding=(0, draw(pads), draw(pads)),
        layout="channels last",
        workers=draw(st.sampled_from([1, 2, 3, 64])),
        seed=draw(st.integers(0, 2**32 - 1)),
    )


def bound(x: Any, w: Any, tile: int) -> Any:
    """Largest error of each output channel: its weights' magnitudes times the largest input, amplified."""
    roundings = w.shape[1] + 24
    weights = np.abs(w).sum(axis=(1, 2, 3, 4), dtype=np.float64) if w.ndim == 5 else np.abs(w).sum((1, 2, 3))
    return roundings * np.finfo(np.float32).eps * WINOGRAD_TILES[tile] * weights * np.abs(x).max(initial=0)


def run(tile: int, case: Case, flags: tuple[str, ...] = ()) -> tuple[Any, Any, Any]:
    """Outputs, what they are in float64, and the bound, all [N, D, H, W, C]."""
    x, w, bias = operands(case, "f32", "f32", "f32")
    got = convolve(library(tile, flags), case, x, w, bias, "f32", flags)
    got = got.reshape(case.batch, *case.out, case.group_out)
    want = reference(x.astype(np.float64), w.astype(np.float64), case).transpose(0, 2, 3, 4, 1) + bias
    return got, want, bound(x, w, tile) + np.abs(want) * 1e-6 + np.abs(bias) * 1e-6


RESNET = Case(1, 1, 64, 64, (1, 28, 28), (1, 3, 3), padding=(0, 1, 1), end_padding=(0, 1, 1), layout="channels last")
DEEP = Case(3, 1, 300, 70, (1, 7, 7), (1, 3, 3), padding=(0, 1, 1), end_padding=(0, 1, 1), layout="channels last")
LARGE = Case(1, 1, 16, 16, (1, 90, 90), (1, 3, 3), layout="channels last")
SMALL = Case(2, 1, 3, 2, (1, 1, 1), (1, 3, 3), padding=(0, 1, 1), end_padding=(0, 1, 1), layout="channels last")


@pytest.mark.parametrize("tile", WINOGRAD_TILES)
@pytest.mark.parametrize("flags", instruction_sets(), ids=lambda flags: "".join(flags) or "native")
@settings(max_examples=60, deadline=None)
@given(case=cases())
@example(case=RESNET)
@example(case=DEEP)
@example(case=LARGE)
@example(case=SMALL)
def test_error_is_bounded(flags: tuple[str, ...], tile: int, case: Case) -> None:
    got, want, most = run(tile, case, flags)
    assert (np.abs(got - want) <= most).all()


@pytest.mark.parametrize("tile", WINOGRAD_TILES)
def test_typical_error_is_small(tile: int) -> None:
    """The root mean square: a few times, for tiles of 4 some ten times, that of adding up in float32."""
    got, want, _ = run(tile, RESNET)
    x, w, bias = operands(RESNET, "f32", "f32", "f32")
    plain = reference(x, w, RESNET).transpose(0, 2, 3, 4, 1) + bias
    direct = np.sqrt(np.mean((plain - want) ** 2))
    assert np.sqrt(np.mean((got - want) ** 2)) < {2: 4, 4: 20}[tile] * direct


@pytest.mark.parametrize("tile", WINOGRAD_TILES)
def test_whole_numbers_are_exact_in_small_tiles(tile: int) -> None:
    """With weights that the transforms divide without a rest nothing is rounded."""
    case = dataclasses.replace(RESNET, group_channels=5, group_out=7)
    rng = np.random.default_rng(1)
    x = rng.integers(-4, 5, (1, 1, 28, 28, 5)).astype(np.float32).transpose(0, 4, 1, 2, 3)
    w = (rng.integers(-2, 3, (7, 5, 1, 3, 3)) * 576).astype(np.float32)
    got = convolve(library(tile), case, x, w, np.zeros(7, np.float32), "f32").reshape(1, 1, 28, 28, 7)
    np.testing.assert_array_equal(got, reference(x, w, case).transpose(0, 2, 3, 4, 1))


@pytest.mark.parametrize("tile", WINOGRAD_TILES)
def test_result_does_not_depend_on_the_threads(tile: int) -> None:
    x, w, bias = operands(DEEP, "f32", "f32", "f32")
    results = [convolve(library(tile), dataclasses.replace(DEEP, workers=n), x, w, bias, "f32") for n in (1, 2, 5, 64)]
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)
