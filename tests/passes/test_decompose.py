"""Decomposition: nothing composite is left, values stay, and absent cases are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sample_programs import SAMPLES, traced

from cuvil.dtypes import float16, float32, int64
from cuvil.frontend.dispatch import apply
from cuvil.ir.dialect import TensorOp, aval_of
from cuvil.ir.interpreter import location_text, run_function
from cuvil.ir.verifier import verify_stage
from cuvil.ops.record import Aval, Decomposition
from cuvil.passes.decompose import broadcast_updates, decompose, widen_halves
from cuvil.symbolic import symbol

B = symbol("B")


def _ops(program: Any) -> list[TensorOp]:
    return [op for op in program.func.body.block.ops if isinstance(op, TensorOp)]


@pytest.mark.parametrize("name", SAMPLES)
def test_composites_become_basic_ops_of_the_same_value(name: str) -> None:
    sample = SAMPLES[name]
    program = traced(sample.fn, *sample.avals)
    env = sample.sizes[0]
    arrays = sample.arrays(env)
    want = run_function(program.func, arrays, env)
    decompose(program.func)
    verify_stage(program.module, "optimised")
    assert not any(isinstance(op.record.body, Decomposition) for op in _ops(program))
    got = run_function(program.func, arrays, env)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-6)
    assert all("sample_programs.py" in location_text(op) for op in _ops(program))
    assert decompose(program.func) == 0


def test_an_op_may_be_kept_whole() -> None:
    sample = SAMPLES["attention"]
    program = traced(sample.fn, *sample.avals)
    kept = decompose(program.func, lambda op: op.record.name == "scaled_dot_product_attention")
    assert kept == 0 and [op.record.name for op in _ops(program)] == ["scaled_dot_product_attention", "transpose"]


def test_recurrent_kernels_compute_halves_in_float32() -> None:
    shapes = [(5, 2, 3), (2, 4), (12, 3), (12, 4)]
    program = traced(lambda x, h, w, r: apply("gru", x, h, w, r, None, None), *[Aval(s, float16) for s in shapes])
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(np.float16) for s in shapes]
    want = run_function(program.func, arrays, {})
    assert widen_halves(program.func, frozenset({"gru"})) == 1
    verify_stage(program.module, "tensor")
    (gru,) = [op for op in _ops(program) if op.record.name == "gru"]
    assert all(aval_of(o).dtype is float32 for o in gru.operands)
    for g, w in zip(run_function(program.func, arrays, {}), want, strict=True):
        assert g.dtype == np.float16
        np.testing.assert_allclose(g.astype(np.float32), w.astype(np.float32), atol=2e-3)
    assert widen_halves(program.func, frozenset({"gru"})) == 0


def test_scatter_updates_get_their_full_shape() -> None:
    def fn(x: Any, u: Any, i: Any) -> Any:
        return apply("scatter", x, u, i, op="add", mode="error")

    program = traced(fn, Aval((B, 3), float32), Aval((3,), float32), Aval((4,), int64))
    x, u, i = np.zeros((5, 3), np.float32), np.arange(3, dtype=np.float32), np.array([0, 2, 2, -1])
    (want,) = run_function(program.func, [x, u, i], {"B": 5})
    assert broadcast_updates(program.func) == 1
    verify_stage(program.module, "tensor")
    (scatter,) = [op for op in _ops(program) if op.record.name == "scatter"]
    assert aval_of(scatter.operands[1]).shape == (4, 3)
    np.testing.assert_array_equal(run_function(program.func, [x, u, i], {"B": 5})[0], want)
    assert broadcast_updates(program.func) == 0
