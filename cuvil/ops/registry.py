"""The one registry of op records, filled at import and read-only afterwards."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from cuvil.ops.record import OpRecord
from cuvil.support.errors import UnsupportedError

_RECORDS: dict[str, OpRecord] = {}


def register(record: OpRecord) -> OpRecord:
    """Add a record; a name can be registered once."""
    if record.name in _RECORDS:
        raise ValueError(f"op {record.name!r} is registered twice")
    _RECORDS[record.name] = record
    return record


def revise(record: OpRecord) -> OpRecord:
    """Put a record in the place of the registered one of its name, while the registry is being filled."""
    get(record.name)
    _RECORDS[record.name] = record
    return record


def get(name: str) -> OpRecord:
    """The record of an op.

    Raises:
        UnsupportedError: no such op; the message names the nearest ones.
    """
    found = _RECORDS.get(name)
    if found is None:
        near = ", ".join(difflib.get_close_matches(name, _RECORDS, 3)) or "none"
        raise UnsupportedError(f"no op is named {name!r}; the nearest names: {near}")
    return found


def records() -> Iterator[OpRecord]:
    """All records in order of registration."""
    return iter(tuple(_RECORDS.values()))
