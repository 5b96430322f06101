"""Rules written as equations: ``before`` and ``after`` are functions over a builder, and the test derives from them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from xdsl.ir import Operation, SSAValue

from cuvil.dtypes import ALL, DType, bool_
from cuvil.ir.attributes import param_key
from cuvil.ir.dialect import ConstantOp, TensorOp, aval_of
from cuvil.ops.builder import Builder
from cuvil.ops.drawing import draw_broadcastable, draw_shape
from cuvil.ops.record import Array, Aval, Chooser, Domain, OperandSample, ParamValue
from cuvil.ops.registry import get
from cuvil.passes.cost import weight
from cuvil.passes.engine import Case, Kind, Replacement, Rewriter, Rule
from cuvil.support.errors import ArgumentError

# --------------------------------------------------------------------------------------------- pattern


@dataclass(frozen=True)
class Variable:
    """Any value; the same name twice is the same value."""

    name: str


@dataclass(frozen=True)
class Node:
    """An op of a given name with operand patterns; parameters that are given must be equal."""

    name: str
    operands: tuple[Pattern, ...]
    params: tuple[tuple[str, Any], ...]
    commutes: bool


Pattern: TypeAlias = "Variable | Node"


class _PatternBuilder(Builder[Any]):
    """Records the ops that ``before`` emits as a pattern."""

    def emit(self, name: str, operands: Sequence[Any], params: dict[str, ParamValue]) -> tuple[Any, ...]:
        record = get(name)
        keys = tuple((k, param_key(v)) for k, v in params.items())
        return (Node(name, tuple(operands), keys, "commutative" in record.traits and len(operands) == 2),)

    def constant(self, value: Array) -> Any:
        raise ArgumentError(
            "a pattern holds no constants of its own; name one in constants= and take it as a parameter"
        )

    def aval(self, value: Any) -> Aval:
        raise ArgumentError("a pattern has no shapes and dtypes; test them in when=")


@dataclass(frozen=True)
class Constant:
    """A constant operand of an equation: the arrays it may be, how the test draws one, and its name in print."""

    accepts: Callable[[Array], bool]
    draw: Callable[[Chooser, DType, tuple[int, ...]], Array]
    text: str = ""


def is_filled(a: Array, value: bool | int | float) -> bool:
    """Whether every element has the bits of ``value``; an array of another dtype family or of no element never does."""
    if a.size == 0:
        return False
    want = np.asarray(value).astype(a.dtype)
    if a.reshape(-1)[:1].tobytes() != want.tobytes():
        return False
    return a.size == 1 or a.tobytes() == np.full(a.shape, want, a.dtype).tobytes()


def filled(value: bool | int | float) -> Constant:
    """A constant all of whose elements are ``value``, the sign of zero included."""
    return Constant(
        lambda a: is_filled(a, value), lambda c, dt, shape: np.full(shape, value).astype(dt.numpy), repr(value)
    )


#: All bits set: True, -1, or the largest unsigned integer.
ONES = Constant(
    lambda a: (
        is_filled(a, True if a.dtype == bool else -1) if a.dtype.kind in "bi" else bool(np.all(~a == 0) and a.size)
    ),
    lambda c, dt, shape: np.invert(np.zeros(shape, dt.numpy)),
    "~0",
)


def drawn(draw: Callable[[Chooser, DType], Any], accepts: Callable[[Array], bool] = lambda a: True) -> Constant:
    """A constant whose elements are drawn one by one."""

    def fill(c: Chooser, dt: DType, shape: tuple[int, ...]) -> Array:
        return np.array([draw(c, dt) for _ in range(int(np.prod(shape)))]).astype(dt.numpy).reshape(shape)

    return Constant(accepts, fill)


#: Any constant at all, of moderate values.
ANY = drawn(
    lambda c, dt: (
        c.boolean() if dt.is_bool else c.integer(0 if not dt.is_signed else -4, 8) / (1 if dt.is_integer else 2)
    )
)

# --------------------------------------------------------------------------------------------- equation


def equation(
    name: str,
    before: Callable[..., Any],
    after: Callable[..., SSAValue | None],
    *,
    kind: Kind = "exact",
    dtypes: Sequence[DType] = ALL,
    constants: Mapping[str, Constant] | None = None,
    booleans: Sequence[str] = (),
    when: Callable[..., bool] | None = None,
    domain: Domain = "any",
    doc: str = "",
) -> Rule:
    """A rule from an equation.

    ``before(F, x, y, ...)`` is written with builder calls; its parameters are the pattern's variables. ``after`` takes
    a :class:`~cuvil.passes.engine.Rewriter` and the matched values; what it returns is broadcast to the shape of the
    root. Both orders of a commutative op are tried.

    Args:
        dtypes: dtypes of the variables.
        constants: which variables are constants, and which.
        booleans: variables that are conditions: of bool whatever ``dtypes`` says.
        when: ``when(F, x, y, ...)``: further conditions on the matched values.
        domain: from which values the test draws operands.

    >>> double = equation("neg-neg", lambda F, x: F.op("negative", F.op("negative", x)), lambda F, x: x)
    >>> double.roots, double.doc
    (('negative',), 'negative(negative(x)) -> x')
    """
    names = tuple(inspect.signature(before).parameters)[1:]
    given = dict(constants or {})
    root = before(_PatternBuilder(), *(Variable(n) for n in names))
    if not isinstance(root, Node):
        raise ArgumentError(f"equation {name!r}: before must return the result of an op, got {root!r}")
    needs = tuple(o.name for o in root.operands if isinstance(o, Node))
    needs_constant = any(isinstance(o, Variable) and o.name in given for o in root.operands)
    accepted = frozenset(dtypes)

    def check(bound: Mapping[str, SSAValue]) -> bool:
        for n in names:
            dt = aval_of(bound[n]).dtype
            if (dt is not bool_) if n in booleans else (dt not in accepted):
                return False
        return True

    def rewrite(F: Rewriter, op: TensorOp) -> Replacement:
        if needs or needs_constant:
            owners = [o.owner for o in op.operands]
            if needs_constant and not any(isinstance(o, ConstantOp) for o in owners):
                return None
            if needs and not all(any(isinstance(o, TensorOp) and o.record.name == n for o in owners) for n in needs):
                return None
        # Where the inner ops have other readers, the replacement of the root alone must be cheaper than the root.
        dies = all(
            o.has_one_use() for o in op.operands if isinstance(o.owner, TensorOp) and o.owner.record.name in needs
        )
        for bound in _match(root, op.results[0], {}, given):
            values = [bound[n] for n in names]
            if not check(bound) or (when is not None and not when(F, *values)):
                continue
            begin = len(F.inserted)
            made = after(F, *values)
            fitted = None if made is None else F.fit(made, aval_of(op.results[0]))
            if fitted is not None and (dies or sum(map(_weight, F.inserted[begin:])) < weight(op)):
                return fitted
        return None

    def example(c: Chooser) -> Case:
        dt = c.choice(tuple(dtypes))
        shape = draw_shape(c, 0, 3)
        arrays: dict[str, Array] = {}
        samples: list[OperandSample] = []
        for n in names:
            own = shape if c.boolean() else draw_broadcastable(c, shape)
            if n in given:
                small = () if c.boolean() or 0 in own else own
                arrays[n] = given[n].draw(c, bool_ if n in booleans else dt, small)
            else:
                samples.append(OperandSample(own, bool_ if n in booleans else dt, domain))

        def build(F: Builder[Any], *values: Any) -> Any:
            it = iter(values)
            return before(F, *(F.constant(arrays[n]) if n in arrays else next(it) for n in names))

        return Case(build, tuple(samples))

    text = doc or _equation_text(root, after, names, given)
    return Rule(name, kind, (root.name,), rewrite, example, text, _dtype_text(dtypes))


def _match(
    pattern: Pattern, value: SSAValue, bound: dict[str, SSAValue], constants: Mapping[str, Constant]
) -> Iterator[dict[str, SSAValue]]:
    """Every way in which a pattern matches a value; the depth of recursion is the pattern's."""
    if isinstance(pattern, Variable):
        seen = bound.get(pattern.name)
        if seen is not None:
            if seen is value:
                yield bound
            return
        spec = constants.get(pattern.name)
        if spec is not None:
            owner = value.owner
            if not isinstance(owner, ConstantOp) or not spec.accepts(owner.value):
                return
        yield {**bound, pattern.name: value}
        return
    owner = value.owner
    if not isinstance(owner, TensorOp) or owner.record.name != pattern.name:
        return
    if pattern.params:
        params = owner.params
        if any(param_key(params.get(k)) != v for k, v in pattern.params):
            return
    operands = owner.operands
    if len(operands) != len(pattern.operands):
        return
    orders = ((0, 1), (1, 0)) if pattern.commutes else (tuple(range(len(operands))),)
    for order in orders:
        yield from _match_all(pattern.operands, [operands[i] for i in order], bound, constants)


