"""Element-wise ops: arithmetic, functions of analysis, comparisons, logic, selection and casts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from cuvil.dtypes import ALL, FLOATS, INTEGERS, NUMERIC, DType, bool_, dtype, float32, float64
from cuvil.ops import arithmetic, tangents, transposes
from cuvil.ops.body import Scalar, ScalarBuilder
from cuvil.ops.cost import ShapeRule, per_result
from cuvil.ops.drawing import draw_broadcastable, draw_shape
from cuvil.ops.dtype_rules import DTypeRule, DTypes, accept, shared, uniform
from cuvil.ops.record import (
    Array,
    Chooser,
    Domain,
    Example,
    OperandSample,
    OpRecord,
    Param,
    Params,
    ParamValue,
    ScalarBody,
    ShapeResult,
    Tolerance,
)
from cuvil.ops.registry import register
from cuvil.ops.requirements import present
from cuvil.ops.shape_rules import Shapes, broadcast_shapes
from cuvil.support.errors import ArgumentError

Body = Callable[..., Scalar]
Sampler = Callable[[Chooser], Example]

EXACT = Tolerance()
#: Two correctly rounded-to-2-ulp implementations can be 4 apart (numerics rule 9).
CLOSE = Tolerance(ulp=4)


def broadcast_rule(op: str) -> ShapeRule:
    """The shape rule of an element-wise op."""

    def rule(shapes: Shapes, params: Params) -> ShapeResult:
        return broadcast_shapes(op, [present(s) for s in shapes])

    return rule


def draw_operands(c: Chooser, dtypes: tuple[DType, ...], domains: tuple[Domain, ...]) -> tuple[OperandSample, ...]:
    """Operands that broadcast together: one has the full shape, the others part of it."""
    shape = draw_shape(c, 0, 4 if c.boolean() else 2)
    full = c.integer(0, len(dtypes) - 1)
    return tuple(
        OperandSample(shape if i == full else draw_broadcastable(c, shape), dt, domain)
        for i, (dt, domain) in enumerate(zip(dtypes, domains, strict=True))
    )


def sampler(accepted: tuple[DType, ...], domains: tuple[Domain, ...]) -> Sampler:
    """Samples of operands that share one accepted dtype."""

    def sample(c: Chooser) -> Example:
        dt = c.choice(accepted)
        return Example(draw_operands(c, (dt,) * len(domains), domains))

    return sample


def instruction(name: str) -> Body:
    """The scalar body that is one instruction."""

    def body(s: ScalarBuilder, *xs: Scalar) -> Scalar:
        return s.instr(name, *xs)

    return body


#: The element-wise ops that are linear, each operand by itself or all together.
_TRANSPOSES: dict[str, Callable[..., Any]] = {
    "add": transposes.add,
    "subtract": transposes.subtract,
    "multiply": transposes.multiply,
    "divide": transposes.divide,
    "negative": transposes.negative,
    "positive": transposes.positive,
    "where": transposes.where,
}


def define(
    name: str,
    doc: str,
    operands: str,
    accepted: tuple[DType, ...],
    reference: Callable[..., Any],
    body: Body,
    *,
    result: DType | None = None,
    params: tuple[Param, ...] = (),
    dtype_rule: DTypeRule | None = None,
    sample: Sampler | None = None,
    domains: tuple[Domain, ...] | None = None,
    tolerance: Tolerance = EXACT,
    flops: int = 1,
    traits: Iterable[str] = (),
    jvp: Callable[..., Any] | None = None,
    no_gradient: str = "",
    onnx: tuple[str, ...] = (),
    torch: tuple[str, ...] = (),
) -> OpRecord:
    """Register an element-wise op whose operands broadcast."""
    names = tuple(operands.split())
    rule = broadcast_rule(name)
    return register(
        OpRecord(
            name=name,
            doc=doc,
            category="elementwise",
            operands=names,
            params=params,
            shape_rule=rule,
            dtype_rule=dtype_rule or uniform(name, accepted, result),
            reference=arithmetic.in_float32(reference),
            body=ScalarBody(body),
            sample=sample or sampler(accepted, domains or ("any",) * len(names)),
            traits=frozenset({"pure", *traits}),
            cost=per_result(rule, flops),
            tolerance=tolerance,
            jvp=jvp,
            transpose=_TRANSPOSES.get(name),
            no_gradient=no_gradient,
            onnx=onnx,
            torch=torch,
        )
    )


# ------------------------------------------------------------------------------------ binary arithmetic


def _or_logic(numeric: str, logic: str) -> Body:
    """An instruction for numbers that has a logical counterpart for bool."""

    def body(s: ScalarBuilder, a: Scalar, b: Scalar) -> Scalar:
        return s.instr(logic if a.dtype.is_bool else numeric, a, b)

    return body


#: Name, what it is, dtypes it takes, NumPy's function, scalar body, traits, ONNX and PyTorch names.
Row = tuple[str, str, tuple[DType, ...], Callable[..., Any], Body, tuple[str, ...], str, str]

_ARITHMETIC: tuple[Row, ...] = (
    ("add", "x1 + x2; integers wrap, bool is or.", ALL, np.add, _or_logic("add", "or"),
     ("commutative",), "Add", "aten.add"),
    ("subtract", "x1 - x2; integers wrap.", NUMERIC, np.subtract, instruction("sub"), (), "Sub", "aten.sub"),
    ("multiply", "x1 * x2; integers wrap, bool is and.", ALL, np.multiply, _or_logic("mul", "and"),
     ("commutative",), "Mul", "aten.mul"),
    ("divide", "x1 / x2, correctly rounded.", FLOATS, np.divide, instruction("div"), (), "Div", "aten.div"),
    ("floor_divide", "The floor of x1 / x2; an integer over 0 is 0.", NUMERIC, np.floor_divide,
     instruction("floordiv"), (), "", "aten.floor_divide"),
    ("remainder", "What floor division leaves, with the sign of x2; an integer over 0 leaves 0.", NUMERIC,
     np.remainder, instruction("rem"), (), "Mod", "aten.remainder"),
    ("fmod", "What truncating division leaves, with the sign of x1; an integer over 0 leaves 0.", NUMERIC,
     np.fmod, instruction("fmod"), (), "Mod", "aten.fmod"),
    # Of two zeros with different signs either may be the result, so that swapping operands stays legal.
    ("minimum", "The smaller of two; NaN from either side is the result.", ALL, np.minimum,
     _or_logic("min", "and"), ("commutative", "associative", "idempotent"), "Min", "aten.minimum"),
    ("maximum", "The larger of two; NaN from either side is the result.", ALL, np.maximum,
     _or_logic("max", "or"), ("commutative", "associative", "idempotent"), "Max", "aten.maximum"),
    ("copysign", "The magnitude of x1 with the sign of x2.", FLOATS, np.copysign, instruction("copysign"), (),
     "", "aten.copysign"),
    ("nextafter", "The next float after x1 towards x2.", (float32, float64), np.nextafter,
     instruction("nextafter"), (), "", "aten.nextafter"),
)  # fmt: skip

for _name, _doc, _accepted, _fn, _body, _traits, _onnx, _torch in _ARITHMETIC:
    define(
        _name, _doc, "x1 x2", _accepted, _fn, _body,
        traits=_traits, onnx=(_onnx,) if _onnx else (), torch=(_torch,),
        no_gradient="the next float is no smooth function of its operands" if _name == "nextafter" else "",
    )  # fmt: skip


def _power_reference(x1: Array, x2: Array) -> Any:
    if dtype(np.asarray(x2).dtype).kind == "int" and np.any(np.asarray(x2) < 0):
        lowest = int(np.min(x2))
        raise ArgumentError(
            f"pow: integers to a negative power are not integers, got the exponent {lowest}; cast to a float first"
        )
    return np.power(x1, x2)


def _power_sample(c: Chooser) -> Example:
    dt = c.choice(NUMERIC)
    domains: tuple[Domain, ...] = ("any", "positive") if dt.is_integer else ("any", "any")
    return Example(draw_operands(c, (dt, dt), domains))


POW = define(
    "pow",
    "x1 to the power x2; integers wrap, and a negative integer exponent is an error.",
    "x1 x2",
    NUMERIC,
    _power_reference,
    instruction("pow"),
    sample=_power_sample,
    tolerance=Tolerance(ulp=8),
    flops=20,
    onnx=("Pow",),
    torch=("aten.pow",),
)


def _logaddexp(s: ScalarBuilder, a: Scalar, b: Scalar) -> Scalar:
    top = s.max(a, b)
    tail = s.instr("log1p", s.exp(s.neg(s.abs(s.sub(a, b)))))
    # Equal infinities would subtract to NaN.
    return s.select(s.instr("eq", a, b), s.add(a, s.const(float(np.log(2.0)), a.dtype)), s.add(top, tail))


define(
    "atan2", "The angle of the point (x2, x1) in radians, in [-pi, pi].", "x1 x2", FLOATS, np.arctan2,
    instruction("atan2"), tolerance=CLOSE, flops=20, torch=("aten.atan2",),
)  # fmt: skip
define(
    "hypot", "The length of the vector (x1, x2), without overflow on the way.", "x1 x2", FLOATS, np.hypot,
    instruction("hypot"), tolerance=CLOSE, flops=10, traits=("commutative",), torch=("aten.hypot",),
)  # fmt: skip
define(
    "logaddexp", "log(exp(x1) + exp(x2)) without overflow.", "x1 x2", FLOATS, np.logaddexp, _logaddexp,
    tolerance=Tolerance(ulp=8, absolute=4), flops=30, traits=("commutative",), jvp=tangents.logaddexp,
    torch=("aten.logaddexp",),
)  # fmt: skip

# ------------------------------------------------------------------------------------- unary arithmetic


def _identity(s: ScalarBuilder, x: Scalar) -> Scalar:
    return x


def _sign(s: ScalarBuilder, x: Scalar) -> Scalar:
    zero, one = s.const(0, x.dtype), s.const(1, x.dtype)
    if not x.dtype.is_signed:
        return s.select(s.instr("ne", x, zero), one, zero)
    below = s.select(s.lt(x, zero), s.const(-1, x.dtype), s.select(s.instr("eq", x, zero), zero, x))
    return s.select(s.instr("gt", x, zero), one, below)  # x is left where it is NaN


def _square(s: ScalarBuilder, x: Scalar) -> Scalar:
    return s.mul(x, x)


def _reciprocal(s: ScalarBuilder, x: Scalar) -> Scalar:
    return s.div(s.const(1, x.dtype), x)


def _rsqrt(s: ScalarBuilder, x: Scalar) -> Scalar:
    return s.div(s.const(1, x.dtype), s.instr("sqrt", x))


def _rsqrt_reference(x: Array) -> Any:
    return np.reciprocal(np.sqrt(x))


def _rounding(name: str) -> Body:
    """A rounding instruction; integers are whole already."""

    def body(s: ScalarBuilder, x: Scalar) -> Scalar:
        return s.instr(name, x) if x.dtype.is_float else x

    return body


def _whole(fn: Callable[..., Any]) -> Callable[..., Any]:
    def run(x: Array) -> Any:
        return fn(x) if dtype(np.asarray(x).dtype).is_float else np.array(x)

    return run


_UNARY: tuple[Row, ...] = (
    ("negative", "-x; integers wrap.", NUMERIC, np.negative, instruction("neg"), ("involution",), "Neg", "aten.neg"),
    ("positive", "x.", NUMERIC, np.positive, _identity, ("idempotent", "involution"), "Identity", "aten.positive"),
    ("abs", "The magnitude of x; the least integer wraps to itself.", NUMERIC, np.absolute, instruction("abs"),
     ("idempotent",), "Abs", "aten.abs"),
    ("sign", "-1, 0 or 1; NaN for NaN, and 0 for -0.", NUMERIC, np.sign, _sign, ("idempotent",), "Sign", "aten.sign"),
    ("square", "x * x; integers wrap.", NUMERIC, np.square, _square, (), "", "aten.square"),
    ("reciprocal", "1 / x, correctly rounded.", FLOATS, np.reciprocal, _reciprocal, (), "Reciprocal",
     "aten.reciprocal"),
    ("sqrt", "The square root, correctly rounded; NaN below 0.", FLOATS, np.sqrt, instruction("sqrt"), (), "Sqrt",
     "aten.sqrt"),
    ("ceil", "The least integer not below x.", NUMERIC, _whole(np.ceil), _rounding("ceil"), ("idempotent",), "Ceil",
     "aten.ceil"),
    ("floor", "The greatest integer not above x.", NUMERIC, _whole(np.floor), _rounding("floor"), ("idempotent",),
     "Floor", "aten.floor"),
    ("trunc", "x without its fraction.", NUMERIC, _whole(np.trunc), _rounding("trunc"), ("idempotent",), "",
     "aten.trunc"),
    ("round", "The nearest integer, ties to even.", NUMERIC, _whole(np.rint), _rounding("rint"), ("idempotent",),
     "Round", "aten.round"),
)  # fmt: skip

for _name, _doc, _accepted, _fn, _body, _traits, _onnx, _torch in _UNARY:
    define(_name, _doc, "x", _accepted, _fn, _body, traits=_traits, onnx=(_onnx,) if _onnx else (), torch=(_torch,))

define(
    "stop_gradient", "x, whose derivative is 0: a constant to the transforms.", "x", ALL, np.array, _identity,
    traits=("idempotent", "involution"), jvp=tangents.constant, torch=("aten.detach",),
)  # fmt: skip
define(
    "rsqrt", "1 / sqrt(x).", "x", FLOATS, _rsqrt_reference, _rsqrt, tolerance=Tolerance(ulp=1), flops=2,
    torch=("aten.rsqrt",),
)  # fmt: skip

# --------------------------------------------------------------------------------- functions of analysis

#: name, what it is, NumPy's function, ONNX name, tolerance in ulp; the scalar instruction has the op's name.
_FUNCTIONS: tuple[tuple[str, str, Callable[..., Any], str, float], ...] = (
    ("exp", "e to the power x", np.exp, "Exp", 4),
    ("exp2", "2 to the power x", np.exp2, "", 4),
    ("expm1", "exp(x) - 1, accurate near 0", np.expm1, "", 4),
    ("log", "The natural logarithm", np.log, "Log", 4),
    ("log2", "The logarithm to base 2", np.log2, "", 4),
    ("log10", "The logarithm to base 10", np.log10, "", 4),
    ("log1p", "log(1 + x), accurate near 0", np.log1p, "", 4),
    ("sin", "The sine of x in radians", np.sin, "Sin", 4),
    ("cos", "The cosine of x in radians", np.cos, "Cos", 4),
    ("tan", "The tangent of x in radians", np.tan, "Tan", 4),
    ("asin", "The inverse sine, in [-pi/2, pi/2]", np.arcsin, "Asin", 4),
    ("acos", "The inverse cosine, in [0, pi]", np.arccos, "Acos", 4),
    ("atan", "The inverse tangent, in [-pi/2, pi/2]", np.arctan, "Atan", 4),
    ("sinh", "The hyperbolic sine", np.sinh, "Sinh", 4),
    ("cosh", "The hyperbolic cosine", np.cosh, "Cosh", 4),
    ("tanh", "The hyperbolic tangent", np.tanh, "Tanh", 4),
    ("asinh", "The inverse hyperbolic sine", np.arcsinh, "Asinh", 4),
    ("acosh", "The inverse hyperbolic cosine", np.arccosh, "Acosh", 4),
    ("atanh", "The inverse hyperbolic tangent", np.arctanh, "Atanh", 4),
    ("erf", "The error function", arithmetic.erf, "Erf", 4),
    ("erfc", "1 - erf(x), accurate for large x", arithmetic.erfc, "", 4),
    ("lgamma", "The logarithm of the magnitude of the gamma function", arithmetic.lgamma, "", 8),
)

for _name, _doc, _fn, _onnx, _ulp in _FUNCTIONS:
    define(
        _name, _doc + ".", "x", FLOATS, _fn, instruction(_name),
        # lgamma crosses 0 at 1 and 2, where only an absolute bound holds.
        tolerance=Tolerance(ulp=_ulp, absolute=4 if _name == "lgamma" else 0), flops=15,
        onnx=(_onnx,) if _onnx else (), torch=("aten." + _name,),
    )  # fmt: skip

# -------------------------------------------------------------------------------- predicates, comparisons


def _on_floats(body: Body) -> Body:
    """A predicate that no integer satisfies."""

    def run(s: ScalarBuilder, x: Scalar) -> Scalar:
        return body(s, x) if x.dtype.is_float else s.const(False, bool_)

    return run


def _isfinite(s: ScalarBuilder, x: Scalar) -> Scalar:
    if not x.dtype.is_float:
        return s.const(True, bool_)
    return s.lt(s.abs(x), s.const(float("inf"), x.dtype))  # false for NaN


for _name, _doc, _accepted, _fn, _body, _onnx in (
    ("isnan", "Whether x is NaN.", NUMERIC, np.isnan, _on_floats(instruction("isnan")), ("IsNaN",)),
    ("isinf", "Whether x is infinite.", NUMERIC, np.isinf, _on_floats(instruction("isinf")), ("IsInf",)),
    ("isfinite", "Whether x is neither NaN nor infinite.", NUMERIC, np.isfinite, _isfinite, ()),
    ("signbit", "Whether the sign bit is set, that of -0 and NaN too.", FLOATS, np.signbit, instruction("signbit"), ()),
):
    define(_name, _doc, "x", _accepted, _fn, _body, result=bool_, onnx=_onnx, torch=("aten." + _name,))

for _name, _sign_text, _fn, _instr, _traits, _onnx, _torch in (
    ("equal", "==", np.equal, "eq", ("commutative",), ("Equal",), "aten.eq"),
    ("not_equal", "!=", np.not_equal, "ne", ("commutative",), (), "aten.ne"),
    ("less", "<", np.less, "lt", (), ("Less",), "aten.lt"),
    ("less_equal", "<=", np.less_equal, "le", (), ("LessOrEqual",), "aten.le"),
    ("greater", ">", np.greater, "gt", (), ("Greater",), "aten.gt"),
    ("greater_equal", ">=", np.greater_equal, "ge", (), ("GreaterOrEqual",), "aten.ge"),
):
    define(
        _name, f"Whether x1 {_sign_text} x2, as IEEE 754 compares: NaN equals nothing.", "x1 x2", ALL, _fn,
        instruction(_instr), result=bool_, traits=_traits, onnx=_onnx, torch=(_torch,),
    )  # fmt: skip

# ------------------------------------------------------------------------------------------------ logic


def _truth(s: ScalarBuilder, x: Scalar) -> Scalar:
    return x if x.dtype.is_bool else s.instr("ne", x, s.const(0, x.dtype))


def _logical(name: str) -> Body:
    def body(s: ScalarBuilder, *xs: Scalar) -> Scalar:
        return s.instr(name, *(_truth(s, x) for x in xs))

    return body


for _name, _operands, _fn, _instr, _traits, _onnx in (
    ("logical_and", "x1 x2", np.logical_and, "and", ("commutative",), "And"),
    ("logical_or", "x1 x2", np.logical_or, "or", ("commutative",), "Or"),
    ("logical_xor", "x1 x2", np.logical_xor, "xor", ("commutative",), "Xor"),
    ("logical_not", "x", np.logical_not, "not", (), "Not"),
):
    define(
        _name, f"Logical {_instr}; what is not 0 counts as true, NaN too.", _operands, ALL, _fn, _logical(_instr),
        result=bool_, traits=_traits, onnx=(_onnx,), torch=("aten." + _name,),
    )  # fmt: skip

for _name, _operands, _fn, _instr, _traits, _onnx, _torch in (
    ("bitwise_and", "x1 x2", np.bitwise_and, "and", ("commutative", "associative", "idempotent"), "BitwiseAnd",
     "aten.bitwise_and"),
    ("bitwise_or", "x1 x2", np.bitwise_or, "or", ("commutative", "associative", "idempotent"), "BitwiseOr",
     "aten.bitwise_or"),
    ("bitwise_xor", "x1 x2", np.bitwise_xor, "xor", ("commutative", "associative"), "BitwiseXor", "aten.bitwise_xor"),
    ("bitwise_invert", "x", np.invert, "not", ("involution",), "BitwiseNot", "aten.bitwise_not"),
):  # fmt: skip
    define(
        _name, f"Bitwise {_instr} of integers, logical {_instr} of bool.", _operands, (bool_, *INTEGERS), _fn,
        instruction(_instr), traits=_traits, onnx=(_onnx,), torch=(_torch,),
    )  # fmt: skip


def _shift_sample(c: Chooser) -> Example:
    dt = c.choice(INTEGERS)
    return Example(draw_operands(c, (dt, dt), ("any", c.choice(("any", "positive")))))


define(
    "bitwise_left_shift", "x1 shifted x2 bits up; 0 where x2 is negative or not below the width.", "x1 x2", INTEGERS,
    np.left_shift, instruction("shl"), sample=_shift_sample, onnx=("BitShift",),
    torch=("aten.bitwise_left_shift",),
)  # fmt: skip
define(
    "bitwise_right_shift",
    "x1 shifted x2 bits down, keeping the sign; 0 or -1 where x2 is negative or not below the width.", "x1 x2",
    INTEGERS, np.right_shift, instruction("shr"), sample=_shift_sample, onnx=("BitShift",),
    torch=("aten.bitwise_right_shift",),
)  # fmt: skip

# --------------------------------------------------------------------------------- selection, clip, cast


def _where_body(s: ScalarBuilder, condition: Scalar, x1: Scalar, x2: Scalar) -> Scalar:
    return s.select(condition, x1, x2)


def _where_dtype(dtypes: DTypes, params: Params) -> tuple[DType, ...]:
    accept("where", dtypes[0], (bool_,), "condition")
    return (shared("where", dtypes[1:], ALL),)


def _where_sample(c: Chooser) -> Example:
    dt = c.choice(ALL)
    return Example(draw_operands(c, (bool_, dt, dt), ("any", "any", "any")))


WHERE = define(
    "where",
    "x1 where the condition holds, else x2.",
    "condition x1 x2",
    ALL,
    np.where,
    _where_body,
    dtype_rule=_where_dtype,
    sample=_where_sample,
    onnx=("Where",),
    torch=("aten.where",),
)


def _clip_body(s: ScalarBuilder, x: Scalar, lo: Scalar, hi: Scalar) -> Scalar:
    return s.min(s.max(x, lo), hi)


def _clip_reference(x: Array, lo: Array, hi: Array) -> Any:
    return np.minimum(np.maximum(x, lo), hi)


CLIP = define(
    "clip",
    "minimum(maximum(x, lo), hi): hi wins where lo > hi, and NaN anywhere is the result.",
    "x lo hi",
    NUMERIC,
    _clip_reference,
    _clip_body,
    flops=2,
    jvp=tangents.clip,
    onnx=("Clip",),
    torch=("aten.clamp",),
)


def _cast_body(s: ScalarBuilder, x: Scalar, *, dtype: DType) -> Scalar:
    return s.cast_result(x, dtype)


def _cast_reference(x: Array, *, dtype: DType) -> Array:
    return arithmetic.convert(np.array(x), dtype)


def _cast_dtype(dtypes: DTypes, params: Params) -> tuple[DType, ...]:
    target: ParamValue = params["dtype"]
    if not isinstance(target, DType):
        raise ArgumentError(f"cast: dtype is {target!r}; expected a cuvil dtype such as cuvil.float32")
    return (target,)


def _cast_sample(c: Chooser) -> Example:
    operand = OperandSample(draw_shape(c, 0, 4), c.choice(ALL), c.choice(("any", "moderate")))
    return Example((operand,), {"dtype": c.choice(ALL)})


CAST = register(
    OpRecord(
        name="cast",
        doc="The same numbers in another dtype: floats truncate to integers, integers wrap, not 0 is true.",
        category="elementwise",
        operands=("x",),
        params=(Param("dtype", "dtype", "dtype of the result"),),
        shape_rule=broadcast_rule("cast"),
        dtype_rule=_cast_dtype,
        reference=_cast_reference,
        body=ScalarBody(_cast_body),
        sample=_cast_sample,
        transpose=transposes.cast,
        cost=per_result(broadcast_rule("cast")),
        onnx=("Cast",),
        torch=("aten._to_copy", "prims.convert_element_type"),
    )
)
