"""The C compiler: finding it, knowing it by version and target CPU, and running it through the disk cache."""

from __future__ import annotations

import errno
import importlib.util
import json
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
from cuvil.support.errors import ArgumentError, CacheError, ToolchainError
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
    features: tuple[str, ...] = ()  # instruction sets that it uses unasked, as /proc/cpuinfo names them

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
        """The command line that makes the shared library `output` from the C files, or from object files.

        Symbols of an `extension` module may stay undefined: those of the interpreter that loads it. An `output` that
        ends in `.o` is compiled only.
        """
        includes = [f"-I{folder.absolute()}" for folder in include_dirs]
        if output.endswith(".o"):
            return (*self.command, *self.flags, *extra_flags, "-c", *includes, *files, "-o", output)
        # An undefined symbol should fail here, with a name and a file, and not when the library is loaded.
        if sys.platform.startswith("linux"):
            link = [] if extension else ["-Wl,-z,defs"]
        else:
            link = ["-undefined", "dynamic_lookup"] if extension and sys.platform == "darwin" else []
        flags = (*self.flags, "-shared", *extra_flags)
        return (*self.command, *flags, *includes, *files, "-o", output, *link, *libraries, "-lm")


def find_toolchain(target: str | None = None) -> Toolchain:
    """The compiler that CUVIL_CC names, else the first that works of gcc, clang, cc and the ziglang wheel.

    `target` is what `-march` takes (`-mcpu` on AArch64), CUVIL_TARGET by default: "native" is the CPU of this machine.
    Raises ToolchainError where none works, with the reason for each that was tried, or where code for the target
    would use instructions that this machine does not have.
    """
    target = target or config.target()
    chosen = config.c_compiler()
    reasons: list[str] = []
    for command in _candidates() if chosen is None else [chosen]:
        executable = shutil.which(command[0])
        if executable is None:
            reasons.append(f"{command[0]}: not found")
            continue
        status = os.stat(executable)
        outcome = _probe(command, target, (executable, status.st_mtime_ns, status.st_size), _cpu_text())
        if isinstance(outcome, Toolchain):
            _check_target(outcome, target)
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
    objects: bool = False,
) -> list[Path]:
    """One shared library for each pair of a name and a C text, in their order, compiled in parallel on all CPUs.

    With `objects`, one object file each, for :func:`link_shared`.

    Raises what `compile_shared` raises, for the first failure; compilations that have not begun are dropped.
    """
    toolchain, cache = toolchain or find_toolchain(), cache or shared_cache()
    folders = tuple(include_dirs)
    headers = _fingerprint(folders)
    jobs = [
        _Job(name, ((f"{identifier(name)}.c", text),), folders, tuple(extra_flags), tuple(libraries), objects=objects)
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


def link_shared(objects: Sequence[Path], output: Path, *, toolchain: Toolchain | None = None) -> None:
    """Link object files that :func:`compile_many` made into one shared library.

    Raises:
        ToolchainError: the linker failed.
    """
    toolchain = toolchain or find_toolchain()
    listing = output.with_name("objects.rsp")  # a program may have more kernels than a command line takes
    listing.write_text("".join(f'"{path}"\n' for path in objects))
    command = toolchain.compile_command([f"@{listing}"], str(output))
    try:
        code, _, messages = _run(command, config.compile_timeout(), folder=output.parent)
    except TimeoutError:
        raise ToolchainError(f"The linker did not finish {output.name} in time: {shlex.join(command)}") from None
    except OSError as error:
        raise ToolchainError(f"The linker cannot be run ({error.strerror}): {shlex.join(command)}") from error
    finally:
        listing.unlink(missing_ok=True)
    if code != 0:
        _raise_if_full(messages, output.parent)
        raise ToolchainError(f"The linker failed on {output.name}:\n{_first_lines(messages, _SHOWN_LINES)}")


def _raise_if_full(messages: str, folder: Path) -> None:
    for sentence, number in _FULL_DISK.items():
        if sentence in messages:
            raise OSError(number, os.strerror(number), str(folder))


@dataclass(frozen=True)
class _Job:
    name: str
    sources: tuple[tuple[str, str], ...]
    include_dirs: tuple[Path, ...]
    extra_flags: tuple[str, ...]
    libraries: tuple[str, ...]
    extension: bool = False  # a Python extension module, which may lack the interpreter's symbols
    objects: bool = False  # compiled, not linked

    @property
    def output(self) -> str:
        return f"{identifier(self.name)}.{'o' if self.objects else 'so'}"

    def key(self, toolchain: Toolchain, headers: str) -> str:
        flags = [*toolchain.flags, "|", *self.extra_flags, "|", *self.libraries, f"|{self.extension}|{self.objects}"]
        texts = [part for pair in self.sources for part in pair]
        identity = [*toolchain.command, "|", toolchain.kind, toolchain.version, toolchain.cpu]
        return f"{identifier(self.name)}-{content_key(*identity, *flags, headers, *texts)}"


def _candidates() -> list[tuple[str, ...]]:
    commands: list[tuple[str, ...]] = [("gcc",), ("clang",), ("cc",)]
    if importlib.util.find_spec("ziglang") is not None:
        commands.append((sys.executable, "-m", "ziglang", "cc"))
    return commands


@lru_cache(maxsize=1)
def _cpu_text() -> str:
    """What tells this machine's CPU from another as far as `-march=native` sees it; empty where nothing says so."""
    try:
        with open("/proc/cpuinfo", "rb") as file:
            first = file.read(1 << 13).decode(errors="replace").split("\n\n")[0]
    except OSError:
        return ""
    wanted = re.compile(r"(vendor_id|cpu family|model|stepping|flags|Features|CPU \w+)\s*:")
    return "\n".join(line for line in first.splitlines() if wanted.match(line))


#: Environment variables that change what a compiler finds and predefines.
_PROBE_ENVIRONMENT = ("GCC_EXEC_PREFIX", "COMPILER_PATH", "CPATH", "C_INCLUDE_PATH", "CCC_OVERRIDE_OPTIONS")


@lru_cache(maxsize=32)
def _probe(command: tuple[str, ...], target: str, stamp: tuple[str, int, int], cpu: str) -> Toolchain | str:
    """The toolchain behind a command, or what is wrong with it. `stamp` tells an exchanged executable.

    A compiler proper is asked once per machine: its answer, which takes tens of milliseconds, is in the disk cache.
    Wrappers are asked each time, since the compiler behind one can change.
    """
    if len(command) != 1 or not cpu or not _is_compiler_itself(stamp[0]):
        return _ask(command, target)
    environment = [os.environ.get(name, "") for name in _PROBE_ENVIRONMENT]
    key = "compiler-" + content_key(*command, target, *map(str, stamp), cpu, *environment, *_FLAGS)
    try:
        cache = shared_cache()
        found = _read_answer(cache.get(key), command)
        if found is not None:
            return found
        outcome = _ask(command, target)
        if isinstance(outcome, Toolchain):
            answer = {name: getattr(outcome, name) for name in _ANSWER}

            def build(folder: Path) -> None:
                (folder / "compiler.json").write_text(json.dumps(answer))

            cache.put(key, build)
        return outcome
    except CacheError:  # whoever compiles will say so
        return _ask(command, target)


#: Fields of a toolchain that its compiler's answer decides.
_ANSWER = ("kind", "version", "cpu", "flags", "features")


def _read_answer(entry: Path | None, command: tuple[str, ...]) -> Toolchain | None:
    if entry is None:
        return None
    try:
        fields = json.loads((entry / "compiler.json").read_bytes())
        flags, features = (tuple(map(str, fields[name])) for name in ("flags", "features"))
        kind = fields["kind"]
        if kind not in _OLDEST:
            return None
        return Toolchain(command, kind, str(fields["version"]), str(fields["cpu"]), flags, features)
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _is_compiler_itself(executable: str) -> bool:
    """Whether the file is a program, and none of those that pass the work on to a compiler found elsewhere."""
    real = os.path.realpath(executable)
    try:
        with open(real, "rb") as file:
            magic = file.read(4)
    except OSError:
        return False
    return magic == b"\x7fELF" and not re.search(r"ccache|distcc|icecc|zig", os.path.basename(real))


def _ask(command: tuple[str, ...], target: str) -> Toolchain | str:
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
    features = tuple(flag for macro, flag in _CPU_FLAGS.items() if macro in macros)
    flags = (*_FLAGS, cpu_flag, *_KIND_FLAGS[kind])
    return Toolchain(command, kind, "; ".join(described), cpu, flags, features)


#: Macros of instruction sets that a compiler may use unasked, and what /proc/cpuinfo calls them.
_CPU_FLAGS = {
    "__SSE3__": "pni",
    "__SSSE3__": "ssse3",
    "__SSE4_1__": "sse4_1",
    "__SSE4_2__": "sse4_2",
    "__POPCNT__": "popcnt",
    "__MOVBE__": "movbe",
    "__BMI__": "bmi1",
    "__BMI2__": "bmi2",
    "__LZCNT__": "abm",
    "__AVX__": "avx",
    "__AVX2__": "avx2",
    "__FMA__": "fma",
    "__F16C__": "f16c",
    "__AVX512F__": "avx512f",
    "__AVX512BW__": "avx512bw",
    "__AVX512CD__": "avx512cd",
    "__AVX512DQ__": "avx512dq",
    "__AVX512VL__": "avx512vl",
    "__AVX512IFMA__": "avx512ifma",
    "__AVX512VBMI__": "avx512vbmi",
    "__AVX512VBMI2__": "avx512_vbmi2",
    "__AVX512VNNI__": "avx512_vnni",
    "__AVX512BITALG__": "avx512_bitalg",
    "__AVX512VPOPCNTDQ__": "avx512_vpopcntdq",
    "__AVX512BF16__": "avx512_bf16",
    "__AVX512FP16__": "avx512_fp16",
    "__AVXVNNI__": "avx_vnni",
    "__ARM_FEATURE_SVE": "sve",
    "__ARM_FEATURE_DOTPROD": "asimddp",
    "__ARM_FEATURE_FP16_VECTOR_ARITHMETIC": "asimdhp",
    "__ARM_FEATURE_BF16_VECTOR_ARITHMETIC": "bf16",
    "__ARM_FEATURE_MATMUL_INT8": "i8mm",
}


def _check_target(toolchain: Toolchain, target: str) -> None:
    """Raise where the machine lacks what the compiler may use for a target that somebody chose."""
    known = re.search(r"^(?:flags|Features)\s*:(.*)$", _cpu_text(), re.MULTILINE)
    if target == "native" or known is None:
        return
    missing = [flag for flag in toolchain.features if flag not in known[1].split()]
    if missing:
        raise ToolchainError(
            f"Code for the target {target!r} would use {', '.join(missing)}, which this machine's CPU does not have. "
            "Unset CUVIL_TARGET, or set it to a CPU that this one can stand for."
        )


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
    _raise_if_full(messages, folder)
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
