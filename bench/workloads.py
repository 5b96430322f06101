"""The workloads: a model of ``bench.models`` with its sizes, weights and inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from bench.models import bert, elementwise, llama, lstm, mlp, resnet, vit, whisper
from bench.models.layers import normal
from bench.pytree import Tree, leaves

Rng = np.random.Generator


@dataclass(frozen=True)
class Workload:
    """A function of arrays with constant parameters.

    Attributes:
        name: what the command line and the table call it.
        forward: ``forward(np, nn, parameters, *inputs)``.
        parameters: makes the parameter pytree from a seeded generator.
        inputs: makes the input arrays.
        tables: number of bytes of the parameters that a call does not read (embedding tables of which it reads rows).
        tolerance: largest error of a float32 output, as a part of the reference's root mean square.
        low_tolerance: the same for bf16.
    """

    name: str
    forward: Callable[..., Any]
    parameters: Callable[[Rng], Tree]
    inputs: Callable[[Rng], list[np.ndarray]]
    tables: Callable[[Tree], int] = lambda _: 0
    tolerance: float = 1e-3
    low_tolerance: float = 0.3

    def traffic(self, parameters: Tree, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> int:
        """Bytes that any implementation moves: parameters and inputs once in, outputs once out."""
        return (
            sum(a.nbytes for a in leaves(parameters))
            - self.tables(parameters)
            + sum(a.nbytes for a in inputs)
            + sum(a.nbytes for a in outputs)
        )


def _no_parameters(rng: Rng) -> Tree:
    return []


def _embedding_bytes(tree: Tree) -> int:
    return sum(a.nbytes for a in leaves(tree["embeddings"]))


def _bert(name: str, batch: int, length: int, heads: int, *, real: bool, head: Callable[..., Any]) -> Workload:
    return Workload(
        name,
        partial(head, heads=heads),
        (lambda rng: bert.minilm_parameters()) if real else partial(bert.parameters, layers=12, width=768, hidden=3072),
        partial(bert.inputs, batch=batch, length=length),
        _embedding_bytes,
    )


def _resnet(name: str, blocks: Sequence[int], bottleneck: bool, size: int) -> Workload:
    return Workload(
        name,
        resnet.forward,
        partial(resnet.parameters, blocks=blocks, bottleneck=bottleneck),
        lambda rng: [normal(rng, 1, 3, size, size)],
    )


_VIT = {"layers": 12, "width": 768, "hidden": 3072, "patch": 16, "size": 224, "classes": 1000}
# The sizes of SmolLM-135M.
_LLAMA = {"layers": 30, "width": 576, "heads": 9, "key_heads": 3, "vocabulary": 49152}

_ALL = (
    Workload("dispatch", elementwise.add_one, _no_parameters, lambda rng: [normal(rng, 4)]),
    Workload(
        "mlp", mlp.forward, partial(mlp.parameters, widths=(784, 512, 512, 10)), lambda rng: [normal(rng, 1, 784)]
    ),
    Workload(
        "elementwise",
        elementwise.activations,
        _no_parameters,
        lambda rng: [normal(rng, 4096, 1024), normal(rng, 4096, 1024)],
    ),
    Workload(
        "lstm-step",
        lstm.forward,
        partial(lstm.parameters, layers=2, width=512),
        partial(lstm.inputs, layers=2, width=512),
    ),
    _bert("minilm-b1-s16", 1, 16, 12, real=True, head=bert.embed),
    _bert("minilm-b1-s128", 1, 128, 12, real=True, head=bert.embed),
    _bert("minilm-b8-s128", 8, 128, 12, real=True, head=bert.embed),
    _bert("bert-b1-s128", 1, 128, 12, real=False, head=bert.encode),
    _resnet("resnet18-224", (2, 2, 2, 2), False, 224),
    _resnet("resnet18-384", (2, 2, 2, 2), False, 384),
    _resnet("resnet50-224", (3, 4, 6, 3), True, 224),
    Workload(
        "vit-b16",
        partial(vit.forward, heads=12),
        partial(vit.parameters, **_VIT),
        lambda rng: [normal(rng, 1, 3, 224, 224)],
    ),
    Workload(
        "whisper-tiny",
        partial(whisper.forward, heads=6),
        partial(whisper.parameters, layers=4, width=384),
        lambda rng: [normal(rng, 1, 80, 3000)],
    ),
    Workload(
        "llama-135m-step",
        partial(llama.forward, heads=9, key_heads=3),
        partial(llama.parameters, hidden=1536, **_LLAMA),
        partial(llama.inputs, past=256, **_LLAMA),
    ),
)

WORKLOADS = {workload.name: workload for workload in _ALL}
