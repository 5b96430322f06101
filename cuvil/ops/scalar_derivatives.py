"""Derivatives of scalar programs: one row for each scalar instruction, from which element-wise ops get theirs.

A row gives the tangent of an instruction's result from those of its operands. Ops that the rows emit are themselves
differentiable, so derivatives of any order follow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from cuvil.dtypes import DType, complex_of
from cuvil.ops.body import Instr, ScalarProgram, build_program
from cuvil.ops.builder import Builder
from cuvil.ops.record import Params, ScalarBody

#: A value of the builder at hand, primal or tangent.
Value = Any


class Run:
    """The values of a scalar program as arrays, each computed when a derivative first asks for it."""

    def __init__(self, F: Builder[Any], program: ScalarProgram, inputs: Sequence[Value], result: Value) -> None:
        self.F = F
        self.program = program
        self.complex = any(F.dtype(x).is_complex for x in inputs)
        self._values: dict[int, Value] = dict(enumerate(inputs))
        self._values[program.result] = result

    def instruction(self, number: int) -> Instr | None:
        """The instruction that computes a value, None for an input."""
        k = number - len(self.program.inputs)
        return None if k < 0 else self.program.instructions[k]

    def dtype_of(self, instr: Instr) -> DType:
        """The dtype of an instruction's result: complex in place of the floats of the program, where operands are."""
        return complex_of(instr.dtype) if self.complex and instr.dtype.is_float else instr.dtype

    def value(self, number: int) -> Value:
        """The array of a value of the program."""
        # Bodies are short, but a chain of instructions must not become a chain of calls.
        pending = [number]
        while pending:
            at = pending[-1]
            if at in self._values:
                pending.pop()
                continue
            instr = self.instruction(at)
            assert instr is not None
            missing = [a for a in instr.args if a not in self._values]
            if missing:
                pending += missing
            else:
                args = [self._values[a] for a in instr.args]
                self._values[at] = _as_op(self.F, instr, self.dtype_of(instr), args)
        return self._values[number]


class At:
    """One instruction of a run, as its row sees it."""

    def __init__(self, run: Run, number: int, instr: Instr) -> None:
        self.F = run.F
        self.dtype = run.dtype_of(instr)
        self._run = run
        self._number = number
        self._args = instr.args

    @property
    def y(self) -> Value:
        """The result."""
        return self._run.value(self._number)

    def x(self, k: int) -> Value:
        """An operand."""
        return self._run.value(self._args[k])

    def is_constant(self, k: int) -> bool:
        """Whether an operand is a literal of the body."""
        instr = self._run.instruction(self._args[k])
        return instr is not None and instr.name == "const"

    def const(self, value: float) -> Value:
        """A literal of the result's dtype."""
        return self.F.scalar(value, self.dtype)


#: (instruction, operand's number, operand's tangent) -> what it adds to the result's tangent.
Part = Callable[[At, Value], Value]
#: One part for each operand; None where the result does not change with it, almost everywhere.
Row = tuple[Part | None, ...]

# --------------------------------------------------------------------------------- what rows are made of


def _keep(at: At, t: Value) -> Value:
    return t


def _negated(at: At, t: Value) -> Value:
    return at.F.op("negative", t)


def _times(factor: Callable[[At], Value]) -> Part:
    def part(at: At, t: Value) -> Value:
        return at.F.mul(t, factor(at))

    return part


def _over(divisor: Callable[[At], Value]) -> Part:
    def part(at: At, t: Value) -> Value:
        return at.F.div(t, divisor(at))

    return part


def _minus_over(divisor: Callable[[At], Value]) -> Part:
    def part(at: At, t: Value) -> Value:
        return at.F.op("negative", at.F.div(t, divisor(at)))

    return part


def _op(name: str, *operands: int) -> Callable[[At], Value]:
    def value(at: At) -> Value:
        return at.F.op(name, *(at.x(k) for k in operands))

    return value


