"""Lowering: the loops that come out, and that compiled kernels compute what the fused program says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sample_programs import traced

from cuvil.compiler import CompileOptions, compile_program
from cuvil.dtypes import bool_, float16, float32, float64, int8, int32, int64, uint8
from cuvil.frontend.dispatch import apply
from cuvil.ir.kernel import ForOp, ScratchOp, TemplateOp
from cuvil.ops.record import Aval
from cuvil.passes.fusion import fuse
from cuvil.passes.lowering.loops import _Axis, merge_axes
from cuvil.passes.lowering.program import lower_program
from cuvil.passes.lowering.views import strided_view
from cuvil.passes.pipeline import PassOptions, optimise
from cuvil.symbolic import Scope, parse_dim, symbol

B, S = symbol("B"), symbol("S")


def _lowered(fn: Any, *avals: Aval) -> Any:
    program = traced(fn, *avals)
    optimise(program.func, program.scope, PassOptions())
    fuse(program.func, program.scope)
    return lower_program(program.func, program.scope)


def _loops(program: Any) -> list[list[tuple[str, str]]]:
    """(kind, extent) of each kernel's loops in the order of their opening."""
    return [
        [(op.params["kind"], str(op.params["upper"])) for op in k.body.walk() if isinstance(op, ForOp)]
        for k in program.kernels
    ]


def test_neighbouring_axes_become_one_loop() -> None:
    cube = Aval((B, S, 8), float32)
    ((blocks, lanes),) = _loops(_lowered(lambda x: apply("exp", x), cube))
    assert blocks[0] == "parallel" and lanes[0] == "vector"
    row = Aval((8,), float32)
    assert _loops(_lowered(lambda x, r: apply("add", x, r), cube, row)) == [[("parallel", "B*S"), ("vector", "8")]]
    assert _loops(_lowered(lambda x: apply("sum", x, axes=(1, 2), keepdims=False), cube)) == [
        [("parallel", "B"), ("vector", "8*S")]
    ]


def test_a_column_reduction_vectorises_over_columns() -> None:
    ((blocks, lanes, rows),) = _loops(
        _lowered(lambda x: apply("sum", x, axes=(0,), keepdims=False), Aval((B, S), float32))
    )
    assert (blocks[0], lanes[0]) == ("parallel", "vector") and rows == ("serial", "B")


def test_costly_values_of_a_row_are_kept_in_scratch() -> None:
    program = _lowered(lambda x: apply("softmax", x, axis=1), Aval((B, S), float32))
    assert sum(isinstance(op, ScratchOp) for op in program.module.walk()) == 1
    cheap = _lowered(lambda x: apply("subtract", x, apply("max", x, axes=(1,), keepdims=True)), Aval((B, S), float32))
    assert not any(isinstance(op, ScratchOp) for op in cheap.module.walk())


def test_equal_kernels_are_shared() -> None:
    def fn(x: Any, w: Any) -> Any:
        for _ in range(4):
            x = apply("tanh", apply("matmul", x, w))
        return x

    program = _lowered(fn, Aval((B, 8), float32), Aval((8, 8), float32))
    assert len(program.kernels) == 1


def test_constant_weights_are_packed_for_their_kernel() -> None:
    w = np.ones((8, 8), np.float32)
    program = _lowered(lambda x: apply("matmul", x, w), Aval((B, 8), float32))
    (template,) = [op for op in program.module.walk() if isinstance(op, TemplateOp)]
    assert template.params["b_packed"] is True and len(program.constants) == 1


def test_loops_merge_where_every_access_walks_them_as_one() -> None:
    axes = [_Axis("_i0", B, False), _Axis("_i1", S, False), _Axis("_i2", 8, False)]

    def names(*accesses: str) -> list[str]:
        merged, _ = merge_axes(axes, [parse_dim(a) for a in accesses])
        return [f"{a.var}:{a.extent}" for a in merged]

    assert names("8*S*_i0 + 8*_i1 + _i2") == ["_i2:8*B*S"]
    assert names("8*S*_i0 + 8*_i1 + _i2", "_i2") == ["_i1:B*S", "_i2:8"]
    assert names("8*S*_i0 + 8*_i1 + _i2", "_i0") == ["_i0:B", "_i2:8*S"]
    assert names("8*S*_i0 + 8*_i1 + _i2", "8*B*_i1 + 8*_i0 + _i2") == ["_i0:B", "_i1:S", "_i2:8"]
    mixed = [_Axis("_i0", B, False), _Axis("_i1", S, True)]
    assert len(merge_axes(mixed, [parse_dim("S*_i0 + _i1")])[0]) == 2


