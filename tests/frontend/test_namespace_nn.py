"""Neural network functions of the namespace against PyTorch, at once and traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everyone writes it

import cuvil.numpy as cnp
from cuvil import nn
from cuvil.support.errors import ArgumentError, ShapeError
from cuvil.symbolic import symbol
from tests.frontend.tracing import assert_same, run_traced

rng = np.random.default_rng(7)


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return rng.normal(size=shape).astype(np.float32)


def compare(fn: Callable[..., Any], reference: Callable[..., Any], *arrays: Any, shapes: Any = None) -> None:
    """``fn`` on NumPy arrays, traced, and traced with symbolic shapes gives what PyTorch gives."""
    with torch.no_grad():
        expected = reference(*(torch.from_numpy(np.asarray(a)) for a in arrays))
    many = expected if isinstance(expected, tuple) else (expected,)
    variants = [fn(*arrays), run_traced(fn, *arrays)]
    if shapes is not None:
        variants.append(run_traced(fn, *arrays, shapes=shapes))
    for got in variants:
        for g, e in zip(got if isinstance(got, tuple) else (got,), many, strict=True):
            assert_same(g, e.numpy(), rtol=2e-5, atol=2e-6)


ACTIVATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "relu": (nn.relu, F.relu), "relu6": (nn.relu6, F.relu6), "gelu": (nn.gelu, F.gelu),
    "gelu tanh": (lambda x: nn.gelu(x, "tanh"), lambda x: F.gelu(x, approximate="tanh")), "silu": (nn.silu, F.silu),
    "sigmoid": (nn.sigmoid, torch.sigmoid), "tanh": (nn.tanh, torch.tanh), "softplus": (nn.softplus, F.softplus),
    "softsign": (nn.softsign, F.softsign), "mish": (nn.mish, F.mish), "hard_sigmoid": (nn.hard_sigmoid, F.hardsigmoid),
    "hard_swish": (nn.hard_swish, F.hardswish), "elu": (lambda x: nn.elu(x, 0.5), lambda x: F.elu(x, 0.5)),
    "leaky_relu": (lambda x: nn.leaky_relu(x, 0.2), lambda x: F.leaky_relu(x, 0.2)),
    "softmax": (lambda x: nn.softmax(x, axis=0), lambda x: F.softmax(x, 0)),
    "log_softmax": (nn.log_softmax, lambda x: F.log_softmax(x, -1)), "glu": (nn.glu, F.glu),
}  # fmt: skip


@pytest.mark.parametrize("name", list(ACTIVATIONS))
def test_activations(name: str) -> None:
    compare(*ACTIVATIONS[name], normal(3, 4) * 3, shapes=[(symbol("B"), 4)])


def test_activations_of_integers_compute_in_floats() -> None:
    assert_same(nn.softmax(np.zeros(2, np.int64)), np.array([0.5, 0.5]))
    assert_same(nn.relu(np.array([-1, 2], np.int8)), np.array([0, 2], np.int8))


def test_normalisation() -> None:
    x, w, b = normal(2, 4, 6), normal(6), normal(6)
    shapes = [(symbol("B"), symbol("S"), 6), (6,), (6,)]
    compare(lambda a, c, d: nn.layer_norm(a, c, d), lambda a, c, d: F.layer_norm(a, (6,), c, d), x, w, b, shapes=shapes)
    compare(lambda a: nn.layer_norm(a, normalized_shape=(4, 6)), lambda a: F.layer_norm(a, (4, 6)), x)
    compare(
        lambda a, c: nn.rms_norm(a, c, eps=1e-5), lambda a, c: F.rms_norm(a, (6,), c, 1e-5), x, w, shapes=shapes[:2]
    )
    v, u = normal(4), normal(4)
    compare(lambda a, c, d: nn.group_norm(a, 2, c, d), lambda a, c, d: F.group_norm(a, 2, c, d), x, v, u)
    m, s = normal(4), normal(4) ** 2
    compare(
        lambda a, c, d, e, f: nn.batch_norm(a, c, d, e, f),
        lambda a, c, d, e, f: F.batch_norm(a, c, d, e, f),
        x,
        m,
        s,
        v,
        u,
    )
    with pytest.raises(ShapeError, match="not the end"):
        nn.layer_norm(x, normalized_shape=(5,))


def test_linear_embedding_one_hot() -> None:
    x, w, b = normal(2, 3, 4), normal(5, 4), normal(5)
    compare(nn.linear, F.linear, x, w, b, shapes=[(symbol("B"), symbol("S"), 4), (5, 4), (5,)])
    compare(nn.linear, F.linear, x[0, 0], w)
    index = np.array([[0, 2], [1, 1]])
    compare(nn.embedding, F.embedding, index, normal(3, 4), shapes=[(symbol("B"), symbol("S")), (3, 4)])
    compare(lambda i: nn.one_hot(i, 4, "int64"), lambda i: F.one_hot(i, 4), index)


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal: bool) -> None:
    q, k, v = normal(2, 4, 5, 8), normal(2, 2, 5, 8), normal(2, 2, 5, 8)
    B, S = symbol("B"), symbol("S")
    compare(
        lambda a, b, c: nn.scaled_dot_product_attention(a, b, c, causal=causal),
        lambda a, b, c: F.scaled_dot_product_attention(a, b, c, is_causal=causal, enable_gqa=True),
        q, k, v, shapes=[(B, 4, S, 8), (B, 2, S, 8), (B, 2, S, 8)],
    )  # fmt: skip
    mask = rng.random((5, 5)) < 0.7
    mask[:, 0] = True
    compare(
        lambda a, b, c, m: nn.scaled_dot_product_attention(a, b, c, m, scale=0.3),
        lambda a, b, c, m: F.scaled_dot_product_attention(a, b, c, m, scale=0.3),
        q[0, 0], q[0, 1], q[0, 2], mask,
    )  # fmt: skip


CONVOLUTIONS = [
    ((2, 4, 9), (6, 4, 3), {"stride": 2, "padding": 1}),
    ((2, 4, 7, 6), (6, 2, 3, 2), {"padding": (1, 0), "groups": 2}),
    ((1, 3, 8, 8), (4, 3, 3, 3), {"dilation": 2, "padding": "same"}),
    ((1, 2, 4, 4, 4), (3, 2, 2, 2, 2), {}),
]


@pytest.mark.parametrize("shape, kernel, options", CONVOLUTIONS)
def test_convolution(shape: tuple[int, ...], kernel: tuple[int, ...], options: dict[str, Any]) -> None:
    rank = len(shape) - 2
    reference = getattr(F, f"conv{rank}d")
    for fn in (nn.conv, getattr(nn, f"conv{rank}d")):
        compare(
            lambda a, w, b, fn=fn: fn(a, w, b, **options), lambda a, w, b: reference(a, w, b, **options),
            normal(*shape), normal(*kernel), normal(kernel[0]), shapes=[(symbol("B"), *shape[1:]), kernel, kernel[:1]],
        )  # fmt: skip
    with pytest.raises(ShapeError, match="spatial"):
        nn.conv1d(normal(2, 3), normal(2, 3, 1))


def test_transposed_convolution() -> None:
    options = {"stride": 2, "padding": 1, "output_padding": 1}
    compare(
        lambda a, w, b: nn.conv_transpose(a, w, b, **options), lambda a, w, b: F.conv_transpose2d(a, w, b, **options),
        normal(2, 3, 4, 5), normal(3, 4, 3, 3), normal(4),
    )  # fmt: skip


def test_pooling() -> None:
    x = normal(2, 3, 8, 6)
    shapes = [(symbol("B"), 3, 8, 6)]
    compare(lambda a: nn.max_pool(a, 3, 2, 1), lambda a: F.max_pool2d(a, 3, 2, 1), x, shapes=shapes)
    compare(lambda a: nn.max_pool(a, (2, 3)), lambda a: F.max_pool2d(a, (2, 3)), x)
    compare(lambda a: nn.avg_pool(a, 2, padding=1), lambda a: F.avg_pool2d(a, 2, padding=1), x, shapes=shapes)
    compare(
        lambda a: nn.avg_pool(a, 2, padding=1, count_include_pad=False),
        lambda a: F.avg_pool2d(a, 2, padding=1, count_include_pad=False), x,
    )  # fmt: skip
    compare(lambda a: nn.max_pool(a, 2), lambda a: F.max_pool1d(a, 2), normal(2, 3, 7))
    compare(nn.adaptive_avg_pool, lambda a: F.adaptive_avg_pool2d(a, 1), x, shapes=[(symbol("B"), 3, symbol("H"), 6)])
    compare(lambda a: nn.adaptive_avg_pool(a, (4, 2)), lambda a: F.adaptive_avg_pool2d(a, (4, 2)), x)
    with pytest.raises(ArgumentError, match="must divide"):
        nn.adaptive_avg_pool(x, 5)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
def test_interpolation(mode: str) -> None:
    x = normal(1, 2, 4, 5)
    compare(lambda a: nn.interpolate(a, (7, 3), mode=mode), lambda a: F.interpolate(a, (7, 3), mode=mode), x)
    compare(
        lambda a: nn.interpolate(a, scale_factor=2, mode=mode), lambda a: F.interpolate(a, scale_factor=2, mode=mode), x
    )
    with pytest.raises(ArgumentError, match="either size or scale_factor"):
        nn.interpolate(x)


@pytest.mark.parametrize("layers, bidirectional", [(1, False), (2, False), (2, True)])
@pytest.mark.parametrize("batch_first", [False, True])
def test_recurrent_layers(layers: int, bidirectional: bool, batch_first: bool) -> None:
    x = normal(3, 2, 4)
    torch.manual_seed(0)
    options = {"num_layers": layers, "bidirectional": bidirectional, "batch_first": batch_first}
    lstm = torch.nn.LSTM(4, 5, **options)
    params = [p.detach().numpy() for p in lstm.parameters()]

    def flat(result: Any) -> Any:
        y, (h, c) = result
        return y, h, c

    compare(lambda a: flat(nn.lstm(a, None, params, **options)), lambda a: flat(lstm(a)), x)
    batch = 3 if batch_first else 2
    h0, c0 = (normal(layers * (1 + bidirectional), batch, 5) for _ in range(2))
    compare(
        lambda a, h, c: flat(nn.lstm(a, (h, c), params, **options)), lambda a, h, c: flat(lstm(a, (h, c))), x, h0, c0
    )
    gru = torch.nn.GRU(4, 5, **options, bias=False)
    weights = [p.detach().numpy() for p in gru.parameters()]
    compare(lambda a, h: nn.gru(a, h, weights, has_biases=False, **options), lambda a, h: gru(a, h), x, h0)
    with pytest.raises(ArgumentError, match="expected 4 parameters"):
        nn.lstm(x, None, params[:-1], **options)


def test_recurrent_layers_without_a_batch() -> None:
    lstm = torch.nn.LSTM(4, 5)
    params = [p.detach().numpy() for p in lstm.parameters()]
    compare(lambda a: nn.lstm(a, None, params)[0], lambda a: lstm(a)[0], normal(3, 4))


def test_a_transformer_block_with_symbolic_sizes() -> None:
    weights = {name: normal(8, 8) * 0.3 for name in "qkvo"}

    def block(x: Any) -> Any:
        B, S, _ = x.shape
        h = nn.layer_norm(x)
        q, k, v = (cnp.transpose(nn.linear(h, weights[n]).reshape(B, S, 2, 4), (0, 2, 1, 3)) for n in "qkv")
        y = nn.scaled_dot_product_attention(q, k, v, causal=True)
        return x + nn.linear(cnp.transpose(y, (0, 2, 1, 3)).reshape(B, S, 8), weights["o"])

    x = normal(2, 3, 8)
    assert_same(run_traced(block, x, shapes=[(symbol("B"), symbol("S"), 8)]), block(x), rtol=1e-5, atol=1e-6)
