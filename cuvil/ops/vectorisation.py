"""Vectorisation over builders: ops run once on arrays with a leading axis of examples instead of once an example.

A :class:`Batched` value has the shape of one example; behind it stands an array with one axis more in front, or one
that all examples share. Each op has one rule, ``batch_rule(F, operands, batched, size, **params)``, which gets and
returns arrays: those of which ``batched`` says so have the axis in front, and all results have. Element-wise ops get
theirs from broadcasting, and compositions from what they are composed of; :mod:`cuvil.ops.batching` has the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cuvil.ops.builder import Builder
from cuvil.ops.differentiation import as_results, decomposition
from cuvil.ops.record import Array, Aval, OpRecord, ParamValue, ScalarBody, Shape
from cuvil.ops.registry import get
from cuvil.support.errors import UnsupportedError
from cuvil.symbolic import Dim

Value = Any


@dataclass(frozen=True, slots=True)
class Batched:
    """A value for each example: its own, along a leading axis, or one for all."""

    value: Value
    own: bool = False


class Examples(Builder[Batched]):
    """Runs ops on values for ``count`` examples at once."""

    def __init__(self, F: Builder[Any], count: Dim) -> None:
        self.F = F
        self.count = count

    def constant(self, value: Array) -> Batched:
        return Batched(self.F.constant(value))

    def aval(self, value: Batched) -> Aval:
        aval = self.F.aval(value.value)
        return Aval(aval.shape[1:], aval.dtype) if value.own else aval

    def emit(self, name: str, operands: Sequence[Batched | None], params: dict[str, ParamValue]) -> tuple[Batched, ...]:
        record = get(name)
        values = [None if o is None else o.value for o in operands]
        own = [o is not None and o.own for o in operands]
        if not any(own):
            return tuple(Batched(r) for r in self.F.emit(name, values, params))
        filled = record.fill_params(params)
        if record.batch_rule is not None:
            found = record.batch_rule(self.F, values, own, self.count, **filled)
        elif isinstance(record.body, ScalarBody):
            found = [self.F.op(name, *aligned(self.F, values, own), **filled)]
        elif (build := decomposition(record)) is not None:
            return as_results(build(self, *operands, **filled))
        else:
            raise UnsupportedError(
                f"{name} has no rule that runs it for many examples at once; call it outside of cuvil.vmap"
            )
        return tuple(Batched(r, True) for r in found)


def aligned(F: Builder[Any], values: Sequence[Value], own: Sequence[bool], rank: int | None = None) -> list[Value]:
    """Arrays whose axes broadcast as the examples' do: the leading axis stands before all axes of any example."""
    ranks = [len(F.shape(v)) - o for v, o in zip(values, own, strict=True)]
    most = max(ranks) if rank is None else rank
    out: list[Value] = []
    for v, o, r in zip(values, own, ranks, strict=True):
        shape = F.shape(v)
        out.append(F.reshape(v, (shape[0], *(1,) * (most - r), *shape[1:])) if o else v)
    return out


def with_axis(F: Builder[Any], value: Value, own: bool, size: Dim) -> Value:
    """An array with the leading axis: repeated along it where all examples share it."""
    return value if own else F.broadcast_to(value, (size, *F.shape(value)))


def example_shape(F: Builder[Any], value: Value, own: bool) -> Shape:
    """The shape of one example."""
    return F.shape(value)[1:] if own else F.shape(value)


def vectorisable(record: OpRecord) -> str:
    """How a record runs for many examples, or "" where it does not; completeness tests ask this.

    >>> from cuvil.ops.registry import get
    >>> vectorisable(get("exp")), vectorisable(get("sort")), vectorisable(get("tensordot"))
    ('scalar body', 'rule', 'decomposition')
    """
    if record.batch_rule is not None:
        return "rule"
    if isinstance(record.body, ScalarBody):
        return "scalar body"
    if not record.operands:
        return "no operands"
    return "decomposition" if decomposition(record) is not None else ""
