"""Weights for users: load safetensors and PyTorch files, save safetensors, port names and layouts."""

from cuvil.frontend.importers.weights.checkpoint import load
from cuvil.frontend.importers.weights.safetensors import metadata, save

__all__ = ["load", "metadata", "save"]
