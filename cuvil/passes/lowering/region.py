"""Evaluates the ops of a fusion region at index expressions, on demand, into kernel-stage scalars.

The walk has two halves and no recursion. Backwards over the region it collects, for every value, the index
tuples at which its elements are needed; forwards it emits one kernel op sequence per (value, index). Movement
ops become index arithmetic and cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from cuvil.dtypes import DType, int64
from cuvil.ir.dialect import ConstantOp, TensorOp, aval_of
from cuvil.ir.kernel import BindOp, ConstOp, IndexOp, LoadOp, ScalarOp, TestOp, When, scalar_dtype
from cuvil.ops.body import ScalarProgram, build_program
from cuvil.ops.record import Decomposition, IndexBody, IndexMap, Opaque, OpRecord, Piece, ReduceBody, ScalarBody, Shape
from cuvil.ops.registry import get
from cuvil.support.errors import IRError
from cuvil.symbolic import Dim, Scope, Symbol, free_symbols, is_static, iter_terms, plain_symbol, symbol

Index: TypeAlias = tuple[Dim, ...]
#: A value of the region at an index, under conditions that guard its loads.
Key: TypeAlias = tuple[SSAValue, Index, When]

#: Opaque kernels that a loop evaluates in place: loads at data-dependent indices.
INDIRECT = frozenset({"take", "take_along_axis", "gather"})


@lru_cache(maxsize=4096)
def _program(name: str, dtypes: tuple[DType, ...], key: Any, items: tuple[tuple[str, Any], ...]) -> ScalarProgram:
    record = get(name)
    assert isinstance(record.body, (ScalarBody, IndexBody))
    return build_program(record.body.build, dtypes, dict(items))


def scalar_program(op: TensorOp) -> ScalarProgram:
    """The scalar program of an element-wise op."""
    dtypes = tuple(aval_of(o).dtype for o in op.operands)
    return _program(op.record.name, dtypes, op.params_attr.key, op.params_attr.data)


def index_program(op: TensorOp, rank: int) -> ScalarProgram:
    """The scalar program of a generator, over ``rank`` int64 indices."""
    return _program(op.record.name, (int64,) * rank, op.params_attr.key, op.params_attr.data)


def broadcast_index(index: Index, out_shape: Shape, in_shape: Shape) -> Index:
    """The operand's index for an element of a broadcast result."""
    skip = len(out_shape) - len(in_shape)
    picked: list[Dim] = []
    for i, (o, n) in zip(index[skip:], zip(out_shape[skip:], in_shape, strict=True), strict=True):
        picked.append(0 if n == 1 and o != 1 else i)
    return tuple(picked)


def row_major_strides(shape: Shape) -> tuple[Dim, ...]:
    """Element strides of a contiguous row-major array."""
    strides: list[Dim] = []
    step: Dim = 1
    for n in reversed(shape):
        strides.append(step)
        step = step * n
    return tuple(reversed(strides))


def flat_offset(index: Index, shape: Shape) -> Dim:
    """Row-major offset of an index."""
    total: Dim = 0
    for i, s in zip(index, row_major_strides(shape), strict=True):
        total = total + i * s
    return total


def nonempty(scope: Scope, extents: Iterable[Dim]) -> None:
    """Tell a scope that loops over these extents run at least once: the factors of each product are >= 1."""
    for extent in extents:
        if is_static(extent):
            continue
        terms = tuple(iter_terms(extent))
        monomial = terms[0][0]
        if len(terms) == 1 and monomial and all(isinstance(a, Symbol) for a, _ in monomial.factors):
            for name in free_symbols(extent):
                scope.bound(name, 1, None)
        elif plain_symbol(extent) is None:
            scope.assume(">=", extent, 1)


def movement_pieces(op: TensorOp, index: Index, scope: Scope) -> tuple[Piece, ...]:
    """The pieces of a movement op's result at an index, simplified; a piece that always applies ends the list."""
    body = op.record.body
    assert isinstance(body, IndexMap)
    shapes = tuple(aval_of(o).shape for o in op.operands)
    pieces = body.build(index, shapes, aval_of(op.results[0]).shape, **op.params)
    out: list[Piece] = []
    for p in pieces:
        out.append(Piece(p.operand, tuple(scope.simplify(i) for i in p.index), p.when))
    return tuple(out)


@dataclass
class Level:
    """A place to put ops: the block, and the values already computed there."""

    block: Block
    variables: frozenset[str]
    values: dict[Key, SSAValue] = field(default_factory=dict[Key, SSAValue])


