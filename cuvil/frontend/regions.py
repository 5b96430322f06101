"""Builds ops with regions from traced Python code: branches, loops with a condition, counted loops.

Values are given as leaves (arrays, traced arrays, Python scalars) with a label each, which errors name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from xdsl.dialects.builtin import LocationAttr
from xdsl.ir import SSAValue

from cuvil.dtypes import DType, bool_, float64, int64, promote_weak
from cuvil.frontend.dispatch import TraceBuilder, asoperand, dtype_of, is_traced, materialise, weak_type
from cuvil.frontend.source import at_user_line, user_line
from cuvil.frontend.tracer import METHODS, Trace, Tracer, current_trace, tracing
from cuvil.ir.builder import source_location
from cuvil.ir.control import CheckOp, ControlOp, LoopOp, SwitchOp, WhileOp, YieldOp
from cuvil.ir.dialect import aval_of
from cuvil.ops.record import Aval, Obligation, Shape
from cuvil.support.errors import ArgumentTypeError, DTypeError, ShapeError, TracingError
from cuvil.symbolic import Dim

_ORDER = (bool, int, float)
_WEAK_DTYPES: dict[type, DType] = {bool: bool_, int: int64, float: float64}
_ROUNDS = 6  # a carried type only ever gains strength: bool, int, float, array


@dataclass(frozen=True)
class Kind:
    """The type of a value that enters or leaves a region; ``weak`` is its Python scalar type, if it has one."""

    aval: Aval
    weak: type | None = None

    def __str__(self) -> str:
        name = self.aval.dtype.name if self.weak is None else f"Python {self.weak.__name__}"
        return f"{name}[{', '.join(map(str, self.aval.shape))}]" if self.aval.shape else name


def kind_of(x: Any) -> Kind:
    """The type of an array, a traced array or a number.

    Raises:
        ArgumentTypeError: anything else.
    """
    x = asoperand(x)
    weak = weak_type(x)
    if weak is not None:
        return Kind(Aval((), _WEAK_DTYPES[weak]), weak)
    return Kind(Aval(tuple(x.shape), dtype_of(x)))


@dataclass
class Region:
    """A traced region: its trace, its own arguments, and the leaves that it hands out."""

    trace: Trace
    arguments: list[Tracer]
    leaves: list[Any] = field(default_factory=list[Any])

    def seal(self, kinds: Sequence[Kind]) -> None:
        """End the block with the leaves in the given types."""
        builder = TraceBuilder(self.trace)
        values = [materialise(builder, asoperand(x), k.aval.dtype) for x, k in zip(self.leaves, kinds, strict=True)]
        self.trace.block.add_op(YieldOp.create(operands=values))
        self.trace.alive = False


def open_region(parent: Trace, kinds: Sequence[Kind], names: Sequence[str]) -> Region:
    """A new region with arguments of the given types."""
    trace = parent.within(parent.name)
    hints = [n.removeprefix("variable ").removeprefix("the ").strip("'") for n in names]
    return Region(trace, [trace.argument(k.aval, n, k.weak) for k, n in zip(kinds, hints, strict=True)])


#: For each branch or loop that is running, outer ones first: whether it is being traced into a region.
_AROUND: ContextVar[tuple[bool, ...]] = ContextVar("cuvil_regions", default=())


def around() -> tuple[bool, ...]:
    """For each branch or loop that is running, outer ones first: whether it is being traced into a region."""
    return _AROUND.get()


def inside(region: Region, run: Callable[[], Any]) -> Any:
    """Run Python code so that its ops go into the region."""
    token = _AROUND.set((*_AROUND.get(), True))
    try:
        with tracing(region.trace, keep=True):
            return run()
    finally:
        _AROUND.reset(token)


def plainly(run: Callable[[], Any]) -> Any:
    """Run Python code of a branch or an iteration that is known to be taken."""
    token = _AROUND.set((*_AROUND.get(), False))
    try:
        return run()
    finally:
        _AROUND.reset(token)


def here() -> LocationAttr:
    """The user's current line as the location of an op."""
    return source_location(*user_line())


def _align(parent: Trace, regions: Sequence[Region]) -> list[SSAValue]:
    """Give all regions the same outer values, as block arguments after their own; returns those values."""
    outer: dict[SSAValue, Tracer] = {}
    for r in regions:
        outer.update({value: tracer for value, (tracer, _) in r.trace.lifted.items()})
    for r in regions:
        block = r.trace.block
        for value in outer:
            arg = block.insert_arg(value.type, len(block.args))
            arg.name_hint = value.name_hint
            old = r.trace.lifted.get(value)
            if old is not None:
                old[1].replace_all_uses_with(arg)
                block.erase_arg(old[1])  # type: ignore[arg-type]
    return [tracer.value_in(parent) for tracer in outer.values()]


