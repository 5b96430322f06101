"""Derivatives of reads and writes at indices: they are linear in the arrays, and the indices have no tangent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cuvil.dtypes import int64
from cuvil.ops.builder import Builder
from cuvil.ops.differentiation import Tangent, no_derivative
from cuvil.ops.record import Aval, ParamValue, Shape
from cuvil.ops.transposes import Cotangents, Operands, Value, accumulating, gathered_back, unbroadcast, zeros
from cuvil.symbolic import product


def read_jvp(name: str) -> Callable[..., Sequence[Value | None]]:
    """The same read of the tangents; an element that is the fill value does not change."""

    def jvp(
        F: Builder[Any], operands: Sequence[Any], results: Sequence[Any], tangents: Sequence[Any], **params: ParamValue
    ) -> Sequence[Value | None]:
        return [F.op(name, tangents[0], *operands[1:], **{**params, "fill": 0})]

    return jvp


def take(F: Builder[Any], c: Value, operands: Operands, *, axis: int, mode: str, fill: Any) -> Cotangents:
    x, indices = operands
    return [gathered_back(F, c, axis, x.aval.shape[axis], indices, mode), None]


def take_along_axis(F: Builder[Any], c: Value, operands: Operands, *, axis: int, mode: str, fill: Any) -> Cotangents:
    x, indices = operands
    out = F.shape(c)
    # Everything but the indexed axis is read at its own place; size 1 against several is summed in the end.
    places = [
        F.cast(indices, int64) if a == axis else F.iota(tuple(d if b == a else 1 for b in range(len(out))), a)
        for a, d in enumerate(out)
    ]
    shape = tuple(x.aval.shape[axis] if a == axis else d for a, d in enumerate(out))
    updates = accumulating(F, c)
    added = F.op("scatter", zeros(F, Aval(shape, F.dtype(updates))), updates, *places, op="add", mode=mode)
    return [unbroadcast(F, F.cast(added, F.dtype(c)), x.aval.shape), None]


def gather(F: Builder[Any], c: Value, operands: Operands, *, mode: str, fill: Any) -> Cotangents:
    x, *indices = operands
    updates = accumulating(F, c)
    empty = zeros(F, Aval(x.aval.shape, F.dtype(updates)))
    added = F.op("scatter", empty, updates, *indices, op="add", mode=mode)
    return [F.cast(added, F.dtype(c)), *(None for _ in indices)]


# ---------------------------------------------------------------------------------------------- scatter


def scatter_jvp(
    F: Builder[Any], operands: Sequence[Any], results: Sequence[Any], tangents: Sequence[Any], *, op: str, mode: str
) -> Sequence[Value | None]:
    x, updates, *indices = operands
    tx, tu = tangents[:2]
    if op in ("set", "add"):
        if tu is None and op == "add":
            return [tx]
        left, right = (zeros(F, F.aval(o)) if t is None else t for o, t in ((x, tx), (updates, tu)))
        return [F.op("scatter", left, right, *indices, op=op, mode=mode)]
    if op == "mul":
        total = None if tx is None else F.op("scatter", tx, updates, *indices, op="mul", mode=mode)
        if tu is not None:
            if any(F.shape(i) for i in indices):
                raise no_derivative("scatter", "under op='mul' where an index repeats, each update scales the others")
            before = F.op("gather", x, *indices, mode=mode, fill=0)
            added = _added(F, x, F.mul(tu, before), indices, mode)
            total = added if total is None else F.add(total, added)
        return [total]
    return [_extreme_tangent(F, x, updates, indices, results[0], tx, tu, mode)]


def _added(F: Builder[Any], x: Value, updates: Value, indices: Sequence[Value], mode: str) -> Value:
    return F.op("scatter", zeros(F, F.aval(x)), updates, *indices, op="add", mode=mode)


def _extreme_tangent(
    F: Builder[Any], x: Value, updates: Value, indices: Sequence[Value], out: Value, tx: Value | None,
    tu: Value | None, mode: str,
) -> Value:  # fmt: skip
    """What equals the extreme shares its tangent, as in the reductions."""
    dt = F.dtype(x)
    there = F.op("gather", out, *indices, mode=mode, fill=0)
    from_updates = F.cast(F.op("equal", updates, there), dt)
    from_x = F.cast(F.op("equal", x, out), dt)
    count = F.add(from_x, _added(F, x, from_updates, indices, mode))
    total: Value | None = None if tx is None else F.mul(tx, from_x)
    if tu is not None:
        added = _added(F, x, F.mul(tu, from_updates), indices, mode)
        total = added if total is None else F.add(total, added)
    # The count is at least 1 where anything is equal to the result, and a NaN is equal to nothing.
    return F.div(total, count)


def scatter(F: Builder[Any], c: Value, operands: Operands, *, op: str, mode: str) -> Cotangents:
    x, updates, *indices = operands
    none = [None] * len(indices)
    if op == "mul":
        return [F.op("scatter", c, updates, *indices, op="mul", mode=mode), None, *none]
    from_x: Value | None = None
    if isinstance(x, Tangent):
        from_x = c
        if op == "set":
            from_x = F.op("scatter", c, F.scalar(0, F.dtype(c)), *indices, op="set", mode=mode)
    from_updates: Value | None = None
    if isinstance(updates, Tangent):
        read = F.op("gather", c, *indices, mode=mode, fill=0)
        if op == "set":
            read = _of_last_writers(F, read, indices, F.shape(c), mode)
        from_updates = unbroadcast(F, read, updates.aval.shape)
    return [from_x, from_updates, *none]


def _of_last_writers(F: Builder[Any], read: Value, indices: Sequence[Value], shape: Shape, mode: str) -> Value:
    """Zero where a later update took the place: among equal indices the last one stays."""
    lead = F.shape(read)[: len(F.shape(read)) - (len(shape) - len(indices))]
    if not lead:
        return read
    number = F.reshape(F.iota((product(lead),), 0), lead)
    nobody = F.broadcast_to(F.scalar(-1, int64), shape[: len(indices)])
    writers = F.op("scatter", nobody, number, *indices, op="set", mode=mode)
    stayed = F.op("equal", F.op("gather", writers, *indices, mode=mode, fill=-1), number)
    stayed = F.reshape(stayed, (*lead, *(1,) * (len(shape) - len(indices))))
    return F.where(stayed, read, F.like(0, read))
