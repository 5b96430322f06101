"""``cuvil``: looks at this machine as cuvil sees it, and at the compile cache."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import cuvil
from cuvil import cache
from cuvil.backends.c.toolchain import find_toolchain
from cuvil.support import config
from cuvil.support.errors import CuvilError, ToolchainError


def _info() -> dict[str, Any]:
    out: dict[str, Any] = {"cuvil": cuvil.__version__, "python": sys.version.split()[0]}
    try:
        toolchain = find_toolchain()
        out["compiler"] = " ".join(toolchain.command)
        out["compiler_version"] = toolchain.version
    except ToolchainError as error:
        out["compiler"] = None
        out["compiler_error"] = str(error)
    return out | {"threads": config.num_threads(), "cache": str(cache.folder())}


def _stats() -> dict[str, Any]:
    s = cache.stats()
    return {"folder": str(s.root), "entries": s.entries, "bytes": s.bytes, "limit_bytes": config.cache_limit_bytes()}


def _entries() -> list[dict[str, Any]]:
    rows = [asdict(e) for e in cache.entries()]
    return [r | {"used": r["used"].isoformat(timespec="seconds"), "path": str(r["path"])} for r in rows]


def _show(value: Any) -> str:
    if isinstance(value, list):
        rows = [f"{r['used']}  {r['kind']:8}{r['bytes']:>12,}  {r['key']}" for r in value]
        return "\n".join(rows) or "the cache is empty"
    width = max(len(k) for k in value)
    return "\n".join(f"{k.replace('_', ' ').ljust(width)}  {_text(v)}" for k, v in value.items())


def _text(value: Any) -> str:
    return f"{value:,}" if type(value) is int else "none" if value is None else str(value)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cuvil", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="versions, the C compiler, threads and folders")
    sub = commands.add_parser("cache", help="the compile cache").add_subparsers(dest="action", required=True)
    sub.add_parser("info", help="where it is and how large")
    sub.add_parser("list", help="its entries, the most recently used first")
    prune = sub.add_parser("prune", help="remove the least recently used entries")
    prune.add_argument("--max-size", metavar="SIZE", help="what the rest may take, such as 500M (default: the limit)")
    prune.add_argument("--older-than", metavar="DAYS", type=float, help="also remove what was not used for so long")
    sub.add_parser("clear", help="remove everything")
    return parser


def _run(given: argparse.Namespace) -> Any:
    if given.command == "info":
        return _info()
    if given.action == "info":
        return _stats()
    if given.action == "list":
        return _entries()
    if given.action == "clear":
        return {"removed": cache.clear()}
    age = None if given.older_than is None else timedelta(days=given.older_than)
    return {"removed": cache.prune(given.max_size, older_than=age)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 1 where it failed, with the reason on standard error."""
    given = _parser().parse_args(arguments)
    try:
        result = _run(given)
    except (CuvilError, OverflowError) as error:
        sys.stderr.write(f"cuvil: {error}\n")
        return 1
    sys.stdout.write((json.dumps(result, indent=2) if given.json else _show(result)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
