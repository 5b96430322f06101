"""The functions of ``cuvil.numpy`` that the models use, in terms of torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import arange, cos, exp, float32, reshape, sin, sqrt

__all__ = [
    "arange", "astype", "broadcast_to", "concat", "cos", "exp", "float32", "maximum", "mean", "reshape", "sin", "sqrt",
    "stack", "sum", "transpose",
]  # fmt: skip


def astype(x: Any, dtype: torch.dtype) -> Any:
    return x.to(dtype)


def broadcast_to(x: Any, shape: Sequence[int]) -> Any:
    return x.expand(*shape)


def concat(arrays: Sequence[Any], axis: int = 0) -> Any:
    return torch.cat(list(arrays), dim=axis)


def stack(arrays: Sequence[Any], axis: int = 0) -> Any:
    return torch.stack(list(arrays), dim=axis)


def maximum(x: Any, low: float) -> Any:
    return torch.clamp(x, min=low)


def mean(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return torch.mean(x, dim=axis, keepdim=keepdims)


def sum(x: Any, axis: Any = None, keepdims: bool = False) -> Any:  # noqa: A001 - NumPy's name
    return torch.sum(x, dim=axis, keepdim=keepdims)


def transpose(x: Any, axes: Sequence[int]) -> Any:
    return x.permute(*axes)
