"""cuvil-opt: passes on text, golden results and one-line errors."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from sample_programs import SAMPLES, compiled

from cuvil.cli.opt import PASSES, main


def _run(capsys: Any, monkeypatch: Any, text: str, *argv: str) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    status = main(list(argv))
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("stage", ["tensor", "optimised", "fused", "kernel"])
def test_stages_agree_with_the_compiler(name: str, stage: str, capsys: Any, monkeypatch: Any) -> None:
    """The passes on text give what compile_program gives, so a dumped program can be taken up from its text."""
    program = compiled(SAMPLES[name], backend="null")
    status, out, err = _run(capsys, monkeypatch, program.as_text("tensor"), "--stage", stage, "--verify")
    assert (status, err) == (0, "")
    assert out == program.as_text(stage)


@pytest.mark.parametrize("name", SAMPLES)
def test_source(name: str, capsys: Any, monkeypatch: Any, golden: Any) -> None:
    text = compiled(SAMPLES[name], backend="null").as_text("tensor")
    status, out, err = _run(capsys, monkeypatch, text, "--stage", "source")
    assert (status, err) == (0, "")
    golden(out)


def test_single_passes(capsys: Any, monkeypatch: Any) -> None:
    text = """builtin.module {
  func.func @main(%x: !cuvil.tensor<[B] x f32>) -> !cuvil.tensor<[B] x f32> {
    %0 = cuvil.exp %x : !cuvil.tensor<[B] x f32>
    %1 = cuvil.exp %x : !cuvil.tensor<[B] x f32>
    %2 = cuvil.sin %x : !cuvil.tensor<[B] x f32>
    %3 = cuvil.add %0, %1 : !cuvil.tensor<[B] x f32>
    func.return %3 : !cuvil.tensor<[B] x f32>
  }
}
"""
    status, out, _ = _run(capsys, monkeypatch, text, "--passes=cse")
    assert status == 0 and out.count("cuvil.exp") == 1 and "cuvil.sin" in out
    status, out, _ = _run(capsys, monkeypatch, text, "--passes=dce")
    assert status == 0 and out.count("cuvil.exp") == 2 and "cuvil.sin" not in out
    status, out, _ = _run(capsys, monkeypatch, text, "--passes", "cse, dce,fuse", "--verify")
    assert status == 0 and out.count("cuvil.fusion") == 1
    status, out, _ = _run(capsys, monkeypatch, text, "-")
    assert (status, out) == (0, text)


def test_files_and_locations(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "program.mlir"
    file.write_text(
        "builtin.module { func.func @main(%x: !cuvil.tensor<[B] x f32>) -> !cuvil.tensor<[B] x f32> {"
        ' %0 = cuvil.exp %x : !cuvil.tensor<[B] x f32> loc("model.py":7:0)'
        " func.return %0 : !cuvil.tensor<[B] x f32> } }"
    )
    assert main([str(file), "--locations"]) == 0
    assert 'loc("model.py":7:0)' in capsys.readouterr().out
    assert main([str(file)]) == 0
    assert "model.py" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv, message",
    [
        (["--passes=frobnicate"], f"no pass is named 'frobnicate'; expected one of {', '.join(PASSES)}"),
        (["--passes=lower"], "the pass 'lower' takes a module of the fused stage, this one is of the tensor stage"),
        (["--passes=fuse,fuse"], "takes a module of the tensor stage, this one is of the fused stage"),
        (["/nowhere/at/all.mlir"], "cannot read /nowhere/at/all.mlir: No such file or directory"),
    ],
)
def test_errors_are_one_line(argv: list[str], message: str, capsys: Any, monkeypatch: Any) -> None:
    text = compiled(SAMPLES["linear_gelu"], backend="null").as_text("tensor")
    status, out, err = _run(capsys, monkeypatch, text, *argv)
    assert (status, out) == (1, "")
    assert err.startswith("cuvil-opt: error: ") and err.count("\n") == 1 and message in err


@pytest.mark.parametrize("text", ["", "junk", "builtin.module {", 'builtin.module { "a }', "\x00"])
def test_text_that_is_no_program(text: str, capsys: Any, monkeypatch: Any) -> None:
    status, out, err = _run(capsys, monkeypatch, text, "--stage=kernel")
    assert (status, out) == (1, "") and err.startswith("cuvil-opt: error: ") and err.count("\n") == 1


def test_a_file_that_is_not_text(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "program.mlir"
    file.write_bytes(b"\xff\xfe\x00")
    assert main([str(file)]) == 1
    assert capsys.readouterr().err == f"cuvil-opt: error: {file} is not text\n"


def test_stage_and_passes_exclude_each_other(capsys: Any) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--stage=kernel", "--passes=cse"])
    assert stop.value.code == 2
    assert "one of --stage and --passes" in capsys.readouterr().err
