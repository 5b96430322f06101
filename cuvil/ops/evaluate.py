"""Runs scalar programs on NumPy arrays, instruction by instruction, as the numerics contract says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cuvil.dtypes import DType, dtype
from cuvil.ops import arithmetic
from cuvil.ops.body import Instr, ScalarProgram
from cuvil.ops.record import Array
from cuvil.support.errors import DTypeError

#: NumPy's function for each scalar instruction; halves reach it as float32.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "floordiv": np.floor_divide,
    "rem": np.remainder,
    "fmod": np.fmod,
    "pow": arithmetic.wrapping_power,
    "min": np.minimum,
    "max": np.maximum,
    "neg": np.negative,
    "abs": np.absolute,
    "sqrt": np.sqrt,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "erf": arithmetic.erf,
    "erfc": arithmetic.erfc,
    "lgamma": arithmetic.lgamma,
    "tgamma": arithmetic.tgamma,
    "atan2": np.arctan2,
    "hypot": np.hypot,
    "nextafter": np.nextafter,
    "copysign": np.copysign,
    "ceil": np.ceil,
    "floor": np.floor,
    "trunc": np.trunc,
    "rint": np.rint,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "signbit": np.signbit,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "shl": np.left_shift,
    "shr": np.right_shift,
}


def run_instruction(instr: Instr, args: Sequence[Array]) -> Array:
    """One instruction on arrays that broadcast together; a half result is rounded."""
    if instr.name == "const":
        return constant(instr.value, instr.dtype)
    if instr.name == "cast":
        return arithmetic.convert(args[0], instr.dtype)
    with np.errstate(all="ignore"):
        if instr.name == "select":
            return np.asarray(np.where(*args))
        out = FUNCTIONS[instr.name](*(arithmetic.widen(a) for a in args))
    return arithmetic.convert(out, instr.dtype)


def constant(value: bool | int | float | None, dt: DType) -> Array:
    """A literal as a rank-0 array.

    Raises:
        DTypeError: the dtype has no such value.
    """
    if value is None:
        raise DTypeError("a const instruction carries no value")
    if dt.is_integer and (value != int(value) or not np.iinfo(dt.numpy).min <= value <= np.iinfo(dt.numpy).max):
        raise DTypeError(f"{value!r} is no value of {dt}; write the constant in a dtype that holds it")
    return np.asarray(value, dtype=dt.numpy)


def evaluate_program(program: ScalarProgram, inputs: Sequence[Array]) -> Array:
    """The value of a scalar program for each element of its broadcast inputs.

    Inputs have the program's input dtypes; the result has the broadcast shape and the program's dtype.

    Raises:
        DTypeError: an input has another dtype.

    >>> from cuvil.dtypes import float32
    >>> from cuvil.ops.body import build_program
    >>> square = build_program(lambda s, x: s.mul(x, x), (float32,), {})
    >>> evaluate_program(square, [np.array([1, 2, 3], np.float32)]).tolist()
    [1.0, 4.0, 9.0]
    """
    values = [np.asarray(x) for x in inputs]
    given = tuple(dtype(v.dtype) for v in values)
    if given != program.inputs:
        raise DTypeError(f"a scalar program over {program.inputs} does not take arrays of {given}")
    shape = np.broadcast_shapes(*(v.shape for v in values))
    for instr in program.instructions:
        values.append(run_instruction(instr, [values[a] for a in instr.args]))
    return np.broadcast_to(values[program.result], shape).copy()
