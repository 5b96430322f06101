"""Lowers a fusion that only puts axes in another order to one call of a blocked copy.

A loop over the result reads one element from each cache line of the source, and comes back to the line when it has left
the cache.
"""

from __future__ import annotations

from cuvil.ir.dialect import FusionOp, TensorOp, YieldOp, aval_of
from cuvil.ir.kernel import KernelFunc, TemplateOp
from cuvil.passes.lowering.loops import kernel_dims
from cuvil.passes.lowering.region import is_movement
from cuvil.passes.lowering.views import strided_view
from cuvil.symbolic import Dim, Scope, is_static

#: Dimensions below which a loop does as well.
_SMALLEST = 4
_MOST_AXES = 16


def lower_permutation(fusion: FusionOp, scope: Scope) -> KernelFunc | None:
    """The kernel, or None where a fusion does anything else or keeps the contiguous axis last."""
    *ops, last = fusion.body.ops
    assert isinstance(last, YieldOp)
    if len(fusion.operands) != 1 or len(last.operands) != 1:
        return None
    if not all(isinstance(op, TensorOp) and is_movement(op.record) for op in ops):
        return None
    (result,) = last.operands
    aval = aval_of(result)
    view = strided_view(result, scope)
    if view is None or view.base is not fusion.body.args[0] or aval.dtype.itemsize not in (1, 2, 4, 8):
        return None
    axes: list[tuple[Dim, Dim]] = []
    for n, stride in zip(aval.shape, view.strides, strict=True):
        if n == 1:
            continue
        if axes and axes[-1][1] == stride * n:
            axes[-1] = (axes[-1][0] * n, stride)
        else:
            axes.append((n, stride))
    units = [k for k, (_, stride) in enumerate(axes) if stride == 1]
    if not units or len(axes) > _MOST_AXES or axes[-1][1] in (0, 1):
        return None
    (axis,) = units[:1]
    if any(is_static(n) and n < _SMALLEST for n in (axes[axis][0], axes[-1][0])):
        return None
    func = KernelFunc.build("kernel", [aval_of(fusion.operands[0]), aval])
    sizes, strides = zip(*axes, strict=True)
    params = {"sizes": sizes, "strides": strides, "offset": view.offset, "axis": axis, "itemsize": aval.dtype.itemsize}
    func.body.add_op(TemplateOp.build("permute", list(func.body.args), params))
    func.set_params(name="kernel", dims=kernel_dims(func, set()), outputs=(1,), reason=fusion.params["reason"])
    return func