def _insert(parent: Trace, op: ControlOp, kinds: Sequence[Kind], location: LocationAttr) -> list[Tracer]:
    parent.builder.location = location
    parent.builder.insert(op)
    return [Tracer(parent, r, k.weak) for r, k in zip(op.results, kinds, strict=True)]


# ------------------------------------------------------------------------------------------------- types


def same_shape(parent: Trace, a: Shape, b: Shape, what: Callable[[], str]) -> None:
    """See that two shapes are equal, behind a guard where they may be.

    Raises:
        ShapeError: they are not.
    """
    if len(a) != len(b):
        raise ShapeError(f"{what()}{at_user_line()}")
    for m, n in zip(a, b, strict=True):
        if m == n:
            continue
        if isinstance(m, int) and isinstance(n, int):
            raise ShapeError(f"{what()}{at_user_line()}")
        parent.require("control flow", Obligation("==", m, n, what()))


def merged(parent: Trace, label: str, kinds: Sequence[Kind]) -> Kind:
    """The one type of a value that several branches give.

    Raises:
        ShapeError, DTypeError: they give different ones.
    """
    listed = " or ".join(dict.fromkeys(map(str, kinds)))

    def what() -> str:
        return f"{label} is {listed}, depending on a traced condition; every branch must give the same shape and dtype"

    for k in kinds[1:]:
        same_shape(parent, kinds[0].aval.shape, k.aval.shape, what)
    strong = [k.aval.dtype for k in kinds if k.weak is None]
    weak = [k.weak for k in kinds if k.weak is not None]
    if not strong:
        top = max(weak, key=_ORDER.index)
        return Kind(Aval((), _WEAK_DTYPES[top]), top)
    if any(d is not strong[0] for d in strong) or any(promote_weak(strong[0], w) is not strong[0] for w in weak):
        raise DTypeError(f"{what()}{at_user_line()}. Convert one of them, e.g. with astype")
    return Kind(Aval(next(k.aval.shape for k in kinds if k.weak is None), strong[0]))


def next_kind(parent: Trace, label: str, now: Kind, out: Kind) -> Kind:
    """The type of a carried value that enters as one type and leaves an iteration as another.

    A Python number gives way to the array that it becomes; an array keeps its dtype.

    Raises:
        ShapeError, DTypeError: the value would change its shape or dtype from one iteration to the next.
    """

    def what() -> str:
        return (
            f"{label} enters the loop as {now} and is {out} after an iteration; a value that a traced loop carries"
            " keeps its shape and dtype"
        )

    same_shape(parent, now.aval.shape, out.aval.shape, what)
    if now.weak is not None:
        if out.weak is not None:
            top = max(now.weak, out.weak, key=_ORDER.index)
            return Kind(Aval((), _WEAK_DTYPES[top]), top)
        return Kind(Aval(out.aval.shape, promote_weak(out.aval.dtype, now.weak)))
    kept = out.aval.dtype if out.weak is None else promote_weak(now.aval.dtype, out.weak)
    if kept is not now.aval.dtype:
        raise DTypeError(f"{what()}{at_user_line()}. Start with the dtype that it will have, or convert it with astype")
    return now


# -------------------------------------------------------------------------------------------- conditions


def as_condition(x: Any, what: str = "a condition") -> Any:
    """A traced truth value as a rank-0 bool, as Python takes the truth of a NumPy array.

    Raises:
        TracingError: an array of several elements, whose truth is ambiguous.
    """
    if not isinstance(x, Tracer):
        return bool(x)
    shape = x.shape
    if any(n != 1 for n in shape):
        raise TracingError(
            f"{what} is an array of shape [{', '.join(map(str, shape))}], whose truth is ambiguous{at_user_line()};"
            " use cuvil.numpy.any(x) or cuvil.numpy.all(x)"
        )
    if shape:
        x = METHODS["reshape"](x, ())
    return x if x.cuvil_dtype.is_bool else METHODS["binary"]("not_equal", x, 0)


def as_index(x: Any, what: str) -> Any:
    """A rank-0 integer, traced or not.

    Raises:
        ArgumentTypeError: of another dtype or rank.
    """
    x = asoperand(x)
    if not is_traced(x) and weak_type(x) is None and x.shape == ():
        x = x.item()
    dt = dtype_of(x)
    if not (dt.is_integer or dt.is_bool) or (weak_type(x) is None and tuple(x.shape) != ()):
        raise ArgumentTypeError(
            f"{what} must be an integer or a rank-0 integer array, got {kind_of(x)}{at_user_line()}"
        )
    return x


