"""Compares arrays with the reference's bounded values, and runs functions of the tensor IR with bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, SSAValue

from cuvil.dtypes import dtype
from cuvil.ir.control import CheckOp, ControlOp, LoopOp, SwitchOp, WhileOp, YieldOp
from cuvil.ir.dialect import ConstantOp, TensorOp, aval_of
from cuvil.ops.builder import concrete
from cuvil.ops.record import Array, Aval
from cuvil.support.errors import CheckFailed, IRError
from cuvil.symbolic import evaluate
from cuvil.testing.bounds import Bounded, exact, run_bounded, wide

_FACTOR = 2.0  # on bounds that are of first order


class Mismatch(AssertionError):
    """Two implementations disagree; the message holds a few lines of Python that show it."""


def run_function_bounded(func: FuncOp, inputs: Sequence[Array], env: Mapping[str, int]) -> list[Bounded]:
    """The reference's results of a tensor-stage function with their bounds.

    Raises:
        CuvilError: what the reference of one of its ops raises.
        IRError: the function is not at the tensor stage.
    """
    return _run_block(func.body.block, [exact(x) for x in inputs], env)


def _run_block(block: Block, inputs: Sequence[Bounded], env: Mapping[str, int]) -> list[Bounded]:
    values: dict[SSAValue, Bounded] = dict(zip(block.args, inputs, strict=True))
    for op in block.ops:
        if isinstance(op, (ReturnOp, YieldOp)):
            return [values[o] for o in op.operands]
        if isinstance(op, ConstantOp):
            values[op.results[0]] = exact(op.value)
        elif isinstance(op, TensorOp):
            params = {k: concrete(v, dict(env)) for k, v in op.record.fill_params(op.params).items()}
            results = run_bounded(op.record, [None if a is None else values[a] for a in op.arguments], params)
            values.update(zip(op.results, results, strict=True))
        elif isinstance(op, ControlOp):
            values.update(zip(op.results, _run_control(op, [values[o] for o in op.operands], env), strict=True))
        elif isinstance(op, CheckOp):
            if values[op.operands[0]].known and not values[op.operands[0]].value:
                raise CheckFailed(op.message)
        else:
            raise IRError(f"expected a function at the tensor stage, found {op.name}")
    raise IRError("the function ends without a return")


def _run_control(op: ControlOp, given: Sequence[Bounded], env: Mapping[str, int]) -> Sequence[Bounded]:
    """The results of an op with regions; nothing is known of them where a condition is not known."""
    if isinstance(op, SwitchOp):
        if not given[0].known.all():
            return [_unknown(aval_of(r), env) for r in op.results]
        return _run_block(op.bodies[min(max(int(given[0].value), 0), len(op.bodies) - 1)], given[1:], env)
    if isinstance(op, WhileOp):
        state, rest = list(given[: op.carried]), list(given[op.carried :])
        while True:
            (condition,) = _run_block(op.bodies[0], [*state, *rest], env)
            if not condition.known.all():
                return [_unknown(aval_of(r), env) for r in op.results]
            if not condition.value:
                return state
            state = _run_block(op.bodies[1], [*state, *rest], env)
    assert isinstance(op, LoopOp)
    n, k = op.carried, op.scanned
    state, xs, rest = list(given[:n]), given[n : n + k], given[n + k :]
    stacked = [_unknown(aval_of(r), env) for r in op.results[n:]]
    trip = evaluate(op.trip, env)
    for i in reversed(range(trip)) if op.reverse else range(trip):
        slices = [Bounded(np.asarray(x.value[i]), np.asarray(x.error[i])) for x in xs]
        out = _run_block(op.bodies[0], [exact(np.int64(i)), *state, *slices, *rest], env)
        state = out[:n]
        for whole, element in zip(stacked, out[n:], strict=True):
            whole.value[i], whole.error[i] = element.value, element.error
    return [*state, *stacked]


def _unknown(aval: Aval, env: Mapping[str, int]) -> Bounded:
    shape = tuple(evaluate(d, env) for d in aval.shape)
    return Bounded(np.zeros(shape, aval.dtype.numpy), np.full(shape, np.inf))


def disagreement(got: Any, want: Bounded) -> str | None:
    """What is wrong with an array, in a sentence, or None.

    Dtype and shape must be those of the reference. Elements without error must be equal, NaN to NaN and zeros in
    their sign too; others may differ by twice their bound; those of which nothing is known are left out.

    >>> disagreement(np.float32([1, 2]), exact(np.float32([1, 3])))
    'element (1,) is 2.0, expected 3.0; 1 of 2 elements differ'
    """
    array = np.asarray(got)
    if array.dtype != want.value.dtype:
        return f"the dtype is {array.dtype}, expected {want.value.dtype}"
    if array.shape != want.value.shape:
        return f"the shape is {array.shape}, expected {want.value.shape}"
    if dtype(array.dtype).is_float:
        a, b = wide(array), wide(want.value)
        with np.errstate(invalid="ignore"):
            same = (a == b) & ((np.signbit(a) == np.signbit(b)) | (b != 0))
            near = (np.abs(a - b) <= _FACTOR * want.error) & (want.error > 0)
            good = same | (np.isnan(a) & np.isnan(b)) | near
    else:
        good = array == want.value
    bad = ~good & want.known
    if not bad.any():
        return None
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(bad)), bad.shape))
    bound = float(want.error[at])
    allowed = f" within {_FACTOR * bound:.3g}" if bound else ""
    return (
        f"element {at} is {array[at]!s}, expected {want.value[at]!s}{allowed}; "
        f"{int(bad.sum())} of {array.size} elements differ"
    )


def first_disagreement(got: Sequence[Any], want: Sequence[Bounded]) -> str | None:
    """The first result that is wrong, in a sentence, or None."""
    if len(got) != len(want):
        return f"{len(got)} results, expected {len(want)}"
    for k, (g, w) in enumerate(zip(got, want, strict=True)):
        wrong = disagreement(g, w)
        if wrong is not None:
            return f"result {k}: {wrong}" if len(want) > 1 else wrong
    return None


def checked_share(values: Sequence[Bounded]) -> tuple[int, int]:
    """How many elements are compared, and how many there are."""
    return sum(int(v.known.sum()) for v in values), sum(v.value.size for v in values)
