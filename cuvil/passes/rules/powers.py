"""Rules on powers, roots, reciprocals and rounding."""

from __future__ import annotations

from cuvil.dtypes import FLOATS, INTEGERS, NUMERIC, float32, float64
from cuvil.ir.dialect import TensorOp, aval_of
from cuvil.ops.drawing import draw_shape
from cuvil.ops.record import Chooser, OperandSample
from cuvil.passes.engine import Case, Replacement, Rewriter, RuleSet, rule
from cuvil.passes.rules.equation import equation, filled

_FULL = (float32, float64)
_ROUNDINGS = ("floor", "ceil", "trunc", "round")


def _rounding_case(c: Chooser) -> Case:
    outer, inner = c.choice(_ROUNDINGS), c.choice(_ROUNDINGS)
    sample = OperandSample(draw_shape(c, 0, 3), c.choice(NUMERIC))
    return Case(lambda F, x: F.op(outer, F.op(inner, x)), (sample,))


@rule(*_ROUNDINGS, name="round-of-rounded", example=_rounding_case)
def round_of_rounded(F: Rewriter, op: TensorOp) -> Replacement:
    "floor(round(x)) -> round(x), for any two of floor, ceil, trunc and round"
    return op.operands[0] if F.producer(op.operands[0], *_ROUNDINGS) else None


def _integer_rounding_case(c: Chooser) -> Case:
    name = c.choice(_ROUNDINGS)
    return Case(lambda F, x: F.op(name, x), (OperandSample(draw_shape(c, 0, 3), c.choice(INTEGERS)),))


@rule(*_ROUNDINGS, name="round-integer", example=_integer_rounding_case, domain="integers")
def round_integer(F: Rewriter, op: TensorOp) -> Replacement:
    "floor(n) -> n"
    return op.operands[0] if not aval_of(op.operands[0]).dtype.is_float else None


POWERS = RuleSet(
    "powers",
    "the weight of the ops: a power costs four additions, a division more than a product",
    (
        equation("pow-one", lambda F, x, c: F.op("pow", x, c), lambda F, x, c: x, dtypes=NUMERIC,
                 constants={"c": filled(1)}),
        equation("pow-zero", lambda F, x, c: F.op("pow", x, c),
                 lambda F, x, c: F.broadcast_to(F.like(1, x), F.shape(x)), dtypes=NUMERIC,
                 constants={"c": filled(0)}, doc="pow(x, 0) -> 1, of NaN too"),
        equation("pow-two-integer", lambda F, x, c: F.op("pow", x, c), lambda F, x, c: F.op("square", x),
                 dtypes=INTEGERS, constants={"c": filled(2)}),
        equation("pow-two", lambda F, x, c: F.op("pow", x, c), lambda F, x, c: F.op("square", x), dtypes=FLOATS,
                 constants={"c": filled(2)}, kind="refines", doc="pow(x, 2) -> square(x), which rounds correctly"),
        equation("pow-three", lambda F, x, c: F.op("pow", x, c), lambda F, x, c: F.mul(F.op("square", x), x),
                 dtypes=_FULL, constants={"c": filled(3)}, kind="refines", doc="pow(x, 3) -> square(x) * x"),
        equation("pow-minus-one", lambda F, x, c: F.op("pow", x, c), lambda F, x, c: F.op("reciprocal", x),
                 dtypes=FLOATS, constants={"c": filled(-1)}, kind="refines",
                 doc="pow(x, -1) -> reciprocal(x), which rounds correctly"),
        equation("one-over", lambda F, x, c: F.div(c, x), lambda F, x, c: F.op("reciprocal", x), dtypes=FLOATS,
                 constants={"c": filled(1)}, doc="divide(1, x) -> reciprocal(x)"),
        equation("reciprocal-of-sqrt", lambda F, x: F.op("reciprocal", F.op("sqrt", x)), lambda F, x: F.op("rsqrt", x),
                 dtypes=_FULL),
        equation("sign-of-sign", lambda F, x: F.op("sign", F.op("sign", x)), lambda F, x: F.op("sign", x),
                 dtypes=NUMERIC),
        equation("relu-of-relu", lambda F, x: F.op("relu", F.op("relu", x)), lambda F, x: F.op("relu", x),
                 dtypes=NUMERIC),
        equation("relu-of-sigmoid", lambda F, x: F.op("relu", F.op("sigmoid", x)), lambda F, x: F.op("sigmoid", x),
                 dtypes=FLOATS),
        equation("relu-of-square", lambda F, x: F.op("relu", F.op("square", x)), lambda F, x: F.op("square", x),
                 dtypes=FLOATS),
        round_of_rounded,
        round_integer,
    ),
)  # fmt: skip
