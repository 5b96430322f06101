"""Applies rewrite rules to a function: a worklist keyed by op type, with a budget and a record of every firing."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Literal, TypeAlias

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from cuvil.ir.attributes import MAX_ORIGIN_DEPTH, ConstantArray, Origin
from cuvil.ir.builder import IRBuilder
from cuvil.ir.control import blocks_of
from cuvil.ir.dialect import ConstantOp, FusionOp, TensorOp, aval_of
from cuvil.ops.record import Array, Aval, Chooser, OperandSample, ParamValue
from cuvil.support.errors import PassError
from cuvil.symbolic import Dim, Scope, Truth

#: What a rule may change.
#:
#: ``exact``: nothing, bit for bit, with NaN, infinities, signed zeros and overflow.
#: ``refines``: an op's result moves within the op's own tolerance, towards the correctly rounded one.
#: ``reorders``: the order of a sum or an extreme (numerics rule 10); which of two zeros an extreme returns.
#: ``contracts``: a constant scale goes into the constant weights of a linear map; the error stays within the bound of
#: the dot product itself.
#: ``reassociates``: anything that holds for real numbers; only under ``numerics="relaxed"``.
Kind = Literal["exact", "refines", "reorders", "contracts", "reassociates"]

#: Kinds that run under each numerics mode.
ALLOWED: dict[str, frozenset[str]] = {
    "standard": frozenset({"exact", "refines", "reorders", "contracts"}),
    "relaxed": frozenset({"exact", "refines", "reorders", "contracts", "reassociates"}),
}

#: New values for the root's results, or None where the rule does not apply.
Replacement: TypeAlias = "SSAValue | Sequence[SSAValue] | None"


@dataclass(frozen=True)
class Case:
    """A program that a rule's test runs: ``build(F, *values)`` with F a builder, on operands drawn from samples."""

    build: Callable[..., SSAValue | Sequence[SSAValue]]
    operands: tuple[OperandSample, ...]


@dataclass(frozen=True)
class Rule:
    """A rewrite rule as data.

    ``rewrite(F, op)`` looks at an op named in ``roots`` (``"*"`` is any) and returns the values that replace its
    results, or None. ``F`` is a :class:`Rewriter`: it inserts before the root and answers questions about operands.
    ``example`` draws programs in which the rule fires; :func:`~cuvil.passes.rule_check.check_rule` runs them.
    """

    name: str
    kind: Kind
    roots: tuple[str, ...]
    rewrite: Callable[[Rewriter, TensorOp], Replacement]
    example: Callable[[Chooser], Case]
    doc: str = ""
    domain: str = "any"


@dataclass(frozen=True)
class RuleSet:
    """Rules of one family, with the measure that each firing lowers."""

    name: str
    measure: str
    rules: tuple[Rule, ...]


def rule(
    *roots: str, name: str, example: Callable[[Chooser], Case], kind: Kind = "exact", domain: str = "any"
) -> Callable[[Callable[[Rewriter, TensorOp], Replacement]], Rule]:
    """Make a rule of a function; the function's docstring says ``before -> after``.

    >>> from cuvil.dtypes import float32
    >>> def program(c):
    ...     return Case(lambda F, x: F.op("floor", F.op("ceil", x)), (OperandSample((c.integer(0, 3),), float32),))
    >>> @rule("floor", name="floor-of-ceil", example=program)
    ... def floor_of_ceil(F, op):
    ...     "floor(ceil(x)) -> ceil(x)"
    ...     return op.operands[0] if F.producer(op.operands[0], "ceil") else None
    >>> floor_of_ceil.roots, floor_of_ceil.doc
    (('floor',), 'floor(ceil(x)) -> ceil(x)')
    """

    def make(rewrite: Callable[[Rewriter, TensorOp], Replacement]) -> Rule:
        return Rule(name, kind, roots, rewrite, example, (rewrite.__doc__ or "").strip(), domain)

    return make


