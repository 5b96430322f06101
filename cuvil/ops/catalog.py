"""The catalogue of ops as data and as a page, made from the records: ``python -m cuvil.ops.catalog --write``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cuvil.ops  # noqa: F401  # pyright: ignore[reportUnusedImport]  # fills the registry
from cuvil.dtypes import ALL, COMPLEX, EVERY, DType
from cuvil.ops.record import (
    Body,
    Decomposition,
    IndexBody,
    IndexMap,
    Opaque,
    OpRecord,
    Param,
    ParamValue,
    ReduceBody,
    ScalarBody,
)
from cuvil.ops.registry import records
from cuvil.support.errors import DTypeError

REGISTRY = "operator_registry.json"
PAGE = "operators.md"

_KINDS: dict[type, str] = {
    ScalarBody: "scalar",
    IndexBody: "index",
    ReduceBody: "reduce",
    IndexMap: "index map",
    Decomposition: "decomposition",
    Opaque: "kernel",
}

_HEADINGS = {
    "elementwise": "Element-wise",
    "creation": "Creation",
    "reduction": "Reduction",
    "movement": "Movement",
    "indexing": "Indexing",
    "sorting": "Sorting",
    "contraction": "Contraction",
    "composite": "Composite",
    "control": "Control",
    "complex": "Complex numbers",
    "linalg": "Linear algebra",
    "fourier": "Fourier transforms",
}


def _plain(value: ParamValue) -> Any:
    if isinstance(value, tuple):
        return [_plain(v) for v in value]  # pyright: ignore[reportUnknownVariableType]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def _param(param: Param) -> dict[str, Any]:
    return {"name": param.name, "kind": param.kind, "default": _plain(param.default), "doc": param.doc}


def _body(body: Body) -> dict[str, Any]:
    out: dict[str, Any] = {"kind": _KINDS[type(body)]}
    if isinstance(body, Opaque):
        out["kernel"] = body.kernel
        out["decomposes"] = body.decompose is not None
    if isinstance(body, ReduceBody):
        out["combine"] = body.combine
        out["allow_empty"] = body.allow_empty
    return out


def accepted_dtypes(record: OpRecord) -> tuple[DType, ...]:
    """The dtypes that all operands may share, or that a creation op makes.

    >>> from cuvil.ops.registry import get
    >>> [d.name for d in accepted_dtypes(get("nextafter"))]
    ['float32', 'float64']
    """
    count = max(1, record.min_operands + record.variadic) if record.operands else 0
    found: list[DType] = []
    for dt in EVERY:
        params = record.fill_params({})
        for p in record.params:
            if p.kind == "dtype":
                params[p.name] = dt
        if any(_takes(record, operands, params) for operands in _arrangements(record.name, dt, count)):
            found.append(dt)
    return tuple(found)


def _arrangements(name: str, dt: DType, count: int) -> tuple[tuple[DType, ...], ...]:
    """Operands of one dtype; or with a bool condition first, or integer indices behind."""
    boolean, index = ALL[0], ALL[4]
    uniform = (dt,) * count
    if count < 2:
        return (uniform,)
    conditioned = (boolean,) + (dt,) * (count - 1)
    return uniform, conditioned, (dt,) + (index,) * (count - 1), (dt, dt) + (index,) * (count - 2)


def _takes(record: OpRecord, dtypes: tuple[DType, ...], params: dict[str, ParamValue]) -> bool:
    try:
        record.dtype_rule(dtypes, params)
    except DTypeError:
        return False
    return True


def entry(record: OpRecord) -> dict[str, Any]:
    """What the catalogue says of one record, as JSON values."""
    return {
        "name": record.name,
        "category": record.category,
        "doc": record.doc,
        "operands": list(record.operands),
        "params": [_param(p) for p in record.params],
        "results": list(record.results),
        "dtypes": [d.name for d in accepted_dtypes(record)],
        "body": _body(record.body),
        "traits": sorted(record.traits),
        "tolerance": {"ulp": record.tolerance.ulp, "absolute": record.tolerance.absolute},
        "onnx": list(record.onnx),
        "torch": list(record.torch),
    }


def catalog() -> list[dict[str, Any]]:
    """All ops by name.

    >>> next(e["onnx"] for e in catalog() if e["name"] == "exp")
    ['Exp']
    """
    return [entry(r) for r in sorted(records(), key=lambda r: r.name)]


def registry_text() -> str:
    """The catalogue as JSON, one op a line."""
    lines = ",\n".join("  " + json.dumps(e, ensure_ascii=False) for e in catalog())
    return f"[\n{lines}\n]\n"


def _default(value: Any) -> str:
    return "" if value is None else f"={json.dumps(value)}" if not isinstance(value, str) else f"={value}"


def page_text() -> str:
    """The catalogue as a Markdown page, a table for each category."""
    out = [
        "# Operators",
        "",
        "Made from the op records by `python -m cuvil.ops.catalog --write`. An operand with `?` may be absent, and",
        "`*` stands for one or more. ulp is the largest error against the NumPy reference in units in the last place.",
    ]
    entries = catalog()
    for category, heading in _HEADINGS.items():
        rows = [e for e in entries if e["category"] == category]
        if not rows:
            continue
        out += ["", f"## {heading}", "", "| op | meaning | dtypes | body | ulp | ONNX |", "|---|---|---|---|---|---|"]
        for e in rows:
            arguments = [*e["operands"], *(f"{p['name']}{_default(p['default'])}" for p in e["params"])]
            kind = e["body"]["kind"]
            doc = e["doc"].replace("|", "\\|")
            out.append(
                f"| `{e['name']}({', '.join(arguments)})` | {doc} | {_dtype_text(e['dtypes'])} | {kind} "
                f"| {e['tolerance']['ulp']:g} | {', '.join(e['onnx'])} |"
            )
    return "\n".join(out) + "\n"


def _dtype_text(found: list[str]) -> str:
    """Dtypes by the short names of groups where a whole group is there."""
    groups = {
        "int": [d.name for d in ALL if d.kind == "int"],
        "uint": [d.name for d in ALL if d.kind == "uint"],
        "float": [d.name for d in ALL if d.kind == "float"],
        "complex": [d.name for d in COMPLEX],
    }
    if found == [d.name for d in EVERY]:
        return "all"
    left = list(found)
    parts: list[str] = []
    for name, members in groups.items():
        if all(m in left for m in members):
            left = [m for m in left if m not in members]
            parts.append(name)
    return ", ".join([*left, *parts])


def main(argv: Sequence[str] | None = None) -> int:
    """Print the catalogue as JSON, or write the committed files."""
    parser = argparse.ArgumentParser(prog="python -m cuvil.ops.catalog", description="The catalogue of ops.")
    parser.add_argument("--write", action="store_true", help=f"write {REGISTRY} and {PAGE}")
    parser.add_argument("--folder", type=Path, default=Path("docs"), help="where to write (default: docs)")
    options = parser.parse_args(argv)
    if not options.write:
        sys.stdout.write(registry_text())
        return 0
    folder: Path = options.folder
    (folder / REGISTRY).write_text(registry_text(), encoding="utf-8")
    (folder / PAGE).write_text(page_text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