def test_strided_views() -> None:
    x = Aval((B, 6, 4), float32)

    def view(fn: Any) -> Any:
        program = traced(fn, x)
        returned = program.func.body.block.last_op
        assert returned is not None
        found = strided_view(returned.operands[0], Scope())
        return None if found is None else (str(found.offset), [str(s) for s in found.strides])

    assert view(lambda t: t) == ("0", ["24", "4", "1"])
    assert view(lambda t: apply("transpose", t, axes=(2, 0, 1))) == ("0", ["1", "24", "4"])
    assert view(lambda t: apply("slice", t, starts=(0, 1, 0), sizes=(B, 2, 2), steps=(1, 2, 1))) == (
        "4",
        ["24", "8", "1"],
    )
    assert view(lambda t: apply("flip", t, axes=(2,))) == ("3", ["24", "4", "-1"])
    assert view(lambda t: apply("reshape", t, shape=(B, 3, 2, 4))) == ("0", ["24", "8", "4", "1"])
    assert view(lambda t: apply("reshape", apply("transpose", t, axes=(0, 2, 1)), shape=(B, 24))) is None


SHAPES = ((0, 3), (1, 1), (2, 0), (3, 17), (5, 64))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: apply("softmax", x, axis=1),
        lambda x: apply("softmax", x, axis=0),
        lambda x: apply("sum", x, axes=(0, 1), keepdims=False),
        lambda x: apply("sum", apply("transpose", x, axes=(1, 0)), axes=(0,), keepdims=True),
        lambda x: apply("add", x, apply("flip", x, axes=(0, 1))),
        lambda x: apply("concat", x, apply("exp", x), x, axis=1),
        lambda x: apply("pad", x, pairs=((1, 0), (0, 2)), mode="constant", value=-1.5),
        lambda x: apply("multiply", apply("sum", x, axes=(1,), keepdims=True), x),
        lambda x: (
            apply("sum", x, axes=(1,), keepdims=False),
            apply("exp", x),
            apply("sum", x, axes=(0,), keepdims=False),
        ),
    ],
)
def test_compiled_kernels_agree_with_the_interpreter(fn: Any) -> None:
    avals = [Aval((B, S), float32)]
    want = compile_program(traced(fn, *avals), CompileOptions(backend="reference", optimise=False))
    got = compile_program(traced(fn, *avals), CompileOptions())
    for b, s in SHAPES:
        x = np.random.default_rng(1).standard_normal((b, s)).astype(np.float32)
        env = {"B": b, "S": s}
        for g, w in zip(got.run([x], env), want.run([x], env), strict=True):
            assert g.shape == w.shape and g.dtype == w.dtype
            np.testing.assert_allclose(g, w, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("dt", [bool_, int8, uint8, int32, int64, float16, float32, float64])
def test_movement_is_exact_for_every_dtype(dt: Any) -> None:
    def fn(x: Any) -> Any:
        return apply(
            "concat",
            apply("transpose", x, axes=(1, 0)),
            apply("transpose", apply("flip", x, axes=(1,)), axes=(1, 0)),
            axis=0,
        )

    program = compile_program(traced(fn, Aval((B, S), dt)), CompileOptions())
    for b, s in SHAPES:
        x = np.random.default_rng(2).integers(0, 2 if dt is bool_ else 100, (b, s)).astype(dt.numpy)
        (out,) = program.run([x], {"B": b, "S": s})
        np.testing.assert_array_equal(out, np.concatenate([x.T, x[:, ::-1].T]))


@pytest.mark.parametrize("dt", [bool_, uint8, float16, float32, int64])
def test_reordered_axes_are_copied_in_blocks(dt: Any) -> None:
    def fn(x: Any) -> Any:
        part = apply("slice", apply("flip", x, axes=(0,)), starts=(0, 1, 0), sizes=(B, 4, S), steps=(1, 2, 1))
        return apply("transpose", part, axes=(2, 0, 1)), apply("transpose", x, axes=(1, 2, 0))

    avals = [Aval((B, 9, S), dt)]
    templates = [op for k in _lowered(fn, *avals).kernels for op in k.body.walk() if isinstance(op, TemplateOp)]
    assert [t.params["kind"] for t in templates] == ["permute", "permute"]
    program = compile_program(traced(fn, *avals), CompileOptions())
    for b, s in ((0, 3), (1, 1), (2, 0), (4, 37), (33, 64)):
        x = np.random.default_rng(3).integers(0, 2 if dt is bool_ else 100, (b, 9, s)).astype(dt.numpy)
        first, second = program.run([x], {"B": b, "S": s})
        np.testing.assert_array_equal(first, x[::-1, 1:9:2].transpose(2, 0, 1))
        np.testing.assert_array_equal(second, x.transpose(1, 2, 0))


def test_axes_in_place_stay_loops() -> None:
    program = _lowered(lambda x: apply("transpose", x, axes=(1, 0, 2)), Aval((B, 9, S), float32))
    assert not [op for k in program.kernels for op in k.body.walk() if isinstance(op, TemplateOp)]
