"""Compiled programs on disk: found again by what was traced, so that a new process neither optimises nor lowers.

The key covers the traced ops with their types, parameters and symbols, the elements of captured constants, the options,
the package's own source, and the C compiler with its target. An entry holds one shared library and a text that says
how to load it (:mod:`cuvil.ir.program_file`); constants are not in it, but for the small ones that passes make up.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cuvil.backends.c.backend import compile_objects, emit_sources, native_program
from cuvil.backends.c.toolchain import find_toolchain, link_shared
from cuvil.frontend.program import TracedProgram
from cuvil.ir.attributes import ConstantArray
from cuvil.ir.binary import NativeProgram
from cuvil.ir.fingerprint import fingerprint
from cuvil.ir.interpreter import location_line
from cuvil.ir.kernel_program import KernelProgram
from cuvil.ir.program_file import FORMAT, read_program, write_program
from cuvil.ir.text import format_module
from cuvil.passes.pipeline import PassRecord
from cuvil.runtime.constants import let_pages_go
from cuvil.runtime.library import DIGEST_KEY_BYTES, ConstantLibrary
from cuvil.support.cache import DiskCache, content_key
from cuvil.support.errors import BackendError, IRError
from cuvil.support.source_digest import source_digest

log = logging.getLogger("cuvil.compiler")

_LIBRARY, _PROGRAM, _DATA = "program.so", "program.json", "constants.bin"
_TEXTS = {"kernel": "kernel.mlir", "source": "source.txt"}


@dataclass(frozen=True)
class Stored:
    """Where a program is, or will be, in the cache: its key, and the constants that it captured."""

    key: str
    captured: tuple[ConstantArray, ...]
    locations: tuple[Any, ...] = ()

    def lines(self) -> list[str]:
        """The user's line of each traced op."""
        return [location_line(location) for location in self.locations]


@dataclass
class Loaded:
    """A program from an entry."""

    program: NativeProgram
    records: list[PassRecord]
    texts: dict[str, Callable[[], str]]


def find(program: TracedProgram, settings: str, cache: DiskCache, tools: ConstantLibrary) -> Stored | None:
    """Where a traced program, before any pass, belongs under some settings; None where it has no fingerprint."""
    try:
        found = fingerprint(program.func, map(str, program.scope.relations))
    except TypeError as error:
        log.info("%s is not kept in the compile cache: %s", program.name, error)
        return None
    if found is None:
        log.info("%s is not kept in the compile cache: it holds ops of a later stage", program.name)
        return None
    secret = _secret(cache)
    digests: list[bytes] = []
    for constant in found.constants:
        digests.append(tools.digest(constant.array, secret))
        let_pages_go(constant.array)
    toolchain = find_toolchain()
    compiler = [*toolchain.command, toolchain.kind, toolchain.version, toolchain.cpu, *toolchain.flags]
    key = content_key(str(FORMAT), settings, source_digest(), np.__version__, *compiler, "|", found.structure, *digests)
    return Stored(f"program-{key}", found.constants, tuple(op.location for op in program.func.body.walk()))


def _secret(cache: DiskCache) -> bytes:
    """The key of the hash of constants: random, made once for a cache folder, readable by its owner alone."""

    def build(folder: Path) -> None:
        (folder / "secret").write_bytes(os.urandom(DIGEST_KEY_BYTES))

    for _ in range(2):
        secret = (cache.put("secret", build) / "secret").read_bytes()
        if len(secret) == DIGEST_KEY_BYTES:
            return secret
        cache.discard("secret", f"it has {len(secret)} bytes instead of {DIGEST_KEY_BYTES}")
    raise BackendError(f"the cache in {cache.root} does not keep what is written to it")


def write_entry(folder: Path, lowered: KernelProgram, stored: Stored, records: list[PassRecord]) -> None:
    """Compile a lowered program into the folder of its entry.

    Raises:
        ToolchainError: no C compiler, or it failed.
    """
    program = link(folder, lowered)
    passes = [[r.name, r.changes, r.seconds, r.detail] for r in records]
    text, data = write_program(program, stored.captured, passes, stored.lines)
    (folder / _PROGRAM).write_text(text)
    (folder / _DATA).write_bytes(data)
    (folder / _TEXTS["kernel"]).write_text(format_module(lowered.module))
    (folder / _TEXTS["source"]).write_text(source_text(program.sources))


def link(folder: Path, lowered: KernelProgram) -> NativeProgram:
    """Compile a lowered program to one shared library in a folder.

    Raises:
        ToolchainError: no C compiler, or it failed.
    """
    sources = emit_sources(lowered)
    library = folder / _LIBRARY
    link_shared(compile_objects(sources), library)
    return native_program(lowered, sources, library)


def source_text(sources: dict[str, str]) -> str:
    """Every C text of a program, one after the other."""
    return "\n".join(f"/* ---- {name} ---- */\n{text}" for name, text in sources.items())


def read_entry(entry: Path, stored: Stored) -> Loaded:
    """The program of an entry.

    Raises:
        IRError: the entry is not what :func:`write_entry` leaves.
    """
    try:
        text, data = (entry / _PROGRAM).read_bytes(), (entry / _DATA).read_bytes()
    except OSError as error:
        raise IRError(f"{error.filename} cannot be read ({error.strerror})") from error
    program, records = read_program(text, data, entry / _LIBRARY, stored.captured, stored.lines)
    return Loaded(program, [_record(r) for r in records], {s: _reader(entry / f) for s, f in _TEXTS.items()})


def _record(value: Any) -> PassRecord:
    try:
        name, changes, seconds, detail = value
        return PassRecord(str(name), int(changes), float(seconds), {str(k): int(v) for k, v in detail.items()})
    except (TypeError, ValueError, AttributeError) as error:
        raise IRError(f"malformed record of a pass: {json.dumps(value)[:80]}") from error


def _reader(path: Path) -> Callable[[], str]:
    def read() -> str:
        try:
            return path.read_text()
        except OSError as error:
            raise BackendError(
                f"the text is no longer in the compile cache ({error.strerror}: {path}); lower() makes it anew"
            ) from error

    return read
