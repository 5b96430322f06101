"""What is said of interleaved measurements: medians of rounds, their spread, and ratios within rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Spread:
    """A median and the quartiles around it."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Median and quartiles.

    >>> spread([1.0, 2.0, 3.0, 4.0, 100.0])
    Spread(median=3.0, low=2.0, high=4.0)
    """
    low, median, high = np.percentile(np.asarray(values, np.float64), [25, 50, 75])
    return Spread(float(median), float(low), float(high))


def ratio(peer: Sequence[float], ours: Sequence[float]) -> Spread:
    """How many times as long the peer takes. Both lists are in the order of the rounds, and the quotient is taken
    within each round, so that a machine that slows down for some rounds does not shift it.

    >>> ratio([2.0, 20.0, 2.0], [1.0, 10.0, 1.0]).median
    2.0
    """
    return spread([p / o for p, o in zip(peer, ours, strict=True)])


def error(output: np.ndarray, reference: np.ndarray) -> float:
    """Largest difference, as a part of the reference's root mean square; infinite for another shape or a NaN that the
    reference has not.

    >>> error(np.array([1.0, 1.5]), np.array([1.0, 1.0]))
    0.5
    """
    if output.shape != reference.shape:
        return float("inf")
    if output.size == 0:
        return 0.0
    scale = float(np.sqrt(np.mean(np.square(reference.astype(np.float64))))) or 1.0
    worst = float(np.max(np.abs(output.astype(np.float64) - reference)))
    return worst / scale if np.isfinite(worst) else float("inf")