class Rewriter(IRBuilder):
    """What a rule sees: a builder that inserts before the root, and questions about values."""

    def __init__(self, root: Operation, scope: Scope) -> None:
        block = root.parent
        assert block is not None
        super().__init__(block, before=root, location=root.location)
        self.scope = scope
        self.replaced: list[tuple[Operation, Sequence[SSAValue]]] = []

    @staticmethod
    def producer(value: SSAValue | None, *names: str) -> TensorOp | None:
        """The op that makes a value, if it is one of the named (any op when none is named)."""
        if value is None:
            return None
        owner = value.owner
        return owner if isinstance(owner, TensorOp) and (not names or owner.record.name in names) else None

    @staticmethod
    def array(value: SSAValue | None) -> Array | None:
        """The elements of a constant, None for anything else."""
        if value is None:
            return None
        owner = value.owner
        return owner.value if isinstance(owner, ConstantOp) else None

    @staticmethod
    def origin(name: str, *operands: SSAValue | Array | None, **params: ParamValue) -> Origin | None:
        """Where a constant comes from that equals, bit for bit, what an op gives on constants or arrays.

        A constant with an origin need not be kept: it is computed again where it is wanted. None at the end of a chain
        that is too long for that.
        """
        given: list[ConstantArray | None] = []
        for x in operands:
            if isinstance(x, SSAValue):
                assert isinstance(x.owner, ConstantOp)
                given.append(x.owner.constant)
            else:
                given.append(None if x is None else ConstantArray(x))
        origin = Origin(name, tuple(params.items()), tuple(given))
        return origin if origin.depth <= MAX_ORIGIN_DEPTH else None

    def derived(self, array: Array, origin: Origin | None) -> SSAValue:
        """A constant with its origin; the array is not changed from here on."""
        array.flags.writeable = False
        return self.shared_constant(ConstantArray.derived(array, origin))

    @staticmethod
    def single_use(value: SSAValue) -> bool:
        """Whether exactly one operand reads the value."""
        return value.has_one_use()

    def fit(self, value: SSAValue, want: Aval) -> SSAValue | None:
        """The value broadcast to the wanted shape, or None where it would not evidently have it."""
        have = aval_of(value)
        if have == want:
            return value
        if have.dtype is not want.dtype or have.rank > want.rank:
            return None
        aligned = want.shape[want.rank - have.rank :]
        if any(d != 1 and d != w for d, w in zip(have.shape, aligned, strict=True)):
            return None
        return self.broadcast_to(value, want.shape)

    def proves(self, relation: str, a: Dim, b: Dim) -> bool:
        """Whether a relation of two dims holds for all sizes that the program admits."""
        return self.scope.prove(relation, a, b) is Truth.YES

    def replace(self, op: Operation, values: Sequence[SSAValue]) -> None:
        """Also replace the results of another op, once the rule has returned its own replacement."""
        self.replaced.append((op, values))


@dataclass(frozen=True)
class Firing:
    """One application of a rule: its name, the op that it fired on, and seconds taken."""

    rule: str
    op: str
    seconds: float


@dataclass
class EngineReport:
    """What a run did."""

    firings: list[Firing] = field(default_factory=list[Firing])
    seconds: float = 0.0

    @property
    def counts(self) -> dict[str, int]:
        """Firings by rule, most frequent first."""
        return dict(Counter(f.rule for f in self.firings).most_common())


#: Firings allowed for each op of the program. Each firing lowers the measure, and no rule makes more than a few ops.
BUDGET_PER_OP = 16
BUDGET_BASE = 256


