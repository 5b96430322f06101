"""The ``kernel`` dialect: loops with symbolic bounds over buffers, one function per kernel.

Index arithmetic is not SSA: offsets, bounds and conditions are dimension expressions over the program's symbols
and the loop variables, so that the simplifier and the vectoriser read them directly.
Values inside a loop body are scalars of one dtype; a ``vector`` loop runs CV_LANES of them at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from xdsl.ir import Block, Data, Dialect, Operation, OpTraits, Region, SSAValue, TypeAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer
from xdsl.traits import NoTerminator
from xdsl.utils.exceptions import VerifyException

from cuvil.dtypes import DType, bool_
from cuvil.ir.attributes import (
    NO_PARAMS,
    ParamsAttr,
    format_aval,
    format_params,
    params_attr,
    parse_aval,
    parse_defined_operand,
    parse_dtype,
    parse_params,
    scan_balanced,
)
from cuvil.ops.record import Aval, ParamValue
from cuvil.ops.scalar import INSTRUCTIONS
from cuvil.symbolic import Dim, Expr

#: ``low <= expr < high``; a tuple of them must all hold.
When: TypeAlias = tuple[tuple[Dim, Dim, Dim], ...]


@irdl_attr_definition
class BufferType(Data[Aval], TypeAttribute):
    """``!kernel.buffer<[B, 384] x f32>``: row-major contiguous memory of a symbolic shape."""

    name = "kernel.buffer"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Aval:
        parser.parse_punctuation("<")
        return parse_aval(scan_balanced(parser, ">"))

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<{format_aval(self.data)}>")


@irdl_attr_definition
class ScalarType(Data[DType], TypeAttribute):
    """``!kernel.scalar<f32>``: one element in a register (one per lane in a vector loop)."""

    name = "kernel.scalar"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> DType:
        parser.parse_punctuation("<")
        return parse_dtype(scan_balanced(parser, ">").strip())

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<{self.data.short}>")


_KIND: dict[type, str] = {BufferType: "buffer", ScalarType: "scalar"}
_SCALARS: dict[DType, ScalarType] = {}


def scalar_type(dt: DType) -> ScalarType:
    """The interned scalar type of a dtype."""
    found = _SCALARS.get(dt)
    if found is None:
        found = _SCALARS[dt] = ScalarType(dt)
    return found


def buffer_aval(value: SSAValue) -> Aval:
    """Shape and dtype of a buffer value."""
    assert isinstance(value.type, BufferType)
    return value.type.data


def scalar_dtype(value: SSAValue) -> DType:
    """Dtype of a scalar value."""
    assert isinstance(value.type, ScalarType)
    return value.type.data


@dataclass(frozen=True)
class Form:
    """What an op is made of: kinds of its operands and results (the last one repeats after a ``*``), and parameters.

    ``optional`` parameters may be left out; ``open`` ops take others too. ``regions`` are (least, most).
    """

    operands: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    params: tuple[tuple[str, str], ...] = ()
    optional: frozenset[str] = frozenset()
    open: bool = False
    regions: tuple[int, int] = (0, 0)

    def problem(self, op: KernelOp) -> str | None:
        """What is wrong with an op of this form, or None."""
        for what, values, form in (("operands", op.operands, self.operands), ("results", op.results, self.results)):
            want = list(form)
            if want and want[-1].startswith("*"):
                last = want.pop()[1:]
                want += [last] * (len(values) - len(want))
            got = [_KIND.get(type(v.type), "other") for v in values]
            if got != want:
                return f"expected {what} {want}, got {got}"
        if not self.regions[0] <= len(op.regions) <= self.regions[1] or any(len(r.blocks) != 1 for r in op.regions):
            return f"expected {self.regions[0]} to {self.regions[1]} regions of one block, got {len(op.regions)}"
        params = op.params
        for key, kind in self.params:
            if key not in params:
                if key not in self.optional:
                    return f"has no parameter {key!r}"
            elif not _fits(params[key], kind):
                return f"its parameter {key!r} must be of kind {kind}, got {params[key]!r}"
        if not self.open:
            unknown = set(params) - {k for k, _ in self.params}
            if unknown:
                return f"unknown parameters {', '.join(sorted(unknown))}"
        return None


def _fits(value: ParamValue, kind: str) -> bool:
    if kind.endswith("s"):
        return isinstance(value, tuple) and all(_fits(v, kind[:-1]) for v in value)
    if kind == "condition":
        return isinstance(value, tuple) and len(value) == 3 and all(_fits(v, "dim") for v in value)
    if kind == "number":
        return isinstance(value, (bool, int, float))
    if kind == "bool":
        return isinstance(value, bool)
    if kind == "text":
        return isinstance(value, str)
    return isinstance(value, (int, Expr)) and not isinstance(value, bool)


class KernelOp(Operation):
    """Base: operands, static parameters, results, and regions without control flow between blocks."""

    traits: ClassVar[OpTraits] = OpTraits(lambda: (NoTerminator(),))
    form: ClassVar[Form]

    def verify_(self) -> None:
        problem = self.form.problem(self)
        if problem is not None:
            raise VerifyException(f"{self.name}: {problem}")

    @property
    def params(self) -> dict[str, ParamValue]:
        found = self.properties.get("params", NO_PARAMS)
        assert isinstance(found, ParamsAttr)
        return found.values

    @property
    def body(self) -> Block:
        return self.regions[0].block

    def print(self, printer: Printer) -> None:
        for i, o in enumerate(self.operands):
            printer.print_string(" " if i == 0 else ", ")
            printer.print_operand(o)
        attr = self.properties.get("params", NO_PARAMS)
        assert isinstance(attr, ParamsAttr)
        if attr.data:
            printer.print_string(" {" + format_params(attr.data) + "}")
        for region in self.regions:
            printer.print_string(" ")
            printer.print_region(region)
        for i, r in enumerate(self.results):
            printer.print_string(" : " if i == 0 else ", ")
            printer.print_attribute(r.type)

    @classmethod
    def parse(cls, parser: Parser) -> KernelOp:
        operands: list[SSAValue] = []
        first = parse_defined_operand(parser)
        if first is not None:
            operands.append(first)
            while parser.parse_optional_punctuation(",") is not None:
                operands.append(_next_operand(parser))
        params: dict[str, ParamValue] = {}
        # A region also opens with a brace; only an op that has parameters prints a dictionary first.
        if cls.has_params and parser.parse_optional_punctuation("{") is not None:
            params = dict(parse_params(scan_balanced(parser, "}"), ()))
        regions: list[Region] = []
        while (region := parser.parse_optional_region()) is not None:
            regions.append(region)
        types: list[TypeAttribute] = []
        if parser.parse_optional_punctuation(":") is not None:
            types.append(parser.parse_type())
            while parser.parse_optional_punctuation(",") is not None:
                types.append(parser.parse_type())
        return cls.create(operands=operands, result_types=types, properties=_properties(params), regions=regions)

    has_params: ClassVar[bool] = True


def _next_operand(parser: Parser) -> SSAValue:
    found = parse_defined_operand(parser)
    return parser.raise_error("expected an operand after ','") if found is None else found


def _properties(params: dict[str, ParamValue]) -> dict[str, ParamsAttr]:
    return {"params": params_attr(params)} if params else {}


class KernelFunc(KernelOp):
    """A kernel: block arguments are its buffers. Parameters: ``name``, ``dims`` (symbols passed at the call),
    ``outputs`` (numbers of the buffers that it writes), ``reason``."""

    name = "kernel.func"

    @classmethod
    def build(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls, name: str, buffers: Sequence[Aval]
    ) -> KernelFunc:
        block = Block(arg_types=[BufferType(a) for a in buffers])
        return cls.create(properties=_properties({"name": name}), regions=[Region(block)])

    def set_params(self, **params: ParamValue) -> None:
        """Replace the parameters."""
        self.properties["params"] = params_attr(params)


class ForOp(KernelOp):
    """``kernel.for {var, lower, upper, kind}``: kind is ``parallel``, ``serial`` or ``vector``.

    A ``whole`` vector loop runs a multiple of the lanes of every target: it has no tail.
    """

    name = "kernel.for"

    @classmethod
    def build(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls, var: str, lower: Dim, upper: Dim, kind: str, *, whole: bool = False
    ) -> ForOp:
        params: dict[str, ParamValue] = {"var": var, "lower": lower, "upper": upper, "kind": kind}
        if whole:
            params["whole"] = True
        return cls.create(properties=_properties(params), regions=[Region(Block())])

    def verify_(self) -> None:
        super().verify_()
        if self.params["kind"] not in ("parallel", "serial", "vector"):
            raise VerifyException(f"kernel.for: unknown kind {self.params['kind']!r}")


class LoadOp(KernelOp):
    """Element at a flat offset; where ``when`` does not hold memory is not touched and the value is 0."""

    name = "kernel.load"

    @classmethod
    def build(cls, buffer: SSAValue, index: Dim, when: When = ()) -> LoadOp:  # pyright: ignore[reportIncompatibleMethodOverride]
        params: dict[str, ParamValue] = {"index": index}
        if when:
            params["when"] = when
        dt = buffer_aval(buffer).dtype
        return cls.create(operands=[buffer], result_types=[scalar_type(dt)], properties=_properties(params))

    def verify_(self) -> None:
        super().verify_()
        if scalar_dtype(self.results[0]) is not buffer_aval(self.operands[0]).dtype:
            raise VerifyException("kernel.load gives the dtype of its buffer")


class StoreOp(KernelOp):
    """``kernel.store %buffer, %value {index}``"""

    name = "kernel.store"

    @classmethod
    def build(cls, buffer: SSAValue, value: SSAValue, index: Dim) -> StoreOp:  # pyright: ignore[reportIncompatibleMethodOverride]
        return cls.create(operands=[buffer, value], properties=_properties({"index": index}))

    def verify_(self) -> None:
        super().verify_()
        if scalar_dtype(self.operands[1]) is not buffer_aval(self.operands[0]).dtype:
            raise VerifyException("kernel.store writes the dtype of its buffer")


class ScalarOp(KernelOp):
    """One scalar instruction (``cast`` and ``select`` included), by ``name``."""

    name = "kernel.scalar_op"

    @classmethod
    def build(cls, instr: str, operands: Sequence[SSAValue], dt: DType) -> ScalarOp:  # pyright: ignore[reportIncompatibleMethodOverride]
        return cls.create(operands=operands, result_types=[scalar_type(dt)], properties=_properties({"instr": instr}))

    def verify_(self) -> None:
        super().verify_()
        instr, out = self.params["instr"], scalar_dtype(self.results[0])
        ins = [scalar_dtype(o) for o in self.operands]
        if instr == "cast":
            ok = len(ins) == 1
        elif instr == "select":
            ok = len(ins) == 3 and ins[0] is bool_ and ins[1] is ins[2] is out
        else:
            row = INSTRUCTIONS.get(instr)
            ok = row is not None and len(ins) == row.arity and all(d is ins[0] for d in ins)
            ok = ok and row is not None and out is (bool_ if row.result == "bool" else ins[0])
        if not ok:
            raise VerifyException(f"kernel.scalar_op {instr} does not take {ins} to {out}")


class ConstOp(KernelOp):
    """A literal."""

    name = "kernel.const"

    @classmethod
    def build(cls, value: bool | int | float, dt: DType) -> ConstOp:  # pyright: ignore[reportIncompatibleMethodOverride]
        value = bool(value) if dt.is_bool else int(value) if dt.is_integer else float(value)
        return cls.create(result_types=[scalar_type(dt)], properties=_properties({"value": value}))


class IndexOp(KernelOp):
    """The value of a dimension expression (loop variables included), as int64."""

    name = "kernel.index"

    @classmethod
    def build(cls, expr: Dim, dt: DType) -> IndexOp:  # pyright: ignore[reportIncompatibleMethodOverride]
        return cls.create(result_types=[scalar_type(dt)], properties=_properties({"expr": expr}))


class TestOp(KernelOp):
    """Whether conditions hold, as a bool scalar."""

    name = "kernel.test"

    @classmethod
    def build(cls, when: When) -> TestOp:  # pyright: ignore[reportIncompatibleMethodOverride]
        return cls.create(result_types=[scalar_type(bool_)], properties=_properties({"when": when}))


class BindOp(KernelOp):
    """Make a data-dependent integer an index symbol ``var`` in [0, size).

    ``mode``: ``error`` (negative counts from the end; out of bounds sets the error flag), ``clip``, ``wrap``, ``fill``
    (as error, without the flag). Loads that use an out-of-bounds symbol carry the condition ``0 <= var < size``.
    """

    name = "kernel.bind"

    @classmethod
    def build(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls, value: SSAValue, var: str, size: Dim, mode: str
    ) -> BindOp:
        return cls.create(operands=[value], properties=_properties({"var": var, "size": size, "mode": mode}))


class AccumulatorOp(KernelOp):
    """A register that a loop combines into, starting at the identity of ``combine``."""

    name = "kernel.accumulator"

    @classmethod
    def build(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls, combine: str, identity: bool | int | float, dt: DType
    ) -> AccumulatorOp:
        params = {"combine": combine, "identity": identity}
        return cls.create(result_types=[scalar_type(dt)], properties=_properties(params))


class UpdateOp(KernelOp):
    """Combine a value into an accumulator."""

    name = "kernel.update"
    has_params = False

    @classmethod
    def build(cls, accumulator: SSAValue, value: SSAValue) -> UpdateOp:  # pyright: ignore[reportIncompatibleMethodOverride]
        return cls.create(operands=[accumulator, value])


class TotalOp(KernelOp):
    """The total of an accumulator after its loop: ``lanes`` says whether lanes are combined too."""

    name = "kernel.total"

    @classmethod
    def build(cls, accumulator: SSAValue, lanes: bool) -> TotalOp:  # pyright: ignore[reportIncompatibleMethodOverride]
        return cls.create(
            operands=[accumulator], result_types=[accumulator.type], properties=_properties({"lanes": lanes})
        )


class ScratchOp(KernelOp):
    """Per-worker memory of ``size`` elements, for values that several loops of one row share."""

    name = "kernel.scratch"
    has_params = False

    @classmethod
    def build(cls, size: Dim, dt: DType) -> ScratchOp:  # pyright: ignore[reportIncompatibleMethodOverride]
        return cls.create(result_types=[BufferType(Aval((size,), dt))])


class TemplateOp(KernelOp):
    """A human-written kernel of the backend (gemm, conv, attention, sort, ...).

    ``kind`` and the other parameters are the template's; operands are buffers; an optional region is the epilogue: its
    index symbols are named by parameters, and it reads the accumulator through ``kernel.hole``.
    """

    name = "kernel.template"

    @classmethod
    def build(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls, kind: str, operands: Sequence[SSAValue], params: dict[str, ParamValue], epilogue: Block | None = None
    ) -> TemplateOp:
        return cls.create(
            operands=operands,
            properties=_properties({"kind": kind, **params}),
            regions=[] if epilogue is None else [Region(epilogue)],
        )


class HoleOp(KernelOp):
    """Inside an epilogue: the element that the template computed."""

    name = "kernel.hole"
    has_params = False

    @classmethod
    def build(cls, dt: DType) -> HoleOp:  # pyright: ignore[reportIncompatibleMethodOverride]
        return cls.create(result_types=[scalar_type(dt)])


# ------------------------------------------------------------------------------------------ the host program


class AllocOp(KernelOp):
    """A temporary in the arena, alive from its first to its last use."""

    name = "kernel.alloc"
    has_params = False

    @classmethod
    def build(cls, aval: Aval) -> AllocOp:  # pyright: ignore[reportIncompatibleMethodOverride]
        return cls.create(result_types=[BufferType(aval)])


class ViewOp(KernelOp):
    """The same memory under another shape of as many elements, or a part of it that begins at element ``offset``."""

    name = "kernel.view"

    @classmethod
    def build(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls, buffer: SSAValue, aval: Aval, offset: Dim | None = None
    ) -> ViewOp:
        params: dict[str, ParamValue] = {} if offset is None else {"offset": offset}
        return cls.create(operands=[buffer], result_types=[BufferType(aval)], properties=_properties(params))


class ConstBufferOp(KernelOp):
    """Constant number ``index`` of the program's constants."""

    name = "kernel.constant"

    @classmethod
    def build(cls, index: int, aval: Aval) -> ConstBufferOp:  # pyright: ignore[reportIncompatibleMethodOverride]
        return cls.create(result_types=[BufferType(aval)], properties=_properties({"index": index}))


