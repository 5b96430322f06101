"""What a port found: missing, unexpected, mis-shaped and mistyped names, with the nearest matches."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from cuvil.support.errors import WeightsError

# difflib compares in quadratic time: nearest names are sought for this many names among this many candidates.
_NEAREST_NAMES, _NEAREST_CANDIDATES = 32, 1000
_SHOWN = 20


@dataclass(frozen=True)
class Misshaped:
    """A tensor whose shape is not that of its parameter."""

    name: str
    got: tuple[int, ...]
    expected: tuple[int, ...]

    @property
    def hint(self) -> str:
        """What would make it fit, where one step does: a rule, or nothing."""
        if sorted(self.got) == sorted(self.expected):
            return "transpose it" if len(self.got) == 2 else "permute its axes by transpose or layout"
        return "reshape it" if math.prod(self.got) == math.prod(self.expected) else ""


@dataclass(frozen=True)
class Mistyped:
    """A tensor whose dtype is not that of its parameter."""

    name: str
    got: str
    expected: str


@dataclass(frozen=True)
class Report:
    """The outcome of a port.

    Attributes:
        loaded: how many parameters were filled.
        missing: parameters that no tensor filled.
        unexpected: tensors that no parameter took, under the names that the rules left.
        misshaped: tensors of another shape than their parameter; they were not taken.
        mistyped: tensors of another dtype than their parameter; they were taken as they are.
        unused_rules: rules that matched nothing.
        nearest: for a missing name the unexpected ones that look most like it, and the other way round; sought for
            the first 32 names of either kind.
    """

    loaded: int
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    misshaped: tuple[Misshaped, ...] = ()
    mistyped: tuple[Mistyped, ...] = ()
    unused_rules: tuple[str, ...] = ()
    nearest: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    @property
    def complete(self) -> bool:
        """Whether every parameter was filled by a tensor of its shape and dtype and every tensor was taken."""
        return not (self.missing or self.unexpected or self.misshaped or self.mistyped)

    def raise_if_incomplete(self, *, allow_unexpected: bool = False) -> None:
        """Do nothing for a complete port.

        Raises:
            WeightsError: something is missing, mis-shaped, mistyped or, unless allowed, unexpected.

        >>> Report(loaded=3).raise_if_incomplete()
        """
        if self.missing or self.misshaped or self.mistyped or (self.unexpected and not allow_unexpected):
            raise WeightsError(f"the weights do not fit the model.\n{self}")

    def __str__(self) -> str:
        lines = [f"{self.loaded} parameters loaded"]
        lines += _section("missing", [f"{name}{self._near(name)}" for name in self.missing])
        lines += _section("unexpected", [f"{name}{self._near(name)}" for name in self.unexpected])
        lines += _section(
            "misshaped",
            [
                f"{item.name}: got {list(item.got)}, expected {list(item.expected)}"
                f"{f' ({item.hint})' if item.hint else ''}"
                for item in self.misshaped
            ],
        )
        lines += _section(
            "mistyped",
            [f"{item.name}: got {item.got}, expected {item.expected} (cast it)" for item in self.mistyped],
        )
        lines += _section("rules that matched nothing", self.unused_rules)
        return "\n".join(lines)

    def _near(self, name: str) -> str:
        found = self.nearest.get(name, ())
        return f" (nearest: {', '.join(found)})" if found else ""

    def to_json(self) -> str:
        """The report as a JSON object.

        >>> Report(loaded=1, missing=("w",)).to_json()
        '{"loaded": 1, "missing": ["w"], "unexpected": [], "misshaped": [], "mistyped": [], "unused_rules": [], \
"nearest": {}}'
        """
        return json.dumps(
            {
                "loaded": self.loaded,
                "missing": self.missing,
                "unexpected": self.unexpected,
                "misshaped": [
                    {"name": item.name, "got": item.got, "expected": item.expected} for item in self.misshaped
                ],
                "mistyped": [{"name": item.name, "got": item.got, "expected": item.expected} for item in self.mistyped],
                "unused_rules": self.unused_rules,
                "nearest": self.nearest,
            }
        )


def _section(title: str, entries: Sequence[str]) -> Iterable[str]:
    if not entries:
        return
    yield f"{title} ({len(entries)}):"
    yield from (f"  {entry}" for entry in entries[:_SHOWN])
    if len(entries) > _SHOWN:
        yield f"  ... and {len(entries) - _SHOWN} more"


def nearest_names(missing: Sequence[str], unexpected: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """For the first names of either sequence, up to three of the other that look most like it.

    >>> nearest_names(["layers/0/weight"], ["layer/0/weight", "bias"])
    {'layers/0/weight': ('layer/0/weight',), 'layer/0/weight': ('layers/0/weight',)}
    """
    result: dict[str, tuple[str, ...]] = {}
    for names, candidates in ((missing, unexpected), (unexpected, missing)):
        for name in names[:_NEAREST_NAMES]:
            found = difflib.get_close_matches(name, candidates[:_NEAREST_CANDIDATES], n=3)
            if found:
                result[name] = tuple(found)
    return result