def apply_rules(func: FuncOp, rules: Iterable[Rule], scope: Scope, budget: int | None = None) -> EngineReport:
    """Apply rules until none applies, in place.

    Each op is looked at once, and again when a rule changed one of its operands. The time is linear in the number of
    ops and firings; there is no recursion.

    Raises:
        PassError: the budget of firings ran out, or a rule gave a value of another shape or dtype.
    """
    by_root: dict[str, list[Rule]] = {}
    any_root: list[Rule] = []
    for r in rules:
        for name in r.roots:
            (any_root if name == "*" else by_root.setdefault(name, [])).append(r)
    tables: dict[str, tuple[Rule, ...]] = {}
    work: deque[Operation] = deque(op for block in blocks_of(func) for op in block.ops if isinstance(op, TensorOp))
    queued: set[Operation] = set(work)
    limit = BUDGET_BASE + BUDGET_PER_OP * len(work) if budget is None else budget
    report = EngineReport()
    begin = perf_counter()

    def enqueue(op: Operation) -> None:
        if isinstance(op, TensorOp) and op not in queued:
            queued.add(op)
            work.append(op)

    while work:
        op = work.popleft()
        queued.discard(op)
        if op.parent is None:
            continue  # erased since it was queued
        assert isinstance(op, TensorOp)
        name = op.record.name
        candidates = tables.get(name)
        if candidates is None:
            candidates = tables[name] = (*any_root, *by_root.get(name, ()))
        for r in candidates:
            start = perf_counter()
            rewriter = Rewriter(op, scope)
            replacement = r.rewrite(rewriter, op)
            if replacement is None:
                for made in reversed(rewriter.inserted):
                    made.detach()
                    made.erase()
                continue
            values = [replacement] if isinstance(replacement, SSAValue) else list(replacement)
            pairs = [(op, values), *((o, list(v)) for o, v in rewriter.replaced)]
            report.firings.append(Firing(r.name, op.name, 0.0))
            if len(report.firings) > limit:
                raise PassError(_overflow(report, limit))
            touched = _replace(r, pairs)
            for made in rewriter.inserted:
                enqueue(made)
            for user in touched:
                enqueue(user)
            for old, _ in pairs:
                _erase_dead(old, enqueue)
            for made in reversed(rewriter.inserted):
                _erase_dead(made, enqueue)
            report.firings[-1] = Firing(r.name, op.name, perf_counter() - start)
            break
    report.seconds = perf_counter() - begin
    return report


def _replace(r: Rule, pairs: Sequence[tuple[Operation, Sequence[SSAValue]]]) -> list[Operation]:
    """Move every use to the new values; the ops whose patterns may look different now."""
    touched: list[Operation] = []
    for op, values in pairs:
        if len(values) != len(op.results):
            raise PassError(f"rule {r.name!r} gave {len(values)} values for the {len(op.results)} results of {op.name}")
        for old, new in zip(op.results, values, strict=True):
            if aval_of(old) != aval_of(new):
                raise PassError(
                    f"rule {r.name!r} replaced a value of {op.name} with {aval_of(old)} by one with {aval_of(new)}; "
                    "a rule keeps shape and dtype"
                )
            if old is new:
                raise PassError(f"rule {r.name!r} replaced a value of {op.name} by itself; return None instead")
            users = [use.operation for use in old.uses]
            touched.extend(users)
            # A pattern may be two ops deep under its root.
            touched.extend(use.operation for user in users for result in user.results for use in result.uses)
            old.replace_all_uses_with(new)
    return touched


def _erase_dead(op: Operation, enqueue: Callable[[Operation], None]) -> None:
    dead = [op]
    while dead:
        d = dead.pop()
        if d.parent is None or not isinstance(d, (TensorOp, ConstantOp, FusionOp)):
            continue
        if any(r.first_use is not None for r in d.results):
            continue
        sources = list(d.operands)
        d.detach()
        d.erase()
        for source in sources:
            use = source.first_use
            if use is None:
                if isinstance(source.owner, Operation):
                    dead.append(source.owner)
            elif source.has_one_use():
                enqueue(use.operation)  # now the only reader


def _overflow(report: EngineReport, limit: int) -> str:
    last = report.firings[-64:]
    names = Counter(f.rule for f in last).most_common(6)
    listed = ", ".join(f"{name} ({n} times)" for name, n in names)
    return (
        f"the rewrite engine fired {limit} times without coming to an end; the last {len(last)} firings were: {listed}."
        " One of these rules undoes another: make each rule lower the number of ops or their cost"
    )
