"""Ratios, errors and spreads."""

from __future__ import annotations

import numpy as np

from bench.statistics import Spread, error, ratio, spread


def test_spread_is_median_and_quartiles() -> None:
    assert spread([5.0, 1.0, 3.0, 2.0, 4.0]) == Spread(3.0, 2.0, 4.0)


def test_ratio_is_taken_within_rounds() -> None:
    # The machine is ten times slower in the second half: the medians' quotient would be 20 / 1 or 2 / 10.
    assert ratio([2.0, 2.0, 20.0, 20.0], [1.0, 1.0, 10.0, 10.0]) == Spread(2.0, 2.0, 2.0)


def test_error_is_relative_to_the_reference() -> None:
    assert error(np.array([10.0, 11.0]), np.array([10.0, 10.0])) == 0.1


def test_error_of_wrong_shapes_and_nan_is_infinite() -> None:
    assert error(np.zeros(3), np.zeros(4)) == float("inf")
    assert error(np.array([np.nan, 1.0]), np.array([1.0, 1.0])) == float("inf")
    assert error(np.array([np.inf, 1.0]), np.array([1.0, 1.0])) == float("inf")


def test_error_of_nothing_is_zero() -> None:
    assert error(np.zeros((0, 3)), np.zeros((0, 3))) == 0.0
