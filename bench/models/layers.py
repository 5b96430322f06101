"""What several models share: seeded weights, linear layers and multi-head attention."""

from __future__ import annotations

from typing import Any

import numpy as onp

Tree = Any


def normal(rng: onp.random.Generator, *shape: int, scale: float = 1.0) -> onp.ndarray:
    """float32 numbers with this standard deviation."""
    return rng.standard_normal(shape, dtype=onp.float32) * onp.float32(scale)


def linear_parameters(rng: onp.random.Generator, inputs: int, outputs: int, bias: bool = True) -> Tree:
    weight = normal(rng, outputs, inputs, scale=inputs**-0.5)
    return {"weight": weight, "bias": normal(rng, outputs, scale=0.02)} if bias else {"weight": weight}


def norm_parameters(rng: onp.random.Generator, width: int) -> Tree:
    return {"weight": 1 + normal(rng, width, scale=0.1), "bias": normal(rng, width, scale=0.02)}


def linear(nn: Any, x: Any, p: Tree) -> Any:
    return nn.linear(x, p["weight"], p.get("bias"))


def layer_norm(nn: Any, x: Any, p: Tree, eps: float) -> Any:
    return nn.layer_norm(x, p["weight"], p["bias"], eps=eps)


def self_attention(np: Any, nn: Any, x: Any, p: Tree, heads: int, mask: Any = None) -> Any:
    """Multi-head self-attention of [B, S, D] with the layers ``query``, ``key``, ``value`` and ``out``."""
    batch, length, width = x.shape

    def split(y: Any) -> Any:
        return np.transpose(np.reshape(y, (batch, length, heads, width // heads)), (0, 2, 1, 3))

    q, k, v = (split(linear(nn, x, p[name])) for name in ("query", "key", "value"))
    out = nn.scaled_dot_product_attention(q, k, v, mask=mask)
    return linear(nn, np.reshape(np.transpose(out, (0, 2, 1, 3)), (batch, length, width)), p["out"])


def attention_parameters(rng: onp.random.Generator, width: int) -> Tree:
    return {name: linear_parameters(rng, width, width) for name in ("query", "key", "value", "out")}
