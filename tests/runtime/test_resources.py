"""Scarce resources: other CPUs than this one, memory that runs out, memory that a call takes."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cuvil
import cuvil.numpy as cnp
from cuvil.backends.c import toolchain
from cuvil.support.errors import ArgumentError, ToolchainError

ROOT = Path(__file__).parents[2]
X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="names CPUs of x86-64")
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc and limits the address space")


def _child(code: str, **environment: str) -> str:
    """Run code in another process; returns what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


_SAMPLES = """
import numpy as np
from sample_programs import SAMPLES, traced
from cuvil.compiler import CompileOptions, compile_program
for sample in SAMPLES.values():
    program = compile_program(traced(sample.fn, *sample.avals), CompileOptions())
    reference = compile_program(traced(sample.fn, *sample.avals), CompileOptions(backend="reference", optimise=False))
    for env in sample.sizes:
        arrays = sample.arrays(env)
        for got, want in zip(program.run(arrays, env), reference.run(arrays, env), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
print("right")
"""


@X86
@pytest.mark.parametrize("target", ["x86-64", "haswell"])
def test_code_for_a_cpu_with_less(target: str) -> None:
    assert _child(_SAMPLES, CUVIL_TARGET=target) == "right\n"


@X86
def test_code_for_a_cpu_with_more_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    old = "model\t: 60\nflags\t\t: " + " ".join(f for f in toolchain._CPU_FLAGS.values() if "avx512" not in f)
    monkeypatch.setattr(toolchain, "_cpu_text", lambda: old)
    monkeypatch.setenv("CUVIL_TARGET", "skylake-avx512")
    with pytest.raises(ToolchainError, match=r"'skylake-avx512' would use avx512f, .*this machine's CPU does not have"):
        toolchain.find_toolchain()
    monkeypatch.setenv("CUVIL_TARGET", "haswell")
    assert "-march=haswell" in toolchain.find_toolchain().flags


def test_a_target_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUVIL_TARGET", "no-such-cpu")
    with pytest.raises(ToolchainError, match="no-such-cpu"):
        toolchain.find_toolchain()
    monkeypatch.setenv("CUVIL_TARGET", "a b; rm")
    with pytest.raises(ArgumentError, match="CUVIL_TARGET"):
        toolchain.find_toolchain()


_LIMITED = """
import resource
import numpy as np, cuvil, cuvil.numpy as cnp

w = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
table = np.random.default_rng(1).standard_normal((4_000_000, 8)).astype(np.float32)
functions = {
    "outputs": lambda x: cnp.exp(x),
    "arena": lambda x: cnp.sum(cnp.cumulative_sum(cnp.cumulative_sum(x, axis=1), axis=0)),
    "scratch": lambda x: cnp.sum(cnp.sort(x, axis=0)[0]),
    "product": lambda x: cnp.sum(cnp.exp(x @ w) @ w),
}
spec = [("x", "float32", ("N", 64))]
compiled = {name: cuvil.compile(f, spec) for name, f in functions.items()}
small = np.random.default_rng(2).standard_normal((5, 64)).astype(np.float32)
before = {name: f(small).copy() for name, f in compiled.items()}
huge = np.zeros((600_000, 64), np.float32)  # 154 MB
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + (48 << 20), resource.RLIM_INFINITY))
for name, f in compiled.items():
    for _ in range(2):
        try:
            f(huge)
        except MemoryError as error:
            print(name, "MemoryError")
        else:
            print(name, "passed")
        assert np.array_equal(f(small), before[name]), name
fresh = cuvil.jit(lambda x, i: cnp.take(table, i, axis=0) + x)  # 128 MB to copy
try:
    fresh(small[:, :8], np.arange(5))
except MemoryError:
    print("constants MemoryError")
assert all(np.array_equal(f(small), before[name]) for name, f in compiled.items())
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert fresh(small[:, :8], np.arange(5)).shape == (5, 8)
for name, f in compiled.items():
    f(huge)
print("usable")
"""


@LINUX
@pytest.mark.parametrize("dispatch", ["native", "ctypes"])
def test_memory_that_runs_out_is_an_error_and_no_more(dispatch: str) -> None:
    lines = _child(_LIMITED, CUVIL_DISPATCH=dispatch).splitlines()
    assert lines.count("outputs MemoryError") == 2 and lines.count("arena MemoryError") == 2, lines
    assert "constants MemoryError" in lines and lines[-1] == "usable"


