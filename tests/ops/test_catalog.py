"""The catalogue of ops: its entries, and that the committed files are current."""

from __future__ import annotations

import json
from pathlib import Path

from cuvil.ops.catalog import PAGE, REGISTRY, accepted_dtypes, catalog, main, page_text, registry_text
from cuvil.ops.registry import get, records
from tests.ops.record_checks import RandomChooser

DOCS = Path(__file__).resolve().parents[2] / "docs"
HOW = "run: python -m cuvil.ops.catalog --write"


def test_committed_files_are_current() -> None:
    assert (DOCS / REGISTRY).read_text(encoding="utf-8") == registry_text(), HOW
    assert (DOCS / PAGE).read_text(encoding="utf-8") == page_text(), HOW


def test_every_record_has_an_entry_and_a_row() -> None:
    entries = {e["name"]: e for e in catalog()}
    assert set(entries) == {r.name for r in records()}
    assert json.loads(registry_text()) == list(entries.values())
    page = page_text()
    for name in entries:
        assert f"`{name}(" in page


def test_dtypes_hold_those_that_samples_use() -> None:
    for record in records():
        accepted = accepted_dtypes(record)
        for seed in range(8):
            example = record.sample(RandomChooser(seed))
            last = example.operands[1 if record.name == "where" else 0] if example.operands else None
            assert last is None or last.dtype in accepted, record.name


def test_dtypes_of_some_ops() -> None:
    assert [d.name for d in accepted_dtypes(get("sqrt"))] == [
        "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
    ]  # fmt: skip
    assert len(accepted_dtypes(get("where"))) == len(accepted_dtypes(get("take"))) == 15
    assert "bool" not in {d.name for d in accepted_dtypes(get("subtract"))}


def test_written_files(tmp_path: Path) -> None:
    assert main(["--write", "--folder", str(tmp_path)]) == 0
    assert (tmp_path / REGISTRY).read_text(encoding="utf-8") == registry_text()
    assert (tmp_path / PAGE).read_text(encoding="utf-8") == page_text()
