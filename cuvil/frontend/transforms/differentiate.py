"""Differentiation of traced functions: forward over values with tangents, backward over a tape, through control flow.

A branch or an iteration is run again on the way back instead of keeping all its values: a loop keeps what each
iteration began with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.ir import Block, Operation

from cuvil.frontend.transforms import structured
from cuvil.frontend.transforms.replay import Copy, Transform, reached, reached_in_loop
from cuvil.ir.control import CheckOp, ControlOp, LoopOp, SwitchOp, WhileOp
from cuvil.ir.dialect import aval_of
from cuvil.ops.builder import Builder
from cuvil.ops.differentiation import Dual, Duals, Tangent, Tape, fitted, has_tangent
from cuvil.ops.operand_dtypes import compute_dtype
from cuvil.ops.record import Aval
from cuvil.ops.transposes import zeros
from cuvil.support.errors import UnsupportedError

Values = Sequence[Any]
Active = Sequence[bool]


def _changes(aval: Aval) -> bool:
    return has_tangent(aval.dtype)


def _some(values: Values, active: Active) -> list[Any]:
    """The values of which ``active`` says so."""
    return [v for v, a in zip(values, active, strict=True) if a]


def _duals(values: Values, tangents: Values, active: Active) -> list[Dual]:
    """Values with the tangents of those that are active."""
    it = iter(tangents)
    return [Dual(v, next(it) if a else None) for v, a in zip(values, active, strict=True)]


def _tangent(F: Builder[Any], dual: Dual) -> Any:
    """The tangent of a value, zeros where it has none."""
    return zeros(F, F.aval(dual.value)) if dual.tangent is None else dual.tangent


class Forward(Transform):
    """Values with their tangents."""

    def __init__(self, F: Builder[Any], *, checks: bool = True) -> None:
        super().__init__(F, Duals(F))
        self.checks = checks

    def lift(self, value: Any) -> Dual:
        return Dual(value)

    def check(self, op: CheckOp, condition: Dual) -> None:
        if self.checks:
            structured.check(self.F, condition.value, op.message)

    def control(self, op: ControlOp, operands: Sequence[Dual]) -> Values:
        values = [d.value for d in operands]
        if all(d.tangent is None for d in operands):
            return [Dual(r) for r in Copy(self.F).control(op, values)]
        active = [d.tangent is not None for d in operands]
        tangents = [d.tangent for d in operands if d.tangent is not None]
        found, outputs = push_control(self.F, op, values, tangents, active, checks=self.checks)
        return _duals(found[: len(op.results)], found[len(op.results) :], outputs)


def push_control(
    F: Builder[Any], op: ControlOp, values: Values, tangents: Values, active: Active, *, checks: bool
) -> tuple[list[Any], list[bool]]:
    """Results of an op with regions, then tangents of those that have one, and which those are."""
    if isinstance(op, SwitchOp):
        return _push_switch(F, op, values, tangents, active[1:], checks)
    if isinstance(op, WhileOp):
        return _push_while(F, op, values, tangents, active, checks)
    assert isinstance(op, LoopOp)
    return _push_loop(F, op, values, tangents, active, checks)


def active_results(op: SwitchOp, active: Active) -> list[bool]:
    """Which results of a switch have a tangent, of the operands that its regions get."""
    columns = [reached(block, active, _changes) for block in op.bodies]
    return [any(c[k] for c in columns) for k in range(len(op.results))]


def _push_switch(
    F: Builder[Any], op: SwitchOp, values: Values, tangents: Values, active: Active, checks: bool
) -> tuple[list[Any], list[bool]]:
    outputs = active_results(op, active)
    n = len(active)

    def branch(block: Block) -> structured.Region:
        def run(G: Builder[Any], given: Values) -> Values:
            out = Forward(G, checks=checks).region(block, _duals(given[:n], given[n:], active))
            return [*(d.value for d in out), *(_tangent(G, d) for d in _some(out, outputs))]

        return run

    found = structured.switch(F, values[0], [*values[1:], *tangents], [branch(b) for b in op.bodies])
    return found, outputs


def _with_zeros(F: Builder[Any], values: Values, tangents: Values, given: Active, wanted: Active) -> list[Any]:
    """Tangents of the values that are to have one, zeros for those that begin without."""
    duals = _duals(values, tangents, given)
    return [_tangent(F, d) for d in _some(duals, wanted)]


def _carried_on(G: Builder[Any], out: Sequence[Dual], before: Values, active: Active) -> list[Any]:
    """Carried values and tangents after an iteration, under the shapes that they came with."""
    values = [fitted(G, d.value, G.shape(b)) for d, b in zip(out, before, strict=True)]
    kept = [(d, b) for d, b, a in zip(out, before, active, strict=True) if a]
    return [*values, *(fitted(G, _tangent(G, d), G.shape(b)) for d, b in kept)]


def _push_while(
    F: Builder[Any], op: WhileOp, values: Values, tangents: Values, active: Active, checks: bool
) -> tuple[list[Any], list[bool]]:
    n = op.carried
    condition, body = op.bodies
    state, rest = active[:n], active[n:]
    carried, _ = reached_in_loop(body, 0, state, rest, _changes)
    first = sum(state)
    init = [*values[:n], *_with_zeros(F, values[:n], tangents[:first], state, carried)]
    given = [*values[n:], *tangents[first:]]
    m = len(values) - n

    def test(G: Builder[Any], now: Values, more: Values) -> Any:
        return Copy(G).region(condition, [*now[:n], *more[:m]])[0]

    def step(G: Builder[Any], now: Values, more: Values) -> Values:
        duals = [*_duals(now[:n], now[n:], carried), *_duals(more[:m], more[m:], rest)]
        return _carried_on(G, Forward(G, checks=checks).region(body, duals), now[:n], carried)

    return structured.while_loop(F, init, given, test, step), carried


def _push_loop(
    F: Builder[Any], op: LoopOp, values: Values, tangents: Values, active: Active, checks: bool
) -> tuple[list[Any], list[bool]]:
    n, k = op.carried, op.scanned
    (body,) = op.bodies
    state, scanned, rest = active[:n], active[n : n + k], active[n + k :]
    carried, stacked = reached_in_loop(body, 1, state, [*scanned, *rest], _changes)
    first, second = sum(state), sum(state) + sum(scanned)
    init = [*values[:n], *_with_zeros(F, values[:n], tangents[:first], state, carried)]
    xs = [*values[n : n + k], *tangents[first:second]]
    given = [*values[n + k :], *tangents[second:]]
    m = len(values) - n - k

    def step(G: Builder[Any], i: Any, now: Values, slices: Values, more: Values) -> tuple[Values, Values]:
        duals = [
            Dual(i), *_duals(now[:n], now[n:], carried), *_duals(slices[:k], slices[k:], scanned),
            *_duals(more[:m], more[m:], rest),
        ]  # fmt: skip
        out = Forward(G, checks=checks).region(body, duals)
        kept = [*(d.value for d in out[n:]), *(_tangent(G, d) for d in _some(out[n:], stacked))]
        return _carried_on(G, out[:n], now[:n], carried), kept

    after, kept = structured.loop(F, init, xs, given, op.trip, step, reverse=op.reverse)
    count = len(op.results) - n
    return [*after[:n], *kept[:count], *after[n:], *kept[count:]], [*carried, *stacked]


# --------------------------------------------------------------------------------------------- backward


class Backward(Transform):
    """Values with unknown tangents, noted on a tape."""

    def __init__(self, F: Builder[Any], *, checks: bool = True) -> None:
        self.tape = Tape(F)
        super().__init__(F, Duals(self.tape))
        self.checks = checks

    def lift(self, value: Any) -> Dual:
        return Dual(value)

    def check(self, op: CheckOp, condition: Dual) -> None:
        if self.checks:
            structured.check(self.F, condition.value, op.message)

    def enter(self, op: Operation) -> None:
        self.tape.origin = op.location

    def control(self, op: ControlOp, operands: Sequence[Dual]) -> Values:
        values = [d.value for d in operands]
        active = [d.tangent is not None for d in operands]
        copy = Copy(self.F)
        if not any(active):
            return [Dual(r) for r in copy.control(op, values)]
        if isinstance(op, SwitchOp):
            outputs = active_results(op, active[1:])
            results, saved = copy.control(op, values), []
        elif isinstance(op, LoopOp):
            n = op.carried
            carried, stacked = reached_in_loop(op.bodies[0], 1, active[:n], active[n:], _changes)
            outputs = [*carried, *stacked]
            state, kept = copy.loop(op, values, save=True)
            count = len(op.results) - n
            results, saved = [*state, *kept[:count]], kept[count:]
        else:
            n = op.carried if isinstance(op, WhileOp) else 0
            carried, _ = reached_in_loop(op.bodies[1], 0, active[:n], active[n:], _changes)
            if any(carried):
                raise UnsupportedError(
                    "while_loop has no derivative in reverse mode: how often it runs is known only when it has run, and"
                    " the way back would need all its iterations. Use fori_loop with bounds that are sizes or Python"
                    " integers, or scan with a mask for iterations that change nothing. Forward mode (cuvil.jvp) works"
                )
            return [Dual(r) for r in copy.control(op, values)]
        if not any(outputs):
            return [Dual(r) for r in results]
        tangents = [d.tangent for d in operands if d.tangent is not None]
        noted = self._noted(op, values, saved, tangents, active, outputs)
        return _duals(results, noted, outputs)

    def _noted(
        self, op: ControlOp, values: Values, saved: Values, tangents: Values, active: Active, outputs: Active
    ) -> Values:
        known = [*values, *saved]

        def pull(F: Builder[Any], cotangents: Values, given: Values) -> Values:
            wanted = [aval_of(r) for r in _some(op.results, outputs)]
            full = [zeros(F, a) if c is None else c for c, a in zip(cotangents, wanted, strict=True)]
            if isinstance(op, SwitchOp):
                found = _pull_switch(F, op, given[: len(values)], full, active[1:], outputs)
            else:
                assert isinstance(op, LoopOp)
                found = _pull_loop(F, op, given[: len(known)], full, active)
            return [*(None for _ in known), *found]

        def push(F: Builder[Any], given: Values) -> Values:
            found, _ = push_control(F, op, given[: len(values)], given[len(known) :], active, checks=False)
            return found[len(op.results) :]

        return self.tape.note([*known, *tangents], [aval_of(r) for r in _some(op.results, outputs)], pull, push)


def _pulled(
    F: Builder[Any], block: Block, values: Values, active: Active, outputs: Active, cotangents: Values
) -> list[Any]:
    """Cotangents of the active arguments of a region from those of what it hands out."""
    run = Backward(F, checks=False)
    variables = [run.tape.variable(F.aval(v)) for v in _some(values, active)]
    out = run.region(block, _duals(values, variables, active))
    asked = [d.tangent for d in _some(out, outputs)]
    pairs = [(t, c) for t, c in zip(asked, cotangents, strict=True) if isinstance(t, Tangent)]
    found = run.tape.pull(F, [t for t, _ in pairs], [c for _, c in pairs], variables)
    return [zeros(F, v.aval) if c is None else c for c, v in zip(found, variables, strict=True)]


def _pull_switch(
    F: Builder[Any], op: SwitchOp, values: Values, cotangents: Values, active: Active, outputs: Active
) -> list[Any]:
    n = len(active)

    def branch(block: Block) -> structured.Region:
        return lambda G, given: _pulled(G, block, given[:n], active, outputs, given[n:])

    return structured.switch(F, values[0], [*values[1:], *cotangents], [branch(b) for b in op.bodies])


def _pull_loop(F: Builder[Any], op: LoopOp, values: Values, cotangents: Values, active: Active) -> list[Any]:
    """The loop backwards: each iteration begins with what it began with before, and is pulled back."""
    n, k = op.carried, op.scanned
    m = len(op.operands) - n - k
    (body,) = op.bodies
    state, scanned, rest = active[:n], active[n : n + k], active[n + k :]
    carried, stacked = reached_in_loop(body, 1, state, [*scanned, *rest], _changes)
    c, s = sum(carried), sum(scanned)
    given, saved = values[n + k : n + k + m], values[n + k + m :]
    # What each iteration adds to an invariant's cotangent is added up, halves in float32.
    sums = [Aval(a.shape, compute_dtype(a.dtype)) for a in map(F.aval, _some(given, rest))]
    init = [*cotangents[:c], *(zeros(F, a) for a in sums)]
    xs = [*values[n : n + k], *saved, *cotangents[c:]]

    def step(G: Builder[Any], i: Any, now: Values, slices: Values, more: Values) -> tuple[Values, Values]:
        x, began, later = slices[:k], slices[k : k + n], slices[k + n :]
        arguments = [i, *began, *x, *more]
        found = _pulled(
            G, body, arguments, [False, *carried, *scanned, *rest], [*carried, *stacked], [*now[:c], *later]
        )
        before = [fitted(G, v, G.shape(o)) for v, o in zip(found[:c], now[:c], strict=True)]
        added = [
            G.add(total, G.cast(fitted(G, v, G.shape(total)), G.dtype(total)))
            for total, v in zip(now[c:], found[c + s :], strict=True)
        ]
        return [*before, *added], found[c : c + s]

    after, of_slices = structured.loop(F, init, xs, given, op.trip, step, reverse=not op.reverse)
    begun = [v for v, a in zip(_spread(after[:c], carried), state, strict=True) if a]
    of_rest = [F.cast(v, F.dtype(o)) for v, o in zip(after[c:], _some(given, rest), strict=True)]
    return [*begun, *of_slices, *of_rest]


def _spread(values: Values, active: Active) -> list[Any]:
    it = iter(values)
    return [next(it) if a else None for a in active]
