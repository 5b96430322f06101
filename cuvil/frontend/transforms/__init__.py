"""Transforms of functions: differentiation and vectorisation."""
