"""The C compiler: which one is taken, what the cache key covers, and how its failures read."""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cuvil.backends.c import toolchain as toolchain_module
from cuvil.backends.c.toolchain import Toolchain, compile_many, compile_shared, find_toolchain
from cuvil.support.cache import DiskCache
from cuvil.support.errors import ArgumentError, ToolchainError

ANSWER = "int answer(void) { return 42; }\n"


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CUVIL_CC", raising=False)
    monkeypatch.setenv("CUVIL_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Installs a compiler that is the real one behind a shell script; the script's text decides what goes wrong.

    Each run that compiles adds a line to `runs`. `$real` is the real compiler.
    """
    real = shutil.which("gcc") or shutil.which("clang") or shutil.which("cc")
    assert real is not None, "the tests of the toolchain need a C compiler"

    def install(script: str = 'exec "$real" "$@"') -> Path:
        path = tmp_path / "fake-cc"
        path.write_text(
            f'#!/bin/sh\nreal={real}\ncase " $* " in *" -E "*) ;; *) echo run >> {tmp_path}/runs ;; esac\n{script}\n'
        )
        path.chmod(0o755)
        monkeypatch.setenv("CUVIL_CC", str(path))
        return path

    return install


def runs(tmp_path: Path) -> int:
    path = tmp_path / "runs"
    return len(path.read_text().split()) if path.exists() else 0


def answer_of(library: Path) -> int:
    return int(ctypes.CDLL(str(library)).answer())


# ---------------------------------------------------------------------------------------------- finding


def test_the_compiler_of_this_machine_is_known() -> None:
    found = find_toolchain()
    assert found.kind in ("gcc", "clang", "zig")
    assert "version" in found.version
    assert len(found.cpu) == 16
    assert "-O2" in found.flags
    assert not any("fast-math" in flag for flag in found.flags)
    assert find_toolchain() is find_toolchain()


def test_another_target_cpu_is_another_key() -> None:
    native, plain = find_toolchain(), find_toolchain("x86-64" if os.uname().machine == "x86_64" else "generic")
    assert native.cpu != plain.cpu
    assert native.version == plain.version


def test_cuvil_cc_may_carry_arguments(monkeypatch: pytest.MonkeyPatch, compiler: Callable[[str], Path]) -> None:
    path = compiler('exec "$real" "$@"')
    monkeypatch.setenv("CUVIL_CC", f"{path} -DANSWER=7")
    found = find_toolchain()
    assert found.command == (str(path), "-DANSWER=7")
    library = compile_shared({"a.c": "int answer(void) { return ANSWER; }"}, name="a", toolchain=found)
    assert answer_of(library) == 7


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("no-such-compiler", "not found"),
        (f"{sys.executable} -c pass", "no C compiler of the GNU dialect"),
        ("/bin/false", "no C compiler of the GNU dialect (exit status 1)"),
    ],
)
def test_a_wrong_cuvil_cc_is_not_passed_over(monkeypatch: pytest.MonkeyPatch, command: str, reason: str) -> None:
    monkeypatch.setenv("CUVIL_CC", command)
    with pytest.raises(ToolchainError, match="CUVIL_CC names no usable C compiler") as caught:
        find_toolchain()
    assert reason in str(caught.value)


def _script(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)


def test_the_order_is_gcc_clang_cc_and_bad_ones_are_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    macros = "echo '#define __GNUC__ 4'; echo '#define __clang__ 1'; echo '#define __clang_major__ {}'\n"
    _script(tmp_path, "gcc", "echo '#define __GNUC__ 9'; echo 'gcc version 9.4.0 (Old)' >&2\n")
    _script(tmp_path, "clang", macros.format(17) + "echo 'Some clang version 17.0.1' >&2; echo 'Target: here' >&2\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    found = find_toolchain()
    assert (found.command, found.kind) == (("clang",), "clang")
    assert found.version == "Some clang version 17.0.1; Target: here"
    assert "-Wno-psabi" not in found.flags

    # A compiler that is exchanged while the process runs is asked again.
    _script(tmp_path, "clang", macros.format(12))
    monkeypatch.setattr(toolchain_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ToolchainError) as caught:
        find_toolchain()
    message = str(caught.value)
    assert "gcc: is gcc 9, older than 10" in message
    assert "clang: is clang 12, older than 13" in message
    assert "cc: not found" in message
    for hint in (
        "apt install gcc",
        "dnf install gcc",
        "xcode-select --install",
        "pip install 'cuvil[zig]'",
        "CUVIL_CC",
    ):
        assert hint in message


def test_the_ziglang_wheel_is_the_last_resort(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    package = tmp_path / "site" / "ziglang"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(
        "print('#define __GNUC__ 4'); print('#define __clang__ 1'); print('#define __clang_major__ 20')"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    found = find_toolchain("x86-64-v3")
    assert (found.command, found.kind) == ((sys.executable, "-m", "ziglang", "cc"), "zig")
    assert "-fno-sanitize=undefined" in found.flags


# ---------------------------------------------------------------------------------------------- compiling


def test_a_library_is_compiled_once(tmp_path: Path, compiler: Callable[..., Path]) -> None:
    compiler()
    library = compile_shared({"answer.c": ANSWER}, name="answer")
    assert answer_of(library) == 42
    assert library.name == "answer.so"
    assert (library.parent / "answer.c").read_text() == ANSWER
    assert sorted(path.name for path in library.parent.iterdir()) == [".manifest.json", "answer.c", "answer.so"]
    assert compile_shared({"answer.c": ANSWER}, name="answer") == library
    assert runs(tmp_path) == 1


def test_several_sources_become_one_library() -> None:
    sources = {
        "half.h": "int half(void);\n",
        "half.c": "int half(void) { return 21; }\n",
        "answer.c": '#include "half.h"\nint answer(void) { return 2 * half(); }\n',
    }
    assert answer_of(compile_shared(sources, name="model/layer.0")) == 42


def test_the_key_covers_text_flags_headers_and_libraries(tmp_path: Path) -> None:
    headers = tmp_path / "include"
    (headers / "sub").mkdir(parents=True)
    (headers / "sub" / "value.h").write_text("#define VALUE 1\n")
    source = '#include "sub/value.h"\nint answer(void) { return VALUE; }\n'
    base = compile_shared({"a.c": source}, name="a", include_dirs=[headers])
    assert answer_of(base) == 1
    (headers / "sub" / "value.h").write_text("#define VALUE 2\n")
    changed = compile_shared({"a.c": source}, name="a", include_dirs=[headers])
    assert answer_of(changed) == 2
    (headers / "README.txt").write_text("no header")
    assert compile_shared({"a.c": source}, name="a", include_dirs=[headers]) == changed
    others = {
        compile_shared({"a.c": source + "\n"}, name="a", include_dirs=[headers]),
        compile_shared({"b.c": source}, name="a", include_dirs=[headers]),
        compile_shared({"a.c": source}, name="b", include_dirs=[headers]),
        compile_shared({"a.c": source}, name="a", include_dirs=[headers], extra_flags=["-DX"]),
        compile_shared({"a.c": source}, name="a", include_dirs=[headers], libraries=["-lpthread"]),
    }
    assert len(others) == 5
    assert changed not in others


@pytest.mark.parametrize("field", ["command", "kind", "version", "cpu", "flags"])
def test_the_key_covers_the_compiler_and_the_cpu(tmp_path: Path, field: str) -> None:
    found = find_toolchain()
    fields = {name: getattr(found, name) for name in ("command", "kind", "version", "cpu", "flags")}
    marks: dict[str, object] = {
        "command": ("env", *found.command),
        "kind": "clang" if found.kind == "gcc" else "gcc",
        "version": found.version + ", upgraded",
        "cpu": "0" * 16,
        "flags": (*found.flags, "-DX"),
    }
    other = Toolchain(**{**fields, field: marks[field]})
    first = compile_shared({"a.c": ANSWER}, name="a", toolchain=found)
    assert compile_shared({"a.c": ANSWER}, name="a", toolchain=other) != first


def test_many_are_compiled_in_parallel_and_in_order(tmp_path: Path, compiler: Callable[..., Path]) -> None:
    compiler()
    kernels = [(f"k{i % 5}", f"int answer(void) {{ return {i % 5}; }}\n") for i in range(8)]
    seen: list[tuple[int, int]] = []
    libraries = compile_many(kernels, progress=lambda done, total, name: seen.append((done, total)))
    assert [answer_of(library) for library in libraries] == [0, 1, 2, 3, 4, 0, 1, 2]
    assert runs(tmp_path) == 5
    assert seen[-1] == (8, 8)
    assert compile_many(kernels) == libraries
    assert compile_many([]) == []
    assert runs(tmp_path) == 5


def test_the_first_failure_of_many_stops_the_rest(tmp_path: Path, compiler: Callable[..., Path]) -> None:
    compiler()
    with pytest.raises(ToolchainError, match="failed on bad"):
        compile_many([("bad", "nonsense"), *((f"k{i}", ANSWER + f"/*{i}*/") for i in range(40))])
    assert runs(tmp_path) < 40


def test_a_library_damaged_on_disk_is_compiled_again() -> None:
    library = compile_shared({"a.c": ANSWER}, name="a")
    library.write_bytes(library.read_bytes()[:-100])
    assert answer_of(compile_shared({"a.c": ANSWER}, name="a")) == 42


def test_sources_have_plain_names() -> None:
    for names in (["../a.c"], ["a/b.c"], ["-o.c"], ["only.h"], []):
        with pytest.raises(ArgumentError, match="plain file names"):
            compile_shared(dict.fromkeys(names, ANSWER), name="a")


def test_a_missing_include_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="nowhere does not exist"):
        compile_shared({"a.c": ANSWER}, name="a", include_dirs=[tmp_path / "nowhere"])


# ---------------------------------------------------------------------------------------------- failing


def test_an_error_names_line_command_and_kept_sources(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError) as caught:
        compile_shared({"a.c": "int answer(void) {\n  return missing;\n}\n"}, name="layer.0")
    message = str(caught.value)
    assert "failed on layer.0 (exit status" in message
    assert "a.c:2:10: error: " in message
    assert "-fwrapv" in message
    (kept,) = (tmp_path / "temporary").iterdir()
    assert str(kept) in message
    assert "return missing" in (kept / "a.c").read_text()
    assert "a.c" in (kept / "command.sh").read_text()
    assert DiskCache(tmp_path / "cache").stats().entries == 0


@pytest.mark.parametrize(
    "text",
    [
        "int answer(void) { return undeclared(1); }",
        "int declared(int); int answer(void) { return declared(1); }",
        "int *answer(void) { double x; return &x; }",
        "int *answer(void) { return 5; }",
    ],
)
def test_what_would_fail_at_load_or_call_fails_at_compile_time(text: str) -> None:
    with pytest.raises(ToolchainError, match="failed on a"):
        compile_shared({"a.c": text}, name="a")


def test_a_compiler_that_hangs_is_stopped_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: Callable[[str], Path]
) -> None:
    compiler(f'case " $* " in *" -E "*) exec "$real" "$@" ;; esac\n(sleep 3; touch {tmp_path}/survived) &\nsleep 60')
    monkeypatch.setenv("CUVIL_COMPILE_TIMEOUT", "0.3")
    start = time.monotonic()
    with pytest.raises(ToolchainError, match=r"did not finish slow within 0\.3 s") as caught:
        compile_shared({"a.c": ANSWER}, name="slow")
    assert time.monotonic() - start < 3
    assert "CUVIL_COMPILE_TIMEOUT" in str(caught.value)
    time.sleep(max(0.0, start + 3.6 - time.monotonic()))
    assert not (tmp_path / "survived").exists()


def test_a_compiler_that_is_killed_is_reported(compiler: Callable[[str], Path]) -> None:
    compiler('case " $* " in *" -E "*) exec "$real" "$@" ;; esac\nkill -9 $$')
    with pytest.raises(ToolchainError, match="ended by SIGKILL"):
        compile_shared({"a.c": ANSWER}, name="a")


def test_a_compiler_that_vanishes_is_reported(compiler: Callable[..., Path]) -> None:
    path = compiler()
    found = find_toolchain()
    path.unlink()
    with pytest.raises(ToolchainError, match="cannot be run"):
        compile_shared({"a.c": ANSWER}, name="a", toolchain=found)


def test_a_disk_full_for_the_compiler_moves_the_build_elsewhere(
    tmp_path: Path, compiler: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    compiler(
        f'case "$PWD" in {tmp_path}/cache/*) echo "fatal error: a.o: No space left on device" >&2; exit 1 ;; esac\n'
        'exec "$real" "$@"'
    )
    with caplog.at_level(logging.WARNING):
        library = compile_shared({"a.c": ANSWER}, name="a")
    assert answer_of(library) == 42
    assert library.is_relative_to(tmp_path / "temporary")
    assert "cannot be written" in caplog.text
    assert compile_shared({"a.c": ANSWER}, name="a") == library
