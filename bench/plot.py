"""Draws how many times as long each peer takes as cuvil."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.measure import Outcome
from bench.statistics import ratio

_MARKERS = "osD^vP*X"


def draw(outcomes: Sequence[Outcome], systems: Sequence[str], title: str, paths: Sequence[Path]) -> bool:
    """Write the figure, its format by each path's suffix; False where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import FuncFormatter, NullFormatter
    except ImportError:
        return False
    figure = Figure(figsize=(8, 1.2 + 0.32 * len(outcomes)), layout="constrained")
    axes = figure.add_subplot()
    axes.axvline(1.0, color="black", linewidth=1)
    peers = [name for name in systems if name != "cuvil"]
    for number, name in enumerate(peers):
        xs, ys, errors = [], [], []
        for row, outcome in enumerate(outcomes):
            ours, peer = outcome.measurements.get("cuvil"), outcome.measurements.get(name)
            if ours is None or peer is None or "measured" not in ours.status or peer.status != "measured":
                continue
            r = ratio(peer.rounds, ours.rounds)
            xs.append(r.median)
            ys.append(row)
            errors.append((r.median - r.low, r.high - r.median))
        if xs:
            axes.errorbar(
                xs, ys, xerr=list(zip(*errors, strict=True)), fmt=_MARKERS[number % len(_MARKERS)], markersize=5,
                linewidth=1, label=name,
            )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_yticks(range(len(outcomes)), [o.workload for o in outcomes])
    axes.invert_yaxis()
    axes.set_xlabel("time of the peer / time of cuvil (right of 1: cuvil is faster)")
    axes.set_title(title, fontsize=9)
    axes.grid(axis="x", alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8, loc="best")
    for path in paths:
        figure.savefig(path, dpi=150)
    return True
