"""What every backend offers: a name, its capabilities, and programs turned into something callable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from cuvil.dtypes import DType
from cuvil.ops.record import Array


@dataclass(frozen=True)
class Capabilities:
    """What a backend can do.

    ``lanes``: elements of one vector register as generated code sees it; ``memory_spaces``: where buffers live.
    """

    name: str
    dtypes: frozenset[DType]
    lanes: int = 1
    memory_spaces: tuple[str, ...] = ("host",)
    features: frozenset[str] = frozenset()


class Runnable(Protocol):
    """A compiled program: arrays in, arrays out, with the value of every dimension symbol."""

    def run(self, inputs: Sequence[Array], env: Mapping[str, int]) -> list[Array]: ...
