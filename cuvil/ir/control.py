"""Control flow at the tensor and fused stages: ops with regions, isolated from above.

A region sees only its block's arguments: carried values, then the invariants that the op is given as operands. So
every pass treats a region's block as it treats a function's body. ``scf`` has ops of these names, but its conditions
are ``i1`` scalars and its bodies see what is around them; ours take rank-0 tensors and print in this dialect's form.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, OpTraits, Region, SSAValue
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import IsTerminator
from xdsl.utils.exceptions import VerifyException

from cuvil.dtypes import bool_, int64
from cuvil.ir.attributes import (
    NO_PARAMS,
    ParamsAttr,
    TensorType,
    format_params,
    params_attr,
    parse_params,
    scan_balanced,
    tensor_type,
)
from cuvil.ir.operands import aval_of, parse_operands, parse_result_types, print_operands, print_result_types
from cuvil.ops.record import Aval, ParamValue
from cuvil.symbolic import Dim, Expr


class YieldOp(Operation):
    """Ends a region: the values that it hands out."""

    name = "cuvil.yield"
    traits: ClassVar[OpTraits] = OpTraits(lambda: (IsTerminator(),))

    def print(self, printer: Printer) -> None:
        print_operands(printer, tuple(self.operands))

    @classmethod
    def parse(cls, parser: Parser) -> YieldOp:
        return cls.create(operands=[o for o in parse_operands(parser) if o is not None])


class ControlOp(Operation):
    """Base of the ops with regions."""

    traits: ClassVar[OpTraits] = OpTraits(lambda: ())

    @property
    def params(self) -> dict[str, ParamValue]:
        attr = self.properties.get("params", NO_PARAMS)
        assert isinstance(attr, ParamsAttr)
        return attr.values

    def set_params(self, **params: ParamValue) -> None:
        """Replace the parameters."""
        self.properties["params"] = params_attr(params)

    @property
    def bodies(self) -> list[Block]:
        """The block of each region."""
        return [r.block for r in self.regions]

    @property
    def invariant_operand(self) -> int:
        """Number of the first operand that each region gets as it is."""
        raise NotImplementedError

    @property
    def invariant_arg(self) -> int:
        """Number of the block argument that stands for the first invariant."""
        raise NotImplementedError

    @property
    def invariants(self) -> tuple[SSAValue, ...]:
        """The operands that stay what they are."""
        return tuple(self.operands)[self.invariant_operand :]

    def drop_invariant(self, k: int) -> None:
        """Remove invariant number ``k``, which no region reads any more."""
        for block in self.bodies:
            block.erase_arg(block.args[self.invariant_arg + k])
        self.operands = [o for i, o in enumerate(self.operands) if i != self.invariant_operand + k]

    def add_invariant(self, value: SSAValue) -> list[SSAValue]:
        """Give the regions one more value; returns what it is called in each."""
        self.operands = [*self.operands, value]
        return [block.insert_arg(value.type, len(block.args)) for block in self.bodies]

    def print(self, printer: Printer) -> None:
        print_operands(printer, tuple(self.operands))
        attr = self.properties.get("params", NO_PARAMS)
        assert isinstance(attr, ParamsAttr)
        if attr.data:
            printer.print_string(" {" + format_params(attr.data) + "}")
        for i, region in enumerate(self.regions):
            printer.print_string(" do " if i == 0 else ", ")
            printer.print_region(region)
        print_result_types(printer, self)

    @classmethod
    def parse(cls, parser: Parser) -> ControlOp:
        operands = [o for o in parse_operands(parser) if o is not None]
        properties: dict[str, ParamsAttr] = {}
        if parser.parse_optional_punctuation("{") is not None:
            properties["params"] = params_attr(dict(parse_params(scan_balanced(parser, "}"), ())))
        regions: list[Region] = []
        if parser.parse_optional_keyword("do") is not None:
            regions.append(parser.parse_region())
            while parser.parse_optional_punctuation(",") is not None:
                regions.append(parser.parse_region())
        results = parse_result_types(parser)
        return cls.create(
            operands=operands,
            result_types=[tensor_type(a) for a in results],
            properties=properties,
            regions=regions,
        )

    def _check_regions(self, least: int, most: int | None) -> None:
        if len(self.regions) < least or (most is not None and len(self.regions) > most):
            raise VerifyException(f"{self.name} has {least} regions, got {len(self.regions)}")
        for r in self.regions:
            if len(r.blocks) != 1 or not isinstance(r.block.last_op, YieldOp):
                raise VerifyException(f"a region of {self.name} is one block that ends in cuvil.yield")
        for v in (*self.operands, *self.results, *(a for b in self.bodies for a in b.args)):
            if not isinstance(v.type, TensorType):
                raise VerifyException(f"{self.name} takes and gives tensors, got {v.type}")

    def _check_types(self, what: str, got: Iterable[SSAValue], want: Iterable[TensorType | object]) -> None:
        have, need = [v.type for v in got], list(want)
        if have != need:
            raise VerifyException(f"{self.name}: {what} has types {_names(have)}, expected {_names(need)}")

    def _number(self, key: str) -> int:
        value = self.params.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise VerifyException(f"{self.name} needs the parameter {key!r}, a number >= 0; got {value!r}")
        return value


def _names(types: Iterable[object]) -> str:
    return "[" + ", ".join(map(str, types)) + "]"


def yielded(block: Block) -> tuple[SSAValue, ...]:
    """What a region's block hands out."""
    last = block.last_op
    assert last is not None
    return tuple(last.operands)


