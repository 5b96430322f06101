"""``cuvil.cache`` and the ``cuvil`` command."""

from __future__ import annotations

import json
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cuvil
import cuvil.numpy as cnp
from cuvil.cli.main import main
from cuvil.support.errors import ArgumentError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUVIL_CACHE_DIR", str(tmp_path / "cache"))
    x = np.ones(3, np.float32)
    cuvil.jit(lambda x: cnp.exp(x) * 2)(x)
    cuvil.jit(lambda x: cnp.tanh(x) * 2)(x)
    return tmp_path / "cache"


def age(folder: Path, key: str, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(folder / "entries" / key / ".manifest.json", (then, then))


def test_entries_say_what_they_are(folder: Path) -> None:
    found = cuvil.cache.entries()
    assert cuvil.cache.folder() == folder
    assert sum(e.kind == "program" for e in found) == 2
    assert "support" in {e.kind for e in found}
    assert all(e.path.is_dir() and e.bytes > 0 for e in found)
    assert [e.used for e in found] == sorted((e.used for e in found), reverse=True)
    assert cuvil.cache.stats().entries == len(found)
    assert cuvil.cache.stats().bytes == sum(e.bytes for e in found)


def test_pruning_by_age_and_by_size(folder: Path) -> None:
    old, kept = [e.key for e in cuvil.cache.entries() if e.kind == "program"]
    age(folder, old, 10 * 86400)
    assert cuvil.cache.prune(older_than=timedelta(days=9)) == 1
    keys = {e.key for e in cuvil.cache.entries()}
    assert old not in keys and kept in keys
    for key in keys:
        age(folder, key, 3600)
    assert cuvil.cache.prune("1 GB") == 0
    assert cuvil.cache.prune(0) == len(keys)
    assert cuvil.cache.entries() == []
    for bad in ("many", "-1"):
        with pytest.raises(ArgumentError, match="max_bytes"):
            cuvil.cache.prune(bad)
    with pytest.raises(ArgumentError, match="max_bytes is -1"):
        cuvil.cache.prune(-1)
    with pytest.raises(ArgumentError, match="older_than"):
        cuvil.cache.prune(older_than=timedelta(-1))


def test_clearing_leaves_loaded_programs_working(folder: Path) -> None:
    f = cuvil.jit(lambda x: x + 1)
    x = np.ones(3, np.float32)
    f(x)
    assert cuvil.cache.clear() > 0
    np.testing.assert_array_equal(f(x), x + 1)
    np.testing.assert_array_equal(cuvil.jit(lambda x: x + 2)(x), x + 2)
    assert len(cuvil.cache.entries()) > 0


def test_the_command(folder: Path, capsys: Any) -> None:
    def run(*arguments: str) -> tuple[int, str, str]:
        status = main(arguments)
        out, err = capsys.readouterr()
        return status, out, err

    status, out, _ = run("--json", "cache", "list")
    rows = json.loads(out)
    assert status == 0 and {"program", "support"} <= {r["kind"] for r in rows}
    assert str(folder) in run("cache", "info")[1]
    assert json.loads(run("--json", "info")[1])["cuvil"] == cuvil.__version__
    assert "compiler version" in run("info")[1]
    assert rows[0]["key"] in run("cache", "list")[1]
    assert json.loads(run("--json", "cache", "prune", "--older-than", "1")[1]) == {"removed": 0}
    status, out, err = run("cache", "prune", "--max-size", "many")
    assert (status, out) == (1, "") and err.startswith("cuvil: max_bytes is 'many'; expected a size")
    assert run("cache", "clear")[1].split() == ["removed", str(len(rows))]
    assert run("cache", "list")[1] == "the cache is empty\n"
    with pytest.raises(SystemExit):
        main(["cache", "burn"])
