"""ResNets (He et al., 2015) in torchvision's form: basic blocks or bottlenecks with the stride in the 3x3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as onp

from bench.models.layers import Tree, linear, linear_parameters, normal


def _conv(rng: onp.random.Generator, inputs: int, outputs: int, size: int, gain: float = 1.0) -> Tree:
    """A convolution without bias and the batch norm behind it."""
    return {
        "weight": normal(rng, outputs, inputs, size, size, scale=(2 / (inputs * size * size)) ** 0.5),
        "scale": (gain * (1 + normal(rng, outputs, scale=0.1))).astype(onp.float32),
        "shift": normal(rng, outputs, scale=0.1),
        "mean": normal(rng, outputs, scale=0.1),
        "variance": rng.uniform(0.5, 1.5, outputs).astype(onp.float32),
    }


def parameters(
    rng: onp.random.Generator, *, blocks: Sequence[int], bottleneck: bool, width: int = 64, classes: int = 1000
) -> Tree:
    # The last norm of each block starts small, so that the sums along the residual path do not grow with depth.
    last = 0.3
    channels, stages = width, []
    for stage, count in enumerate(blocks):
        inner = width * 2**stage
        outputs = inner * (4 if bottleneck else 1)
        stage_blocks = []
        for block in range(count):
            if bottleneck:
                convs = [
                    _conv(rng, channels, inner, 1),
                    _conv(rng, inner, inner, 3),
                    _conv(rng, inner, outputs, 1, last),
                ]
            else:
                convs = [_conv(rng, channels, inner, 3), _conv(rng, inner, inner, 3, last)]
            tree: Tree = {"convs": convs}
            if block == 0 and (stage > 0 or channels != outputs):
                tree["shortcut"] = _conv(rng, channels, outputs, 1)
            stage_blocks.append(tree)
            channels = outputs
        stages.append(stage_blocks)
    return {"stem": _conv(rng, 3, width, 7), "stages": stages, "head": linear_parameters(rng, channels, classes)}


def _conv_norm(nn: Any, x: Any, p: Tree, stride: int = 1) -> Any:
    x = nn.conv2d(x, p["weight"], stride=stride, padding=p["weight"].shape[2] // 2)
    return nn.batch_norm(x, p["mean"], p["variance"], p["scale"], p["shift"])


def forward(np: Any, nn: Any, p: Tree, image: Any) -> Any:
    """[B, 3, H, W] -> [B, classes]."""
    x = nn.max_pool(nn.relu(_conv_norm(nn, image, p["stem"], 2)), 3, stride=2, padding=1)
    for stage, blocks in enumerate(p["stages"]):
        for number, block in enumerate(blocks):
            stride = 2 if stage > 0 and number == 0 else 1
            *first, last = block["convs"]
            y = x
            for k, conv in enumerate(first):
                # A bottleneck's stride is in its 3x3, a basic block's in its first convolution.
                y = nn.relu(_conv_norm(nn, y, conv, stride if k == len(first) - 1 else 1))
            y = _conv_norm(nn, y, last)
            shortcut = _conv_norm(nn, x, block["shortcut"], stride) if "shortcut" in block else x
            x = nn.relu(y + shortcut)
    return linear(nn, np.mean(x, axis=(2, 3)), p["head"])
