"""Ops with regions over any base builder: branches and loops that run at once on arrays, or become ops of the trace.

A region is written as a function of a builder and values; it uses no other values, since regions are isolated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from cuvil.dtypes import int64
from cuvil.frontend.dispatch import TraceBuilder
from cuvil.frontend.tracer import Trace
from cuvil.ir.control import CheckOp, ControlOp, LoopOp, SwitchOp, WhileOp, YieldOp
from cuvil.ir.dialect import aval_of
from cuvil.ops.builder import Builder
from cuvil.ops.record import Aval
from cuvil.support.errors import CheckFailed
from cuvil.symbolic import Dim, Scope

Value = Any
Values = Sequence[Any]
#: ``region(F, values)``
Region = Callable[[Builder[Any], Values], Values]
#: ``body(F, i, state, slices, given) -> (state, what is stacked)``
LoopBody = Callable[[Builder[Any], Value, Values, Values, Values], tuple[Values, Values]]


def _region(F: TraceBuilder, avals: Sequence[Aval], body: Callable[[TraceBuilder, Values], Values]) -> Trace:
    """A region of the trace that a builder emits into: its block ends with what ``body`` returns."""
    trace = F.trace.within(F.trace.name)
    trace.origin = F.trace.origin
    arguments = [trace.argument(a, f"x{k}").value_in(trace) for k, a in enumerate(avals)]
    out = body(TraceBuilder(trace), arguments)
    assert not trace.lifted, "a region of a transform uses a value from around it"
    trace.block.add_op(YieldOp.create(operands=list(out)))
    trace.alive = False
    return trace


def _inserted(F: TraceBuilder, op: ControlOp) -> list[SSAValue]:
    F.trace.builder.location = F.trace.origin
    F.trace.builder.insert(op)
    return list(op.results)


def switch(F: Builder[Any], selector: Value, given: Values, branches: Sequence[Region]) -> list[Value]:
    """The results of one of the branches, as :class:`~cuvil.ir.control.SwitchOp` chooses it."""
    if not isinstance(F, TraceBuilder):
        return list(branches[min(max(int(selector), 0), len(branches) - 1)](F, given))
    avals = [F.aval(v) for v in given]
    blocks = [_region(F, avals, branch).block for branch in branches]
    return _inserted(F, SwitchOp.build(selector, given, blocks))


def while_loop(
    F: Builder[Any],
    init: Values,
    given: Values,
    condition: Callable[[Builder[Any], Values, Values], Value],
    body: Callable[[Builder[Any], Values, Values], Values],
) -> list[Value]:
    """State after ``body(F, state, given)`` ran as long as ``condition`` of the same held."""
    if not isinstance(F, TraceBuilder):
        state = list(init)
        while bool(condition(F, state, given)):
            state = list(body(F, state, given))
        return state
    n = len(init)
    avals = [F.aval(v) for v in (*init, *given)]
    test = _region(F, avals, lambda G, v: [condition(G, v[:n], v[n:])])
    step = _region(F, avals, lambda G, v: body(G, v[:n], v[n:]))
    return _inserted(F, WhileOp.build(init, given, test.block, step.block))


def loop(
    F: Builder[Any], init: Values, xs: Values, given: Values, trip: Dim, body: LoopBody, *, reverse: bool = False
) -> tuple[list[Value], list[Value]]:
    """State after ``trip`` iterations, and what each of them gave, stacked."""
    n, k = len(init), len(xs)
    if not isinstance(F, TraceBuilder):
        assert isinstance(trip, int)
        return _loop_now(F, init, xs, given, trip, body, reverse)
    avals = [Aval((), int64), *(F.aval(v) for v in init), *map(_slice, map(F.aval, xs)), *map(F.aval, given)]

    def region(G: Builder[Any], v: Values) -> Values:
        state, stacked = body(G, v[0], v[1 : 1 + n], v[1 + n : 1 + n + k], v[1 + n + k :])
        return [*state, *stacked]

    step = _region(F, avals, region)
    out = _inserted(F, LoopOp.build(init, xs, given, step.block, trip=trip, reverse=reverse))
    return out[:n], out[n:]


def _slice(aval: Aval) -> Aval:
    return Aval(aval.shape[1:], aval.dtype)


def _loop_now(
    F: Builder[Any], init: Values, xs: Values, given: Values, trip: int, body: LoopBody, reverse: bool
) -> tuple[list[Value], list[Value]]:
    state = list(init)
    rows: list[Values] = []
    for i in reversed(range(trip)) if reverse else range(trip):
        slices = [np.asarray(x[i]) for x in xs]
        after, row = body(F, np.asarray(i, np.int64), state, slices, given)
        state = list(after)
        rows.append(row)
    if reverse:
        rows.reverse()
    if rows:
        return state, [np.stack(column) for column in zip(*rows, strict=True)]
    return state, [np.zeros((0, *a.shape), a.dtype.numpy) for a in _stacked_avals(F, init, xs, given, body)]


def _stacked_avals(F: Builder[Any], init: Values, xs: Values, given: Values, body: LoopBody) -> list[Aval]:
    """What an iteration would stack, where there is none to ask."""
    G = TraceBuilder(Trace(Scope(()), "no iteration"))

    def values(avals: Sequence[Aval]) -> Values:
        return [G.trace.argument(a, "x").value_in(G.trace) for a in avals]

    i = values([Aval((), int64)])[0]
    state, slices = values([F.aval(v) for v in init]), values([_slice(F.aval(x)) for x in xs])
    _, stacked = body(G, i, state, slices, values([F.aval(v) for v in given]))
    return [aval_of(v) for v in stacked]


def check(F: Builder[Any], condition: Value, message: str) -> None:
    """An assertion.

    Raises:
        CheckFailed: it does not hold, of arrays.
    """
    if isinstance(F, TraceBuilder):
        F.trace.builder.location = F.trace.origin
        F.trace.builder.insert(CheckOp.build(condition, message))
    elif not condition:
        raise CheckFailed(message)
