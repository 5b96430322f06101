"""Runs a traced function again, op by op, over the values of a transform: at once, or into the trace in progress."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from xdsl.ir import Operation, SSAValue

from cuvil.dtypes import bool_ as bool_dtype
from cuvil.dtypes import dtype, float64, int64
from cuvil.frontend.dispatch import TraceBuilder, materialise
from cuvil.frontend.program import Subprogram
from cuvil.frontend.tracer import Tracer, current_trace
from cuvil.ir.dialect import ConstantOp, TensorOp
from cuvil.ir.interpreter import location_text
from cuvil.ops.builder import Builder, NumpyBuilder
from cuvil.ops.record import Aval
from cuvil.support.errors import CuvilError, IRError
from cuvil.symbolic import Expr

#: What Python numbers are stored as; they stay weak in promotion.
_NUMBERS = {bool: bool_dtype, int: int64, float: float64}


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


def replay(
    sub: Subprogram,
    F: Builder[Any],
    over: Builder[Any],
    arguments: Sequence[Any],
    lift: Callable[[Any], Any],
    enter: Callable[[Operation], None],
) -> list[Any]:
    """The results of a traced function over the builder of a transform.

    Args:
        sub: the function.
        F: the builder beneath.
        over: the transform's builder.
        arguments: values of ``over`` for the function's arguments.
        lift: makes a value of ``over`` of one of ``F`` that the transform leaves alone.
        enter: called with each op before it runs.

    Raises:
        CuvilError: an op has no rule; the message names the user's line.
    """
    values: dict[SSAValue, Any] = dict(zip(sub.arguments, arguments, strict=True))
    for outer, argument in sub.captured:
        assert isinstance(F, TraceBuilder)
        values[argument] = lift(outer.value_in(F.trace))
    live = _live(sub)
    with copying(F) as place:
        for op in sub.block.ops:
            if op not in live:
                continue
            place(op.location)
            enter(op)
            if isinstance(op, ConstantOp):
                values[op.results[0]] = lift(_constant(F, op))
            elif isinstance(op, TensorOp):
                operands = [None if a is None else values[a] for a in op.arguments]
                try:
                    values.update(zip(op.results, over.emit(op.record.name, operands, op.params), strict=True))
                except CuvilError as error:
                    point_at(error, op)
                    raise
            else:
                raise IRError(f"a transform does not run {op.name}")
    return [values[r] for r in sub.results]


def point_at(error: CuvilError, op: Operation) -> None:
    """Add the user's line of an op to an error of its rules."""
    where = f" (at {location_text(op)})"
    if error.args and " (at " not in str(error.args[0]):
        error.args = (f"{error.args[0]}{where}", *error.args[1:])


def _constant(F: Builder[Any], op: ConstantOp) -> Any:
    return F.trace.builder.shared_constant(op.constant) if isinstance(F, TraceBuilder) else op.value


def _live(sub: Subprogram) -> set[Operation]:
    """The ops that the results need."""
    needed = set(sub.results)
    live: set[Operation] = set()
    for op in reversed(list(sub.block.ops)):
        if any(r in needed for r in op.results):
            live.add(op)
            needed.update(op.operands)
    return live
