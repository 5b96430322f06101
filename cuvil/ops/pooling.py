"""Pooling over spatial axes, channels first: maximum and average of windows, as PyTorch counts them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from cuvil.dtypes import DType, dtype, int64
from cuvil.ops import batching
from cuvil.ops.builder import Builder, V
from cuvil.ops.cost import Cost, CostRule, ShapeRule, traffic
from cuvil.ops.drawing import FLOAT_DTYPES, NUMERIC_DTYPES, draw_dtype
from cuvil.ops.operand_dtypes import compute_dtype, one_float, one_numeric
from cuvil.ops.record import (
    Array,
    Chooser,
    Decomposition,
    Domain,
    Example,
    OperandSample,
    OpRecord,
    Param,
    Params,
    Shape,
    ShapeResult,
    Tolerance,
)
from cuvil.ops.registry import register
from cuvil.ops.requirements import Requirements, format_shape, present
from cuvil.ops.windows import Pairs, require_window, window_extent, windows
from cuvil.support.errors import ArgumentError, ShapeError
from cuvil.symbolic import Dim, dim_max, dim_min, product

Shapes = tuple[Shape | None, ...]
Ints = tuple[int, ...]
IntPairs = tuple[tuple[int, int], ...]


def _positions(
    need: Requirements, axis: int, size: Dim, k: int, stride: int, pads: tuple[int, int], dilation: int, ceil_mode: bool
) -> tuple[Dim, Dim]:
    """Window positions along an axis, and the padding after it that makes exactly these fit."""
    before, after = pads
    extent = window_extent(k, dilation)
    assert isinstance(extent, int)
    padded = size + before + after
    floored = require_window(need, axis, padded, extent, stride)
    if not ceil_mode:
        return floored, after
    # The last window may hang over the end, but must start inside the input or the padding before it.
    positions = dim_min((padded - extent + stride - 1) // stride + 1, (size + before + stride - 1) // stride)
    covered = (positions - 1) * stride + extent
    return positions, dim_max(covered - size - before, after)


def _pool_shape(op: str, shapes: Shapes, params: Params) -> tuple[ShapeResult, tuple[Dim, ...]]:
    """Result shape, and the padding after each spatial axis."""
    x = present(shapes[0])
    sizes: Ints = params["sizes"]
    strides: Ints = params["strides"]
    padding: IntPairs = params["padding"]
    dilation: Ints = params["dilation"]
    if len(x) < 3:
        raise ShapeError(f"{op}: expected x [N, C, spatial...], got shape {format_shape(x)}")
    if not len(x) - 2 == len(sizes) == len(strides) == len(padding) == len(dilation):
        raise ArgumentError(
            f"{op}: expected one size, stride, padding pair and dilation per spatial axis of {format_shape(x)}, "
            f"got {sizes}, {strides}, {padding}, {dilation}"
        )
    need = Requirements(op)
    out: list[Dim] = [x[0], x[1]]
    ends: list[Dim] = []
    for a, (k, s, pads, d) in enumerate(zip(sizes, strides, padding, dilation, strict=True)):
        if k < 1 or d < 1:
            raise ArgumentError(f"{op}: window size and dilation must be at least 1, got {k} and {d}")
        extent = (k - 1) * d + 1
        if not (0 <= pads[0] < extent and 0 <= pads[1] < extent):
            raise ArgumentError(f"{op}: the padding {pads} must be smaller than the window's extent {extent}")
        positions, end = _positions(need, 2 + a, x[2 + a], k, s, pads, d, params["ceil_mode"])
        out.append(positions)
        ends.append(end)
    return need.result(tuple(out)), tuple(ends)


def _pool_shape_rule(op: str) -> ShapeRule:
    def rule(shapes: Shapes, params: Params) -> ShapeResult:
        return _pool_shape(op, shapes, params)[0]

    return rule


_max_pool_shape, _avg_pool_shape = _pool_shape_rule("max_pool"), _pool_shape_rule("avg_pool")


def _lowest(dt: DType) -> int | float:
    return float("-inf") if dt.is_float else int(np.iinfo(dt.numpy).min)


def _pooled_windows(F: Builder[V], x: V, fill: float, op: str, **params: Any) -> V:
    """Windows of the padded operand, with exactly the positions of the shape rule."""
    rule, ends = _pool_shape(op, (F.shape(x),), params)
    (out,) = rule.shapes
    padding: IntPairs = params["padding"]
    sizes: Ints = params["sizes"]
    pairs: Pairs = ((0, 0), (0, 0), *((before, end) for (before, _), end in zip(padding, ends, strict=True)))
    if any(pair != (0, 0) for pair in pairs):
        x = F.op("pad", x, pairs=pairs, mode="constant", value=fill)
    axes = tuple(range(2, len(out)))
    y = F.op("window", x, axes=axes, sizes=sizes, strides=params["strides"], dilations=params["dilation"])
    if F.shape(y)[: len(out)] != out:
        # The same positions, but in ceil mode the symbols do not show it.
        shape = (*out, *sizes)
        y = F.op("slice", y, starts=(0,) * len(shape), sizes=shape, steps=(1,) * len(shape))
    return y


def _window_axes(rank: int) -> Ints:
    return tuple(range(rank, 2 * rank - 2))


def _max_pool_body(
    F: Builder[V], x: V, *, sizes: Ints, strides: Ints, padding: IntPairs, dilation: Ints, ceil_mode: bool
) -> V:
    y = _pooled_windows(
        F, x, _lowest(F.dtype(x)), "max_pool",
        sizes=sizes, strides=strides, padding=padding, dilation=dilation, ceil_mode=ceil_mode,
    )  # fmt: skip
    return F.max(y, _window_axes(len(F.shape(x))))


def _reference_windows(x: Array, fill: float, out: Sequence[int], params: Params) -> Array:
    ends = [
        max(0, (o - 1) * s + (k - 1) * d + 1 - n - before)
        for o, s, k, d, n, (before, _) in zip(
            out, params["strides"], params["sizes"], params["dilation"], x.shape[2:], params["padding"], strict=True
        )
    ]
    pairs = [(0, 0), (0, 0), *((before, end) for (before, _), end in zip(params["padding"], ends, strict=True))]
    padded = np.full([n + b + e for n, (b, e) in zip(x.shape, pairs, strict=True)], fill, x.dtype)
    padded[tuple(slice(b, b + n) for n, (b, _) in zip(x.shape, pairs, strict=True))] = x
    y = windows(padded, range(2, x.ndim), params["sizes"], params["strides"], params["dilation"])
    return y[(slice(None), slice(None), *(slice(0, o) for o in out))]


def _concrete_positions(op: str, x: Array, params: Params) -> Ints:
    shape = _pool_shape(op, (x.shape,), params)[0].shapes[0]
    return tuple(d for d in shape[2:] if isinstance(d, int))


def _max_pool_reference(
    x: Array, *, sizes: Ints, strides: Ints, padding: IntPairs, dilation: Ints, ceil_mode: bool
) -> Array:
    params = {
        "sizes": sizes, "strides": strides, "padding": padding, "dilation": dilation, "ceil_mode": ceil_mode,
    }  # fmt: skip
    y = _reference_windows(x, _lowest(dtype(x.dtype)), _concrete_positions("max_pool", x, params), params)
    return y.max(_window_axes(x.ndim))


def _pool_cost(rule: ShapeRule) -> CostRule:
    def cost(shapes: Shapes, params: Params) -> Cost:
        (out,) = rule(shapes, params).shapes
        return product(out) * prod(params["sizes"]), traffic(*shapes, out)

    return cost


def _draw_pool(c: Chooser, dtypes: Sequence[DType], domain: Domain) -> Example:
    rank = c.integer(1, 2)
    sizes = tuple(c.integer(1, 3) for _ in range(rank))
    dilation = tuple(c.integer(1, 2) for _ in range(rank))
    extents = [(k - 1) * d + 1 for k, d in zip(sizes, dilation, strict=True)]
    shape = (c.integer(0, 2), c.integer(0, 3), *(e + c.integer(0, 4) for e in extents))
    params = {
        "sizes": sizes,
        "strides": tuple(c.integer(1, 4) for _ in range(rank)),
        # At most half the window, so that none lies wholly in the padding.
        "padding": tuple((c.integer(0, k // 2), c.integer(0, k // 2)) for k in sizes),
        "dilation": dilation,
        "ceil_mode": c.boolean(),
    }
    return Example((OperandSample(shape, draw_dtype(c, dtypes), domain),), params)


def _max_pool_sample(c: Chooser) -> Example:
    return _draw_pool(c, NUMERIC_DTYPES, "any")


_POOL_PARAMS = (
    Param("sizes", "ints", "window size along each spatial axis"),
    Param("strides", "ints", "distance between windows"),
    Param("padding", "pairs", "padding (before, after) each spatial axis, smaller than the window"),
    Param("dilation", "ints", "distance between a window's elements"),
    Param("ceil_mode", "bool", "whether a last window may hang over the end", False),
)
MAX_POOL = register(
    OpRecord(
        name="max_pool",
        doc="Maximum over sliding windows of x [N, C, spatial...]; padding never wins.",
        category="contraction",
        operands=("x",),
        params=_POOL_PARAMS,
        shape_rule=_max_pool_shape,
        dtype_rule=one_numeric,
        reference=_max_pool_reference,
        body=Decomposition(_max_pool_body),
        sample=_max_pool_sample,
        batch_rule=batching.folded("max_pool"),
        cost=_pool_cost(_max_pool_shape),
        onnx=("MaxPool",),
        torch=("aten.max_pool2d_with_indices", "aten.max_pool1d", "aten.max_pool2d"),
    )
)

# -------------------------------------------------------------------------------------------- avg_pool


def _avg_pool_body(
    F: Builder[V],
    x: V,
    *,
    sizes: Ints,
    strides: Ints,
    padding: IntPairs,
    dilation: Ints,
    ceil_mode: bool,
    count_include_pad: bool,
) -> V:
    dt = F.dtype(x)
    compute = compute_dtype(dt)
    shape = F.shape(x)
    y = _pooled_windows(
        F, F.cast(x, compute), 0.0, "avg_pool",
        sizes=sizes, strides=strides, padding=padding, dilation=dilation, ceil_mode=ceil_mode,
    )  # fmt: skip
    total = F.sum(y, _window_axes(len(shape)))
    whole = all(pads == (0, 0) for pads in padding)
    if not ceil_mode and (count_include_pad or whole):
        return F.cast(F.div(total, F.scalar(prod(sizes), compute)), dt)
    out = F.shape(total)
    count = F.scalar(1, compute)
    for a, (k, s, (before, after), d) in enumerate(zip(sizes, strides, padding, dilation, strict=True)):
        size = shape[2 + a]
        low = 0 if count_include_pad else before
        high = size + before + after if count_include_pad else size + before
        start = F.mul(F.iota((out[2 + a],), 0), F.scalar(s, int64))
        # Taps t with low <= start + t * d < high, of t in [0, k).
        first, last = _taps_before(F, low, start, d, k), _taps_before(F, high, start, d, k)
        along = F.cast(F.sub(last, first), compute)
        along = F.reshape(along, tuple(out[2 + a] if b == a else 1 for b in range(len(sizes))))
        count = F.mul(count, along)
    return F.cast(F.div(total, count), dt)


def _taps_before(F: Builder[V], bound: Dim, start: V, dilation: int, k: int) -> V:
    """How many of a window's taps lie before a bound."""
    up = F.sub(F.dim(bound + dilation - 1), start)
    taps = F.op("floor_divide", up, F.scalar(dilation, int64))
    return F.minimum(F.maximum(taps, F.scalar(0, int64)), F.scalar(k, int64))


