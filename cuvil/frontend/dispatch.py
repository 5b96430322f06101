"""Applies ops: into the current trace when an operand is traced, at once with NumPy otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from xdsl.ir import SSAValue

from cuvil.dtypes import DType, complex64, dtype, float32, int64, promote, promote_weak
from cuvil.dtypes import bool_ as bool_dtype
from cuvil.frontend.source import at_user_line
from cuvil.frontend.tracer import Trace, Tracer, current_trace
from cuvil.ops.builder import Builder, NumpyBuilder
from cuvil.ops.record import Array, Aval, ParamValue
from cuvil.ops.registry import get
from cuvil.support.errors import ArgumentTypeError, CuvilError, DTypeError
from cuvil.symbolic import Expr

#: What cnp functions take: arrays, traced arrays, Python scalars, dims, nested lists of numbers.
ArrayLike: TypeAlias = Any

#: Python's numbers, each kind above those before it, and the dtype that each has on its own.
_WEAK = (bool, int, float, complex)
_WEAK_DTYPE: dict[type, DType] = {bool: bool_dtype, int: int64, float: float32, complex: complex64}


def asoperand(x: ArrayLike) -> Tracer | Array | Expr | bool | int | float | complex:
    """A value an op can take: NumPy array, tracer, symbolic dim or weak Python scalar.

    Raises:
        ArgumentTypeError: not array-like, or an array of a dtype that cuvil does not have.
    """
    if isinstance(x, (Tracer, Expr)) or type(x) in _WEAK:
        return x
    if isinstance(x, np.ndarray):
        if not x.dtype.isnative:
            return x.astype(x.dtype.newbyteorder("="))
        dtype(x.dtype)
        return x
    if isinstance(x, np.generic):
        return np.asarray(x)
    if isinstance(x, (list, tuple)):
        if any(isinstance(leaf, (Tracer, Expr)) for leaf in _leaves(x)):
            return _stack_nested(x)
        array = np.asarray(x)
        if array.dtype == np.float64:
            array = array.astype(np.float32)
        elif array.dtype == np.complex128:
            array = array.astype(np.complex64)
        dtype(array.dtype)
        return array
    if hasattr(x, "__array__") or hasattr(x, "__array_interface__") or hasattr(x, "__dlpack__"):
        array = np.asarray(x) if hasattr(x, "__array__") or hasattr(x, "__array_interface__") else np.from_dlpack(x)
        dtype(array.dtype)
        return array
    raise ArgumentTypeError(
        f"expected an array, a traced array or a number, got {type(x).__name__}: {str(x)[:60]!r}{at_user_line()}"
    )


def _leaves(x: Any) -> list[Any]:
    out: list[Any] = []
    stack = [x]
    while stack:
        item = stack.pop()
        if isinstance(item, (list, tuple)):
            stack.extend(item)  # pyright: ignore[reportUnknownArgumentType]
        else:
            out.append(item)
    return out


def _stack_nested(x: Any) -> Any:
    rows = [_stack_nested(v) if isinstance(v, (list, tuple)) else v for v in x]
    dt = result_dtype(*rows)
    builder = builder_for(*rows)
    values = [materialise(builder, r, dt) for r in rows]
    return wrap(builder, builder.op("stack", *values, axis=0))


def is_traced(x: Any) -> bool:
    """Whether a value is traced (or is a symbolic dim, which only has a value inside a trace)."""
    return isinstance(x, (Tracer, Expr))


def weak_type(x: Any) -> type | None:
    """The Python scalar type for weak promotion, or None for a real array."""
    if isinstance(x, Tracer):
        return x.weak
    if isinstance(x, Expr):
        return int
    return type(x) if type(x) in _WEAK else None


def dtype_of(x: Any) -> DType:
    """The dtype of an operand on its own (Python float: float32, int: int64, complex: complex64)."""
    weak = weak_type(x)
    if weak is not None:
        if weak is int and type(x) is int and not -(2**63) <= x < 2**63:
            raise DTypeError(
                f"the Python integer {x} does not fit int64, the dtype of integers{at_user_line()}; write it as a"
                " float, or as numpy.uint64(...) where that holds it"
            )
        return _WEAK_DTYPE[weak]
    return x.cuvil_dtype if isinstance(x, Tracer) else dtype(x.dtype)


def result_dtype(*operands: Any) -> DType:
    """The promoted dtype of operands, Python scalars being weak (NEP 50).

    Raises:
        DTypeError: a Python int that does not fit the arrays' integer dtype.
    """
    strong: DType | None = None
    weak: list[type] = []
    for x in operands:
        w = weak_type(x)
        if w is not None:
            weak.append(w)
        else:
            d = dtype_of(x)
            strong = d if strong is None else promote(strong, d)
    if strong is None:
        return _WEAK_DTYPE[max(weak, key=_WEAK.index)]
    for w in weak:
        strong = promote_weak(strong, w)
    if strong.is_integer:
        info = np.iinfo(strong.numpy)
        for x in operands:
            if type(x) is int and not int(info.min) <= x <= int(info.max):
                raise DTypeError(
                    f"the Python integer {x} does not fit {strong.name} ([{info.min}, {info.max}]){at_user_line()};"
                    f" cast the array first, e.g. x.astype('int64')"
                )
    return strong


def builder_for(*operands: Any) -> Builder[Any]:
    """The current trace's builder if any operand is traced, NumPy otherwise."""
    for x in operands:
        if is_traced(x):
            trace = current_trace()
            if trace is None:
                if isinstance(x, Tracer):
                    x.value_in(None)
                raise ArgumentTypeError(f"the symbolic dimension {x} has no value outside of a trace{at_user_line()}")
            return TraceBuilder(trace)
    return NumpyBuilder()


