"""Creation of arrays; inside a trace sizes may be symbolic and the result is traced. Floats default to float32."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cuvil.dtypes import DType, complex64, float32, int64
from cuvil.frontend.dispatch import ArrayLike, TraceBuilder, asoperand, dtype_of, materialise, wrap
from cuvil.frontend.namespace.arguments import (
    AnyArray,
    DTypeLike,
    ShapeLike,
    as_dtype,
    as_int,
    as_scalar,
    as_shape,
    as_size,
    cast,
    choice,
    creation_builder,
    dtype_or_none,
    operand,
    shape_of,
)
from cuvil.frontend.namespace.elementwise import add, multiply, subtract
from cuvil.frontend.namespace.inspection import check_device
from cuvil.frontend.namespace.manipulation import broadcast_to
from cuvil.frontend.namespace.slicing import reshaped
from cuvil.frontend.source import at_user_line
from cuvil.frontend.tracer import Tracer
from cuvil.ops.record import Shape
from cuvil.support.errors import ArgumentError, ArgumentTypeError
from cuvil.symbolic import Dim, Expr, ceildiv, dim_max


def asarray(x: ArrayLike, /, dtype: DTypeLike = None, *, copy: bool | None = None, device: Any = None) -> AnyArray:
    """An array of a number, nested lists, an array or a traced array. Arrays keep their dtype.

    Python floats become float32 and ints int64. Inside a trace the result is traced, so that a NumPy array can be
    sliced by a symbolic size: ``asarray(table)[:x.shape[0]]``.

    Raises:
        DTypeError: no such dtype.

    >>> asarray([1.0, 2.0]).dtype.name, asarray([1, 2], "int8").tolist()
    ('float32', [1, 2])
    """
    check_device(device)
    target = dtype_or_none(dtype)
    if isinstance(x, (list, tuple)) and target is not None and not _has_traced(x):
        # Straight to the dtype that is asked for: through float32 large integers and float64 would lose digits.
        given = np.array(x, dtype=target.numpy)
    elif target is not None and type(x) in (bool, int, float, complex):
        given = cast(np.asarray(x), target)
    else:
        given = cast(operand(x), target)
    builder = creation_builder()
    if isinstance(builder, TraceBuilder):
        return wrap(builder, materialise(builder, given))
    return np.array(given) if copy else given


def array(x: ArrayLike, /, dtype: DTypeLike = None, *, copy: bool = True) -> AnyArray:
    """:func:`asarray` that copies.

    >>> array([[1, 2], [3, 4]]).shape
    (2, 2)
    """
    return asarray(x, dtype, copy=copy)


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> AnyArray:
    """The array of another library, without a copy unless one is asked for.

    Raises:
        ArgumentTypeError: an object without ``__dlpack__``.

    >>> from_dlpack(np.ones(2)).tolist()
    [1.0, 1.0]
    """
    check_device(device)
    if not hasattr(x, "__dlpack__"):
        raise ArgumentTypeError(f"from_dlpack takes an array with __dlpack__, got {type(x).__name__}{at_user_line()}")
    return asarray(np.from_dlpack(x, copy=copy))


def _has_traced(x: Any) -> bool:
    return any(_has_traced(v) for v in x) if isinstance(x, (list, tuple)) else isinstance(x, (Tracer, Expr))


def full(shape: ShapeLike, fill_value: ArrayLike, dtype: DTypeLike = None, *, device: Any = None) -> AnyArray:
    """An array of one value; the dtype is the value's (float32 or int64 for Python numbers) unless given.

    Raises:
        ShapeError: the value does not broadcast to the shape.

    >>> full((2,), 7).tolist()
    [7, 7]
    """
    check_device(device)
    value = asoperand(fill_value)
    builder = creation_builder()
    target = dtype_or_none(dtype) or dtype_of(value)
    out = broadcast_to(wrap(builder, materialise(builder, value, target)), as_shape(shape))
    return out.copy() if isinstance(out, np.ndarray) and out.base is not None else out


def zeros(shape: ShapeLike, dtype: DTypeLike = None, *, device: Any = None) -> AnyArray:
    """Zeros, float32 by default.

    >>> zeros((2,)).tolist()
    [0.0, 0.0]
    """
    return full(shape, 0, dtype or float32, device=device)


def ones(shape: ShapeLike, dtype: DTypeLike = None, *, device: Any = None) -> AnyArray:
    """Ones, float32 by default.

    >>> ones((2,), "int8").tolist()
    [1, 1]
    """
    return full(shape, 1, dtype or float32, device=device)


def empty(shape: ShapeLike, dtype: DTypeLike = None, *, device: Any = None) -> AnyArray:
    """An array whose elements carry no meaning (they are zeros), float32 by default.

    >>> empty((2, 3)).shape
    (2, 3)
    """
    return full(shape, 0, dtype or float32, device=device)


def full_like(
    x: ArrayLike, /, fill_value: ArrayLike, dtype: DTypeLike = None, *, shape: ShapeLike = None, device: Any = None
) -> AnyArray:
    """One value in the shape and dtype of ``x``.

    >>> full_like([1, 2], 5).tolist()
    [5, 5]
    """
    given = operand(x)
    return full(shape_of(given) if shape is None else shape, fill_value, dtype or dtype_of(given), device=device)


def zeros_like(x: ArrayLike, /, dtype: DTypeLike = None, *, shape: ShapeLike = None, device: Any = None) -> AnyArray:
    """Zeros in the shape and dtype of ``x``.

    >>> zeros_like([1, 2]).tolist()
    [0, 0]
    """
    return full_like(x, 0, dtype, shape=shape, device=device)


def ones_like(x: ArrayLike, /, dtype: DTypeLike = None, *, shape: ShapeLike = None, device: Any = None) -> AnyArray:
    """Ones in the shape and dtype of ``x``.

    >>> ones_like([3, 4]).tolist()
    [1, 1]
    """
    return full_like(x, 1, dtype, shape=shape, device=device)


def empty_like(x: ArrayLike, /, dtype: DTypeLike = None, *, shape: ShapeLike = None, device: Any = None) -> AnyArray:
    """An array in the shape and dtype of ``x`` whose elements carry no meaning.

    >>> empty_like([3, 4]).shape
    (2,)
    """
    return full_like(x, 0, dtype, shape=shape, device=device)


def iota(shape: Shape, axis: int, dt: DType = int64) -> AnyArray:
    """Each element is its own index along ``axis``."""
    builder = creation_builder()
    return wrap(builder, builder.op("iota", shape=shape, axis=axis, dtype=dt))


def arange(start: Any, /, stop: Any = None, step: Any = 1, dtype: DTypeLike = None, *, device: Any = None) -> AnyArray:
    """Numbers from ``start`` (0) up to ``stop``, ``step`` apart; int64 for integers, else float32.

    Bounds may be symbolic integers inside a trace.

    Raises:
        ArgumentError: a step of 0.
        TracingError: a traced bound: the size of the result would not be known.

    >>> arange(3).tolist(), arange(1, 2, 0.5).dtype.name
    ([0, 1, 2], 'float32')
    """
    check_device(device)
    low, high = (0, start) if stop is None else (start, stop)
    if isinstance(low, Expr) or isinstance(high, Expr):
        return _symbolic_range(as_size(low, "start"), as_size(high, "stop"), as_int(step, "step"), dtype)
    first, last, by = (as_scalar(v, what) for v, what in ((low, "start"), (high, "stop"), (step, "step")))
    if by == 0:
        raise ArgumentError(f"arange: the step is 0{at_user_line()}; expected a positive or negative step")
    integers = not any(isinstance(v, float) for v in (first, last, by))
    target = dtype_or_none(dtype) or (int64 if integers else float32)
    count = max(math.ceil((last - first) / by), 0)
    if isinstance(creation_builder(), TraceBuilder) and integers:
        return _steps(int(first), count, int(by), target)
    return cast(np.arange(first, last, by), target)


def _symbolic_range(low: Dim, high: Dim, step: int, dtype: DTypeLike) -> AnyArray:
    if step == 0:
        raise ArgumentError(f"arange: the step is 0{at_user_line()}; expected a positive or negative step")
    distance = high - low if step > 0 else low - high
    count = dim_max(ceildiv(distance, abs(step)), 0)
    return _steps(low, count, step, dtype_or_none(dtype) or int64)


def _steps(first: Dim, count: Dim, step: int, dt: DType) -> AnyArray:
    index = iota((count,), 0)
    if step != 1:
        index = multiply(index, step)
    if not (isinstance(first, int) and first == 0):
        index = add(index, first)
    return cast(index, dt)


def linspace(
    start: ArrayLike, stop: ArrayLike, /, num: int = 50, *, endpoint: bool = True, dtype: DTypeLike = None,
    device: Any = None,
) -> AnyArray:  # fmt: skip
    """``num`` evenly spaced numbers from start to stop, float32 by default; without the last one if not ``endpoint``.

    Bounds are Python numbers or rank-0 arrays.

    Raises:
        ArgumentError: a negative number.

    >>> linspace(0.0, 1.0, 3).tolist()
    [0.0, 0.5, 1.0]
    """
    check_device(device)
    count = as_int(num, "num")
    if count < 0:
        raise ArgumentError(f"linspace: num is {count}{at_user_line()}; expected 0 or more")
    complexes = any(dtype_of(asoperand(v)).is_complex for v in (start, stop))
    target = dtype_or_none(dtype) or (complex64 if complexes else float32)
    if not any(isinstance(asoperand(v), (Tracer, Expr)) for v in (start, stop)):
        first, last = (complex(v) if complexes else as_scalar(v, "a bound of linspace") for v in (start, stop))  # type: ignore[arg-type]
        return cast(np.linspace(first, last, count, endpoint=bool(endpoint)), target)
    low, high = cast(asoperand(start), target), cast(asoperand(stop), target)
    fractions = np.linspace(0.0, 1.0, count, endpoint=bool(endpoint)).astype(target.numpy)
    # Both ends weigh in so that the last one is met exactly.
    return add(multiply(low, subtract(1.0, fractions)), multiply(high, fractions))


def eye(n_rows: Any, n_cols: Any = None, /, k: int = 0, dtype: DTypeLike = None, *, device: Any = None) -> AnyArray:
    """Ones on diagonal ``k`` of a matrix, zeros elsewhere; float32 by default.

    >>> eye(2).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    check_device(device)
    rows = as_size(n_rows)
    cols = rows if n_cols is None else as_size(n_cols)
    builder = creation_builder()
    dt = as_dtype(dtype or float32)
    out = builder.op("eye", rows=rows, cols=cols, k=as_int(k, "k"), dtype=dt.part)
    return wrap(builder, builder.cast(out, dt))


