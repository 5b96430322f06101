"""The C compiler: finding it, knowing it by version and target CPU, and running it through the disk cache."""

from __future__ import annotations

import errno
import importlib.util
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from cuvil.support import config
from cuvil.support.cache import DiskCache, content_key, shared_cache
from cuvil.support.errors import ArgumentError, ToolchainError
from cuvil.support.naming import identifier
from cuvil.support.timing import Progress

Kind = Literal["gcc", "clang", "zig"]

_OLDEST = {"gcc": 10, "clang": 13, "zig": 13}  # zig's major version is that of the clang inside
_FLAGS = (
    "-O2",
    "-std=gnu11",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-ffp-contract=fast",
    "-fPIC",
    "-shared",
    "-pthread",
    # C11 compilers only warn about these, and the library then fails when it is loaded or called.
    "-Werror=implicit-function-declaration",
    "-Werror=incompatible-pointer-types",
    "-Werror=int-conversion",
)
_KIND_FLAGS: dict[Kind, tuple[str, ...]] = {
    "gcc": ("-Wno-psabi",),  # notes about how older releases passed vectors
    "clang": (),
    "zig": ("-fno-sanitize=undefined", "-g0"),  # `zig cc` turns both on by default
}
_PROBE_SECONDS = 120.0  # `zig cc` builds its own caches when it runs for the first time
_SHOWN_LINES = 8
_HEADER_SUFFIXES = frozenset({".h", ".c", ".inc", ".def"})
_SOURCE_NAME = re.compile(r"[0-9A-Za-z_][0-9A-Za-z_.-]*")
_FULL_DISK = {"No space left on device": errno.ENOSPC, "Disk quota exceeded": errno.EDQUOT}

_INSTALL = """\
Install one of:
  Debian, Ubuntu: apt install gcc libc6-dev
  Fedora, RHEL:   dnf install gcc
  Arch:           pacman -S gcc
  Alpine:         apk add gcc musl-dev
  macOS:          xcode-select --install
  anywhere:       pip install 'cuvil[zig]'   (a compiler in a wheel)
or set CUVIL_CC to the command of a C compiler (gcc >= 10 or clang >= 13)."""


@dataclass(frozen=True)
class Toolchain:
    """A C compiler that answered, and all that decides what code it makes.

    `version` is the compiler's own version line and target; `cpu` is a digest of the macros that it predefines for
    the target CPU, so that another processor, or another release that sees the same one differently, is another key.
    """

    command: tuple[str, ...]
    kind: Kind
    version: str
    cpu: str
    flags: tuple[str, ...]

    def compile_command(
        self,
        files: Sequence[str],
        output: str,
        *,
        include_dirs: Sequence[Path] = (),
        extra_flags: Sequence[str] = (),
        libraries: Sequence[str] = (),
        extension: bool = False,
    ) -> tuple[str, ...]:
        """The command line that makes the shared library `output` from the C files.

        Symbols of an `extension` module may stay undefined: those of the interpreter that loads it.
        """
        includes = [f"-I{folder.absolute()}" for folder in include_dirs]
        # An undefined symbol should fail here, with a name and a file, and not when the library is loaded.
        if sys.platform.startswith("linux"):
            link = [] if extension else ["-Wl,-z,defs"]
        else:
            link = ["-undefined", "dynamic_lookup"] if extension and sys.platform == "darwin" else []
        return (*self.command, *self.flags, *extra_flags, *includes, *files, "-o", output, *link, *libraries, "-lm")


def find_toolchain(target: str = "native") -> Toolchain:
    """The compiler that CUVIL_CC names, else the first that works of gcc, clang, cc and the ziglang wheel.

    `target` is what `-march` takes (`-mcpu` on AArch64): "native" is the CPU of this machine.
    Raises ToolchainError where none works, with the reason for each that was tried.
    """
    chosen = config.c_compiler()
    reasons: list[str] = []
    for command in _candidates() if chosen is None else [chosen]:
        executable = shutil.which(command[0])
        if executable is None:
            reasons.append(f"{command[0]}: not found")
            continue
        status = os.stat(executable)
        outcome = _probe(command, target, (executable, status.st_mtime_ns, status.st_size))
        if isinstance(outcome, Toolchain):
            return outcome
        reasons.append(f"{shlex.join(command)}: {outcome}")
    tried = "\n".join(f"  {reason}" for reason in reasons)
    if chosen is not None:
        raise ToolchainError(
            f"CUVIL_CC names no usable C compiler:\n{tried}\n"
            "Set it to a command such as 'gcc' or '/usr/bin/clang-17', or unset it to let cuvil look for one."
        )
    raise ToolchainError(f"No usable C compiler:\n{tried}\n{_INSTALL}")


