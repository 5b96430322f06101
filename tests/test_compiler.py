"""compile_program: backends agree, stages are kept on demand, options are checked, length costs linear time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sample_programs import SAMPLES, compiled, traced

import cuvil.compiler
from cuvil.compiler import BACKENDS, CompileOptions, compile_program
from cuvil.dtypes import float32
from cuvil.frontend.dispatch import apply
from cuvil.ops.record import Aval
from cuvil.support.errors import ArgumentError, CuvilError
from cuvil.symbolic import symbol

B = symbol("B")


@pytest.mark.parametrize("name", SAMPLES)
def test_backends_agree(name: str) -> None:
    sample = SAMPLES[name]
    reference = compiled(sample, backend="reference", optimise=False)
    others = [compiled(sample, backend="c"), compiled(sample, backend="c", optimise=False, validate=True)]
    others.append(compiled(sample, backend="reference"))
    null = compiled(sample, backend="null")
    for env in (*sample.sizes, {"B": 0, "S": 5}, {"B": 2, "S": 2}):
        arrays = sample.arrays(env)
        want = reference.run(arrays, env)
        for other in others:
            for g, w in zip(other.run(arrays, env), want, strict=True):
                assert g.shape == w.shape and g.dtype == w.dtype
                np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5)
        for g, w in zip(null.run(arrays, env), want, strict=True):
            assert g.shape == w.shape and g.dtype == w.dtype and not g.any()


def test_stages_that_each_backend_has() -> None:
    sample = SAMPLES["softmax"]
    wants = {
        "c": {"tensor", "optimised", "fused", "kernel", "source"},
        "null": {"tensor", "optimised", "fused", "kernel"},
        "reference": {"tensor", "optimised"},
    }
    assert set(wants) == set(BACKENDS)
    for backend, want in wants.items():
        assert set(compiled(sample, backend=backend).stages) == want
    plain = compile_program(traced(sample.fn, *sample.avals), CompileOptions())
    assert set(plain.stages) == {"kernel", "source"}
    with pytest.raises(ArgumentError, match="no stage is named 'tensor'; expected one of kernel, source"):
        plain.as_text("tensor")


def test_records_say_what_each_pass_did() -> None:
    records = {r.name: r for r in compiled(SAMPLES["residual_layer_norm"], backend="null").records}
    assert records["decompose"].changes >= 1 and records["fusion"].changes >= 1
    assert all(r.seconds >= 0 for r in records.values())


@pytest.mark.parametrize(
    "options, message",
    [
        ({"backend": "abacus"}, "unknown backend"),
        ({"numerics": "x"}, "unknown numerics"),
        ({"precision": "f2"}, "precision"),
    ],
)
def test_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        CompileOptions(**options)


def test_validate_names_the_pass_that_changed_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    import cuvil.passes.pipeline as pipeline

    eliminate = pipeline.eliminate_dead_code

    def broken(func: Any) -> int:
        for op in func.body.block.ops:
            if op.name == "cuvil.exp":
                op.results[0].replace_all_uses_with(op.operands[0])
        return eliminate(func)

    monkeypatch.setattr(pipeline, "eliminate_dead_code", broken)
    program = traced(lambda x: apply("exp", x), Aval((B, 4), float32))
    with pytest.raises(CuvilError, match="dce"):
        compile_program(program, CompileOptions(backend="null", validate=True))
    monkeypatch.setattr(pipeline, "eliminate_dead_code", eliminate)
    program = traced(lambda x: apply("exp", x), Aval((B, 4), float32))
    compile_program(program, CompileOptions(backend="null", validate=True))


def test_kernels_are_compiled_once_for_equal_texts() -> None:
    sample = SAMPLES["linear_gelu"]
    a, b = compiled(sample), compiled(sample)
    assert a.runnable.program.kernels == b.runnable.program.kernels  # type: ignore[attr-defined]
    assert a.as_text("source") == b.as_text("source")
    assert cuvil.compiler.runtime_library() is cuvil.compiler.runtime_library()


def test_ten_thousand_ops() -> None:
    def fn(x: Any) -> Any:
        for k in range(10_000):
            x = apply("tanh", x) if k % 2 else apply("multiply", x, np.float32(1.5))
        return x

    program = compile_program(traced(fn, Aval((B, 3), float32)), CompileOptions())
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    want = x
    for k in range(10_000):
        want = np.tanh(want) if k % 2 else want * np.float32(1.5)
    np.testing.assert_allclose(program.run([x], {"B": 2})[0], want, rtol=1e-3, atol=1e-5)


def test_two_thousand_mixed_ops() -> None:
    w = (np.eye(16) / 2).astype(np.float32)

    def fn(x: Any) -> Any:
        for k in range(400):
            x = apply("tanh", apply("add", apply("matmul", x, w), x))
            x = apply("subtract", x, apply("max", x, axes=(1,), keepdims=True))
            if k % 5 == 0:
                x = apply(
                    "reshape", apply("transpose", apply("reshape", x, shape=(B, 4, 4)), axes=(0, 2, 1)), shape=(B, 16)
                )
        return x

    avals = (Aval((B, 16), float32),)
    program = compile_program(traced(fn, *avals), CompileOptions())
    reference = compile_program(traced(fn, *avals), CompileOptions(backend="reference", optimise=False))
    x = np.random.default_rng(0).standard_normal((3, 16)).astype(np.float32)
    (got,), (want,) = program.run([x], {"B": 3}), reference.run([x], {"B": 3})
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)
    assert len(program.runnable.program.kernels) < 10  # type: ignore[attr-defined]
