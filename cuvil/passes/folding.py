"""Constant folding: ops whose operands are all constants are evaluated by their references at compile time."""

from __future__ import annotations

import numpy as np
from xdsl.ir import SSAValue

from cuvil.dtypes import float32
from cuvil.ir.attributes import ConstantArray, Origin
from cuvil.ir.dialect import ConstantOp, TensorOp, aval_of
from cuvil.ir.interpreter import run_op
from cuvil.ops.record import Array, Aval, Chooser, IndexBody, IndexMap, OperandSample, ParamValue, ScalarBody
from cuvil.passes.engine import Case, Rewriter, Rule
from cuvil.support.errors import CuvilError
from cuvil.symbolic import Expr, is_static, product

#: Largest result of a folded op, unless it is no larger than the op's operands together.
MAX_BYTES = 16 << 20
#: The same for what a fused kernel computes from its indices or smaller operands: cheaper there than read from memory.
MAX_CHEAP_BYTES = 64 << 10
_KEPT_BYTES = 4096
#: Movement of a constant that others read too, above this size, would keep a second copy in memory.
MAX_COPIED_BYTES = 1 << 20


def _symbolic(value: ParamValue) -> bool:
    if isinstance(value, tuple):
        return any(_symbolic(v) for v in value)  # pyright: ignore[reportUnknownVariableType]
    return isinstance(value, Expr)


def _bytes(aval: Aval) -> int | None:
    count = product(aval.shape)
    return count * aval.dtype.itemsize if is_static(count) else None


def _worth_folding(op: TensorOp) -> bool:
    sizes = [_bytes(aval_of(r)) for r in op.results]
    if any(s is None for s in sizes) or any(_symbolic(v) for v in op.params.values()):
        return False
    size = sum(s or 0 for s in sizes)
    given = sum(_bytes(aval_of(o)) or 0 for o in op.operands)
    body = op.record.body
    if isinstance(body, IndexMap) and size > MAX_COPIED_BYTES and not all(o.has_one_use() for o in op.operands):
        return False
    if size <= MAX_CHEAP_BYTES or size <= given:
        return True
    return size <= MAX_BYTES and not isinstance(body, (ScalarBody, IndexBody, IndexMap))


def fold(F: Rewriter, op: TensorOp) -> list[SSAValue] | None:
    """An op on constants -> its results, within bounds of size"""
    owners = [o.owner for o in op.operands]
    if not all(isinstance(o, ConstantOp) for o in owners) or not _worth_folding(op):
        return None
    given = [None if a is None else F.array(a) for a in op.arguments]
    try:
        results = run_op(op, given, {})
    except CuvilError:
        return None  # the op raises when it runs, as the program says; it must not keep the program from compiling
    # Small results are kept as they are; only weights are worth computing again instead.
    large = len(results) == 1 and np.asarray(results[0]).nbytes > _KEPT_BYTES
    origin = F.origin(op.record.name, *op.arguments, **op.params) if large else None
    return [
        F.shared_constant(_frozen(np.asarray(r, dtype=aval_of(v).dtype.numpy), origin))
        for r, v in zip(results, op.results, strict=True)
    ]


def _frozen(array: Array, origin: Origin | None) -> ConstantArray:
    owned = np.array(array, copy=True, order="C")
    owned.flags.writeable = False
    return ConstantArray.derived(owned, origin)


def _example(c: Chooser) -> Case:
    shape = (c.integer(0, 4), c.integer(0, 3))
    a = np.array([[c.integer(-4, 4) / 2 for _ in range(shape[1])] for _ in range(shape[0])], np.float32).reshape(shape)
    name = c.choice(("add", "multiply", "divide", "maximum"))
    return Case(
        lambda F, x: F.mul(x, F.op("sqrt", F.op(name, F.constant(a), F.scalar(2.0, float32)))),
        (OperandSample(shape, float32),),
    )


FOLDING = Rule("constant-folding", "exact", ("*",), fold, _example, "an op on constants -> its results")
