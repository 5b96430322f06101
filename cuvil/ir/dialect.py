"""The ``cuvil`` dialect: op classes made from op records, plus constants and fusion regions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import Builtin
from xdsl.dialects.func import Func
from xdsl.ir import Block, Dialect, Operation, OpTraits, Region, SSAValue
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

import cuvil.ops  # noqa: F401 - fills the registry  # pyright: ignore[reportUnusedImport]
from cuvil.ir.attributes import (
    NO_PARAMS,
    ConstantArray,
    ConstantAttr,
    ConstraintsAttr,
    ParamsAttr,
    TensorType,
    format_constant,
    format_param,
    format_params,
    params_attr,
    parse_constant,
    parse_params,
    scan_balanced,
    tensor_type,
)
from cuvil.ir.control import CheckOp, LoopOp, SwitchOp, WhileOp, YieldOp
from cuvil.ir.kernel import KERNEL
from cuvil.ir.operands import (
    aval_of,
    parse_operands,
    parse_result_types,
    print_operands,
    print_result_types,
    type_of,
)
from cuvil.ops.record import Array, Aval, OpRecord, ParamValue
from cuvil.ops.registry import records
from cuvil.support.errors import CuvilError, IRError


class TensorOp(Operation):
    """Base of the ops made from records: operands, static parameters, one type per result."""

    record: ClassVar[OpRecord]
    traits: ClassVar[OpTraits] = OpTraits(lambda: ())

    @property
    def params_attr(self) -> ParamsAttr:
        found = self.properties.get("params", NO_PARAMS)
        assert isinstance(found, ParamsAttr)
        return found

    @property
    def params(self) -> dict[str, ParamValue]:
        """Static parameters by name."""
        return self.params_attr.values

    @property
    def present(self) -> tuple[bool, ...] | None:
        """Which of the record's operands are given, or None when all that can be are."""
        found = self.properties.get("present")
        if found is None:
            return None
        assert isinstance(found, ParamsAttr)
        return found.values["present"]

    @property
    def arguments(self) -> tuple[SSAValue | None, ...]:
        """Operands in the record's order, None for absent optional ones."""
        present = self.present
        if present is None:
            return tuple(self.operands)
        it = iter(self.operands)
        return tuple(next(it) if p else None for p in present)

    @classmethod
    def build(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls, operands: Sequence[SSAValue | None], params: dict[str, ParamValue], results: Sequence[Aval]
    ) -> TensorOp:
        """An op with result types already inferred (see :class:`~cuvil.ir.builder.IRBuilder` for the usual way)."""
        given = [o for o in operands if o is not None]
        properties: dict[str, ParamsAttr] = {}
        if params:
            properties["params"] = params_attr(params)
        if len(given) != len(operands):
            properties["present"] = params_attr({"present": tuple(o is not None for o in operands)})
        return cls.create(operands=given, result_types=[tensor_type(a) for a in results], properties=properties)

    def verify_(self) -> None:
        try:
            avals = [None if a is None else aval_of(a) for a in self.arguments]
            if len(avals) < self.record.min_operands:
                raise IRError(f"{self.name} takes at least {self.record.min_operands} operands, got {len(avals)}")
            want, _ = self.record.infer(avals, self.record.fill_params(self.params))
        except CuvilError as error:
            raise VerifyException(f"{self.name}: {error}") from error
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            # Rules take parameters of their kinds; text may hold anything.
            raise VerifyException(f"{self.name}: its rules do not take these operands: {error}") from error
        got = tuple(aval_of(r) for r in self.results)
        if want != got:
            raise VerifyException(f"{self.name}: result types are {got}, its rules give {want}")

    def print(self, printer: Printer) -> None:
        print_operands(printer, self.arguments)
        if self.params_attr.data:
            printer.print_string(" {" + format_params(self.params_attr.data) + "}")
        print_result_types(printer, self)

    @classmethod
    def parse(cls, parser: Parser) -> TensorOp:
        operands = parse_operands(parser)
        params: dict[str, ParamValue] = {}
        if parser.parse_optional_punctuation("{") is not None:
            params = dict(parse_params(scan_balanced(parser, "}"), cls.record.params))
        return cls.build(operands, params, parse_result_types(parser))


