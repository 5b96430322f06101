"""The examples run, and say what they claim."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=300, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_digits_are_recognised() -> None:
    pytest.importorskip("sklearn", reason="the images are scikit-learn's")
    found = re.search(r"(\d+) of 360 held-out digits are right", run("examples/mlp_digits.py"))
    assert found is not None
    assert int(found[1]) >= 345


def test_an_ensemble_learns_the_spirals() -> None:
    out = run("examples/fit_ensemble.py", "--steps", "150")
    found = re.search(r"([\d.]+)% of 1000 held-out points are right", out)
    assert found is not None
    assert float(found[1]) > 95
    assert "hardest points" in out


def test_one_version_serves_every_size() -> None:
    out = run("examples/shape_table.py")
    assert "30 pairs of sizes, 0 compiled again" in out
    assert "S <= 512, got S = 513" in out


def test_own_rule_keeps_small_probabilities() -> None:
    out = run("examples/own_rule.py")
    assert "fired" in out
    assert re.search(r"as written: +\[\[-inf", out)
    assert re.search(r"with the rule: +\[\[-200", out)


def test_a_sentence_is_completed_by_one_native_loop() -> None:
    out = run("examples/lstm_text.py")
    found = re.search(r"(\d+) of 32 lines are completed word for word", out)
    assert found is not None and int(found[1]) >= 31
    assert "32 of 32 are what a loop in Python gives" in out
    assert "2 compiled variants served prompts of every length" in out
    other = run("examples/lstm_text.py", "Boil salted")
    assert other.startswith("Boil salted water, then add the spaghetti")


def test_the_readme_runs() -> None:
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert code is not None
    out = run("-c", code[1])
    assert "2 compiled variants" in out
    assert "cuvil_main" in out