@dataclass(frozen=True)
class Binding:
    """An index symbol made from data: the index operand's key, the axis size and the mode."""

    source: Key
    size: Dim
    mode: str


class RegionEvaluator:
    """Emits values of one region into nested levels (outermost first), each value as far out as it can be.

    ``buffers`` gives the kernel buffer of each region input; ``leaf(key)`` may supply a value that is already in a
    register (a reduction's total, a template's accumulator) or in scratch memory.
    ``offset(expr)`` rewrites the index expressions of memory accesses (merged loop variables).
    """

    def __init__(
        self,
        block: Block,
        buffers: dict[SSAValue, SSAValue],
        scope: Scope,
        *,
        offset: Callable[[Dim], Dim] = lambda d: d,
        leaf: Callable[[Key], tuple[SSAValue, int] | None] = lambda _: None,
        leaf_demand: Callable[[Key], bool] = lambda _: False,
    ) -> None:
        self.ops = [op for op in block.ops if isinstance(op, (TensorOp, ConstantOp))]
        self.buffers = buffers
        self.scope = scope
        self.offset = offset
        self.leaf = leaf
        self.leaf_demand = leaf_demand
        self.levels: list[Level] = []
        self.bindings: dict[tuple[Operation, Index, When, int], str] = {}
        self.binding_level: dict[str, int] = {}
        self._binding_of: dict[str, Binding] = {}

    # ------------------------------------------------------------------------------------- backwards
    def demand(self, wanted: Iterable[Key]) -> dict[SSAValue, dict[tuple[Index, When], None]]:
        """Every (value, index) that evaluating ``wanted`` needs, in a stable order."""
        needs: dict[SSAValue, dict[tuple[Index, When], None]] = {}

        def need(value: SSAValue, index: Index, when: When) -> None:
            needs.setdefault(value, {})[(index, when)] = None

        for value, index, when in wanted:
            need(value, index, when)
        for op in reversed(self.ops):
            for result in op.results:
                for index, when in tuple(needs.get(result, ())):
                    if self.leaf_demand((result, index, when)):
                        continue
                    for key in self._operand_keys(op, result, index, when):
                        need(*key)
        return needs

    def _operand_keys(self, op: Operation, result: SSAValue, index: Index, when: When) -> list[Key]:
        if isinstance(op, ConstantOp):
            return []
        assert isinstance(op, TensorOp)
        body = op.record.body
        out_shape = aval_of(result).shape
        if isinstance(body, ScalarBody):
            return [(o, broadcast_index(index, out_shape, aval_of(o).shape), when) for o in op.operands]
        if isinstance(body, IndexMap):
            return [(op.operands[p.operand], p.index, _and(when, p)) for p in movement_pieces(op, index, self.scope)]
        if isinstance(body, IndexBody):
            return []
        if isinstance(body, Opaque):
            if body.kernel == "dim_value":
                return []
            if body.kernel in INDIRECT:
                keys = self._index_operands(op, index, when)
                data = self._indirect_data(op, index, when)
                return [*(k for k, _ in keys), data] if isinstance(data[0], BlockArgument) else [*(k for k, _ in keys)]
        if isinstance(body, (ReduceBody, Decomposition)):
            raise IRError(f"{op.name} cannot be evaluated at {index} inside this kernel")
        raise IRError(f"{op.name} is not an op that loops evaluate")

    # -------------------------------------------------------------------------------- indirect accesses
    def _index_operands(self, op: TensorOp, index: Index, when: When) -> list[tuple[Key, Dim]]:
        """Keys of the index arrays at a result index, with the size of the axis that each indexes."""
        x = aval_of(op.operands[0]).shape
        params = op.params
        kernel = op.record.name
        if kernel == "take":
            axis = params["axis"]
            rank = aval_of(op.operands[1]).rank
            return [((op.operands[1], index[axis : axis + rank], when), x[axis])]
        if kernel == "take_along_axis":
            out = aval_of(op.results[0]).shape
            return [
                ((op.operands[1], broadcast_index(index, out, aval_of(op.operands[1]).shape), when), x[params["axis"]])
            ]
        arrays = op.operands[1:]
        rank = max(aval_of(a).rank for a in arrays)
        out = aval_of(op.results[0]).shape[:rank]
        return [((a, broadcast_index(index[:rank], out, aval_of(a).shape), when), x[k]) for k, a in enumerate(arrays)]

    def _indirect_data(self, op: TensorOp, index: Index, when: When) -> Key:
        """Key of the data element, with fresh symbols for the indices and the conditions that they are in bounds."""
        params = op.params
        kernel = op.record.name
        names: list[Dim] = []
        conditions: list[tuple[Dim, Dim, Dim]] = []
        for k, (source, size) in enumerate(self._index_operands(op, index, when)):
            tag = (op, index, when, k)
            name = self.bindings.get(tag)
            if name is None:
                name = f"_g{len(self.bindings)}"
                self.bindings[tag] = name
                self._binding_of[name] = Binding(source, size, params["mode"])
                self.scope.bound(name, 0, None)
            names.append(symbol(name))
            conditions.append((symbol(name), 0, size))
        if kernel == "take":
            axis = params["axis"]
            rank = aval_of(op.operands[1]).rank
            at: Index = (*index[:axis], names[0], *index[axis + rank :])
        elif kernel == "take_along_axis":
            axis = params["axis"]
            x = aval_of(op.operands[0]).shape
            at = tuple(
                names[0] if a == axis else (0 if n == 1 else i) for a, (i, n) in enumerate(zip(index, x, strict=True))
            )
        else:
            rank = max(aval_of(a).rank for a in op.operands[1:])
            at = (*names, *index[rank:])
        value: SSAValue = op.operands[0]
        while isinstance(owner := value.owner, TensorOp):
            if not isinstance(owner.record.body, IndexMap):
                raise IRError(f"{op.name} reads {owner.name}, which must be in memory first")
            (piece,) = movement_pieces(owner, at, self.scope)
            value, at = owner.operands[piece.operand], piece.index
        return value, at, (*when, *conditions)

    # -------------------------------------------------------------------------------------- forwards
    def level_of(self, *exprs: Dim) -> int:
        """The innermost level whose variables these expressions mention."""
        names = free_symbols(*exprs)
        level = 0
        for k, lv in enumerate(self.levels):
            if names & lv.variables:
                level = k
        for n in names:
            level = max(level, self.binding_level.get(n, 0))
        return level

    def evaluate(self, wanted: Sequence[Key]) -> list[SSAValue]:
        """Emit what ``wanted`` needs into the current levels and return the values."""
        needs = self.demand(wanted)
        for op in self.ops:
            for result in op.results:
                for index, when in needs.get(result, ()):
                    self._emit(op, (result, index, when))
        return [self.get(k) for k in wanted]

    def get(self, key: Key) -> SSAValue:
        """The emitted value of a key; loads from buffers are emitted at first use."""
        found = self._find(key)
        if found is not None:
            return found[0]
        value, index, when = key
        return self._load(value, index, when)[0]

    def _find(self, key: Key) -> tuple[SSAValue, int] | None:
        for k, lv in enumerate(self.levels):
            if key in lv.values:
                return lv.values[key], k
        supplied = self.leaf(key)
        if supplied is not None:
            self.levels[supplied[1]].values[key] = supplied[0]
        return supplied

    def _located(self, key: Key) -> tuple[SSAValue, int]:
        found = self._find(key)
        return found if found is not None else self._load(*key)

    def _load(self, value: SSAValue, index: Index, when: When) -> tuple[SSAValue, int]:
        buffer = self.buffers.get(value)
        if buffer is None:
            raise IRError(f"no buffer holds {value} at {index}")
        offset = self.offset(flat_offset(index, aval_of(value).shape))
        conditions = self._conditions(when)
        level = self.level_of(*index, *(e for c in when for e in c))
        op = LoadOp.build(buffer, offset, conditions)
        return self._place(op, level, (value, index, when)), level

    def _conditions(self, when: When) -> When:
        """Conditions rewritten for merged variables; provable ones are dropped."""
        out: list[tuple[Dim, Dim, Dim]] = []
        for expr, low, high in when:
            out.append((self.offset(expr), self.offset(low), self.offset(high)))
        return tuple(out)

    def _place(self, op: Operation, level: int, key: Key | None = None) -> SSAValue:
        lv = self.levels[level]
        lv.block.add_op(op)
        if key is not None:
            lv.values[key] = op.results[0]
        return op.results[0]

    def _emit(self, op: Operation, key: Key) -> None:
        if self._find(key) is not None:
            return
        result, index, when = key
        if isinstance(op, ConstantOp):
            self._emit_constant(op, key)
            return
        assert isinstance(op, TensorOp)
        body = op.record.body
        if isinstance(body, ScalarBody):
            keys = self._operand_keys(op, result, index, when)
            operands = [self._located(k) for k in keys]
            level = max((lv for _, lv in operands), default=0)
            out = self.run_program(scalar_program(op), [v for v, _ in operands], level)
            self.levels[level].values[key] = out
        elif isinstance(body, IndexMap):
            self._emit_movement(op, key)
        elif isinstance(body, IndexBody):
            level = self.level_of(*index)
            inputs = [self._place(IndexOp.build(self.offset(i), int64), level) for i in index]
            self.levels[level].values[key] = self.run_program(index_program(op, len(index)), inputs, level)
        elif isinstance(body, Opaque) and body.kernel == "dim_value":
            self._place(IndexOp.build(op.params["dim"], int64), 0, key)
        elif isinstance(body, Opaque) and body.kernel in INDIRECT:
            self._emit_indirect(op, key)
        else:
            raise IRError(f"{op.name} is not an op that loops evaluate")

    def _emit_constant(self, op: ConstantOp, key: Key) -> None:
        array = op.value
        if array.size == 1:
            self._place(ConstOp.build(array.reshape(-1)[0].item(), aval_of(op.results[0]).dtype), 0, key)
        else:
            raise IRError("a constant of more than one element is an input of its kernel, not part of it")

    def _emit_movement(self, op: TensorOp, key: Key) -> None:
        result, index, when = key
        pieces = movement_pieces(op, index, self.scope)
        body = op.record.body
        assert isinstance(body, IndexMap)
        located = [self._located((op.operands[p.operand], p.index, _and(when, p))) for p in pieces]
        if len(pieces) == 1 and not pieces[0].when:
            value, level = located[0]
            self.levels[level].values[key] = value
            return
        dt = aval_of(result).dtype
        tests = [tuple((c.expr, c.low, c.high) for c in p.when) for p in pieces]
        level = max([lv for _, lv in located] + [self.level_of(*(e for t in tests for c in t for e in c))])
        fill = op.params[body.fill] if body.fill is not None else 0
        value: SSAValue | None = None
        if any(t == () for t in tests):
            stop = next(i for i, t in enumerate(tests) if t == ())
            value = located[stop][0]
            located, tests = located[:stop], tests[:stop]
        else:
            value = self._place(ConstOp.build(fill, dt), 0)
        for (piece, _), test in reversed(list(zip(located, tests, strict=True))):
            condition = self._place(TestOp.build(self._conditions(test)), level)
            value = self._place(ScalarOp.build("select", (condition, piece, value), dt), level)
        self.levels[level].values[key] = value

    def _emit_indirect(self, op: TensorOp, key: Key) -> None:
        _, index, when = key
        data = self._indirect_data(op, index, when)
        for k, (source, size) in enumerate(self._index_operands(op, index, when)):
            name = self.bindings[(op, index, when, k)]
            if name in self.binding_level:
                continue
            value, level = self._located(source)
            if scalar_dtype(value) is not int64:
                value = self._place(ScalarOp.build("cast", (value,), int64), level)
            self._place_effect(BindOp.build(value, name, size, op.params["mode"]), level)
            self.binding_level[name] = level
        loaded, level = self._located(data)
        mode = op.params["mode"]
        if mode == "fill":
            dt = aval_of(op.results[0]).dtype
            conditions = data[2][len(when) :]
            test = self._place(TestOp.build(self._conditions(conditions)), level)
            fill = self._place(ConstOp.build(_fill_value(op.params.get("fill"), dt), dt), 0)
            loaded = self._place(ScalarOp.build("select", (test, loaded, fill), dt), level)
        self.levels[level].values[key] = loaded

    def _place_effect(self, op: Operation, level: int) -> None:
        self.levels[level].block.add_op(op)

    def run_program(self, program: ScalarProgram, inputs: Sequence[SSAValue], level: int) -> SSAValue:
        """Emit a scalar program's instructions at a level."""
        values = list(inputs)
        for instr in program.instructions:
            if instr.name == "const":
                assert instr.value is not None
                values.append(self._place(ConstOp.build(instr.value, instr.dtype), 0))
            else:
                args = [values[a] for a in instr.args]
                values.append(self._place(ScalarOp.build(instr.name, args, instr.dtype), level))
        return values[program.result]

    def drop_levels(self, keep: int) -> None:
        """Leave the inner levels, and forget what was bound there."""
        del self.levels[keep:]
        self.binding_level = {n: lv for n, lv in self.binding_level.items() if lv < keep}


def _fill_value(fill: Any, dt: DType) -> bool | int | float:
    if fill is not None:
        return fill
    return np.nan if dt.is_float else 0


def _and(when: When, piece: Piece) -> When:
    return (*when, *((c.expr, c.low, c.high) for c in piece.when)) if piece.when else when


def is_movement(record: OpRecord) -> bool:
    """Whether an op only moves elements."""
    return isinstance(record.body, IndexMap)