class SwitchOp(ControlOp):
    """``cuvil.switch %selector, %a do {..}, {..} : type``: runs one region.

    A bool selector chooses between two regions, the first for False; an int64 one is clamped to the regions there are.
    """

    name = "cuvil.switch"

    @property
    def invariant_operand(self) -> int:
        return 1

    @property
    def invariant_arg(self) -> int:
        return 0

    @classmethod
    def build(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls, selector: SSAValue, given: Sequence[SSAValue], bodies: Sequence[Block]
    ) -> SwitchOp:
        return cls.create(
            operands=[selector, *given],
            result_types=[v.type for v in yielded(bodies[0])],
            regions=[Region(b) for b in bodies],
        )

    def verify_(self) -> None:
        self._check_regions(1, None)
        if not self.operands:
            raise VerifyException("cuvil.switch needs a selector")
        selector = aval_of(self.operands[0])
        if selector.shape != () or selector.dtype not in (bool_, int64):
            raise VerifyException(f"the selector of cuvil.switch is a rank-0 bool or int64, got {selector}")
        if selector.dtype is bool_ and len(self.regions) != 2:
            raise VerifyException(f"a bool selector chooses between two regions, got {len(self.regions)}")
        for b in self.bodies:
            self._check_types("a region", b.args, [o.type for o in self.operands[1:]])
            self._check_types("what a region yields", yielded(b), [r.type for r in self.results])


class WhileOp(ControlOp):
    """``cuvil.while %init, %w {carried = 1} do {condition}, {body} : type``.

    Both regions take the carried values and the invariants; the first yields a rank-0 bool, the second the next
    carried values.
    """

    name = "cuvil.while"

    @property
    def carried(self) -> int:
        """How many values go from one iteration to the next."""
        return self._number("carried")

    @property
    def invariant_operand(self) -> int:
        return self.carried

    @property
    def invariant_arg(self) -> int:
        return self.carried

    @classmethod
    def build(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls, init: Sequence[SSAValue], given: Sequence[SSAValue], condition: Block, body: Block
    ) -> WhileOp:
        return cls.create(
            operands=[*init, *given],
            result_types=[v.type for v in init],
            properties={"params": params_attr({"carried": len(init)})},
            regions=[Region(condition), Region(body)],
        )

    def verify_(self) -> None:
        self._check_regions(2, 2)
        n = self.carried
        types = [o.type for o in self.operands]
        if n > len(types):
            raise VerifyException(f"cuvil.while carries {n} values of {len(types)}")
        for b in self.bodies:
            self._check_types("a region", b.args, types)
        self._check_types("the condition", yielded(self.bodies[0]), [tensor_type(Aval((), bool_))])
        self._check_types("what the body yields", yielded(self.bodies[1]), types[:n])
        self._check_types("the op", self.results, types[:n])


