"""The CUVIL_* environment variables: read at each use, checked, with the defaults that hold without them."""

from __future__ import annotations

import logging
import math
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path, PurePosixPath

from cuvil.support.errors import ArgumentError

MAX_THREADS = 1024
DUMP_STAGES = ("tensor", "fused", "kernel", "source")
DISPATCHES = ("native", "ctypes")
CPU_FEATURES = ("avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")
LOG_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

_DEFAULT_CACHE_BYTES = 2 << 30
_DEFAULT_VARIANTS = 128
_DEFAULT_COMPILE_TIMEOUT = 300.0
_BYTE_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_TARGET = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.+-]*")
_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)


@dataclass(frozen=True)
class Variable:
    """One environment variable: its name, its default in words, and what it does."""

    name: str
    default: str
    meaning: str


VARIABLES = (
    Variable("CUVIL_CC", "gcc, clang, cc, then the ziglang wheel", "Command of the C compiler, with arguments if any."),
    Variable(
        "CUVIL_TARGET",
        "native",
        "CPU that code is made for, as the compiler's -march (-mcpu on AArch64) names it: native is this machine's.",
    ),
    Variable("CUVIL_NUM_THREADS", "CPUs that the process may use", "Threads of one native call, the caller included."),
    Variable("CUVIL_CACHE_DIR", "$XDG_CACHE_HOME/cuvil or ~/.cache/cuvil", "Folder of the compile cache."),
    Variable("CUVIL_CACHE_SIZE", "2G", "Size above which the least recently used cache entries are removed."),
    Variable("CUVIL_MAX_VARIANTS", "128", "Compiled variants that one function keeps in memory."),
    Variable("CUVIL_COMPILE_TIMEOUT", "300", "Seconds after which one run of the C compiler is stopped."),
    Variable(
        "CUVIL_DISPATCH",
        "native where it can be built, else ctypes",
        "Way from a Python call to compiled code: native (an extension module, built once per Python) or ctypes.",
    ),
    Variable(
        "CUVIL_HIDE_CPU_FEATURES",
        "nothing",
        f"Units of the processor to do without, separated by commas: {', '.join(CPU_FEATURES)}.",
    ),
    Variable("CUVIL_DUMP", "nothing", f"Stages to write out, separated by commas: {', '.join(DUMP_STAGES)} or all."),
    Variable("CUVIL_DUMP_DIR", "standard error", "Folder that CUVIL_DUMP writes to, one file a program and stage."),
    Variable("CUVIL_LOG", "warning", f"Least level of messages on standard error: {', '.join(LOG_LEVELS)}."),
    Variable("CUVIL_TEST_PROFILE", "ci", "Hypothesis profile of cuvil's own tests: ci or nightly."),
)


def _value(name: str) -> str | None:
    """The variable's text without surrounding blanks; None where it is unset or empty."""
    return os.environ.get(name, "").strip() or None


