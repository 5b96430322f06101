"""Runs the numerics cases at once, and compiled by the reference and the C backend."""

from __future__ import annotations

import numpy as np
import pytest

import cuvil
import cuvil.numpy as cnp
from tests.cases.numerics_cases import CASES, Case, check

every_case = pytest.mark.parametrize("case", CASES, ids=[c.name.replace(" ", "-") for c in CASES])


@every_case
def test_eager(case: Case) -> None:
    # Operators of NumPy arrays are NumPy's own, so the case runs on what the operators of traced arrays are.
    with np.errstate(all="ignore"):
        check(case, case.fn(cnp, *case.args))


@every_case
@pytest.mark.parametrize("backend", ["reference", "c"])
def test_compiled(case: Case, backend: str) -> None:
    compiled = cuvil.jit(lambda *args: case.fn(cnp, *args), backend=backend, shapes="static")
    check(case, compiled(*case.args))


@every_case
@pytest.mark.parametrize("backend", ["reference", "c"])
def test_compiled_without_rewrites(case: Case, backend: str) -> None:
    compiled = cuvil.jit(lambda *args: case.fn(cnp, *args), backend=backend, shapes="static", optimise=False)
    check(case, compiled(*case.args))
