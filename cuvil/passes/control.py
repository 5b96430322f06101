"""Passes over ops with regions: constants go in, what does not change comes out, what nobody reads goes away."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue

from cuvil.ir.builder import IRBuilder
from cuvil.ir.control import ControlOp, LoopOp, SwitchOp, WhileOp, blocks_of, blocks_within, has_checks, yielded
from cuvil.ir.dialect import ConstantOp, TensorOp, aval_of
from cuvil.ops.record import IndexBody, IndexMap, Opaque, ParamValue, ScalarBody
from cuvil.symbolic import is_static, product

#: A branch is computed whether it is taken or not where it is at most this many scalar ops on this many elements: a
#: jump costs as much, and keeps the ops around it apart.
MAX_SPECULATED_OPS = 24
MAX_SPECULATED_ELEMENTS = 64


def has_control(func: FuncOp) -> bool:
    """Whether a function has ops with regions."""
    return any(isinstance(op, ControlOp) for op in func.body.block.ops)


def _control_ops(func: FuncOp) -> list[ControlOp]:
    """Every op with regions, outer ones first."""
    return [op for block in blocks_of(func) for op in block.ops if isinstance(op, ControlOp)]


def can_fail(op: TensorOp) -> bool:
    """Whether an op can raise when it runs, so that it must not run where the program would not run it."""
    if op.params.get("mode") == "error":
        return True
    if isinstance(op.record.body, Opaque) and op.record.body.kernel == "host":
        return True  # a singular matrix
    return op.record.name == "pow" and aval_of(op.results[0]).dtype.is_integer


# --------------------------------------------------------------------------------------------- constants


def sink_constants(func: FuncOp) -> int:
    """Give each region constants of its own instead of invariants that are constants; returns how many.

    Rules and packing then see them; the arrays stay shared.
    """
    count = 0
    for op in _control_ops(func):
        for k in reversed(range(len(op.invariants))):
            owner = op.invariants[k].owner
            if not isinstance(owner, ConstantOp):
                continue
            for block in op.bodies:
                arg = block.args[op.invariant_arg + k]
                if arg.first_use is not None:
                    copy = ConstantOp.build(owner.constant)
                    copy.location = owner.location
                    first = block.first_op
                    assert first is not None
                    block.insert_op_before(copy, first)
                    arg.replace_all_uses_with(copy.results[0])
            op.drop_invariant(k)
            count += 1
    return count


# -------------------------------------------------------------------------------------------- simplifying


def simplify_control(func: FuncOp) -> int:
    """Drop what ops with regions carry, take and give for nobody, and branches that are decided; returns how many."""
    count = 0
    for op in reversed(_control_ops(func)):
        count += _drop_invariants(op)
        if isinstance(op, SwitchOp):
            count += _simplify_switch(op)
        else:
            assert isinstance(op, (WhileOp, LoopOp))
            count += _simplify_loop(op)
    return count


def _drop_invariants(op: ControlOp) -> int:
    count = 0
    first: dict[SSAValue, int] = {}
    for k, value in enumerate(op.invariants):
        known = first.setdefault(value, k)
        if known != k:
            for block in op.bodies:
                block.args[op.invariant_arg + k].replace_all_uses_with(block.args[op.invariant_arg + known])
    for k in reversed(range(len(op.invariants))):
        if all(block.args[op.invariant_arg + k].first_use is None for block in op.bodies):
            op.drop_invariant(k)
            count += 1
    return count


def _rebuild(op: ControlOp, operands: Sequence[SSAValue], kept: Sequence[int], **params: ParamValue) -> ControlOp:
    """The op with other operands and only some of its results; it takes the place of the old one."""
    block = op.parent
    assert block is not None
    regions = [op.detach_region(r) for r in list(op.regions)]
    new = type(op).create(
        operands=operands,
        result_types=[op.results[k].type for k in kept],
        properties=dict(op.properties),
        regions=regions,
    )
    if params:
        new.set_params(**params)
    new.location = op.location
    block.insert_op_before(new, op)
    for made, k in zip(new.results, kept, strict=True):
        made.name_hint = op.results[k].name_hint
        op.results[k].replace_all_uses_with(made)
    op.detach()
    op.erase()
    return new


def _inline(op: ControlOp, block: Block, given: Sequence[SSAValue]) -> list[SSAValue]:
    """Move a region's ops before the op; returns what the region yields."""
    for arg, value in zip(list(block.args), given, strict=True):
        arg.replace_all_uses_with(value)
    out = list(yielded(block))
    outer = op.parent
    assert outer is not None
    last = block.last_op
    for inner in list(block.ops):
        inner.detach()
        if inner is last:
            inner.drop_all_references()
        else:
            outer.insert_op_before(inner, op)
    return out


