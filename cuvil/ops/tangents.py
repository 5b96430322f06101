"""Tangent rules of ops that are not linear: ``jvp(F, operands, results, tangents, **params)``.

A rule computes with the operands and results as it likes and applies linear ops only to the tangents, which may be
unknowns of a tape. A tangent that is None is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cuvil.ops.builder import Builder
from cuvil.ops.operand_dtypes import compute_dtype
from cuvil.ops.record import ParamValue
from cuvil.ops.transposes import Value, cut, inverse
from cuvil.symbolic import product

Operands = Sequence[Any]
Tangents = Sequence[Value | None]


def constant(
    F: Builder[Any], operands: Operands, results: Operands, tangents: Operands, **params: ParamValue
) -> Tangents:
    """No tangent: what :func:`cuvil.stop_gradient` is for."""
    return [None for _ in results]


def slope(derivative: Callable[..., Value]) -> Callable[..., Tangents]:
    """The rule of an element-wise function of one operand from ``derivative(F, x, y, **params)``.

    Halves are computed in float32.
    """

    def jvp(
        F: Builder[Any], operands: Operands, results: Operands, tangents: Operands, **params: ParamValue
    ) -> Tangents:
        dt = F.dtype(operands[0])
        wide = compute_dtype(dt)
        x, y, t = (F.cast(v, wide) for v in (operands[0], results[0], tangents[0]))
        return [F.cast(F.mul(t, derivative(F, x, y, **params)), dt)]

    return jvp


# ------------------------------------------------------------------------------------------ activations


def sigmoid(F: Builder[Any], x: Value, y: Value) -> Value:
    return F.mul(y, F.sub(F.like(1, y), y))


def silu(F: Builder[Any], x: Value, y: Value) -> Value:
    s = F.op("sigmoid", x)
    return F.mul(s, F.add(F.like(1, x), F.mul(x, F.sub(F.like(1, x), s))))


def softplus(F: Builder[Any], x: Value, y: Value) -> Value:
    return F.op("sigmoid", x)


def mish(F: Builder[Any], x: Value, y: Value) -> Value:
    bent = F.op("tanh", F.op("softplus", x))
    flat = F.sub(F.like(1, x), F.mul(bent, bent))
    return F.add(bent, F.mul(x, F.mul(flat, F.op("sigmoid", x))))


def softsign(F: Builder[Any], x: Value, y: Value) -> Value:
    room = F.add(F.like(1, x), F.op("abs", x))
    return F.op("reciprocal", F.mul(room, room))


def logaddexp(
    F: Builder[Any], operands: Operands, results: Operands, tangents: Operands, **params: ParamValue
) -> Tangents:
    """Each operand has the share ``sigmoid(x - other)``."""
    dt = F.dtype(operands[0])
    wide = compute_dtype(dt)
    a, b = (F.cast(o, wide) for o in operands)
    # Equal infinities share, where their difference would be NaN.
    difference = F.where(F.op("equal", a, b), F.like(0, a), F.sub(a, b))
    total: Value | None = None
    for t, distance in zip(tangents, (difference, F.op("negative", difference)), strict=True):
        if t is not None:
            part = F.mul(F.cast(t, wide), F.op("sigmoid", distance))
            total = part if total is None else F.add(total, part)
    assert total is not None
    return [F.broadcast_to(F.cast(total, dt), F.shape(results[0]))]


def clip(F: Builder[Any], operands: Operands, results: Operands, tangents: Operands, **params: ParamValue) -> Tangents:
    """Between the bounds and at them x passes; else the bound that is the result."""
    x, low, high = operands
    above = F.op("greater", F.maximum(x, low), high)
    below = F.op("logical_and", F.op("less", x, low), F.op("logical_not", above))
    inside = F.op("logical_not", F.op("logical_or", above, below))
    total: Value | None = None
    for t, passes in zip(tangents, (inside, below, above), strict=True):
        if t is not None:
            part = F.where(passes, t, F.like(0, x))
            total = part if total is None else F.add(total, part)
    return [None if total is None else F.broadcast_to(total, F.shape(results[0]))]


# ------------------------------------------------------------------------------------------- reductions


def extreme(
    F: Builder[Any], operands: Operands, results: Operands, tangents: Operands, *, axes: tuple[int, ...], keepdims: bool
) -> Tangents:
    """Elements that equal the extreme share its tangent in equal parts."""
    (x,), (y,) = operands, results
    shape = F.shape(x)
    kept = y if keepdims else F.reshape(y, tuple(1 if a in axes else d for a, d in enumerate(shape)))
    same = F.op("equal", x, kept)
    dt = compute_dtype(F.dtype(x))
    count = F.sum(F.cast(same, dt), axes, keepdims=True)
    # Nothing equals an extreme of NaN, or one of no elements: that has no tangent.
    share = F.div(F.cast(same, dt), F.maximum(count, F.scalar(1, dt)))
    return [F.sum(F.mul(tangents[0], F.cast(share, F.dtype(x))), axes, keepdims)]


def prod(
    F: Builder[Any], operands: Operands, results: Operands, tangents: Operands, *, axes: tuple[int, ...], keepdims: bool
) -> Tangents:
    """Each element's tangent times the product of the others, from running products from both ends: right with
    zeros among them, too."""
    (x,) = operands
    dt = F.dtype(x)
    wide = compute_dtype(dt)
    shape = F.shape(x)
    kept = tuple(a for a in range(len(shape)) if a not in axes)
    n = product(shape[a] for a in axes)
    flat_shape = (*(shape[a] for a in kept), n)
    last = len(kept)
    flat = F.reshape(F.transpose(F.cast(x, wide), (*kept, *axes)), flat_shape)
    others = F.mul(
        _products_before(F, flat, last), _reversed(F, _products_before(F, _reversed(F, flat, last), last), last)
    )
    t = F.reshape(F.transpose(F.cast(tangents[0], wide), (*kept, *axes)), flat_shape)
    out = F.sum(F.mul(t, others), (last,))
    return [F.cast(F.reshape(out, F.shape(results[0])), dt)]


def _products_before(F: Builder[Any], x: Value, axis: int) -> Value:
    running = F.op("cumulative_prod", x, axis=axis, include_initial=True)
    return cut(F, running, axis, 0, F.shape(x)[axis])


def _reversed(F: Builder[Any], x: Value, axis: int) -> Value:
    return F.op("flip", x, axes=(axis,))


def cumulative_prod(
    F: Builder[Any], operands: Operands, results: Operands, tangents: Operands, *, axis: int, include_initial: bool
) -> Tangents:
    """Each running product changes with each factor by the product of its others: a square matrix along the axis."""
    (x,) = operands
    dt = F.dtype(x)
    wide = compute_dtype(dt)
    shape = F.shape(x)
    n = shape[axis]
    others = tuple(a for a in range(len(shape)) if a != axis)
    order = (*others, axis)
    rest = len(others)
    x, t = (F.transpose(F.cast(v, wide), order) for v in (x, tangents[0]))
    # Entry (i, j) is factor i, but 1 where it is factor j itself; running products down the rows i leave j out.
    batch = F.shape(x)[:-1]
    row, column = F.iota((n, 1), 0), F.iota((1, n), 1)
    factors = F.where(F.op("equal", row, column), F.scalar(1, wide), F.reshape(x, (*batch, n, 1)))
    without = F.op("cumulative_prod", factors, axis=rest, include_initial=False)
    lower = F.where(F.op("less_equal", column, row), without, F.scalar(0, wide))
    out = F.sum(F.mul(lower, F.reshape(t, (*batch, 1, n))), (rest + 1,))
    if include_initial:
        pairs = (*((0, 0) for _ in batch), (1, 0))
        out = F.op("pad", out, pairs=pairs, mode="constant", value=0)
    return [F.cast(F.transpose(out, inverse(order)), dt)]


def logsumexp(
    F: Builder[Any], operands: Operands, results: Operands, tangents: Operands, *, axes: tuple[int, ...], keepdims: bool
) -> Tangents:
    """The mean of the tangents with the weights of a softmax."""
    dt = F.dtype(operands[0])
    wide = compute_dtype(dt)
    x, y, t = (F.cast(v, wide) for v in (operands[0], results[0], tangents[0]))
    if not keepdims:
        y = F.reshape(y, tuple(1 if a in axes else d for a, d in enumerate(F.shape(x))))
    weights = F.exp(F.sub(x, y))
    return [F.cast(F.sum(F.mul(t, weights), axes, keepdims), dt)]


def softmax(F: Builder[Any], operands: Operands, results: Operands, tangents: Operands, *, axis: int) -> Tangents:
    dt = F.dtype(operands[0])
    wide = compute_dtype(dt)
    y, t = F.cast(results[0], wide), F.cast(tangents[0], wide)
    weighted = F.mul(t, y)
    return [F.cast(F.sub(weighted, F.mul(F.sum(weighted, (axis,), keepdims=True), y)), dt)]


def log_softmax(F: Builder[Any], operands: Operands, results: Operands, tangents: Operands, *, axis: int) -> Tangents:
    dt = F.dtype(operands[0])
    wide = compute_dtype(dt)
    y, t = F.cast(results[0], wide), F.cast(tangents[0], wide)
    mean = F.sum(F.mul(t, F.exp(y)), (axis,), keepdims=True)
    return [F.cast(F.sub(t, mean), dt)]


# ---------------------------------------------------------------------------------------------- sorting


def sort(
    F: Builder[Any], operands: Operands, results: Operands, tangents: Operands, *, axis: int, descending: bool
) -> Tangents:
    """The tangents in the order of the elements."""
    order = F.op("argsort", operands[0], axis=axis, descending=descending)
    return [_along(F, tangents[0], order, axis)]


def top_k(
    F: Builder[Any], operands: Operands, results: Operands, tangents: Operands, *, axis: int, **params: ParamValue
) -> Tangents:
    """The tangents of the elements that are among the k."""
    return [_along(F, tangents[0], results[1], axis), None]


def _along(F: Builder[Any], t: Value, indices: Value, axis: int) -> Value:
    return F.op("take_along_axis", t, indices, axis=axis, mode="clip", fill=0)
