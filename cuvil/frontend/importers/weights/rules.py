"""Porting rules: declarative steps that rename, reshape, split, merge and tie the tensors of a checkpoint.

A rule takes all tensors by name and gives all tensors by name. Patterns are regular expressions that must match a
whole name; templates are what ``re.Match.expand`` takes (``\\1``, ``\\g<name>``). Rules run in order, each on the names
that the one before left. Steps that only move data are views.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from cuvil import dtypes
from cuvil.frontend.importers.weights.array_views import Array
from cuvil.support.errors import WeightsError


class Rule(Protocol):
    """One step of a port: any object with this method; those of this module are frozen dataclasses."""

    def apply(self, tensors: Mapping[str, Array]) -> tuple[dict[str, Array], int]:
        """The tensors after the step, and how many the step changed."""
        ...


def rename(pattern: str, template: str) -> Rule:
    """Give each tensor whose name matches the pattern the name that the template spells.

    >>> tensors = {"encoder.layer.0.weight": np.ones(2)}
    >>> after, changed = rename(r"encoder\\.layer\\.(\\d+)\\.(.*)", r"layers/\\1/\\2").apply(tensors)
    >>> list(after), changed
    (['layers/0/weight'], 1)
    """
    return _Rename(_compiled(pattern), template)


def drop(pattern: str) -> Rule:
    """Leave out each tensor whose name matches the pattern.

    >>> drop(r".*\\.num_batches_tracked").apply({"bn.num_batches_tracked": np.ones(()), "bn.weight": np.ones(2)})
    ({'bn.weight': array([1., 1.])}, 1)
    """
    return _Drop(_compiled(pattern))


def transpose(pattern: str, axes: Sequence[int] | None = None) -> Rule:
    """Permute the axes of each matching tensor; without ``axes`` reverse them, as ``numpy.transpose`` does.

    >>> transpose("w").apply({"w": np.ones((2, 3))})[0]["w"].shape
    (3, 2)
    """
    return _Transpose(_compiled(pattern), None if axes is None else tuple(axes))


def layout(pattern: str, source: str, target: str) -> Rule:
    """Permute the axes of each matching tensor from one lettered layout to another.

    >>> layout(r"conv.*", "OIHW", "HWIO").apply({"conv": np.ones((8, 3, 5, 7))})[0]["conv"].shape
    (5, 7, 3, 8)
    """
    if len(set(source)) != len(source) or sorted(source) != sorted(target):
        raise WeightsError(f"layout {source!r} to {target!r}: expected the same letters, each once, in another order")
    return _Transpose(_compiled(pattern), tuple(source.index(letter) for letter in target))


def reshape(pattern: str, shape: Sequence[int]) -> Rule:
    """Give each matching tensor another shape of as many elements; one size may be -1.

    >>> reshape("w", (2, -1)).apply({"w": np.ones(6)})[0]["w"].shape
    (2, 3)
    """
    return _Reshape(_compiled(pattern), tuple(shape))


def cast(pattern: str, dtype: object) -> Rule:
    """Convert each matching tensor to a dtype of cuvil; from floats only to floats, and never from finite to infinite.

    >>> cast("w", "bfloat16").apply({"w": np.ones(2)})[0]["w"].dtype.name
    'bfloat16'
    """
    return _Cast(_compiled(pattern), dtypes.dtype(dtype))


def split(
    pattern: str, into: Sequence[str], axis: int = 0, *, sizes: Sequence[int] | None = None, groups: int = 1
) -> Rule:
    """Cut each matching tensor along an axis into parts, one per template: fused QKV into Q, K and V.

    Args:
        pattern: which tensors.
        into: a name template per part.
        axis: the axis to cut.
        sizes: the parts' extents along the axis; equal parts where left out.
        groups: how many times the parts follow one another along the axis. 1 for ``[Q; K; V]``; the number of heads
            where each head has its own Q, K and V next to each other. ``sizes`` are those of the whole parts.

    >>> tensors = {"qkv": np.arange(6)}
    >>> {name: part.tolist() for name, part in split("qkv", into=["q", "k", "v"]).apply(tensors)[0].items()}
    {'q': [0, 1], 'k': [2, 3], 'v': [4, 5]}
    >>> {name: part.tolist() for name, part in split("qkv", into=["q", "k", "v"], groups=2).apply(tensors)[0].items()}
    {'q': [0, 3], 'k': [1, 4], 'v': [2, 5]}
    """
    if sizes is not None and len(sizes) != len(into):
        raise WeightsError(f"split {pattern!r}: {len(sizes)} sizes for {len(into)} names; expected as many")
    if not into or groups < 1:
        raise WeightsError(f"split {pattern!r}: expected at least one name and one group")
    return _Split(_compiled(pattern), tuple(into), axis, None if sizes is None else tuple(sizes), groups)


def merge(patterns: Sequence[str], into: str, axis: int = 0, *, groups: int = 1) -> Rule:
    """Join tensors along an axis, in the order of the patterns: Q, K and V into fused QKV.

    Names that match the patterns with the same captured groups belong together; ``into`` is expanded from the first
    pattern's match. ``groups`` interleaves the parts as in :func:`split`.

    >>> tensors = {"0.q": np.zeros(2), "0.k": np.ones(2)}
    >>> merge([r"(\\d)\\.q", r"(\\d)\\.k"], r"\\1.qk").apply(tensors)[0]["0.qk"].tolist()
    [0.0, 0.0, 1.0, 1.0]
    """
    if len(patterns) < 2 or groups < 1:
        raise WeightsError(f"merge into {into!r}: expected at least two patterns and one group")
    return _Merge(tuple(_compiled(pattern) for pattern in patterns), into, axis, groups)


def tie(a: str, b: str) -> Rule:
    """Make two names, given literally, one tensor: the one that is absent becomes the other.

    >>> after, _ = tie("embedding", "head").apply({"embedding": np.ones(2)})
    >>> after["head"] is after["embedding"]
    True
    """
    return _Tie(a, b)


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise WeightsError(f"{pattern!r} is no regular expression: {error}") from error


def _expanded(match: re.Match[str], template: str) -> str:
    try:
        return match.expand(template)
    except (re.error, IndexError) as error:
        raise WeightsError(f"template {template!r} does not fit pattern {match.re.pattern!r}: {error}") from error


def _put(tensors: dict[str, Array], name: str, array: Array, rule: object) -> None:
    if name in tensors:
        raise WeightsError(f"{rule}: a second tensor would be named {name!r}; narrow the pattern or drop one first")
    tensors[name] = array


@dataclass(frozen=True)
class _Rename:
    pattern: re.Pattern[str]
    template: str

    def __str__(self) -> str:
        return f"rename({self.pattern.pattern!r}, {self.template!r})"

    def apply(self, tensors: Mapping[str, Array]) -> tuple[dict[str, Array], int]:
        result: dict[str, Array] = {}
        changed = 0
        for name, array in tensors.items():
            match = self.pattern.fullmatch(name)
            changed += match is not None
            _put(result, name if match is None else _expanded(match, self.template), array, self)
        return result, changed


@dataclass(frozen=True)
class _Drop:
    pattern: re.Pattern[str]

    def __str__(self) -> str:
        return f"drop({self.pattern.pattern!r})"

    def apply(self, tensors: Mapping[str, Array]) -> tuple[dict[str, Array], int]:
        result = {name: array for name, array in tensors.items() if not self.pattern.fullmatch(name)}
        return result, len(tensors) - len(result)


class _Each(ABC):
    """A rule that changes matching tensors one by one and keeps their names."""

    pattern: re.Pattern[str]

    @abstractmethod
    def change(self, name: str, array: Array) -> Array: ...

    def apply(self, tensors: Mapping[str, Array]) -> tuple[dict[str, Array], int]:
        matching = {name for name in tensors if self.pattern.fullmatch(name)}
        return {name: self.change(name, array) if name in matching else array for name, array in tensors.items()}, len(
            matching
        )


@dataclass(frozen=True)
class _Transpose(_Each):
    pattern: re.Pattern[str]
    axes: tuple[int, ...] | None

    def __str__(self) -> str:
        return f"transpose({self.pattern.pattern!r}, {self.axes})"

    def change(self, name: str, array: Array) -> Array:
        if self.axes is not None:
            rank = len(self.axes)
            if array.ndim != rank or sorted(axis % rank for axis in self.axes) != list(range(rank)):
                raise WeightsError(f"{self}: {name!r} has shape {list(array.shape)}; expected {rank} axes, each once")
        return np.transpose(array, self.axes)


@dataclass(frozen=True)
class _Reshape(_Each):
    pattern: re.Pattern[str]
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"reshape({self.pattern.pattern!r}, {self.shape})"

    def change(self, name: str, array: Array) -> Array:
        try:
            return array.reshape(self.shape)
        except ValueError as error:
            raise WeightsError(
                f"{self}: {name!r} has shape {list(array.shape)}, which does not fit: {error}"
            ) from error


@dataclass(frozen=True)
class _Cast(_Each):
    pattern: re.Pattern[str]
    dtype: dtypes.DType

    def __str__(self) -> str:
        return f"cast({self.pattern.pattern!r}, {self.dtype})"

    def change(self, name: str, array: Array) -> Array:
        if array.dtype == self.dtype.numpy:
            return array
        from_integer = array.dtype.kind in "biu"
        if array.dtype.kind == "c" or not (from_integer or self.dtype.is_float):
            raise WeightsError(
                f"{self}: {name!r} is of {array.dtype}, which would lose its fractions or imaginary part"
            )
        if from_integer and not self.dtype.is_float:
            if not _holds(array, self.dtype):
                raise WeightsError(f"{self}: {name!r} of {array.dtype} has values that {self.dtype} cannot hold")
            return array.astype(self.dtype.numpy)
        with np.errstate(over="ignore", invalid="ignore"):
            result = array.astype(self.dtype.numpy)
            grown = np.isinf(result) if from_integer else np.isinf(result) & np.isfinite(array)
        if bool(grown.any()):
            raise WeightsError(
                f"{self}: {int(grown.sum())} finite values of {name!r} would become infinite; "
                "choose bfloat16 or a wider dtype"
            )
        return result


def _holds(array: Array, dtype: dtypes.DType) -> bool:
    if not array.size:
        return True
    low, high = int(array.min()), int(array.max())
    if dtype.is_bool:
        return low >= 0 and high <= 1
    limits = np.iinfo(dtype.numpy)
    return limits.min <= low and high <= limits.max


@dataclass(frozen=True)
class _Split:
    pattern: re.Pattern[str]
    into: tuple[str, ...]
    axis: int
    sizes: tuple[int, ...] | None
    groups: int

    def __str__(self) -> str:
        return f"split({self.pattern.pattern!r}, into={list(self.into)})"

    def apply(self, tensors: Mapping[str, Array]) -> tuple[dict[str, Array], int]:
        result: dict[str, Array] = {}
        changed = 0
        for name, array in tensors.items():
            match = self.pattern.fullmatch(name)
            if match is None:
                _put(result, name, array, self)
                continue
            changed += 1
            for template, part in zip(self.into, self._parts(name, array), strict=True):
                _put(result, _expanded(match, template), part, self)
        return result, changed

    def _parts(self, name: str, array: Array) -> list[Array]:
        axis = _checked_axis(self.axis, array, name, self)
        extent = array.shape[axis]
        sizes = self.sizes or (extent // len(self.into),) * len(self.into)
        if sum(sizes) != extent or any(size < 0 or size % self.groups for size in sizes):
            raise WeightsError(
                f"{self}: axis {axis} of {name!r} has {extent} elements, which do not make parts of "
                f"{list(sizes)} in {self.groups} group(s)"
            )
        before, after = array.shape[:axis], array.shape[axis + 1 :]
        grouped = array.reshape(*before, self.groups, extent // self.groups, *after)
        parts: list[Array] = []
        begin = 0
        for size in sizes:
            end = begin + size // self.groups
            window = (slice(None),) * (axis + 1) + (slice(begin, end),)
            parts.append(grouped[window].reshape(*before, size, *after))
            begin = end
        return parts


@dataclass(frozen=True)
class _Merge:
    patterns: tuple[re.Pattern[str], ...]
    into: str
    axis: int
    groups: int

    def __str__(self) -> str:
        return f"merge({[pattern.pattern for pattern in self.patterns]}, into={self.into!r})"

    def apply(self, tensors: Mapping[str, Array]) -> tuple[dict[str, Array], int]:
        members: dict[tuple[str | Any, ...], dict[int, str]] = {}
        group_of: dict[str, tuple[str | Any, ...]] = {}
        for name in tensors:
            for index, pattern in enumerate(self.patterns):
                match = pattern.fullmatch(name)
                if match is None:
                    continue
                if name in group_of:
                    raise WeightsError(f"{self}: {name!r} matches two of the patterns; narrow them")
                group_of[name] = match.groups()
                found = members.setdefault(match.groups(), {})
                if index in found:
                    raise WeightsError(
                        f"{self}: {found[index]!r} and {name!r} match one pattern with the same groups; capture what "
                        "tells them apart"
                    )
                found[index] = name
        result: dict[str, Array] = {}
        done: set[tuple[str | Any, ...]] = set()
        for name, array in tensors.items():
            group = group_of.get(name)
            if group is None:
                _put(result, name, array, self)
            elif group not in done:
                done.add(group)
                merged, joined = self._joined(members[group], tensors)
                _put(result, merged, joined, self)
        return result, len(group_of)

    def _joined(self, found: dict[int, str], tensors: Mapping[str, Array]) -> tuple[str, Array]:
        for index, pattern in enumerate(self.patterns):
            if index not in found:
                raise WeightsError(
                    f"{self}: nothing matches {pattern.pattern!r} to go with {next(iter(found.values()))!r}"
                )
        names = [found[index] for index in range(len(self.patterns))]
        arrays = [tensors[name] for name in names]
        first = arrays[0]
        axis = _checked_axis(self.axis, first, names[0], self)
        before, after = first.shape[:axis], first.shape[axis + 1 :]
        for name, array in zip(names, arrays, strict=True):
            if array.ndim != first.ndim or array.shape[:axis] != before or array.shape[axis + 1 :] != after:
                raise WeightsError(
                    f"{self}: {name!r} of shape {list(array.shape)} does not fit {names[0]!r} of shape "
                    f"{list(first.shape)} beside axis {axis}"
                )
            if array.dtype != first.dtype:
                raise WeightsError(
                    f"{self}: {name!r} is of {array.dtype}, {names[0]!r} of {first.dtype}; cast one first"
                )
            if array.shape[axis] % self.groups:
                raise WeightsError(f"{self}: axis {axis} of {name!r} is no multiple of {self.groups} groups")
        grouped = [array.reshape(*before, self.groups, array.shape[axis] // self.groups, *after) for array in arrays]
        joined = np.concatenate(grouped, axis=axis + 1)
        extent = sum(array.shape[axis] for array in arrays)
        match = self.patterns[0].fullmatch(names[0])
        assert match is not None, "the first name was found by the first pattern"
        return _expanded(match, self.into), joined.reshape(*before, extent, *after)


@dataclass(frozen=True)
class _Tie:
    a: str
    b: str

    def __str__(self) -> str:
        return f"tie({self.a!r}, {self.b!r})"

    def apply(self, tensors: Mapping[str, Array]) -> tuple[dict[str, Array], int]:
        result = dict(tensors)
        first, second = result.get(self.a), result.get(self.b)
        if first is not None and second is not None:
            if first.dtype != second.dtype or first.shape != second.shape or not _same_bits(first, second):
                raise WeightsError(f"{self}: both are in the checkpoint and differ; they are not tied there")
            result[self.b] = first
            return result, 2
        if first is not None:
            result[self.b] = first
        elif second is not None:
            result[self.a] = second
        return result, int(len(result) != len(tensors))


def _same_bits(a: Array, b: Array) -> bool:
    # NaNs are compared by their bits, so that a tensor equals its copy.
    return np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes() if math.prod(a.shape) else True


def _checked_axis(axis: int, array: Array, name: str, rule: object) -> int:
    if not -array.ndim <= axis < array.ndim:
        raise WeightsError(f"{rule}: {name!r} of shape {list(array.shape)} has no axis {axis}")
    return axis % array.ndim
