"""Padding and sliding windows: the movement ops beneath convolution and pooling."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import as_strided

from cuvil.ops import batching, transposes
from cuvil.ops.cost import per_result
from cuvil.ops.drawing import draw_axes, draw_dtype, draw_shape
from cuvil.ops.operand_dtypes import same_as_first
from cuvil.ops.record import (
    Array,
    Chooser,
    Condition,
    Example,
    IndexMap,
    OperandSample,
    OpRecord,
    Param,
    Params,
    Piece,
    Shape,
    ShapeResult,
)
from cuvil.ops.registry import register
from cuvil.ops.requirements import Requirements, format_shape, present
from cuvil.support.errors import ArgumentError
from cuvil.symbolic import Dim, dim_max, dim_min

Shapes = tuple[Shape | None, ...]
Pairs = tuple[tuple[Dim, Dim], ...]
PAD_MODES = ("constant", "edge", "reflect", "wrap")

# ------------------------------------------------------------------------------------------------- pad


def _pad_shape(shapes: Shapes, params: Params) -> ShapeResult:
    x = present(shapes[0])
    pairs: Pairs = params["pairs"]
    mode: str = params["mode"]
    if mode not in PAD_MODES:
        raise ArgumentError(f"pad: no mode {mode!r}; expected one of {', '.join(PAD_MODES)}")
    if len(pairs) != len(x):
        raise ArgumentError(f"pad: expected one (before, after) pair per axis of {format_shape(x)}, got {pairs}")
    need = Requirements("pad")
    out: list[Dim] = []
    for axis, (d, (before, after)) in enumerate(zip(x, pairs, strict=True)):
        for amount in (before, after):
            need.at_least(amount, 0, f"the padding of axis {axis} is not negative")
            if amount != 0 and mode in ("edge", "wrap"):
                need.at_least(d, 1, f"axis {axis} has an element to pad with")
            if amount != 0 and mode == "reflect":
                need.at_least(d, amount + 1, f"reflection stays inside axis {axis}")
        out.append(d + before + after)
    return need.result(tuple(out))


def _pad_map(
    index: Shape, in_shapes: tuple[Shape, ...], out_shape: Shape, *, pairs: Pairs, mode: str, value: object
) -> tuple[Piece, ...]:
    source: list[Dim] = []
    when: list[Condition] = []
    for i, d, (before, after) in zip(index, in_shapes[0], pairs, strict=True):
        at = i - before
        if before == 0 and after == 0:
            source.append(i)
        elif mode == "constant":
            source.append(at)
            when.append(Condition(i, before, before + d))
        elif mode == "edge":
            source.append(dim_max(dim_min(at, d - 1), 0))
        elif mode == "wrap":
            source.append(0 if d == 0 else at % d)
        else:
            from_start = dim_max(at, -at)
            past_end = d - 1 - from_start
            source.append(d - 1 - dim_max(past_end, -past_end))
    return (Piece(0, tuple(source), tuple(when)),)


def _padded_positions(d: int, before: int, after: int, mode: str) -> Array:
    at: Array = np.arange(-before, d + after)
    if mode == "edge":
        return np.minimum(np.maximum(at, 0), d - 1)
    if mode == "wrap":
        return np.remainder(at, d)
    return d - 1 - np.abs(d - 1 - np.abs(at))


def _pad_reference(x: Array, *, pairs: tuple[tuple[int, int], ...], mode: str, value: bool | float) -> Array:
    if mode == "constant":
        out = np.full([d + b + a for d, (b, a) in zip(x.shape, pairs, strict=True)], value, dtype=x.dtype)
        out[tuple(slice(b, b + d) for d, (b, _) in zip(x.shape, pairs, strict=True))] = x
        return out
    out = x.copy()
    for axis, (before, after) in enumerate(pairs):
        if before or after:
            out = np.take(out, _padded_positions(x.shape[axis], before, after, mode), axis)
    return out


def _pad_sample(c: Chooser) -> Example:
    mode = c.choice(PAD_MODES)
    shape = draw_shape(c, 0, 3, positive=mode != "constant")
    most = [d - 1 if mode == "reflect" else 3 for d in shape]
    pairs = tuple((c.integer(0, n), c.integer(0, n)) for n in most)
    params = {"pairs": pairs, "mode": mode, "value": c.choice((0, 1))}
    return Example((OperandSample(shape, draw_dtype(c)),), params)


PAD = register(
    OpRecord(
        name="pad",
        doc="Elements added before and after each axis: a constant, the edge, the reflection or the other end.",
        category="movement",
        operands=("x",),
        params=(
            Param("pairs", "pairs", "(before, after) for every axis"),
            Param("mode", "str", "constant, edge, reflect (edge not repeated) or wrap", "constant"),
            Param("value", "scalar", "the constant", 0),
        ),
        shape_rule=_pad_shape,
        dtype_rule=same_as_first,
        reference=_pad_reference,
        body=IndexMap(_pad_map, fill="value"),
        sample=_pad_sample,
        batch_rule=batching.pad,
        jvp=transposes.each("pad", value=0),
        transpose=transposes.pad,
        cost=per_result(_pad_shape),
        onnx=("Pad",),
        torch=("aten.constant_pad_nd", "aten.reflection_pad2d", "aten.replication_pad2d"),
    )
)

# ---------------------------------------------------------------------------------------------- window


def window_positions(size: Dim, extent: Dim, stride: int) -> Dim:
    """How many windows of an extent fit, a stride apart.

    >>> window_positions(7, 3, 2)
    3
    """
    return (size - extent) // stride + 1


def window_extent(size: Dim, dilation: int) -> Dim:
    """Elements from the first to the last tap of a window.

    >>> window_extent(3, 2)
    5
    """
    return (size - 1) * dilation + 1


def require_window(need: Requirements, axis: int, size: Dim, extent: Dim, stride: int) -> Dim:
    """The number of window positions, demanding that it is not negative."""
    if stride < 1:
        raise ArgumentError(f"{need.op}: the stride of axis {axis} is {stride}; expected at least 1")
    if extent != 1 or stride != 1:
        need.at_least(size, extent - stride, f"a window of extent {extent} fits the size of axis {axis}")
    return window_positions(size, extent, stride)


def _window_shape(shapes: Shapes, params: Params) -> ShapeResult:
    x = present(shapes[0])
    axes: tuple[int, ...] = params["axes"]
    sizes: Shape = params["sizes"]
    strides: tuple[int, ...] = params["strides"]
    dilations: tuple[int, ...] = params["dilations"]
    need = Requirements("window")
    need.axes(axes, len(x))
    if not len(axes) == len(sizes) == len(strides) == len(dilations):
        raise ArgumentError(f"window: expected one size, stride and dilation for each of the axes {axes}")
    out = list(x)
    for a, k, s, d in zip(axes, sizes, strides, dilations, strict=True):
        if d < 1:
            raise ArgumentError(f"window: the dilation of axis {a} is {d}; expected at least 1")
        need.at_least(k, 1, f"the window along axis {a} has an element")
        out[a] = require_window(need, a, x[a], window_extent(k, d), s)
    return need.result((*out, *sizes))


def _window_map(
    index: Shape,
    in_shapes: tuple[Shape, ...],
    out_shape: Shape,
    *,
    axes: tuple[int, ...],
    sizes: Shape,
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
) -> tuple[Piece, ...]:
    rank = len(in_shapes[0])
    source = list(index[:rank])
    for tap, a, s, d in zip(index[rank:], axes, strides, dilations, strict=True):
        source[a] = index[a] * s + tap * d
    return (Piece(0, tuple(source)),)


def windows(
    x: Array, axes: Sequence[int], sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> Array:
    """A read-only view of all windows: windowed axes become positions, one axis per window axis is appended."""
    shape, steps = list(x.shape), list(x.strides)
    for a, k, s, d in zip(axes, sizes, strides, dilations, strict=True):
        shape[a] = max(0, (x.shape[a] - ((k - 1) * d + 1)) // s + 1)
        steps[a] *= s
    shape += sizes
    steps += [x.strides[a] * d for a, d in zip(axes, dilations, strict=True)]
    if 0 in shape:
        return np.zeros(shape, x.dtype)
    return as_strided(x, shape, steps, writeable=False)


def _window_reference(
    x: Array,
    *,
    axes: tuple[int, ...],
    sizes: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
) -> Array:
    return windows(x, axes, sizes, strides, dilations).copy()


def _window_sample(c: Chooser) -> Example:
    shape = draw_shape(c, 1, 3, positive=True)
    axes = draw_axes(c, len(shape), least=1)
    sizes: list[int] = []
    dilations: list[int] = []
    for a in axes:
        k = c.integer(1, shape[a])
        sizes.append(k)
        dilations.append(c.integer(1, (shape[a] - 1) // (k - 1)) if k > 1 else 1)
    params = {
        "axes": axes,
        "sizes": tuple(sizes),
        "strides": tuple(c.integer(1, 3) for _ in axes),
        "dilations": tuple(dilations),
    }
    return Example((OperandSample(shape, draw_dtype(c)),), params)


WINDOW = register(
    OpRecord(
        name="window",
        doc="Sliding windows: windowed axes shrink to positions, and one axis per window axis is appended.",
        category="movement",
        operands=("x",),
        params=(
            Param("axes", "ints", "axes to slide over"),
            Param("sizes", "dims", "window size along each of them"),
            Param("strides", "ints", "distance between windows"),
            Param("dilations", "ints", "distance between a window's elements"),
        ),
        shape_rule=_window_shape,
        dtype_rule=same_as_first,
        reference=_window_reference,
        body=IndexMap(_window_map),
        sample=_window_sample,
        batch_rule=batching.over("window"),
        jvp=transposes.jointly("window"),
        transpose=transposes.window,
        cost=per_result(_window_shape),
        torch=("aten.unfold", "aten.im2col"),
    )
)