def _match_all(
    patterns: Sequence[Pattern],
    values: Sequence[SSAValue],
    bound: dict[str, SSAValue],
    constants: Mapping[str, Constant],
) -> Iterator[dict[str, SSAValue]]:
    if not patterns:
        yield bound
        return
    for found in _match(patterns[0], values[0], bound, constants):
        yield from _match_all(patterns[1:], values[1:], found, constants)


def _weight(op: Operation) -> int:
    return weight(op) if isinstance(op, TensorOp) else 0


def _equation_text(
    root: Node, after: Callable[..., Any], names: Sequence[str], constants: Mapping[str, Constant]
) -> str:
    """``before -> after`` where ``after`` only emits ops, ``before`` alone where it asks for constants or shapes."""
    try:
        made = after(_PatternBuilder(), *(Variable(n) for n in names))
    except (ArgumentError, AttributeError):  # asks for what a pattern has not: elements, shapes, dtypes
        made = None
    if not isinstance(made, (Variable, Node)):
        return format_pattern(root, constants)
    return f"{format_pattern(root, constants)} -> {format_pattern(made, constants)}"


def format_pattern(pattern: Pattern, constants: Mapping[str, Constant]) -> str:
    """``add(x, negative(y))``; constants by their values."""
    if isinstance(pattern, Variable):
        spec = constants.get(pattern.name)
        return spec.text if spec is not None and spec.text else pattern.name
    return f"{pattern.name}({', '.join(format_pattern(o, constants) for o in pattern.operands)})"


def _dtype_text(dtypes: Sequence[DType]) -> str:
    kinds = {d.kind for d in dtypes}
    if len(dtypes) == len(ALL):
        return "any"
    words = [
        w for k, w in (("bool", "bool"), ("int", "signed"), ("uint", "unsigned"), ("float", "floats")) if k in kinds
    ]
    text = ", ".join(words).replace("signed, unsigned", "integers")
    return text + (" of 32 and 64 bits" if kinds == {"float"} and not any(d.is_half for d in dtypes) else "")
