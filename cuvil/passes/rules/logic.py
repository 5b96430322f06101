"""Rules on logic, bits, comparisons and predicates."""

from __future__ import annotations

from xdsl.ir import SSAValue

from cuvil.dtypes import ALL, FLOATS, INTEGERS, DType, bool_
from cuvil.ir.dialect import TensorOp, aval_of
from cuvil.ops.drawing import draw_shape
from cuvil.ops.record import Chooser, OperandSample
from cuvil.passes.engine import Case, Replacement, Rewriter, Rule, RuleSet, rule
from cuvil.passes.rules.arithmetic import elements, zeros_like
from cuvil.passes.rules.equation import ONES, equation, filled

_BITS = (bool_, *INTEGERS)
_BOOL = (bool_,)
_TRUE, _FALSE, _ZERO = filled(True), filled(False), filled(0)


def _truth(F: Rewriter, value: bool, x: SSAValue) -> SSAValue:
    return F.broadcast_to(F.scalar(value, bool_), F.shape(x))


BITS = (
    equation("invert-of-invert", lambda F, x: F.op("bitwise_invert", F.op("bitwise_invert", x)), lambda F, x: x,
             dtypes=_BITS),
    equation("and-itself", lambda F, x: F.op("bitwise_and", x, x), lambda F, x: x, dtypes=_BITS),
    equation("or-itself", lambda F, x: F.op("bitwise_or", x, x), lambda F, x: x, dtypes=_BITS),
    equation("xor-itself", lambda F, x: F.op("bitwise_xor", x, x), zeros_like, dtypes=_BITS),
    equation("and-ones", lambda F, x, c: F.op("bitwise_and", x, c), lambda F, x, c: x, dtypes=_BITS,
             constants={"c": ONES}),
    equation("and-zero", lambda F, x, c: F.op("bitwise_and", x, c), lambda F, x, c: zeros_like(F, x), dtypes=_BITS,
             constants={"c": _ZERO}),
    equation("or-zero", lambda F, x, c: F.op("bitwise_or", x, c), lambda F, x, c: x, dtypes=_BITS,
             constants={"c": _ZERO}),
    equation("or-ones", lambda F, x, c: F.op("bitwise_or", x, c),
             lambda F, x, c: F.broadcast_to(F.constant(elements(F, c).reshape(-1)[0]), F.shape(x)), dtypes=_BITS,
             constants={"c": ONES}),
    equation("xor-zero", lambda F, x, c: F.op("bitwise_xor", x, c), lambda F, x, c: x, dtypes=_BITS,
             constants={"c": _ZERO}),
    equation("xor-ones", lambda F, x, c: F.op("bitwise_xor", x, c), lambda F, x, c: F.op("bitwise_invert", x),
             dtypes=_BITS, constants={"c": ONES}),
    equation("left-shift-by-zero", lambda F, x, c: F.op("bitwise_left_shift", x, c), lambda F, x, c: x,
             dtypes=INTEGERS, constants={"c": _ZERO}),
    equation("right-shift-by-zero", lambda F, x, c: F.op("bitwise_right_shift", x, c), lambda F, x, c: x,
             dtypes=INTEGERS, constants={"c": _ZERO}),
)  # fmt: skip

LOGICAL = (
    equation("not-of-not", lambda F, x: F.op("logical_not", F.op("logical_not", x)), lambda F, x: x, dtypes=_BOOL),
    equation("logical-and-itself", lambda F, x: F.op("logical_and", x, x), lambda F, x: x, dtypes=_BOOL),
    equation("logical-or-itself", lambda F, x: F.op("logical_or", x, x), lambda F, x: x, dtypes=_BOOL),
    equation("logical-xor-itself", lambda F, x: F.op("logical_xor", x, x), lambda F, x: _truth(F, False, x)),
    equation("and-true", lambda F, x, c: F.op("logical_and", x, c), lambda F, x, c: x, dtypes=_BOOL,
             constants={"c": _TRUE}),
    equation("and-false", lambda F, x, c: F.op("logical_and", x, c), lambda F, x, c: _truth(F, False, x),
             constants={"c": _ZERO}),
    equation("or-false", lambda F, x, c: F.op("logical_or", x, c), lambda F, x, c: x, dtypes=_BOOL,
             constants={"c": _FALSE}),
    equation("or-true", lambda F, x, c: F.op("logical_or", x, c), lambda F, x, c: _truth(F, True, x),
             constants={"c": filled(1)}),
    equation("and-of-nots",
             lambda F, x, y: F.op("logical_and", F.op("logical_not", x), F.op("logical_not", y)),
             lambda F, x, y: F.op("logical_not", F.op("logical_or", x, y))),
    equation("or-of-nots",
             lambda F, x, y: F.op("logical_or", F.op("logical_not", x), F.op("logical_not", y)),
             lambda F, x, y: F.op("logical_not", F.op("logical_and", x, y))),
)  # fmt: skip


