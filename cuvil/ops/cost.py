"""Cost rules that records share: floating-point operations and bytes moved, as dims."""

from __future__ import annotations

from collections.abc import Callable

from cuvil.ops.record import Params, Shape, ShapeResult
from cuvil.symbolic import Dim, product

#: A cost rule sees shapes only, so bytes are counted for elements of four bytes; ratios are what matters.
ELEMENT_BYTES = 4

Cost = tuple[Dim, Dim]
ShapeRule = Callable[[tuple[Shape | None, ...], Params], ShapeResult]
CostRule = Callable[[tuple[Shape | None, ...], Params], Cost]


def elements(*shapes: Shape | None) -> Dim:
    """Elements of all shapes together."""
    total: Dim = 0
    for shape in shapes:
        if shape is not None:
            total = total + product(shape)
    return total


def traffic(*shapes: Shape | None) -> Dim:
    """Bytes of reading or writing each shape once."""
    return elements(*shapes) * ELEMENT_BYTES


def per_result(shape_rule: ShapeRule, flops: int = 0) -> CostRule:
    """``flops`` per result element; the result is written once and as much is read."""

    def rule(shapes: tuple[Shape | None, ...], params: Params) -> Cost:
        results = shape_rule(shapes, params).shapes
        return elements(*results) * flops, traffic(*results) * 2

    return rule


def per_operand(shape_rule: ShapeRule, flops: int) -> CostRule:
    """``flops`` per element of the first operand; all operands and results move once."""

    def rule(shapes: tuple[Shape | None, ...], params: Params) -> Cost:
        results = shape_rule(shapes, params).shapes
        return elements(shapes[0]) * flops, traffic(*shapes, *results)

    return rule