class LoopOp(ControlOp):
    """``cuvil.loop %init, %xs, %w {carried = 1, scanned = 1, trip = N, reverse = false} do {body} : types``.

    A counted loop. The body takes the iteration's number (rank-0 int64), the carried values, a slice ``x[i]`` of each
    scanned operand and the invariants; it yields the next carried values and then one element of each stacked result,
    which has ``trip`` of them. ``reverse`` runs from the last iteration number to the first.
    """

    name = "cuvil.loop"

    @property
    def carried(self) -> int:
        """How many values go from one iteration to the next."""
        return self._number("carried")

    @property
    def scanned(self) -> int:
        """How many operands are read slice by slice."""
        return self._number("scanned")

    @property
    def trip(self) -> Dim:
        """The number of iterations."""
        return self.params["trip"]

    @property
    def reverse(self) -> bool:
        return bool(self.params["reverse"])

    @property
    def invariant_operand(self) -> int:
        return self.carried + self.scanned

    @property
    def invariant_arg(self) -> int:
        return 1 + self.carried + self.scanned

    @classmethod
    def build(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls,
        init: Sequence[SSAValue],
        xs: Sequence[SSAValue],
        given: Sequence[SSAValue],
        body: Block,
        *,
        trip: Dim,
        reverse: bool = False,
    ) -> LoopOp:
        stacked = [_stacked(aval_of(v), trip) for v in yielded(body)[len(init) :]]
        params: dict[str, ParamValue] = {
            "carried": len(init), "scanned": len(xs), "trip": trip, "reverse": reverse,
        }  # fmt: skip
        return cls.create(
            operands=[*init, *xs, *given],
            result_types=[*(v.type for v in init), *(tensor_type(a) for a in stacked)],
            properties={"params": params_attr(params)},
            regions=[Region(body)],
        )

    def verify_(self) -> None:
        self._check_regions(1, 1)
        n, k = self.carried, self.scanned
        trip = self.params.get("trip")
        if not isinstance(trip, (int, Expr)) or isinstance(trip, bool) or not isinstance(self.params["reverse"], bool):
            raise VerifyException("cuvil.loop needs the parameters trip, a size, and reverse, true or false")
        types = [o.type for o in self.operands]
        if n + k > len(types):
            raise VerifyException(f"cuvil.loop carries {n} and scans {k} values of {len(types)}")
        slices: list[TensorType] = []
        for o in self.operands[n : n + k]:
            a = aval_of(o)
            if not a.shape or a.shape[0] != trip:
                raise VerifyException(f"a scanned operand has {trip} slices, got {a}")
            slices.append(tensor_type(Aval(a.shape[1:], a.dtype)))
        (body,) = self.bodies
        self._check_types("the body", body.args, [tensor_type(Aval((), int64)), *types[:n], *slices, *types[n + k :]])
        out = yielded(body)
        self._check_types("what the body carries on", out[:n], types[:n])
        stacked = [tensor_type(_stacked(aval_of(v), trip)) for v in out[n:]]
        self._check_types("the op", self.results, [*types[:n], *stacked])


def _stacked(a: Aval, trip: Dim) -> Aval:
    return Aval((trip, *a.shape), a.dtype)


class CheckOp(Operation):
    """``cuvil.check %condition {message = "..."}``: an assertion; where it does not hold the call raises."""

    name = "cuvil.check"
    traits: ClassVar[OpTraits] = OpTraits(lambda: ())

    @property
    def message(self) -> str:
        """What the AssertionError says."""
        attr = self.properties["params"]
        assert isinstance(attr, ParamsAttr)
        return attr.values["message"]

    @classmethod
    def build(cls, condition: SSAValue, message: str) -> CheckOp:  # pyright: ignore[reportIncompatibleMethodOverride]
        return cls.create(operands=[condition], properties={"params": params_attr({"message": message})})

    def verify_(self) -> None:
        if len(self.operands) != 1 or aval_of(self.operands[0]) != Aval((), bool_):
            raise VerifyException("cuvil.check takes a rank-0 bool")
        attr = self.properties.get("params")
        if not isinstance(attr, ParamsAttr) or not isinstance(attr.values.get("message"), str):
            raise VerifyException("cuvil.check needs the parameter 'message', a string")

    def print(self, printer: Printer) -> None:
        print_operands(printer, tuple(self.operands))
        attr = self.properties["params"]
        assert isinstance(attr, ParamsAttr)
        printer.print_string(" {" + format_params(attr.data) + "}")

    @classmethod
    def parse(cls, parser: Parser) -> CheckOp:
        operands = [o for o in parse_operands(parser) if o is not None]
        parser.parse_punctuation("{")
        params = params_attr(dict(parse_params(scan_balanced(parser, "}"), ())))
        return cls.create(operands=operands, properties={"params": params})


def blocks_within(block: Block) -> Iterator[Block]:
    """A block and those of the control flow inside it, outer ones first."""
    stack = [block]
    while stack:
        current = stack.pop()
        yield current
        for op in current.ops:
            if isinstance(op, ControlOp):
                stack.extend(reversed(op.bodies))


def blocks_of(func: FuncOp) -> list[Block]:
    """Every block of a function on which tensor-stage passes work, outer ones first."""
    return list(blocks_within(func.body.block))


def has_checks(op: Operation) -> bool:
    """Whether an op can end a call with an AssertionError, so that it stays although nothing reads its results."""
    if isinstance(op, CheckOp):
        return True
    if not isinstance(op, ControlOp):
        return False
    return any(isinstance(o, CheckOp) for body in op.bodies for block in blocks_within(body) for o in block.ops)


__all__ = [
    "CheckOp",
    "ControlOp",
    "LoopOp",
    "SwitchOp",
    "WhileOp",
    "YieldOp",
    "blocks_of",
    "blocks_within",
    "has_checks",
    "yielded",
]
