"""Rules on where, minimum, maximum, clip and cast."""

from __future__ import annotations

import math

import numpy as np
from xdsl.ir import SSAValue

from cuvil.dtypes import ALL, NUMERIC, DType, bool_, can_cast_safely
from cuvil.ir.dialect import TensorOp, aval_of
from cuvil.ops.drawing import draw_shape
from cuvil.ops.record import Array, Chooser, OperandSample
from cuvil.passes.engine import Case, Replacement, Rewriter, RuleSet, rule
from cuvil.passes.rules.arithmetic import elements
from cuvil.passes.rules.equation import ANY, Constant, equation, filled, is_filled

# --------------------------------------------------------------------------------------- extremes


def _least(a: Array) -> bool:
    return is_filled(a, -math.inf if a.dtype.kind not in "iu" else int(np.iinfo(a.dtype).min)) and a.dtype != bool


def _greatest(a: Array) -> bool:
    return is_filled(a, math.inf if a.dtype.kind not in "iu" else int(np.iinfo(a.dtype).max)) and a.dtype != bool


def _draw_bound(low: bool) -> Constant:
    def draw(c: Chooser, dt: DType, shape: tuple[int, ...]) -> Array:
        if dt.is_float:
            return np.full(shape, -math.inf if low else math.inf).astype(dt.numpy)
        info = np.iinfo(dt.numpy)
        return np.full(shape, info.min if low else info.max, dt.numpy)

    return Constant(_least if low else _greatest, draw, "least" if low else "greatest")


LEAST, GREATEST = _draw_bound(True), _draw_bound(False)


def _extreme_constant(fn: np.ufunc, F: Rewriter, a: SSAValue, b: SSAValue) -> SSAValue:
    x, y = elements(F, a), elements(F, b)
    return F.constant(np.asarray(fn(x, y), dtype=x.dtype))


EXTREMES = (
    equation("minimum-itself", lambda F, x: F.minimum(x, x), lambda F, x: x),
    equation("maximum-itself", lambda F, x: F.maximum(x, x), lambda F, x: x),
    equation("minimum-absorbs", lambda F, x, y: F.minimum(F.minimum(x, y), y), lambda F, x, y: F.minimum(x, y),
             kind="reorders"),
    equation("maximum-absorbs", lambda F, x, y: F.maximum(F.maximum(x, y), y), lambda F, x, y: F.maximum(x, y),
             kind="reorders"),
    equation("minimum-greatest", lambda F, x, c: F.minimum(x, c), lambda F, x, c: x, dtypes=NUMERIC,
             constants={"c": GREATEST}),
    equation("maximum-least", lambda F, x, c: F.maximum(x, c), lambda F, x, c: x, dtypes=NUMERIC,
             constants={"c": LEAST}),
    equation("minimum-constants", lambda F, x, a, b: F.minimum(F.minimum(x, a), b),
             lambda F, x, a, b: F.minimum(x, _extreme_constant(np.minimum, F, a, b)), dtypes=NUMERIC,
             constants={"a": ANY, "b": ANY}, kind="reorders"),
    equation("maximum-constants", lambda F, x, a, b: F.maximum(F.maximum(x, a), b),
             lambda F, x, a, b: F.maximum(x, _extreme_constant(np.maximum, F, a, b)), dtypes=NUMERIC,
             constants={"a": ANY, "b": ANY}, kind="reorders"),
    equation("clip-without-low", lambda F, x, lo, hi: F.op("clip", x, lo, hi), lambda F, x, lo, hi: F.minimum(x, hi),
             dtypes=NUMERIC, constants={"lo": LEAST}),
    equation("clip-without-high", lambda F, x, lo, hi: F.op("clip", x, lo, hi), lambda F, x, lo, hi: F.maximum(x, lo),
             dtypes=NUMERIC, constants={"hi": GREATEST}),
    equation("clip-of-clip", lambda F, x, lo, hi: F.op("clip", F.op("clip", x, lo, hi), lo, hi),
             lambda F, x, lo, hi: F.op("clip", x, lo, hi), dtypes=NUMERIC, kind="reorders"),
)  # fmt: skip

