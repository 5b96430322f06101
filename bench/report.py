"""The results as a table, as JSON and as notes on what was not measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from bench.measure import Measurement, Outcome
from bench.statistics import Spread, ratio, spread
from bench.systems.registry import SYSTEMS


def best_peer(outcome: Outcome, own: str = "cuvil") -> tuple[str, Spread] | None:
    """The fastest float32 peer, and its time over cuvil's; None where one of the two is missing."""
    ours = outcome.measurements.get(own)
    peers = [
        m
        for name, m in outcome.measurements.items()
        if m.status == "measured" and SYSTEMS[name].peer and not SYSTEMS[name].low_precision
    ]
    if ours is None or ours.status != "measured" or not peers:
        return None
    best = min(peers, key=lambda m: spread(m.rounds).median)
    return best.system, ratio(best.rounds, ours.rounds)


def share_of_ceiling(outcome: Outcome) -> float | None:
    """The least time at the measured ceilings over cuvil's time, the median over the rounds."""
    ours, floors = outcome.measurements.get("cuvil"), outcome.floors()
    if ours is None or ours.status != "measured" or not floors:
        return None
    return ratio(floors, ours.rounds).median


def format_ms(seconds: float) -> str:
    """Milliseconds with three digits.

    >>> format_ms(0.00001234), format_ms(0.1234)
    ('0.0123', '123')
    """
    text = f"{seconds * 1e3:.3g}"
    return f"{seconds * 1e3:.0f}" if "e" in text else text


def _cell(m: Measurement | None) -> str:
    if m is None:
        return ""
    return format_ms(spread(m.rounds).median) if m.status == "measured" else m.status


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows, the first of which is the head, as an aligned table in Markdown.

    >>> print(format_table([["a", "b"], ["x", "10"]]))
    | a |  b |
    |---|---:|
    | x | 10 |
    """
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]

    def line(row: Sequence[str]) -> str:
        cells = [c.ljust(w) if k == 0 else c.rjust(w) for k, (c, w) in enumerate(zip(row, widths, strict=True))]
        return "| " + " | ".join(cells) + " |"

    rule = ["-" * (w + 2) if k == 0 else "-" * (w + 1) + ":" for k, w in enumerate(widths)]
    return "\n".join([line(rows[0]), "|" + "|".join(rule) + "|", *map(line, rows[1:])])


def main_table(outcomes: Sequence[Outcome], systems: Sequence[str]) -> str:
    """Milliseconds of each system; the best float32 peer over cuvil; the share of the float32 ceiling."""
    variants = [name for name in systems if name != "cuvil" and not SYSTEMS[name].peer]
    others = [f"best / {name}" for name in variants]
    rows = [["workload, ms", *systems, "best / cuvil", "quartiles", "by", "of the ceiling", *others]]
    for o in outcomes:
        best, share = best_peer(o), share_of_ceiling(o)
        ratios = [best_peer(o, name) for name in variants]
        rows.append(
            [
                o.workload,
                *(_cell(o.measurements.get(name)) for name in systems),
                f"{best[1].median:.2f}" if best else "",
                f"{best[1].low:.2f}–{best[1].high:.2f}" if best else "",
                best[0] if best else "",
                f"{share:.0%}" if share is not None else "",
                *(f"{r[1].median:.2f}" if r else "" for r in ratios),
            ]
        )
    return format_table(rows)


def first_call_table(outcomes: Sequence[Outcome], systems: Sequence[str]) -> str:
    """Seconds to load, compile and call for the first time."""
    rows = [["first call, s", *systems]]
    for o in outcomes:
        seconds = [m.load_seconds if (m := o.measurements.get(name)) else None for name in systems]
        rows.append([o.workload, *("" if s is None else f"{s:.2f}" for s in seconds)])
    return format_table(rows)


def notes(outcomes: Sequence[Outcome]) -> list[str]:
    """One line for every system that was not measured, and why."""
    found: dict[str, list[str]] = {}
    for o in outcomes:
        for m in o.measurements.values():
            if m.status != "measured":
                found.setdefault(f"{m.system} {m.status}: {m.message}", []).append(o.workload)
    return [
        text if len(names) == len(outcomes) and len(outcomes) > 1 else f"{text} ({', '.join(names)})"
        for text, names in found.items()
    ]


def ceiling_line(outcomes: Sequence[Outcome]) -> str:
    """The ceilings that the table's last column refers to."""
    outcomes = [o for o in outcomes if o.ceilings]
    if not outcomes:
        return "none measured"
    peaks = [o.ceiling("flops_per_second") / 1e9 for o in outcomes]
    amx = [o.ceiling("amx_flops_per_second") / 1e12 for o in outcomes]
    reads = max(outcomes, key=lambda o: o.traffic).ceiling("bytes_per_second") / 1e9
    text = f"float32 FMA {min(peaks):.0f} to {max(peaks):.0f} GFLOP/s, reads {reads:.0f} GB/s (largest workload)"
    return text + (f", AMX bf16 {min(amx):.1f} to {max(amx):.1f} TFLOP/s" if max(amx) > 0 else "")


def profile_table(outcome: Outcome, limit: int = 25) -> str:
    """Kernels by their share of the time, calls of one kernel together."""
    flops_ceiling, bytes_ceiling = outcome.ceiling("flops_per_second"), outcome.ceiling("bytes_per_second")
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in outcome.profile:
        groups.setdefault(row["kernel"], []).append(row)
    total = sum(row["seconds"] for row in outcome.profile) or 1.0
    rows = [["kernel", "calls", "ms", "share", "GFLOP/s", "GB/s", "of the ceiling"]]
    ordered = sorted(groups.items(), key=lambda item: -sum(r["seconds"] for r in item[1]))
    for kernel, calls in ordered[:limit]:
        seconds = sum(r["seconds"] for r in calls)
        line = [kernel, str(len(calls)), format_ms(seconds), f"{seconds / total:.1%}"]
        if all(r["flops"] is not None for r in calls):
            flops, moved = sum(r["flops"] for r in calls), sum(r["bytes"] for r in calls)
            floor = max(flops / flops_ceiling, moved / bytes_ceiling)
            line += [f"{flops / seconds / 1e9:.1f}", f"{moved / seconds / 1e9:.1f}", f"{floor / seconds:.0%}"]
        rows.append(line + [""] * (len(rows[0]) - len(line)))
    rest = ordered[limit:]
    if rest:
        seconds = sum(r["seconds"] for _, calls in rest for r in calls)
        rows.append([f"{len(rest)} more", "", format_ms(seconds), f"{seconds / total:.1%}", "", "", ""])
    return format_table(rows)


def as_json(outcomes: Sequence[Outcome], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that was measured, round by round."""
    results: list[dict[str, Any]] = []
    for o in outcomes:
        entry = asdict(o)
        best = best_peer(o)
        entry["best_peer"] = best and {"system": best[0], "ratio": asdict(best[1])}
        entry["share_of_ceiling"] = share_of_ceiling(o)
        for m in entry["measurements"].values():
            m["seconds"] = asdict(spread(m["rounds"])) if m["rounds"] else None
        results.append(entry)
    return {**facts, "workloads": results}
