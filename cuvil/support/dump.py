"""Writes the stages of a program that CUVIL_DUMP asks for."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping

from cuvil.support.config import dump_dir
from cuvil.support.naming import identifier

_COUNTER = itertools.count()
_ENDINGS = {"source": "c"}


def write_stages(name: str, stages: Mapping[str, str]) -> None:
    """Write each stage to its own file in CUVIL_DUMP_DIR, or to standard error where that is unset."""
    folder = dump_dir()
    number = next(_COUNTER)
    for stage, text in stages.items():
        if folder is None:
            sys.stderr.write(f"// ==== {name}: {stage} ====\n{text}\n")
            continue
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:03d}_{identifier(name)}.{_ENDINGS.get(stage, 'mlir')}").with_suffix(
            f".{stage}.{_ENDINGS.get(stage, 'mlir')}"
        ).write_text(text)
