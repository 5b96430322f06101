"""``cuvil.nn`` in terms of jax, as its users write it; ``jax.numpy`` is the namespace of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.nn import relu, sigmoid, silu, softmax

__all__ = [
    "batch_norm", "conv1d", "conv2d", "embedding", "gelu", "layer_norm", "linear", "lstm", "max_pool", "relu",
    "rms_norm", "scaled_dot_product_attention", "sigmoid", "silu", "softmax",
]  # fmt: skip


def gelu(x: Any) -> Any:
    return jax.nn.gelu(x, approximate=False)


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    y = x @ weight.T
    return y if bias is None else y + bias


def embedding(indices: Any, weight: Any) -> Any:
    return jnp.take(weight, indices, axis=0)


def layer_norm(x: Any, weight: Any, bias: Any, eps: float = 1e-5) -> Any:
    mean = jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(x - mean), axis=-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + eps) * weight + bias


def rms_norm(x: Any, weight: Any, eps: float = 1e-6) -> Any:
    return x * lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + eps) * weight


def batch_norm(x: Any, mean: Any, variance: Any, weight: Any, bias: Any, eps: float = 1e-5) -> Any:
    scale = weight * lax.rsqrt(variance + eps)
    shape = (-1, *(1,) * (x.ndim - 2))
    return x * scale.reshape(shape) + (bias - mean * scale).reshape(shape)


def scaled_dot_product_attention(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    if k.shape[1] != q.shape[1]:
        k, v = (jnp.repeat(a, q.shape[1] // k.shape[1], axis=1) for a in (k, v))
    scores = jnp.einsum("bhsd,bhtd->bhst", q, k) * q.shape[-1] ** -0.5
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf)
    return jnp.einsum("bhst,bhtd->bhsd", softmax(scores, axis=-1), v)


def _conv(x: Any, weight: Any, bias: Any, stride: int, padding: int) -> Any:
    n = x.ndim - 2
    y = lax.conv_general_dilated(x, weight, (stride,) * n, ((padding, padding),) * n)
    return y if bias is None else y + bias.reshape((-1, *(1,) * n))


def conv1d(x: Any, weight: Any, bias: Any = None, stride: int = 1, padding: int = 0) -> Any:
    return _conv(x, weight, bias, stride, padding)


def conv2d(x: Any, weight: Any, bias: Any = None, stride: int = 1, padding: int = 0) -> Any:
    return _conv(x, weight, bias, stride, padding)


def max_pool(x: Any, kernel_size: int, stride: int, padding: int = 0) -> Any:
    n = x.ndim - 2
    sizes, strides = (1, 1, *(kernel_size,) * n), (1, 1, *(stride,) * n)
    pads = ((0, 0), (0, 0), *((padding, padding),) * n)
    return lax.reduce_window(x, -jnp.inf, lax.max, sizes, strides, pads)


def lstm(x: Any, state: tuple[Any, Any], params: Sequence[Any], num_layers: int) -> tuple[Any, tuple[Any, Any]]:
    hs, cs = state
    ends_h, ends_c = [], []
    for layer in range(num_layers):
        w_ih, w_hh, b_ih, b_hh = params[4 * layer : 4 * layer + 4]

        def step(carry: tuple[Any, Any], row: Any, w: Any = w_hh, b: Any = b_hh) -> tuple[tuple[Any, Any], Any]:
            h, c = carry
            i, f, g, o = jnp.split(row + h @ w.T + b, 4, axis=-1)
            c = sigmoid(f) * c + sigmoid(i) * jnp.tanh(g)
            h = sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        (h, c), x = lax.scan(step, (hs[layer], cs[layer]), x @ w_ih.T + b_ih)
        ends_h.append(h)
        ends_c.append(c)
    return x, (jnp.stack(ends_h), jnp.stack(ends_c))
