"""Kernels that call back into Python: errors, threads, both ways of dispatch, programs that were stored."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cuvil
import cuvil.numpy as cnp
from cuvil.dtypes import float64
from cuvil.ir.binary import HostCall
from cuvil.ir.program_file import read_program, write_program
from cuvil.ir.text import format_module, parse_module
from cuvil.ops.record import Aval
from cuvil.support.errors import IndexOutOfBoundsError, IRError


def run(x: Any, i: Any) -> Any:
    return cnp.linalg.inv(x) @ x, cnp.take(x, i, axis=0)


@pytest.mark.parametrize("dispatch", ["native", "ctypes"])
@pytest.mark.parametrize("size", [2, 120])  # a call that keeps the GIL, and one that lets it go
def test_errors_are_raised_when_the_call_is_over(dispatch: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUVIL_DISPATCH", dispatch)
    f = cuvil.jit(run)
    good, index = np.eye(size) * 2, np.array([0, 1])
    for _ in range(3):
        np.testing.assert_array_equal(f(good, index)[0], np.eye(size))
        with pytest.raises(np.linalg.LinAlgError):
            f(np.zeros((size, size)), index)
        with pytest.raises(IndexOutOfBoundsError):
            f(good, np.array([0, size]))


def test_threads_raise_their_own_errors() -> None:
    f = cuvil.jit(cnp.linalg.inv)
    f(np.eye(3))
    outcomes: list[list[str]] = [[] for _ in range(4)]

    def work(k: int) -> None:
        for n in range(40):
            try:
                out = f(np.eye(3) * (k + 1) if n % 2 else np.zeros((3, 3)))
                outcomes[k].append("value" if np.allclose(out, np.eye(3) / (k + 1)) else "wrong")
            except np.linalg.LinAlgError:
                outcomes[k].append("error")

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert outcomes == [["error", "value"] * 20] * 4


def test_results_that_nobody_reads_and_operands_that_are_read_twice() -> None:
    x = np.array([[2.0, 1.0], [1.0, 3.0]])
    f = cuvil.jit(lambda a: (cnp.linalg.solve(a, a), cnp.linalg.svd(a).S, cnp.linalg.eigh(a)[1][0]))
    for got, want in zip(f(x), (np.eye(2), np.linalg.svdvals(x), np.linalg.eigh(x)[1][0]), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-12)


def test_what_a_host_call_gets_is_read_only_and_what_it_gives_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from cuvil.ops import registry

    record = registry.get("inv")
    seen: list[bool] = []

    def watched(x: Any) -> Any:
        seen.append(x.flags.writeable)
        return x[:1]

    monkeypatch.setitem(registry._RECORDS, "inv", replace(record, reference=watched))
    f = cuvil.jit(lambda x: cnp.linalg.inv(x) + 7.125)  # a program that no other test has compiled
    with pytest.raises(cuvil.errors.BackendError, match="inv gave float64"):
        f(np.eye(3))
    assert seen == [False]


def test_a_host_call_is_stored_and_read() -> None:
    call = HostCall(
        "qr_0", "qr", ("mode",), ("complete",), (0,), (1, None), (Aval((3, 2), float64), Aval((3, 3), float64)), ("N",)
    )
    program = _program(call)
    text, data = write_program(program, [], [])
    read, _ = read_program(text.encode(), data, Path("lib.so"), [])
    assert read.kernels == (call,)
    for old, new in (('"qr"', '"add"'), ('"operands":[0]', '"operands":[2]'), ('"results":[1,null]', '"results":[1]')):
        assert old in text
        with pytest.raises(IRError):
            read_program(text.replace(old, new).encode(), data, Path("lib.so"), [])


def _program(call: HostCall) -> Any:
    from cuvil.ir.binary import NativeProgram

    return NativeProgram(
        library=Path("lib.so"), kernels=(call,), inputs=(), outputs=(), symbols=(), constants=[], packings=(), slots=(),
        calls=("qr_0",),
    )  # fmt: skip


def test_every_stage_prints_and_parses_back() -> None:
    x = np.ones((2, 3, 3), np.complex64)
    f = cuvil.jit(lambda x: (cnp.sqrt(x) + cnp.linalg.svd(x, full_matrices=False)[0], cnp.fft.fft(x, norm="ortho")))
    lowered = f.lower(x)
    for stage in ("tensor", "optimised", "fused", "kernel"):
        text = lowered.as_text(stage)
        assert format_module(parse_module(text)) == text


def test_a_new_process_loads_a_stored_program(tmp_path: Path) -> None:
    """The second process traces, looks up and loads: nothing new is compiled."""
    code = """
import numpy as np, cuvil, cuvil.numpy as cnp
table = np.array([[2j, 1], [0, 3]], np.complex64)
f = cuvil.jit(lambda x: (cnp.linalg.solve(x + table, table), cnp.sqrt(x) * table))
x = np.eye(2, dtype=np.complex64)
for got, want in zip(f(x), (np.linalg.solve(x + table, table), np.sqrt(x) * table)):
    np.testing.assert_allclose(got, want, rtol=1e-5)
"""
    environment = {**os.environ, "CUVIL_CACHE_DIR": str(tmp_path), "CUVIL_DISPATCH": "ctypes"}
    entries: list[set[str]] = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        entries.append({str(p) for p in tmp_path.rglob("*.so")})
    assert entries[0] == entries[1] != set()
