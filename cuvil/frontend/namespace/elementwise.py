"""Element-wise functions: arithmetic, analysis, comparison, logic, selection and casts, with NumPy's promotion."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from cuvil.dtypes import DType, float64, int8
from cuvil.dtypes import bool_ as bool_dtype
from cuvil.frontend.dispatch import (
    ArrayLike,
    apply,
    asoperand,
    builder_for,
    dtype_of,
    elementwise,
    is_traced,
    result_dtype,
    weak_type,
    wrap,
)
from cuvil.frontend.namespace.arguments import (
    AnyArray,
    DTypeLike,
    as_dtype,
    as_int,
    cast,
    float_dtype,
    floating,
    operand,
    shape_of,
    together,
)
from cuvil.frontend.namespace.inspection import check_device
from cuvil.frontend.source import at_user_line
from cuvil.ops.registry import get
from cuvil.support.errors import ArgumentError

UnaryFunction = Callable[[ArrayLike], AnyArray]
BinaryFunction = Callable[[ArrayLike, ArrayLike], AnyArray]
#: How the dtype in which a function computes follows from its operands.
Promotion = Callable[..., DType]


def number_dtype(*operands: Any) -> DType:
    """The promoted dtype, int8 where NumPy has no loop for bool."""
    dt = result_dtype(*operands)
    return int8 if dt.is_bool else dt


def quotient_dtype(*operands: Any) -> DType:
    """The dtype of a true division: floats keep theirs, all integers give float64 (float32 for Python numbers)."""
    if all(weak_type(x) is not None for x in operands):
        return float_dtype(*operands)
    dt = result_dtype(*operands)
    return dt if dt.is_float or dt.is_complex else float64


_PROMOTION_TEXT: dict[Promotion, str] = {
    result_dtype: "Operands are promoted as NumPy does; Python numbers take the dtype of the arrays.",
    number_dtype: "Operands are promoted as NumPy does, bool to int8; Python numbers take the dtype of the arrays.",
    float_dtype: "Integers compute in the float that NumPy chooses: float16 for 8 bits, float32 for 16, else float64.",
    quotient_dtype: "Operands are promoted as NumPy does; integers give float64.",
}


def _document(function: Any, name: str, record: str, promotion: Promotion, example: str, operands: int) -> None:
    function.__name__ = function.__qualname__ = name
    shape = "The operands broadcast together." if operands > 1 else "The result has the shape of ``x``."
    function.__doc__ = f"""{get(record).doc}

    {shape} {_PROMOTION_TEXT[promotion]}

    Raises:
        DTypeError: a dtype that the function does not take.
        ShapeError: shapes that do not broadcast together.

    >>> {name}({example.partition(" = ")[0]}).tolist()
    {example.partition(" = ")[2]}
    """


def _unary(name: str, promotion: Promotion, example: str, record: str = "") -> UnaryFunction:
    def function(x: ArrayLike, /) -> AnyArray:
        given = asoperand(x)
        return elementwise(record or name, given, dt=promotion(given))

    _document(function, name, record or name, promotion, example, 1)
    return function


def _binary(name: str, promotion: Promotion, example: str, record: str = "") -> BinaryFunction:
    def function(x1: ArrayLike, x2: ArrayLike, /) -> AnyArray:
        left, right = asoperand(x1), asoperand(x2)
        return elementwise(record or name, left, right, dt=promotion(left, right))

    _document(function, name, record or name, promotion, example, 2)
    return function


# ------------------------------------------------------------------------------------ functions of analysis

exp = _unary("exp", float_dtype, "0.0 = 1.0")
exp2 = _unary("exp2", float_dtype, "3.0 = 8.0")
expm1 = _unary("expm1", float_dtype, "0.0 = 0.0")
log = _unary("log", float_dtype, "1.0 = 0.0")
log2 = _unary("log2", float_dtype, "8.0 = 3.0")
log10 = _unary("log10", float_dtype, "1.0 = 0.0")
log1p = _unary("log1p", float_dtype, "0.0 = 0.0")
sqrt = _unary("sqrt", float_dtype, "[4.0, 9.0] = [2.0, 3.0]")
rsqrt = _unary("rsqrt", float_dtype, "4.0 = 0.5")
sin = _unary("sin", float_dtype, "0.0 = 0.0")
cos = _unary("cos", float_dtype, "0.0 = 1.0")
tan = _unary("tan", float_dtype, "0.0 = 0.0")
asin = _unary("asin", float_dtype, "0.0 = 0.0")
acos = _unary("acos", float_dtype, "1.0 = 0.0")
atan = _unary("atan", float_dtype, "0.0 = 0.0")
sinh = _unary("sinh", float_dtype, "0.0 = 0.0")
cosh = _unary("cosh", float_dtype, "0.0 = 1.0")
tanh = _unary("tanh", float_dtype, "0.0 = 0.0")
asinh = _unary("asinh", float_dtype, "0.0 = 0.0")
acosh = _unary("acosh", float_dtype, "1.0 = 0.0")
atanh = _unary("atanh", float_dtype, "0.0 = 0.0")
erf = _unary("erf", float_dtype, "0.0 = 0.0")
erfc = _unary("erfc", float_dtype, "0.0 = 1.0")
lgamma = _unary("lgamma", float_dtype, "1.0 = 0.0")
signbit = _unary("signbit", float_dtype, "-0.0 = True")
rint = _unary("rint", float_dtype, "[0.5, 1.5] = [0.0, 2.0]", "round")
reciprocal = _unary("reciprocal", result_dtype, "4.0 = 0.25")

arctan2 = atan2 = _binary("atan2", float_dtype, "0.0, 1.0 = 0.0")
hypot = _binary("hypot", float_dtype, "3.0, 4.0 = 5.0")
copysign = _binary("copysign", float_dtype, "2.0, -1.0 = -2.0")
nextafter = _binary("nextafter", float_dtype, "0.0, 0.0 = 0.0")
logaddexp = _binary("logaddexp", float_dtype, "-float('inf'), 1.0 = 1.0")

arcsin, arccos, arctan = asin, acos, atan
arcsinh, arccosh, arctanh = asinh, acosh, atanh

# ----------------------------------------------------------------------------------------------- arithmetic

add = _binary("add", result_dtype, "[1, 2], 3 = [4, 5]")
subtract = _binary("subtract", result_dtype, "[1, 2], 3 = [-2, -1]")
multiply = _binary("multiply", result_dtype, "[1, 2], 3 = [3, 6]")
true_divide = divide = _binary("divide", quotient_dtype, "3.0, 2.0 = 1.5")
floor_divide = _binary("floor_divide", number_dtype, "[7, -7], 2 = [3, -4]")
mod = remainder = _binary("remainder", number_dtype, "[7, -7], 3 = [1, 2]")
fmod = _binary("fmod", number_dtype, "[7, -7], 3 = [1, -1]")
minimum = _binary("minimum", result_dtype, "[1, 5], 3 = [1, 3]")
maximum = _binary("maximum", result_dtype, "[1, 5], 3 = [3, 5]")

negative = _unary("negative", result_dtype, "[1, -2] = [-1, 2]")
positive = _unary("positive", result_dtype, "[1, -2] = [1, -2]")
sign = _unary("sign", result_dtype, "[3.0, -2.0, 0.0] = [1.0, -1.0, 0.0]")
square = _unary("square", number_dtype, "[3, -2] = [9, 4]")


def _kept_bool(name: str, example: str, doc_record: str) -> UnaryFunction:
    """A function that leaves bool as it is, as NumPy's does."""

    def function(x: ArrayLike, /) -> AnyArray:
        given = asoperand(x)
        return operand(given) if dtype_of(given).is_bool else elementwise(doc_record, given)

    _document(function, name, doc_record, result_dtype, example, 1)
    return function


