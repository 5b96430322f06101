"""IR text: golden texts of each stage, and that printing, parsing and verifying agree."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_programs import SAMPLES, compiled, traced

from cuvil.compiler import CompileOptions, compile_program
from cuvil.dtypes import float32
from cuvil.frontend.dispatch import apply
from cuvil.ir.attributes import format_param, param_key, parse_param
from cuvil.ir.interpreter import location_text
from cuvil.ir.text import format_module, parse_module
from cuvil.ir.verifier import verify_stage
from cuvil.ops.record import Aval
from cuvil.passes.fusion import fuse
from cuvil.passes.lowering.program import lower_program
from cuvil.passes.pipeline import PassOptions, optimise
from cuvil.support.errors import IRError
from cuvil.symbolic import symbol

STAGES = ("tensor", "optimised", "fused", "kernel")


@pytest.mark.parametrize("name", SAMPLES)
def test_stage_texts(name: str, golden: Any) -> None:
    program = compiled(SAMPLES[name], backend="null")
    for stage in STAGES:
        golden(program.as_text(stage), stage)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", SAMPLES)
def test_text_parses_back_and_verifies(name: str, stage: Any) -> None:
    text = compiled(SAMPLES[name], backend="null").as_text(stage)
    module = parse_module(text)
    verify_stage(module, stage)
    assert format_module(module) == text


@pytest.mark.parametrize("stage", STAGES)
def test_locations_round_trip(stage: str) -> None:
    sample = SAMPLES["residual_layer_norm"]
    program = traced(sample.fn, *sample.avals)
    module = program.module
    if stage != "tensor":
        optimise(program.func, program.scope, PassOptions())
    if stage in ("fused", "kernel"):
        fuse(program.func, program.scope)
    if stage == "kernel":
        module = lower_program(program.func, program.scope).module
    text = format_module(module, locations=True)
    assert "sample_programs.py" in text
    again = parse_module(text)
    assert format_module(again, locations=True) == text
    assert [location_text(op) for op in again.walk()] == [location_text(op) for op in module.walk()]


def test_a_large_constant_lives_as_long_as_its_program() -> None:
    import numpy as np

    w = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    program = traced(lambda x: apply("matmul", x, w), Aval((symbol("B"), 64), float32))
    text = format_module(program.module)
    assert "resource" in text and len(text) < 1000
    assert format_module(parse_module(text)) == text
    other = text.replace("resource ", "resource 00")
    with pytest.raises(IRError, match="not in memory"):
        parse_module(other)


def test_absent_operands_are_printed_as_none() -> None:
    def recurrent(x: Any, h: Any, w: Any, r: Any, b: Any) -> Any:
        return apply("gru", x, h, w, r, None, b)[0]

    shapes = [(symbol("T"), 2, 3), (2, 4), (12, 3), (12, 4), (12,)]
    avals = [Aval(s, float32) for s in shapes]
    text = format_module(traced(recurrent, *avals).module)
    assert ", none, %x4 " in text
    assert format_module(parse_module(text)) == text


@pytest.mark.parametrize(
    "value, kind",
    [
        (-0.0, "float"), (float("-inf"), "float"), (1e-12, "any"), (0.5, "any"), (float("inf"), "scalar"),
        (-3, "scalar"), (True, "any"), (None, "any"), ((), "ints"), (((1, 2), (symbol("B"), 0)), "pairs"),
        ('a "b" \\ , ] \n', "str"), (float32, "dtype"), (symbol("B") * 2 + 1, "dim"), (("x", "y"), "any"),
    ],
)  # fmt: skip
def test_parameters_round_trip(value: Any, kind: str) -> None:
    assert param_key(parse_param(format_param(value), kind)) == param_key(value)


_TEXTS = {s: compiled(SAMPLES["linear_gelu"], backend="null").as_text(s) for s in STAGES}


@given(st.sampled_from(STAGES), st.data())
def test_damaged_text_is_an_ir_error(stage: str, data: st.DataObject) -> None:
    """Cutting, doubling or replacing a piece of a text gives another valid text or an IRError, never anything else."""
    text = _TEXTS[stage]
    i = data.draw(st.integers(0, len(text) - 1))
    j = data.draw(st.integers(i, min(len(text), i + 12)))
    piece = data.draw(st.sampled_from(["", text[i:j] * 2, "]", "%9", "<", '"', "B // 0", "[", "\x00", "-1", "f99"]))
    try:
        module = parse_module(text[:i] + piece + text[j:])
        verify_stage(module, stage)  # type: ignore[arg-type]
    except IRError as error:
        assert str(error)


def test_unknown_ops_are_refused() -> None:
    with pytest.raises(IRError, match="not registered"):
        parse_module("builtin.module { %0 = cuvil.frobnicate : !cuvil.tensor<[2] x f32> }")


def test_types_are_checked_when_text_is_read() -> None:
    text = compile_program(
        traced(lambda x: apply("exp", x), Aval((symbol("B"), 4), float32)),
        CompileOptions(backend="null"),
        keep_text=True,
    ).as_text("tensor")
    with pytest.raises(IRError, match="its rules give"):
        parse_module(text.replace("[B, 4] x f32>)", "[B, 5] x f32>)"))
