"""The op records. Importing this package fills the registry."""

from cuvil.ops import (
    attention,
    composite,
    contraction,
    convolution,
    einsum,
    elementwise,
    interpolation,
    movement,
    normalization,
    pooling,
    recurrent,
    reshaping,
    windows,
)

__all__ = [
    "attention",
    "composite",
    "contraction",
    "convolution",
    "einsum",
    "elementwise",
    "interpolation",
    "movement",
    "normalization",
    "pooling",
    "recurrent",
    "reshaping",
    "windows",
]
