"""Dtype rules of the ops that keep the dtype of their first operand, and the dtype that they compute in."""

from __future__ import annotations

from cuvil.dtypes import FLOATS, NUMERIC, DType, float32
from cuvil.ops.record import Params
from cuvil.ops.requirements import present
from cuvil.support.errors import DTypeError

DTypes = tuple[DType | None, ...]


def same_as_first(dtypes: DTypes, params: Params) -> tuple[DType, ...]:
    """The first operand's dtype; the others' do not matter."""
    return (present(dtypes[0]),)


def one_dtype(dtypes: DTypes, params: Params) -> tuple[DType, ...]:
    """All operands share one dtype, which is the result's.

    Raises:
        DTypeError: they differ.
    """
    first = present(dtypes[0])
    for other in dtypes:
        if other is not None and other is not first:
            raise DTypeError(f"operands of {first} and {other} do not mix here; cast them to one dtype")
    return (first,)


def one_numeric(dtypes: DTypes, params: Params) -> tuple[DType, ...]:
    """All operands share one integer or float dtype, which is the result's.

    Raises:
        DTypeError: they differ or are bool.
    """
    (first,) = one_dtype(dtypes, params)
    if first not in NUMERIC:
        raise DTypeError(f"expected integers or floats, got {first}; cast it first")
    return (first,)


def one_float(dtypes: DTypes, params: Params) -> tuple[DType, ...]:
    """All operands share one float dtype, which is the result's.

    Raises:
        DTypeError: they differ or are not floats.
    """
    (first,) = one_dtype(dtypes, params)
    if first not in FLOATS:
        raise DTypeError(f"expected floats, got {first}; cast it first")
    return (first,)


def compute_dtype(dt: DType) -> DType:
    """What an op computes in before its one rounding: float32 for halves, else the dtype itself.

    >>> from cuvil.dtypes import bfloat16, int8
    >>> compute_dtype(bfloat16), compute_dtype(int8)
    (cuvil.float32, cuvil.int8)
    """
    return float32 if dt.is_half else dt