class ConstantOp(Operation):
    """``cuvil.constant <[2] f32 [1.0, 2.0]> : !cuvil.tensor<[2] x f32>``"""

    name = "cuvil.constant"
    traits: ClassVar[OpTraits] = OpTraits(lambda: ())

    @property
    def value(self) -> Array:
        return self.constant.array

    @property
    def constant(self) -> ConstantArray:
        attr = self.properties["value"]
        assert isinstance(attr, ConstantAttr)
        return attr.data

    @classmethod
    def build(cls, constant: ConstantArray) -> ConstantOp:  # pyright: ignore[reportIncompatibleMethodOverride]
        return cls.create(result_types=[tensor_type(constant.aval)], properties={"value": ConstantAttr(constant)})

    def verify_(self) -> None:
        aval = self.constant.aval
        if aval_of(self.results[0]) != aval:
            raise VerifyException(f"constant of {aval.dtype.numpy}{list(aval.shape)} has type {self.results[0].type}")

    def print(self, printer: Printer) -> None:
        printer.print_string(f" <{format_constant(self.constant)}>")
        print_result_types(printer, self)

    @classmethod
    def parse(cls, parser: Parser) -> ConstantOp:
        parser.parse_punctuation("<")
        op = cls.build(parse_constant(scan_balanced(parser, ">")))
        parse_result_types(parser)
        return op


class FusionOp(Operation):
    """A group of ops that becomes one kernel.

    Parameters ``kind`` (``loop``, ``matmul``, ``conv``, ``attention``, ``library``...), ``label`` (from which the
    kernel is named) and ``reason`` (why these ops are together).
    """

    name = "cuvil.fusion"
    traits: ClassVar[OpTraits] = OpTraits(lambda: ())

    @property
    def params(self) -> dict[str, ParamValue]:
        attr = self.properties["params"]
        assert isinstance(attr, ParamsAttr)
        return attr.values

    @property
    def kind(self) -> str:
        return self.params["kind"]

    @property
    def body(self) -> Block:
        return self.regions[0].block

    @classmethod
    def build(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls, operands: Sequence[SSAValue], body: Block, *, kind: str, label: str, reason: str
    ) -> FusionOp:
        last = body.last_op
        assert isinstance(last, YieldOp)
        return cls.create(
            operands=operands,
            result_types=[v.type for v in last.operands],
            properties={"params": params_attr({"kind": kind, "label": label, "reason": reason})},
            regions=[Region(body)],
        )

    def verify_(self) -> None:
        for key in ("kind", "label", "reason"):
            if not isinstance(self.params.get(key), str):
                raise VerifyException(f"a fusion has the parameter {key!r}, a string; got {self.params.get(key)!r}")
        if len(self.regions) != 1 or len(self.regions[0].blocks) != 1 or not isinstance(self.body.last_op, YieldOp):
            raise VerifyException("a fusion has one region that ends in cuvil.yield")
        if [a.type for a in self.body.args] != [o.type for o in self.operands]:
            raise VerifyException("a fusion's block arguments have the types of its operands")
        if [o.type for o in self.body.last_op.operands] != [r.type for r in self.results]:
            raise VerifyException("a fusion yields values of its result types")

    def print(self, printer: Printer) -> None:
        print_operands(printer, tuple(self.operands))
        attr = self.properties["params"]
        assert isinstance(attr, ParamsAttr)
        printer.print_string(" {" + format_params(attr.data) + "} ")
        printer.print_region(self.regions[0])
        print_result_types(printer, self)

    @classmethod
    def parse(cls, parser: Parser) -> FusionOp:
        operands = [o for o in parse_operands(parser) if o is not None]
        parser.parse_punctuation("{")
        params = params_attr(dict(parse_params(scan_balanced(parser, "}"), ())))
        region = parser.parse_region()
        results = parse_result_types(parser)
        return cls.create(
            operands=operands,
            result_types=[tensor_type(a) for a in results],
            properties={"params": params},
            regions=[region],
        )


def _op_class(record: OpRecord) -> type[TensorOp]:
    camel = "".join(p.capitalize() for p in record.name.split("_")) + "Op"
    return type(camel, (TensorOp,), {"name": f"cuvil.{record.name}", "record": record, "__doc__": record.doc})


#: Record name -> op class.
OP_CLASSES: dict[str, type[TensorOp]] = {r.name: _op_class(r) for r in records()}


def _dialect() -> Dialect:
    ops: list[type[Operation]] = [
        *OP_CLASSES.values(), ConstantOp, FusionOp, YieldOp, SwitchOp, WhileOp, LoopOp, CheckOp,
    ]  # fmt: skip
    return Dialect("cuvil", ops, [TensorType, ParamsAttr, ConstantAttr, ConstraintsAttr])


CUVIL = _dialect()


def context() -> Context:
    """A parser context with every dialect that a cuvil program uses."""
    ctx = Context()
    for d in (Builtin, Func, CUVIL, KERNEL):
        ctx.load_dialect(d)
    return ctx


__all__ = [
    "CUVIL",
    "OP_CLASSES",
    "ConstantOp",
    "FusionOp",
    "TensorOp",
    "YieldOp",
    "aval_of",
    "context",
    "format_param",
    "type_of",
]
