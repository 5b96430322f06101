"""Compile small C files against the backend's headers and load them with ctypes."""

from __future__ import annotations

import ctypes
import hashlib
import platform
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

INCLUDE = Path(__file__).parents[2] / "cuvil" / "backends" / "c" / "include"
FLAGS = [
    "-O2",
    "-std=gnu11",
    "-march=native",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-ffp-contract=fast",
    "-fPIC",
    "-shared",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unused-function",
    "-Wno-psabi",
]
CODES = {"ok": 0, "index": 1, "memory": 2, "domain": 3}


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="cuvil-c-tests-")


@cache
def compile_c(source: str, *flags: str) -> ctypes.CDLL:
    """The shared library that gcc makes of `source`; the same source is compiled once per test run."""
    stem = Path(_folder().name) / hashlib.sha256("\0".join((source, *flags)).encode()).hexdigest()[:16]
    text, library = stem.with_suffix(".c"), stem.with_suffix(".so")
    text.write_text(source)
    command = ["gcc", *FLAGS, *flags, f"-I{INCLUDE}", str(text), "-o", str(library), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(library))


@cache
def runtime(*flags: str) -> ctypes.CDLL:
    """The runtime library with its signatures declared; `flags` choose another instruction set, say."""
    library = compile_c((INCLUDE / "runtime.c").read_text(), "-lpthread", *flags)
    pointer, integer = ctypes.c_void_p, ctypes.c_int
    signatures: dict[str, tuple[object, list[object]]] = {
        "cv_pool_create": (pointer, [integer]),
        "cv_pool_destroy": (None, [pointer]),
        "cv_pool_workers": (integer, [pointer]),
        "cv_pool_threads": (integer, [pointer]),
        "cv_ctx_create": (pointer, [pointer]),
        "cv_ctx_destroy": (None, [pointer]),
        "cv_ctx_error": (integer, [pointer, ctypes.POINTER(ctypes.c_int64)]),
        "cv_ctx_reset": (None, [pointer]),
        "cv_ctx_scratch_bytes": (ctypes.c_size_t, [pointer]),
        "cv_cpu_features": (ctypes.c_uint64, []),
        "cv_available_cpus": (integer, []),
        "cv_hide_features": (None, [ctypes.c_uint64]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


@contextmanager
def context(workers: int, *flags: str) -> Generator[ctypes.c_void_p, None, None]:
    """A fresh context on a fresh pool of `workers`, both destroyed at the end."""
    library = runtime(*flags)
    pool = ctypes.c_void_p(library.cv_pool_create(workers))
    ctx = ctypes.c_void_p(library.cv_ctx_create(pool))
    try:
        yield ctx
    finally:
        library.cv_ctx_destroy(ctx)
        library.cv_pool_destroy(pool)


@contextmanager
def hidden_features(mask: int) -> Generator[None, None, None]:
    """Contexts made inside do without some features of the CPU."""
    runtime().cv_hide_features(mask)
    try:
        yield
    finally:
        runtime().cv_hide_features(0)


def error(ctx: ctypes.c_void_p) -> tuple[int, int, int]:
    """Code and details of the context's error."""
    details = (ctypes.c_int64 * 2)()
    code = runtime().cv_ctx_error(ctx, details)
    return code, details[0], details[1]


def machine() -> str:
    """The processor architecture as Python names it."""
    return platform.machine()


def instruction_sets() -> list[tuple[str, ...]]:
    """Compiler flags of the instruction sets that this machine can run: its own, and on x86-64 the older ones."""
    sets: list[tuple[str, ...]] = [()]
    if machine() == "x86_64":
        sets.append(("-march=x86-64",))
        if runtime().cv_cpu_features() & 1:
            sets.append(("-march=haswell",))
    return sets
