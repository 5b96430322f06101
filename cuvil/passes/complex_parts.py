"""Takes complex values apart into real and imaginary parts, so that everything behind this pass is real.

An op's rule (``cuvil.ops.complex``) says what becomes of it. Parts are read from memory where complex numbers enter
(arguments, results of host calls) and joined where they leave. An op without a rule for parts runs its NumPy reference
from the compiled program, which the log says once for each op.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import numpy as np
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue

from cuvil.ir.builder import IRBuilder
from cuvil.ir.control import blocks_of
from cuvil.ir.dialect import ConstantOp, TensorOp, aval_of
from cuvil.ops.complex import Pair
from cuvil.ops.record import Decomposition, Opaque, Shape
from cuvil.support.errors import UnsupportedError

log = logging.getLogger("cuvil.passes")

Parts = Pair[SSAValue]


@cache
def say_once(name: str) -> None:
    """Log that an op has no complex kernel, the first time that one is met."""
    log.warning("%s of complex numbers has no kernel: compiled programs call NumPy for it", name)


def split_complex(func: FuncOp) -> int:
    """Rewrite a function so that only host calls and what enters and leaves its blocks is complex.

    Returns how many ops were rewritten.
    """
    count = 0
    for block in blocks_of(func):
        values = (*block.args, *(r for op in block.ops for r in op.results))
        if any(aval_of(v).dtype.is_complex for v in values):
            count += _Splitting(block).run()
    return count


class _Splitting:
    """One run over one block."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.parts: dict[SSAValue, Parts] = {}
        self.joined: dict[SSAValue, SSAValue] = {}
        self.dead: dict[Operation, None] = {}  # in program order
        self.count = 0

    def run(self) -> int:
        """Rewrite the ops in order."""
        work: list[Operation] = list(reversed(list(self.block.ops)))
        while work:
            op = work.pop()
            if not any(aval_of(v).dtype.is_complex for v in (*op.operands, *op.results)):
                continue
            if isinstance(op, ConstantOp):
                continue  # its parts are constants, made where they are read
            self.count += 1
            builder = IRBuilder(self.block, before=op, location=op.location)
            if isinstance(op, TensorOp):
                work.extend(reversed(self._rewrite(builder, op)))
            else:  # what leaves the block, or enters the blocks of an op with regions
                for k, value in enumerate(op.operands):
                    op.operands[k] = self._whole(builder, value)
        for op in reversed(list(self.dead)):
            op.detach()
            op.erase()
        return self.count

    def _rewrite(self, builder: IRBuilder, op: TensorOp) -> list[Operation]:
        """Rewrite one op; what it was expanded to, which is still to be rewritten."""
        record = op.record
        rule = record.complex_rule
        if rule is not None and rule.parts is not None:
            operands: list[Any] = [
                None if a is None else self._pair(builder, a) if aval_of(a).dtype.is_complex else a
                for a in op.arguments
            ]
            self._replace(builder, op, rule.parts(builder, *operands, **op.params))
            return []
        expand = record.body.build if isinstance(record.body, Decomposition) else None
        if isinstance(record.body, Opaque) and record.body.kernel in ("host", "view"):
            for k, value in enumerate(op.operands):
                if aval_of(value).dtype.is_complex:
                    op.operands[k] = self._whole(builder, value)
            return []
        if expand is not None:
            made = expand(builder, *op.arguments, **op.params)
            for old, new in zip(op.results, made if isinstance(made, (tuple, list)) else (made,), strict=True):
                old.replace_all_uses_with(new)
            self.dead[op] = None
            return list(builder.inserted)
        if rule is None or len(op.results) != 1 or None in op.arguments:
            raise UnsupportedError(f"{record.name} does not take complex arrays")
        say_once(record.name)
        names, values = tuple(op.params), tuple(op.params.values())
        whole = [self._whole(builder, v) if aval_of(v).dtype.is_complex else v for v in op.operands]
        out = builder.op("host_call", *whole, op=record.name, names=names, values=values)
        op.results[0].replace_all_uses_with(out)
        self.dead[op] = None
        return []

    def _replace(self, builder: IRBuilder, op: TensorOp, made: Any) -> None:
        results: tuple[Any, ...] = made if type(made) is tuple else (made,)
        for old, new in zip(op.results, results, strict=True):
            shape = aval_of(old).shape
            if isinstance(new, Pair):
                self.parts[old] = Pair(_shaped(builder, new.re, shape), _shaped(builder, new.im, shape))
            else:
                old.replace_all_uses_with(_shaped(builder, new, shape))
        self.dead[op] = None

    def _pair(self, builder: IRBuilder, value: SSAValue) -> Parts:
        """The parts of a complex value, read from memory where it is whole."""
        found = self.parts.get(value)
        if found is None:
            owner = value.owner
            if isinstance(owner, ConstantOp):
                array = owner.value
                found = Pair(builder.constant(np.real(array)), builder.constant(np.imag(array)))
            else:
                memory = builder.op("as_parts", value)
                found = Pair(_part(builder, memory, 0), _part(builder, memory, 1))
            self.parts[value] = found
        return found

    def _whole(self, builder: IRBuilder, value: SSAValue) -> SSAValue:
        """A complex value in memory."""
        if not aval_of(value).dtype.is_complex or value.owner not in self.dead:
            return value
        if value not in self.joined:
            parts = self.parts[value]
            self.joined[value] = builder.op("complex", parts.re, parts.im)
        return self.joined[value]


def _part(builder: IRBuilder, memory: SSAValue, k: int) -> SSAValue:
    """Every other element of a complex value's memory."""
    *shape, _ = aval_of(memory).shape
    starts, steps = (*(0 for _ in shape), k), (1,) * (len(shape) + 1)
    return builder.reshape(builder.op("slice", memory, starts=starts, sizes=(*shape, 1), steps=steps), shape)


def _shaped(builder: IRBuilder, value: SSAValue, shape: Shape) -> SSAValue:
    return builder.broadcast_to(value, shape)