# ------------------------------------------------------------------------------------------ where

_TRUE, _FALSE = filled(True), filled(False)

WHERE = (
    equation("where-same", lambda F, c, x: F.where(c, x, x), lambda F, c, x: x, booleans=("c",)),
    equation("where-not", lambda F, c, x, y: F.where(F.op("logical_not", c), x, y), lambda F, c, x, y: F.where(c, y, x),
             booleans=("c",)),
    equation("where-true", lambda F, c, x, y: F.where(c, x, y), lambda F, c, x, y: x, booleans=("c",),
             constants={"c": _TRUE}),
    equation("where-false", lambda F, c, x, y: F.where(c, x, y), lambda F, c, x, y: y, booleans=("c",),
             constants={"c": _FALSE}),
    equation("where-is-condition", lambda F, c, t, f: F.where(c, t, f), lambda F, c, t, f: c, dtypes=(bool_,),
             constants={"t": _TRUE, "f": _FALSE}),
    equation("where-is-not-condition", lambda F, c, t, f: F.where(c, f, t), lambda F, c, t, f: F.op("logical_not", c),
             dtypes=(bool_,), constants={"t": _TRUE, "f": _FALSE}),
    equation("where-then-where", lambda F, c, x, y, z: F.where(c, F.where(c, x, y), z),
             lambda F, c, x, y, z: F.where(c, x, z), booleans=("c",)),
    equation("where-else-where", lambda F, c, x, y, z: F.where(c, x, F.where(c, y, z)),
             lambda F, c, x, y, z: F.where(c, x, z), booleans=("c",)),
)  # fmt: skip

# ------------------------------------------------------------------------------------------- cast


def _cast_case(c: Chooser) -> Case:
    sample = OperandSample(draw_shape(c, 0, 3), c.choice(ALL))
    return Case(lambda F, x: F.op("cast", x, dtype=sample.dtype), (sample,))


@rule("cast", name="cast-to-same", example=_cast_case)
def cast_to_same(F: Rewriter, op: TensorOp) -> Replacement:
    "cast(x, dtype of x) -> x"
    return op.operands[0] if aval_of(op.operands[0]) == aval_of(op.results[0]) else None


def _widens(source: DType, middle: DType, target: DType) -> bool:
    """Whether going through ``middle`` changes nothing.

    The first cast must be exact. The second then sees the same number, but integers reach other integers by wrapping
    and floats do not, and halves round differently from integers and from float64: so a change of kind on the way
    is only taken back where it returns to the source.
    """
    if not can_cast_safely(source, middle):
        return False
    return target is source or source.is_bool or middle.is_float == source.is_float


def _cast_chain_case(c: Chooser) -> Case:
    chains = [(a, b, t) for a in ALL for b in ALL if a is not b for t in ALL if _widens(a, b, t)]
    source, middle, target = c.choice(chains)
    sample = OperandSample(draw_shape(c, 0, 3), source)
    return Case(lambda F, x: F.op("cast", F.op("cast", x, dtype=middle), dtype=target), (sample,))


@rule("cast", name="cast-of-widening", example=_cast_chain_case)
def cast_of_widening(F: Rewriter, op: TensorOp) -> Replacement:
    "cast(cast(x, wider), t) -> cast(x, t); x itself where t is its dtype"
    inner = F.producer(op.operands[0], "cast")
    if inner is None:
        return None
    x = inner.operands[0]
    target = aval_of(op.results[0]).dtype
    if not _widens(aval_of(x).dtype, aval_of(inner.results[0]).dtype, target):
        return None
    return F.cast(x, target)


SELECTION = RuleSet(
    "selection",
    "the weight of the ops: each rule drops an op or puts a cheaper one in its place",
    (*EXTREMES, *WHERE, cast_to_same, cast_of_widening),
)

__all__ = ["SELECTION"]
