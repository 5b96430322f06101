"""What a shape rule demands of dims: nothing where it is evident, an error where it fails, else an obligation."""

from __future__ import annotations

from typing import Literal, TypeVar

from cuvil.ops.record import Obligation, Shape, ShapeResult
from cuvil.support.errors import AxisError, ShapeError
from cuvil.symbolic import Dim, dim_max

Relation = Literal["==", "<=", ">="]


class Requirements:
    """Collects the obligations of one shape rule.

    >>> need = Requirements("concat")
    >>> need.relation("==", 3, 3, "sizes agree")
    >>> need.obligations
    []
    """

    def __init__(self, op: str) -> None:
        self.op = op
        self.obligations: list[Obligation] = []

    def relation(self, relation: Relation, left: Dim, right: Dim, reason: str) -> None:
        """Demand ``left relation right``.

        Raises:
            ShapeError: both are static and it does not hold.
        """
        difference = left - right  # symbols that cancel leave a static answer
        if isinstance(difference, int):
            if {"==": difference == 0, "<=": difference <= 0, ">=": difference >= 0}[relation]:
                return
            raise ShapeError(f"{self.op}: {reason}: expected {left} {relation} {right}")
        if relation != "==" and dim_max(excess := difference if relation == ">=" else -difference, 0) == excess:
            return  # evident because symbols are never negative
        self.obligations.append(Obligation(relation, left, right, f"{self.op}: {reason}"))

    def equal(self, left: Dim, right: Dim, reason: str) -> None:
        """Demand ``left == right``."""
        self.relation("==", left, right, reason)

    def at_least(self, left: Dim, right: Dim, reason: str) -> None:
        """Demand ``left >= right``."""
        self.relation(">=", left, right, reason)

    def rank(self, shape: Shape, rank: int, what: str) -> None:
        """Demand a rank.

        Raises:
            ShapeError: the shape has another.
        """
        if len(shape) != rank:
            raise ShapeError(f"{self.op}: {what} must have rank {rank}, got shape {format_shape(shape)}")

    def axis(self, axis: int, rank: int) -> None:
        """Demand a canonical axis.

        Raises:
            AxisError: negative or not below the rank.
        """
        if not 0 <= axis < rank:
            raise AxisError(f"{self.op}: axis {axis} is outside an array of rank {rank}; expected 0 <= axis < {rank}")

    def axes(self, axes: tuple[int, ...], rank: int) -> None:
        """Demand distinct canonical axes.

        Raises:
            AxisError: one is outside the rank or stands twice.
        """
        for axis in axes:
            self.axis(axis, rank)
        if len(set(axes)) != len(axes):
            raise AxisError(f"{self.op}: an axis stands twice in {axes}; expected distinct axes")

    def result(self, *shapes: Shape) -> ShapeResult:
        """The rule's answer with the obligations so far."""
        return ShapeResult(shapes, tuple(self.obligations))


def format_shape(shape: Shape) -> str:
    """A shape as users read it.

    >>> format_shape((2, 3))
    '(2, 3)'
    """
    return "(" + ", ".join(str(d) for d in shape) + ("," if len(shape) == 1 else "") + ")"


T = TypeVar("T")


def present(value: T | None) -> T:
    """A required operand's shape or dtype; records guarantee that it is there."""
    assert value is not None, "a required operand is absent"
    return value
