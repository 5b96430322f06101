"""Weights for users: load safetensors and PyTorch files, save safetensors, port names and layouts."""

from cuvil.frontend.importers.weights.checkpoint import load
from cuvil.frontend.importers.weights.porting import port
from cuvil.frontend.importers.weights.report import Misshaped, Mistyped, Report
from cuvil.frontend.importers.weights.rules import (
    Rule,
    cast,
    drop,
    layout,
    merge,
    rename,
    reshape,
    split,
    tie,
    transpose,
)
from cuvil.frontend.importers.weights.safetensors import metadata, save
from cuvil.support.errors import WeightsError

__all__ = [
    "Misshaped",
    "Mistyped",
    "Report",
    "Rule",
    "WeightsError",
    "cast",
    "drop",
    "layout",
    "load",
    "merge",
    "metadata",
    "port",
    "rename",
    "reshape",
    "save",
    "split",
    "tie",
    "transpose",
]
