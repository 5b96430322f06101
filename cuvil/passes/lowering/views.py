"""Strided views: where the elements of a value that only movement ops lead to lie in its buffer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from xdsl.ir import SSAValue

from cuvil.ir.dialect import TensorOp, aval_of
from cuvil.passes.lowering.region import flat_offset, is_movement, movement_pieces
from cuvil.symbolic import Dim, Scope, linear_coefficient, symbol


@dataclass(frozen=True)
class StridedView:
    """``base[offset + sum(index[k] * strides[k])]`` is the element at ``index``."""

    base: SSAValue
    offset: Dim
    strides: tuple[Dim, ...]


def strided_view(
    value: SSAValue, scope: Scope, stop: Callable[[SSAValue], bool] = lambda _: False
) -> StridedView | None:
    """The view that a chain of movement ops makes of the value at its start; None where it is not strided.

    A value that no movement op makes, or of which ``stop`` holds, is a contiguous view of itself.
    """
    shape = aval_of(value).shape
    names = [f"_v{k}" for k in range(len(shape))]
    local = scope.copy()
    index: tuple[Dim, ...] = tuple(0 if n == 1 else local.loop(name, n) for name, n in zip(names, shape, strict=True))
    while isinstance(owner := value.owner, TensorOp) and is_movement(owner.record) and not stop(value):
        pieces = movement_pieces(owner, index, local)
        if len(pieces) != 1 or pieces[0].when:
            return None
        value, index = owner.operands[pieces[0].operand], pieces[0].index
    offset = local.simplify(flat_offset(index, aval_of(value).shape))
    strides: list[Dim] = []
    for name, n in zip(names, shape, strict=True):
        if n == 1:
            strides.append(0)
            continue
        found = linear_coefficient(offset, name)
        if found is None:
            return None
        strides.append(found[0])
        offset = found[1]
    return StridedView(value, offset, tuple(strides))


__all__ = ["StridedView", "strided_view", "symbol"]
