"""The disk cache under corruption, races, full and read-only disks, and unsafe folders."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cuvil.support import cache as cache_module
from cuvil.support.cache import DiskCache, content_key
from cuvil.support.errors import ArgumentError, CacheError


@pytest.fixture(autouse=True)
def private_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What the cache builds outside its folder stays within the test's."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(cache_module, "_WARNED_ROOTS", set())


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "cache")


def writing(text: str, calls: list[str] | None = None) -> Callable[[Path], None]:
    def build(folder: Path) -> None:
        if calls is not None:
            calls.append(text)
        (folder / "data").write_text(text)
        (folder / "part").mkdir()
        (folder / "part" / "more").write_text(text.upper())

    return build


def failing(number: int) -> Callable[[Path], None]:
    def build(folder: Path) -> None:
        raise OSError(number, os.strerror(number))

    return build


def left_over(cache: DiskCache) -> list[Path]:
    return [path for name in ("building", "locks") for path in (cache.root / name).iterdir()]


def test_an_entry_is_built_once(cache: DiskCache) -> None:
    calls: list[str] = []
    assert cache.get("k") is None
    first = cache.put("k", writing("one", calls))
    assert cache.put("k", writing("two", calls)) == first == cache.get("k")
    assert (first / "data").read_text() == "one"
    assert calls == ["one"]
    assert left_over(cache) == []
    stats = cache.stats()
    assert (stats.entries, stats.builds, stats.hits, stats.discarded) == (1, 1, 2, 0)
    assert stats.bytes > 6


def test_another_object_finds_it(cache: DiskCache) -> None:
    entry = cache.put("k", writing("one"))
    assert DiskCache(cache.root).get("k") == entry


def test_the_folder_is_the_owners_alone(cache: DiskCache) -> None:
    cache.put("k", writing("one"))
    for folder in (cache.root, cache.root / "entries", cache.root / "entries" / "k"):
        assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("key", ["", ".hidden", "../up", "a/b", "a\n", "a" * 201, "é"])
def test_keys_stay_within_the_folder(cache: DiskCache, key: str) -> None:
    with pytest.raises(ArgumentError, match="not a cache key"):
        cache.put(key, writing("one"))
    with pytest.raises(ArgumentError, match="not a cache key"):
        cache.get(key)


def test_content_keys_depend_on_every_part_and_border() -> None:
    keys = {content_key(), content_key(""), content_key("ab"), content_key("a", "b"), content_key("b", "a")}
    assert len(keys) == 5
    assert content_key("é") == content_key("é".encode())


def _flip(entry: Path) -> None:
    (entry / "data").write_bytes(b"\x00ne")


def _truncate(entry: Path) -> None:
    (entry / "data").write_bytes(b"")


def _remove_file(entry: Path) -> None:
    (entry / "part" / "more").unlink()


def _add_file(entry: Path) -> None:
    (entry / "extra").write_text("x")


def _link_file(entry: Path) -> None:
    (entry / "data").rename(entry.parent / "moved")
    (entry / "data").symlink_to(entry.parent / "moved")


def _link_folder(entry: Path) -> None:
    (entry / "elsewhere").symlink_to("/")


def _remove_manifest(entry: Path) -> None:
    (entry / ".manifest.json").unlink()


def _break_manifest(entry: Path) -> None:
    (entry / ".manifest.json").write_text("[1, 2")


def _swap_manifest(entry: Path) -> None:
    (entry / ".manifest.json").write_text("[]")


def _replace_by_file(entry: Path) -> None:
    shutil.rmtree(entry)
    entry.write_text("no folder")


def _empty(entry: Path) -> None:
    shutil.rmtree(entry)
    entry.mkdir()


@pytest.mark.parametrize(
    "damage",
    [
        _flip,
        _truncate,
        _remove_file,
        _add_file,
        _link_file,
        _link_folder,
        _remove_manifest,
        _break_manifest,
        _swap_manifest,
        _replace_by_file,
        _empty,
    ],
)
def test_a_corrupt_entry_is_never_given_out(
    cache: DiskCache, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    entry = cache.put("k", writing("one"))
    damage(entry)
    assert cache.get("k") is None
    assert not os.path.lexists(entry)
    assert "Discarding the corrupt cache entry" in caplog.text
    rebuilt = cache.put("k", writing("two"))
    assert (rebuilt / "data").read_text() == "two"
    assert cache.stats().discarded == 1
    assert left_over(cache) == []


def test_a_corrupt_entry_is_built_again_by_put(cache: DiskCache) -> None:
    entry = cache.put("k", writing("one"))
    _flip(entry)
    assert (cache.put("k", writing("two")) / "data").read_text() == "two"


def test_a_build_that_raises_leaves_nothing(cache: DiskCache) -> None:
    def build(folder: Path) -> None:
        (folder / "data").write_text("half")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cache.put("k", build)
    assert cache.get("k") is None
    assert left_over(cache) == []
    assert (cache.put("k", writing("one")) / "data").read_text() == "one"


def test_a_build_may_leave_regular_files_only(cache: DiskCache) -> None:
    with pytest.raises(CacheError, match="link, which is not a regular file"):
        cache.put("k", lambda folder: (folder / "link").symlink_to("/etc/passwd"))
    assert left_over(cache) == []


def test_the_builds_own_errors_are_passed_on(cache: DiskCache) -> None:
    calls: list[str] = []

    def build(folder: Path) -> None:
        calls.append("build")
        raise PermissionError(errno.EACCES, "the compiler may not be run")

    with pytest.raises(PermissionError, match="may not be run"):
        cache.put("k", build)
    assert calls == ["build"]


def test_threads_wait_for_the_one_that_builds(cache: DiskCache) -> None:
    calls: list[str] = []
    entries: list[Path] = []

    def build(folder: Path) -> None:
        time.sleep(0.05)
        writing("one", calls)(folder)

    threads = [threading.Thread(target=lambda: entries.append(cache.put("k", build))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls == ["one"]
    assert len(entries) == 8
    assert len(set(entries)) == 1
    assert left_over(cache) == []


def _put_in_process(root: Path, log: Path, barrier: object) -> None:
    barrier.wait()  # type: ignore[attr-defined]
    for key in ("a", "b", "c"):

        def build(folder: Path, key: str = key) -> None:
            with log.open("a") as file:
                file.write(f"{key}\n")
            time.sleep(0.02)
            (folder / "data").write_text(key * 1000)

        entry = DiskCache(root).put(key, build)
        assert (entry / "data").read_text() == key * 1000


def test_processes_build_each_entry_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(3)
    arguments = (tmp_path / "cache", tmp_path / "log", barrier)
    processes = [context.Process(target=_put_in_process, args=arguments) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert sorted((tmp_path / "log").read_text().split()) == ["a", "b", "c"]


def _die_while_building(root: Path) -> None:
    DiskCache(root).put("k", lambda folder: os._exit(7))


def test_a_killed_builder_holds_nobody_up(cache: DiskCache) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_die_while_building, args=(cache.root,))
    process.start()
    process.join(60)
    assert process.exitcode == 7
    assert cache.get("k") is None
    assert (cache.put("k", writing("one")) / "data").read_text() == "one"
    (abandoned,) = left_over(cache)
    cache.prune()
    assert abandoned.exists()  # it could be a build that goes on
    os.utime(abandoned, (0, 0))
    cache.prune()
    assert left_over(cache) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_moves_the_build_elsewhere(
    cache: DiskCache, tmp_path: Path, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[str] = []

    def build(folder: Path) -> None:
        if cache.root in folder.parents:
            raise OSError(number, os.strerror(number))
        writing("one", calls)(folder)

    entry = cache.put("k", build)
    assert entry.is_relative_to(tmp_path / "temporary")
    assert cache.put("k", build) == entry == cache.get("k")
    assert calls == ["one"]
    cache.put("other", build)
    assert caplog.text.count("cannot be written") == 1
    assert str(cache.root) in caplog.text
    assert left_over(cache) == []


def test_a_full_disk_everywhere_is_an_error_that_names_the_folders(cache: DiskCache, tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="can take k") as caught:
        cache.put("k", failing(errno.ENOSPC))
    message = str(caught.value)
    assert str(cache.root) in message
    assert str(tmp_path / "temporary") in message
    assert "MiB free" in message
    assert "CUVIL_CACHE_DIR" in message


def _refuse_below(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    """Makes a folder read-only for whoever runs the tests; permissions would not bind root."""

    def refusing(real: Callable[..., object]) -> Callable[..., object]:
        def call(path: object, *args: object, **options: object) -> object:
            inside = isinstance(path, str | os.PathLike) and Path(os.fspath(path)).is_relative_to(root)
            writes = real is not os.open or (bool(args) and int(str(args[0])) & os.O_CREAT)
            if inside and writes:
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
            return real(path, *args, **options)

        return call

    for name in ("mkdir", "open", "utime", "rename", "unlink"):
        monkeypatch.setattr(os, name, refusing(getattr(os, name)))


def test_a_read_only_cache_serves_what_it_has(
    cache: DiskCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    entry = cache.put("k", writing("one"))
    broken = cache.put("broken", writing("two"))
    _flip(broken)
    _refuse_below(monkeypatch, cache.root)
    reader = DiskCache(cache.root)
    assert reader.put("k", writing("new")) == entry
    new = reader.put("n", writing("new"))
    assert new.is_relative_to(tmp_path / "temporary")
    repaired = reader.put("broken", writing("three"))
    assert (repaired / "data").read_text() == "three"
    assert repaired.is_relative_to(tmp_path / "temporary")
    assert caplog.text.count("cannot be written") == 1


@pytest.mark.parametrize("mode", [0o777, 0o702, 0o720, 0o1777])
def test_a_folder_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    root = tmp_path / "open"
    root.mkdir()
    root.chmod(mode)
    for act in (lambda: DiskCache(root).get("k"), lambda: DiskCache(root).put("k", writing("one"))):
        with pytest.raises(CacheError, match=r"writable by other users.*chmod 700"):
            act()


def test_a_folder_of_another_user_is_refused(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.put("k", writing("one"))
    owner = cache.root.stat().st_uid
    if owner == 0:
        os.chown(cache.root, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(CacheError, match="belongs to another user"):
        cache.get("k")
    with pytest.raises(CacheError, match="belongs to another user"):
        cache.prune()


def test_a_file_in_the_folders_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="is not a folder"):
        DiskCache(tmp_path / "file").get("k")
    with pytest.raises(CacheError, match="cannot be examined"):
        DiskCache(tmp_path / "file" / "below").get("k")
    with pytest.raises(CacheError, match="is not a folder"):
        DiskCache(tmp_path / "file").put("k", writing("one"))
    with pytest.raises(CacheError, match="cannot be examined"):
        DiskCache(tmp_path / "file" / "below").put("k", writing("one"))


def test_prune_removes_the_least_recently_used(cache: DiskCache) -> None:
    for age, key in enumerate(["d", "c", "b", "a"]):
        entry = cache.put(key, writing("x" * 1000))
        stamp = time.time() - 1000 - age * 100
        os.utime(entry / ".manifest.json", (stamp, stamp))
    size = cache.stats().bytes // 4
    cache.get("a")  # now the most recently used one
    assert cache.prune(2 * size) == 2
    assert sorted(path.name for path in (cache.root / "entries").iterdir()) == ["a", "d"]
    assert cache.prune(0) == 1  # "a" was used just now and is spared
    assert cache.prune(0, spare_seconds=0.0) == 1
    assert cache.stats().entries == 0


def test_a_put_keeps_the_size_limit(tmp_path: Path) -> None:
    small = DiskCache(tmp_path / "cache", max_bytes=3000)
    old = small.put("old", writing("x" * 2000))
    os.utime(old / ".manifest.json", (0, 0))
    DiskCache(small.root, max_bytes=3000).put("new", writing("y" * 2000))
    assert [path.name for path in (small.root / "entries").iterdir()] == ["new"]


def test_clear(cache: DiskCache) -> None:
    assert cache.clear() == 0
    entry = cache.put("k", writing("one"))
    with (entry / "data").open() as file:
        assert cache.clear() == 1
        assert file.read() == "one"
    assert cache.get("k") is None
    assert cache.stats().bytes == 0


def test_prune_refuses_a_negative_size(cache: DiskCache) -> None:
    with pytest.raises(ArgumentError, match="-1"):
        cache.prune(-1)