absolute = abs = _kept_bool("abs", "[1, -2] = [1, 2]", "abs")  # noqa: A001 - the standard's name
ceil = _kept_bool("ceil", "1.5 = 2.0", "ceil")
floor = _kept_bool("floor", "1.5 = 1.0", "floor")
trunc = _kept_bool("trunc", "-1.5 = -1.0", "trunc")


def round(x: ArrayLike, decimals: int = 0) -> AnyArray:  # noqa: A001 - the standard's name
    """The nearest number with ``decimals`` decimals, ties to even; bool gives float16 as in NumPy.

    Raises:
        ArgumentError: decimals other than 0 for integers where they would change them.

    >>> round([0.5, 1.5, -0.25]).tolist(), round(1.25, 1).dtype.name
    ([0.0, 2.0, -0.0], 'float32')
    """
    given = asoperand(x)
    places = as_int(decimals, "decimals")
    dt = dtype_of(given)
    if dt.is_bool:
        return elementwise("round", given, dt=floating(dt))
    if places == 0 or (dt.is_integer and places > 0):
        return elementwise("round", given)
    if dt.is_integer:
        raise ArgumentError(
            f"round: decimals={places} for integers; use (x + {10**-places // 2}) // {10**-places} *"
            f" {10**-places} or round floats{at_user_line()}"
        )
    # As NumPy does: scale, round, scale back.
    factor = 10.0 ** (places if places > 0 else -places)
    if places > 0:
        return divide(elementwise("round", multiply(given, factor)), factor)
    return multiply(elementwise("round", divide(given, factor)), factor)


