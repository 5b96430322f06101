"""Content-addressed disk cache: folders of files that are built once, verified when read, shared by processes.

An entry is a folder of regular files with a manifest of their SHA-256 digests. It is built in a temporary folder of
the same file system and renamed into place, so that a reader sees all of it or nothing. One lock file a key makes
the second of two processes wait for the first. A reader verifies the digests: an entry that does not fit them is
removed and built again, and nothing of it is used. Code is loaded from here, so the folder must be its owner's alone.

Where the folder cannot be written (read-only, full, over quota), entries are built in a temporary folder that lives
as long as the process, and one warning says so.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import functools
import hashlib
import json
import logging
import os
import re
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from cuvil.support import config
from cuvil.support.errors import ArgumentError, CacheError

_LOG = logging.getLogger(__name__)

_KEY = re.compile(r"[0-9A-Za-z_][0-9A-Za-z_.-]{0,199}")
_MANIFEST = ".manifest.json"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_NOT_WRITABLE = _FULL | {errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOLCK}
_PRUNE_EVERY = 64  # puts; measuring the folder costs about 10 µs an entry
_SPARED_SECONDS = 60.0  # an entry just handed out must outlive the moment until its reader has opened it
_ABANDONED_SECONDS = 86400.0  # a build folder this old belongs to a process that was killed
_WARNED_ROOTS: set[Path] = set()


def content_key(*parts: str | bytes) -> str:
    """A key of 40 hexadecimal digits (160 bits of SHA-256) for the sequence of parts; ("ab",) and ("a", "b") differ.

    >>> content_key("ab") != content_key("a", "b")
    True
    """
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:40]


@dataclass(frozen=True)
class CacheStats:
    """What a cache holds on disk, and what this object saw: entries found, built, and discarded as corrupt."""

    root: Path
    entries: int
    bytes: int
    hits: int
    builds: int
    discarded: int


@dataclass(frozen=True)
class CacheEntry:
    """One entry: its key, names of its files, size, and when it was last used (seconds since 1970, UTC)."""

    key: str
    files: tuple[str, ...]
    bytes: int
    used: float


class DiskCache:
    """Entries below one folder, which is made on first use with permissions 0700.

    `root` defaults to CUVIL_CACHE_DIR or the XDG cache folder, `max_bytes` to CUVIL_CACHE_SIZE. Safe to use from
    several threads and processes at once. Raises CacheError where the folder belongs to another user or is writable
    by others.

    >>> import tempfile
    >>> cache = DiskCache(Path(tempfile.mkdtemp()))
    >>> def build(folder: Path) -> None:
    ...     (folder / "text").write_text("hello")
    >>> entry = cache.put("greeting", build)
    >>> (entry / "text").read_text(), cache.get("greeting") == entry, cache.get("other")
    ('hello', True, None)
    """

    def __init__(self, root: Path | None = None, *, max_bytes: int | None = None) -> None:
        self.root = (config.cache_dir() if root is None else root).absolute()
        self.max_bytes = config.cache_limit_bytes() if max_bytes is None else max_bytes
        self._mutex = threading.Lock()
        self._private: dict[str, Path] = {}
        self._hits = self._builds = self._discarded = 0

    def get(self, key: str) -> Path | None:
        """The folder of the entry, verified; None where there is none or it was corrupt (then it is removed)."""
        _check_key(key)
        if (private := self._private.get(key)) is not None:
            return private
        self._check_root()
        entry = self._entry(key)
        if not os.path.lexists(entry):
            return None
        fault = _fault(entry)
        if fault is None:
            with self._mutex:
                self._hits += 1
            _touch(entry / _MANIFEST)
            return entry
        if not os.path.lexists(entry):  # pruned while it was read
            return None
        self._discard_corrupt(entry, fault)
        return None

    def discard(self, key: str, fault: str) -> None:
        """Removes an entry that is as it was written, but not what its reader can use; ``fault`` says why."""
        _check_key(key)
        with self._mutex:
            self._private.pop(key, None)
        self._check_root()
        self._discard_corrupt(self._entry(key), fault)

    def _discard_corrupt(self, entry: Path, fault: str) -> None:
        with self._mutex:
            self._discarded += 1
        _LOG.warning("Discarding the corrupt cache entry %s: %s.", entry, fault)
        self._discard(entry)

    def put(self, key: str, build: Callable[[Path], None]) -> Path:
        """The folder of the entry, which `build` fills if there is none: it gets an empty folder and writes into it.

        Waits where another thread or process builds the same key. What `build` raises is passed on and leaves no
        entry, except for a full or read-only disk: then it is called again with a folder elsewhere.
        Raises CacheError where that has no space either.
        """
        if (found := self.get(key)) is not None:
            return found
        try:
            self._make_folders()
            with self._locked(key):
                if (found := self.get(key)) is not None:
                    return found
                entry = self._build(key, build)
        except _UnwritableError as error:
            return self._build_privately(key, build, error.reason)
        self._count_build()
        return entry

    def stats(self) -> CacheStats:
        """Counts and sizes, entries that live in a temporary folder left out."""
        entries = [_measure(entry) for entry in self._entries()]
        sizes = [measured.bytes for measured in entries if measured is not None]
        return CacheStats(self.root, len(sizes), sum(sizes), self._hits, self._builds, self._discarded)

    def entries(self) -> list[CacheEntry]:
        """What is on disk, the most recently used first."""
        self._check_root()
        found: list[CacheEntry] = []
        for entry in self._entries():
            size = _measure(entry)
            if size is not None:
                files = tuple(sorted(relative for relative, _ in _files(entry)))
                found.append(CacheEntry(entry.name, files, size.bytes, size.used))
        return sorted(found, key=lambda e: (-e.used, e.key))

    def remove(self, keys: Iterable[str]) -> int:
        """Removes entries by key, and returns how many there were."""
        self._check_root()
        removed = 0
        for key in keys:
            _check_key(key)
            removed += self._discard(self._entry(key))
        return removed

    def clear(self) -> int:
        """Removes all entries, and returns how many. Programs that are loaded keep working."""
        self._check_root()
        removed = sum(self._discard(entry) for entry in self._entries())
        self._remove_abandoned()
        return removed

    def prune(self, max_bytes: int | None = None, *, spare_seconds: float = _SPARED_SECONDS) -> int:
        """Removes the least recently used entries until `max_bytes` hold the rest, and returns how many.

        Entries used within the last `spare_seconds` stay, since another process may be about to load them.
        """
        if max_bytes is not None and max_bytes < 0:
            raise ArgumentError(f"max_bytes is {max_bytes}; expected a size of at least 0.")
        self._check_root()
        limit = self.max_bytes if max_bytes is None else max_bytes
        measured = [(entry, size) for entry in self._entries() if (size := _measure(entry)) is not None]
        excess = sum(size.bytes for _, size in measured) - limit
        newest = time.time() - spare_seconds
        removed = 0
        for entry, size in sorted(measured, key=lambda pair: (pair[1].used, pair[0])):
            if excess <= 0 or size.used > newest:
                break
            if self._discard(entry):
                excess -= size.bytes
                removed += 1
        self._remove_abandoned()
        return removed

    # ------------------------------------------------------------------------------------------ on disk

    def _entry(self, key: str) -> Path:
        return self.root / "entries" / key

    def _entries(self) -> list[Path]:
        try:
            return sorted((self.root / "entries").iterdir())
        except FileNotFoundError:
            return []

    def _make_folders(self) -> None:
        with _unwritable_if(_NOT_WRITABLE | {errno.ENOENT}):  # ENOENT: no folder can be made there, as below /proc
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._check_root()
        with _unwritable_if(_NOT_WRITABLE):
            for name in ("entries", "building", "locks"):
                (self.root / name).mkdir(mode=0o700, exist_ok=True)
            tag = self.root / "CACHEDIR.TAG"  # https://bford.info/cachedir/: tells backup programs to pass over
            if not tag.exists():
                tag.write_text("Signature: 8a477f597d28d172789f06886806bc55\n# The compile cache of cuvil.\n")

    def _check_root(self) -> None:
        try:
            status = self.root.stat()
        except (FileNotFoundError, PermissionError):  # nothing can come from there; put() deals with it
            return
        except OSError as error:
            raise CacheError(
                f"The cache folder {self.root} cannot be examined ({error.strerror}). "
                "Make it accessible, or set CUVIL_CACHE_DIR to a folder of your own."
            ) from error
        fault = None
        if not stat.S_ISDIR(status.st_mode):
            fault, remedy = "is not a folder", "remove that file"
        elif status.st_uid not in (os.geteuid(), 0):  # root could change this process anyway
            fault, remedy = f"belongs to another user (uid {status.st_uid})", "use one of your own"
        elif status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            fault, remedy = "is writable by other users", f"run `chmod 700 {self.root}`"
        else:
            return
        raise CacheError(
            f"The cache folder {self.root} {fault}. cuvil executes code from its cache, so it must be safe from "
            f"others: {remedy}, or set CUVIL_CACHE_DIR to another folder."
        )

    @contextmanager
    def _locked(self, key: str) -> Generator[None]:
        """Holds the key's lock file. The last act under the lock is to remove the file, so that none pile up."""
        path = self.root / "locks" / key
        while True:
            with _unwritable_if(_NOT_WRITABLE):
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                with _unwritable_if(_NOT_WRITABLE):
                    _lock(descriptor, key)
                if _is_file_at(descriptor, path):
                    break
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # the previous holder removed this file: take the one that is there now
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            # Unlocking, not just closing: a process forked meanwhile shares the open file and would keep the lock.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def _build(self, key: str, build: Callable[[Path], None]) -> Path:
        with _unwritable_if(_NOT_WRITABLE):
            folder = Path(tempfile.mkdtemp(prefix=f"{key}-", dir=self.root / "building"))
        try:
            entry = self._entry(key)
            with _unwritable_if(_FULL):  # anything else is the build's own failure
                build(folder)
                _write_manifest(folder)
            with _unwritable_if(_NOT_WRITABLE):
                folder.rename(entry)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return entry

    def _discard(self, entry: Path) -> bool:
        """Removes an entry at one stroke for other processes: renames it out of sight, then deletes it."""
        try:
            (self.root / "building").mkdir(mode=0o700, exist_ok=True)
            grave = Path(tempfile.mkdtemp(prefix="discarded-", dir=self.root / "building"))
            entry.rename(grave / "entry")
        except FileNotFoundError:  # another process was faster
            return False
        except OSError as error:
            if error.errno not in _NOT_WRITABLE:
                raise
            _LOG.info("The cache entry %s stays: %s.", entry, error.strerror)
            return False
        shutil.rmtree(grave, ignore_errors=True)
        return True

    def _remove_abandoned(self) -> None:
        """Deletes build folders of processes that were killed, told by their age."""
        limit = time.time() - _ABANDONED_SECONDS
        try:
            folders = list((self.root / "building").iterdir())
        except FileNotFoundError:
            return
        for folder in folders:
            try:
                abandoned = folder.stat().st_mtime <= limit
            except FileNotFoundError:  # its build has just ended
                continue
            if abandoned:
                shutil.rmtree(folder, ignore_errors=True)

    def _count_build(self) -> None:
        with self._mutex:
            due = self._builds % _PRUNE_EVERY == 0
            self._builds += 1
        if due:
            self.prune()

    # ------------------------------------------------------------------------------------------ elsewhere

    def _build_privately(self, key: str, build: Callable[[Path], None], reason: OSError) -> Path:
        with self._mutex:
            first = self.root not in _WARNED_ROOTS
            _WARNED_ROOTS.add(self.root)
        if first:
            _LOG.warning(
                "The cache folder %s cannot be written (%s, %s free); compiled code is kept in a temporary folder "
                "until this process ends. Free some space, or set CUVIL_CACHE_DIR to a folder that can be written.",
                self.root,
                reason.strerror,
                _free_space(self.root),
            )
        try:
            with _unwritable_if(_NOT_WRITABLE):
                folder = Path(tempfile.mkdtemp(prefix="cuvil-"))
            atexit.register(_remove_in_process, folder, os.getpid())
            with _unwritable_if(_FULL):
                build(folder)
        except _UnwritableError as error:
            elsewhere = Path(tempfile.gettempdir())
            raise CacheError(
                f"Neither the cache folder {self.root} ({reason.strerror}, {_free_space(self.root)} free) nor the "
                f"temporary folder {elsewhere} ({error.reason.strerror}, {_free_space(elsewhere)} free) can take "
                f"{key}. Free some space, or set CUVIL_CACHE_DIR or TMPDIR to a folder on another disk."
            ) from error.reason
        with self._mutex:
            self._builds += 1
            # Two threads may have built the same key at once: both use the first one's folder.
            return self._private.setdefault(key, folder)