# ------------------------------------------------------------------------------------------------ building


def build_switch(
    parent: Trace, selector: Tracer, regions: Sequence[Region], labels: Sequence[str], location: LocationAttr
) -> list[Tracer]:
    """A switch over traced regions, whose leaves are merged."""
    builder = TraceBuilder(parent)
    chosen = materialise(builder, selector, bool_ if selector.cuvil_dtype.is_bool else int64)
    columns = [[kind_of(r.leaves[i]) for r in regions] for i in range(len(labels))]
    kinds = [merged(parent, label, column) for label, column in zip(labels, columns, strict=True)]
    for r in regions:
        r.seal(kinds)
    given = _align(parent, regions)
    return _insert(parent, SwitchOp.build(chosen, given, [r.trace.block for r in regions]), kinds, location)


#: Traces one iteration: given the region, the leaves to carry on (and those to stack).
Step = Callable[[Region], Sequence[Any]]


def _settle(
    parent: Trace, labels: Sequence[str], kinds: Sequence[Kind], make: Callable[[list[Kind]], Region]
) -> tuple[list[Kind], Region]:
    """Trace a loop's body until the types that it carries are those that it was traced with."""
    current = list(kinds)
    for _ in range(_ROUNDS):
        region = make(current)
        out = [kind_of(x) for x in region.leaves[: len(current)]]
        after = [next_kind(parent, n, k, o) for n, k, o in zip(labels, current, out, strict=True)]
        if after == current:
            return current, region
        region.trace.alive = False
        current = after
    raise TracingError(f"the types that a loop carries do not settle{at_user_line()}")  # pragma: no cover


def build_while(
    parent: Trace,
    init: Sequence[Any],
    labels: Sequence[str],
    condition: Callable[[list[Tracer]], Any],
    body: Callable[[list[Tracer]], Sequence[Any]],
    location: LocationAttr,
) -> list[Tracer]:
    """A loop that runs while a condition holds; returns the carried values after it."""

    def make(kinds: list[Kind]) -> Region:
        region = open_region(parent, kinds, labels)
        region.leaves = list(inside(region, lambda: body(region.arguments)))
        return region

    kinds, region = _settle(parent, labels, [kind_of(x) for x in init], make)
    test = open_region(parent, kinds, labels)
    test.leaves = [inside(test, lambda: as_condition(condition(test.arguments), "the condition of a loop"))]
    region.seal(kinds)
    test.seal([Kind(Aval((), bool_))])
    given = _align(parent, [test, region])
    builder = TraceBuilder(parent)
    values = [materialise(builder, asoperand(x), k.aval.dtype) for x, k in zip(init, kinds, strict=True)]
    op = WhileOp.build(values, given, test.trace.block, region.trace.block)
    return _insert(parent, op, kinds, location)


def build_loop(
    parent: Trace,
    init: Sequence[Any],
    xs: Sequence[Any],
    labels: Sequence[str],
    trip: Dim,
    body: Callable[[Tracer, list[Tracer], list[Tracer]], Sequence[Any]],
    location: LocationAttr,
    *,
    reverse: bool = False,
) -> list[Tracer]:
    """A counted loop; ``body(i, carried, slices)`` gives the carried values and then what is stacked."""
    builder = TraceBuilder(parent)
    whole = [materialise(builder, asoperand(x)) for x in xs]
    slices = [Kind(Aval(a.shape[1:], a.dtype)) for a in map(aval_of, whole)]
    n = len(init)

    def make(kinds: list[Kind]) -> Region:
        types = [Kind(Aval((), int64), int), *kinds, *slices]
        region = open_region(parent, types, ["i", *labels, *("x" for _ in slices)])
        i, rest = region.arguments[0], region.arguments[1:]
        region.leaves = list(inside(region, lambda: body(i, rest[:n], rest[n:])))
        return region

    kinds, region = _settle(parent, labels, [kind_of(x) for x in init], make)
    stacked = [Kind(Aval(kind_of(x).aval.shape, dtype_of(asoperand(x)))) for x in region.leaves[n:]]
    region.seal([*kinds, *stacked])
    given = _align(parent, [region])
    values = [materialise(builder, asoperand(x), k.aval.dtype) for x, k in zip(init, kinds, strict=True)]
    op = LoopOp.build(values, whole, given, region.trace.block, trip=trip, reverse=reverse)
    return _insert(parent, op, [*kinds, *stacked], location)


def emit_check(condition: Any, message: str) -> None:
    """An assertion of the compiled function."""
    trace = current_trace()
    assert trace is not None
    value = materialise(TraceBuilder(trace), condition, bool_)
    trace.builder.location = here()
    trace.builder.insert(CheckOp.build(value, message))
