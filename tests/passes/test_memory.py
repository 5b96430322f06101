"""Memory plans: lifetimes cover every use, and outputs take over inputs only where that is safe."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_programs import traced

from cuvil.dtypes import float32
from cuvil.frontend.dispatch import apply
from cuvil.ir.kernel import AllocOp, CallOp, CopyOp, ViewOp
from cuvil.ir.kernel_program import KernelProgram
from cuvil.ops.record import Aval
from cuvil.passes.fusion import fuse
from cuvil.passes.lowering.program import lower_program
from cuvil.passes.memory import in_place_pairs
from cuvil.passes.pipeline import PassOptions, optimise
from cuvil.symbolic import symbol

B = symbol("B")
ROWS = Aval((B, 8), float32)


def _lowered(fn: Any, *avals: Aval) -> KernelProgram:
    program = traced(fn, *avals)
    optimise(program.func, program.scope, PassOptions())
    fuse(program.func, program.scope)
    return lower_program(program.func, program.scope)


def _kernel_pairs(fn: Any, *avals: Aval) -> set[tuple[int, int]]:
    (kernel,) = _lowered(fn, *avals).kernels
    return in_place_pairs(kernel)


@pytest.mark.parametrize(
    "fn, count, pairs",
    [
        (lambda x: apply("exp", x), 1, {(0, 1)}),
        (lambda x, y: apply("add", x, y), 2, {(0, 2), (1, 2)}),
        # A row's maximum needs every element before the first is written, and elements are read again.
        (lambda x: apply("flip", x, axes=(1,)), 1, set()),
        (lambda x: apply("transpose", x, axes=(1, 0)), 1, set()),
        (lambda x: apply("add", x, apply("flip", x, axes=(0,))), 1, set()),
        (lambda x: apply("sum", x, axes=(1,), keepdims=False), 1, set()),
        (lambda x: apply("cumulative_sum", x, axis=1, include_initial=False), 1, set()),
    ],
)
def test_which_outputs_may_take_over_an_input(fn: Any, count: int, pairs: set[tuple[int, int]]) -> None:
    assert _kernel_pairs(fn, *[ROWS] * count) == pairs


def test_rows_are_read_before_they_are_written() -> None:
    assert _kernel_pairs(lambda x: apply("softmax", x, axis=1), ROWS) == {(0, 1)}


def test_operands_of_contractions_stay_while_results_are_written() -> None:
    square = Aval((8, 8), float32)

    def fn(x: Any, w: Any, r: Any) -> Any:
        return apply("add", apply("matmul", x, w), r)

    assert _kernel_pairs(fn, square, square, square) == {(2, 3)}


def _check_plan(program: KernelProgram) -> None:
    """Every temporary has a slot whose life covers each call that touches it; sharers never need it at one time."""
    memory = program.memory
    time = 0
    uses: dict[Any, list[int]] = {}
    root: dict[Any, Any] = {}
    written: dict[Any, int] = {}
    kernels = {k.params["name"]: k for k in program.kernels}
    for op in program.host.body.ops:
        if isinstance(op, AllocOp):
            root[op.results[0]] = op.results[0]
        elif isinstance(op, ViewOp) and op.operands[0] in root:
            root[op.results[0]] = root[op.operands[0]]
        elif isinstance(op, (CallOp, CopyOp)):
            for k, o in enumerate(op.operands):
                if o in root:
                    uses.setdefault(root[o], []).append(time)
                    if isinstance(op, CallOp) and k in kernels[op.params["kernel"]].params["outputs"]:
                        written.setdefault(root[o], time)
            time += 1
    for value, times in uses.items():
        slot = memory.slots[memory.slot_of[value]]
        assert slot.first <= times[0] and times[-1] <= slot.last
    spans = sorted((memory.slot_of[v], t[0], t[-1]) for v, t in uses.items())
    for (slot, _, last), (other, first, _) in pairwise(spans):
        if slot == other:
            assert last <= first, "a buffer takes over another's slot only in the call where that one dies"


def test_a_chain_of_kernels_needs_two_buffers() -> None:
    def fn(x: Any) -> Any:
        for _ in range(6):
            x = apply("cumulative_sum", x, axis=0, include_initial=False)
        return x

    program = _lowered(fn, ROWS)
    _check_plan(program)
    assert len(program.memory.slots) == 5 and all(s.last - s.first == 1 for s in program.memory.slots)


def test_unused_results_need_no_memory_twice() -> None:
    program = _lowered(lambda x: (x, apply("exp", x), apply("reshape", apply("exp", x), shape=(8, B))), ROWS)
    _check_plan(program)
    assert program.memory.slots == () and sum(isinstance(op, CopyOp) for op in program.host.body.ops) == 2


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from("esftcm"), st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=20))
def test_random_programs(steps: list[tuple[str, int, int]]) -> None:
    def fn(x: Any) -> Any:
        values = [x]
        for kind, i, j in steps:
            a, b = values[i % len(values)], values[j % len(values)]
            if kind == "e":
                y = apply("add", apply("tanh", a), b)
            elif kind == "s":
                y = apply("softmax", a, axis=1)
            elif kind == "f":
                y = apply("add", apply("flip", a, axes=(0,)), b)
            elif kind == "t":
                y = apply("reshape", apply("transpose", a, axes=(1, 0)), shape=(B, 8))
            elif kind == "c":
                y = apply("cumulative_sum", a, axis=0, include_initial=False)
            else:
                y = apply("add", apply("matmul", a, np.eye(8, dtype=np.float32)), b)
            values.append(y)
        return values[-1], values[len(values) // 2]

    _check_plan(_lowered(fn, ROWS))
