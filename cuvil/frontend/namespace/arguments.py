"""Arguments as NumPy takes them: axes, shapes, dims and dtypes, brought to the records' canonical form."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from cuvil.dtypes import DType, complex64, dtype, float16, float32, float64, promote, promote_weak
from cuvil.frontend.dispatch import (
    TraceBuilder,
    asoperand,
    builder_for,
    dtype_of,
    materialise,
    result_dtype,
    weak_type,
    wrap,
)
from cuvil.frontend.source import at_user_line
from cuvil.frontend.tracer import Tracer, current_trace
from cuvil.ops.builder import Builder, NumpyBuilder
from cuvil.ops.record import Array, Shape
from cuvil.support.errors import ArgumentError, ArgumentTypeError, AxisError, DTypeError, TracingError
from cuvil.symbolic import Dim, Expr, Truth, dim_max

#: What a function of the namespace returns: a traced array, or a NumPy array where nothing is traced.
AnyArray: TypeAlias = Any
#: One axis, several, or None for all of them.
Axes: TypeAlias = int | Sequence[int] | None
#: A size or a tuple of sizes; sizes may be symbolic.
ShapeLike: TypeAlias = Any
#: A dtype by name, as a NumPy dtype, a Python type or a cuvil dtype; None for the default.
DTypeLike: TypeAlias = Any


def operand(x: Any) -> Any:
    """A traced array or a NumPy array (scalars and lists become arrays of their default dtype)."""
    given = asoperand(x)
    if isinstance(given, (Tracer, np.ndarray)):
        return given
    if isinstance(given, Expr):
        builder = builder_for(given)
        return wrap(builder, materialise(builder, given))
    return np.asarray(given, dtype=dtype_of(given).numpy)


def shape_of(x: Any) -> Shape:
    """The shape of an operand."""
    return x.shape if isinstance(x, (Tracer, np.ndarray)) else ()


def creation_builder() -> Builder[Any]:
    """Where arrays come from that depend on no operand: the current trace, else NumPy."""
    trace = current_trace()
    return NumpyBuilder() if trace is None else TraceBuilder(trace)


def as_int(value: Any, what: str) -> int:
    """A Python integer.

    Raises:
        TracingError: a traced array.
        ArgumentTypeError: something else that is not an integer.

    >>> as_int(np.int8(3), "axis")
    3
    """
    if isinstance(value, Tracer):
        raise TracingError(
            f"{what} must be a Python integer, got the traced array {value!r}{at_user_line()}; pass it as a static"
            " argument (static_argnames=...)"
        )
    if isinstance(value, Expr):
        raise ArgumentTypeError(f"{what} must be a Python integer, got the symbolic dimension {value}{at_user_line()}")
    try:
        return operator.index(value)
    except TypeError:
        raise ArgumentTypeError(
            f"{what} must be an integer, got {type(value).__name__}: {value!r}{at_user_line()}"
        ) from None


def as_size(value: Any, what: str = "a size") -> Dim:
    """A dim: a Python integer or a symbolic dimension."""
    return value if isinstance(value, Expr) else as_int(value, what)


def as_shape(value: ShapeLike) -> Shape:
    """A tuple of dims from a size or a sequence of them.

    >>> as_shape(3), as_shape([2, 1])
    ((3,), (2, 1))
    """
    if isinstance(value, (tuple, list)):
        return tuple(as_size(v) for v in value)
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return tuple(as_size(v) for v in value)
    return (as_size(value),)


def one_axis(axis: Any, rank: int, name: str = "axis") -> int:
    """A non-negative axis.

    Raises:
        AxisError: outside ``[-rank, rank)``.

    >>> one_axis(-1, 3)
    2
    """
    a = as_int(axis, name)
    if not -rank <= a < rank:
        allowed = f"expected {-rank} <= {name} < {rank}" if rank else "it has no axis"
        raise AxisError(f"{name} {a} is outside an array of rank {rank}; {allowed}{at_user_line()}")
    return a + rank if a < 0 else a


def some_axes(axis: Any, rank: int, name: str = "axis") -> tuple[int, ...]:
    """Non-negative axes in the order given; None means all of them.

    Raises:
        AxisError: one is outside the rank or stands twice.

    >>> some_axes(None, 2), some_axes((-1, 0), 3)
    ((0, 1), (2, 0))
    """
    if axis is None:
        return tuple(range(rank))
    axes = (
        tuple(one_axis(a, rank, name) for a in axis)
        if isinstance(axis, (tuple, list))
        else (one_axis(axis, rank, name),)
    )
    if len(set(axes)) != len(axes):
        raise AxisError(f"an axis stands twice in {name}={axis}{at_user_line()}; expected distinct axes")
    return axes


def as_dtype(value: DTypeLike) -> DType:
    """A dtype; the error names the user's line.

    Raises:
        DTypeError: a dtype that cuvil does not have.

    >>> as_dtype("f4").name, as_dtype(int).name
    ('float32', 'int64')
    """
    try:
        return dtype(value)
    except DTypeError as error:
        raise DTypeError(f"{error}{at_user_line()}") from None


def dtype_or_none(value: DTypeLike) -> DType | None:
    """A dtype, or None where none is given."""
    return None if value is None else as_dtype(value)


def floating(dt: DType) -> DType:
    """The float in which NumPy's functions of analysis take a dtype.

    >>> from cuvil.dtypes import int8, int16, int32
    >>> [floating(d).name for d in (int8, int16, int32, float16)]
    ['float16', 'float32', 'float64', 'float16']
    """
    if dt.is_float or dt.is_complex:
        return dt
    return float16 if dt.bits == 8 else float32 if dt.bits == 16 else float64


def float_dtype(*operands: Any) -> DType:
    """The dtype in which NumPy's functions of analysis take these operands; float32 for Python numbers alone."""
    strong: DType | None = None
    for x in operands:
        if weak_type(x) is None:
            d = floating(dtype_of(x))
            strong = d if strong is None else promote(strong, d)
    # A Python float makes float64 of integers, and a Python int int64 of bool; floats keep theirs.
    weak = {weak_type(x) for x in operands} - {None}
    if strong is None:
        return complex64 if complex in weak else float32
    if complex in weak:
        return promote_weak(strong, complex)
    arrays = [dtype_of(x) for x in operands if weak_type(x) is None]
    if any(d.is_float or d.is_complex for d in arrays):
        return strong
    return float64 if float in weak or (int in weak and all(d.is_bool for d in arrays)) else strong


