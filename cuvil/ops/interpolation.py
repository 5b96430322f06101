"""interpolate: resampling of spatial axes by nearest neighbour, linear or cubic weights, as PyTorch places points."""

from __future__ import annotations

import numpy as np

from cuvil.dtypes import DType, int64
from cuvil.ops import batching
from cuvil.ops.builder import Builder, V
from cuvil.ops.contraction import wide
from cuvil.ops.cost import Cost, elements, traffic
from cuvil.ops.drawing import ANY_DTYPES, FLOAT_DTYPES, draw_dtype, draw_size
from cuvil.ops.operand_dtypes import compute_dtype, one_float, same_as_first
from cuvil.ops.record import (
    Array,
    Chooser,
    Decomposition,
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
from cuvil.support.errors import ArgumentError, ShapeError
from cuvil.symbolic import Dim

Shapes = tuple[Shape | None, ...]
MODES = ("nearest", "nearest_exact", "linear", "cubic")
#: Keys's cubic convolution parameter, the value that PyTorch and OpenCV use.
CUBIC_A = -0.75


def _shape_rule(shapes: Shapes, params: Params) -> ShapeResult:
    x = present(shapes[0])
    sizes: Shape = params["sizes"]
    mode: str = params["mode"]
    if mode not in MODES:
        raise ArgumentError(f"interpolate: no mode {mode!r}; expected one of {', '.join(MODES)}")
    if params["align_corners"] and mode.startswith("nearest"):
        raise ArgumentError(f"interpolate: align_corners has no meaning for mode {mode!r}; expected linear or cubic")
    if len(x) != len(sizes) + 2:
        raise ShapeError(
            f"interpolate: expected x [N, C, spatial...] with {len(sizes)} spatial axes, got shape {format_shape(x)}"
        )
    need = Requirements("interpolate")
    for axis, (d, size) in enumerate(zip(x[2:], sizes, strict=True), 2):
        need.at_least(size, 0, f"the new size of axis {axis} is not negative")
        if size != 0 and size != d:
            need.at_least(d, 1, f"axis {axis} has an element to resample")
    return need.result((*x[:2], *sizes))


def _dtype_rule(dtypes: tuple[DType | None, ...], params: Params) -> tuple[DType, ...]:
    rule = same_as_first if str(params["mode"]).startswith("nearest") else one_float
    return rule(dtypes, params)


# --------------------------------------------------------------------------------------- decomposition


def _nearest_index(F: Builder[V], size: Dim, target: Dim, exact: bool) -> V:
    """``floor(i * size / target)``, or of the pixel centre ``(i + 1/2) * size / target``, in exact integers."""
    i = F.iota((target,), 0)
    if exact:
        numerator = F.mul(F.add(F.mul(i, F.scalar(2, int64)), F.scalar(1, int64)), F.dim(size))
        return F.op("floor_divide", numerator, F.dim(target * 2))
    return F.op("floor_divide", F.mul(i, F.dim(size)), F.dim(target))


def _source_position(F: Builder[V], size: Dim, target: Dim, compute: DType, align_corners: bool) -> V:
    """Where each output element lies among the input's, in floating point."""
    i = F.iota((target,), 0, compute)
    if align_corners:
        # One output element takes the first input element: its index 0 makes any divisor but 0 do.
        steps = F.maximum(F.sub(F.dim(target, compute), F.scalar(1, compute)), F.scalar(1, compute))
        return F.mul(i, F.div(F.sub(F.dim(size, compute), F.scalar(1, compute)), steps))
    half = F.scalar(0.5, compute)
    scale = F.div(F.dim(size, compute), F.dim(target, compute))
    return F.sub(F.mul(F.add(i, half), scale), half)


def _linear(F: Builder[V], x: V, axis: int, position: V, shape: Shape) -> V:
    compute = F.dtype(x)
    # Beyond the outer pixel centres both taps are clipped to the same element, so their weights do not matter.
    left = F.op("floor", position)
    fraction = F.reshape(F.sub(position, left), shape)
    index = F.cast(left, int64)
    low = F.op("take", x, index, axis=axis, mode="clip")
    high = F.op("take", x, F.add(index, F.scalar(1, int64)), axis=axis, mode="clip")
    return F.add(F.mul(low, F.sub(F.scalar(1, compute), fraction)), F.mul(high, fraction))


def _cubic(F: Builder[V], x: V, axis: int, position: V, shape: Shape) -> V:
    compute = F.dtype(x)

    def const(value: float) -> V:
        return F.scalar(value, compute)

    def near(t: V) -> V:  # for |t| <= 1
        inner = F.sub(F.mul(const(CUBIC_A + 2), t), const(CUBIC_A + 3))
        return F.add(F.mul(F.mul(inner, t), t), const(1))

    def far(t: V) -> V:  # for 1 < |t| < 2
        inner = F.add(F.mul(F.sub(F.mul(const(CUBIC_A), t), const(5 * CUBIC_A)), t), const(8 * CUBIC_A))
        return F.sub(F.mul(inner, t), const(4 * CUBIC_A))

    left = F.op("floor", position)
    t = F.reshape(F.sub(position, left), shape)
    rest = F.sub(const(1), t)
    weights = (far(F.add(t, const(1))), near(t), near(rest), far(F.add(rest, const(1))))
    index = F.cast(left, int64)
    total: V | None = None
    for offset, weight in zip((-1, 0, 1, 2), weights, strict=True):
        tap = F.op("take", x, F.add(index, F.scalar(offset, int64)), axis=axis, mode="clip")
        part = F.mul(tap, weight)
        total = part if total is None else F.add(total, part)
    assert total is not None
    return total


def _body(F: Builder[V], x: V, *, sizes: Shape, mode: str, align_corners: bool) -> V:
    dt, shape = F.dtype(x), F.shape(x)
    out = (*shape[:2], *sizes)
    if any(d == 0 for d in out):
        return F.broadcast_to(F.like(0, x), out)
    nearest = mode.startswith("nearest")
    y = x if nearest else F.cast(x, compute_dtype(dt))
    # The innermost axis first, as PyTorch adds up.
    for axis in reversed(range(2, len(shape))):
        size, target = shape[axis], out[axis]
        if size == target:
            continue
        if nearest:
            y = F.op("take", y, _nearest_index(F, size, target, mode == "nearest_exact"), axis=axis, mode="clip")
            continue
        position = _source_position(F, size, target, F.dtype(y), align_corners)
        weights_shape = tuple(target if a == axis else 1 for a in range(len(shape)))
        y = (_linear if mode == "linear" else _cubic)(F, y, axis, position, weights_shape)
    return F.cast(y, dt)


# ------------------------------------------------------------------------------------------- reference


def _resample(y: Array, axis: int, target: int, mode: str, align_corners: bool) -> Array:
    size, compute = y.shape[axis], y.dtype.type
    i = np.arange(target).astype(y.dtype)
    if align_corners:
        position = i * (compute(size - 1) / compute(max(target - 1, 1)))
    else:
        position = (i + compute(0.5)) * (compute(size) / compute(max(target, 1))) - compute(0.5)
    if mode == "linear":
        position = np.maximum(position, 0)
    taps, kernel = ((0, 1), _triangle) if mode == "linear" else ((-1, 0, 1, 2), _keys)
    left = np.floor(position)
    total = np.zeros((), y.dtype)
    for tap in taps:
        at = np.clip(left.astype(np.int64) + tap, 0, size - 1)
        weight = kernel(np.abs(position - left - tap)).reshape([target if a == axis else 1 for a in range(y.ndim)])
        total = total + np.take(y, at, axis) * weight
    return total


def _triangle(distance: Array) -> Array:
    return 1 - distance


def _keys(d: Array) -> Array:
    a = CUBIC_A
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    return np.where(d <= 1, near, ((a * d - 5 * a) * d + 8 * a) * d - 4 * a)


def _reference(x: Array, *, sizes: tuple[int, ...], mode: str, align_corners: bool) -> Array:
    if mode.startswith("nearest"):
        y = x
        for axis, target in enumerate(sizes, 2):
            if y.shape[axis] != target:
                i = np.arange(target)
                size = y.shape[axis]
                at = i * size // max(target, 1) if mode == "nearest" else (2 * i + 1) * size // max(2 * target, 1)
                y = np.take(y, at, axis)
        return y.copy() if y is x else y
    y = wide(x)
    for axis in reversed(range(2, x.ndim)):
        if y.shape[axis] != sizes[axis - 2]:
            y = _resample(y, axis, sizes[axis - 2], mode, align_corners)
    return y.astype(x.dtype)


def _cost(shapes: Shapes, params: Params) -> Cost:
    (out,) = _shape_rule(shapes, params).shapes
    taps = {"linear": 2, "cubic": 4}.get(params["mode"], 1) ** len(params["sizes"])
    return elements(out) * taps * 2, traffic(*shapes, out)


def _sample(c: Chooser) -> Example:
    rank = c.integer(1, 2)
    mode = c.choice(MODES)
    nearest = mode.startswith("nearest")
    dt = draw_dtype(c, ANY_DTYPES if nearest else FLOAT_DTYPES)
    shape = (c.integer(0, 2), c.integer(1, 2), *(draw_size(c, positive=True) for _ in range(rank)))
    params = {
        "sizes": tuple(draw_size(c) for _ in range(rank)),
        "mode": mode,
        "align_corners": not nearest and c.boolean(),
    }
    return Example((OperandSample(shape, dt, "moderate"),), params)


INTERPOLATE = register(
    OpRecord(
        name="interpolate",
        doc="x [N, C, spatial...] at new spatial sizes; pixel centres lie at half-integers unless corners align.",
        category="composite",
        operands=("x",),
        params=(
            Param("sizes", "dims", "new size of each spatial axis"),
            Param("mode", "str", "nearest, nearest_exact, linear (along each axis) or cubic", "nearest"),
            Param("align_corners", "bool", "whether first and last elements stay in place (linear and cubic)", False),
        ),
        shape_rule=_shape_rule,
        dtype_rule=_dtype_rule,
        reference=_reference,
        body=Decomposition(_body),
        sample=_sample,
        batch_rule=batching.folded("interpolate"),
        accumulate=compute_dtype,
        cost=_cost,
        # Positions carry an error of an epsilon of the size, which the slope of the data magnifies.
        tolerance=Tolerance(ulp=32, absolute=1024),
        onnx=("Resize", "Upsample"),
        torch=("aten.upsample_nearest2d", "aten.upsample_bilinear2d", "aten.upsample_bicubic2d", "aten.interpolate"),
    )
)