class PackOp(KernelOp):
    """Constant operands of a template in the template's own packed layout, as one piece of memory made once at load."""

    name = "kernel.pack"

    @classmethod
    def build(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls, buffers: Sequence[SSAValue], kernel: str
    ) -> PackOp:
        return cls.create(operands=buffers, result_types=[buffers[0].type], properties=_properties({"kernel": kernel}))


class CallOp(KernelOp):
    """Run a kernel on buffers; ``dims`` are the values of its symbols, in its order.

    A kernel that may fail for the values it meets has the number of its ``site`` in the program.
    """

    name = "kernel.call"

    @classmethod
    def build(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls, kernel: str, buffers: Sequence[SSAValue], dims: Sequence[Dim], site: int | None = None
    ) -> CallOp:
        params: dict[str, ParamValue] = {"kernel": kernel, "dims": tuple(dims)}
        if site is not None:
            params["site"] = site
        return cls.create(operands=buffers, properties=_properties(params))


class CopyOp(KernelOp):
    """Copy a buffer into another of as many bytes."""

    name = "kernel.copy"
    has_params = False

    @classmethod
    def build(cls, source: SSAValue, target: SSAValue) -> CopyOp:  # pyright: ignore[reportIncompatibleMethodOverride]
        return cls.create(operands=[source, target])


