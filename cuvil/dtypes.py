"""Data types: the lattice, promotion (NumPy 2 rules) and the short names used in IR text."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from cuvil.support.errors import DTypeError


@dataclass(frozen=True, eq=False)
class DType:
    """One element type. Instances are singletons: compare with ``is`` or ``==``.

    Attributes:
        name: long name as NumPy spells it, e.g. ``"float32"``.
        short: name in IR text and generated C, e.g. ``"f32"``.
        kind: ``"bool"``, ``"int"``, ``"uint"``, ``"float"`` or ``"complex"``.
        bits: width of one element in memory, in bits.
        numpy: the NumPy (or ml_dtypes) dtype.
    """

    name: str
    short: str
    kind: str
    bits: int
    numpy: np.dtype[Any]

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_complex(self) -> bool:
        """A pair of floats; ``is_float`` is False of it."""
        return self.kind == "complex"

    @property
    def part(self) -> DType:
        """The float dtype of the real and the imaginary part of a complex dtype; any other dtype itself."""
        return {64: float32, 128: float64}[self.bits] if self.is_complex else self

    @property
    def is_integer(self) -> bool:
        """Signed or unsigned integer; bool is not one."""
        return self.kind in ("int", "uint")

    @property
    def is_signed(self) -> bool:
        return self.kind in ("int", "float", "complex")

    @property
    def is_bool(self) -> bool:
        return self.kind == "bool"

    @property
    def is_half(self) -> bool:
        """A 16-bit float: held in float32 registers, rounded after each instruction."""
        return self.kind == "float" and self.bits == 16

    def __repr__(self) -> str:
        return f"cuvil.{self.name}"

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return (dtype, (self.name,))


bool_ = DType("bool", "bool", "bool", 8, np.dtype(np.bool_))
int8 = DType("int8", "i8", "int", 8, np.dtype(np.int8))
int16 = DType("int16", "i16", "int", 16, np.dtype(np.int16))
int32 = DType("int32", "i32", "int", 32, np.dtype(np.int32))
int64 = DType("int64", "i64", "int", 64, np.dtype(np.int64))
uint8 = DType("uint8", "u8", "uint", 8, np.dtype(np.uint8))
uint16 = DType("uint16", "u16", "uint", 16, np.dtype(np.uint16))
uint32 = DType("uint32", "u32", "uint", 32, np.dtype(np.uint32))
uint64 = DType("uint64", "u64", "uint", 64, np.dtype(np.uint64))
float16 = DType("float16", "f16", "float", 16, np.dtype(np.float16))
bfloat16 = DType("bfloat16", "bf16", "float", 16, np.dtype(ml_dtypes.bfloat16))
float32 = DType("float32", "f32", "float", 32, np.dtype(np.float32))
float64 = DType("float64", "f64", "float", 64, np.dtype(np.float64))
complex64 = DType("complex64", "c64", "complex", 64, np.dtype(np.complex64))
complex128 = DType("complex128", "c128", "complex", 128, np.dtype(np.complex128))

#: The dtypes of kernels and of the scalar instruction set. Complex values become pairs of these before fusion.
ALL: tuple[DType, ...] = (
    bool_, int8, int16, int32, int64, uint8, uint16, uint32, uint64,
    float16, bfloat16, float32, float64,
)  # fmt: skip
SIGNED = (int8, int16, int32, int64)
UNSIGNED = (uint8, uint16, uint32, uint64)
INTEGERS = SIGNED + UNSIGNED
FLOATS = (float16, bfloat16, float32, float64)
NUMERIC = INTEGERS + FLOATS
COMPLEX = (complex64, complex128)
#: Every dtype that an array can have.
EVERY = ALL + COMPLEX

_BY_NAME = {d.name: d for d in EVERY}
_BY_SHORT = {d.short: d for d in EVERY}
_BY_NUMPY = {d.numpy: d for d in EVERY}
_PYTHON: dict[type, DType] = {bool: bool_, int: int64, float: float32, complex: complex64}


def dtype(value: object) -> DType:
    """The :class:`DType` meant by a name, NumPy dtype, Python type or DType.

    Python ``float`` is float32, ``int`` is int64 and ``complex`` is complex64, cuvil's creation defaults.

    Raises:
        DTypeError: the value names no dtype that cuvil has.

    >>> dtype("bfloat16")
    cuvil.bfloat16
    >>> dtype(np.int8).short
    'i8'
    """
    if isinstance(value, DType):
        return value
    if isinstance(value, str):
        found = _BY_NAME.get(value) or _BY_SHORT.get(value)
        if found is not None:
            return found
    if isinstance(value, type) and value in _PYTHON:
        return _PYTHON[value]
    try:
        return _BY_NUMPY[np.dtype(value)]  # type: ignore[call-overload]
    except (TypeError, KeyError):
        names = ", ".join(d.name for d in EVERY)
        raise DTypeError(f"no such dtype: {value!r}; expected one of {names}") from None


@cache
def promote(a: DType, b: DType) -> DType:
    """The dtype of ``a op b`` for two arrays, as NumPy 2 with ml_dtypes gives it.

    bfloat16 behaves as float16 does with other types; the two together give float32.

    >>> promote(float16, int32)
    cuvil.float64
    >>> promote(bfloat16, float16)
    cuvil.float32
    """
    if a is b:
        return a
    if bfloat16 in (a, b):
        other = b if a is bfloat16 else a
        if other is float16:
            return float32
        if other.is_float or other.is_complex:
            return other
        as_half = promote(float16, other)
        return bfloat16 if as_half is float16 else as_half
    return _BY_NUMPY[np.promote_types(a.numpy, b.numpy)]


def promote_weak(array: DType, scalar: type) -> DType:
    """The dtype of ``array op scalar`` where the scalar is a Python bool, int, float or complex (NEP 50).

    >>> promote_weak(int32, float), promote_weak(float16, int), promote_weak(bool_, int)
    (cuvil.float64, cuvil.float16, cuvil.int64)
    """
    if scalar is bool:
        return array
    if scalar is int:
        return int64 if array.is_bool else array
    if scalar is float:
        return array if array.is_float or array.is_complex else float64
    if scalar is complex:
        return array if array.is_complex else complex64 if array.is_float and array.bits < 64 else complex128
    raise DTypeError(f"not a Python scalar type: {scalar!r}; expected bool, int, float or complex")


def complex_of(dt: DType) -> DType:
    """The complex dtype whose parts hold a float dtype's values; a complex dtype itself.

    >>> complex_of(float16), complex_of(float64)
    (cuvil.complex64, cuvil.complex128)
    """
    if dt.is_complex:
        return dt
    return complex128 if dt is float64 else complex64


def can_cast_safely(a: DType, b: DType) -> bool:
    """Whether every value of ``a`` is exactly a value of ``b``."""
    return promote(a, b) is b
