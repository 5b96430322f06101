"""The reference interpreter: runs tensor-stage and fused-stage IR with the records' NumPy references."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, SSAValue

from cuvil.ir.control import CheckOp, ControlOp, LoopOp, SwitchOp, WhileOp
from cuvil.ir.dialect import ConstantOp, FusionOp, TensorOp, YieldOp, aval_of
from cuvil.ops.builder import concrete
from cuvil.ops.record import Array
from cuvil.support.errors import CheckFailed, CuvilError, IRError
from cuvil.symbolic import evaluate

#: How many more iterations ``while`` loops may run, where that is bounded.
_ITERATIONS: ContextVar[list[int] | None] = ContextVar("cuvil_iterations", default=None)


@contextmanager
def bounded_loops(iterations: int) -> Generator[None, None, None]:
    """Within this, ``while`` loops that run longer, all together, are an IRError: random inputs may never end one."""
    token = _ITERATIONS.set([iterations])
    try:
        yield
    finally:
        _ITERATIONS.reset(token)


def run_op(op: TensorOp, operands: Sequence[Array | None], env: Mapping[str, int]) -> tuple[Array, ...]:
    """The results of one op on concrete arrays."""
    params = {k: concrete(v, dict(env)) for k, v in op.record.fill_params(op.params).items()}
    out = op.record.reference(*operands, **params)
    return tuple(out) if len(op.results) > 1 else (out,)


def run_block(block: Block, inputs: Sequence[Array], env: Mapping[str, int]) -> tuple[Array, ...]:
    """Run a block on its arguments' values and return what its terminator returns or yields."""
    values: dict[SSAValue, Any] = dict(zip(block.args, inputs, strict=True))
    remaining = _last_uses(block)
    for op in block.ops:
        if isinstance(op, (ReturnOp, YieldOp)):
            return tuple(values[o] for o in op.operands)
        if isinstance(op, ConstantOp):
            values[op.results[0]] = op.value
        elif isinstance(op, TensorOp):
            try:
                outs = run_op(op, [None if a is None else values[a] for a in op.arguments], env)
            except CuvilError as error:
                error.add_note(f"while running {op.name} ({location_text(op)})")
                raise
            values.update(zip(op.results, outs, strict=True))
        elif isinstance(op, FusionOp):
            outs = run_block(op.body, [values[o] for o in op.operands], env)
            values.update(zip(op.results, outs, strict=True))
        elif isinstance(op, ControlOp):
            values.update(zip(op.results, _run_control(op, [values[o] for o in op.operands], env), strict=True))
        elif isinstance(op, CheckOp):
            if not values[op.operands[0]]:
                raise CheckFailed(op.message)
        else:
            raise IRError(f"the reference interpreter does not run {op.name}")
        for dead in remaining.get(op, ()):
            values.pop(dead, None)
    raise IRError("a block ended without a terminator")


def _run_control(op: ControlOp, given: Sequence[Array], env: Mapping[str, int]) -> Sequence[Array]:
    """The results of an op with regions."""
    if isinstance(op, SwitchOp):
        chosen = min(max(int(given[0]), 0), len(op.regions) - 1)
        return run_block(op.bodies[chosen], given[1:], env)
    if isinstance(op, WhileOp):
        condition, body = op.bodies
        state, rest = list(given[: op.carried]), list(given[op.carried :])
        left = _ITERATIONS.get()
        while run_block(condition, [*state, *rest], env)[0]:
            state = list(run_block(body, [*state, *rest], env))
            if left is not None:
                left[0] -= 1
                if left[0] < 0:
                    raise IRError(f"loops ran for too long, the last one that at {location_text(op)}")
        return state
    if isinstance(op, LoopOp):
        return _run_loop(op, given, env)
    raise IRError(f"the reference interpreter does not run {op.name}")


def _run_loop(op: LoopOp, given: Sequence[Array], env: Mapping[str, int]) -> Sequence[Array]:
    n, k = op.carried, op.scanned
    state, xs, rest = list(given[:n]), given[n : n + k], given[n + k :]
    stacked = [np.empty(tuple(evaluate(d, env) for d in a.shape), a.dtype.numpy) for a in map(aval_of, op.results[n:])]
    trip = evaluate(op.trip, env)
    for i in reversed(range(trip)) if op.reverse else range(trip):
        given = [np.asarray(i, np.int64), *state, *(np.asarray(x[i]) for x in xs), *rest]
        out = run_block(op.bodies[0], given, env)
        state = list(out[:n])
        for whole, element in zip(stacked, out[n:], strict=True):
            whole[i] = element
    return [*state, *stacked]


def _last_uses(block: Block) -> dict[Operation, list[SSAValue]]:
    last: dict[SSAValue, Operation] = {}
    for op in block.ops:
        for o in op.operands:
            last[o] = op
    out: dict[Operation, list[SSAValue]] = {}
    for value, op in last.items():
        out.setdefault(op, []).append(value)
    return out


def run_function(func: FuncOp, inputs: Sequence[Array], env: Mapping[str, int]) -> tuple[Array, ...]:
    """Run a function on concrete arrays, with every symbol's value in ``env``."""
    return run_block(func.body.block, inputs, env)


def location_text(op: Operation) -> str:
    """``file.py:12`` of an op, or ``unknown line``."""
    return location_line(op.location)


def location_line(location: Any) -> str:
    """``file.py:12`` of a location, or ``unknown line``."""
    text = str(location)
    if '"' in text:
        name, _, rest = text.partition('"')[2].partition('"')
        return f"{name}:{rest.strip(':').split(':')[0]}"
    return "unknown line"
