"""Lowers a loop fusion (element-wise, movement, reductions of one shape) to one kernel of nested loops."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import Block, SSAValue

from cuvil.dtypes import DType
from cuvil.ir.dialect import FusionOp, TensorOp, YieldOp, aval_of
from cuvil.ir.kernel import (
    AccumulatorOp,
    BufferType,
    ForOp,
    IndexOp,
    KernelFunc,
    LoadOp,
    ScalarOp,
    ScratchOp,
    StoreOp,
    TestOp,
    TotalOp,
    UpdateOp,
    scalar_dtype,
)
from cuvil.ops.record import ReduceBody, ScalarBody, Shape
from cuvil.ops.scalar import INSTRUCTIONS
from cuvil.passes.lowering.region import Index, Key, Level, RegionEvaluator, flat_offset, nonempty, scalar_program
from cuvil.support.errors import IRError
from cuvil.symbolic import (
    Dim,
    Scope,
    Truth,
    ceildiv,
    dim_min,
    free_symbols,
    linear_coefficient,
    product,
    substitute,
    symbol,
)

_ELEMENTS_PER_BLOCK = 4096  # one task of a flat element-wise kernel: 16 KiB of float32 per operand
_COLUMNS_PER_BLOCK = 64
MAX_LANES = 16  # of any target; block sizes are multiples of it
#: Names that begin with an underscore belong to lowering: no symbol of a user's program has one.
BLOCK_VARIABLE = "_blk"


@dataclass(frozen=True)
class _Axis:
    """One loop: its variable, its extent and whether a reduction runs over it."""

    var: str
    extent: Dim
    reduced: bool


class LoopLowering:
    """One use: lower one fusion to one :class:`KernelFunc`."""

    def __init__(self, fusion: FusionOp, scope: Scope) -> None:
        self.fusion = fusion
        self.scope = scope
        last = fusion.body.last_op
        assert isinstance(last, YieldOp)
        self.outputs: tuple[SSAValue, ...] = tuple(last.operands)
        self.reduces = [
            op for op in fusion.body.ops if isinstance(op, TensorOp) and isinstance(op.record.body, ReduceBody)
        ]
        if self.reduces:
            self.full: Shape = aval_of(self.reduces[0].operands[0]).shape
            self.reduced: frozenset[int] = frozenset(self.reduces[0].params["axes"])
        else:
            self.full = aval_of(self.outputs[0]).shape
            self.reduced = frozenset()
        self.names = tuple(f"_i{k}" for k in range(len(self.full)))
        self.index: Index = tuple(0 if n == 1 else symbol(v) for v, n in zip(self.names, self.full, strict=True))

    def lower(self, name: str) -> KernelFunc:
        """The kernel: run once to see every access, merge the loops that allow it, run again."""
        axes = [
            _Axis(v, n, k in self.reduced) for k, (v, n) in enumerate(zip(self.names, self.full, strict=True)) if n != 1
        ]
        dry = self._build(name, axes, {})
        accesses = _access_expressions(dry)
        merged, rewrite = merge_axes(axes, accesses)
        if len(merged) == len(axes):
            return dry
        return self._build(name, merged, rewrite)

    # ---------------------------------------------------------------------------------------- structure
    def _build(self, name: str, axes: Sequence[_Axis], rewrite: dict[str, Dim]) -> KernelFunc:
        avals = [aval_of(o) for o in self.fusion.operands] + [aval_of(o) for o in self.outputs]
        func = KernelFunc.build(name, avals)
        args = func.body.args
        scope = self.scope.copy()
        nonempty(scope, self.full)
        for v, n in zip(self.names, self.full, strict=True):
            scope.loop(v, n)
        self._func = func
        self._rewrite = rewrite
        self._axes = axes
        self._totals: dict[Key, SSAValue] = {}
        self._scratch: dict[SSAValue, SSAValue] = {}
        self._computed: set[SSAValue] = set()
        inputs = args[: len(self.fusion.operands)]
        buffers: dict[SSAValue, SSAValue] = dict(zip(self.fusion.body.args, inputs, strict=True))
        self._out_buffers = args[len(self.fusion.operands) :]
        self._evaluator = RegionEvaluator(
            self.fusion.body,
            buffers,
            scope,
            offset=self._offset,
            leaf=self._leaf,
            leaf_demand=self._is_leaf,
        )
        self._nest()
        self._finish(func)
        return func

    def _offset(self, expr: Dim) -> Dim:
        return substitute(expr, self._rewrite) if self._rewrite else expr

    def _nest(self) -> None:
        outer = [a for a in self._axes if not a.reduced]
        inner = [a for a in self._axes if a.reduced]
        self._vector_inner = bool(self.reduces) and bool(self._axes) and self._axes[-1].reduced
        block = self._func.body
        self._inner: list[_Axis] = inner
        self._vector_var: str | None = None
        if not self.reduces:
            self._inner = outer[-1:]
            self._vector_inner = bool(self._inner)
            outer = outer[:-1]
        work = product(a.extent for a in self._inner)
        if outer or not self._inner:
            block = self._open_outer(block, outer, work)
        elif not self.reduces:
            # A flat element-wise kernel: blocks of elements are the parallel tasks.
            (axis,) = self._inner
            blocks = ForOp.build(BLOCK_VARIABLE, 0, ceildiv(axis.extent, _ELEMENTS_PER_BLOCK), "parallel")
            block.add_op(blocks)
            block = blocks.body
            self._block_bounds = _bounds(BLOCK_VARIABLE, _ELEMENTS_PER_BLOCK, axis.extent)
        self._levels_outer = Level(block, frozenset(a.var for a in outer))
        self._evaluator.levels = [self._levels_outer]
        self._run()

    def _open_outer(self, block: Block, outer: list[_Axis], work: Dim) -> Block:
        columns = bool(self.reduces) and not self._vector_inner and bool(outer)
        rows = outer[:-1] if columns else outer
        for a in rows:
            loop = ForOp.build(a.var, 0, a.extent, "parallel")
            block.add_op(loop)
            block = loop.body
        if columns:
            a = outer[-1]
            lower: Dim = 0
            upper: Dim = a.extent
            blocks = ForOp.build(BLOCK_VARIABLE, 0, ceildiv(a.extent, _COLUMNS_PER_BLOCK), "parallel")
            block.add_op(blocks)
            block = blocks.body
            lower, upper = _bounds(BLOCK_VARIABLE, _COLUMNS_PER_BLOCK, a.extent)
            loop = ForOp.build(a.var, lower, upper, "vector", whole=self._whole(a.extent))
            block.add_op(loop)
            block = loop.body
        return block

    # --------------------------------------------------------------------------------------------- loops
    def _run(self) -> None:
        stages = self._stages()
        wanted_full, wanted_row = self._split_outputs()
        self._plan_scratch(stages, wanted_full)
        for stage in stages:
            self._reduce_loop(stage)
        if wanted_row:
            keys = [(self.outputs[k], index, ()) for k, index in wanted_row]
            values = self._evaluator.evaluate(keys)
            for (k, index), value in zip(wanted_row, values, strict=True):
                self._store(k, index, value, self._levels_outer.block)
        if wanted_full:
            self._full_loop(wanted_full)

    def _split_outputs(self) -> tuple[list[int], list[tuple[int, Index]]]:
        full: list[int] = []
        row: list[tuple[int, Index]] = []
        for k, value in enumerate(self.outputs):
            shape = aval_of(value).shape
            if shape == self.full and not (self.reduces and self._is_row_shape(shape)):
                full.append(k)
            else:
                row.append((k, self._row_index(shape)))
        return full, row

    def _is_row_shape(self, shape: Shape) -> bool:
        return all(shape[a] == 1 for a in self.reduced)

    def _row_index(self, shape: Shape) -> Index:
        kept = [k for k in range(len(self.full)) if k not in self.reduced]
        if len(shape) == len(self.full):
            return tuple(0 if k in self.reduced else self.index[k] for k in range(len(self.full)))
        if len(shape) == len(kept):
            return tuple(self.index[k] for k in kept)
        raise IRError(f"a kernel over {self.full} cannot write an output of shape {shape}")

    def _stages(self) -> list[list[TensorOp]]:
        """Reductions grouped so that each group needs only totals of earlier groups."""
        depth: dict[SSAValue, int] = {}
        stages: list[list[TensorOp]] = []
        for op in self.fusion.body.ops:
            d = max((depth.get(o, 0) for o in op.operands), default=0)
            if isinstance(op, TensorOp) and isinstance(op.record.body, ReduceBody):
                if d == len(stages):
                    stages.append([])
                stages[d].append(op)
                d += 1
            for r in op.results:
                depth[r] = d
        return stages

    def _full_key(self, value: SSAValue) -> Key:
        return (value, self.index, ())

    def _plan_scratch(self, stages: list[list[TensorOp]], full_outputs: list[int]) -> None:
        """Choose the costly row values that several loops need: the first loop stores them, the others load."""
        if not self._vector_inner or not self.reduces:
            return
        seen: dict[SSAValue, int] = {}
        groups = [[self._full_key(op.operands[0]) for op in s] for s in stages]
        if full_outputs:
            groups.append([self._full_key(self.outputs[k]) for k in full_outputs])
        for keys in groups:
            for value, indices in self._evaluator.demand(keys).items():
                if (self.index, ()) in indices:
                    seen[value] = seen.get(value, 0) + 1
        size = product(a.extent for a in self._inner)
        for op in self.fusion.body.ops:
            if not isinstance(op, TensorOp) or not isinstance(op.record.body, ScalarBody):
                continue
            (result,) = op.results
            if seen.get(result, 0) > 1 and aval_of(result).shape == self.full and _is_costly(op):
                scratch = ScratchOp.build(size, aval_of(result).dtype)
                self._levels_outer.block.add_op(scratch)
                self._scratch[result] = scratch.results[0]

    def _open_inner(self) -> tuple[Block, list[ForOp]]:
        """Detached loops over the inner axes; the innermost is a vector loop when the kernel vectorises there."""
        loops: list[ForOp] = []
        bounds = getattr(self, "_block_bounds", None)
        for k, a in enumerate(self._inner):
            vector = self._vector_inner and k == len(self._inner) - 1
            lower, upper = bounds if bounds is not None else (0, a.extent)
            whole = vector and self._whole(a.extent)
            loops.append(ForOp.build(a.var, lower, upper, "vector" if vector else "serial", whole=whole))
        for outer, inner in itertools.pairwise(loops):
            outer.body.add_op(inner)
        body = loops[-1].body if loops else self._levels_outer.block
        if loops:
            self._evaluator.levels = [
                self._levels_outer,
                Level(body, frozenset(a.var for a in self._inner) | self._inner_names()),
            ]
        return body, loops

    def _whole(self, extent: Dim) -> bool:
        """Whether an extent is a multiple of the lanes, whatever its symbols: its loop needs no tail."""
        return self.scope.prove("==", extent % MAX_LANES, 0) is Truth.YES

    def _inner_names(self) -> frozenset[str]:
        """The original variables that the inner loops stand for."""
        inner = {a.var for a in self._inner}
        names = set(inner)
        for k, v in enumerate(self.names):
            if self.reduces:
                if k in self.reduced:
                    names.add(v)
            elif free_symbols(self._offset(symbol(v))) & inner or v in self._merged_into(inner):
                names.add(v)
        return frozenset(names)

    def _merged_into(self, inner: set[str]) -> set[str]:
        # A variable merged away is rewritten to 0; the one it merged into carries its range.
        groups: dict[str, set[str]] = {}
        carriers = [a.var for a in self._axes]
        for k, v in enumerate(self.names):
            if v in self._rewrite and self.full[k] != 1:
                for w in self.names[k + 1 :]:
                    if w in carriers:
                        groups.setdefault(w, set()).add(v)
                        break
        return set().union(*(groups.get(v, set()) for v in inner)) if inner else set()

    def _close_inner(self, loops: list[ForOp]) -> None:
        if loops:
            self._levels_outer.block.add_op(loops[0])
            self._evaluator.drop_levels(1)

    def _reduce_loop(self, stage: list[TensorOp]) -> None:
        accumulators: list[SSAValue] = []
        for op in stage:
            body = op.record.body
            assert isinstance(body, ReduceBody)
            dt = op.record.accumulate(aval_of(op.operands[0]).dtype)
            result = aval_of(op.results[0]).dtype
            if dt is not result and not result.is_half and not result.is_bool:  # bools are ordered as uint8
                dt = result
            acc = AccumulatorOp.build(body.combine, body.identity(dt), dt)
            self._levels_outer.block.add_op(acc)
            accumulators.append(acc.results[0])
        block, loops = self._open_inner()
        keys = [self._full_key(op.operands[0]) for op in stage]
        values = self._evaluator.evaluate(keys)
        self._store_scratch(block)
        for acc, value in zip(accumulators, values, strict=True):
            dt = scalar_dtype(acc)
            if scalar_dtype(value) is not dt:
                cast = ScalarOp.build("cast", (value,), dt)
                block.add_op(cast)
                value = cast.results[0]
            block.add_op(UpdateOp.build(acc, value))
        self._close_inner(loops)
        for op, acc in zip(stage, accumulators, strict=True):
            total = TotalOp.build(acc, self._vector_inner and bool(loops))
            self._levels_outer.block.add_op(total)
            value = total.results[0]
            dt = aval_of(op.results[0]).dtype
            if scalar_dtype(value) is not dt:
                cast = ScalarOp.build("cast", (value,), dt)
                self._levels_outer.block.add_op(cast)
                value = cast.results[0]
            result = op.results[0]
            self._totals[(result, self._row_index(aval_of(result).shape), ())] = value

    def _full_loop(self, outputs: list[int]) -> None:
        block, loops = self._open_inner()
        values = self._evaluator.evaluate([self._full_key(self.outputs[k]) for k in outputs])
        for k, value in zip(outputs, values, strict=True):
            self._store(k, self.index, value, block)
        self._close_inner(loops)

    def _store(self, k: int, index: Index, value: SSAValue, block: Block) -> None:
        offset = self._offset(flat_offset(index, aval_of(self.outputs[k]).shape))
        block.add_op(StoreOp.build(self._out_buffers[k], value, offset))

    def _store_scratch(self, block: Block) -> None:
        for value, scratch in self._scratch.items():
            if value in self._computed:
                continue
            found = self._evaluator.levels[-1].values.get(self._full_key(value))
            if found is not None:
                block.add_op(StoreOp.build(scratch, found, self._inner_offset()))
                self._computed.add(value)

    def _inner_offset(self) -> Dim:
        return flat_offset(tuple(symbol(a.var) for a in self._inner), tuple(a.extent for a in self._inner))

    # --------------------------------------------------------------------------------------------- leaves
    def _is_leaf(self, key: Key) -> bool:
        value, index, when = key
        owner = value.owner
        if isinstance(owner, TensorOp) and isinstance(owner.record.body, ReduceBody):
            return True
        return value in self._computed and index == self.index and not when

    def _leaf(self, key: Key) -> tuple[SSAValue, int] | None:
        value, index, when = key
        owner = value.owner
        if isinstance(owner, TensorOp) and isinstance(owner.record.body, ReduceBody):
            found = self._totals.get((value, index, ()))
            if found is None:
                raise IRError(f"{owner.name} is read at {index}, outside of its row")
            return found, 0
        if value in self._computed and index == self.index and not when:
            load = LoadOp.build(self._scratch[value], self._inner_offset())
            self._evaluator.levels[-1].block.add_op(load)
            return load.results[0], len(self._evaluator.levels) - 1
        return None

    def _finish(self, func: KernelFunc) -> None:
        n = len(self.fusion.operands)
        loop_vars = (
            set(self.names) | {a.var for a in self._axes} | {BLOCK_VARIABLE} | set(self._evaluator.bindings.values())
        )
        func.set_params(
            name=func.params["name"],
            dims=kernel_dims(func, loop_vars),
            outputs=tuple(range(n, n + len(self.outputs))),
            reason=self.fusion.params["reason"],
        )


def _bounds(var: str, size: int, extent: Dim) -> tuple[Dim, Dim]:
    start = symbol(var) * size
    return start, dim_min(start + size, extent)


def _is_costly(op: TensorOp) -> bool:
    return any(i.name in INSTRUCTIONS and INSTRUCTIONS[i.name].expensive for i in scalar_program(op).instructions)


def _access_expressions(func: KernelFunc) -> list[Dim]:
    out: list[Dim] = []
    for op in func.body.walk():
        if isinstance(op, (LoadOp, StoreOp)):
            out.append(op.params["index"])
        if isinstance(op, IndexOp):
            out.append(op.params["expr"])
        if isinstance(op, (LoadOp, TestOp)):
            for condition in op.params.get("when", ()):
                out.extend(condition)
    return list(dict.fromkeys(out))


def merge_axes(axes: Sequence[_Axis], accesses: Sequence[Dim]) -> tuple[list[_Axis], dict[str, Dim]]:
    """Merge neighbouring loops that every access walks as one, from the innermost outwards.

    Two loops (a, b) merge when each access is linear in both with ``stride(a) == stride(b) * extent(b)``.
    Returns the loops left and the substitution for the variables merged away.
    """
    result = list(axes)
    exprs = list(accesses)
    rewrite: dict[str, Dim] = {}
    k = len(result) - 2
    while k >= 0:
        a, b = result[k], result[k + 1]
        if a.reduced == b.reduced and all(_walks_as_one(e, a, b) for e in exprs):
            rewrite[a.var] = 0
            exprs = [substitute(e, {a.var: 0}) for e in exprs]
            result[k : k + 2] = [_Axis(b.var, a.extent * b.extent, a.reduced)]
        k -= 1
    return result, rewrite


def _walks_as_one(expr: Dim, a: _Axis, b: _Axis) -> bool:
    names = free_symbols(expr)
    if a.var not in names and b.var not in names:
        return True
    outer, inner = linear_coefficient(expr, a.var), linear_coefficient(expr, b.var)
    return outer is not None and inner is not None and outer[0] == inner[0] * b.extent


def kernel_dims(func: KernelFunc, bound: set[str]) -> tuple[str, ...]:
    """The program symbols that a kernel mentions: its dimension parameters."""
    names: set[str] = set()
    for op in func.body.walk():
        for value in getattr(op, "params", {}).values():
            names |= _symbols_in(value)
        for result in op.results:
            if isinstance(result.type, BufferType):
                names |= free_symbols(*result.type.data.shape)
    return tuple(sorted(names - bound))


def _symbols_in(value: object) -> frozenset[str]:
    if isinstance(value, tuple):
        out: frozenset[str] = frozenset()
        for v in value:  # pyright: ignore[reportUnknownVariableType]
            out |= _symbols_in(v)  # pyright: ignore[reportUnknownArgumentType]
        return out
    if isinstance(value, (str, float, bool, complex, DType)) or value is None:
        return frozenset()
    return free_symbols(value)  # type: ignore[arg-type]