class PutOp(KernelOp):
    """Write the value of a dimension expression (loop variables included) into a rank-0 int64 buffer."""

    name = "kernel.put"

    @classmethod
    def build(cls, buffer: SSAValue, value: Dim) -> PutOp:  # pyright: ignore[reportIncompatibleMethodOverride]
        return cls.create(operands=[buffer], properties=_properties({"value": value}))


class HostCheckOp(KernelOp):
    """End the call with assertion number ``number`` unless a rank-0 bool buffer holds true."""

    name = "kernel.check"

    @classmethod
    def build(cls, condition: SSAValue, number: int) -> HostCheckOp:  # pyright: ignore[reportIncompatibleMethodOverride]
        return cls.create(operands=[condition], properties=_properties({"number": number}))


class HostSwitchOp(KernelOp):
    """Run one region: chosen by a bool between two (the first for false), by an int64 clamped to those there are."""

    name = "kernel.switch"
    has_params = False

    @classmethod
    def build(cls, selector: SSAValue, bodies: Sequence[Block]) -> HostSwitchOp:  # pyright: ignore[reportIncompatibleMethodOverride]
        return cls.create(operands=[selector], regions=[Region(b) for b in bodies])


class _HostLoop(KernelOp):
    """Base of the host program's loops: each carried value is three buffers, (initial, first, second).

    The body has two arguments for each: the current value, and the next one, which it writes. The current value is the
    initial buffer at first, and then the first and second one by turns. Where all three are one buffer, it is updated
    in place. Results are the buffers that are current when the loop ends.
    """

    #: Operands before the first carried value.
    leading: ClassVar[int] = 0

    @property
    def carried(self) -> list[tuple[SSAValue, SSAValue, SSAValue]]:
        """The buffers of each carried value."""
        o = list(self.operands)[self.leading :]
        return [(o[k], o[k + 1], o[k + 2]) for k in range(0, len(o), 3)]

    def verify_(self) -> None:
        super().verify_()
        rest = len(self.operands) - self.leading
        if rest % 3 or rest < 0:
            raise VerifyException(f"{self.name}: each carried value is three buffers, got {rest}")
        body = self.regions[-1].block
        if len(body.args) != 2 * len(self.carried) or len(self.results) != len(self.carried):
            raise VerifyException(f"{self.name}: two arguments and a result for each carried value")
        for k, buffers in enumerate(self.carried):
            types = {v.type for v in (*buffers, body.args[2 * k], body.args[2 * k + 1], self.results[k])}
            if len(types) != 1:
                raise VerifyException(f"{self.name}: the buffers of carried value {k} differ in type")