def _negated(name: str, comparison: str, opposite: str, dtypes: tuple[DType, ...]) -> Rule:
    return equation(
        name,
        lambda F, x, y: F.op("logical_not", F.op(comparison, x, y)),
        lambda F, x, y: F.op(opposite, x, y),
        dtypes=dtypes,
    )


COMPARISONS = (
    _negated("not-equal", "equal", "not_equal", ALL),
    _negated("not-unequal", "not_equal", "equal", ALL),
    # NaN makes both a < b and a >= b false, so these hold for integers and bool only.
    _negated("not-less", "less", "greater_equal", _BITS),
    _negated("not-less-equal", "less_equal", "greater", _BITS),
    _negated("not-greater", "greater", "less_equal", _BITS),
    _negated("not-greater-equal", "greater_equal", "less", _BITS),
    equation("equal-itself", lambda F, x: F.op("equal", x, x), lambda F, x: _truth(F, True, x), dtypes=_BITS),
    equation("not-equal-itself", lambda F, x: F.op("not_equal", x, x), lambda F, x: _truth(F, False, x), dtypes=_BITS),
    equation("less-than-itself", lambda F, x: F.op("less", x, x), lambda F, x: _truth(F, False, x)),
    equation("greater-than-itself", lambda F, x: F.op("greater", x, x), lambda F, x: _truth(F, False, x)),
    equation("not-equal-itself-float", lambda F, x: F.op("not_equal", x, x), lambda F, x: F.op("isnan", x),
             dtypes=FLOATS, doc="not_equal(x, x) -> isnan(x)"),
    equation("less-of-negatives", lambda F, x, y: F.op("less", F.op("negative", x), F.op("negative", y)),
             lambda F, x, y: F.op("less", y, x), dtypes=FLOATS),
    equation("greater-of-negatives", lambda F, x, y: F.op("greater", F.op("negative", x), F.op("negative", y)),
             lambda F, x, y: F.op("greater", y, x), dtypes=FLOATS),
    equation("equal-true", lambda F, x, c: F.op("equal", x, c), lambda F, x, c: x, dtypes=_BOOL,
             constants={"c": _TRUE}),
    equation("equal-false", lambda F, x, c: F.op("equal", x, c), lambda F, x, c: F.op("logical_not", x), dtypes=_BOOL,
             constants={"c": _FALSE}),
    equation("not-equal-false", lambda F, x, c: F.op("not_equal", x, c), lambda F, x, c: x, dtypes=_BOOL,
             constants={"c": _FALSE}),
    equation("not-equal-true", lambda F, x, c: F.op("not_equal", x, c), lambda F, x, c: F.op("logical_not", x),
             dtypes=_BOOL, constants={"c": _TRUE}),
)  # fmt: skip

_PREDICATES = ("isnan", "isinf", "isfinite")


def _integer_predicate(c: Chooser) -> Case:
    name = c.choice(_PREDICATES)
    return Case(lambda F, x: F.op(name, x), (OperandSample(draw_shape(c, 0, 3), c.choice(INTEGERS)),))


@rule(*_PREDICATES, name="predicate-of-integer", example=_integer_predicate, domain="integers")
def predicate_of_integer(F: Rewriter, op: TensorOp) -> Replacement:
    "isnan(n) -> False, isinf(n) -> False, isfinite(n) -> True"
    x = op.operands[0]
    return None if aval_of(x).dtype.is_float else _truth(F, op.record.name == "isfinite", x)


def _sign_predicate(c: Chooser) -> Case:
    name, sign = c.choice(_PREDICATES), c.choice(("negative", "abs"))
    return Case(lambda F, x: F.op(name, F.op(sign, x)), (OperandSample(draw_shape(c, 0, 3), c.choice(FLOATS)),))


@rule(*_PREDICATES, name="predicate-of-sign", example=_sign_predicate, domain="floats")
def predicate_of_sign(F: Rewriter, op: TensorOp) -> Replacement:
    "isnan(negative(x)) -> isnan(x), for isinf, isfinite and abs too"
    inner = F.producer(op.operands[0], "negative", "abs")
    return None if inner is None else F.op(op.record.name, inner.operands[0])


LOGIC = RuleSet(
    "logic",
    "the weight of the ops: each rule drops an op or puts a cheaper one in its place",
    (*BITS, *LOGICAL, *COMPARISONS, predicate_of_integer, predicate_of_sign),
)

__all__ = ["LOGIC"]
