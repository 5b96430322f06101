"""An input_spec that cannot be meant is told before it compiles something else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cuvil
from cuvil.support.errors import ArgumentError


def _first(x: Any) -> Any:
    return x


def _difference(x: Any, y: Any) -> Any:
    return x - y


@pytest.mark.parametrize(
    ("size", "says"),
    [(-1, "the size -1 is no integer >= 0"), (None, "the size None"), (1.5, "the size 1.5")],
)  # fmt: skip
def test_a_size_is_an_integer_or_a_name(size: Any, says: str) -> None:
    # None was read as a symbol named "None", which made two such axes equal
    with pytest.raises(ArgumentError, match=says):
        cuvil.compile(_first, input_spec=[("x", "float32", (size, size))], backend="null")


def test_a_shape_is_no_text() -> None:
    with pytest.raises(ArgumentError, match=r"\('BS',\)"):
        cuvil.compile(_first, input_spec=[("x", "float32", "BS")], backend="null")


def test_entries_come_in_the_order_of_the_parameters() -> None:
    with pytest.raises(ArgumentError, match="order y, x"):
        cuvil.compile(
            _difference, input_spec=[("y", "float32", ("N",)), ("x", "float32", ("N",))], backend="null"
        )  # fmt: skip


@pytest.mark.parametrize(
    ("constraints", "says"),
    [
        ("N > 3", "constraints is one text"),
        (["Z > 3"], "speaks of Z"),
        (["N > 3", "N < 2"], "no sizes satisfy"),
    ],
)
def test_constraints_speak_of_sizes_that_exist(constraints: Any, says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        cuvil.compile(_first, input_spec=[("x", "float32", ("N",))], constraints=constraints, backend="null")


def test_sizes_may_be_numpy_integers() -> None:
    compiled = cuvil.compile(_first, input_spec=[("x", "float32", (np.int64(2),))], backend="reference")
    assert compiled(np.ones(2, np.float32)).shape == (2,)