def unknown_variables(environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """A sentence for each CUVIL_* variable that is set and means nothing, with the name that was probably meant.

    >>> unknown_variables({"CUVIL_NUM_THREAD": "2", "HOME": "/"})
    ('CUVIL_NUM_THREAD is set but means nothing; did you mean CUVIL_NUM_THREADS?',)
    """
    known = [variable.name for variable in VARIABLES]
    sentences: list[str] = []
    for name in sorted(os.environ if environment is None else environment):
        if name.startswith("CUVIL_") and name not in known:
            near = get_close_matches(name, known, n=1)
            guess = f"did you mean {near[0]}?" if near else f"the known ones are {', '.join(known)}."
            sentences.append(f"{name} is set but means nothing; {guess}")
    return tuple(sentences)


def c_compiler() -> tuple[str, ...] | None:
    """The words of CUVIL_CC, such as ("ccache", "gcc"), or None. Raises ArgumentError for unbalanced quotes."""
    text = _value("CUVIL_CC")
    if text is None:
        return None
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ArgumentError(
            f"CUVIL_CC is {text!r}, which does not split into shell words ({error}). "
            "Set it to a command such as 'gcc' or '/usr/bin/clang-17'."
        ) from error


def target() -> str:
    """The CPU that CUVIL_TARGET names for compiled code, "native" by default."""
    text = _value("CUVIL_TARGET")
    if text is None:
        return "native"
    if not _TARGET.fullmatch(text):
        raise ArgumentError(
            f"CUVIL_TARGET is {text!r}; expected a CPU's name as the C compiler's -march takes it, such as native,"
            " x86-64-v3, haswell or armv8.2-a+sve."
        )
    return text


def num_threads() -> int:
    """Threads of one native call: CUVIL_NUM_THREADS, else the CPUs that this process may use (at least 1)."""
    text = _value("CUVIL_NUM_THREADS")
    if text is None:
        return min(available_cpus(), MAX_THREADS)
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= MAX_THREADS:
        raise ArgumentError(
            f"CUVIL_NUM_THREADS is {text!r}; expected a whole number from 1 to {MAX_THREADS}. "
            "Unset it to use every CPU that the process may run on."
        )
    return int(text)


def available_cpus() -> int:
    """CPUs that this process may use: the affinity mask, cut down to the cgroup's CPU quota (rounded up)."""
    if hasattr(os, "sched_getaffinity"):
        cpus = len(os.sched_getaffinity(0))
    else:
        cpus = os.cpu_count() or 1
    quota = cgroup_cpu_quota()
    return cpus if quota is None else max(1, min(cpus, math.ceil(quota)))


def cgroup_cpu_quota(root: Path = Path("/")) -> float | None:
    """CPUs that the process's cgroup, or one around it, grants per period; None where nothing limits them.

    Reads cgroup v2 (`cpu.max`) and v1 (`cpu.cfs_quota_us`), see Documentation/admin-guide/cgroup-v2.rst of Linux.
    `root` stands for the file system's root, so that tests can lay out one of their own.
    """
    quotas: list[float] = []
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        inside = PurePosixPath(path.lstrip("/"))
        folders = [inside, *inside.parents]
        if controllers == "":
            quotas += [q for folder in folders if (q := _quota_v2(root / "sys/fs/cgroup" / folder)) is not None]
        elif "cpu" in controllers.split(","):
            quotas += [q for folder in folders if (q := _quota_v1(root / "sys/fs/cgroup/cpu" / folder)) is not None]
    return min(quotas, default=None)


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        # A kernel without cgroups, a sandbox without /sys, another system: there is no quota to be read.
        return None


def _quota_v2(folder: Path) -> float | None:
    words = (_read(folder / "cpu.max") or "").split()
    if len(words) != 2 or not (words[0].isdigit() and words[1].isdigit()):  # "max 100000" is no limit
        return None
    return int(words[0]) / int(words[1]) if int(words[1]) else None


def _quota_v1(folder: Path) -> float | None:
    quota = (_read(folder / "cpu.cfs_quota_us") or "").strip()
    period = (_read(folder / "cpu.cfs_period_us") or "").strip()
    if not (quota.isdigit() and period.isdigit()) or int(period) == 0:  # "-1" is no limit
        return None
    return int(quota) / int(period)


def cache_dir() -> Path:
    """Absolute path of the compile cache's folder: CUVIL_CACHE_DIR, else the XDG base directory for caches."""
    text = _value("CUVIL_CACHE_DIR")
    if text is not None:
        return _home_expanded("CUVIL_CACHE_DIR", text)
    base = _value("XDG_CACHE_HOME")
    # The XDG base directory specification tells programs to ignore a relative path here.
    if base is not None and Path(base).is_absolute():
        return Path(base) / "cuvil"
    return _home_expanded("the default cache folder", "~/.cache/cuvil")


def _home_expanded(name: str, text: str) -> Path:
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError as error:
        raise ArgumentError(
            f"{name} is {text!r}, but this user has no home folder. Set CUVIL_CACHE_DIR to an absolute path."
        ) from error


def cache_limit_bytes() -> int:
    """Size in bytes above which the cache forgets its least recently used entries."""
    text = _value("CUVIL_CACHE_SIZE")
    return _DEFAULT_CACHE_BYTES if text is None else parse_bytes(text, "CUVIL_CACHE_SIZE")


def parse_bytes(text: str, name: str) -> int:
    """A size such as "500M" in bytes; units are powers of 1024. `name` is what the error calls it.

    >>> parse_bytes("1.5 GiB", "limit")
    1610612736
    """
    match = _BYTES.fullmatch(text.strip())
    if match is None:
        raise ArgumentError(f"{name} is {text!r}; expected a size in bytes such as 500M, 2G or 1073741824.")
    return int(float(match[1]) * _BYTE_UNITS[match[2].upper()])


def max_variants() -> int:
    """Compiled variants that one jitted function keeps in memory: CUVIL_MAX_VARIANTS."""
    text = _value("CUVIL_MAX_VARIANTS")
    if text is None:
        return _DEFAULT_VARIANTS
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise ArgumentError(f"CUVIL_MAX_VARIANTS is {text!r}; expected a whole number from 1, such as 128.")
    return int(text)


def compile_timeout() -> float:
    """Seconds that one run of the C compiler may take."""
    text = _value("CUVIL_COMPILE_TIMEOUT")
    if text is None:
        return _DEFAULT_COMPILE_TIMEOUT
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ArgumentError(f"CUVIL_COMPILE_TIMEOUT is {text!r}; expected a number of seconds above 0, such as 300.")
    return seconds


def dispatch() -> str | None:
    """The way from a Python call to compiled code that CUVIL_DISPATCH asks for; None where cuvil may choose."""
    text = _value("CUVIL_DISPATCH")
    if text is not None and text not in DISPATCHES:
        raise ArgumentError(
            f"CUVIL_DISPATCH is {text!r}; expected one of {', '.join(DISPATCHES)}. Unset it to let cuvil choose."
        )
    return text


def hidden_cpu_features() -> frozenset[str]:
    """The units that CUVIL_HIDE_CPU_FEATURES names: kernels are loaded as on a processor without them."""
    words = [word.strip() for word in (_value("CUVIL_HIDE_CPU_FEATURES") or "").split(",") if word.strip()]
    wrong = [word for word in words if word not in CPU_FEATURES]
    if wrong:
        raise ArgumentError(
            f"CUVIL_HIDE_CPU_FEATURES names {wrong[0]!r}; expected names from {', '.join(CPU_FEATURES)}, separated by"
            " commas."
        )
    return frozenset(words)


def dump_stages() -> frozenset[str]:
    """The stages that CUVIL_DUMP asks to write out: a subset of DUMP_STAGES, empty by default."""
    words = [word.strip() for word in (_value("CUVIL_DUMP") or "").split(",") if word.strip()]
    wrong = [word for word in words if word not in (*DUMP_STAGES, "all")]
    if wrong:
        raise ArgumentError(
            f"CUVIL_DUMP names {wrong[0]!r}; expected stages from {', '.join(DUMP_STAGES)} or all, separated by commas."
        )
    return frozenset(DUMP_STAGES if "all" in words else words)


def dump_dir() -> Path | None:
    """The folder that dumps go to; None for standard error."""
    text = _value("CUVIL_DUMP_DIR")
    return None if text is None else _home_expanded("CUVIL_DUMP_DIR", text)


def log_level() -> int | None:
    """The level that CUVIL_LOG asks for, as a number of the logging module; None where it is unset."""
    text = _value("CUVIL_LOG")
    if text is None:
        return None
    if text.lower() not in LOG_LEVELS:
        raise ArgumentError(f"CUVIL_LOG is {text!r}; expected one of {', '.join(LOG_LEVELS)}.")
    return LOG_LEVELS[text.lower()]
