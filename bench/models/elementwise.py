"""Work between contractions: functions of single elements, then a softmax."""

from __future__ import annotations

from typing import Any

from bench.models.layers import Tree


def activations(np: Any, nn: Any, p: Tree, x: Any, y: Any) -> Any:
    """``softmax(gelu(x) * y + sigmoid(x) - exp(y))`` over the last axis."""
    return nn.softmax(nn.gelu(x) * y + nn.sigmoid(x) - np.exp(y), axis=-1)


def add_one(np: Any, nn: Any, p: Tree, x: Any) -> Any:
    """The least work there is: what is measured is the way into compiled code and back."""
    return x + 1
