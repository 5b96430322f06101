"""Fusion: what is grouped, what is not, that values stay, and that time grows with the program's length only."""

from __future__ import annotations

from time import process_time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_programs import SAMPLES, traced

from cuvil.dtypes import float32
from cuvil.frontend.dispatch import apply
from cuvil.ir.dialect import FusionOp
from cuvil.ir.interpreter import run_function
from cuvil.ir.verifier import verify_stage
from cuvil.ops.record import Aval
from cuvil.passes.fusion import MAX_INPUTS, MAX_OPS, fuse
from cuvil.passes.lowering.program import lower_program
from cuvil.passes.pipeline import PassOptions, optimise
from cuvil.symbolic import symbol

B = symbol("B")
ROWS = Aval((B, 8), float32)


def _fused(fn: Any, *avals: Aval) -> Any:
    program = traced(fn, *avals)
    optimise(program.func, program.scope, PassOptions())
    fuse(program.func, program.scope)
    verify_stage(program.module, "fused")
    return program


def _groups(program: Any) -> list[list[str]]:
    return [
        [op.name.removeprefix("cuvil.") for op in f.body.ops if op.name != "cuvil.yield"]
        for f in program.func.body.block.ops
        if isinstance(f, FusionOp)
    ]


def _sum(x: Any, axis: int, keepdims: bool = False) -> Any:
    return apply("sum", x, axes=(axis,), keepdims=keepdims)


@pytest.mark.parametrize("name", SAMPLES)
def test_values_stay(name: str) -> None:
    sample = SAMPLES[name]
    program = traced(sample.fn, *sample.avals)
    optimise(program.func, program.scope, PassOptions())
    wants = [run_function(program.func, sample.arrays(env), env) for env in sample.sizes]
    fuse(program.func, program.scope)
    for env, want in zip(sample.sizes, wants, strict=True):
        for g, w in zip(run_function(program.func, sample.arrays(env), env), want, strict=True):
            np.testing.assert_array_equal(g, w)


def test_models_become_few_kernels() -> None:
    for name in SAMPLES:
        assert len(_groups(_fused(SAMPLES[name].fn, *SAMPLES[name].avals))) == 1, name


def test_a_reduction_over_other_axes_is_another_kernel() -> None:
    program = _fused(lambda x: apply("add", _sum(x, 0), _sum(_sum(x, 1, True), 0)), ROWS)
    assert len(_groups(program)) >= 2


def test_a_value_read_through_a_transpose_is_written_first() -> None:
    square = Aval((B, B), float32)

    def fn(x: Any) -> Any:
        y = apply("exp", x)
        return apply("add", y, apply("transpose", y, axes=(1, 0)))

    assert _groups(_fused(fn, square)) == [["exp"], ["transpose", "add"]]


def test_no_cycle_through_a_third_group() -> None:
    """c reads a's result through a contraction and directly: joining a would make the kernels wait for each other."""

    def fn(x: Any, w: Any) -> Any:
        a = apply("exp", x)
        return apply("add", a, apply("matmul", apply("matmul", a, w), w))

    groups = _groups(_fused(fn, ROWS, Aval((8, 8), float32)))
    assert groups[0] == ["exp"] and groups[-1] == ["matmul", "add"]


def test_groups_are_bounded() -> None:
    def long(x: Any) -> Any:
        for k in range(500):
            x = apply("sin", x) if k % 2 else apply("add", x, np.float32(k))
        return x

    groups = _groups(_fused(long, ROWS))
    assert len(groups) >= 500 // MAX_OPS and all(len([n for n in g if n != "constant"]) <= MAX_OPS for g in groups)

    def wide(*xs: Any) -> Any:
        total = xs[0]
        for x in xs[1:]:
            total = apply("add", total, x)
        return total

    program = _fused(wide, *[ROWS] * (3 * MAX_INPUTS))
    fusions = [op for op in program.func.body.block.ops if isinstance(op, FusionOp)]
    assert all(len(f.operands) <= MAX_INPUTS + 2 for f in fusions)


