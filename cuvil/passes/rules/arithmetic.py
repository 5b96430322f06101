"""Rules on add, subtract, multiply, divide and their relatives."""

from __future__ import annotations

import numpy as np
from xdsl.ir import SSAValue

from cuvil.dtypes import ALL, FLOATS, INTEGERS, NUMERIC, SIGNED, bool_
from cuvil.ops.record import Array
from cuvil.passes.engine import Rewriter, RuleSet
from cuvil.passes.rules.equation import ANY, Constant, drawn, equation, filled, is_filled

_WHOLE = (*INTEGERS, bool_)

ZERO, ONE, MINUS_ONE, TWO = filled(0), filled(1), filled(-1), filled(2)
NEGATIVE_ZERO = filled(-0.0)


def elements(F: Rewriter, value: SSAValue) -> Array:
    """The elements of a matched constant."""
    a = F.array(value)
    assert a is not None
    return a


def _wrapped(fn: np.ufunc, a: Array, b: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray(fn(a, b), dtype=a.dtype)


def zeros_like(F: Rewriter, x: SSAValue) -> SSAValue:
    """Zeros in the shape of a value."""
    return F.broadcast_to(F.like(0, x), F.shape(x))


def has_exact_reciprocal(a: Array) -> bool:
    """Whether every element is a power of two whose reciprocal is a normal number."""
    if a.size == 0 or a.dtype.kind not in "fV":
        return False
    wide = np.abs(a.astype(np.float64))
    mantissa, exponent = np.frexp(wide)
    # The reciprocal 2 ** (1 - exponent) must not be subnormal, so that flushing hardware gives it too.
    least = -13 if a.dtype == np.float16 else -1021 if a.dtype == np.float64 else -125
    return bool(np.all((mantissa == 0.5) & (exponent <= 2 - least) & (exponent >= least)))


def reciprocal(a: Array) -> Array:
    """The reciprocals, computed in float64 and rounded once."""
    return (1.0 / a.astype(np.float64)).astype(a.dtype)


def _scales_up(a: Array) -> bool:
    """Whether every element is a power of two of magnitude 1 or more."""
    return has_exact_reciprocal(a) and bool(np.all(np.abs(a.astype(np.float64)) >= 1))


def power_of_two(low: int, high: int) -> Constant:
    """A float constant of signed powers of two."""
    return drawn(lambda c, dt: (-1.0) ** c.integer(0, 1) * 2.0 ** c.integer(low, high), has_exact_reciprocal)


def _integer_power(a: Array) -> bool:
    return a.dtype.kind in "iu" and is_filled(a, int(a.reshape(-1)[0]) if a.size else 0) and _log2(a) is not None


def _log2(a: Array) -> int | None:
    value = int(a.reshape(-1)[0])
    return value.bit_length() - 1 if value > 0 and value & (value - 1) == 0 else None


_INTEGER_POWER = Constant(_integer_power, lambda c, dt, shape: np.full(shape, 1 << c.integer(0, dt.bits - 2), dt.numpy))


def _product_up(F: Rewriter, x: SSAValue, a: SSAValue, b: SSAValue) -> SSAValue | None:
    with np.errstate(over="ignore"):
        product = elements(F, a) * elements(F, b)
    return F.mul(x, F.constant(product)) if has_exact_reciprocal(product) else None


def _same_dtype_shift(F: Rewriter, x: SSAValue, c: SSAValue) -> SSAValue:
    k = _log2(elements(F, c))
    assert k is not None
    return F.op("bitwise_right_shift", x, F.like(k, x))


def _low_bits(F: Rewriter, x: SSAValue, c: SSAValue) -> SSAValue:
    return F.op("bitwise_and", x, F.like(int(elements(F, c).reshape(-1)[0]) - 1, x))


IDENTITIES = (
    equation("multiply-by-one", lambda F, x, c: F.mul(x, c), lambda F, x, c: x, constants={"c": ONE}),
    equation("divide-by-one", lambda F, x, c: F.div(x, c), lambda F, x, c: x, dtypes=FLOATS, constants={"c": ONE}),
    equation(
        "add-negative-zero", lambda F, x, c: F.add(x, c), lambda F, x, c: x, dtypes=FLOATS,
        constants={"c": NEGATIVE_ZERO}, doc="add(x, -0.0); 0.0 would turn -0.0 into 0.0",
    ),
    equation("add-zero", lambda F, x, c: F.add(x, c), lambda F, x, c: x, dtypes=_WHOLE, constants={"c": ZERO}),
    equation("subtract-zero", lambda F, x, c: F.sub(x, c), lambda F, x, c: x, dtypes=NUMERIC, constants={"c": ZERO}),
    equation(
        "multiply-by-zero", lambda F, x, c: F.mul(x, c), lambda F, x, c: zeros_like(F, x), dtypes=_WHOLE,
        constants={"c": ZERO}, doc="multiply(x, 0); NaN and infinity forbid it for floats",
    ),
    equation(
        "subtract-itself", lambda F, x: F.sub(x, x), zeros_like, dtypes=INTEGERS,
        doc="subtract(x, x); NaN and infinity forbid it for floats",
    ),
    equation(
        "floor-divide-by-one", lambda F, x, c: F.op("floor_divide", x, c), lambda F, x, c: x, dtypes=INTEGERS,
        constants={"c": ONE},
    ),
    equation(
        "remainder-by-one", lambda F, x, c: F.op("remainder", x, c), lambda F, x, c: zeros_like(F, x), dtypes=INTEGERS,
        constants={"c": ONE},
    ),
)  # fmt: skip

SIGNS = (
    equation("multiply-by-minus-one", lambda F, x, c: F.mul(x, c), lambda F, x, c: F.op("negative", x),
             dtypes=(*SIGNED, *FLOATS), constants={"c": MINUS_ONE}),
    equation("divide-by-minus-one", lambda F, x, c: F.div(x, c), lambda F, x, c: F.op("negative", x),
             dtypes=FLOATS, constants={"c": MINUS_ONE}),
    equation("zero-minus", lambda F, x, c: F.sub(c, x), lambda F, x, c: F.op("negative", x),
             dtypes=INTEGERS, constants={"c": ZERO}),
    equation("negative-zero-minus", lambda F, x, c: F.sub(c, x), lambda F, x, c: F.op("negative", x),
             dtypes=FLOATS, constants={"c": NEGATIVE_ZERO}, doc="subtract(-0.0, x)"),
    equation("add-negative", lambda F, x, y: F.add(x, F.op("negative", y)), lambda F, x, y: F.sub(x, y),
             dtypes=NUMERIC),
    equation("subtract-negative", lambda F, x, y: F.sub(x, F.op("negative", y)), lambda F, x, y: F.add(x, y),
             dtypes=NUMERIC),
    equation("multiply-negatives", lambda F, x, y: F.mul(F.op("negative", x), F.op("negative", y)),
             lambda F, x, y: F.mul(x, y), dtypes=NUMERIC),
    equation("divide-negatives", lambda F, x, y: F.div(F.op("negative", x), F.op("negative", y)),
             lambda F, x, y: F.div(x, y), dtypes=FLOATS),
    equation("negative-of-negative", lambda F, x: F.op("negative", F.op("negative", x)), lambda F, x: x,
             dtypes=NUMERIC),
    equation("negative-of-subtract", lambda F, x, y: F.op("negative", F.sub(x, y)), lambda F, x, y: F.sub(y, x),
             dtypes=INTEGERS, doc="negative(subtract(x, y)); the sign of a zero difference forbids it for floats"),
    equation("negative-of-scale", lambda F, x, c: F.op("negative", F.mul(x, c)),
             lambda F, x, c: F.mul(x, F.constant(-elements(F, c))), dtypes=(*SIGNED, *FLOATS), constants={"c": ANY}),
    equation("scale-of-negative", lambda F, x, c: F.mul(F.op("negative", x), c),
             lambda F, x, c: F.mul(x, F.constant(-elements(F, c))), dtypes=(*SIGNED, *FLOATS), constants={"c": ANY}),
    equation("abs-of-abs", lambda F, x: F.op("abs", F.op("abs", x)), lambda F, x: F.op("abs", x), dtypes=NUMERIC),
    equation("abs-of-negative", lambda F, x: F.op("abs", F.op("negative", x)), lambda F, x: F.op("abs", x),
             dtypes=(*SIGNED, *FLOATS)),
    equation("abs-of-square", lambda F, x: F.op("abs", F.op("square", x)), lambda F, x: F.op("square", x),
             dtypes=FLOATS),
    equation("abs-of-exp", lambda F, x: F.op("abs", F.exp(x)), lambda F, x: F.exp(x), dtypes=FLOATS),
    equation("square-of-abs", lambda F, x: F.op("square", F.op("abs", x)), lambda F, x: F.op("square", x),
             dtypes=NUMERIC),
    equation("square-of-negative", lambda F, x: F.op("square", F.op("negative", x)), lambda F, x: F.op("square", x),
             dtypes=NUMERIC),
    equation("positive", lambda F, x: F.op("positive", x), lambda F, x: x, dtypes=NUMERIC),
    equation("stop_gradient", lambda F, x: F.op("stop_gradient", x), lambda F, x: x, dtypes=ALL),
)  # fmt: skip

CONSTANTS = (
    equation(
        "add-constants", lambda F, x, a, b: F.add(F.add(x, a), b),
        lambda F, x, a, b: F.add(x, F.constant(_wrapped(np.add, elements(F, a), elements(F, b)))),
        dtypes=INTEGERS, constants={"a": ANY, "b": ANY},
    ),
    equation(
        "multiply-constants", lambda F, x, a, b: F.mul(F.mul(x, a), b),
        lambda F, x, a, b: F.mul(x, F.constant(_wrapped(np.multiply, elements(F, a), elements(F, b)))),
        dtypes=INTEGERS, constants={"a": ANY, "b": ANY},
    ),
    equation(
        "multiply-powers-of-two", lambda F, x, a, b: F.mul(F.mul(x, a), b), _product_up, dtypes=FLOATS,
        constants={"a": drawn(lambda c, dt: 2.0 ** c.integer(0, 5), _scales_up),
                   "b": drawn(lambda c, dt: -(2.0 ** c.integer(0, 5)), _scales_up)},
        doc="multiply(multiply(x, 2**i), 2**j) with i, j >= 0; scaling down rounds subnormals twice",
    ),
    equation(
        "divide-by-power-of-two", lambda F, x, c: F.div(x, c),
        lambda F, x, c: F.mul(x, F.constant(reciprocal(elements(F, c)))), dtypes=FLOATS,
        constants={"c": power_of_two(-9, 9)}, doc="divide(x, 2**k) -> multiply(x, 2**-k)",
    ),
    equation("floor-divide-by-power-of-two", lambda F, x, c: F.op("floor_divide", x, c), _same_dtype_shift,
             dtypes=INTEGERS, constants={"c": _INTEGER_POWER}, doc="floor_divide(x, 2**k) -> x >> k"),
    equation("remainder-by-power-of-two", lambda F, x, c: F.op("remainder", x, c), _low_bits,
             dtypes=INTEGERS, constants={"c": _INTEGER_POWER}, doc="remainder(x, 2**k) -> x & (2**k - 1)"),
)  # fmt: skip

ARITHMETIC = RuleSet(
    "arithmetic",
    "the weight of the ops: each rule drops an op or puts a cheaper one in its place",
    (*IDENTITIES, *SIGNS, *CONSTANTS),
)

__all__ = ["ARITHMETIC", "elements", "reciprocal", "zeros_like"]