class RepeatOp(_HostLoop):
    """A counted loop: ``var`` goes from 0 to ``trip``, backwards under ``reverse``."""

    name = "kernel.repeat"

    @classmethod
    def build(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls, carried: Sequence[SSAValue], body: Block, *, var: str, trip: Dim, reverse: bool
    ) -> RepeatOp:
        params: dict[str, ParamValue] = {"var": var, "trip": trip, "reverse": reverse}
        types = [v.type for v in carried[::3]]
        return cls.create(operands=carried, result_types=types, properties=_properties(params), regions=[Region(body)])


class HostWhileOp(_HostLoop):
    """Runs its first region, which writes the condition (the first operand) from the current values, and then its
    second one, as long as the condition holds."""

    name = "kernel.while"
    has_params = False
    leading = 1

    @classmethod
    def build(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls, condition: SSAValue, carried: Sequence[SSAValue], test: Block, body: Block
    ) -> HostWhileOp:
        types = [v.type for v in carried[::3]]
        return cls.create(operands=[condition, *carried], result_types=types, regions=[Region(test), Region(body)])

    def verify_(self) -> None:
        super().verify_()
        if [a.type for a in self.regions[0].block.args] != [c[0].type for c in self.carried]:
            raise VerifyException("kernel.while: its condition has an argument for each carried value")


