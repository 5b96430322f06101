"""Runs functions of the namespace under a trace on the reference interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cuvil.dtypes import dtype
from cuvil.frontend.namespace import protocol  # noqa: F401 - fills in the operators of traced arrays
from cuvil.frontend.program import TracedProgram, trace
from cuvil.frontend.pytree import flatten
from cuvil.ir.interpreter import run_function
from cuvil.ops.record import Aval, Shape
from cuvil.symbolic import solve, symbol


def symbolic_shape(shape: Sequence[int], prefix: str = "n") -> Shape:
    """A symbol for each axis."""
    return tuple(symbol(f"{prefix}{axis}") for axis in range(len(shape)))


def traced(
    fn: Callable[..., Any], *arrays: Any, shapes: Sequence[Shape] | None = None, constraints: Sequence[str] = ()
) -> tuple[TracedProgram, Any]:
    """The program of ``fn`` for arrays of these (symbolic) shapes, and its results on the arrays."""
    given = [np.asarray(a) for a in arrays]
    _, tree = flatten((tuple(given), {}))
    patterns = [a.shape for a in given] if shapes is None else list(shapes)
    avals = [Aval(tuple(p), dtype(a.dtype)) for p, a in zip(patterns, given, strict=True)]
    program = trace(fn, tree, avals, constraints=constraints)
    return program, run_again(program, *given)


def run_again(program: TracedProgram, *arrays: Any) -> Any:
    """The results of a traced program on arrays that its shapes and guards admit."""
    given = [np.asarray(a) for a in arrays]
    env = solve([a.shape for a in program.inputs], [a.shape for a in given], program.scope)
    outputs = run_function(program.func, given, env)
    for aval, out in zip(program.outputs, outputs, strict=True):
        assert dtype(out.dtype) is aval.dtype
    return program.out_tree.unflatten(outputs)


def run_traced(fn: Callable[..., Any], *arrays: Any, shapes: Sequence[Shape] | None = None) -> Any:
    """The results of ``fn`` traced for these shapes."""
    return traced(fn, *arrays, shapes=shapes)[1]


def assert_same(got: Any, expected: Any, rtol: float = 0.0, atol: float = 0.0) -> None:
    """The same dtype, shape and values (NaN equals NaN), exactly unless a tolerance is given."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.dtype == expected.dtype, f"dtype {got.dtype}, expected {expected.dtype}"
    assert got.shape == expected.shape, f"shape {got.shape}, expected {expected.shape}"
    if rtol or atol:
        np.testing.assert_allclose(
            got.astype(np.float64), expected.astype(np.float64), rtol=rtol, atol=atol, equal_nan=True
        )
    else:
        np.testing.assert_array_equal(got, expected)
