"""How decompositions and rules write ops, whoever executes them: tracer, IR builder or NumPy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from cuvil.dtypes import DType, dtype, int64
from cuvil.ops.record import Array, Aval, ParamValue, Shape
from cuvil.ops.registry import get
from cuvil.symbolic import Dim, evaluate, product

V = TypeVar("V")


class Builder(ABC, Generic[V]):
    """Emits ops over some kind of value ``V``.

    Concrete builders implement :meth:`emit`, :meth:`constant` and :meth:`aval`; the rest is shorthand.
    Axes are non-negative here; callers normalise them first.
    """

    @abstractmethod
    def emit(self, name: str, operands: Sequence[V | None], params: dict[str, ParamValue]) -> tuple[V, ...]:
        """Emit one op by record name; all its results."""

    @abstractmethod
    def constant(self, value: Array) -> V:
        """A constant array."""

    @abstractmethod
    def aval(self, value: V) -> Aval:
        """Shape and dtype of a value."""

    def op(self, name: str, *operands: V | None, **params: ParamValue) -> V:
        """Emit an op that has one result."""
        (result,) = self.emit(name, operands, params)
        return result

    def shape(self, x: V) -> Shape:
        return self.aval(x).shape

    def dtype(self, x: V) -> DType:
        return self.aval(x).dtype

    def scalar(self, value: complex, dt: DType) -> V:
        """A rank-0 constant."""
        return self.constant(np.asarray(value, dtype=dt.numpy))

    def like(self, value: complex, x: V) -> V:
        """A rank-0 constant of the dtype of ``x``."""
        return self.scalar(value, self.dtype(x))

    def dim(self, d: Dim, dt: DType = int64) -> V:
        """The value of a dimension expression as a rank-0 array."""
        if isinstance(d, int):
            return self.scalar(d, dt)
        return self.cast(self.op("dim_value", dim=d), dt)

    def cast(self, x: V, dt: DType) -> V:
        return x if self.dtype(x) is dt else self.op("cast", x, dtype=dt)

    def add(self, a: V, b: V) -> V:
        return self.op("add", a, b)

    def sub(self, a: V, b: V) -> V:
        return self.op("subtract", a, b)

    def mul(self, a: V, b: V) -> V:
        return self.op("multiply", a, b)

    def div(self, a: V, b: V) -> V:
        return self.op("divide", a, b)

    def maximum(self, a: V, b: V) -> V:
        return self.op("maximum", a, b)

    def minimum(self, a: V, b: V) -> V:
        return self.op("minimum", a, b)

    def exp(self, x: V) -> V:
        return self.op("exp", x)

    def where(self, c: V, a: V, b: V) -> V:
        return self.op("where", c, a, b)

    def sum(self, x: V, axes: Sequence[int], keepdims: bool = False) -> V:
        return self.op("sum", x, axes=tuple(axes), keepdims=keepdims)

    def max(self, x: V, axes: Sequence[int], keepdims: bool = False) -> V:
        return self.op("max", x, axes=tuple(axes), keepdims=keepdims)

    def reshape(self, x: V, shape: Sequence[Dim]) -> V:
        return x if self.shape(x) == tuple(shape) else self.op("reshape", x, shape=tuple(shape))

    def transpose(self, x: V, axes: Sequence[int]) -> V:
        return x if tuple(axes) == tuple(range(len(axes))) else self.op("transpose", x, axes=tuple(axes))

    def broadcast_to(self, x: V, shape: Sequence[Dim]) -> V:
        return x if self.shape(x) == tuple(shape) else self.op("broadcast_to", x, shape=tuple(shape))

    def iota(self, shape: Sequence[Dim], axis: int, dt: DType = int64) -> V:
        """Each element is its own index along ``axis``."""
        return self.op("iota", shape=tuple(shape), axis=axis, dtype=dt)

    def matmul(self, a: V, b: V) -> V:
        return self.op("matmul", a, b)

    def size(self, x: V, axes: Sequence[int]) -> Dim:
        """Number of elements along axes."""
        shape = self.shape(x)
        return product(shape[a] for a in axes)


class NumpyBuilder(Builder[Any]):
    """Runs each op's reference at once; symbols in parameters are looked up in ``env``."""

    def __init__(self, env: dict[str, int] | None = None) -> None:
        self.env = env or {}

    def emit(self, name: str, operands: Sequence[Any], params: dict[str, ParamValue]) -> tuple[Any, ...]:
        record = get(name)
        filled = {k: concrete(v, self.env) for k, v in record.fill_params(params).items()}
        out = record.reference(*operands, **filled)
        return out if len(record.results) > 1 else (out,)

    def constant(self, value: Array) -> Any:
        return value

    def aval(self, value: Any) -> Aval:
        a = np.asarray(value)
        return Aval(a.shape, dtype(a.dtype))


def concrete(value: ParamValue, env: dict[str, int]) -> ParamValue:
    """A parameter with every symbolic dim replaced by its value in ``env``."""
    if isinstance(value, tuple):
        return tuple(concrete(v, env) for v in value)  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
    if value is None or isinstance(value, (bool, int, float, complex, str, DType)):
        return value
    return evaluate(value, env)
