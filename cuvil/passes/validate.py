"""Runs a program on the interpreter before and after each pass and names the pass that changed a value."""

from __future__ import annotations

import random

import numpy as np
from xdsl.dialects.func import FuncOp

from cuvil.dtypes import DType, dtype
from cuvil.ir.dialect import aval_of
from cuvil.ir.interpreter import bounded_loops, run_function
from cuvil.ops.record import Array, Aval
from cuvil.support.errors import CuvilError, PassError
from cuvil.symbolic import Scope, evaluate, free_symbols

#: Largest change of a value relative to the largest magnitude of its result: float sums in another order, FMA.
TOLERANCE = {"float16": 2e-2, "bfloat16": 1e-1, "float32": 1e-4, "float64": 1e-10}

_SIZES = (5, 3, 4, 2, 6, 7, 8, 1, 9, 12, 16, 10, 32, 64)
_TRIES = 400
_DRAWS = 8
_ITERATIONS = 10_000  # of while loops, which random inputs may keep from ending


class Validation:
    """Concrete inputs for one function, with the results that it must keep giving.

    Sizes of symbolic dims are drawn until the scope's relations hold; floats are standard normal, integers 0 or 1, so
    that they are in range where they index something.

    Raises:
        PassError: no sizes or inputs were found on which the program runs.
    """

    def __init__(self, func: FuncOp, scope: Scope, tolerance: float | None = None) -> None:
        self.tolerance = tolerance
        avals = [aval_of(a) for a in func.body.block.args]
        self.env = draw_sizes(avals, scope)
        failure: CuvilError | None = None
        for seed in range(_DRAWS):
            self.inputs = [_draw(np.random.default_rng((seed, k)), a, self.env) for k, a in enumerate(avals)]
            try:
                with bounded_loops(_ITERATIONS):
                    self.expected = run_function(func, self.inputs, self.env)
                return
            except CuvilError as error:
                failure = error
        raise PassError(
            f"validate=True found no inputs on which the program runs (sizes {self.env}); the last failure: {failure}"
        ) from failure

    def check(self, func: FuncOp, name: str) -> None:
        """Run the function and compare.

        Raises:
            PassError: a value changed by more than the tolerance, or the function does not run any more.
        """
        try:
            with bounded_loops(_ITERATIONS):
                got = run_function(func, self.inputs, self.env)
        except CuvilError as error:
            raise PassError(f"pass {name!r} made a program that does not run: {error}") from error
        for i, (g, w) in enumerate(zip(got, self.expected, strict=True)):
            problem = difference(np.asarray(g), np.asarray(w), self.tolerance)
            if problem:
                raise PassError(f"pass {name!r} changed result {i}: {problem} (sizes {self.env})")
        self.expected = got  # each pass answers for its own change


def draw_sizes(avals: list[Aval], scope: Scope) -> dict[str, int]:
    """Sizes for every symbol of some types under which the scope's relations hold and no dim is negative."""
    dims = [d for a in avals for d in a.shape]
    relations = [d for r in scope.relations for d in (r.left, r.right)]
    names = sorted(free_symbols(*dims, *relations))
    chooser = random.Random(0)
    for attempt in range(_TRIES):
        env = {n: _SIZES[(k + attempt) % 5] if attempt < 5 else chooser.choice(_SIZES) for k, n in enumerate(names)}
        if scope.first_broken(env) is None and all(evaluate(d, env) >= 0 for d in dims):
            return env
    raise PassError(
        f"validate=True found no sizes for {', '.join(names)} with {', '.join(map(str, scope.relations))};"
        " compile with static shapes to validate this program"
    )


def _draw(rng: np.random.Generator, aval: Aval, env: dict[str, int]) -> Array:
    shape = tuple(evaluate(d, env) for d in aval.shape)
    if aval.dtype.is_complex:
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(aval.dtype.numpy)
    if aval.dtype.is_float:
        return rng.standard_normal(shape).astype(aval.dtype.numpy)
    return rng.integers(0, 2, shape).astype(aval.dtype.numpy)


def difference(got: Array, want: Array, tolerance: float | None) -> str:
    """How a result differs from what it must be by more than a tolerance (None: that of its dtype), or nothing."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"it is {got.dtype}{list(got.shape)}, it was {want.dtype}{list(want.shape)}"
    dt: DType = dtype(want.dtype)
    if dt.is_complex:
        parts = [
            difference(np.real(got), np.real(want), tolerance),
            difference(np.imag(got), np.imag(want), tolerance),
        ]
        return next((p for p in parts if p), "")
    if not dt.is_float:
        count = int(np.count_nonzero(got != want))
        return f"{count} of {want.size} elements differ" if count else ""
    g, w = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(w)
    scale = float(np.max(np.abs(w), where=finite, initial=0.0))
    allowed = (TOLERANCE[dt.name] if tolerance is None else tolerance) * scale
    with np.errstate(invalid="ignore"):
        same = (g == w) | (np.isnan(g) & np.isnan(w)) | (finite & np.isfinite(g) & (np.abs(g - w) <= allowed))
    if same.all():
        return ""
    worst = float(np.max(np.abs(g - w), where=finite & np.isfinite(g), initial=0.0))
    return (
        f"{int(np.count_nonzero(~same))} of {want.size} elements differ by up to {worst:.3g}; allowed is {allowed:.3g}"
    )
