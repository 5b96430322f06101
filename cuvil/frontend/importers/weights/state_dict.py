"""The named tensors inside a pickled checkpoint: wrappers are looked through, other values left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from cuvil.frontend.importers.weights.torch_globals import TensorRecord
from cuvil.support.errors import WeightsError

# Under which names training loops put the state dict beside optimizer state and counters.
WRAPPERS = ("state_dict", "model_state_dict", "model", "module", "weights", "params")
_MAX_DEPTH = 32
# Shared containers make a small pickle an exponentially large tree.
_MAX_VISITS = 2**20


def named_tensors(content: object, entry: str | None, where: str) -> dict[str, TensorRecord]:
    """The tensors of a checkpoint by name.

    ``entry`` names the part to take, with dots for parts of parts. Without it a dict with one of the usual wrapper
    names stands for what the wrapper holds; otherwise everything is taken, nested names joined by dots.

    Raises:
        WeightsError: no tensors, no such entry, several wrappers, or two tensors of one name.
    """
    if entry is None:
        part = _unwrapped(content, where)
    else:
        part = content
        for name in entry.split("."):
            if not isinstance(part, dict) or name not in part:
                raise WeightsError(f"{where} has no entry {entry!r}; it has {_keys(part)}")
            part = cast("dict[Any, Any]", part)[name]
    found: dict[str, TensorRecord] = {}
    for name, record in _walk(part, where):
        if name in found:
            raise WeightsError(f"{where} has two tensors named {name!r:.120}; choose a part of it by entry=")
        found[name] = record
    if not found:
        raise WeightsError(f"{where} holds no tensors{f' under {entry!r}' if entry else ''}; it has {_keys(content)}")
    return found


def _unwrapped(content: object, where: str) -> object:
    # Two levels: some loops write {"model": {"state_dict": ...}}.
    for _ in range(2):
        if not isinstance(content, dict):
            break
        mapping = cast("dict[Any, object]", content)
        if any(isinstance(value, TensorRecord) for value in mapping.values()):
            break
        wrappers = [name for name in WRAPPERS if isinstance(mapping.get(name), dict)]
        if len(wrappers) > 1:
            raise WeightsError(f"{where} has the entries {', '.join(wrappers)}; choose one by entry=")
        if not wrappers:
            break
        content = mapping[wrappers[0]]
    return content


def _keys(content: object) -> str:
    if not isinstance(content, dict):
        return f"a {type(content).__name__}"
    names = [f"{key!r:.60}" for key in cast("dict[Any, Any]", content)]
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"the entries {', '.join(names[:8])}{more}" if names else "no entries"


def _walk(part: object, where: str) -> Iterator[tuple[str, TensorRecord]]:
    """Tensors in depth-first order of insertion."""
    pending: list[tuple[str, int, object]] = [("", 0, part)]
    visits = 0
    while pending:
        name, depth, value = pending.pop()
        visits += 1
        if isinstance(value, TensorRecord):
            yield name or "tensor", value
            continue
        if isinstance(value, dict):
            children = list(cast("dict[Any, object]", value).items())
        elif isinstance(value, list | tuple):
            children = list(enumerate(cast("list[object]", value)))
        else:
            continue
        if depth >= _MAX_DEPTH or visits + len(children) > _MAX_VISITS:
            raise WeightsError(f"{where} nests its containers too deeply or in themselves; save a plain state dict")
        visits += len(children)
        prefix = f"{name}." if name else ""
        pending.extend(
            (f"{prefix}{key}", depth + 1, child)
            for key, child in reversed(children)
            if isinstance(child, TensorRecord | dict | list | tuple)
        )
