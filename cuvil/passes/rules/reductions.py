"""Rules on reductions: of reductions, of transposes, and over axes of size 1."""

from __future__ import annotations

from cuvil.dtypes import DType, bool_, float32, float64, int32, int64, uint8
from cuvil.ir.dialect import TensorOp, aval_of
from cuvil.ops.drawing import draw_axes, draw_permutation, draw_shape
from cuvil.ops.record import Chooser, OperandSample
from cuvil.passes.engine import Case, Replacement, Rewriter, RuleSet, rule

_ALL = ("sum", "prod", "max", "min", "any", "all")
_ACCUMULATING = ("sum", "prod")
_DTYPES = (float32, float64, int32, int64, uint8, bool_)


def _operand(c: Chooser, name: str, low: int = 0) -> OperandSample:
    dt: DType = c.choice(_DTYPES)
    # Products of a few dozen numbers must neither overflow nor depend on the order through underflow.
    domain = "unit" if name == "prod" else "moderate" if name == "sum" else "any"
    return OperandSample(draw_shape(c, low, 4, positive=name in ("max", "min")), dt, domain)


def _nested(c: Chooser) -> Case:
    name = c.choice(_ALL)
    x = _operand(c, name, 1)
    first, keep, keep_outer = draw_axes(c, len(x.shape)), c.boolean(), c.boolean()
    rank = len(x.shape) if keep else len(x.shape) - len(first)
    second = draw_axes(c, rank)

    return Case(
        lambda F, v: F.op(
            name, F.op(name, v, axes=first, keepdims=keep), axes=second, keepdims=keep_outer
        ),
        (x,),
    )  # fmt: skip


@rule(*_ALL, name="reduce-of-reduce", kind="reorders", example=_nested)
def reduce_of_reduce(F: Rewriter, op: TensorOp) -> Replacement:
    "sum(sum(x, a), b) -> sum(x, a and b); prod, max, min, any and all too. Halves round in between"
    name = op.record.name
    inner = F.producer(op.operands[0], name)
    if inner is None or not F.single_use(op.operands[0]):
        return None
    x = inner.operands[0]
    aval = aval_of(x)
    if name in _ACCUMULATING and aval.dtype.is_half:
        return None
    first = inner.params["axes"]
    left = range(aval.rank) if inner.params["keepdims"] else [a for a in range(aval.rank) if a not in first]
    axes = tuple(sorted({*first, *(left[a] for a in op.params["axes"])}))
    total = F.op(name, x, axes=axes, keepdims=False)
    return F.reshape(total, aval_of(op.results[0]).shape)


def _units(c: Chooser) -> Case:
    name = c.choice(_ALL)
    x = _operand(c, name, 1)
    shape = tuple(1 if c.boolean() else d for d in x.shape)
    x = OperandSample(shape, x.dtype, x.domain)
    axes = tuple(a for a, d in enumerate(shape) if d == 1)
    keep = c.boolean()
    return Case(lambda F, v: F.op(name, v, axes=axes, keepdims=keep), (x,))


@rule(*_ALL, name="reduce-units", kind="reorders", example=_units)
def reduce_units(F: Rewriter, op: TensorOp) -> Replacement:
    "sum(x) over axes of size 1 -> reshape(cast(x)); prod, max, min, any and all too"
    x = op.operands[0]
    shape = aval_of(x).shape
    if any(shape[a] != 1 for a in op.params["axes"]):
        return None
    want = aval_of(op.results[0])
    return F.reshape(F.cast(x, want.dtype), want.shape)


def _transposed(c: Chooser) -> Case:
    name = c.choice(_ALL)
    x = _operand(c, name, 1)
    rank = len(x.shape)
    if c.boolean():
        axes = tuple(range(rank))
        p = draw_permutation(c, rank)
    else:
        moved = c.integer(0, rank - 1)  # one axis goes to the front and is reduced: the others keep their order
        p, axes = (moved, *(a for a in range(rank) if a != moved)), (0,)
    keep = c.boolean()
    return Case(lambda F, v: F.op(name, F.op("transpose", v, axes=p), axes=axes, keepdims=keep), (x,))


@rule(*_ALL, name="reduce-of-transpose", kind="reorders", example=_transposed)
def reduce_of_transpose(F: Rewriter, op: TensorOp) -> Replacement:
    "sum(transpose(x, p), a) -> sum(x, p[a]) where the axes that stay keep their order; prod, max, min, any, all too"
    inner = F.producer(op.operands[0], "transpose")
    if inner is None:
        return None
    p, reduced = inner.params["axes"], op.params["axes"]
    stay = [p[a] for a in range(len(p)) if a not in reduced]
    if stay != sorted(stay):
        return None
    total = F.op(op.record.name, inner.operands[0], axes=tuple(sorted(p[a] for a in reduced)), keepdims=False)
    return F.reshape(total, aval_of(op.results[0]).shape)


REDUCTIONS = RuleSet(
    "reductions",
    "the number of reductions and transposes",
    (reduce_of_reduce, reduce_units, reduce_of_transpose),
)

__all__ = ["REDUCTIONS"]
