"""Hypothesis strategies: dims, shapes, dtypes, arrays, samples of op records, and random programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from cuvil.dtypes import ALL, DType, dtype
from cuvil.ops.record import Array, Domain, Example, OperandSample, OpRecord, Shape
from cuvil.ops.registry import get
from cuvil.symbolic import Dim, symbol
from cuvil.testing.arrays import draw_array, special_values
from cuvil.testing.generate import draw_program
from cuvil.testing.programs import Program


class HypothesisChooser:
    """Makes a record's sample choices by drawing from hypothesis, so that they shrink."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self._draw = draw

    def integer(self, low: int, high: int) -> int:
        """An integer of a closed range."""
        return self._draw(st.integers(low, high))

    def boolean(self) -> bool:
        """False shrinks."""
        return self._draw(st.booleans())

    def choice(self, options: Sequence[Any]) -> Any:
        """One of several; the first shrinks."""
        return options[self._draw(st.integers(0, len(options) - 1))]


def dims(names: Sequence[str] = ("B", "S"), max_size: int = 8) -> st.SearchStrategy[Dim]:
    """Dimensions: integers from 0, symbols, and simple expressions over them."""
    static = st.integers(0, max_size)
    if not names:
        return static
    symbols = st.sampled_from(list(names)).map(symbol)
    scaled = st.builds(lambda s, a, b: s * a + b, symbols, st.integers(1, 3), st.integers(0, 3))
    return st.one_of(static, symbols, scaled)


def shapes(
    min_rank: int = 0, max_rank: int = 4, max_size: int = 8, names: Sequence[str] = ()
) -> st.SearchStrategy[Shape]:
    """Shapes, axes of size 0 and 1 among them; with ``names`` symbolic ones too."""
    return st.lists(dims(names, max_size), min_size=min_rank, max_size=max_rank).map(tuple)


def dtypes(options: Sequence[DType] = ALL) -> st.SearchStrategy[DType]:
    """Element types."""
    return st.sampled_from(list(options))


@st.composite
def arrays(
    draw: st.DrawFn,
    dt: str | DType | st.SearchStrategy[DType] | None = None,
    shape: Sequence[int] | st.SearchStrategy[Any] | None = None,
    domain: Domain = "any",
    size: int = 0,
) -> Array:
    """Arrays of a dtype, shape and domain; ``"any"`` holds NaN, infinities, zeros of both signs and subnormals.

    Elements come from a drawn seed, and up to four of them are drawn one by one, which shrinks well.

    Args:
        dt: a dtype, its name, or a strategy; any dtype by default.
        shape: a shape or a strategy; ranks 0 to 3 by default.
        domain: as in :class:`~cuvil.ops.record.OperandSample`.
        size: bounds indices of the domain ``"index"``.
    """
    chosen = draw(dtypes()) if dt is None else draw(dt) if isinstance(dt, st.SearchStrategy) else dtype(dt)
    where: Any = shapes(max_rank=3, max_size=6) if shape is None else shape
    extents: tuple[int, ...] = tuple(draw(where) if isinstance(where, st.SearchStrategy) else where)
    seed = draw(st.integers(0, 2**16))
    array = draw_array(np.random.default_rng(seed), OperandSample(extents, chosen, domain, size))
    if domain == "any" and array.size:
        for _ in range(draw(st.integers(0, min(4, array.size)))):
            at = draw(st.integers(0, array.size - 1))
            array.reshape(-1)[at] = draw(st.sampled_from(special_values(chosen)))
    return array


@st.composite
def examples(draw: st.DrawFn, record: OpRecord | str) -> tuple[Example, list[Array | None]]:
    """A well-typed use of an op: its sample, and arrays for the operands (None for absent ones)."""
    found = get(record) if isinstance(record, str) else record
    example = found.sample(HypothesisChooser(draw))
    seed = draw(st.integers(0, 2**16))
    rng = np.random.default_rng(seed)
    return example, [None if o is None else draw_array(rng, o) for o in example.operands]


@st.composite
def programs(draw: st.DrawFn, steps: int = 6) -> Program:
    """Random well-typed programs of about ``steps`` ops; they shrink to fewer ops and smaller sizes."""
    return draw_program(HypothesisChooser(draw), steps)


__all__ = ["HypothesisChooser", "arrays", "dims", "dtypes", "examples", "programs", "shapes"]