def _square_of(value: Callable[[At], Value]) -> Callable[[At], Value]:
    def squared(at: At) -> Value:
        v = value(at)
        return at.F.mul(v, v)

    return squared


def _y(at: At) -> Value:
    return at.y


def _x(at: At) -> Value:
    return at.x(0)


# ------------------------------------------------------------------------------------------- functions


def _one_plus_y_squared(at: At) -> Value:
    return at.F.add(at.const(1), _square_of(_y)(at))


def _one_minus_y_squared(at: At) -> Value:
    return at.F.sub(at.const(1), _square_of(_y)(at))


def _legs(first: str, second: str) -> Callable[[At], Value]:
    """``sqrt`` of a product of ``x - 1`` or ``1 - x`` and ``1 + x``, which neither cancels nor overflows."""

    def value(at: At) -> Value:
        F, one, x = at.F, at.const(1), at.x(0)
        left = F.sub(x, one) if first == "x-1" else F.sub(one, x)
        right = F.add(x, one)
        if second == "sqrt":
            return F.mul(F.op("sqrt", left), F.op("sqrt", right))
        return F.mul(left, right)

    return value


def _two_y(at: At) -> Value:
    return at.F.mul(at.const(2), at.y)


def _scaled_x(factor: float) -> Callable[[At], Value]:
    def value(at: At) -> Value:
        return at.F.mul(at.x(0), at.const(factor))

    return value


def _scaled_y(factor: float) -> Callable[[At], Value]:
    def value(at: At) -> Value:
        return at.F.mul(at.y, at.const(factor))

    return value


def _one_plus_x(at: At) -> Value:
    return at.F.add(at.const(1), at.x(0))


def _one_plus_x_squared(at: At) -> Value:
    return at.F.add(at.const(1), _square_of(_x)(at))


def _length_of_one_and_x(at: At) -> Value:
    return at.F.op("hypot", at.const(1), at.x(0))


def _normal_density(sign: float) -> Callable[[At], Value]:
    def value(at: At) -> Value:
        F = at.F
        return F.mul(at.const(sign * 2 / math.sqrt(math.pi)), F.exp(F.op("negative", _square_of(_x)(at))))

    return value


_SHIFT = 10
#: B_2k / 2k of the asymptotic series of digamma (DLMF 5.11.2).
_DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)


def digamma(F: Builder[Any], x: Value) -> Value:
    """The derivative of lgamma: reflected below 1/2, shifted up by 10, then an asymptotic series (DLMF 5.5, 5.11)."""
    dt = F.dtype(x)

    def const(value: float) -> Value:
        return F.scalar(value, dt)

    reflected = F.op("less", x, const(0.5))
    z = F.where(reflected, F.sub(const(1), x), x)
    steps = const(0)
    for k in range(_SHIFT):
        steps = F.add(steps, F.op("reciprocal", F.add(z, const(k))))
    high = F.add(z, const(_SHIFT))
    inverse = F.op("reciprocal", F.mul(high, high))
    series = const(0)
    for coefficient in reversed(_DIGAMMA):
        series = F.mul(inverse, F.add(const(coefficient), series))
    shifted = F.sub(F.sub(F.op("log", high), F.div(const(0.5), high)), F.add(series, steps))
    # The cotangent's argument is brought near 0 first: pi times a large x has lost the fraction that counts.
    fraction = F.sub(x, F.op("round", x))
    turned = F.div(const(math.pi), F.op("tan", F.mul(const(math.pi), F.where(reflected, fraction, const(0.25)))))
    return F.where(reflected, F.sub(shifted, turned), shifted)


def _digamma(at: At) -> Value:
    return digamma(at.F, at.x(0))


def _gamma_slope(at: At) -> Value:
    return at.F.mul(at.y, digamma(at.F, at.x(0)))


# ---------------------------------------------------------------------------------------- two operands


def _quotient_by_divisor(at: At, t: Value) -> Value:
    return at.F.op("negative", at.F.mul(t, at.F.div(at.y, at.x(1))))


