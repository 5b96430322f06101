"""Chooses layouts: convolutions and what lies between them compute with channels last, transposes stay at the edges.

A convolution is fastest on [N, spatial..., C] (see docs/design/layout.md). The pass walks the function once and plans
for each op that reads a value whose channels will be last how it computes on that value as it lies: the result is then
a permutation of what it was, too. Ops that are connected in this way decide together: the gain of their convolutions
is weighed against the transposes at the edges. A second walk writes the ops anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue

from cuvil.dtypes import float32
from cuvil.ir.builder import IRBuilder
from cuvil.ir.control import blocks_of
from cuvil.ir.dialect import ConstantOp, TensorOp, aval_of
from cuvil.ops.channels_last import WINOGRAD_TILES, as_conv_params
from cuvil.ops.record import ReduceBody, ScalarBody, Shape
from cuvil.symbolic import Dim, ceildiv, evaluate, exact_div, free_symbols, product

#: ``perm`` of a value v: it is computed as ``transpose(v, perm)``.
Perm = tuple[int, ...]

#: What a transpose costs an element, in multiply-adds of a vector's lane: a strided read and another trip to memory.
_MOVE = 4.0
#: Multiply-adds per output element from which on a convolution gains nothing more, and what each gains.
_DEEP, _GAIN = 64, 1 / 8
#: Winograd's form is weighed in multiply-adds: reading one of its weights from memory, transforming one of its
#: elements, the part of the plain form's cost that it must stay under, and channels that do not fill its vectors.
_WEIGHT, _TRANSFORM, _WORTH, _NARROW = 16.0, 10.0, 0.9, 16
#: A multiply-add of a product in the unit of :data:`_MOVE`: a transpose takes the time of 64 an element.
_MULTIPLY_ADD = _MOVE / 64
#: What a size that is not known counts as.
_TYPICAL = 32


def identity(rank: int) -> Perm:
    """The permutation that changes nothing."""
    return tuple(range(rank))


def channels_last_perm(rank: int) -> Perm:
    """[N, C, spatial...] to [N, spatial..., C].

    >>> channels_last_perm(4)
    (0, 2, 3, 1)
    """
    return (0, *range(2, rank), 1)


def inverse(perm: Perm) -> Perm:
    """The permutation that undoes one.

    >>> inverse((0, 2, 3, 1))
    (0, 3, 1, 2)
    """
    return tuple(perm.index(k) for k in range(len(perm)))


def moves_units_only(shape: Shape, perm: Perm) -> bool:
    """Whether a transpose keeps the order of all axes that are longer than 1, so that it is a reshape."""
    wide = [a for a in perm if shape[a] != 1]
    return wide == sorted(wide)


@dataclass(frozen=True)
class Plan:
    """How an op computes on permuted values.

    Attributes:
        wants: the permutation in which each operand is read, None where it is read as it is.
        perm: the permutation of the result.
        emit: makes the result's new value of the new operands.
    """

    wants: tuple[Perm | None, ...]
    perm: Perm
    emit: Callable[[IRBuilder, Sequence[SSAValue]], SSAValue]


Planner = Callable[[TensorOp, Sequence[Perm | None]], Plan | None]


# -------------------------------------------------------------------------------------------- plans by op


def _plan_conv(op: TensorOp, perms: Sequence[Perm | None], relaxed: bool) -> Plan | None:
    x = aval_of(op.operands[0])
    if not x.dtype.is_float or not 3 <= x.rank <= 5:
        return None
    last = channels_last_perm(x.rank)
    present = [a is not None for a in op.arguments]
    tile = winograd(op)[0] if relaxed else None

    def emit(F: IRBuilder, given: Sequence[SSAValue]) -> SSAValue:
        it = iter(given)
        arguments = [next(it) if p else None for p in present]
        if tile is None:
            return F.op("conv_channels_last", *arguments, **op.params)
        return F.op("conv_winograd", *arguments, padding=op.params["padding"], tile=tile)

    return Plan((last, *(None for _ in op.operands[1:])), last, emit)


def _plan_elementwise(op: TensorOp, perms: Sequence[Perm | None]) -> Plan | None:
    shape = aval_of(op.results[0]).shape
    full = [k for k, o in enumerate(op.operands) if aval_of(o).shape == shape]
    ranked = [k for k, o in enumerate(op.operands) if aval_of(o).rank == len(shape)]
    perm = next((p for k in full or ranked if (p := perms[k]) is not None), None)
    if perm is None:
        return None

    def emit(F: IRBuilder, given: Sequence[SSAValue]) -> SSAValue:
        return F.op(op.record.name, *given, **op.params)

    return Plan(tuple(_aligned(aval_of(o).shape, perm) for o in op.operands), perm, emit)


def _aligned(shape: Shape, perm: Perm) -> Perm | None:
    """How a broadcast operand is permuted; None where nothing but its own single elements would move."""
    return None if all(d == 1 for d in shape) and len(shape) <= len(perm) else perm


def _plan_reduction(op: TensorOp, perms: Sequence[Perm | None]) -> Plan | None:
    perm = perms[0]
    if perm is None:
        return None
    axes: tuple[int, ...] = op.params["axes"]
    moved = tuple(j for j, a in enumerate(perm) if a in axes)
    if op.params["keepdims"]:
        result = perm
    else:
        kept = [a for a in range(len(perm)) if a not in axes]
        result = tuple(kept.index(a) for a in perm if a not in axes)
    return _same_op(op, perm, result, axes=moved)


def _same_op(op: TensorOp, perm: Perm, result: Perm, **changed: Any) -> Plan:
    """The same op on operands that are all permuted alike, with other parameters."""
    params = {**op.params, **changed}

    def emit(F: IRBuilder, given: Sequence[SSAValue]) -> SSAValue:
        return F.op(op.record.name, *given, **params)

    return Plan((perm,) * len(op.operands), result, emit)


def _permuted(values: Sequence[Any], perm: Perm) -> tuple[Any, ...]:
    return tuple(values[a] for a in perm)


def _plan_pad(op: TensorOp, perms: Sequence[Perm | None]) -> Plan | None:
    perm = perms[0]
    return None if perm is None else _same_op(op, perm, perm, pairs=_permuted(op.params["pairs"], perm))


def _plan_slice(op: TensorOp, perms: Sequence[Perm | None]) -> Plan | None:
    perm = perms[0]
    if perm is None:
        return None
    return _same_op(op, perm, perm, **{k: _permuted(op.params[k], perm) for k in ("starts", "sizes", "steps")})


def _plan_tile(op: TensorOp, perms: Sequence[Perm | None]) -> Plan | None:
    perm = perms[0]
    return None if perm is None else _same_op(op, perm, perm, reps=_permuted(op.params["reps"], perm))


def _plan_flip(op: TensorOp, perms: Sequence[Perm | None]) -> Plan | None:
    perm = perms[0]
    if perm is None:
        return None
    return _same_op(op, perm, perm, axes=tuple(j for j, a in enumerate(perm) if a in op.params["axes"]))


def _plan_one_axis(op: TensorOp, perms: Sequence[Perm | None]) -> Plan | None:
    """Concatenation and repetition along one axis."""
    perm = next((p for p in perms if p is not None), None)
    return None if perm is None else _same_op(op, perm, perm, axis=perm.index(op.params["axis"]))


def _plan_take(op: TensorOp, perms: Sequence[Perm | None]) -> Plan | None:
    perm = perms[0]
    if perm is None or aval_of(op.operands[1]).rank != 1:
        return None
    params = {**op.params, "axis": perm.index(op.params["axis"])}
    return Plan((perm, None), perm, lambda F, given: F.op("take", *given, **params))


def _plan_broadcast(op: TensorOp, perms: Sequence[Perm | None]) -> Plan | None:
    perm, shape = perms[0], op.params["shape"]
    return None if perm is None or len(shape) != len(perm) else _same_op(op, perm, perm, shape=_permuted(shape, perm))


def _plan_transpose(op: TensorOp, perms: Sequence[Perm | None]) -> Plan | None:
    perm = perms[0]
    if perm is None:
        return None
    axes: tuple[int, ...] = op.params["axes"]
    return Plan((perm,), tuple(axes.index(a) for a in perm), lambda F, given: given[0])


def _plan_window(op: TensorOp, perms: Sequence[Perm | None]) -> Plan | None:
    perm = perms[0]
    if perm is None:
        return None
    axes = tuple(perm.index(a) for a in op.params["axes"])
    rank, last = len(perm), len(perm) - 1
    if axes != tuple(sorted(axes)) or last in axes:
        return None
    taps = range(rank, rank + len(axes))
    params = {**op.params, "axes": axes}

    def emit(F: IRBuilder, given: Sequence[SSAValue]) -> SSAValue:
        # The last axis stays last, behind the windows: it is the one that vectors run along.
        return F.transpose(F.op("window", *given, **params), (*range(last), *taps, last))

    return Plan((perm,), (*perm[:-1], *taps, perm[-1]), emit)


def _plan_reshape(op: TensorOp, perms: Sequence[Perm | None]) -> Plan | None:
    perm = perms[0]
    if perm is None:
        return None
    source, target = aval_of(op.operands[0]).shape, aval_of(op.results[0]).shape
    groups = axis_groups(source, target)
    if groups is None:
        return None
    group_of = {a: g for g, (old, _) in enumerate(groups) for a in old}
    # Groups in the order in which the permuted operand has them; its axes are read group by group, in order.
    order = list(dict.fromkeys(group_of[a] for a in perm if a in group_of))
    units = [a for a in perm if a not in group_of]
    want = (*units, *(a for g in order for a in groups[g][0]))
    if [a for a in perm if a in group_of] == list(want[len(units) :]):
        want = perm
    result = [a for g in order for a in groups[g][1]]
    if want == identity(len(want)) or (result == list(range(len(result))) and want != perm):
        return None
    shape = _permuted(target, tuple(result))
    return Plan((want,), tuple(result), lambda F, given: F.reshape(given[0], shape))


def axis_groups(source: Shape, target: Shape) -> list[tuple[list[int], list[int]]] | None:
    """Runs of axes of a shape and the runs that a reshape makes of them, None where it is not evident.

    Axes of size 1 of the source are in no group; those of the target are in that of a neighbour.

    >>> axis_groups((2, 6, 4, 5), (2, 3, 2, 20))
    [([0], [0]), ([1], [1, 2]), ([2, 3], [3])]
    """
    groups: list[tuple[list[int], list[int]]] = []
    units: list[int] = []
    i = j = 0
    while True:
        while i < len(source) and source[i] == 1:
            i += 1
        while j < len(target) and target[j] == 1:
            (groups[-1][1] if groups else units).append(j)
            j += 1
        if i == len(source) or j == len(target):
            break
        old, new, a, b = [i], [j], source[i], target[j]
        i, j = i + 1, j + 1
        while a != b:
            if i < len(source) and _divides(a, b):
                old.append(i)
                a, i = a * source[i], i + 1
            elif j < len(target) and _divides(b, a):
                new.append(j)
                b, j = b * target[j], j + 1
            else:
                return None
        groups.append((old, new))
    if i < len(source) or j < len(target) or not groups:
        return None
    groups[0][1][:0] = units
    return groups


def _divides(a: Dim, b: Dim) -> bool:
    """Whether more factors may make ``a`` become ``b``."""
    if isinstance(a, int) and isinstance(b, int):
        return 0 < a < b
    return a != 0 and exact_div(b, a) is not None if isinstance(a, int) else exact_div(b, a) is not None


_PLANNERS: dict[str, Planner] = {
    "pad": _plan_pad, "slice": _plan_slice, "flip": _plan_flip, "tile": _plan_tile,
    "concat": _plan_one_axis, "repeat": _plan_one_axis, "take": _plan_take, "broadcast_to": _plan_broadcast,
    "transpose": _plan_transpose, "window": _plan_window, "reshape": _plan_reshape,
}  # fmt: skip


def _plan(op: TensorOp, perms: Sequence[Perm | None], relaxed: bool) -> Plan | None:
    if op.record.name == "conv":
        return _plan_conv(op, perms, relaxed)
    planner = _PLANNERS.get(op.record.name)
    if planner is not None:
        return planner(op, perms)
    if all(p is None for p in perms):
        return None
    if isinstance(op.record.body, ScalarBody):
        return _plan_elementwise(op, perms)
    return _plan_reduction(op, perms) if isinstance(op.record.body, ReduceBody) else None


# ------------------------------------------------------------------------------------------------ the pass


class _Components:
    """Disjoint sets of ops that decide together, each with what it gains."""

    def __init__(self) -> None:
        self.parent: list[int] = []
        self.gain: list[float] = []

    def new(self) -> int:
        self.parent.append(len(self.parent))
        self.gain.append(0.0)
        return len(self.parent) - 1

    def find(self, k: int) -> int:
        while self.parent[k] != k:
            self.parent[k] = self.parent[self.parent[k]]
            k = self.parent[k]
        return k

    def union(self, a: int, b: int) -> int:
        a, b = self.find(a), self.find(b)
        if a != b:
            self.parent[b] = a
            self.gain[a] += self.gain[b]
        return a


class _Layout:
    def __init__(self, block: Block, relaxed: bool) -> None:
        self.block = block
        self.relaxed = relaxed
        self.plans: dict[Operation, Plan] = {}
        self.component: dict[Operation, int] = {}
        self.components = _Components()
        self.perms: dict[SSAValue, Perm] = {}
        self.values: dict[tuple[SSAValue, Perm], SSAValue] = {}

    def run(self) -> int:
        """Plan, decide and rewrite; returns the number of convolutions that were changed."""
        if not any(isinstance(op, TensorOp) and op.record.name == "conv" for op in self.block.ops):
            return 0
        for op in self.block.ops:
            if isinstance(op, TensorOp):
                self._consider(op)
        self._charge_edges()
        chosen = [op for op in self.plans if self.components.gain[self.components.find(self.component[op])] > 0]
        for op in chosen:
            self._rewrite(op)
        self._leave(chosen)
        return sum(1 for op in chosen if isinstance(op, TensorOp) and op.record.name == "conv")

    # ---------------------------------------------------------------------------------------- planning
    def _consider(self, op: TensorOp) -> None:
        if len(op.results) != 1:
            return
        perms = [self.perms.get(o) for o in op.operands]
        plan = _plan(op, perms, self.relaxed)
        if plan is None:
            return
        self.plans[op] = plan
        own = self.components.new()
        for o, perm in zip(op.operands, perms, strict=True):
            if perm is not None and isinstance(o.owner, Operation):
                own = self.components.union(self.component[o.owner], own)
        self.component[op] = own
        if op.record.name == "conv":
            self.components.gain[own] += _conv_gain(op) + (winograd(op)[1] if self.relaxed else 0.0)
        if plan.perm != identity(len(plan.perm)):
            self.perms[op.results[0]] = plan.perm

    def _charge_edges(self) -> None:
        """Subtract what the transposes at the edges of each component cost, each counted once."""
        charged: set[tuple[SSAValue, int]] = set()
        gain = self.components.gain

        def charge(value: SSAValue, perm: Perm, op: Operation) -> None:
            component = self.components.find(self.component[op])
            shape = aval_of(value).shape
            padded = (1,) * (len(perm) - len(shape)) + shape
            if (value, component) in charged or isinstance(value.owner, ConstantOp) or moves_units_only(padded, perm):
                return
            charged.add((value, component))
            gain[component] -= _MOVE * _size(product(shape))

        for op, plan in self.plans.items():
            for o, want in zip(op.operands, plan.wants, strict=True):
                if want is not None and self.perms.get(o) != want:
                    charge(o, want, op)
            result = op.results[0]
            perm = self.perms.get(result)
            if perm is not None and any(self._reads_first(use.operation, use.index) for use in result.uses):
                charge(result, perm, op)

    def _reads_first(self, user: Operation, index: int) -> bool:
        plan = self.plans.get(user)
        return plan is None or plan.wants[index] is None

    # --------------------------------------------------------------------------------------- rewriting
    def _rewrite(self, op: Operation) -> None:
        plan = self.plans[op]
        F = IRBuilder(self.block, before=op, location=op.location)
        operands = [
            o if want is None else self._permuted(F, o, want) for o, want in zip(op.operands, plan.wants, strict=True)
        ]
        made = plan.emit(F, operands)
        result = op.results[0]
        if made.name_hint is None:
            made.name_hint = result.name_hint
        self.values[result, plan.perm] = made

    def _permuted(self, F: IRBuilder, value: SSAValue, perm: Perm) -> SSAValue:
        """A value (with leading axes of size 1 where it has fewer axes) transposed, from the nearest that there is."""
        found = self.values.get((value, perm))
        if found is not None:
            return found
        owner = value.owner
        shape = aval_of(value).shape
        lead = len(perm) - len(shape)
        padded = (1,) * lead + shape
        have = self.perms.get(value)
        made = self.values.get((value, have)) if have is not None else None
        if isinstance(owner, ConstantOp):
            found = F.constant(np.ascontiguousarray(owner.value.reshape(padded).transpose(perm)))
        elif made is not None and have is not None and lead == 0:
            found = _transposed(F, made, tuple(have.index(a) for a in perm))
        else:
            found = _transposed(F, F.reshape(value, padded) if lead else value, perm)
        if lead == 0:
            self.values[value, perm] = found
        return found

    def _leave(self, chosen: Sequence[Operation]) -> None:
        """Give the ops that stay as they are the values in the order of axes that they know; erase what is replaced."""
        gone = set(chosen)
        for op in chosen:
            result = op.results[0]
            uses = [use for use in result.uses if use.operation not in gone]
            if not uses:
                continue
            perm = self.plans[op].perm
            F = IRBuilder(self.block, before=op, location=op.location)
            first = _transposed(F, self.values[result, perm], inverse(perm))
            if first.name_hint is None:
                first.name_hint = result.name_hint
            for use in uses:
                use.operation.operands[use.index] = first
        for op in reversed(chosen):
            op.detach()
            op.erase()


def _transposed(F: IRBuilder, value: SSAValue, perm: Perm) -> SSAValue:
    if perm == identity(len(perm)):
        return value
    shape = aval_of(value).shape
    if moves_units_only(shape, perm):
        return F.reshape(value, _permuted(shape, perm))
    return F.transpose(value, perm)


def _size(n: Dim) -> float:
    """A size, or a guess at one that is not known."""
    return float(max(evaluate(n, dict.fromkeys(free_symbols(n), _TYPICAL)), 1))


def _conv_gain(op: TensorOp) -> float:
    """What a convolution gains by reading and writing channels last, in the unit of :data:`_MOVE`."""
    depth = _size(product(aval_of(op.operands[1]).shape[1:]))
    return _GAIN * min(depth, _DEEP) * _size(product(aval_of(op.results[0]).shape))


def winograd(op: TensorOp) -> tuple[int | None, float]:
    """The tile with which Winograd's form of a convolution is much faster than the plain one, None where none is.

    The second value is what it gains, in the unit of :data:`_MOVE`.
    """
    if (
        op.params != {**op.params, **as_conv_params(op.params["padding"])}
        or aval_of(op.operands[0]).dtype is not float32
    ):
        return None, 0.0
    w = aval_of(op.operands[1]).shape
    if tuple(w[2:]) != (3, 3) or not isinstance(op.operands[1].owner, ConstantOp):
        return None, 0.0
    n, outs, *spatial = aval_of(op.results[0]).shape
    weights = _size(product(w[:2]))
    if min(_size(w[0]), _size(w[1])) < _NARROW:
        return None, 0.0
    plain = (_size(product((n, *spatial))) + _WEIGHT) * 9 * weights
    best: tuple[int | None, float] = None, plain * _WORTH
    for tile in WINOGRAD_TILES:
        tiles = _size(n * ceildiv(spatial[0], tile) * ceildiv(spatial[1], tile))
        products = (tile + 2) ** 2
        transforms = tiles * products * (_size(w[1]) + _size(outs)) * _TRANSFORM
        cost = (tiles + _WEIGHT) * products * weights + transforms
        if cost < best[1]:
            best = tile, cost
    tile, cost = best
    return (None, 0.0) if tile is None else (tile, (plain - cost) * _MULTIPLY_ADD)


def choose_layouts(func: FuncOp, *, relaxed: bool = False) -> int:
    """Let convolutions compute with channels last where that pays, in place; returns how many do.

    ``relaxed`` admits Winograd's form for them.
    """
    return sum(_Layout(block, relaxed).run() for block in blocks_of(func))


__all__ = ["axis_groups", "channels_last_perm", "choose_layouts", "inverse", "moves_units_only", "winograd"]