def compile_shared(
    sources: Mapping[str, str],
    *,
    name: str,
    include_dirs: Sequence[Path] = (),
    extra_flags: Sequence[str] = (),
    libraries: Sequence[str] = (),
    extension: bool = False,
    toolchain: Toolchain | None = None,
    cache: DiskCache | None = None,
) -> Path:
    """The shared library made from `sources` (file name to text), from the disk cache where it was made before.

    Files that end in `.c` are compiled; others, such as headers, lie beside them. The library and its sources stay
    together in one cache entry. The key covers the texts, the flags, every header below `include_dirs`, the
    compiler's version and the CPU.

    Raises:
        ToolchainError: no C compiler, or it failed or ran out of time; the message says where the sources are.
        CacheError: neither the cache nor the temporary folder can be used.
    """
    job = _Job(
        name, tuple(sorted(sources.items())), tuple(include_dirs), tuple(extra_flags), tuple(libraries), extension
    )
    return _compile(job, toolchain or find_toolchain(), cache or shared_cache(), _fingerprint(job.include_dirs))


def compile_many(
    kernels: Sequence[tuple[str, str]],
    *,
    include_dirs: Sequence[Path] = (),
    extra_flags: Sequence[str] = (),
    libraries: Sequence[str] = (),
    toolchain: Toolchain | None = None,
    cache: DiskCache | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """One shared library for each pair of a name and a C text, in their order, compiled in parallel on all CPUs.

    Raises what `compile_shared` raises, for the first failure; compilations that have not begun are dropped.
    """
    toolchain, cache = toolchain or find_toolchain(), cache or shared_cache()
    folders = tuple(include_dirs)
    headers = _fingerprint(folders)
    jobs = [
        _Job(name, ((f"{identifier(name)}.c", text),), folders, tuple(extra_flags), tuple(libraries))
        for name, text in kernels
    ]
    paths: dict[int, Path] = {}
    for index, job in enumerate(jobs):
        if (entry := cache.get(job.key(toolchain, headers))) is not None:
            paths[index] = entry / job.output
    missing = [index for index in range(len(jobs)) if index not in paths]
    if not missing:
        return [paths[index] for index in range(len(jobs))]
    pool = ThreadPoolExecutor(min(len(missing), config.available_cpus()), thread_name_prefix="cuvil-compile")
    try:
        futures = {pool.submit(_compile, jobs[index], toolchain, cache, headers): index for index in missing}
        for future in as_completed(futures):
            paths[futures[future]] = future.result()
            if progress is not None:
                progress(len(paths), len(jobs), jobs[futures[future]].name)
    finally:
        pool.shutdown(cancel_futures=True)
    return [paths[index] for index in range(len(jobs))]


@dataclass(frozen=True)
class _Job:
    name: str
    sources: tuple[tuple[str, str], ...]
    include_dirs: tuple[Path, ...]
    extra_flags: tuple[str, ...]
    libraries: tuple[str, ...]
    extension: bool = False  # a Python extension module, which may lack the interpreter's symbols

    @property
    def output(self) -> str:
        return f"{identifier(self.name)}.so"

    def key(self, toolchain: Toolchain, headers: str) -> str:
        flags = [*toolchain.flags, "|", *self.extra_flags, "|", *self.libraries, f"|{self.extension}"]
        texts = [part for pair in self.sources for part in pair]
        identity = [*toolchain.command, "|", toolchain.kind, toolchain.version, toolchain.cpu]
        return f"{identifier(self.name)}-{content_key(*identity, *flags, headers, *texts)}"


def _candidates() -> list[tuple[str, ...]]:
    commands: list[tuple[str, ...]] = [("gcc",), ("clang",), ("cc",)]
    if importlib.util.find_spec("ziglang") is not None:
        commands.append((sys.executable, "-m", "ziglang", "cc"))
    return commands


@lru_cache(maxsize=32)
def _probe(command: tuple[str, ...], target: str, stamp: tuple[str, int, int]) -> Toolchain | str:
    """The toolchain behind a command, or what is wrong with it. `stamp` tells an exchanged executable."""
    del stamp
    cpu_flag = f"-mcpu={target}" if platform.machine() in ("aarch64", "arm64") else f"-march={target}"
    try:
        code, output, messages = _run((*command, cpu_flag, "-v", "-dM", "-E", "-x", "c", os.devnull), _PROBE_SECONDS)
    except TimeoutError:
        return f"gave no answer within {_PROBE_SECONDS:g} s"
    except OSError as error:
        return f"cannot be run ({error.strerror})"
    macros = dict(re.findall(r"^#define (\w+) (.*)$", output, re.MULTILINE))
    if code != 0 or "__GNUC__" not in macros:
        return f"is no C compiler of the GNU dialect ({_first_lines(messages, 1) or f'exit status {code}'})"
    kind: Kind = "gcc"
    if "__clang__" in macros:
        kind = "zig" if any(word in ("ziglang", "zig") for word in map(_stem, command)) else "clang"
    major = int(macros["__GNUC__"] if kind == "gcc" else macros["__clang_major__"])
    if major < _OLDEST[kind]:
        return f"is {kind} {major}, older than {_OLDEST[kind]}"
    version = re.search(r"^.*\b(?:gcc|clang) version .*$", messages, re.MULTILINE)
    triple = re.search(r"^Target: .*$", messages, re.MULTILINE)
    described = [found[0].strip() for found in (version, triple) if found] or [macros.get("__VERSION__", "")]
    cpu = content_key(*sorted(f"{name} {value}" for name, value in macros.items()))[:16]
    return Toolchain(command, kind, "; ".join(described), cpu, (*_FLAGS, cpu_flag, *_KIND_FLAGS[kind]))


def _stem(word: str) -> str:
    return Path(word).name


def _fingerprint(include_dirs: Sequence[Path]) -> str:
    """Digest of every header (and included C file) below the folders, by relative path and content."""
    parts: list[str | bytes] = []
    for folder in include_dirs:
        if not folder.is_dir():
            raise ArgumentError(f"The include folder {folder} does not exist; expected a folder with C headers.")
        for path in sorted(folder.rglob("*")):
            if path.suffix in _HEADER_SUFFIXES and path.is_file():
                parts += [path.relative_to(folder).as_posix(), path.read_bytes()]
        parts.append("|")
    return content_key(*parts)


def _compile(job: _Job, toolchain: Toolchain, cache: DiskCache, headers: str) -> Path:
    files = [file for file, _ in job.sources if file.endswith(".c")]
    if not files or not all(_SOURCE_NAME.fullmatch(file) for file, _ in job.sources):
        raise ArgumentError(
            f"The sources of {job.name} are named {[file for file, _ in job.sources]}; expected plain file names of "
            "letters, digits, '_', '-' and '.', at least one of which ends in .c."
        )
    command = toolchain.compile_command(
        files,
        job.output,
        include_dirs=job.include_dirs,
        extra_flags=job.extra_flags,
        libraries=job.libraries,
        extension=job.extension,
    )

    def build(folder: Path) -> None:
        for file, text in job.sources:
            (folder / file).write_text(text)
        scratch = folder / "tmp"
        scratch.mkdir()
        _run_compiler(command, job, folder, scratch)
        shutil.rmtree(scratch)  # what the compiler should have removed is no part of the entry

    return cache.put(job.key(toolchain, headers), build) / job.output


def _run_compiler(command: tuple[str, ...], job: _Job, folder: Path, scratch: Path) -> None:
    limit = config.compile_timeout()
    try:
        code, _, messages = _run(command, limit, folder=folder, scratch=scratch)
    except TimeoutError:
        raise ToolchainError(
            f"The C compiler did not finish {job.name} within {limit:g} s and was stopped.\n"
            f"  command: {shlex.join(command)}\n  sources: {_keep(job, command)}\n"
            "Set CUVIL_COMPILE_TIMEOUT to more seconds if the machine is slow."
        ) from None
    except OSError as error:
        raise ToolchainError(
            f"The C compiler cannot be run ({error.strerror}): {shlex.join(command)}. "
            "Check that it is installed in full, or set CUVIL_CC to another."
        ) from error
    if code == 0:
        return
    for sentence, number in _FULL_DISK.items():
        if sentence in messages:
            raise OSError(number, os.strerror(number), str(folder))
    how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
    raise ToolchainError(
        f"The C compiler failed on {job.name} ({how}):\n{_first_lines(messages, _SHOWN_LINES)}\n"
        f"  command: {shlex.join(command)}\n  sources: {_keep(job, command)}\n"
        "If generated code is at fault, please report it with those sources."
    )


def _run(
    command: Sequence[str], limit: float, *, folder: Path | None = None, scratch: Path | None = None
) -> tuple[int, str, str]:
    """Exit status, output and messages of a command, whose whole process group is killed after `limit` seconds.

    Raises TimeoutError then, and OSError where the command cannot be started.
    """
    environment = {**os.environ, "LC_ALL": "C"}  # messages in English, since parts of them are searched
    if scratch is not None:
        environment["TMPDIR"] = str(scratch)
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        process_group=0,  # the driver's children, cc1 and the linker, must end with it
    )
    try:
        output, messages = process.communicate(timeout=limit)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise TimeoutError from None
        raise
    return process.returncode, output, messages


def _first_lines(messages: str, count: int) -> str:
    """The first lines that name an error, or the last lines where none does."""
    lines = [line.strip() for line in messages.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\berror\b|undefined (reference|symbol)|Killed", line)]
    return "\n".join(f"  {line}" for line in (errors[:count] or lines[-count:])).strip("\n")


def _keep(job: _Job, command: tuple[str, ...]) -> str:
    """Writes the sources and the command where they outlive the process, and says where."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=f"cuvil-failed-{identifier(job.name)}-"))
        for file, text in job.sources:
            (folder / file).write_text(text)
        (folder / "command.sh").write_text(f"cd {shlex.quote(str(folder))} && {shlex.join(command)}\n")
    except OSError as error:
        return f"not kept, the temporary folder cannot be written ({error.strerror})"
    return str(folder)
