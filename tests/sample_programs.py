"""Small programs that the tests of the middle layers share: what to trace, and arrays to run it on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cuvil.compiler import Compiled, CompileOptions, compile_program
from cuvil.dtypes import float32, int64
from cuvil.frontend.dispatch import apply
from cuvil.frontend.program import TracedProgram, trace
from cuvil.frontend.pytree import flatten
from cuvil.ops.record import Aval
from cuvil.symbolic import symbol

B, S = symbol("B"), symbol("S")


@dataclass(frozen=True)
class Sample:
    """A function of arrays with symbolic shapes, and the sizes at which tests run it."""

    name: str
    fn: Callable[..., Any]
    avals: tuple[Aval, ...]
    sizes: tuple[dict[str, int], ...] = ({"B": 3, "S": 7}, {"B": 1, "S": 1}, {"B": 2, "S": 33})
    index_bound: int = 0

    def arrays(self, env: dict[str, int], seed: int = 0) -> list[Any]:
        """Arrays for the arguments at concrete sizes."""
        rng = np.random.default_rng(seed)
        out: list[Any] = []
        for a in self.avals:
            shape = tuple(d if isinstance(d, int) else env[str(d)] for d in a.shape)
            if a.dtype is int64:
                out.append(rng.integers(-self.index_bound, self.index_bound, shape))
            else:
                out.append(rng.standard_normal(shape).astype(a.dtype.numpy))
        return out


def traced(
    fn: Callable[..., Any], *avals: Aval, name: str = "program", constraints: tuple[str, ...] = ()
) -> TracedProgram:
    """A function of positional arrays as a program."""
    _, tree = flatten((tuple(range(len(avals))), {}))
    names = [f"x{k}" for k in range(len(avals))]
    return trace(fn, tree, avals, names=names, name=name, constraints=constraints)


def compiled(sample: Sample, **options: Any) -> Compiled:
    """A sample compiled with the text of every stage kept."""
    program = traced(sample.fn, *sample.avals, name=sample.name)
    return compile_program(program, CompileOptions(**options), keep_text=True)


def _f32(*shape: Any) -> Aval:
    return Aval(shape, float32)


def softmax(x: Any) -> Any:
    return apply("softmax", x, axis=1)


def residual_layer_norm(x: Any, r: Any, w: Any, b: Any) -> Any:
    return apply("layer_norm", apply("add", x, r), w, b, axes=(2,), eps=1e-5)


def linear_gelu(x: Any, w: Any, b: Any) -> Any:
    return apply("gelu", apply("add", apply("matmul", x, w), b), approximate=False)


def embedding(table: Any, ids: Any) -> Any:
    return apply("take", table, ids, axis=0, mode="error")


def conv_relu(x: Any, w: Any, b: Any) -> Any:
    params: dict[str, Any] = {
        "strides": (2, 2), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "input_dilation": (1, 1), "groups": 1,
    }  # fmt: skip
    return apply("relu", apply("conv", x, w, b, **params))


def attention(q: Any, k: Any, v: Any) -> Any:
    out = apply("scaled_dot_product_attention", q, k, v, causal=True, scale=None)
    return apply("transpose", out, axes=(0, 2, 1, 3))


SAMPLES: dict[str, Sample] = {
    s.name: s
    for s in (
        Sample("softmax", softmax, (_f32(B, S),)),
        Sample("residual_layer_norm", residual_layer_norm, (_f32(B, S, 48), _f32(B, S, 48), _f32(48), _f32(48))),
        Sample("linear_gelu", linear_gelu, (_f32(B, S, 20), _f32(20, 24), _f32(24))),
        Sample("embedding", embedding, (_f32(11, 20), Aval((B, S), int64)), index_bound=11),
        Sample("conv_relu", conv_relu, (_f32(B, 3, S, S), _f32(5, 3, 3, 3), _f32(5))),
        Sample("attention", attention, (_f32(B, 2, S, 8),) * 3),
    )
}
