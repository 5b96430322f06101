"""The command: ``python -m bench [WORKLOAD...] [--peers torch,jax] [--profile]``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.client import ROOT
from bench.machine import machine_facts
from bench.measure import Harness, Outcome, Plan
from bench.plot import draw
from bench.report import as_json, ceiling_line, first_call_table, main_table, notes, profile_table
from bench.systems.registry import COMPARED, PEERS
from bench.workloads import WORKLOADS
from cuvil.support.config import available_cpus


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description="Measure cuvil and its peers on the same functions.")
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"of: {', '.join(WORKLOADS)}; all by default")
    parser.add_argument(
        "--peers",
        default=",".join(PEERS),
        help="systems to compare with, by comma; '' for none;"
        " cuvil-relaxed is cuvil with relaxed numerics, compared with the peers in a column of its own",
    )
    parser.add_argument("--threads", type=int, default=available_cpus(), help="threads of every system")
    parser.add_argument("--rounds", type=int, default=Plan.rounds, help="turns of each system")
    parser.add_argument("--slot", type=float, default=Plan.slot, help="seconds of one turn")
    parser.add_argument("--seed", type=int, default=Plan.seed, help="of weights and inputs")
    parser.add_argument("--profile", action="store_true", help="also time each of cuvil's kernels")
    parser.add_argument("--cold", action="store_true", help="compile with empty caches")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench", help="folder of the results")
    parser.add_argument(
        "--peers-python", type=Path, default=ROOT / ".venv" / "peers" / "bin" / "python",
        help="interpreter of the peers' environment",
    )  # fmt: skip
    args = parser.parse_args(argv)
    args.workloads = args.workloads or list(WORKLOADS)
    args.peers = [name for name in args.peers.split(",") if name]
    for name in args.workloads:
        if name not in WORKLOADS:
            parser.error(f"no workload is named {name!r}; there are {', '.join(WORKLOADS)}")
    for name in args.peers:
        if name not in COMPARED:
            parser.error(f"no peer is named {name!r}; there are {', '.join(COMPARED)}")
    if not 1 <= args.threads <= available_cpus():
        parser.error(f"--threads is {args.threads}; this process may use 1 to {available_cpus()} CPUs")
    if args.rounds < 1 or args.slot <= 0:
        parser.error("--rounds and --slot must be positive")
    return args


def _progress(workload: str) -> Callable[[str], None]:
    """Overwrites one line, on a terminal only."""
    if not sys.stderr.isatty():
        return lambda _: None
    return lambda text: print(f"\r\033[K{workload}: {text}", end="", file=sys.stderr, flush=True)


def main(argv: Sequence[str]) -> int:
    """Measure and write; the exit status is 1 where cuvil failed or was wrong."""
    args = _arguments(argv)
    systems = ["cuvil", *args.peers]
    facts = machine_facts(ROOT)
    harness = Harness(
        systems,
        python=Path(sys.executable),
        peers_python=args.peers_python.absolute(),
        threads=args.threads,
        folder=args.output,
        cold=args.cold,
    )
    outcomes: list[Outcome] = []
    try:
        for name in args.workloads:
            progress = _progress(name)
            outcomes.append(
                harness.run(
                    WORKLOADS[name], Plan(args.rounds, args.slot, args.seed), profile=args.profile, progress=progress
                )
            )
            progress("done")
    finally:
        harness.close()
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    facts |= {
        "versions": {name: harness.versions[name] for name in systems if name in harness.versions},
        "threads": args.threads,
        "rounds": args.rounds,
        "slot_seconds": args.slot,
        "arguments": list(argv),
        "cold": args.cold,
    }
    _print(outcomes, systems, facts, args.profile)
    (args.output / "results.json").write_text(json.dumps(as_json(outcomes, facts), indent=1) + "\n")
    written = [args.output / "results.json"]
    pictures = [args.output / "ratios.svg", args.output / "ratios.png"]
    title = f"{facts['cpu']}, {args.threads} threads, commit {facts['commit']}"
    if draw(outcomes, systems, title, pictures):
        written += pictures
    else:
        print("No plot: matplotlib is not installed (pip install 'cuvil[bench]').")
    print("Written: " + ", ".join(os.path.relpath(path) for path in written))
    ours = [o.measurements["cuvil"].status for o in outcomes]
    return 0 if all(status == "measured" for status in ours) else 1


def _print(outcomes: Sequence[Outcome], systems: Sequence[str], facts: dict[str, object], profile: bool) -> None:
    versions = facts["versions"]
    assert isinstance(versions, dict)
    print(f"{facts['cpu']}, {facts['threads']} threads, {facts['system']}, commit {facts['commit']}")
    print(", ".join(f"{name} {version}" for name, version in versions.items()))
    print(f"Ceilings: {ceiling_line(outcomes)}\n")
    print(main_table(outcomes, systems), end="\n\n")
    print(first_call_table(outcomes, systems), end="\n\n")
    for note in notes(outcomes):
        print(f"- {note}")
    if profile:
        for outcome in outcomes:
            if outcome.profile:
                print(f"\n{outcome.workload}\n\n{profile_table(outcome)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
