"""The workloads' models: one source, the same values under every namespace that is installed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import cuvil
import cuvil.numpy as cnp
from bench.models import bert, elementwise, llama, lstm, mlp, resnet, vit, whisper
from bench.models.layers import normal
from bench.namespaces import torch_nn, torch_numpy
from bench.pytree import leaves, map_tree
from bench.statistics import error
from cuvil import nn

RNG = partial(np.random.default_rng, 0)
_LLAMA = {"layers": 2, "width": 32, "heads": 4, "key_heads": 2, "vocabulary": 50}
_VIT = {"layers": 1, "width": 16, "hidden": 32, "patch": 4, "size": 12, "classes": 5}

SMALL: dict[str, tuple[Callable[..., Any], Any, list[np.ndarray]]] = {
    "add one": (elementwise.add_one, [], [normal(RNG(), 4)]),
    "activations": (elementwise.activations, [], [normal(RNG(), 3, 8), normal(RNG(), 3, 8)]),
    "mlp": (mlp.forward, mlp.parameters(RNG(), (6, 5, 4, 3)), [normal(RNG(), 2, 6)]),
    "lstm": (lstm.forward, lstm.parameters(RNG(), layers=2, width=8), lstm.inputs(RNG(), layers=2, width=8)),
    "bert": (
        partial(bert.encode, heads=2),
        bert.parameters(RNG(), layers=2, width=16, hidden=32, vocabulary=40, positions=16),
        bert.inputs(RNG(), 2, 6, vocabulary=40),
    ),
    "embeddings": (
        partial(bert.embed, heads=2),
        bert.parameters(RNG(), layers=1, width=16, hidden=32, vocabulary=40, positions=16),
        bert.inputs(RNG(), 2, 6, vocabulary=40),
    ),
    "vit": (partial(vit.forward, heads=2), vit.parameters(RNG(), **_VIT), [normal(RNG(), 2, 3, 12, 12)]),
    "whisper": (
        partial(whisper.forward, heads=2),
        whisper.parameters(RNG(), layers=1, width=16, mels=6, frames=20),
        [normal(RNG(), 1, 6, 20)],
    ),
    "basic resnet": (
        resnet.forward,
        resnet.parameters(RNG(), blocks=(1, 2), bottleneck=False, width=8, classes=5),
        [normal(RNG(), 1, 3, 32, 32)],
    ),
    "bottleneck resnet": (
        resnet.forward,
        resnet.parameters(RNG(), blocks=(1, 1), bottleneck=True, width=8, classes=5),
        [normal(RNG(), 1, 3, 32, 32)],
    ),
    "llama": (
        partial(llama.forward, heads=4, key_heads=2),
        llama.parameters(RNG(), hidden=48, **_LLAMA),
        llama.inputs(RNG(), past=7, **_LLAMA),
    ),
}


def _torch_outputs(name: str) -> list[np.ndarray]:
    torch = pytest.importorskip("torch")
    forward, parameters, inputs = SMALL[name]

    def convert(a: np.ndarray) -> Any:
        t = torch.tensor(a)
        return t.double() if t.is_floating_point() else t

    out = forward(torch_numpy, torch_nn, map_tree(convert, parameters), *map(convert, inputs))
    return [a.numpy() for a in leaves(out)]


@pytest.mark.parametrize("name", SMALL)
def test_definitions_agree_with_torch(name: str) -> None:
    forward, parameters, inputs = SMALL[name]

    def double(a: np.ndarray) -> np.ndarray:
        return a.astype(np.float64) if a.dtype == np.float32 else a

    ours = leaves(forward(cnp, nn, map_tree(double, parameters), *map(double, inputs)))
    theirs = _torch_outputs(name)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        # Some intermediate values are float32 in both, such as the positions of the rotary embedding.
        assert a.shape == b.shape and error(np.asarray(a), b) < 1e-6


@pytest.mark.parametrize("name", ["mlp", "lstm", "embeddings", "basic resnet", "llama"])
def test_compiled_models_agree_with_torch(name: str) -> None:
    forward, parameters, inputs = SMALL[name]
    compiled = cuvil.jit(lambda *arrays: forward(cnp, nn, parameters, *arrays), shapes="static")
    for a, b in zip(leaves(compiled(*inputs)), _torch_outputs(name), strict=True):
        assert error(np.asarray(a), b) < 1e-4


@pytest.mark.parametrize("name", SMALL)
def test_definitions_agree_with_jax(name: str) -> None:
    jnp = pytest.importorskip("jax.numpy")
    from bench.namespaces import jax_nn

    forward, parameters, inputs = SMALL[name]
    theirs = leaves(forward(jnp, jax_nn, map_tree(jnp.asarray, parameters), *map(jnp.asarray, inputs)))
    for a, b in zip(theirs, _torch_outputs(name), strict=True):
        assert error(np.asarray(a), b) < 1e-4
