"""``cuvil.nn`` in terms of torch.nn.functional."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import sigmoid
from torch.nn import functional
from torch.nn.functional import conv1d, conv2d, embedding, gelu, linear, relu, silu

__all__ = [
    "batch_norm", "conv1d", "conv2d", "embedding", "gelu", "layer_norm", "linear", "lstm", "max_pool", "relu",
    "rms_norm", "scaled_dot_product_attention", "sigmoid", "silu", "softmax",
]  # fmt: skip


def softmax(x: Any, axis: int = -1) -> Any:
    return functional.softmax(x, dim=axis)


def layer_norm(x: Any, weight: Any, bias: Any, eps: float = 1e-5) -> Any:
    return functional.layer_norm(x, weight.shape, weight, bias, eps)


def rms_norm(x: Any, weight: Any, eps: float = 1e-6) -> Any:
    return functional.rms_norm(x, weight.shape, weight, eps)


def batch_norm(x: Any, mean: Any, variance: Any, weight: Any, bias: Any, eps: float = 1e-5) -> Any:
    return functional.batch_norm(x, mean, variance, weight, bias, training=False, eps=eps)


def scaled_dot_product_attention(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=k.shape[1] != q.shape[1])


def max_pool(x: Any, kernel_size: int, stride: int, padding: int = 0) -> Any:
    return functional.max_pool2d(x, kernel_size, stride, padding)


def lstm(x: Any, state: tuple[Any, Any], params: Sequence[Any], num_layers: int) -> tuple[Any, tuple[Any, Any]]:
    # What torch.nn.LSTM.forward calls: biases, layers, dropout, training, both directions, batch first.
    y, h, c = torch._VF.lstm(x, state, list(params), True, num_layers, 0.0, False, False, False)
    return y, (h, c)