def _minus_whole(name: str) -> Part:
    """``x1 - x2 * whole`` by its divisor, where the whole quotient is constant between jumps."""

    def part(at: At, t: Value) -> Value:
        F = at.F
        whole = F.op("floor_divide", at.x(0), at.x(1)) if name == "rem" else F.op("trunc", F.div(at.x(0), at.x(1)))
        return F.op("negative", F.mul(t, whole))

    return part


def _power_by_base(at: At, t: Value) -> Value:
    F, base, exponent = at.F, at.x(0), at.x(1)
    zero = F.op("equal", exponent, at.const(0))
    # x ** 0 is 1 everywhere, at 0 too, where the general formula has 0 * inf.
    below = F.op("pow", base, F.where(zero, at.const(1), F.sub(exponent, at.const(1))))
    return F.mul(t, F.mul(exponent, below))


def _power_by_exponent(at: At, t: Value) -> Value:
    F, base = at.F, at.x(0)
    safe = F.where(F.op("equal", base, at.const(0)), at.const(1), base)
    return F.mul(t, F.mul(at.y, F.op("log", safe)))


def _extreme(mine: int, wins: str) -> Part:
    """Where this operand wins; two operands that tie share, and a literal of the body keeps a tie for itself."""

    def part(at: At, t: Value) -> Value:
        F, x, other = at.F, at.x(mine), at.x(1 - mine)
        one, zero = at.const(1), at.const(0)
        lost = zero if at.is_constant(1 - mine) else F.where(F.op("equal", x, other), at.const(0.5), zero)
        return F.mul(t, F.where(F.op(wins, x, other), one, lost))

    return part


def _angle(mine: int) -> Part:
    """atan2(y, x): x / r**2 by y and -y / r**2 by x, dividing twice by r so that nothing overflows."""

    def part(at: At, t: Value) -> Value:
        F, y, x = at.F, at.x(0), at.x(1)
        r = F.op("hypot", y, x)
        side = x if mine == 0 else F.op("negative", y)
        return F.mul(t, F.div(F.div(side, r), r))

    return part


def _side_over_length(mine: int) -> Part:
    """The cosine of the angle; 0 at the origin, where the length has a kink."""

    def part(at: At, t: Value) -> Value:
        F = at.F
        zero = F.op("equal", at.y, at.const(0))
        return F.mul(t, F.div(at.x(mine), F.where(zero, at.const(1), at.y)))

    return part


def _sign_to_sign(at: At) -> Value:
    F = at.F
    return F.mul(F.op("sign", at.x(0)), F.op("copysign", at.const(1), at.x(1)))


def _chosen(mine: int) -> Part:
    def part(at: At, t: Value) -> Value:
        zero = at.const(0)
        return at.F.where(at.x(0), t, zero) if mine == 1 else at.F.where(at.x(0), zero, t)

    return part


def _cast(at: At, t: Value) -> Value:
    return at.F.cast(t, at.dtype)


#: Instructions whose results are never floats, or which only take integers and bool: nothing flows through them.
DISCRETE = frozenset("isnan isinf signbit eq ne lt le gt ge and or xor not shl shr".split())
#: Instructions on floats without a derivative worth the name, and why.
UNDEFINED = {"nextafter": "the next float is no smooth function of its operands"}