_STEADY = """
import ctypes, numpy as np, cuvil, cuvil.numpy as cnp
from cuvil import nn

class Mallinfo(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(n, ctypes.c_size_t) for n in names.split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Mallinfo

rng = np.random.default_rng(0)
w = rng.standard_normal((96, 384)).astype(np.float32)
kernel = rng.standard_normal((16, 8, 3, 3)).astype(np.float32)

def block(x):
    parts = (x @ w[:, i * 96 : i * 96 + 96] for i in range(3))
    q, k, v = (cnp.transpose(cnp.reshape(p, (2, 40, 4, 24)), (0, 2, 1, 3)) for p in parts)
    y = cnp.reshape(cnp.transpose(nn.scaled_dot_product_attention(q, k, v), (0, 2, 1, 3)), (2, 40, 96))
    return nn.softmax(nn.gelu(y @ w), axis=-1)

def image(x):
    return cnp.max(nn.relu(nn.conv2d(x, kernel, padding=1)), axis=(2, 3))

cases = [(block, rng.standard_normal((2, 40, 96))), (image, rng.standard_normal((1, 8, 40, 40))),
         (lambda x: cnp.sort(cnp.cumulative_sum(x, axis=1), axis=1), rng.standard_normal((30, 50)))]
for fn, x in cases:
    f = cuvil.jit(fn)
    x = x.astype(np.float32)
    out = f(x)
    variant, = f.variants()
    executable = variant.compiled.native
    plan = executable.native_plan({})
    outs = executable.native.run([x], plan)
    # What a call allocates are its outputs: with each released before the next call, the heap stays as it is.
    del outs
    for _ in range(20):
        executable.native.run([x], plan)
    rounds = []
    for _ in range(5):  # what a call keeps shows in every round, what the interpreter does now and then does not
        before = libc.mallinfo2()
        for _ in range(200):
            executable.native.run([x], plan)
        after = libc.mallinfo2()
        rounds.append((abs(after.uordblks - before.uordblks), abs(after.hblkhd - before.hblkhd)))
    used, mapped = min(rounds)
    print(used, mapped, executable.native.workspaces, executable.program.library)
"""


@LINUX
def test_a_warm_call_takes_no_memory_that_it_keeps() -> None:
    """The heap is the same after 200 calls, one workspace serves all, and compiled code has no way to allocate."""
    lines = _child(_STEADY).splitlines()
    assert len(lines) == 3
    for line in lines:
        *numbers, library = line.split()
        assert numbers == ["0", "0", "1"]
        if shutil.which("nm") is not None:
            names = subprocess.run(["nm", "-D", "-u", library], capture_output=True, text=True, check=True).stdout
            imported = {name.partition("@")[0] for name in names.split()}
            taboo = {"malloc", "calloc", "realloc", "free", "aligned_alloc", "posix_memalign", "mmap", "brk", "sbrk"}
            assert "cuvil_main" not in imported and not imported & taboo


def test_inputs_of_every_kind() -> None:
    """Misaligned, strided, reversed, read-only, broadcast and empty inputs give what a plain copy gives."""
    f: Any = cuvil.jit(lambda x: (cnp.sum(x, axis=0), x * 2 + 1))
    rng = np.random.default_rng(0)
    big = rng.standard_normal((12, 14)).astype(np.float32)
    raw = np.zeros(6 * 7 * 4 + 1, np.uint8)
    odd = raw[1:].view(np.float32).reshape(6, 7)
    odd[...] = big[:6, :7]
    frozen = big[:6, :7].copy()
    frozen.flags.writeable = False
    views = [big[::2, ::2], big[::-1, ::-2][:6], big.T[:7, :6].T, odd, frozen, np.broadcast_to(big[0, :7], (6, 7))]
    views += [np.asfortranarray(big[:6, :7]), big[:0, :7], big[:6, :0]]
    for x in views:
        want = f(np.ascontiguousarray(x).copy())
        for _ in range(2):
            for got, expected in zip(f(x), want, strict=True):
                np.testing.assert_array_equal(got, expected)
        np.testing.assert_allclose(want[1], x * np.float32(2) + 1, rtol=1e-6)
