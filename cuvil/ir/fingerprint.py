"""What decides the code of a traced function, as bytes: its ops, types, parameters and symbols, without user lines."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, SSAValue

from cuvil.dtypes import DType
from cuvil.ir.attributes import NO_PARAMS, ConstantArray, ParamsAttr, TensorType, format_aval
from cuvil.ir.control import CheckOp, ControlOp, YieldOp
from cuvil.ir.dialect import ConstantOp, TensorOp
from cuvil.ops.record import ParamValue
from cuvil.symbolic import Expr


@dataclass(frozen=True)
class Fingerprint:
    """``structure`` is equal for two functions only if they are the same but for the elements of ``constants``."""

    structure: bytes
    constants: tuple[ConstantArray, ...]


def fingerprint(func: FuncOp, relations: Iterable[str]) -> Fingerprint | None:
    """The fingerprint of a tensor-stage function under relations between its symbols.

    None for a function that holds other ops than those of the tensor stage.
    """
    numbers: dict[SSAValue, int] = {}
    types: dict[TensorType, int] = {}
    params: dict[ParamsAttr, int] = {}
    constants: dict[int, int] = {}
    arrays: list[ConstantArray] = []
    type_texts: list[str] = []
    param_texts: list[Any] = []

    def type_number(value: SSAValue) -> int:
        t = value.type
        assert isinstance(t, TensorType)
        found = types.get(t)
        if found is None:
            found = types[t] = len(types)
            type_texts.append(format_aval(t.data))
        return found

    def param_number(attr: ParamsAttr) -> int:
        found = params.get(attr)
        if found is None:
            found = params[attr] = len(params)
            param_texts.append([[name, _plain(value)] for name, value in attr.data])
        return found

    def encode(block: Block) -> list[Any] | None:
        arguments = [type_number(a) for a in block.args]
        for a in block.args:
            numbers[a] = len(numbers)
        ops: list[Any] = []
        for op in block.ops:
            if isinstance(op, ConstantOp):
                constant = op.constant
                number = constants.get(id(constant))
                if number is None:
                    number = constants[id(constant)] = len(arrays)
                    arrays.append(constant)
                ops.append(number)
            elif isinstance(op, TensorOp) and not op.regions:
                present = op.present
                ops.append(
                    [
                        op.record.name,
                        [numbers[o] for o in op.operands],
                        param_number(op.params_attr),
                        None if present is None else list(present),
                        [type_number(r) for r in op.results],
                    ]
                )
            elif isinstance(op, (ControlOp, CheckOp)):
                attr = op.properties.get("params", NO_PARAMS)
                assert isinstance(attr, ParamsAttr)
                given, results = [numbers[o] for o in op.operands], [type_number(r) for r in op.results]
                inner = [encode(region.block) for region in op.regions]  # as deep as control flow nests
                if None in inner:
                    return None
                ops.append([op.name, given, param_number(attr), inner, results])
            elif isinstance(op, (ReturnOp, YieldOp)):
                ops.append([numbers[o] for o in op.operands])
            else:
                return None
            for r in op.results:
                numbers[r] = len(numbers)
        return [arguments, ops]

    body = encode(func.body.block)
    if body is None:
        return None
    avals = [format_aval(c.aval) for c in arrays]
    whole = [*body, type_texts, param_texts, avals, list(relations)]
    return Fingerprint(json.dumps(whole, separators=(",", ":")).encode(), tuple(arrays))


def _plain(value: ParamValue) -> Any:
    """A parameter as JSON, different for different values; a dict stands for no parameter by itself."""
    if isinstance(value, tuple):
        return [_plain(v) for v in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, DType):
        return {"dtype": value.short}
    if isinstance(value, Expr):
        return {"dim": str(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"a parameter of type {type(value).__name__} has no fingerprint")


__all__ = ["Fingerprint", "fingerprint"]
