"""Python slices of static and symbolic axes as first index, size and step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cuvil.frontend.dispatch import apply
from cuvil.frontend.namespace.arguments import AnyArray, as_int, as_size, evidently_nonneg, shape_of
from cuvil.frontend.source import at_user_line
from cuvil.frontend.tracer import Tracer
from cuvil.ops.record import Shape
from cuvil.support.errors import ArgumentError, TracingError
from cuvil.symbolic import Dim, Expr, ceildiv, dim_max, dim_min


@dataclass(frozen=True)
class Span:
    """What a slice takes of an axis: ``size`` elements from index ``start``, ``step`` apart."""

    start: Dim
    size: Dim
    step: int


def span_of(s: slice, d: Dim) -> Span:
    """The span of a Python slice of an axis of size ``d``, right for every size that ``d`` can have.

    Raises:
        TracingError: a traced bound.
        ArgumentError: a step of 0.

    >>> span_of(slice(-2, None), 5)
    Span(start=3, size=2, step=1)
    >>> from cuvil.symbolic import symbol
    >>> span_of(slice(None, None, -1), symbol("N"))
    Span(start=Expr('N - 1'), size=Expr('N'), step=-1)
    """
    for bound in (s.start, s.stop, s.step):
        if isinstance(bound, Tracer):
            raise TracingError(
                f"a slice bound is the traced array {bound!r}, so the size of the result is not known{at_user_line()}."
                " Take a window of known size instead: cuvil.numpy.take(x, start + cuvil.numpy.arange(n), axis), or"
                " pass the bound as a static argument."
            )
    step = 1 if s.step is None else as_int(s.step, "the step of a slice")
    if step == 0:
        raise ArgumentError(f"the step of a slice is 0{at_user_line()}; expected a positive or negative step")
    start = None if s.start is None else as_size(s.start, "a slice bound")
    stop = None if s.stop is None else as_size(s.stop, "a slice bound")
    if isinstance(d, int) and not isinstance(start, Expr) and not isinstance(stop, Expr):
        first, end, step = slice(start, stop, step).indices(d)
        size = len(range(first, end, step))
        # An empty slice may begin past the end; any place inside is as good.
        return Span(first if size else 0 if step > 0 else d - 1, size, step)
    # Sizes come from bounds that are clamped on one side only: the other side makes them negative, which is 0 too.
    if step > 0:
        first = 0 if start is None else _from_start(start, d, 0, (1, 2))
        end = d if stop is None else _to_end(stop, d, d, (1, 2))
        size = _ceil_positive(end - first, step)
        if stop is None and start is not None and evidently_nonneg(-start - 1):
            size = ceildiv(dim_min(-start, d), step)
        return Span(dim_min(first, d), size, step)
    first = d - 1 if start is None else _to_end(start, d, d - 1, (1,))
    end = -1 if stop is None else _from_start(stop, d, -1, (1,))
    return Span(dim_max(first, -1), _ceil_positive(first - end, -step), step)


def _ceil_positive(distance: Dim, step: int) -> Dim:
    return dim_max(ceildiv(distance, step), 0)


def _from_start(bound: Dim, d: Dim, low: Dim, plain: tuple[int, ...]) -> Dim:
    """A bound counted from the start, not below ``low`` where it counts from the end."""
    if evidently_nonneg(bound):
        return bound
    if evidently_nonneg(-bound - 1):
        return dim_max(bound + d, low)
    return dim_max(_counted(bound, d, plain), low)


def _to_end(bound: Dim, d: Dim, high: Dim, plain: tuple[int, ...]) -> Dim:
    """A bound counted from the start, not above ``high`` where it is not negative."""
    if evidently_nonneg(bound):
        return dim_min(bound, high)
    if evidently_nonneg(-bound - 1):
        return bound + d
    return dim_min(_counted(bound, d, plain), high)


def _counted(bound: Dim, d: Dim, plain: tuple[int, ...]) -> Dim:
    """A bound whose sign depends on the sizes: d is added exactly where it is negative.

    ``d - 1`` and ``d - 2`` are negative for d < 2 only. Where adding d then changes nothing of what a slice takes
    (``plain`` lists the distances from d for which that is so), they stay as they are.
    """
    if d - bound in plain:
        return bound
    return bound + d * dim_min(dim_max(-bound, 0), 1)


def sliced(x: Any, spans: Sequence[Span]) -> AnyArray:
    """One span along each axis; the operand itself where all of it is taken."""
    source = shape_of(x)
    if all(is_whole(s, d) for s, d in zip(spans, source, strict=True)):
        return x
    return apply(
        "slice",
        x,
        starts=tuple(s.start for s in spans),
        sizes=tuple(s.size for s in spans),
        steps=tuple(s.step for s in spans),
    )


def is_whole(span: Span, d: Dim) -> bool:
    """Whether a span is a whole axis in its own order."""
    return span.step == 1 and span.start == 0 and span.size == d


def slice_axis(x: Any, axis: int, span: Span) -> AnyArray:
    """A span along one axis, everything along the others."""
    return sliced(x, [span if a == axis else Span(0, d, 1) for a, d in enumerate(shape_of(x))])


def reshaped(x: Any, target: Shape) -> AnyArray:
    """An operand under another shape of as many elements; as it is where that is its shape."""
    return x if shape_of(x) == target else apply("reshape", x, shape=target)
