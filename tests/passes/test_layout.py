"""The layout pass: what is rewritten, that values stay, and that time grows with the program's length only."""

from __future__ import annotations

from collections.abc import Callable
from time import process_time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_programs import traced
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from cuvil.backends.c.backend import emit_sources
from cuvil.compiler import CompileOptions, compile_program
from cuvil.dtypes import float32, int32
from cuvil.frontend.dispatch import apply
from cuvil.ir.builder import IRBuilder
from cuvil.ir.dialect import TensorOp, aval_of
from cuvil.ir.interpreter import run_function
from cuvil.ops.record import Aval
from cuvil.passes.decompose import decompose
from cuvil.passes.layout import axis_groups, channels_last_perm, choose_layouts
from cuvil.passes.lowering.program import lower_program
from cuvil.passes.pipeline import PassOptions, fuse_stage, optimise
from cuvil.symbolic import Scope, symbol
from cuvil.testing.batch import Lowered, compile_batch
from tests.conftest import Golden
from tests.passes.programs import function, names

B, H, W = symbol("B"), symbol("H"), symbol("W")
IMAGE = Aval((B, 16, H, W), float32)
ENV = {"B": 2, "H": 9, "W": 7}


def conv(F: IRBuilder, x: SSAValue, out: int, size: int = 3, *, groups: int = 1, seed: int = 0, **params: Any) -> Any:
    rank = aval_of(x).rank - 2
    channels = aval_of(x).shape[1]
    assert isinstance(channels, int)
    rng = np.random.default_rng(seed)
    w = (rng.standard_normal((out, channels // groups, *(size,) * rank)) / size**rank).astype(np.float32)
    bias = F.constant(rng.standard_normal(out).astype(np.float32)) if seed % 2 else None
    pad = (size // 2, size // 2)
    given = {"strides": (1,) * rank, "padding": (pad,) * rank, "dilation": (1,) * rank, "input_dilation": (1,) * rank}
    return F.op("conv", x, F.constant(w), bias, **{**given, "groups": groups, **params})


def values(func: FuncOp, env: dict[str, int] = ENV, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    inputs = [
        rng.standard_normal([d if isinstance(d, int) else env[str(d)] for d in aval_of(a).shape]).astype(
            aval_of(a).dtype.numpy
        )
        for a in func.body.block.args
    ]
    return run_function(func, inputs, env)


def laid_out(build: Callable[..., Any], *avals: Aval, relaxed: bool = False) -> FuncOp:
    """A function after the pass, its values checked against those from before."""
    func = function(build, *avals)
    decompose(func)
    want = values(func)
    choose_layouts(func, relaxed=relaxed)
    func.verify()
    for g, w in zip(values(func), want, strict=True):
        assert g.shape == w.shape
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-4)
    return func


# ----------------------------------------------------------------------------------------- what is rewritten


def test_transposes_stay_at_the_edges(golden: Golden) -> None:
    def net(F: IRBuilder, x: SSAValue) -> SSAValue:
        y = F.op("relu", conv(F, x, 8, 3, strides=(2, 2)))
        y = F.op("max_pool", y, sizes=(3, 3), strides=(2, 2), padding=((1, 1), (1, 1)), dilation=(1, 1))
        z = F.add(conv(F, F.op("relu", conv(F, y, 8)), 8), y)
        z = F.mul(z, F.constant(np.arange(8, dtype=np.float32).reshape(8, 1, 1)))
        return F.op("mean", F.op("relu", z), axes=(2, 3), keepdims=False)

    func = function(net, Aval((B, 3, 32, 32), float32))
    decompose(func)
    choose_layouts(func)
    lines = [
        f"{op.name.removeprefix('cuvil.')} {list(aval_of(op.results[0]).shape)}"
        for op in func.body.block.ops
        if isinstance(op, TensorOp)
    ]
    golden("\n".join(lines))


def test_a_small_lone_convolution_stays() -> None:
    func = laid_out(lambda F, x: F.op("exp", conv(F, x, 4, 1, groups=4)), IMAGE)
    assert names(func) == ["conv", "exp"]


def test_a_program_without_convolutions_stays() -> None:
    func = laid_out(lambda F, x: F.op("transpose", F.op("exp", x), axes=(0, 2, 3, 1)), IMAGE)
    assert names(func) == ["exp", "transpose"]


def test_integers_stay() -> None:
    def build(F: IRBuilder, x: SSAValue) -> Any:
        return F.op(
            "conv", x, F.constant(np.ones((4, 16, 3, 3), np.int32)), None, strides=(1, 1), padding=((1, 1), (1, 1)),
            dilation=(1, 1), input_dilation=(1, 1),
        )  # fmt: skip

    assert names(laid_out(build, Aval((B, 16, H, W), int32))) == ["conv"]


def test_a_result_may_be_read_in_both_orders() -> None:
    def build(F: IRBuilder, x: SSAValue) -> Any:
        y = F.op("relu", conv(F, x, 32))
        return conv(F, y, 32), y, F.op("sort", y, axis=1)

    func = laid_out(build, IMAGE)
    assert names(func).count("conv_channels_last") == 2
    assert names(func).count("transpose") == 3  # of the operand, of the middle and of the last result


def test_patches_become_rows_without_a_transpose() -> None:
    """A vision transformer's first layer: convolve, flatten the pixels, put the channels last."""

    def build(F: IRBuilder, x: SSAValue) -> SSAValue:
        y = conv(F, x, 192, 4, strides=(4, 4), padding=((0, 0), (0, 0)))
        return F.op("transpose", F.reshape(y, (B, 192, 64)), axes=(0, 2, 1))

    func = laid_out(build, Aval((B, 16, 32, 32), float32))
    assert names(func) == ["transpose", "conv_channels_last", "reshape"]


def test_channels_are_shuffled_in_place() -> None:
    def build(F: IRBuilder, x: SSAValue) -> SSAValue:
        y = conv(F, x, 32)
        y = F.op("transpose", F.reshape(y, (B, 4, 8, H, W)), axes=(0, 2, 1, 3, 4))
        return conv(F, F.reshape(y, (B, 32, H, W)), 32)

    func = laid_out(build, IMAGE)
    assert names(func).count("transpose") <= 3
    assert names(func).count("conv_channels_last") == 2


@pytest.mark.parametrize(
    ("source", "target", "groups"),
    [
        ((2, 1, 3), (2, 3), [([0], [0]), ([2], [1])]),
        ((6,), (1, 2, 1, 3, 1), [([0], [0, 1, 2, 3, 4])]),
        ((B, H, W), (B, H * W), [([0], [0]), ([1, 2], [1])]),
        ((B * 3, 4), (B, 12), [([0, 1], [0, 1])]),
        ((B * 3, 4), (B, 11), None),
        ((0, 3), (0, 5), None),
        ((1, 1), (1,), None),
    ],
)
def test_axis_groups(source: Any, target: Any, groups: Any) -> None:
    assert axis_groups(source, target) == groups


# ------------------------------------------------------------------------------------------------- Winograd


def _forms(relaxed: bool, pixels: int, channels: int, **params: Any) -> list[str]:
    def build(F: IRBuilder, x: SSAValue) -> SSAValue:
        return conv(F, F.op("relu", conv(F, x, channels, **params)), channels, 1)

    func = function(build, Aval((1, channels, pixels, pixels), float32))
    choose_layouts(func, relaxed=relaxed)
    func.verify()
    return [
        f"{op.record.name} {op.params.get('tile', '')}".strip()
        for op in func.body.block.ops
        if isinstance(op, TensorOp) and op.record.name.startswith("conv")
    ][:1]


def test_winograd_is_for_relaxed_numerics() -> None:
    assert _forms(False, 56, 64) == ["conv_channels_last"]
    assert _forms(True, 56, 64) == ["conv_winograd 4"]


def test_winograd_is_for_wide_convolutions_of_many_pixels() -> None:
    assert _forms(True, 56, 8) == ["conv_channels_last"]
    assert _forms(True, 3, 512) == ["conv_channels_last"]
    assert _forms(True, 14, 256) == ["conv_winograd 2"]
    for odd in ({"strides": (2, 2)}, {"dilation": (2, 2)}, {"groups": 2}, {"size": 5}, {"size": 1}):
        assert _forms(True, 56, 64, **odd)[0] in ("conv", "conv_channels_last"), odd


@pytest.mark.parametrize("symbolic", [False, True])
def test_winograd_compiled(symbolic: bool) -> None:
    rng = np.random.default_rng(3)
    w = [(rng.standard_normal((32, 32, 3, 3)) / 17).astype(np.float32) for _ in range(2)]
    bias = rng.standard_normal(32).astype(np.float32)
    params: dict[str, Any] = {"strides": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1),
                              "input_dilation": (1, 1)}  # fmt: skip

    def net(x: Any) -> Any:
        y = apply("relu", apply("conv", x, w[0], bias, **params))
        return apply("relu", apply("add", apply("conv", y, w[1], **params), x))

    for env in ({"B": 2, "H": 33, "W": 30}, {"B": 1, "H": 4, "W": 5}, {"B": 0, "H": 8, "W": 8}):
        shape = (env["B"], 32, env["H"], env["W"])
        images = Aval((B, 32, H, W) if symbolic else shape, float32)
        x = rng.standard_normal(shape).astype(np.float32)
        given = env if symbolic else {}
        plain = CompileOptions(backend="reference", optimise=False)
        (want,) = compile_program(traced(net, images), plain).run([x], given)
        program = traced(net, images)
        compiled = compile_program(program, CompileOptions(numerics="relaxed", validate=True), keep_text=True)
        if symbolic or env["H"] > 30:
            assert compiled.as_text("optimised").count("conv_winograd") == 2
        (got,) = compiled.run([x], given)
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


# -------------------------------------------------------------------------------------------- random networks


class _Net:
    """Draws a network of convolutions and what stands between them, on [N, C, spatial...]."""

    def __init__(self, draw: Callable[..., Any], F: IRBuilder) -> None:
        self.draw, self.F = draw, F
        self.seed = draw(st.integers(0, 1000))

    def pick(self, *options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def step(self, pool: list[SSAValue]) -> None:
        F = self.F
        x = self.pick(*pool)
        shape = aval_of(x).shape
        rank = len(shape)
        channels = shape[1]
        assert isinstance(channels, int)
        self.seed += 1
        kind = self.pick(
            "conv", "conv", "conv", "unary", "residual", "channel", "gate", "pool", "average", "concat", "pad", "slice",
            "flip", "shuffle", "row", "column", "broadcast", "tile", "softmax", "upsample",
        )  # fmt: skip
        if kind == "conv":
            size = self.pick(1, 3)
            groups = self.pick(1, 1, 2, channels) if channels % 2 == 0 else self.pick(1, channels)
            out = self.pick(groups, 2 * groups, 16 if 16 % groups == 0 else groups)
            pool.append(conv(F, x, out, size, groups=groups, seed=self.seed, strides=(self.pick(1, 1, 2),) * (rank - 2),
                             dilation=(self.pick(1, 1, 2),) * (rank - 2), padding=((2, 2),) * (rank - 2)))  # fmt: skip
        elif kind == "unary":
            pool.append(F.op(self.pick("relu", "tanh", "negative"), x))
        elif kind == "residual":
            same = [p for p in pool if aval_of(p).shape == shape]
            pool.append(F.add(x, self.pick(*same)))
        elif kind == "channel":
            rng = np.random.default_rng(self.seed)
            form = self.pick((channels, *(1,) * (rank - 2)), (1, channels, *(1,) * (rank - 2)), ())
            pool.append(F.mul(F.constant(rng.standard_normal(form).astype(np.float32)), x))
        elif kind == "gate":
            mean = F.op("mean", x, axes=tuple(range(2, rank)), keepdims=True)
            gate = conv(F, mean, channels, 1, seed=self.seed, padding=((0, 0),) * (rank - 2))
            pool.append(F.mul(x, F.op("sigmoid", gate)))
        elif kind in ("pool", "average"):
            axes = rank - 2
            params = {"sizes": (2,) * axes, "strides": (self.pick(1, 2),) * axes, "padding": ((1, 1),) * axes,
                      "dilation": (1,) * axes, "ceil_mode": False}  # fmt: skip
            extra = {"count_include_pad": self.pick(True, False)} if kind == "average" else {}
            pool.append(F.op("avg_pool" if kind == "average" else "max_pool", x, **params, **extra))
        elif kind == "concat":
            same = [p for p in pool if aval_of(p).shape == shape]
            pool.append(F.op("concat", x, self.pick(*same), axis=self.pick(0, 1, rank - 1)))
        elif kind == "pad":
            pairs = ((0, 0), (self.pick(0, 1), 0), *((self.pick(0, 1), 1) for _ in shape[2:]))
            pool.append(F.op("pad", x, pairs=pairs, mode=self.pick("constant", "edge"), value=0.5))
        elif kind == "slice":
            sizes = (shape[0], self.pick(channels, max(1, channels // 2)), *shape[2:])
            pool.append(F.op("slice", x, starts=(0,) * rank, sizes=sizes, steps=(1,) * rank))
        elif kind == "flip":
            pool.append(F.op("flip", x, axes=self.pick((1,), (2,), (1, 2), (0, rank - 1))))
        elif kind == "shuffle" and channels % 2 == 0:
            y = F.reshape(x, (shape[0], 2, channels // 2, *shape[2:]))
            y = F.op("transpose", y, axes=(0, 2, 1, *range(3, rank + 1)))
            pool.append(F.reshape(y, shape))
        elif kind == "row":
            pool.append(F.mul(x, F.op("cast", F.iota((shape[-1],), 0), dtype=float32)))
        elif kind == "column":
            pool.append(F.sub(x, F.op("max", x, axes=(self.pick(1, 2),), keepdims=True)))
        elif kind == "broadcast":
            mean = F.op("sum", x, axes=tuple(range(2, rank)), keepdims=True)
            pool.append(F.op("broadcast_to", mean, shape=shape))
        elif kind == "tile":
            twice = F.op("tile", x, reps=(1, 2, *(1,) * (rank - 2)))
            pool.append(twice if channels < 20 else F.op("repeat", x, repeats=2, axis=2))
        elif kind == "softmax":
            pool.append(F.op("softmax", x, axis=self.pick(1, rank - 1)))
        elif kind == "upsample":
            index = F.op("floor_divide", F.iota((shape[2] * 2,), 0), F.scalar(2, aval_of(F.iota((1,), 0)).dtype))
            pool.append(F.op("take", x, index, axis=2, mode="clip"))

    def results(self, pool: list[SSAValue]) -> list[SSAValue]:
        F = self.F
        x = pool[-1]
        shape = aval_of(x).shape
        rank = len(shape)
        end = self.pick("as it is", "mean", "flat", "last", "row sums")
        if end == "mean":
            x = F.op("mean", x, axes=tuple(range(2, rank)), keepdims=False)
        elif end == "flat":
            x = F.reshape(x, (shape[0], shape[1] * shape[2], *shape[3:]))
        elif end == "last":
            x = F.op("transpose", x, axes=channels_last_perm(rank))
        elif end == "row sums":
            x = F.op("sum", x, axes=(self.pick(0, 1, 2),), keepdims=self.pick(True, False))
        return [x, self.pick(*pool)]


def draw_network(data: st.DataObject) -> tuple[Callable[..., Any], Aval]:
    """What builds a random network, and the aval of its argument."""
    rank = data.draw(st.sampled_from([3, 4, 4, 4]))
    channels = data.draw(st.sampled_from([1, 2, 8, 16, 32]))
    spatial = (H, W) if data.draw(st.booleans()) else (9, 7)

    def build(F: IRBuilder, x: SSAValue) -> list[SSAValue]:
        net = _Net(data.draw, F)
        pool = [x, conv(F, x, data.draw(st.sampled_from([8, 32])))]
        for _ in range(data.draw(st.integers(1, 7))):
            net.step(pool)
        return net.results(pool)

    return build, Aval((B, channels, *spatial[: rank - 2]), float32)


@settings(max_examples=120)
@given(data=st.data())
def test_values_stay_in_random_networks(data: st.DataObject) -> None:
    laid_out(*draw_network(data), relaxed=data.draw(st.booleans()))


@settings(max_examples=12)
@given(data=st.data())
def test_compiled_random_networks(data: st.DataObject) -> None:
    build, aval = draw_network(data)
    func = function(build, aval)
    x = np.random.default_rng(0).standard_normal([ENV.get(str(d), d) for d in aval.shape]).astype(np.float32)
    want = run_function(func, [x], ENV)
    options, scope = PassOptions(numerics=data.draw(st.sampled_from(["standard", "relaxed"]))), Scope()
    optimise(func, scope, options)
    fuse_stage(func, scope, options)
    lowered = lower_program(func, scope)
    (executable,) = compile_batch([Lowered(lowered, emit_sources(lowered))])
    for g, w in zip(executable.run([x], ENV), want, strict=True):
        assert g.shape == w.shape
        np.testing.assert_allclose(g, w, rtol=1e-3, atol=1e-3 * np.abs(w).max(initial=1))


def test_compiled_code_gives_the_reference() -> None:
    rng = np.random.default_rng(3)
    w1, w2 = (rng.standard_normal(s).astype(np.float32) for s in ((24, 3, 5, 5), (24, 24, 3, 3)))
    depth = rng.standard_normal((24, 1, 3, 3)).astype(np.float32)
    point = rng.standard_normal((40, 24, 1, 1)).astype(np.float32)
    params: dict[str, Any] = {"dilation": (1, 1), "input_dilation": (1, 1)}

    def net(x: Any) -> Any:
        y = apply("relu", apply("conv", x, w1, strides=(2, 2), padding=((2, 2), (2, 2)), **params))
        y = apply("max_pool", y, sizes=(3, 3), strides=(2, 2), padding=((1, 1), (1, 1)), dilation=(1, 1))
        z = apply("add", y, apply("conv", y, w2, strides=(1, 1), padding=((1, 1), (1, 1)), **params))
        z = apply("conv", z, depth, strides=(1, 1), padding=((1, 1), (1, 1)), groups=24, **params)
        z = apply("conv", z, point, strides=(1, 1), padding=((0, 0), (0, 0)), **params)
        return apply("mean", z, axes=(2, 3), keepdims=False), z

    images = Aval((B, 3, H, W), float32)
    program = traced(net, images)
    for env in ({"B": 2, "H": 33, "W": 41}, {"B": 1, "H": 8, "W": 64}, {"B": 0, "H": 8, "W": 8}):
        x = rng.standard_normal((env["B"], 3, env["H"], env["W"])).astype(np.float32)
        plain = CompileOptions(backend="reference", optimise=False)
        want = compile_program(traced(net, images), plain).run([x], env)
        compiled = compile_program(traced(net, images), CompileOptions(validate=True))
        for g, v in zip(compiled.run([x], env), want, strict=True):
            assert g.shape == v.shape
            np.testing.assert_allclose(g, v, rtol=2e-4, atol=2e-3)
    assert "conv_channels_last" in names(_optimised(program))


def _optimised(program: Any) -> FuncOp:
    compile_program(program, CompileOptions(backend="reference"))
    return program.func


def test_time_is_linear_in_the_ops() -> None:
    def chain(length: int) -> float:
        def build(F: IRBuilder, x: SSAValue) -> SSAValue:
            y = conv(F, x, 32)
            for _ in range(length):
                y = F.op("relu", y)
            return conv(F, y, 32)

        func = function(build, IMAGE)
        start = process_time()
        choose_layouts(func)
        return process_time() - start

    chain(100)
    short = min(chain(1000) for _ in range(3))
    assert chain(16000) < 16 * 6 * short
