from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import find, given, settings

from cuvil.dtypes import float32
from cuvil.ir.interpreter import run_function
from cuvil.ir.text import format_module, parse_module
from cuvil.jit import jit
from cuvil.symbolic import symbol
from cuvil.testing import Input, Program, RandomChooser, Step, draw_program, programs
from cuvil.testing.shrink import shrunk

SEEDS = range(25)


@given(programs(5))
def test_programs_run_on_arrays_and_as_tensor_ir(program: Program) -> None:
    inputs = program.draw()
    with np.errstate(all="ignore"):
        direct = program.function()(*inputs)
        for symbolic in (False, True):
            traced = program.trace(symbolic=symbolic)
            traced.module.verify()
            got = run_function(traced.func, inputs, dict(program.sizes))
            for g, d in zip(got, direct, strict=True):
                np.testing.assert_array_equal(np.asarray(g), d)


@pytest.mark.parametrize("seed", range(6))
def test_programs_can_be_jitted(seed: int) -> None:
    program = draw_program(RandomChooser(seed))
    inputs = program.draw()
    with np.errstate(all="ignore"):
        got = jit(program.function(), backend="reference", optimise=False)(*inputs)
        for a, b in zip(got, program.function()(*inputs), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_source_is_the_program(seed: int) -> None:
    program = draw_program(RandomChooser(seed))
    calls: list[tuple[Any, ...]] = []
    text = program.source().replace("check_backend(", "recorded(")
    text = text.replace("from cuvil.testing import apply, check_backend", "from cuvil.testing import apply")
    exec(compile(text.replace("recorded, ", ""), "<program>", "exec"), {"recorded": lambda *a, **_: calls.append(a)})
    ((function, *arguments),) = calls
    for written, drawn in zip(arguments, program.draw(), strict=True):
        np.testing.assert_array_equal(written, drawn)
    with np.errstate(all="ignore"):
        for a, b in zip(_tuple(function(*arguments)), program.function()(*program.draw()), strict=True):
            np.testing.assert_array_equal(a, b)


def _tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def test_the_same_seed_gives_the_same_program() -> None:
    assert draw_program(RandomChooser(7)).source() == draw_program(RandomChooser(7)).source()


def test_programs_cover_the_ops_dtypes_and_shapes() -> None:
    drawn = [draw_program(RandomChooser(s)) for s in range(300)]
    assert len({step.op for p in drawn for step in p.steps}) > 110
    assert len({i.dtype for p in drawn for i in p.inputs}) > 9
    assert 6 <= np.mean([len(p.steps) for p in drawn]) <= 11
    assert any(0 in p.sizes.values() for p in drawn)
    assert any(1 in p.sizes.values() for p in drawn)
    assert 0.4 < np.mean([bool(p.symbols()) for p in drawn]) < 0.9


def test_ir_text_parses_back() -> None:
    for seed in range(10):
        module = draw_program(RandomChooser(seed)).trace(symbolic=True).module
        text = format_module(module)
        assert format_module(parse_module(text)) == text


B = symbol("B")
CHAIN = Program(
    (Input((B, 3), float32), Input((3,), float32)),
    (
        Step("exp", (0,)),
        Step("add", (2, 1)),
        Step("tanh", (3,)),
        Step("sum", (4,), {"axes": (0,), "keepdims": False}),
        Step("negative", (0,)),
    ),
    (5, 6),
    {"B": 8},
)


def test_pruning_keeps_what_the_outputs_need() -> None:
    small = Program(CHAIN.inputs, CHAIN.steps, (6,), CHAIN.sizes).pruned()
    assert [s.op for s in small.steps] == ["negative"]
    assert len(small.inputs) == 1
    assert small.sizes == {"B": 8}
    assert small.function()(np.ones((2, 3), np.float32))[0].tolist() == [[-1.0] * 3] * 2


def test_shrinking_leaves_the_culprit() -> None:
    small = shrunk(CHAIN, lambda p: any(s.op == "tanh" for s in p.steps))
    assert [s.op for s in small.steps] == ["tanh"]
    assert small.sizes == {}
    assert small.trace(symbolic=False).outputs


def test_a_culprit_that_needs_symbols_keeps_them() -> None:
    small = shrunk(CHAIN, lambda p: bool(p.symbols()) and any(s.op == "tanh" for s in p.steps))
    assert [s.op for s in small.steps] == ["tanh"]
    assert small.sizes == {"B": 1}
    assert small.trace(symbolic=True).outputs


def test_hypothesis_shrinks_programs() -> None:
    quick = settings(max_examples=30, database=None, derandomize=True, deadline=None)
    small = find(programs(3), lambda p: len(p.steps) > 0, settings=quick)
    assert len(small.steps) == 1


def test_a_convolution_over_no_channels_can_be_drawn() -> None:
    program = draw_program(RandomChooser(5003486), 8)
    assert program.steps