def identity(n: Any, dtype: DTypeLike = None) -> AnyArray:
    """The identity matrix of ``n`` rows.

    >>> identity(2).shape
    (2, 2)
    """
    return eye(n, dtype=dtype)


def meshgrid(*arrays: ArrayLike, indexing: str = "xy") -> list[AnyArray]:
    """Coordinate arrays from vectors: each broadcast over the axes of the others; "xy" exchanges the first two axes.

    Raises:
        ArgumentError: another ``indexing``, or an array of rank above 1.

    >>> [m.tolist() for m in meshgrid([1, 2], [3])]
    [[[1, 2]], [[3, 3]]]
    """
    order = choice(indexing, ("xy", "ij"), "meshgrid: indexing")
    given = [operand(x) for x in arrays]
    if any(len(shape_of(x)) > 1 for x in given):
        raise ArgumentError(f"meshgrid takes vectors{at_user_line()}; flatten the arrays first")
    lengths: list[Dim] = [shape_of(x)[0] if shape_of(x) else 1 for x in given]
    places = list(range(len(given)))
    if order == "xy" and len(given) > 1:
        places[0], places[1] = 1, 0
    target: list[Dim] = [1] * len(given)
    for place, n in zip(places, lengths, strict=True):
        target[place] = n
    out: list[AnyArray] = []
    for place, x, n in zip(places, given, lengths, strict=True):
        unit = tuple(n if a == place else 1 for a in range(len(given)))
        out.append(broadcast_to(reshaped(x, unit), tuple(target)))
    return out