def cast(x: Any, dt: DType | None) -> Any:
    """An operand in another dtype; as it is where ``dt`` is None."""
    if dt is None or (weak_type(x) is None and dtype_of(x) is dt):
        return x
    builder = builder_for(x)
    return wrap(builder, materialise(builder, x, dt))


def together(*operands: Any, dt: DType | None = None) -> tuple[Any, ...]:
    """Operands in their promoted dtype (or ``dt``); Python scalars become arrays of it."""
    given = [asoperand(x) for x in operands]
    target = dt or result_dtype(*given)
    return tuple(cast(x, target) for x in given)


def as_scalar(value: Any, what: str) -> bool | int | float:
    """A Python number that is not complex.

    Raises:
        TracingError: a traced array.
        ArgumentTypeError: anything else.
    """
    if isinstance(value, Tracer):
        raise TracingError(
            f"{what} must be a Python number, got the traced array {value!r}{at_user_line()}; pass it as a static"
            " argument (static_argnames=...)"
        )
    if isinstance(value, (np.generic, np.ndarray)) and np.ndim(value) == 0:
        value = value.item()
    if not isinstance(value, (bool, int, float)):
        raise ArgumentTypeError(f"{what} must be a number, got {type(value).__name__}{at_user_line()}")
    return value


def choice(value: str, allowed: Sequence[str], what: str) -> str:
    """One of the names that a parameter takes.

    Raises:
        ArgumentError: another one.
    """
    if value not in allowed:
        raise ArgumentError(f"{what} must be one of {', '.join(map(repr, allowed))}; got {value!r}{at_user_line()}")
    return value


def evidently_nonneg(d: Dim) -> bool:
    """Whether a dim is known to be at least 0, by the current trace's scope where there is one."""
    if isinstance(d, int):
        return d >= 0
    trace = current_trace()
    if trace is not None:
        return trace.scope.prove(">=", d, 0) is Truth.YES
    return dim_max(d, 0) == d


def concrete_array(x: Any) -> Array | None:
    """The array, or None where it is traced."""
    return None if isinstance(x, Tracer) else np.asarray(x)
