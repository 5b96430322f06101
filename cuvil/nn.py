"""Neural network functions: activations, normalisation, attention, convolution, pooling and recurrent layers.

>>> import cuvil.nn as nn
>>> nn.softmax([[0.0, 0.0]]).tolist()
[[0.5, 0.5]]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cuvil.frontend.missing import missing_name as _missing_name
from cuvil.frontend.namespace import protocol  # noqa: F401 # pyright: ignore[reportUnusedImport] - fills in operators
from cuvil.frontend.namespace.elementwise import tanh
from cuvil.frontend.namespace.nn import (
    adaptive_avg_pool,
    avg_pool,
    batch_norm,
    conv,
    conv1d,
    conv2d,
    conv3d,
    conv_transpose,
    elu,
    embedding,
    gelu,
    glu,
    group_norm,
    gru,
    hard_sigmoid,
    hard_swish,
    interpolate,
    layer_norm,
    leaky_relu,
    linear,
    log_softmax,
    lstm,
    max_pool,
    mish,
    one_hot,
    relu,
    relu6,
    rms_norm,
    scaled_dot_product_attention,
    sigmoid,
    silu,
    softmax,
    softplus,
    softsign,
    swish,
)

__all__ = [
    "adaptive_avg_pool",
    "avg_pool",
    "batch_norm",
    "conv",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose",
    "elu",
    "embedding",
    "gelu",
    "glu",
    "group_norm",
    "gru",
    "hard_sigmoid",
    "hard_swish",
    "interpolate",
    "layer_norm",
    "leaky_relu",
    "linear",
    "log_softmax",
    "lstm",
    "max_pool",
    "mish",
    "one_hot",
    "relu",
    "relu6",
    "rms_norm",
    "scaled_dot_product_attention",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "softsign",
    "swish",
    "tanh",
]

if not TYPE_CHECKING:

    def __getattr__(name):
        return _missing_name("cuvil.nn", name, __all__, None)