def shared_cache() -> DiskCache:
    """The process's cache for the folder and size limit that the environment names now."""
    return _shared(config.cache_dir(), config.cache_limit_bytes())


@functools.lru_cache(maxsize=8)
def _shared(root: Path, max_bytes: int) -> DiskCache:
    return DiskCache(root, max_bytes=max_bytes)


class _UnwritableError(Exception):
    """The cache folder cannot take an entry; `reason` says why."""

    def __init__(self, reason: OSError) -> None:
        super().__init__(str(reason))
        self.reason = reason


@contextmanager
def _unwritable_if(numbers: frozenset[int]) -> Generator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, CacheError) or error.errno not in numbers:
            raise
        raise _UnwritableError(error) from error


def _remove_in_process(folder: Path, process: int) -> None:
    if os.getpid() == process:  # a forked child runs its parent's exit handlers too
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class _Measured:
    bytes: int
    used: float


def _check_key(key: str) -> None:
    if _KEY.fullmatch(key) is None:
        raise ArgumentError(
            f"{key!r} is not a cache key; expected up to 200 letters, digits, '_', '-', '.', such as content_key()'s."
        )


def _lock(descriptor: int, key: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _LOG.info("Waiting for another build of %s.", key)
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _is_file_at(descriptor: int, path: Path) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    here = os.fstat(descriptor)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def _files(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Relative path and status of everything below the folder that is not a folder, the manifest left out."""
    for base, folders, names in os.walk(folder):
        links = [name for name in folders if Path(base, name).is_symlink()]  # walk() does not enter these
        for name in [*names, *links]:
            path = Path(base, name)
            relative = path.relative_to(folder).as_posix()
            if relative != _MANIFEST:
                yield relative, path.lstat()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_manifest(folder: Path) -> None:
    digests: dict[str, str] = {}
    for relative, status in sorted(_files(folder)):
        if not stat.S_ISREG(status.st_mode):
            raise CacheError(f"A build left {relative}, which is not a regular file; a cache entry takes only those.")
        digests[relative] = _digest(folder / relative)
    (folder / _MANIFEST).write_text(json.dumps(digests, indent=1))


def _fault(entry: Path) -> str | None:
    """What is wrong with an entry, or None where every file has the digest that the manifest gives."""
    try:
        digests = json.loads((entry / _MANIFEST).read_bytes())
        if not isinstance(digests, dict):
            return "its manifest is no table"
        expected = cast("dict[str, object]", digests)
        found = dict(_files(entry))
        if found.keys() != expected.keys():
            return f"its files are {_listed(found)} instead of {_listed(expected)}"
        for relative, status in found.items():
            if not stat.S_ISREG(status.st_mode) or _digest(entry / relative) != expected[relative]:
                return f"{relative} has changed since it was built"
    except (OSError, ValueError) as error:
        return f"it cannot be read ({error})"
    return None


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _measure(entry: Path) -> _Measured | None:
    """Size of an entry and when it was last used (the manifest's time stamp); None where it has just gone."""
    try:
        size = sum(status.st_size for _, status in _files(entry))
        manifest = (entry / _MANIFEST).stat()
    except (FileNotFoundError, NotADirectoryError):
        # Without a manifest it is no entry; get() discards it when its key is asked for.
        return _Measured(0, 0.0) if entry.exists() else None
    return _Measured(size + manifest.st_size, manifest.st_mtime)


def _touch(path: Path) -> None:
    try:
        os.utime(path)
    except OSError as error:
        # A cache on a read-only disk works; only the order in which it would be pruned is not kept.
        _LOG.debug("The time of use of %s is not recorded: %s.", path, error.strerror)


def _free_space(folder: Path) -> str:
    for place in (folder, *folder.parents):
        if place.exists():
            return f"{shutil.disk_usage(place).free / (1 << 20):.0f} MiB"
    return "nothing"