_LN2, _LN10 = math.log(2), math.log(10)
ROWS: dict[str, Row] = {
    "const": (),
    "cast": (_cast,),
    "select": (None, _chosen(1), _chosen(2)),
    "add": (_keep, _keep),
    "sub": (_keep, _negated),
    "mul": (_times(lambda at: at.x(1)), _times(lambda at: at.x(0))),
    "div": (_over(lambda at: at.x(1)), _quotient_by_divisor),
    "floordiv": (None, None),
    "rem": (_keep, _minus_whole("rem")),
    "fmod": (_keep, _minus_whole("fmod")),
    "pow": (_power_by_base, _power_by_exponent),
    "min": (_extreme(0, "less"), _extreme(1, "less")),
    "max": (_extreme(0, "greater"), _extreme(1, "greater")),
    "neg": (_negated,),
    "abs": (_times(_op("sign", 0)),),
    "sqrt": (_over(_two_y),),
    "exp": (_times(_y),),
    "exp2": (_times(_scaled_y(_LN2)),),
    "expm1": (_times(_op("exp", 0)),),
    "log": (_over(_x),),
    "log2": (_over(_scaled_x(_LN2)),),
    "log10": (_over(_scaled_x(_LN10)),),
    "log1p": (_over(_one_plus_x),),
    "sin": (_times(_op("cos", 0)),),
    "cos": (lambda at, t: at.F.op("negative", at.F.mul(t, at.F.op("sin", at.x(0)))),),
    "tan": (_times(_one_plus_y_squared),),
    "asin": (_over(_legs("1-x", "sqrt")),),
    "acos": (_minus_over(_legs("1-x", "sqrt")),),
    "atan": (_over(_one_plus_x_squared),),
    "sinh": (_times(_op("cosh", 0)),),
    "cosh": (_times(_op("sinh", 0)),),
    "tanh": (_times(_one_minus_y_squared),),
    "asinh": (_over(_length_of_one_and_x),),
    "acosh": (_over(_legs("x-1", "sqrt")),),
    "atanh": (_over(_legs("1-x", "product")),),
    "erf": (_times(_normal_density(1)),),
    "erfc": (_times(_normal_density(-1)),),
    "lgamma": (_times(_digamma),),
    "tgamma": (_times(_gamma_slope),),
    "atan2": (_angle(0), _angle(1)),
    "hypot": (_side_over_length(0), _side_over_length(1)),
    "copysign": (_times(_sign_to_sign), None),
    "ceil": (None,),
    "floor": (None,),
    "trunc": (None,),
    "rint": (None,),
}

_OP_NAMES = {
    "sub": "subtract", "mul": "multiply", "div": "divide", "floordiv": "floor_divide", "rem": "remainder",
    "min": "minimum", "max": "maximum", "neg": "negative", "rint": "round", "eq": "equal", "ne": "not_equal",
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "and": "bitwise_and",
    "or": "bitwise_or", "xor": "bitwise_xor", "not": "bitwise_invert", "shl": "bitwise_left_shift",
    "shr": "bitwise_right_shift",
}  # fmt: skip


def _as_op(F: Builder[Any], instr: Instr, dt: DType, args: Sequence[Value]) -> Value:
    """An instruction as the op of the same meaning."""
    if instr.name == "const":
        assert instr.value is not None
        return F.scalar(instr.value, dt)
    if instr.name == "cast":
        return F.cast(args[0], dt)
    if instr.name == "select":
        return F.where(*args)
    return F.op(_OP_NAMES.get(instr.name, instr.name), *args)


def scalar_tangent(
    F: Builder[Any],
    body: ScalarBody,
    operands: Sequence[Value],
    result: Value,
    tangents: Sequence[Value | None],
    params: Params,
) -> Value | None:
    """The tangent of an element-wise op's result, of its shape; None where it does not change.

    ``F`` takes primal values and tangents alike; ops on tangents are linear in them.
    """
    program = build_program(body.build, [F.dtype(x).part for x in operands], dict(params))
    run = Run(F, program, operands, result)
    known: list[Value | None] = list(tangents)
    for k, instr in enumerate(program.instructions, len(operands)):
        known.append(_tangent(run, k, instr, known))
    t = known[program.result]
    return None if t is None else F.broadcast_to(t, F.shape(result))


def _tangent(run: Run, number: int, instr: Instr, tangents: Sequence[Value | None]) -> Value | None:
    if not (instr.dtype.is_float or instr.dtype.is_complex) or instr.name in DISCRETE:
        return None
    at = At(run, number, instr)
    total: Value | None = None
    for part, arg in zip(ROWS[instr.name], instr.args, strict=True):
        t = tangents[arg]
        if t is not None and part is not None:
            added = part(at, t)
            total = added if total is None else run.F.add(total, added)
    return total