HOST_LOOPS = (RepeatOp, HostWhileOp)


class ProgramOp(KernelOp):
    """The host program: block arguments are input buffers, then output buffers (``inputs`` says how many inputs)."""

    name = "kernel.program"

    @classmethod
    def build(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls, inputs: Sequence[Aval], outputs: Sequence[Aval], dims: Sequence[str]
    ) -> ProgramOp:
        block = Block(arg_types=[BufferType(a) for a in (*inputs, *outputs)])
        params = {"inputs": len(inputs), "symbols": tuple(dims)}
        return cls.create(properties=_properties(params), regions=[Region(block)])


_OPS: list[type[Operation]] = [
    KernelFunc, ForOp, LoadOp, StoreOp, ScalarOp, ConstOp, IndexOp, TestOp, BindOp, AccumulatorOp, UpdateOp, TotalOp,
    ScratchOp, TemplateOp, HoleOp, AllocOp, ViewOp, ConstBufferOp, PackOp, CallOp, CopyOp, PutOp, HostCheckOp,
    HostSwitchOp, RepeatOp, HostWhileOp, ProgramOp,
]  # fmt: skip

_BUFFER, _SCALAR = ("buffer",), ("scalar",)
_FORMS: dict[type[KernelOp], Form] = {
    KernelFunc: Form(
        params=(("name", "text"), ("dims", "texts"), ("outputs", "dims"), ("reason", "text"), ("workspace", "dim")),
        optional=frozenset({"dims", "outputs", "reason", "workspace"}), regions=(1, 1),
    ),
    ForOp: Form(
        params=(("var", "text"), ("lower", "dim"), ("upper", "dim"), ("kind", "text"), ("whole", "bool")),
        optional=frozenset({"whole"}),
        regions=(1, 1),
    ),
    LoadOp: Form(_BUFFER, _SCALAR, (("index", "dim"), ("when", "conditions")), frozenset({"when"})),
    StoreOp: Form(("buffer", "scalar"), (), (("index", "dim"),)),
    ScalarOp: Form(("*scalar",), _SCALAR, (("instr", "text"),)),
    ConstOp: Form((), _SCALAR, (("value", "number"),)),
    IndexOp: Form((), _SCALAR, (("expr", "dim"),)),
    TestOp: Form((), _SCALAR, (("when", "conditions"),)),
    BindOp: Form(_SCALAR, (), (("var", "text"), ("size", "dim"), ("mode", "text"))),
    AccumulatorOp: Form((), _SCALAR, (("combine", "text"), ("identity", "number"))),
    UpdateOp: Form(("scalar", "scalar")),
    TotalOp: Form(_SCALAR, _SCALAR, (("lanes", "bool"),)),
    ScratchOp: Form((), _BUFFER),
    TemplateOp: Form(("*buffer",), (), (("kind", "text"),), open=True, regions=(0, 1)),
    HoleOp: Form((), _SCALAR),
    AllocOp: Form((), _BUFFER),
    ViewOp: Form(_BUFFER, _BUFFER, (("offset", "dim"),), frozenset({"offset"})),
    ConstBufferOp: Form((), _BUFFER, (("index", "dim"),)),
    PackOp: Form(("*buffer",), _BUFFER, (("kernel", "text"),)),
    CallOp: Form(("*buffer",), (), (("kernel", "text"), ("dims", "dims"), ("site", "number")), frozenset({"site"})),
    CopyOp: Form(("buffer", "buffer")),
    PutOp: Form(_BUFFER, (), (("value", "dim"),)),
    HostCheckOp: Form(_BUFFER, (), (("number", "dim"),)),
    HostSwitchOp: Form(_BUFFER, regions=(1, 1 << 16)),
    RepeatOp: Form(
        ("*buffer",), ("*buffer",), (("var", "text"), ("trip", "dim"), ("reverse", "bool")), regions=(1, 1)
    ),
    HostWhileOp: Form(("buffer", "*buffer"), ("*buffer",), regions=(2, 2)),
    ProgramOp: Form(params=(("inputs", "dim"), ("symbols", "texts")), regions=(1, 1)),
}  # fmt: skip
for _cls, _form in _FORMS.items():
    _cls.form = _form

KERNEL = Dialect("kernel", _OPS, [BufferType, ScalarType])
