"""Programs for the tests of passes: functions built with builder calls, and how they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region, SSAValue

from cuvil.ir.attributes import tensor_type
from cuvil.ir.builder import IRBuilder
from cuvil.ir.dialect import ConstantOp, TensorOp
from cuvil.ops.record import Aval


def function(build: Callable[..., Any], *avals: Aval) -> FuncOp:
    """A function of arguments of some avals that returns what ``build(F, *arguments)`` makes."""
    types = [tensor_type(a) for a in avals]
    block = Block(arg_types=types)
    made = build(IRBuilder(block), *block.args)
    values: Sequence[SSAValue] = [made] if isinstance(made, SSAValue) else list(made)
    block.add_op(ReturnOp(*values))
    return FuncOp("main", (types, [v.type for v in values]), Region(block))


def names(func: FuncOp) -> list[str]:
    """The record names of a function's ops in order, constants left out."""
    return [op.record.name for op in func.body.block.ops if isinstance(op, TensorOp)]


def constants(func: FuncOp) -> list[Any]:
    """The arrays of a function's constants in order."""
    return [op.value for op in func.body.block.ops if isinstance(op, ConstantOp)]
