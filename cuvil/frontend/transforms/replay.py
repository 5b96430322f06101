"""Runs a traced function again, op by op, over the values of a transform: at once, or into the trace in progress."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Block, Operation, SSAValue

from cuvil.dtypes import bool_ as bool_dtype
from cuvil.dtypes import complex128, dtype, float64, int64
from cuvil.frontend.dispatch import TraceBuilder, materialise
from cuvil.frontend.program import Subprogram
from cuvil.frontend.tracer import Tracer, current_trace
from cuvil.frontend.transforms import structured
from cuvil.ir.control import CheckOp, ControlOp, LoopOp, SwitchOp, WhileOp, YieldOp, has_checks, yielded
from cuvil.ir.dialect import ConstantOp, TensorOp, aval_of
from cuvil.ir.interpreter import location_text
from cuvil.ops.builder import Builder, NumpyBuilder
from cuvil.ops.record import Aval
from cuvil.support.errors import CuvilError, IRError
from cuvil.symbolic import Expr

Values = Sequence[Any]
#: What Python numbers are stored as; they stay weak in promotion.
_NUMBERS = {bool: bool_dtype, int: int64, float: float64, complex: complex128}


def builder_here() -> Builder[Any]:
    """Where a transform computes: the trace in progress, or NumPy."""
    trace = current_trace()
    return NumpyBuilder() if trace is None else TraceBuilder(trace)


def aval_of_operand(x: Any) -> Aval:
    """Shape and dtype of what :func:`~cuvil.frontend.dispatch.asoperand` returns; Python numbers in 64 bits."""
    if isinstance(x, Tracer):
        return x.aval
    if isinstance(x, np.ndarray):
        return Aval(x.shape, dtype(x.dtype))
    return Aval((), int64 if isinstance(x, Expr) else _NUMBERS[type(x)])


def value_of(F: Builder[Any], x: Any, aval: Aval) -> Any:
    """An operand as a value of the builder."""
    return materialise(F, x, aval.dtype)


@contextmanager
def copying(F: Builder[Any]) -> Generator[Callable[[Any], None]]:
    """A function to call with the location of each op before its copy is emitted."""
    trace = F.trace if isinstance(F, TraceBuilder) else None
    before = None if trace is None else trace.origin

    def enter(location: Any) -> None:
        if trace is not None:
            trace.origin = location

    try:
        yield enter
    finally:
        enter(before)


class Transform(ABC):
    """Runs blocks over the values of a transform.

    ``F`` is the builder beneath, and ``over`` the transform's own, whose values this one's are.
    """

    def __init__(self, F: Builder[Any], over: Builder[Any]) -> None:
        self.F = F
        self.over = over

    @abstractmethod
    def lift(self, value: Any) -> Any:
        """A value of ``F`` that the transform leaves alone."""

    @abstractmethod
    def control(self, op: ControlOp, operands: Values) -> Values:
        """The results of an op with regions."""

    @abstractmethod
    def check(self, op: CheckOp, condition: Any) -> None:
        """An assertion of the function."""

    def enter(self, op: Operation) -> None:  # noqa: B027 - few transforms want to know
        """Called before each op."""

    def subprogram(self, sub: Subprogram, arguments: Values) -> list[Any]:
        """The results of a traced function.

        Raises:
            CuvilError: an op has no rule; the message names the user's line.
        """
        captured: list[Any] = []
        for outer, _ in sub.captured:
            assert isinstance(self.F, TraceBuilder)
            captured.append(self.lift(outer.value_in(self.F.trace)))
        given = {**dict(zip(sub.arguments, arguments, strict=True))}
        given.update(zip((argument for _, argument in sub.captured), captured, strict=True))
        return self._run(sub.block, given, sub.results)

    def region(self, block: Block, arguments: Values) -> list[Any]:
        """What a region hands out."""
        return self._run(block, dict(zip(block.args, arguments, strict=True)), yielded(block))

    def _run(self, block: Block, values: dict[SSAValue, Any], results: Sequence[SSAValue]) -> list[Any]:
        live = _live(block, results)
        with copying(self.F) as place:
            for op in block.ops:
                if op not in live:
                    continue
                place(op.location)
                self.enter(op)
                try:
                    values.update(zip(op.results, self._results(op, values), strict=True))
                except CuvilError as error:
                    _point_at(error, op)
                    raise
        return [values[r] for r in results]

    def _results(self, op: Operation, values: dict[SSAValue, Any]) -> Values:
        if isinstance(op, ConstantOp):
            return (self.lift(_constant(self.F, op)),)
        if isinstance(op, TensorOp):
            return self.over.emit(op.record.name, [None if a is None else values[a] for a in op.arguments], op.params)
        if isinstance(op, ControlOp):
            return self.control(op, [values[o] for o in op.operands])
        if isinstance(op, CheckOp):
            self.check(op, values[op.operands[0]])
            return ()
        raise IRError(f"a transform does not run {op.name}")


class Copy(Transform):
    """Runs blocks as they are."""

    def __init__(self, F: Builder[Any]) -> None:
        super().__init__(F, F)

    def lift(self, value: Any) -> Any:
        return value

    def check(self, op: CheckOp, condition: Any) -> None:
        structured.check(self.F, condition, op.message)

    def control(self, op: ControlOp, operands: Values) -> Values:
        if isinstance(op, SwitchOp):
            branches = [_copied(block) for block in op.bodies]
            return structured.switch(self.F, operands[0], operands[1:], branches)
        if isinstance(op, WhileOp):
            condition, body = (_copied(block) for block in op.bodies)
            n = op.carried
            return structured.while_loop(
                self.F,
                operands[:n],
                operands[n:],
                lambda G, state, given: condition(G, [*state, *given])[0],
                lambda G, state, given: body(G, [*state, *given]),
            )
        assert isinstance(op, LoopOp)
        state, stacked = self.loop(op, operands, save=False)
        return [*state, *stacked]

    def loop(self, op: LoopOp, operands: Values, *, save: bool) -> tuple[list[Any], list[Any]]:
        """A counted loop; with ``save`` it also stacks the values that each iteration begins with."""
        n, k = op.carried, op.scanned
        body = _copied(op.bodies[0])

        def step(G: Builder[Any], i: Any, state: Values, slices: Values, given: Values) -> tuple[Values, Values]:
            out = body(G, [i, *state, *slices, *given])
            return out[:n], [*out[n:], *(state if save else ())]

        return structured.loop(
            self.F, operands[:n], operands[n : n + k], operands[n + k :], op.trip, step, reverse=op.reverse
        )


def _copied(block: Block) -> structured.Region:
    return lambda G, values: Copy(G).region(block, values)


def _point_at(error: CuvilError, op: Operation) -> None:
    """Add the user's line of an op to an error of its rules."""
    where = f" (at {location_text(op)})"
    if error.args and " (at " not in str(error.args[0]):
        error.args = (f"{error.args[0]}{where}", *error.args[1:])