def _simplify_switch(op: SwitchOp) -> int:
    owner = op.operands[0].owner
    given = list(op.operands)[1:]
    if isinstance(owner, ConstantOp):
        chosen = min(max(int(owner.value), 0), len(op.regions) - 1)
        _replace(op, _inline(op, op.bodies[chosen], given))
        return 1
    if _cheap(op):
        outer = op.parent
        assert outer is not None
        low, high = (_inline(op, body, given) for body in op.bodies)
        builder = IRBuilder(outer, before=op, location=op.location)
        values = [h if h is w else builder.emit("where", (op.operands[0], h, w), {})[0] for w, h in zip(low, high)]
        _replace(op, values)
        return 1
    yields = [yielded(b) for b in op.bodies]
    count = 0
    for k, result in enumerate(op.results):
        # Every branch hands on the same value of the outside.
        numbers = {
            b.args[:].index(y[k]) if y[k].owner is b else -1  # type: ignore[arg-type]
            for b, y in zip(op.bodies, yields, strict=True)
        }
        if len(numbers) == 1 and (number := numbers.pop()) >= 0:
            result.replace_all_uses_with(given[number])
            count += 1
    kept = [k for k, r in enumerate(op.results) if r.first_use is not None]
    if len(kept) == len(op.results):
        return count
    for body in op.bodies:
        _keep_yields(body, kept)
    new = _rebuild(op, list(op.operands), kept)
    _erase_dead(new)
    return count + 1 + _drop_invariants(new)


def _replace(op: ControlOp, values: Sequence[SSAValue]) -> None:
    for old, new in zip(op.results, values, strict=True):
        old.replace_all_uses_with(new)
    op.detach()
    op.erase()


def _cheap(op: SwitchOp) -> bool:
    """Whether both branches are a few scalar ops that cannot fail."""
    if len(op.regions) != 2 or aval_of(op.operands[0]).dtype.short != "bool" or not op.results:
        return False
    inner = [o for b in op.bodies for o in b.ops if o is not b.last_op]
    if len(inner) > MAX_SPECULATED_OPS:
        return False
    for o in inner:
        if isinstance(o, ConstantOp):
            small = o.value.size <= MAX_SPECULATED_ELEMENTS
        else:
            scalar = isinstance(o, TensorOp) and isinstance(o.record.body, ScalarBody) and not can_fail(o)
            small = scalar and all(_few(r) for r in o.results)
        if not small:
            return False
    return all(_few(r) for r in op.results)


def _few(value: SSAValue) -> bool:
    count = product(aval_of(value).shape)
    return is_static(count) and int(count) <= MAX_SPECULATED_ELEMENTS


def _keep_yields(block: Block, kept: Sequence[int]) -> None:
    last = block.last_op
    assert last is not None
    last.operands = [last.operands[k] for k in kept]


def _erase_dead(op: ControlOp) -> None:
    for body in op.bodies:
        for block in blocks_within(body):
            for inner in reversed(list(block.ops)):
                dead = inner.results and not any(r.first_use for r in inner.results)
                if dead and not has_checks(inner):
                    inner.detach()
                    inner.erase()


def _simplify_loop(op: WhileOp | LoopOp) -> int:
    n = op.carried
    shift = 1 if isinstance(op, LoopOp) else 0
    body = op.bodies[-1]
    count = 0
    for k in range(n):
        # A value that each iteration hands on as it came is an invariant.
        if yielded(body)[k] is body.args[shift + k]:
            init = op.operands[k]
            inside = op.add_invariant(init)
            for block, value in zip(op.bodies, inside, strict=True):
                arg = block.args[shift + k]
                last = block.last_op
                arg.replace_all_uses_with(value)
                if block is body and last is not None:
                    last.operands[k] = arg
            op.results[k].replace_all_uses_with(init)
            count += 1
    live = _live_carried(op, shift)
    kept = [k for k in range(n) if k in live]
    stacked = [k for k in range(n, len(op.results)) if op.results[k].first_use is not None]
    results = [*kept, *stacked]
    if len(results) < len(op.results):
        _keep_yields(body, results)
        for block in op.bodies:
            for k in reversed(range(n)):
                if k not in live:
                    arg = block.args[shift + k]
                    _erase_users(arg)
                    block.erase_arg(arg)
        operands = [op.operands[k] for k in kept] + list(op.operands)[n:]
        new = _rebuild(op, operands, results, **{**op.params, "carried": len(kept)})
        _erase_dead(new)
        count += 1 + _drop_invariants(new)
        if isinstance(new, LoopOp):
            count += _drop_scanned(new)
        op = new  # type: ignore[assignment]
    else:
        count += _drop_invariants(op)
        if isinstance(op, LoopOp):
            count += _drop_scanned(op)
    return count


