"""The harness with its processes: checks, absence, wrong results and profiles."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.client import Worker, WorkerError
from bench.measure import Harness, Plan
from bench.workloads import WORKLOADS

QUICK = Plan(rounds=2, slot=0.002)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    found = Harness(
        ["cuvil", "torch"], python=Path(sys.executable), peers_python=tmp_path / "none", threads=1, folder=tmp_path
    )
    yield found
    found.close()


def test_a_missing_environment_is_reported(harness: Harness) -> None:
    outcome = harness.run(WORKLOADS["mlp"], QUICK, profile=True)
    torch = outcome.measurements["torch"]
    assert torch.status == "absent" and "none" in torch.message
    ours = outcome.measurements["cuvil"]
    assert ours.status == "measured" and len(ours.rounds) == 2 and min(ours.rounds) > 0
    assert ours.error is not None and 0 < ours.error < 1e-4
    assert outcome.flops == 2 * (784 * 512 + 512 * 512 + 512 * 10)
    assert len(outcome.ceilings) == 2 and min(outcome.floors()) > 0
    assert sum(row["flops"] for row in outcome.profile) >= outcome.flops
    assert not (harness.folder / "mlp").exists()


def test_a_wrong_result_is_not_timed(harness: Harness) -> None:
    strict = dataclasses.replace(WORKLOADS["mlp"], tolerance=0.0)
    ours = harness.run(strict, QUICK).measurements["cuvil"]
    assert ours.status == "wrong" and ours.rounds == [] and "error" in ours.message


def test_a_crashed_worker_is_reported_and_replaced(harness: Harness) -> None:
    os.kill(harness.workers["cuvil"].pid, signal.SIGKILL)
    ours = harness.run(WORKLOADS["dispatch"], QUICK).measurements["cuvil"]
    assert ours.status == "failed" and "ended with status -9" in ours.message
    assert harness.run(WORKLOADS["dispatch"], QUICK).measurements["cuvil"].status == "measured"


def test_an_error_of_the_system_is_an_answer(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        worker = Worker("cuvil", Path(sys.executable), 1, log)
        with pytest.raises(WorkerError, match="FileNotFoundError"):
            worker.ask(do="load", workload="none", folder=str(tmp_path), outputs=str(tmp_path))
        assert worker.ask(do="hello")["version"]
        worker.close()


def test_a_waiting_worker_is_stopped(tmp_path: Path) -> None:
    stat = Path("/proc/self/stat")
    if not stat.exists():
        pytest.skip("no /proc on this system")
    with (tmp_path / "log").open("w") as log:
        worker = Worker("cuvil", Path(sys.executable), 1, log)
        worker.ask(do="hello")
        pid, status = os.waitpid(worker.pid, os.WUNTRACED)
        assert pid == worker.pid and os.WIFSTOPPED(status)
        worker.close()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["dispatch", "--peers", "", "--threads", "1", "--rounds", "2", "--slot", "0.002", "--profile"]
    assert main([*arguments, "--output", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "| dispatch" in printed and "| add" in printed
    data = json.loads((tmp_path / "results.json").read_text())
    assert data["workloads"][0]["workload"] == "dispatch" and data["threads"] == 1


@pytest.mark.parametrize(
    "arguments, message",
    [(["nothing"], "no workload"), (["--peers", "numpy"], "no peer"), (["--threads", "0"], "CPUs")],
)
def test_wrong_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert message in capsys.readouterr().err
