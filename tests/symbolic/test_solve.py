"""Solving symbols from shapes: agreement with evaluation, and errors that name the place."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuvil.support.errors import ShapeError
from cuvil.symbolic import Dim, Scope, evaluate, parse_dim, solve

from .strategies import NAMES, dims, envs, value


def shape(text: str) -> list[Dim]:
    return [parse_dim(part) for part in text.split(",")] if text else []


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.lists(dims, max_size=3), max_size=3), envs)
def test_sizes_made_from_symbols_give_them_back(patterns: list[list[Dim]], env: dict[str, int]) -> None:
    patterns = [[parse_dim(name) for name in NAMES], *patterns]
    shapes = [[value(dim, env) for dim in pattern] for pattern in patterns]
    if all(size is not None and size >= 0 for sizes in shapes for size in sizes):
        assert solve(patterns, shapes) == env  # type: ignore[arg-type]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(dims, min_size=1, max_size=4), st.lists(st.integers(0, 9), min_size=4, max_size=4))
def test_what_is_solved_fits(pattern: list[Dim], found: list[int]) -> None:
    found = found[: len(pattern)]
    try:
        env = solve([pattern], [found])
    except ShapeError as error:
        assert "argument 0" in str(error)
        return
    assert [evaluate(dim, env) for dim in pattern] == found


@pytest.mark.parametrize("size", [0, 1, 2, 9])
def test_forms_that_can_be_inverted(size: int) -> None:
    assert solve([shape("2*S + 1")], [[2 * size + 1]]) == {"S": size}
    assert solve([shape("B, B*S")], [[3, 3 * size]]) == {"B": 3, "S": size}
    assert solve([shape("S + T"), shape("T")], [[size + 4], [4]]) == {"S": size, "T": 4}
    assert solve([shape("10 - S")], [[10 - size]]) == {"S": size}
    assert solve([shape("K")], [[size]], Scope(["H == 2*K"])) == {"K": size, "H": 2 * size}
    assert solve([shape("A + B"), shape("B + C"), shape("C")], [[5], [4], [3]]) == {"A": 4, "B": 1, "C": 3}
    assert solve([shape("S, (S + 1)//2")], [[size, (size + 1) // 2]]) == {"S": size}


@pytest.mark.parametrize(
    ("patterns", "shapes", "relations", "message"),
    [
        (["B, 3"], [[2, 4]], [], r"argument 0 \(x\), axis 1: expected 3, got 4 \(shape \(2, 4\) for \(B, 3\)\)"),
        (["B, 3"], [[2]], [], r"argument 0 \(x\): expected 2 axes of shape \(B, 3\), got 1 of shape \(2,\)"),
        (
            ["B", "2, B"],
            [[2], [2, 3]],
            [],
            r"argument 1 \(y\), axis 1: expected B = 2 as in argument 0 \(x\), axis 0, got 3",
        ),
        (["2*S + 1"], [[4]], [], r"axis 0: expected 2\*S \+ 1 for an integer S >= 0, got 4, which none gives"),
        (["2*S + 1"], [[0]], [], "which none gives"),
        (["S + 5"], [[4]], [], "which none gives"),
        (
            ["S, (S + 1)//2"],
            [[5, 2]],
            [],
            r"axis 1: expected \(S \+ 1\)//2 = 3 with S = 5 \(argument 0 \(x\), axis 0\), got 2",
        ),
        (["(S + 1)//2"], [[2]], [], r"axis 0: the size 2 does not determine S in \(S \+ 1\)//2"),
        (["A, A*S"], [[0, 0]], [], r"axis 1: the size 0 does not determine S"),
        (["A, B, A//B"], [[1, 0, 0]], [], r"axis 2: expected A//B, got 0: .*divides by zero"),
        (["S"], [[513]], ["1 <= S <= 512"], r"expected sizes with S <= 512, got S = 513 \(argument 0 \(x\), axis 0\)"),
        (["S"], [[0]], ["1 <= S <= 512"], r"expected sizes with 1 <= S, got S = 0"),
        (["S"], [[17]], ["S % 16 == 0"], r"expected sizes with S % 16 == 0, got S = 17"),
        (["H"], [[3]], ["H == 2*K"], r"the relation H == 2\*K: expected H - 2\*K for an integer K >= 0 with H = 3"),
        (["S"], [[-1]], [], r"axis 0: expected a size >= 0, got -1"),
        (["S", "S"], [[1]], [], "expected 2 arguments, got 1"),
    ],
)
def test_errors_name_the_place(
    patterns: list[str], shapes: list[list[int]], relations: list[str], message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        solve([shape(pattern) for pattern in patterns], shapes, Scope(relations), names=["x", "y"])


def test_relations_about_other_symbols_are_not_checked() -> None:
    assert solve([shape("S")], [[3]], Scope(["T >= 1", "S <= 3"])) == {"S": 3}