def _avg_pool_reference(
    x: Array,
    *,
    sizes: Ints,
    strides: Ints,
    padding: IntPairs,
    dilation: Ints,
    ceil_mode: bool,
    count_include_pad: bool,
) -> Array:
    params = {
        "sizes": sizes, "strides": strides, "padding": padding, "dilation": dilation, "ceil_mode": ceil_mode,
    }  # fmt: skip
    compute = compute_dtype(dtype(x.dtype)).numpy
    out = _concrete_positions("avg_pool", x, params)
    total = _reference_windows(x.astype(compute), 0, out, params).sum(_window_axes(x.ndim))
    count = np.ones((1,) * len(sizes), compute)
    for a, (n, o, (before, after)) in enumerate(zip(x.shape[2:], out, padding, strict=True)):
        taps = np.arange(o)[:, None] * strides[a] + np.arange(sizes[a]) * dilation[a]
        low, high = (0, n + before + after) if count_include_pad else (before, before + n)
        along = ((taps >= low) & (taps < high)).sum(1).astype(compute)
        count = count * along.reshape([o if b == a else 1 for b in range(len(sizes))])
    with np.errstate(invalid="ignore"):
        return (total / count).astype(x.dtype)


def _avg_pool_sample(c: Chooser) -> Example:
    example = _draw_pool(c, FLOAT_DTYPES, "moderate")
    return Example(example.operands, {**example.params, "count_include_pad": c.boolean()})


AVG_POOL = register(
    OpRecord(
        name="avg_pool",
        doc="Mean over sliding windows of x [N, C, spatial...]; elements past the padded end never count.",
        category="contraction",
        operands=("x",),
        params=(*_POOL_PARAMS, Param("count_include_pad", "bool", "whether padding counts as elements", True)),
        shape_rule=_avg_pool_shape,
        dtype_rule=one_float,
        reference=_avg_pool_reference,
        body=Decomposition(_avg_pool_body),
        sample=_avg_pool_sample,
        batch_rule=batching.folded("avg_pool"),
        accumulate=compute_dtype,
        cost=_pool_cost(_avg_pool_shape),
        tolerance=Tolerance(ulp=8, absolute=64),
        onnx=("AveragePool",),
        torch=("aten.avg_pool1d", "aten.avg_pool2d", "aten.adaptive_avg_pool2d"),
    )
)