def test_operands_that_are_no_strided_views_are_written_first() -> None:
    def fn(x: Any, w: Any) -> Any:
        x = apply("reshape", apply("transpose", apply("reshape", x, shape=(B, 2, 4)), axes=(0, 2, 1)), shape=(B, 8))
        return apply("matmul", x, w)

    program = _fused(fn, ROWS, Aval((8, 3), float32))
    assert [g[-1] for g in _groups(program)] in (["reshape", "matmul"], ["transpose", "matmul"])
    verify_stage(lower_program(program.func, program.scope).module, "kernel")


@st.composite
def _programs(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    """Random programs over [B, 8] values: op, then the numbers of the values that it reads."""
    steps: list[tuple[Any, ...]] = []
    for k in range(draw(st.integers(1, 14))):
        op = draw(st.sampled_from(["exp", "add", "multiply", "row", "column", "total", "swap", "matmul", "flip"]))
        steps.append((op, draw(st.integers(0, k)), draw(st.integers(0, k))))
    return steps


@settings(max_examples=60)
@given(_programs())
def test_random_programs_keep_their_values_and_lower(steps: list[tuple[Any, ...]]) -> None:
    def fn(x: Any, w: Any) -> Any:
        values = [x]
        for op, i, j in steps:
            a, b = values[i], values[j]
            if op == "exp":
                y = apply("tanh", a)
            elif op in ("add", "multiply"):
                y = apply(op, a, b)
            elif op == "row":
                y = apply("subtract", a, apply("max", b, axes=(1,), keepdims=True))
            elif op == "column":
                y = apply("add", a, _sum(b, 0))
            elif op == "total":
                y = apply("multiply", a, apply("tanh", apply("sum", b, axes=(0, 1), keepdims=False)))
            elif op == "swap":
                y = apply("transpose", apply("reshape", a, shape=(B, 2, 4)), axes=(0, 2, 1))
                y = apply("reshape", y, shape=(B, 8))
            elif op == "matmul":
                y = apply("add", apply("matmul", a, w), b)
            else:
                y = apply("flip", a, axes=(1,))
            values.append(y)
        return values[-1], values[len(values) // 2]

    program = traced(fn, ROWS, Aval((8, 8), float32))
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((3, 8)).astype(np.float32), (rng.standard_normal((8, 8)) / 8).astype(np.float32)
    optimise(program.func, program.scope, PassOptions())
    want = run_function(program.func, [x, w], {"B": 3})
    fuse(program.func, program.scope)
    verify_stage(program.module, "fused")
    for g, v in zip(run_function(program.func, [x, w], {"B": 3}), want, strict=True):
        np.testing.assert_array_equal(g, v)
    verify_stage(lower_program(program.func, program.scope).module, "kernel")


def _chain(x: Any, n: int) -> Any:
    for k in range(n):
        x = apply("tanh", x) if k % 2 else apply("multiply", x, np.float32(0.9))
    return x


def _mixed(x: Any, n: int) -> Any:
    w = np.eye(8, dtype=np.float32)
    for k in range(n // 5):
        x = apply("tanh", apply("add", apply("matmul", x, w), x))
        x = apply("subtract", x, _sum(x, 1, True))
        if k % 4 == 0:
            x = apply("reshape", apply("flip", apply("reshape", x, shape=(B, 2, 4)), axes=(2,)), shape=(B, 8))
    return x


def _fan_out(x: Any, n: int) -> Any:
    parts = [_sum(apply("multiply", x, np.float32(k + 1)), 0) for k in range(n // 3)]
    total = parts[0]
    for p in parts[1:]:
        total = apply("add", total, p)
    return total


@pytest.mark.parametrize("make, n", [(_chain, 2000), (_mixed, 1000), (_fan_out, 1500)])
def test_time_grows_with_length_only(make: Any, n: int) -> None:
    """Twice the ops take about twice the time from trace to kernels, with no recursion over the graph's depth."""

    def seconds(length: int) -> float:
        best = float("inf")
        for _ in range(2):
            start = process_time()
            program = traced(lambda x: make(x, length), ROWS)
            optimise(program.func, program.scope, PassOptions())
            fuse(program.func, program.scope)
            lower_program(program.func, program.scope)
            best = min(best, process_time() - start)
        return best

    short, long = seconds(n), seconds(2 * n)
    assert long < 3.2 * short + 0.1, f"{n} ops: {short:.2f} s, {2 * n} ops: {long:.2f} s"