class TraceBuilder(Builder[SSAValue]):
    """Emits into a trace at the user's line."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    def emit(
        self, name: str, operands: Sequence[SSAValue | None], params: dict[str, ParamValue]
    ) -> tuple[SSAValue, ...]:
        return tuple(t.value_in(self.trace) for t in self.trace.emit(name, operands, params))

    def constant(self, value: Array) -> SSAValue:
        return self.trace.builder.constant(value)

    def aval(self, value: SSAValue) -> Aval:
        return self.trace.builder.aval(value)


def materialise(builder: Builder[Any], x: Any, dt: DType | None = None) -> Any:
    """An operand as a value of ``builder``, cast to ``dt`` (its own dtype by default)."""
    target = dt or dtype_of(x)
    if isinstance(builder, TraceBuilder):
        if isinstance(x, Tracer):
            if x.weak is int and target.is_integer and target is not int64:
                x.require_range(target)
            return builder.cast(x.value_in(builder.trace), target)
        if isinstance(x, Expr):
            return builder.dim(x, target)
        if isinstance(x, np.ndarray):
            array = x if dtype(x.dtype) is target else _cast_now(x, target)
            return builder.trace.capture(array)
        return builder.scalar(x, target)
    if isinstance(x, np.ndarray):
        return x if dtype(x.dtype) is target else _cast_now(x, target)
    return np.asarray(x, dtype=target.numpy)


def _cast_now(x: Array, dt: DType) -> Array:
    return get("cast").reference(x, dtype=dt)


def wrap(builder: Builder[Any], value: Any) -> Any:
    """What the user sees of a builder's value: a tracer or a NumPy array."""
    if isinstance(builder, TraceBuilder):
        return Tracer(builder.trace, value)
    return value


def apply(name: str, *operands: ArrayLike | None, **params: ParamValue) -> Any:
    """Apply one op in canonical form: operands are used with their own dtypes, axes are non-negative.

    Returns a traced array, a NumPy array, or a tuple of them for ops with several results.
    """
    given = [None if o is None else asoperand(o) for o in operands]
    # An iota over symbolic dims has no operands, and is traced all the same.
    builder = builder_for(*given, *(p for p in _leaves(tuple(params.values())) if isinstance(p, Expr)))
    values = [None if o is None else materialise(builder, o) for o in given]
    return emit(builder, name, values, params)


def emit(builder: Builder[Any], name: str, values: Sequence[Any], params: dict[str, ParamValue]) -> Any:
    """Emit an op on a builder's values and wrap what comes out, checking operands by the record's rules."""
    if isinstance(builder, NumpyBuilder):
        record = get(name)
        try:
            record.infer([None if v is None else builder.aval(v) for v in values], record.fill_params(params))
        except CuvilError as error:
            where = at_user_line()
            if where and error.args:
                error.args = (f"{error.args[0]}{where}", *error.args[1:])
            raise
    results = builder.emit(name, values, params)
    wrapped = [wrap(builder, r) for r in results]
    return tuple(wrapped) if len(wrapped) > 1 else wrapped[0]


def elementwise(name: str, *operands: ArrayLike, dt: DType | None = None, **params: ParamValue) -> Any:
    """Apply an element-wise op after promoting its operands to one dtype (or to ``dt``)."""
    given = [asoperand(o) for o in operands]
    target = dt or result_dtype(*given)
    builder = builder_for(*given)
    return emit(builder, name, [materialise(builder, o, target) for o in given], params)
