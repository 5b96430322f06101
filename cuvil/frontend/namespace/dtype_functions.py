"""Functions about dtypes: promotion, casts that lose nothing, ranges and kinds."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from cuvil.dtypes import DType, bfloat16, can_cast_safely
from cuvil.frontend.dispatch import asoperand, dtype_of, result_dtype
from cuvil.frontend.namespace.arguments import DTypeLike, as_dtype
from cuvil.frontend.source import at_user_line
from cuvil.support.errors import ArgumentError, DTypeError


def _is_dtype(x: Any) -> bool:
    return isinstance(x, (str, np.dtype, DType, type))


def result_type(*arrays_and_dtypes: Any) -> np.dtype[Any]:
    """The NumPy dtype that arrays, dtypes and Python numbers promote to.

    Raises:
        ArgumentError: no argument.

    >>> result_type("int8", "uint8").name, result_type("float32", 1).name
    ('int16', 'float32')
    """
    if not arrays_and_dtypes:
        raise ArgumentError(f"result_type needs at least one array or dtype{at_user_line()}")
    given = [np.zeros((), as_dtype(x).numpy) if _is_dtype(x) else asoperand(x) for x in arrays_and_dtypes]
    return result_dtype(*given).numpy


def can_cast(from_: Any, to: DTypeLike, /) -> bool:
    """Whether every value of a dtype (or of an array's) is exactly a value of another.

    >>> can_cast("int8", "int32"), can_cast("float32", "int32")
    (True, False)
    """
    return can_cast_safely(as_dtype(from_) if _is_dtype(from_) else dtype_of(asoperand(from_)), as_dtype(to))


class FloatInfo:
    """Precision and range of a float dtype, or of the parts of a complex one, as Python numbers.

    What the standard does not have (``nmant``, ``resolution``, ...) is NumPy's or ml_dtypes' finfo's.
    """

    def __init__(self, dt: DType) -> None:
        part = dt.part
        self._source: Any = ml_dtypes.finfo(part.numpy) if part is bfloat16 else np.finfo(part.numpy)
        self.bits: int = part.bits
        self.eps = float(self._source.eps)
        self.max = float(self._source.max)
        self.min = float(self._source.min)
        self.smallest_normal = self.tiny = float(self._source.smallest_normal)
        self.dtype: np.dtype[Any] = part.numpy

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._source, name)

    def __repr__(self) -> str:
        return f"finfo(dtype={self.dtype}, eps={self.eps}, min={self.min}, max={self.max})"


def finfo(type: Any, /) -> FloatInfo:
    """Precision and range of a float dtype (or of an array's); those of the parts of a complex one.

    Raises:
        DTypeError: a dtype of integers or bool.

    >>> finfo("float32").eps, finfo("complex64").bits
    (1.1920928955078125e-07, 32)
    """
    dt = as_dtype(type) if _is_dtype(type) else dtype_of(asoperand(type))
    if not (dt.is_float or dt.is_complex):
        raise DTypeError(f"finfo: {dt.name} is no float{at_user_line()}; use iinfo for integers")
    return FloatInfo(dt)


def iinfo(dtype: Any, /) -> Any:
    """Range of an integer dtype (or of an array's), as NumPy's iinfo object.

    >>> int(iinfo("int8").max)
    127
    """
    return np.iinfo((as_dtype(dtype) if _is_dtype(dtype) else dtype_of(asoperand(dtype))).numpy)


def isdtype(dtype: DTypeLike, kind: Any) -> bool:
    """Whether a dtype is, or is of the kind: "bool", "signed integer", "unsigned integer", "integral",
    "real floating", "complex floating", "numeric", or one of a tuple of these.

    Raises:
        ArgumentError: another kind.

    >>> isdtype("int8", "integral"), isdtype("float32", ("bool", "integral"))
    (True, False)
    """
    dt = as_dtype(dtype)
    if isinstance(kind, tuple):
        return any(isdtype(dt, k) for k in kind)
    kinds: dict[str, tuple[str, ...]] = {
        "bool": ("bool",),
        "signed integer": ("int",),
        "unsigned integer": ("uint",),
        "integral": ("int", "uint"),
        "real floating": ("float",),
        "complex floating": ("complex",),
        "numeric": ("int", "uint", "float", "complex"),
    }
    if isinstance(kind, str):
        if kind not in kinds:
            raise ArgumentError(f"isdtype: no kind {kind!r}; expected one of {', '.join(kinds)}{at_user_line()}")
        return dt.kind in kinds[kind]
    return dt is as_dtype(kind)
