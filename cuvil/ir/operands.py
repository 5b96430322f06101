"""Types of tensor-stage values, and how ops print and parse operands and results."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Operation, SSAValue
from xdsl.parser import Parser
from xdsl.printer import Printer

from cuvil.ir.attributes import TensorType, parse_defined_operand
from cuvil.ops.record import Aval
from cuvil.support.errors import IRError


def type_of(value: SSAValue) -> TensorType:
    """The tensor type of a value.

    Raises:
        IRError: the value is not a tensor.
    """
    t = value.type
    if not isinstance(t, TensorType):
        raise IRError(f"expected a tensor value, got {t}")
    return t


def aval_of(value: SSAValue) -> Aval:
    """Shape and dtype of a value."""
    return type_of(value).data


def print_operands(printer: Printer, operands: Sequence[SSAValue | None]) -> None:
    """`` %a, none, %b``"""
    for i, operand in enumerate(operands):
        printer.print_string(" " if i == 0 else ", ")
        if operand is None:
            printer.print_string("none")
        else:
            printer.print_operand(operand)


def parse_operands(parser: Parser) -> list[SSAValue | None]:
    """The inverse of :func:`print_operands`."""
    operands: list[SSAValue | None] = []
    while True:
        if parser.parse_optional_keyword("none") is not None:
            operands.append(None)
        elif (value := parse_defined_operand(parser)) is not None:
            operands.append(value)
        elif operands:
            parser.raise_error("expected an operand after ','")
        if not operands or parser.parse_optional_punctuation(",") is None:
            return operands


def print_result_types(printer: Printer, op: Operation) -> None:
    """`` : type, type``"""
    for i, result in enumerate(op.results):
        printer.print_string(" : " if i == 0 else ", ")
        printer.print_attribute(result.type)


def parse_result_types(parser: Parser) -> list[Aval]:
    """The inverse of :func:`print_result_types`."""
    avals: list[Aval] = []
    if parser.parse_optional_punctuation(":") is None:
        return avals
    while True:
        t = parser.parse_type()
        if not isinstance(t, TensorType):
            parser.raise_error(f"expected a !cuvil.tensor type, got {t}")
        avals.append(t.data)
        if parser.parse_optional_punctuation(",") is None:
            return avals
