"""Strict JSON objects: UTF-8, no duplicate keys, no nesting that exhausts the stack."""

from __future__ import annotations

import json
from typing import cast

from cuvil.support.errors import WeightsError


class _KeyFault(ValueError):
    """A key that is refused; a ValueError, as the parser's own faults are."""


def is_text(value: object) -> bool:
    """Whether the value is a string that UTF-8 can hold (no lone surrogates).

    >>> is_text("w"), is_text("\\ud800"), is_text(3)
    (True, False, False)
    """
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def parse_object(text: bytes, what: str) -> dict[str, object]:
    """The JSON object that the bytes spell.

    Raises:
        WeightsError: not UTF-8, not JSON, not an object, a key twice, or a key that is no valid Unicode.

    >>> parse_object(b'{"a": [1]}', "the index")
    {'a': [1]}
    """
    if not text.startswith(b"{"):
        raise WeightsError(f"{what} is not a JSON object; expected it to start with '{{', got {text[:8]!r}")
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_pairs)
    except UnicodeDecodeError as error:
        raise WeightsError(f"{what} is not UTF-8: {error.reason} at byte {error.start}") from error
    except RecursionError as error:
        raise WeightsError(f"{what} is nested too deeply") from error
    except ValueError as error:
        raise WeightsError(f"{what} is not valid JSON: {error!s:.200}") from error
    return cast("dict[str, object]", value)


def _pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in pairs:
        if key in result:
            raise _KeyFault(f"key {key!r:.80} is given twice")
        if not is_text(key):
            raise _KeyFault(f"key {key!r:.80} is no valid Unicode")
        result[key] = value
    return result
