"""Dtype rules that records share: what an op accepts, and the dtypes of its results."""

from __future__ import annotations

from collections.abc import Callable

from cuvil.dtypes import DType, float32, float64, int64, uint64
from cuvil.ops.record import Params
from cuvil.ops.requirements import present
from cuvil.support.errors import DTypeError

DTypes = tuple[DType | None, ...]
DTypeRule = Callable[[DTypes, Params], tuple[DType, ...]]


def names(dtypes: tuple[DType, ...]) -> str:
    """Dtypes as an error lists them."""
    return ", ".join(d.name for d in dtypes)


def accept(op: str, dt: DType | None, accepted: tuple[DType, ...], what: str = "operand") -> DType:
    """A dtype that an op takes.

    Raises:
        DTypeError: it takes others.

    >>> accept("exp", float32, (float32, float64))
    cuvil.float32
    """
    given = present(dt)
    if given not in accepted:
        raise DTypeError(f"{op}: the {what} is {given}; expected one of {names(accepted)}; cast it first")
    return given


def shared(op: str, dtypes: DTypes, accepted: tuple[DType, ...]) -> DType:
    """The one dtype of all operands.

    Raises:
        DTypeError: they differ, or the op takes others.
    """
    first = accept(op, dtypes[0], accepted)
    if any(d is not first for d in dtypes):
        given = names(tuple(present(d) for d in dtypes))
        raise DTypeError(f"{op}: operands of {given} do not mix; cast them to one dtype first")
    return first


def uniform(op: str, accepted: tuple[DType, ...], result: DType | None = None) -> DTypeRule:
    """Operands of one accepted dtype; the result has it too, or is always ``result``."""

    def rule(dtypes: DTypes, params: Params) -> tuple[DType, ...]:
        dt = shared(op, dtypes, accepted)
        return (result or dt,)

    return rule


def sum_dtype(dt: DType) -> DType:
    """The dtype of a sum or product, as NumPy has it: integers widen to 64 bits.

    >>> from cuvil.dtypes import bool_, float16, int8
    >>> sum_dtype(bool_), sum_dtype(int8), sum_dtype(float16)
    (cuvil.int64, cuvil.int64, cuvil.float16)
    """
    if dt.kind == "uint":
        return uint64
    return dt if dt.is_float or dt.is_complex else int64


def sum_accumulator(dt: DType) -> DType:
    """The dtype in which sums and products run: float32 for halves, else the dtype of the result."""
    return float32 if dt.is_half else sum_dtype(dt)


def mean_dtype(dt: DType) -> DType:
    """The dtype of a mean or variance: floats keep theirs, everything else gives float64."""
    return dt if dt.is_float or dt.is_complex else float64


def mean_accumulator(dt: DType) -> DType:
    """The dtype in which means and variances are computed: float32 for halves, float64 for integers."""
    return float32 if dt.is_half else mean_dtype(dt)
