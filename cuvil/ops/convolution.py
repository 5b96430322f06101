"""Convolution and transposed convolution over any number of spatial axes, channels first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cuvil.dtypes import DType, dtype
from cuvil.ops import batching, contraction_transposes
from cuvil.ops.builder import Builder, V
from cuvil.ops.contraction import CONTRACTION_TOLERANCE
from cuvil.ops.cost import Cost, traffic
from cuvil.ops.drawing import NUMERIC_DTYPES, draw_dtype
from cuvil.ops.operand_dtypes import compute_dtype, one_numeric
from cuvil.ops.record import (
    Array,
    Chooser,
    Decomposition,
    Example,
    Opaque,
    OperandSample,
    OpRecord,
    Param,
    Params,
    Shape,
    ShapeResult,
)
from cuvil.ops.registry import register
from cuvil.ops.requirements import Requirements, format_shape, present
from cuvil.ops.windows import Pairs, require_window, window_extent, windows
from cuvil.support.errors import ArgumentError, ShapeError
from cuvil.symbolic import Dim, exact_div, product

Shapes = tuple[Shape | None, ...]
Ints = tuple[int, ...]
IntPairs = tuple[tuple[int, int], ...]


def exact_quotient(a: Dim, b: int, what: str) -> Dim:
    """``a / b``, which the shape rule demanded to be whole.

    Raises:
        ShapeError: it is not evidently whole.
    """
    quotient = exact_div(a, b)
    if quotient is None:
        raise ShapeError(f"{what}: {a} is not evidently a multiple of {b}; make that dimension static")
    return quotient


def _check_spatial(op: str, x: Shape, w: Shape, **per_axis: Sequence[object]) -> int:
    """The number of spatial axes, after the ranks and parameter lengths were checked."""
    if len(x) < 3 or len(w) != len(x):
        raise ShapeError(
            f"{op}: expected x [N, C, spatial...] and w of the same rank of at least 3, "
            f"got {format_shape(x)} and {format_shape(w)}"
        )
    spatial = len(x) - 2
    for name, values in per_axis.items():
        if len(values) != spatial:
            raise ArgumentError(f"{op}: {name} needs one entry per spatial axis ({spatial}), got {values}")
    return spatial


def _check_bias(need: Requirements, bias: Shape | None, channels: Dim) -> None:
    if bias is not None:
        need.rank(bias, 1, "the bias")
        need.equal(bias[0], channels, "the bias has one element per output channel")


def _check_positive(op: str, **values: int | Ints) -> None:
    for name, value in values.items():
        if any(v < 1 for v in (value if isinstance(value, tuple) else (value,))):
            raise ArgumentError(f"{op}: {name} must be at least 1, got {value}")


# ------------------------------------------------------------------------------------------------ conv


def conv_shape(shapes: Shapes, params: Params, op: str = "conv") -> ShapeResult:
    """The shape rule of a convolution, channels first; ``op`` names it in errors."""
    x, w, bias = present(shapes[0]), present(shapes[1]), shapes[2] if len(shapes) > 2 else None
    strides: Ints = params["strides"]
    padding: Pairs = params["padding"]
    dilation: Ints = params["dilation"]
    input_dilation: Ints = params["input_dilation"]
    groups: int = params["groups"]
    _check_spatial(op, x, w, strides=strides, padding=padding, dilation=dilation, input_dilation=input_dilation)
    _check_positive(op, dilation=dilation, input_dilation=input_dilation, groups=groups)
    need = Requirements(op)
    need.equal(x[1], w[1] * groups, f"input channels are {groups} groups of the weight's {w[1]} channels")
    need.equal(w[0] % groups, 0, f"the {w[0]} output channels fall into {groups} groups")
    _check_bias(need, bias, w[0])
    out: list[Dim] = [x[0], w[0]]
    for a, (before, after) in enumerate(padding):
        size, k = x[2 + a], w[2 + a]
        need.at_least(k, 1, f"the kernel has an element along axis {2 + a}")
        need.at_least(before, 0, f"the padding of axis {2 + a} is not negative")
        need.at_least(after, 0, f"the padding of axis {2 + a} is not negative")
        if input_dilation[a] > 1:
            need.at_least(size, 1, f"axis {2 + a} has an element to dilate")
        padded = window_extent(size, input_dilation[a]) + before + after
        out.append(require_window(need, 2 + a, padded, window_extent(k, dilation[a]), strides[a]))
    return need.result(tuple(out))


def _accumulator(dt: DType) -> np.dtype[Any]:
    # The reference sums in float64, so that it is exact enough to judge any order of summation.
    return np.dtype(np.float64) if dt.is_float else dt.numpy


def _dilate(x: Array, input_dilation: Ints) -> Array:
    if all(d == 1 for d in input_dilation):
        return x
    shape = [(n - 1) * d + 1 for n, d in zip(x.shape[2:], input_dilation, strict=True)]
    out = np.zeros((*x.shape[:2], *shape), x.dtype)
    out[(slice(None), slice(None), *(slice(None, None, d) for d in input_dilation))] = x
    return out


def conv_reference(
    x: Array,
    w: Array,
    bias: Array | None = None,
    *,
    strides: Ints,
    padding: IntPairs,
    dilation: Ints,
    input_dilation: Ints,
    groups: int,
) -> Array:
    """Convolution by its definition, channels first."""
    spatial = tuple(range(2, x.ndim))
    acc = _accumulator(dtype(x.dtype))
    padded = np.pad(_dilate(x.astype(acc), input_dilation), ((0, 0), (0, 0), *padding))
    taps = windows(padded, spatial, w.shape[2:], strides, dilation)  # [N, C, positions..., kernel...]
    kernel_axes = tuple(range(x.ndim, taps.ndim))
    c, o = w.shape[1], w.shape[0] // groups
    parts = [
        np.tensordot(
            w[g * o : (g + 1) * o].astype(acc), taps[:, g * c : (g + 1) * c], ((1, *spatial), (1, *kernel_axes))
        )
        for g in range(groups)
    ]
    out = np.moveaxis(np.concatenate(parts, axis=0), 0, 1)
    if bias is not None:
        out = out + bias.astype(acc).reshape(-1, *(1 for _ in spatial))
    return np.ascontiguousarray(out).astype(x.dtype)


def conv_cost(shapes: Shapes, params: Params) -> Cost:
    """Multiply-adds count twice."""
    (out,) = conv_shape(shapes, params).shapes
    return product(out) * product(present(shapes[1])[1:]) * 2, traffic(*shapes, out)


def _draw_padding(c: Chooser, rank: int) -> IntPairs:
    return tuple((c.integer(0, 2), c.integer(0, 2)) for _ in range(rank))


def conv_sample(c: Chooser) -> Example:
    """Any convolution of one or two axes, channels first."""
    rank = c.integer(1, 2)
    groups = c.choice((1, 1, 2, 3))
    per_group, out_channels = c.integer(1, 2), groups * c.integer(1, 2)
    kernel = tuple(c.integer(1, 3) for _ in range(rank))
    dilation = tuple(c.integer(1, 2) for _ in range(rank))
    input_dilation = tuple(c.choice((1, 1, 2)) for _ in range(rank))
    extent = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    size = tuple(e + c.integer(0, 4) for e in extent)
    dt = draw_dtype(c, NUMERIC_DTYPES)
    operands = (
        OperandSample((c.integer(0, 2), groups * per_group, *size), dt, "moderate"),
        OperandSample((out_channels, per_group, *kernel), dt, "moderate"),
        OperandSample((out_channels,), dt, "moderate") if c.boolean() else None,
    )
    params = {
        "strides": tuple(c.integer(1, 3) for _ in range(rank)),
        "padding": _draw_padding(c, rank),
        "dilation": dilation,
        "input_dilation": input_dilation,
        "groups": groups,
    }
    return Example(operands, params)


_STRIDES = Param("strides", "ints", "distance between windows along each spatial axis")
_DILATION = Param("dilation", "ints", "distance between kernel elements along each spatial axis")
_GROUPS = Param("groups", "int", "channel groups that do not mix", 1)
CONV_PARAMS = (
    _STRIDES,
    Param("padding", "pairs", "zeros (before, after) each spatial axis"),
    _DILATION,
    Param("input_dilation", "ints", "distance between input elements, zeros between them"),
    _GROUPS,
)

CONV = register(
    OpRecord(
        name="conv",
        doc="Cross-correlation: x [N, C, spatial...] with w [O, C / groups, kernel...], plus a bias [O].",
        category="contraction",
        operands=("x", "w", "bias?"),
        params=CONV_PARAMS,
        shape_rule=conv_shape,
        dtype_rule=one_numeric,
        reference=conv_reference,
        body=Opaque("conv"),
        sample=conv_sample,
        batch_rule=batching.conv,
        jvp=contraction_transposes.conv_jvp,
        transpose=contraction_transposes.conv,
        accumulate=compute_dtype,
        cost=conv_cost,
        tolerance=CONTRACTION_TOLERANCE,
        onnx=("Conv", "ConvInteger"),
        torch=("aten.convolution", "aten.conv1d", "aten.conv2d", "aten.conv3d"),
    )
)

# -------------------------------------------------------------------------------------- conv_transpose


def _conv_transpose_shape(shapes: Shapes, params: Params) -> ShapeResult:
    x, w, bias = present(shapes[0]), present(shapes[1]), shapes[2] if len(shapes) > 2 else None
    strides: Ints = params["strides"]
    padding: IntPairs = params["padding"]
    output_padding: Ints = params["output_padding"]
    dilation: Ints = params["dilation"]
    groups: int = params["groups"]
    _check_spatial(
        "conv_transpose", x, w, strides=strides, padding=padding, output_padding=output_padding, dilation=dilation
    )
    _check_positive("conv_transpose", strides=strides, dilation=dilation, groups=groups)
    need = Requirements("conv_transpose")
    need.equal(x[1], w[0], "the weight has one row per input channel")
    need.equal(w[0] % groups, 0, f"the {w[0]} input channels fall into {groups} groups")
    _check_bias(need, bias, w[1] * groups)
    out: list[Dim] = [x[0], w[1] * groups]
    for a, (before, after) in enumerate(padding):
        axis = 2 + a
        if before < 0 or after < 0 or output_padding[a] < 0:
            raise ArgumentError(f"conv_transpose: padding and output_padding of axis {axis} must not be negative")
        if output_padding[a] >= max(strides[a], dilation[a]):
            raise ArgumentError(
                f"conv_transpose: output_padding {output_padding[a]} of axis {axis} must be smaller than "
                f"its stride {strides[a]} or dilation {dilation[a]}"
            )
        need.at_least(x[axis], 1, f"axis {axis} has an element")
        need.at_least(w[axis], 1, f"the kernel has an element along axis {axis}")
        spread = window_extent(x[axis], strides[a]) + window_extent(w[axis], dilation[a]) - 1
        size = spread - before - after + output_padding[a]
        need.at_least(size, 0, f"padding does not exceed the result along axis {axis}")
        out.append(size)
    return need.result(tuple(out))


def _conv_transpose_body(
    F: Builder[V],
    x: V,
    w: V,
    bias: V | None = None,
    *,
    strides: Ints,
    padding: IntPairs,
    output_padding: Ints,
    dilation: Ints,
    groups: int,
) -> V:
    # Every input element spreads a kernel: a convolution of the input with zeros between its elements with the
    # mirrored kernel, input and output channels exchanged.
    channels, out_channels, *kernel = F.shape(w)
    spatial = tuple(range(len(kernel)))
    if groups > 1:
        per_group = exact_quotient(channels, groups, "conv_transpose")
        w = F.reshape(w, (groups, per_group, out_channels, *kernel))
        w = F.transpose(w, (0, 2, 1, *(3 + a for a in spatial)))
        w = F.reshape(w, (out_channels * groups, per_group, *kernel))
    else:
        w = F.transpose(w, (1, 0, *(2 + a for a in spatial)))
    if any(k != 1 for k in kernel):
        w = F.op("flip", w, axes=tuple(2 + a for a in spatial))
    reach = [window_extent(k, d) - 1 for k, d in zip(kernel, dilation, strict=True)]
    pads: list[tuple[Dim, Dim]] = []
    crops: list[tuple[int, int]] = []
    for a in spatial:
        before, after = reach[a] - padding[a][0], reach[a] - padding[a][1] + output_padding[a]
        # Padding past the kernel's reach cuts into the result instead.
        cut = (_shortfall(before), _shortfall(after))
        crops.append(cut)
        pads.append((before + cut[0], after + cut[1]))
    ones = (1,) * len(kernel)
    out = F.op(
        "conv", x, w, bias,
        strides=ones, padding=tuple(pads), dilation=dilation, input_dilation=strides, groups=groups,
    )  # fmt: skip
    if any(crop != (0, 0) for crop in crops):
        shape = F.shape(out)
        sizes = (*shape[:2], *(d - b - e for d, (b, e) in zip(shape[2:], crops, strict=True)))
        starts = (0, 0, *(b for b, _ in crops))
        out = F.op("slice", out, starts=starts, sizes=sizes, steps=(1,) * len(shape))
    return out


def _shortfall(amount: Dim) -> int:
    return max(0, -amount) if isinstance(amount, int) else 0


def _conv_transpose_reference(
    x: Array,
    w: Array,
    bias: Array | None = None,
    *,
    strides: Ints,
    padding: IntPairs,
    output_padding: Ints,
    dilation: Ints,
    groups: int,
) -> Array:
    acc = _accumulator(dtype(x.dtype))
    n, channels, *size = x.shape
    c, o, kernel = channels // groups, w.shape[1], w.shape[2:]
    spread = [
        (d - 1) * s + (k - 1) * t + 1 + p
        for d, s, k, t, p in zip(size, strides, kernel, dilation, output_padding, strict=True)
    ]
    out = np.zeros((n, o * groups, *spread), acc)
    for g in range(groups):
        xg, wg = x[:, g * c : (g + 1) * c].astype(acc), w[g * c : (g + 1) * c].astype(acc)
        for tap in np.ndindex(*kernel):
            part = np.moveaxis(np.tensordot(wg[(slice(None), slice(None), *tap)], xg, ((0,), (1,))), 0, 1)
            where = tuple(
                slice(i * t, i * t + (d - 1) * s + 1, s)
                for i, t, d, s in zip(tap, dilation, size, strides, strict=True)
            )
            out[(slice(None), slice(g * o, (g + 1) * o), *where)] += part
    kept = tuple(slice(b, d - e) for d, (b, e) in zip(spread, padding, strict=True))
    out = out[(slice(None), slice(None), *kept)]
    if bias is not None:
        out = out + bias.astype(acc).reshape(-1, *(1 for _ in size))
    return np.ascontiguousarray(out).astype(x.dtype)


def _conv_transpose_cost(shapes: Shapes, params: Params) -> Cost:
    (out,) = _conv_transpose_shape(shapes, params).shapes
    x, w = present(shapes[0]), present(shapes[1])
    return product(x) * product(w[1:]) * 2, traffic(*shapes, out)


def _conv_transpose_sample(c: Chooser) -> Example:
    rank = c.integer(1, 2)
    groups = c.choice((1, 1, 2))
    channels, per_group = groups * c.integer(1, 2), c.integer(1, 2)
    kernel = tuple(c.integer(1, 3) for _ in range(rank))
    strides = tuple(c.integer(1, 3) for _ in range(rank))
    dilation = tuple(c.integer(1, 2) for _ in range(rank))
    padding: list[tuple[int, int]] = []
    size: list[int] = []
    for k, s, d in zip(kernel, strides, dilation, strict=True):
        n = c.integer(1, 4)
        full = (n - 1) * s + (k - 1) * d + 1
        before = c.integer(0, min(2, full))
        padding.append((before, c.integer(0, min(2, full - before))))
        size.append(n)
    dt = draw_dtype(c, NUMERIC_DTYPES)
    operands = (
        OperandSample((c.integer(0, 2), channels, *size), dt, "moderate"),
        OperandSample((channels, per_group, *kernel), dt, "moderate"),
        OperandSample((per_group * groups,), dt, "moderate") if c.boolean() else None,
    )
    params = {
        "strides": strides,
        "padding": tuple(padding),
        "output_padding": tuple(c.integer(0, max(s, d) - 1) for s, d in zip(strides, dilation, strict=True)),
        "dilation": dilation,
        "groups": groups,
    }
    return Example(operands, params)


CONV_TRANSPOSE = register(
    OpRecord(
        name="conv_transpose",
        doc="Transposed convolution: x [N, C, spatial...] with w [C, O / groups, kernel...], plus a bias [O].",
        category="contraction",
        operands=("x", "w", "bias?"),
        params=(
            _STRIDES,
            Param("padding", "pairs", "elements cut (before, after) from each spatial axis of the result"),
            Param("output_padding", "ints", "elements added after each spatial axis of the result"),
            _DILATION,
            _GROUPS,
        ),
        shape_rule=_conv_transpose_shape,
        dtype_rule=one_numeric,
        reference=_conv_transpose_reference,
        body=Decomposition(_conv_transpose_body),
        sample=_conv_transpose_sample,
        accumulate=compute_dtype,
        cost=_conv_transpose_cost,
        tolerance=CONTRACTION_TOLERANCE,
        onnx=("ConvTranspose",),
        torch=("aten.convolution", "aten.conv_transpose1d", "aten.conv_transpose2d"),
    )
)
