"""Scalar programs: the SSA bodies of element-wise ops, over the closed instruction set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cuvil.dtypes import DType, bool_, float32
from cuvil.ops.scalar import INSTRUCTIONS
from cuvil.support.errors import DTypeError


@dataclass(frozen=True)
class Instr:
    """One instruction of a scalar program.

    ``name`` is a row of :data:`~cuvil.ops.scalar.INSTRUCTIONS`, or ``"const"`` (``value`` set), ``"cast"`` or
    ``"select"``. ``args`` are indices: values ``0 .. n_inputs-1`` are the inputs, then one per instruction.
    """

    name: str
    args: tuple[int, ...]
    dtype: DType
    value: bool | int | float | None = None


@dataclass(frozen=True)
class ScalarProgram:
    """A straight-line scalar function: input dtypes, instructions and the index of the result."""

    inputs: tuple[DType, ...]
    instructions: tuple[Instr, ...]
    result: int

    @property
    def dtype(self) -> DType:
        """Result dtype."""
        n = len(self.inputs)
        return self.inputs[self.result] if self.result < n else self.instructions[self.result - n].dtype


@dataclass(frozen=True)
class Scalar:
    """A value while a scalar body is being written: its index in the program and its dtype."""

    index: int
    dtype: DType


class ScalarBuilder:
    """Writes a :class:`ScalarProgram`. A record's scalar body receives one and scalars, and returns a scalar.

    16-bit floats are computed in float32 inside a body and rounded once at its end, which is how NumPy
    evaluates a float16 ufunc; :func:`build_program` adds those casts.

    >>> def softsign(s: ScalarBuilder, x: Scalar) -> Scalar:
    ...     return s.div(x, s.add(s.const(1, x.dtype), s.abs(x)))
    >>> from cuvil.dtypes import float32
    >>> [i.name for i in build_program(softsign, (float32,), {}).instructions]
    ['const', 'abs', 'add', 'div']
    """

    def __init__(self, inputs: Sequence[DType]) -> None:
        self.inputs = tuple(inputs)
        self.instructions: list[Instr] = []
        self.final: Scalar | None = None

    def _push(self, name: str, args: Sequence[Scalar], dtype: DType, value: bool | int | float | None = None) -> Scalar:
        self.instructions.append(Instr(name, tuple(a.index for a in args), dtype, value))
        return Scalar(len(self.inputs) + len(self.instructions) - 1, dtype)

    def instr(self, name: str, *args: Scalar) -> Scalar:
        """Any row of the instruction table by name."""
        row = INSTRUCTIONS[name]
        if len(args) != row.arity:
            raise DTypeError(f"scalar instruction {name} takes {row.arity} operands, got {len(args)}")
        dt = args[0].dtype
        if any(a.dtype is not dt for a in args) or dt not in row.dtypes:
            got = ", ".join(a.dtype.name for a in args)
            raise DTypeError(f"scalar instruction {name} does not take ({got})")
        return self._push(name, args, bool_ if row.result == "bool" else dt)

    def const(self, value: bool | int | float, dtype: DType) -> Scalar:
        """A literal of a dtype."""
        return self._push("const", (), dtype, value)

    def cast(self, x: Scalar, dtype: DType) -> Scalar:
        """Conversion as NUMERICS rule 5 says."""
        return x if x.dtype is dtype else self._push("cast", (x,), dtype)

    def cast_result(self, x: Scalar, dtype: DType) -> Scalar:
        """The last cast of a body whose result dtype does not follow its operands': it is not rounded to a half."""
        self.final = self.cast(x, dtype)
        return self.final

    def select(self, c: Scalar, a: Scalar, b: Scalar) -> Scalar:
        """``a`` where ``c`` else ``b``."""
        if c.dtype is not bool_ or a.dtype is not b.dtype:
            raise DTypeError(f"select takes (bool, T, T), got ({c.dtype}, {a.dtype}, {b.dtype})")
        return self._push("select", (c, a, b), a.dtype)

    # The instructions that bodies use most, spelled as methods.
    def add(self, a: Scalar, b: Scalar) -> Scalar:
        return self.instr("add", a, b)

    def sub(self, a: Scalar, b: Scalar) -> Scalar:
        return self.instr("sub", a, b)

    def mul(self, a: Scalar, b: Scalar) -> Scalar:
        return self.instr("mul", a, b)

    def div(self, a: Scalar, b: Scalar) -> Scalar:
        return self.instr("div", a, b)

    def min(self, a: Scalar, b: Scalar) -> Scalar:
        return self.instr("min", a, b)

    def max(self, a: Scalar, b: Scalar) -> Scalar:
        return self.instr("max", a, b)

    def neg(self, a: Scalar) -> Scalar:
        return self.instr("neg", a)

    def abs(self, a: Scalar) -> Scalar:
        return self.instr("abs", a)

    def exp(self, a: Scalar) -> Scalar:
        return self.instr("exp", a)

    def lt(self, a: Scalar, b: Scalar) -> Scalar:
        return self.instr("lt", a, b)


def build_program(body: Callable[..., Scalar], dtypes: Sequence[DType], params: dict[str, object]) -> ScalarProgram:
    """Run a scalar body once and return its program; halves enter as float32 and leave rounded."""
    s = ScalarBuilder(dtypes)
    halves = {d for d in dtypes if d.is_half}
    args: list[Scalar] = []
    for i, d in enumerate(dtypes):
        x = Scalar(i, d)
        args.append(s.cast(x, float32) if d.is_half else x)
    out = body(s, *args, **params)
    if halves and out.dtype is float32 and out is not s.final:
        out = s.cast(out, next(iter(halves)))
    return ScalarProgram(s.inputs, tuple(s.instructions), out.index)
