"""The op records. Importing this package fills the registry."""

from cuvil.ops import (
    activations,
    attention,
    composite,
    contraction,
    convolution,
    creation,
    einsum,
    elementwise,
    interpolation,
    movement,
    normalization,
    pooling,
    recurrent,
    reduction,
    reshaping,
    windows,
)

__all__ = [
    "activations",
    "attention",
    "composite",
    "contraction",
    "convolution",
    "creation",
    "einsum",
    "elementwise",
    "interpolation",
    "movement",
    "normalization",
    "pooling",
    "recurrent",
    "reduction",
    "reshaping",
    "windows",
]
