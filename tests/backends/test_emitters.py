"""The C emitters: literals, index expressions, names, and text that is the same each time."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_programs import SAMPLES, compiled

from cuvil.backends.c.backend import emit_sources
from cuvil.backends.c.expressions import c_name, dim, literal
from cuvil.dtypes import EVERY, bool_, float32, float64, int8, int32, int64, uint32, uint64
from cuvil.ir.kernel import INSTRUCTIONS
from cuvil.ir.kernel_program import KernelProgram
from cuvil.ir.text import parse_module
from cuvil.passes.memory import plan_memory
from cuvil.symbolic import evaluate, free_symbols, parse_dim


@pytest.mark.parametrize(
    "value, dt, text",
    [
        (True, bool_, "1"), (0, bool_, "0"), (-5, int8, "-5"), (3, uint32, "3u"),
        (-(2**31), int32, "(-2147483647 - 1)"),
        (2**63 - 1, int64, "INT64_C(9223372036854775807)"), (-(2**63), int64, "INT64_MIN"),
        (2**64 - 1, uint64, "UINT64_C(18446744073709551615)"), (0.5, float32, "0.5f"), (-0.0, float32, "-0.0f"),
        (1e30, float64, "1e+30"), (math.inf, float32, "__builtin_inff()"), (-math.inf, float64, "-__builtin_inf()"),
        (math.nan, float32, '__builtin_nanf("")'),
    ],
)  # fmt: skip
def test_literals(value: Any, dt: Any, text: str) -> None:
    assert literal(value, dt) == text


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_float_literals_are_exact(value: float) -> None:
    text = literal(value, float32).removesuffix("f")
    read = float.fromhex(text) if "0x" in text else float(text)
    assert np.float32(read).tobytes() == np.float32(value).tobytes()


def test_names_of_symbols() -> None:
    assert [c_name(n) for n in ("_i0", "_m", "B", "Seq2", "n", "int", "I", "BATCH", "dim_n", "cv_x")] == [
        "i0", "m", "B", "Seq2", "dim_n", "dim_int", "dim_I", "dim_BATCH", "dim_dim_n", "dim_cv_x",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text", ["7", "B", "B*S + 3", "(S - 1)//2 + 1", "S % 16", "max(S - 4, 1)", "min(B, S)*2", "-B + S**2", "-(S//3)"]
)
def test_index_expressions_mean_the_same_in_c(text: str) -> None:
    """C's division truncates; the emitted text floors as dims do."""
    expr = parse_dim(text)
    source = dim(expr)
    for op in ("cv_fdiv", "cv_fmodi", "cv_imin", "cv_imax"):
        source = source.replace(op, op.removeprefix("cv_"))
    functions = {
        "fdiv": lambda a, b: a // b, "fmodi": lambda a, b: a % b, "imin": min, "imax": max, "INT64_C": ctypes.c_int64,
    }  # fmt: skip
    for b in (0, 1, 5):
        for s in (0, 1, 2, 7, 33):
            env = {n: v for n, v in (("B", b), ("S", s)) if n in free_symbols(expr)}
            assert eval(source, {**functions, "B": b, "S": s}) == evaluate(expr, env)


@pytest.mark.parametrize("name", SAMPLES)
def test_the_text_depends_on_the_program_alone(name: str) -> None:
    """The same text each time, and from a kernel stage read back from its own text."""
    first, second = compiled(SAMPLES[name], backend="c"), compiled(SAMPLES[name], backend="c")
    assert first.as_text("source") == second.as_text("source")
    module = parse_module(first.as_text("kernel"))
    program = KernelProgram(module)
    program.memory = plan_memory(program.host, {k.params["name"]: k for k in program.kernels})
    again = emit_sources(program)
    text = first.as_text("source")
    assert len(again) > 1 and text.count("/* ---- ") == len(again)
    assert all(f"/* ---- {name} ---- */\n{source}" in text for name, source in again.items() if name != "main")


def test_sources_name_ops_and_the_users_lines() -> None:
    text = compiled(SAMPLES["residual_layer_norm"]).as_text("source")
    assert "sample_programs.py:" in text and "12 ops, reductions over axes [2] of BxSx48" in text
    assert "/* [B, S, 48] */" in text


def test_every_dtype_has_a_memory_type() -> None:
    from cuvil.backends.c.expressions import MEMORY

    assert set(MEMORY) == {d.short for d in EVERY}
    assert INSTRUCTIONS