around = round


def pow(x1: ArrayLike, x2: ArrayLike, /) -> AnyArray:  # noqa: A001 - the standard's name
    """x1 to the power x2; integers wrap. The operands broadcast and are promoted as NumPy does.

    Raises:
        ArgumentError: integers to a negative power.

    >>> pow([2, 3], 2).tolist(), pow(2.0, 0.5).dtype.name
    ([4, 9], 'float32')
    """
    left, right = asoperand(x1), asoperand(x2)
    dt = number_dtype(left, right)
    if dt.is_integer and type(right) is int and right < 0:
        raise ArgumentError(
            f"pow: integers to the negative power {right} are not integers{at_user_line()}; cast to a float first,"
            " e.g. x.astype('float32')"
        )
    if weak_type(left) is None and not is_traced(right) and weak_type(right) is not None and right == 2:
        return elementwise("square", left, dt=dt)
    return elementwise("pow", left, right, dt=dt)


power = pow

# --------------------------------------------------------------------------------- comparisons, predicates

_PYTHON_COMPARISON: dict[str, Callable[[int, int], bool]] = {
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
}


def _outside(number: Any, array: Any) -> bool:
    """Whether a Python integer lies outside the integer dtype of an array."""
    if type(number) is not int or weak_type(array) is not None:
        return False
    dt = dtype_of(array)
    if not dt.is_integer:
        return False
    info = np.iinfo(dt.numpy)
    return not int(info.min) <= number <= int(info.max)


def _comparison(name: str, example: str) -> BinaryFunction:
    holds = _PYTHON_COMPARISON[name]

    def function(x1: ArrayLike, x2: ArrayLike, /) -> AnyArray:
        left, right = asoperand(x1), asoperand(x2)
        # Every value of the dtype compares with a number outside of its range as 0 does.
        if isinstance(right, int) and _outside(right, left):
            return _constant_like(left, holds(0, right))
        if isinstance(left, int) and _outside(left, right):
            return _constant_like(right, holds(left, 0))
        return elementwise(name, left, right)

    _document(function, name, name, result_dtype, example, 2)
    return function


def _constant_like(x: Any, value: bool) -> AnyArray:
    return elementwise("logical_or", x, True) if value else elementwise("logical_and", x, False)


equal = _comparison("equal", "[1, 2], 2 = [False, True]")
not_equal = _comparison("not_equal", "[1, 2], 2 = [True, False]")
less = _comparison("less", "[1, 2], 2 = [True, False]")
less_equal = _comparison("less_equal", "[1, 2], 1 = [True, False]")
greater = _comparison("greater", "[1, 2], 1 = [False, True]")
greater_equal = _comparison("greater_equal", "[1, 2], 2 = [False, True]")

isnan = _unary("isnan", number_dtype, "[1.0, float('nan')] = [False, True]")
isinf = _unary("isinf", number_dtype, "[1.0, float('inf')] = [False, True]")
isfinite = _unary("isfinite", number_dtype, "[1.0, float('inf')] = [True, False]")

logical_and = _binary("logical_and", result_dtype, "[True, False], True = [True, False]")
logical_or = _binary("logical_or", result_dtype, "[True, False], False = [True, False]")
logical_xor = _binary("logical_xor", result_dtype, "[True, False], True = [False, True]")
logical_not = _unary("logical_not", result_dtype, "[True, False] = [False, True]")
bitwise_and = _binary("bitwise_and", result_dtype, "6, 3 = 2")
bitwise_or = _binary("bitwise_or", result_dtype, "6, 3 = 7")
bitwise_xor = _binary("bitwise_xor", result_dtype, "6, 3 = 5")
bitwise_not = invert = bitwise_invert = _unary("bitwise_invert", result_dtype, "5 = -6")
left_shift = bitwise_left_shift = _binary("bitwise_left_shift", number_dtype, "1, 4 = 16")
right_shift = bitwise_right_shift = _binary("bitwise_right_shift", number_dtype, "16, 4 = 1")


