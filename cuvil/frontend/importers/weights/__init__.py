"""Weights files without torch, and rules that port their tensors into a parameter pytree."""