def _live_carried(op: WhileOp | LoopOp, shift: int) -> set[int]:
    """Numbers of the carried values that a result, the condition, a check or a live carried value depends on."""
    n = op.carried
    body = op.bodies[-1]
    sources = _arguments_read(body)
    out = yielded(body)
    needs = [{a - shift for a in sources(v) if shift <= a < shift + n} for v in out]
    live = {k for k in range(n) if op.results[k].first_use is not None}
    for k in range(n, len(op.results)):
        if op.results[k].first_use is not None:
            live |= needs[k]
    for block in op.bodies:
        reads = _arguments_read(block)
        for inner in block.ops:
            if has_checks(inner):
                for o in inner.operands:
                    live |= {a - shift for a in reads(o) if shift <= a < shift + n}
    if isinstance(op, WhileOp):
        reads = _arguments_read(op.bodies[0])
        live |= {a for a in reads(yielded(op.bodies[0])[0]) if a < n}
    work = list(live)
    while work:
        for k in needs[work.pop()]:
            if k not in live:
                live.add(k)
                work.append(k)
    return live


class _arguments_read:  # noqa: N801 - used as a function
    """Numbers of a block's arguments that each of its values depends on, as bit sets."""

    def __init__(self, block: Block) -> None:
        self.bits: dict[SSAValue, int] = {a: 1 << k for k, a in enumerate(block.args)}
        for op in block.ops:
            total = 0
            for o in op.operands:
                total |= self.bits[o]
            for r in op.results:
                self.bits[r] = total

    def __call__(self, value: SSAValue) -> set[int]:
        bits = self.bits[value]
        return {k for k in range(bits.bit_length()) if bits >> k & 1}


def _erase_users(arg: SSAValue) -> None:
    """Erase the ops that a dropped value leads to; nothing that is kept reads them."""
    reached: dict[Operation, None] = {}
    work = [arg]
    while work:
        for use in work.pop().uses:
            if use.operation not in reached:
                reached[use.operation] = None
                work.extend(use.operation.results)
    for op in reached:
        op.detach()
        op.drop_all_references()


def _drop_scanned(op: LoopOp) -> int:
    """Drop scanned operands whose slices nobody reads."""
    n, k = op.carried, op.scanned
    (body,) = op.bodies
    unread = [s for s in range(k) if body.args[1 + n + s].first_use is None]
    if not unread:
        return 0
    for s in reversed(unread):
        body.erase_arg(body.args[1 + n + s])
    op.operands = [o for i, o in enumerate(op.operands) if i - n not in unread]
    op.set_params(**{**op.params, "scanned": k - len(unread)})
    return len(unread)


# ------------------------------------------------------------------------------------------------ hoisting


def hoist_invariants(func: FuncOp) -> int:
    """Compute before a loop what is the same in every iteration; returns how many ops moved.

    Movement alone stays inside, where it is index arithmetic; so does what can fail.
    """
    count = 0
    for op in reversed(_control_ops(func)):
        if isinstance(op, (WhileOp, LoopOp)):
            for body in op.bodies:
                count += _hoist(op, body)
    return count


def _hoist(op: WhileOp | LoopOp, body: Block) -> int:
    fixed: dict[SSAValue, SSAValue | None] = {}  # value that never changes -> its name outside, once it has one
    for arg, operand in zip(list(body.args)[op.invariant_arg :], op.invariants, strict=True):
        fixed[arg] = operand
    movable: list[Operation] = []
    for inner in body.ops:
        if isinstance(inner, ConstantOp):
            ok = True
        else:
            ok = isinstance(inner, TensorOp) and not can_fail(inner) and all(o in fixed for o in inner.operands)
        if ok:
            movable.append(inner)
            fixed.update(dict.fromkeys(inner.results))
    moves = set(movable)
    needed: set[Operation] = set()
    for inner in reversed(movable):
        leaves = any(use.operation not in moves for r in inner.results for use in r.uses)
        wanted = any(use.operation in needed for r in inner.results for use in r.uses)
        if wanted or (leaves and _worth_moving(inner)):
            needed.add(inner)
    outer = op.parent
    assert outer is not None
    count = 0
    for inner in movable:
        if inner not in needed:
            continue
        mapping = {o: fixed[o] for o in inner.operands}
        copy = inner.clone(value_mapper=mapping)  # type: ignore[arg-type]
        outer.insert_op_before(copy, op)
        fixed.update(zip(inner.results, copy.results, strict=True))
        count += not isinstance(inner, ConstantOp)
    for inner in movable:
        if inner in needed and not isinstance(inner, ConstantOp) and _worth_moving(inner):
            for r in inner.results:
                if any(use.operation not in needed for use in r.uses):
                    value = fixed[r]
                    assert value is not None
                    inside = op.add_invariant(value)
                    r.replace_all_uses_with(inside[op.bodies.index(body)])
    return count


def _worth_moving(op: Operation) -> bool:
    if not isinstance(op, TensorOp) or not op.operands:
        return False
    body = op.record.body
    return not isinstance(body, (IndexMap, IndexBody)) and not (isinstance(body, Opaque) and body.kernel == "dim_value")


__all__ = ["can_fail", "has_control", "hoist_invariants", "simplify_control", "sink_constants"]
