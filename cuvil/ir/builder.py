"""Builds tensor-stage IR: infers types by the records' rules and inserts ops at one point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from xdsl.dialects.builtin import FileLineColLoc, IntAttr, LocationAttr, StringAttr
from xdsl.ir import Block, Operation, SSAValue

from cuvil.ir.attributes import ConstantArray
from cuvil.ir.dialect import OP_CLASSES, ConstantOp, TensorOp, aval_of
from cuvil.ops.builder import Builder
from cuvil.ops.record import Array, Aval, Obligation, ParamValue


@lru_cache(maxsize=1 << 12)
def source_location(filename: str, line: int) -> LocationAttr:
    """The interned location of a line of user code."""
    return FileLineColLoc(StringAttr(filename), IntAttr(line), IntAttr(0))


class IRBuilder(Builder[SSAValue]):
    """Inserts ops at the end of a block or before an op.

    ``discharge(record name, obligation)`` decides on what a shape rule could not prove; without it an obligation
    is taken as already guarded (rewrites only ever re-create ops whose obligations hold).
    """

    def __init__(
        self,
        block: Block,
        before: Operation | None = None,
        location: LocationAttr | None = None,
        discharge: Callable[[str, Obligation], None] | None = None,
    ) -> None:
        self.block = block
        self.before = before
        self.location = location
        self.discharge = discharge
        self.inserted: list[Operation] = []

    def insert(self, op: Operation) -> None:
        """Insert an op as it is."""
        if self.location is not None:
            op.location = self.location
        if self.before is None:
            self.block.add_op(op)
        else:
            self.block.insert_op_before(op, self.before)
        self.inserted.append(op)

    def emit(
        self, name: str, operands: Sequence[SSAValue | None], params: dict[str, ParamValue]
    ) -> tuple[SSAValue, ...]:
        return tuple(self.emit_op(name, operands, params).results)

    def emit_op(self, name: str, operands: Sequence[SSAValue | None], params: dict[str, ParamValue]) -> TensorOp:
        """Emit one op and return it."""
        cls = OP_CLASSES[name]
        record = cls.record
        filled = record.fill_params(params) if record.params else {}
        avals, obligations = record.infer([None if o is None else aval_of(o) for o in operands], filled)
        if self.discharge is not None:
            for obligation in obligations:
                self.discharge(name, obligation)
        op = cls.build(operands, filled, avals)
        self.insert(op)
        return op

    def constant(self, value: Array) -> SSAValue:
        array = np.array(value, copy=True)
        array.flags.writeable = False
        return self.shared_constant(ConstantArray(array))

    def shared_constant(self, constant: ConstantArray) -> SSAValue:
        """A constant that shares its array (the caller keeps it unchanged)."""
        op = ConstantOp.build(constant)
        self.insert(op)
        return op.results[0]

    def aval(self, value: SSAValue) -> Aval:
        return aval_of(value)
