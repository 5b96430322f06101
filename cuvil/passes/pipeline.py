"""The order of the passes: each runs once, in a named place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from time import perf_counter

from xdsl.dialects.func import FuncOp

from cuvil.ir.dialect import TensorOp
from cuvil.passes.cleanup import eliminate_common_subexpressions, eliminate_dead_code
from cuvil.passes.complex_parts import split_complex
from cuvil.passes.control import has_control, hoist_invariants, simplify_control, sink_constants
from cuvil.passes.decompose import broadcast_updates, decompose, widen_halves
from cuvil.passes.engine import ALLOWED, Rule, apply_rules
from cuvil.passes.fusion import fuse
from cuvil.passes.layout import choose_layouts
from cuvil.passes.rules import RULE_SETS
from cuvil.passes.validate import Validation
from cuvil.symbolic import Scope


@dataclass(frozen=True)
class PassOptions:
    """Which passes run and how.

    Attributes:
        numerics: ``"standard"`` or ``"relaxed"``: which kinds of rules run.
        optimise: run common subexpression elimination and the rewrite rules.
        validate: run the program on the interpreter before and after every pass.
        tolerance: largest change under ``validate``, relative to a result's largest magnitude; None is by dtype.
        rules: rules of the user, tried after the compiler's own.
    """

    numerics: str = "standard"
    optimise: bool = True
    validate: bool = False
    tolerance: float | None = None
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True)
class PassRecord:
    """What one pass did: changes made, seconds taken, and firings by rule."""

    name: str
    changes: int
    seconds: float
    detail: dict[str, int] = field(default_factory=dict[str, int])


#: Opaque kernels that are written for float32 and float64.
_NO_HALVES = frozenset({"lstm", "gru"})


def _kept_whole(op: TensorOp) -> bool:
    """Composite ops that a backend kernel computes whole."""
    return op.record.name == "scaled_dot_product_attention"


@lru_cache(maxsize=8)
def rules_for(numerics: str) -> tuple[Rule, ...]:
    """The compiler's rules that run under a numerics mode."""
    return tuple(r for s in RULE_SETS for r in s.rules if r.kind in ALLOWED[numerics])


class _Passes:
    """Runs passes one after the other on one function, timed, and validated where that is asked for."""

    def __init__(self, func: FuncOp, scope: Scope, options: PassOptions) -> None:
        self.func = func
        self.records: list[PassRecord] = []
        self.validation = Validation(func, scope, options.tolerance) if options.validate else None

    def run(self, name: str, change: Callable[[], int | dict[str, int]]) -> None:
        """Run one pass; ``change`` returns the number of changes, or that by rule."""
        start = perf_counter()
        done = change()
        detail = done if isinstance(done, dict) else {}
        count = sum(detail.values()) if isinstance(done, dict) else done
        self.records.append(PassRecord(name, count, perf_counter() - start, detail))
        if self.validation is not None:
            self.validation.check(self.func, name)


def optimise(func: FuncOp, scope: Scope, options: PassOptions) -> list[PassRecord]:
    """The tensor-stage passes, in place.

    Raises:
        PassError: a rule ran over its budget, or under ``validate`` a pass changed a value.
    """
    passes = _Passes(func, scope, options)
    control = has_control(func)
    if control:
        passes.run("sink-constants", lambda: sink_constants(func))
    passes.run("complex-parts", lambda: split_complex(func))
    passes.run("decompose", lambda: decompose(func, _kept_whole))
    passes.run("widen-halves", lambda: widen_halves(func, _NO_HALVES))
    passes.run("broadcast-updates", lambda: broadcast_updates(func))
    if options.optimise:
        # Rules that ask for the same operand twice want equal values to be one value.
        passes.run("cse", lambda: eliminate_common_subexpressions(func))
        if control:
            passes.run("control", lambda: simplify_control(func))
        rules = (*rules_for(options.numerics), *(r for r in options.rules if r.kind in ALLOWED[options.numerics]))
        passes.run("rules", lambda: apply_rules(func, rules, scope).counts)
        if control:
            passes.run("hoist", lambda: hoist_invariants(func))
        passes.run("cse-after-rules", lambda: eliminate_common_subexpressions(func))
        passes.run("layout", lambda: choose_layouts(func, relaxed=options.numerics == "relaxed"))
    passes.run("dce", lambda: eliminate_dead_code(func))
    if control and options.optimise:
        passes.run("control-after-rules", lambda: simplify_control(func))
        passes.run("dce-after-control", lambda: eliminate_dead_code(func))
    return passes.records


def fuse_stage(func: FuncOp, scope: Scope, options: PassOptions) -> list[PassRecord]:
    """Group ops into kernels, in place."""
    passes = _Passes(func, scope, options)

    def grouped() -> int:
        fuse(func, scope)
        return sum(1 for _ in func.body.block.ops)

    passes.run("fusion", grouped)
    return passes.records
