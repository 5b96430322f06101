"""Buckets: sizes are padded up to a few, so that each compiled version serves a range of them."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np

from cuvil.ops.record import Array, Shape
from cuvil.support.errors import ArgumentError, ArgumentTypeError, ShapeError
from cuvil.symbolic import evaluate


@dataclass(frozen=True, init=False)
class Buckets:
    """A shape strategy: some sizes are padded up to the next of a list, and each padded size is compiled as a constant.

    Most functions need no buckets: with a symbol for a size, one compiled version serves every size at full speed.
    Buckets are for functions whose Python code needs the size (a loop over an axis) and for code that gains from
    knowing it.

    The function must not let what lies beyond the true sizes reach the results: it takes a mask or the lengths as
    arguments, or works along other axes only. Results are cut back to the shapes that the true sizes give.

    Args:
        sizes: sizes by symbol of the ``input_spec``, e.g. ``{"S": (32, 64, 128)}``. A size above the last is an error.
        fill: what padding holds: one number, or numbers by argument name (0 where not named).
        check: the first padded call of each compiled version is computed once more without padding, by the reference,
            and a result that padding changes is an error. It is a check of that call's values, not a proof.

    Raises:
        ArgumentError: no sizes, or some that do not increase.

    >>> import numpy as np
    >>> import cuvil, cuvil.numpy as cnp
    >>> total = cuvil.jit(
    ...     lambda x: sum(x[:, k] for k in range(x.shape[1])),
    ...     input_spec=[("x", "float32", ("B", "S"))],
    ...     shapes=cuvil.Buckets({"S": (4, 8)}),
    ... )
    >>> [total(np.ones((2, n), np.float32)).tolist() for n in (3, 4, 5, 7)]
    [[3.0, 3.0], [4.0, 4.0], [5.0, 5.0], [7.0, 7.0]]
    >>> len(total.variants())
    2
    """

    sizes: Mapping[str, tuple[int, ...]]
    fill: Any
    check: bool

    def __init__(self, sizes: Mapping[str, Sequence[int]], *, fill: Any = 0, check: bool = True) -> None:
        if not isinstance(sizes, Mapping) or not sizes:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(f"Buckets takes sizes by symbol, such as {{'S': (32, 64, 128)}}; got {sizes!r}")
        read: dict[str, tuple[int, ...]] = {}
        for name, given in sizes.items():
            try:
                steps = tuple(operator.index(n) for n in given)
            except TypeError:
                steps = ()
            if not steps or steps[0] < 0 or any(a >= b for a, b in pairwise(steps)):
                raise ArgumentError(
                    f"the buckets of {name!r} must be whole numbers that increase, such as (32, 64, 128); got {given!r}"
                )
            read[str(name)] = steps
        object.__setattr__(self, "sizes", MappingProxyType(read))
        object.__setattr__(self, "fill", dict(fill) if isinstance(fill, Mapping) else fill)
        object.__setattr__(self, "check", bool(check))

    def bucket(self, env: Mapping[str, int]) -> dict[str, int]:
        """The padded sizes by symbol for true sizes.

        Raises:
            ShapeError: a size above its largest bucket.
        """
        out: dict[str, int] = {}
        for name, steps in self.sizes.items():
            n = env[name]
            found = next((s for s in steps if s >= n), None)
            if found is None:
                raise ShapeError(
                    f"{name} = {n} is above the largest bucket, {steps[-1]}; add a bucket for it, or split the input"
                )
            out[name] = found
        return out

    def check_names(self, symbols: frozenset[str], arguments: Sequence[str]) -> None:
        """Tell buckets and fills that name what the ``input_spec`` does not have.

        Raises:
            ArgumentError: such a name.
        """
        unknown = sorted(set(self.sizes) - symbols)
        if unknown:
            raise ArgumentError(
                f"Buckets has sizes for {', '.join(unknown)}, which no size of input_spec is; those have"
                f" {', '.join(sorted(symbols)) or 'no symbols'}"
            )
        if isinstance(self.fill, dict):
            fills = sorted(set(map(str, self.fill)) - set(arguments))
            if fills:
                raise ArgumentError(
                    f"Buckets has a fill for {', '.join(fills)}, which is no argument; those are {', '.join(arguments)}"
                )

    def pad(self, array: Array, shape: Sequence[int], argument: str) -> Array:
        """An array made larger at the end of its axes.

        Raises:
            ArgumentTypeError: the fill is no value of the array's dtype.
        """
        if array.shape == tuple(shape):
            return array
        fill = self.fill.get(argument, 0) if isinstance(self.fill, dict) else self.fill
        try:
            out = np.full(shape, fill, array.dtype)
        except (TypeError, ValueError, OverflowError) as error:
            raise ArgumentTypeError(
                f"{argument} ({array.dtype}) cannot be padded with {fill!r}: {error}; give Buckets a fill of its dtype:"
                f" fill={{{argument!r}: ...}}"
            ) from error
        out[tuple(slice(0, n) for n in array.shape)] = array
        return out


def padded_shapes(spec: Sequence[Shape], env: Mapping[str, int], bucket: Mapping[str, int]) -> list[tuple[int, ...]]:
    """The shapes of arguments whose true sizes are ``env`` once the bucketed sizes are padded.

    Raises:
        ShapeError: an axis that would shrink (its size falls where the symbol grows).
    """
    larger = {**env, **bucket}
    out: list[tuple[int, ...]] = []
    for shape in spec:
        sizes = tuple(evaluate(d, larger) for d in shape)
        for d, n in zip(shape, sizes, strict=True):
            if n < evaluate(d, env):
                raise ShapeError(f"the axis of size {d} shrinks where {', '.join(bucket)} is padded; it has no bucket")
        out.append(sizes)
    return out


def cut(array: Array, shape: Sequence[int]) -> Array:
    """The leading part of an array, contiguous in memory."""
    if array.shape == tuple(shape):
        return array
    return np.ascontiguousarray(array[tuple(slice(0, n) for n in shape)])


__all__ = ["Buckets", "cut", "padded_shapes"]