def real(x: ArrayLike, /) -> AnyArray:
    """The real part; x itself where it is real.

    >>> real([1.0 + 2.0j]).tolist(), real([1.0]).tolist()
    ([1.0], [1.0])
    """
    given = operand(x)
    return apply("real", given) if dtype_of(given).is_complex else given


def imag(x: ArrayLike, /) -> AnyArray:
    """The imaginary part; zeros where x is real.

    >>> imag([1.0 + 2.0j]).tolist(), imag([1.0]).tolist()
    ([2.0], [0.0])
    """
    given = operand(x)
    if dtype_of(given).is_complex:
        return apply("imag", given)
    builder = builder_for(given)
    return wrap(builder, builder.broadcast_to(builder.scalar(0, dtype_of(given)), shape_of(given)))


def conj(x: ArrayLike, /) -> AnyArray:
    """The conjugate; x itself where it is real.

    >>> conj([1.0 + 2.0j]).tolist()
    [(1-2j)]
    """
    given = operand(x)
    return apply("conj", given) if dtype_of(given).is_complex else given


conjugate = conj


def angle(x: ArrayLike, /) -> AnyArray:
    """The angle of complex numbers in the plane, in radians.

    >>> angle([1.0, -1.0]).tolist()[0]
    0.0
    """
    return atan2(imag(x), real(x))


def isclose(a: ArrayLike, b: ArrayLike, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> AnyArray:
    """Whether ``abs(a - b) <= atol + rtol * abs(b)``, element by element; equal infinities are close.

    >>> isclose([1.0, 2.0], [1.0, 2.1]).tolist()
    [True, False]
    """
    left, right = together(a, b)
    if not (dtype_of(left).is_float or dtype_of(left).is_complex):
        left, right = together(left, right, dt=float64)
    near = less_equal(abs(subtract(left, right)), add(atol, multiply(rtol, abs(right))))
    same = equal(left, right)
    close = logical_or(same, logical_and(near, isfinite(right)))
    if equal_nan:
        close = logical_or(close, logical_and(isnan(left), isnan(right)))
    return close


# ----------------------------------------------------------------------------------------- selection, casts


def where(condition: ArrayLike, x1: ArrayLike, x2: ArrayLike, /) -> AnyArray:
    """x1 where the condition holds (is not 0), else x2. The three broadcast; x1 and x2 are promoted.

    >>> where([True, False], [1, 2], 5).tolist()
    [1, 5]
    """
    left, right = together(x1, x2)
    return apply("where", cast(asoperand(condition), bool_dtype), left, right)


def clip(
    x: ArrayLike, min: ArrayLike | None = None, max: ArrayLike | None = None, *,
    a_min: ArrayLike | None = None, a_max: ArrayLike | None = None,
) -> AnyArray:  # fmt: skip
    """``minimum(maximum(x, min), max)``: max wins where min > max; NaN in ``x`` or a bound is the result.

    A bound that is None does not bound. The three broadcast and are promoted as NumPy does.

    >>> clip([1, 5, 9], 2, 6).tolist(), clip([1, 5], max=3).tolist()
    ([2, 5, 6], [1, 3])
    """
    given = asoperand(x)
    low = asoperand(a_min) if min is None and a_min is not None else None if min is None else asoperand(min)
    high = asoperand(a_max) if max is None and a_max is not None else None if max is None else asoperand(max)
    if weak_type(given) is None and dtype_of(given).is_integer:
        info = np.iinfo(dtype_of(given).numpy)
        # As NumPy: a Python integer beyond the dtype's own range on its own side does not bound.
        if type(low) is int and low <= int(info.min):
            low = None
        if type(high) is int and high >= int(info.max):
            high = None
    if low is None and high is None:
        return operand(given)
    if low is None:
        return minimum(given, high)
    if high is None:
        return maximum(given, low)
    if result_dtype(given, low, high).is_bool:
        return minimum(maximum(given, low), high)
    return elementwise("clip", given, low, high)


def astype(x: ArrayLike, dtype: DTypeLike, /, *, copy: bool = True, device: Any = None) -> AnyArray:
    """The same numbers in another dtype: floats truncate to integers, integers wrap, what is not 0 is true.

    Raises:
        DTypeError: no such dtype.

    >>> astype([1.9, -1.9], "int32").tolist()
    [1, -1]
    """
    check_device(device)
    given = operand(x)
    target = as_dtype(dtype)
    if dtype_of(given) is target:
        return given.copy() if copy and isinstance(given, np.ndarray) else given
    return cast(given, target)