def _constant(F: Builder[Any], op: ConstantOp) -> Any:
    return F.trace.builder.shared_constant(op.constant) if isinstance(F, TraceBuilder) else op.value


def _live(block: Block, results: Sequence[SSAValue]) -> set[Operation]:
    """The ops that the results need, and assertions."""
    needed = set(results)
    live: set[Operation] = set()
    for op in reversed(list(block.ops)):
        if isinstance(op, (YieldOp, ReturnOp)):
            continue
        if has_checks(op) or any(r in needed for r in op.results):
            live.add(op)
            needed.update(op.operands)
    return live


def reached(block: Block, arguments: Sequence[bool], counts: Callable[[Aval], bool]) -> list[bool]:
    """Which of the values that a region hands out depend on some of its arguments, through values that count."""
    known: set[SSAValue] = {a for a, given in zip(block.args, arguments, strict=True) if given}
    for op in block.ops:
        if any(o in known for o in op.operands):
            known.update(r for r in op.results if counts(aval_of(r)))
    return [v in known for v in yielded(block)]


def reached_in_loop(
    block: Block, leading: int, carried: Sequence[bool], rest: Sequence[bool], counts: Callable[[Aval], bool]
) -> tuple[list[bool], list[bool]]:
    """The same for a loop's body, whose carried values come back as arguments: carried and further results."""
    current = list(carried)
    while True:
        out = reached(block, [*[False] * leading, *current, *rest], counts)
        after = [a or b for a, b in zip(current, out[: len(current)], strict=True)]
        if after == current:
            return current, out[len(current) :]
        current = after
