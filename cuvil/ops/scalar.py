"""The closed scalar instruction set: what an element-wise body may be made of.

A body is an SSA list of :class:`Instr` over these instructions. Each backend has one table from
(instruction, dtype) to text; a completeness test fails until every row stands.

Classes of signature, with T the operand dtype:

* ``arith``: (T, ...) -> T
* ``compare`` / ``predicate``: (T, ...) -> bool
* ``cast``: T -> U;  ``select``: (bool, T, T) -> T;  ``const``: () -> T
"""

from __future__ import annotations

from dataclasses import dataclass

from cuvil.dtypes import ALL, FLOATS, INTEGERS, NUMERIC, DType, bool_


@dataclass(frozen=True)
class Instruction:
    """One scalar instruction: its name, operand count, result class and the dtypes it takes."""

    name: str
    arity: int
    result: str  # "same", "bool"
    dtypes: tuple[DType, ...]
    doc: str
    expensive: bool = False  # worth storing rather than computing twice


def _rows() -> tuple[Instruction, ...]:
    rows: list[Instruction] = []

    def add(names: str, arity: int, result: str, dtypes: tuple[DType, ...], doc: str, expensive: bool = False) -> None:
        rows.extend(Instruction(n, arity, result, dtypes, doc, expensive) for n in names.split())

    boolean = (bool_,)
    add("add sub mul", 2, "same", NUMERIC, "wrapping for integers")
    add("div", 2, "same", FLOATS, "IEEE division")
    floors = "NumPy's // and %: floors, sign of the divisor; x//0 == x%0 == 0 for integers"
    add("floordiv rem", 2, "same", NUMERIC, floors, True)
    add("fmod", 2, "same", NUMERIC, "C remainder, sign of the dividend; integer x fmod 0 == 0", True)
    add("pow", 2, "same", NUMERIC, "power; integers wrap, a negative integer exponent gives 0 here", True)
    add("min max", 2, "same", NUMERIC, "NaN from either side propagates; max(-0.0, 0.0) may be either zero as in NumPy")
    add("neg abs", 1, "same", NUMERIC, "integers wrap")
    add("sqrt", 1, "same", FLOATS, "correctly rounded")
    add("exp exp2 expm1 log log2 log10 log1p", 1, "same", FLOATS, "", True)
    add("sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh", 1, "same", FLOATS, "radians", True)
    add("erf erfc lgamma tgamma", 1, "same", FLOATS, "", True)
    add("atan2 hypot nextafter", 2, "same", FLOATS, "atan2(y, x)", True)
    add("copysign", 2, "same", FLOATS, "")
    add("ceil floor trunc rint", 1, "same", FLOATS, "rint is half to even; signed zeros survive")
    add("isnan isinf signbit", 1, "bool", FLOATS, "")
    add("eq ne lt le gt ge", 2, "bool", ALL, "IEEE: comparisons with NaN are false but ne")
    add("and or xor", 2, "same", boolean + INTEGERS, "bitwise; logical for bool")
    add("not", 1, "same", boolean + INTEGERS, "bitwise; logical for bool")
    add("shl shr", 2, "same", INTEGERS, "shr is arithmetic for signed; counts >= width give 0 (or -1 for negative shr)")
    return tuple(rows)


INSTRUCTIONS: dict[str, Instruction] = {i.name: i for i in _rows()}
#: Instructions that are not plain rows: their signatures involve two dtypes.
SPECIAL = ("const", "cast", "select")
