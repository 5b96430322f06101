"""Vectorisation of traced functions, control flow included: what differs between examples decides for each alone.

A condition that all examples share stays a branch or a loop. Where it differs, every branch runs and each example takes
its own; a loop runs as long as any example does, and those that are done keep what they have. What runs for nobody's
sake must not fail: reads and writes at indices are moved to index 0 there, and assertions hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cuvil.dtypes import bool_
from cuvil.frontend.transforms import structured
from cuvil.frontend.transforms.replay import Copy, Transform, reached, reached_in_loop
from cuvil.ir.control import CheckOp, ControlOp, LoopOp, SwitchOp, WhileOp
from cuvil.ops.builder import Builder
from cuvil.ops.differentiation import fitted
from cuvil.ops.record import Aval, ParamValue
from cuvil.ops.vectorisation import Batched, Examples, with_axis
from cuvil.symbolic import Dim

Values = Sequence[Any]
Own = Sequence[bool]

#: Ops that fail at an index outside: the number of their first operand of indices.
_INDEXED = {"take": 1, "take_along_axis": 1, "gather": 1, "scatter": 2}


def _any(aval: Aval) -> bool:
    return True


class _Guarded(Examples):
    """Ops for examples of which only those in ``mask`` [count] count: for the others they must not fail."""

    def __init__(self, F: Builder[Any], count: Dim, mask: Any) -> None:
        super().__init__(F, count)
        self.mask = Batched(mask, True)

    def emit(self, name: str, operands: Sequence[Batched | None], params: dict[str, ParamValue]) -> tuple[Batched, ...]:
        first = _INDEXED.get(name) if params.get("mode") == "error" else None
        if name == "pow" and not self.dtype(_present(operands[0])).is_float:
            first = 1
        if first is not None:
            safe = [self.where(self.mask, o, self.like(0, o)) for o in map(_present, operands[first:])]
            operands = [*operands[:first], *safe]
        return super().emit(name, operands, params)


def _present(operand: Batched | None) -> Batched:
    assert operand is not None
    return operand


class Mapped(Transform):
    """Values for many examples, of which only those in ``mask`` count where there is one."""

    def __init__(self, F: Builder[Any], count: Dim, mask: Any = None) -> None:
        super().__init__(F, Examples(F, count) if mask is None else _Guarded(F, count, mask))
        self.count = count
        self.mask = mask

    def lift(self, value: Any) -> Batched:
        return Batched(value)

    def check(self, op: CheckOp, condition: Batched) -> None:
        F, holds = self.F, condition.value
        if self.mask is not None:
            holds = F.op("logical_or", holds, F.op("logical_not", self.mask))
        if condition.own or self.mask is not None:
            holds = F.op("all", holds, axes=(0,), keepdims=False)
        structured.check(F, holds, op.message)

    def control(self, op: ControlOp, operands: Sequence[Batched]) -> Values:
        if self.mask is None and not any(o.own for o in operands):
            return [Batched(r) for r in Copy(self.F).control(op, [o.value for o in operands])]
        if isinstance(op, SwitchOp):
            return self._choose(op, operands) if operands[0].own else self._switch(op, operands)
        if isinstance(op, WhileOp):
            return self._while(op, operands)
        assert isinstance(op, LoopOp)
        return self._loop(op, operands)

    # ------------------------------------------------------------------------------------- regions
    def _masks(self) -> list[Any]:
        """What regions get besides their values."""
        return [] if self.mask is None else [self.mask]

    def _in(self, G: Builder[Any], masks: Values) -> Mapped:
        return Mapped(G, self.count, *masks)

    def _given(self, G: Builder[Any], out: Sequence[Batched], own: Own) -> list[Any]:
        """What a region hands out: with the examples' axis where ``own`` says so."""
        return [with_axis(G, b.value, b.own, self.count) if o else b.value for b, o in zip(out, own, strict=True)]

    def _chosen(self, G: Builder[Any], mask: Any, new: Any, old: Any) -> Any:
        """``new`` for the examples in a mask [count], ``old`` for the others; both have the examples' axis."""
        rank = len(G.shape(new))
        column = G.reshape(mask, (self.count, *(1,) * (rank - 1)))
        return G.where(column, new, fitted(G, old, G.shape(new)))

    # -------------------------------------------------------------------------------------- branches
    def _switch(self, op: SwitchOp, operands: Sequence[Batched]) -> list[Batched]:
        own = [o.own for o in operands[1:]]
        columns = [reached(block, own, _any) for block in op.bodies]
        outputs = [self.mask is not None or any(c[k] for c in columns) for k in range(len(op.results))]
        n = len(own)

        def branch(block: Any) -> structured.Region:
            def run(G: Builder[Any], given: Values) -> Values:
                return self._given(G, self._in(G, given[n:]).region(block, _batched(given[:n], own)), outputs)

            return run

        given = [*(o.value for o in operands[1:]), *self._masks()]
        return _batched(structured.switch(self.F, operands[0].value, given, [branch(b) for b in op.bodies]), outputs)

    def _choose(self, op: SwitchOp, operands: Sequence[Batched]) -> list[Batched]:
        F, selector = self.F, operands[0].value
        found: list[Any] = []
        for k, block in enumerate(op.bodies):
            taken = self._taken(selector, k, len(op.bodies))
            mask = taken if self.mask is None else F.op("logical_and", taken, self.mask)
            out = Mapped(F, self.count, mask).region(block, operands[1:])
            values = [with_axis(F, b.value, b.own, self.count) for b in out]
            found = values if k == 0 else [self._chosen(F, taken, v, o) for v, o in zip(values, found, strict=True)]
        return [Batched(v, True) for v in found]

    def _taken(self, selector: Any, k: int, count: int) -> Any:
        """Which examples take branch ``k``; an integer is clamped to the branches there are."""
        F = self.F
        if F.dtype(selector) is bool_:
            return selector if k == 1 else F.op("logical_not", selector)
        number = F.like(k, selector)
        name = "less_equal" if k == 0 else "greater_equal" if k == count - 1 else "equal"
        return F.op(name, selector, number)

    # ----------------------------------------------------------------------------------------- loops
    def _while(self, op: WhileOp, operands: Sequence[Batched]) -> list[Batched]:
        n = op.carried
        condition, body = op.bodies
        own = [o.own for o in operands]
        rest = own[n:]
        carried, _ = reached_in_loop(body, 0, own[:n], rest, _any)
        if self.mask is not None or reached(condition, [*carried, *rest], _any)[0]:
            return self._while_any(op, operands)
        init = self._given(self.F, operands[:n], carried)
        given = [o.value for o in operands[n:]]

        def test(G: Builder[Any], now: Values, more: Values) -> Any:
            arguments = [*_batched(now, carried), *_batched(more, rest)]
            return Mapped(G, self.count).region(condition, arguments)[0].value

        def step(G: Builder[Any], now: Values, more: Values) -> Values:
            out = Mapped(G, self.count).region(body, [*_batched(now, carried), *_batched(more, rest)])
            return [fitted(G, v, G.shape(b)) for v, b in zip(self._given(G, out, carried), now, strict=True)]

        return _batched(structured.while_loop(self.F, init, given, test, step), carried)

    def _while_any(self, op: WhileOp, operands: Sequence[Batched]) -> list[Batched]:
        """A loop that goes on for some examples while others are done."""
        n = op.carried
        condition, body = op.bodies
        rest = [o.own for o in operands[n:]]
        every = [True] * n
        init = self._given(self.F, operands[:n], every)
        given = [o.value for o in operands[n:]]

        def going(G: Builder[Any], now: Values, more: Values, mask: Any) -> Any:
            run = Mapped(G, self.count, mask)
            (holds,) = run.region(condition, [*_batched(now, every), *_batched(more, rest)])
            on = with_axis(G, holds.value, holds.own, self.count)
            return on if mask is None else G.op("logical_and", on, mask)

        def test(G: Builder[Any], now: Values, more: Values) -> Any:
            return G.op("any", now[0], axes=(0,), keepdims=False)

        def step(G: Builder[Any], now: Values, more: Values) -> Values:
            mask, *state = now
            out = Mapped(G, self.count, mask).region(body, [*_batched(state, every), *_batched(more, rest)])
            after = self._given(G, out, every)
            kept = [fitted(G, self._chosen(G, mask, v, b), G.shape(b)) for v, b in zip(after, state, strict=True)]
            return [going(G, kept, more, mask), *kept]

        first = going(self.F, init, given, self.mask)
        return _batched(structured.while_loop(self.F, [first, *init], given, test, step)[1:], every)

    def _loop(self, op: LoopOp, operands: Sequence[Batched]) -> list[Batched]:
        n, k = op.carried, op.scanned
        (body,) = op.bodies
        own = [o.own for o in operands]
        scanned, rest = own[n : n + k], own[n + k :]
        carried, stacked = reached_in_loop(body, 1, own[:n], [*scanned, *rest], _any)
        if self.mask is not None:  # which makes what it guards each example's own
            carried, stacked = [True] * n, [True] * len(stacked)
        init = self._given(self.F, operands[:n], carried)
        xs = [_exchanged(self.F, o.value) if o.own else o.value for o in operands[n : n + k]]
        given = [*(o.value for o in operands[n + k :]), *self._masks()]
        m = len(rest)

        def step(G: Builder[Any], i: Any, now: Values, slices: Values, more: Values) -> tuple[Values, Values]:
            arguments = [Batched(i), *_batched(now, carried), *_batched(slices, scanned), *_batched(more[:m], rest)]
            out = self._in(G, more[m:]).region(body, arguments)
            after = self._given(G, out[:n], carried)
            return (
                [fitted(G, v, G.shape(b)) for v, b in zip(after, now, strict=True)],
                self._given(G, out[n:], stacked),
            )

        after, kept = structured.loop(self.F, init, xs, given, op.trip, step, reverse=op.reverse)
        outputs = [_exchanged(self.F, v) if o else v for v, o in zip(kept, stacked, strict=True)]
        return [*_batched(after, carried), *_batched(outputs, stacked)]


def _batched(values: Values, own: Own) -> list[Batched]:
    return [Batched(v, o) for v, o in zip(values, own, strict=True)]


def _exchanged(F: Builder[Any], x: Any) -> Any:
    """The first two axes, examples and iterations, exchanged."""
    rank = len(F.shape(x))
    return F.transpose(x, (1, 0, *range(2, rank)))
