"""Random programs on the C backend against the reference: the small run; CONTRIBUTING names the nightly one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cuvil.testing import RandomChooser, draw_program
from cuvil.testing.batch import Lowered, compile_batch
from cuvil.testing.differential import CONFIGURATIONS, check_programs
from cuvil.testing.fuzz import Fuzzer, further_sizes, fuzz_program
from cuvil.testing.programs import Program

BATCH = 20
SEEDS = range(0, 60, BATCH)


@pytest.mark.parametrize("first", SEEDS)
def test_the_c_backend_agrees_with_the_reference(first: int) -> None:
    """Static and symbolic shapes, passes on and off; the symbolic ones at sizes with 0 and 1 too."""
    programs = [draw_program(RandomChooser(seed)) for seed in range(first, first + BATCH)]
    results = check_programs(programs, further_sizes(first))
    for seed, result in zip(range(first, first + BATCH), results, strict=True):
        assert not result.failures, f"seed {seed}: {result.failures[0]}\n{result.program.source()}"
    assert sum(r.checked for r in results) > 0.7 * sum(r.elements for r in results)
    assert {c for r in results for c, _, _ in r.lowered} == set(CONFIGURATIONS)
    assert any(0 in case.sizes.values() for r in results for _, _, cases in r.lowered for case in cases)


@pytest.mark.parametrize(
    ("pattern", "replacement"),
    [
        (r"cv_add_(\w+)\(", r"cv_sub_\1("),  # a wrong instruction
        (r"\bcv_store_part_f32\((.*), (n\d+)\)", r"cv_store_part_f32(\1, \2 - 1)"),  # the last lane of a tail forgotten
        (r"\bcv_load_part_f32\(in0 \+ \(", "cv_load_part_f32(in0 + (1 + "),  # a wrong offset
    ],
)
def test_faults_of_an_emitter_are_found(pattern: str, replacement: str) -> None:
    def faulty(programs: Sequence[Lowered]) -> list[Any]:
        return compile_batch(
            [
                Lowered(
                    p.program, {n: re.sub(pattern, replacement, t) if n != "main" else t for n, t in p.sources.items()}
                )
                for p in programs
            ]
        )

    programs = [draw_program(RandomChooser(seed)) for seed in range(40, 52)]
    results = check_programs(programs, configurations=CONFIGURATIONS[:1], compile_all=faulty)
    assert any(f.kind == "value" for r in results for f in r.failures)


def test_the_command_reports_what_it_did(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cuvil.testing.fuzz", "--programs", "4", "--seed", "5", "--jobs", "1"]
    done = subprocess.run([*command, "--folder", str(tmp_path)], capture_output=True, text=True, timeout=120)
    report = json.loads(done.stdout)
    assert (done.returncode, report["failures"], report["programs"]) == (0, 0, 4), done.stderr
    assert report["compared_share"] > 0.5
    assert done.stderr == ""  # a progress bar is for terminals


class CrashingFuzzer(Fuzzer):
    """One seed's program ends its process, another's is wrong."""

    def _batch(self, seeds: tuple[int, ...], connection: Any) -> None:
        if 3 in seeds:
            os.kill(os.getpid(), signal.SIGKILL)
        super()._batch(seeds, connection)


def test_a_program_that_crashes_is_found_and_written_down(tmp_path: Path) -> None:
    totals = CrashingFuzzer(tmp_path, jobs=1, steps=2, shrink=False).run([2, 3])
    assert [(f.seed, f.failure.message) for f in totals.found] == [(3, "the process ended by SIGKILL")]
    assert totals.programs == 2
    written = (tmp_path / "program_3.py").read_text()
    assert "def program(" in written and "SIGKILL" in written


def test_a_program_that_cannot_be_drawn_is_a_failure_among_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def undrawable(seed: int, steps: int = 8) -> Program:
        if seed == 3:
            raise ZeroDivisionError("no channels")
        return fuzz_program(seed, steps)

    monkeypatch.setattr("cuvil.testing.fuzz.fuzz_program", undrawable)
    totals = Fuzzer(tmp_path, jobs=1, steps=2).run([2, 3, 4])
    assert [(f.seed, f.failure.kind) for f in totals.found] == [(3, "draw")]
    assert "no channels" in totals.found[0].failure.message
    assert totals.programs == 3


def test_seeds_give_the_same_programs_in_every_process() -> None:
    code = "from cuvil.testing.fuzz import fuzz_program; print(fuzz_program(11).source(), end='')"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert other.stdout == fuzz_program(11).source()
