"""Each checker passes what is right and finds a planted fault."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from xdsl.dialects.func import FuncOp, ReturnOp

from cuvil.dtypes import float32
from cuvil.frontend.program import TracedProgram
from cuvil.ir.builder import IRBuilder
from cuvil.ir.dialect import TensorOp
from cuvil.ir.interpreter import run_function
from cuvil.ops.record import OperandSample
from cuvil.passes.cleanup import eliminate_common_subexpressions, eliminate_dead_code
from cuvil.passes.engine import Case, rule
from cuvil.support.errors import ArgumentError
from cuvil.symbolic import Scope
from cuvil.testing import (
    Mismatch,
    RandomChooser,
    apply,
    check_backend,
    check_pass,
    check_rule,
    check_transform,
    draw_program,
)

Run = Callable[[Sequence[Any], Mapping[str, int]], Sequence[Any]]
X = np.float32([[0.5, -1.0, 2.0], [3.0, 0.0, -0.5]])


def normalised(x: Any) -> Any:
    return apply("divide", x, apply("sum", apply("exp", x), axes=(1,), keepdims=True))


def swapped(func: FuncOp, old: str, new: str) -> None:
    """Replace every op ``old`` with ``new``."""
    for op in list(func.body.block.ops):
        if isinstance(op, TensorOp) and op.record.name == old:
            values = IRBuilder(func.body.block, before=op).emit(new, list(op.operands), dict(op.params))
            for a, b in zip(op.results, values, strict=True):
                a.replace_all_uses_with(b)
            op.detach()
            op.erase()


def faulty_backend(old: str, new: str) -> Callable[[TracedProgram], Run]:
    """Computes ``new`` for ``old``."""

    def compile_for(program: TracedProgram) -> Run:
        swapped(program.func, old, new)
        return lambda inputs, sizes: run_function(program.func, inputs, sizes)

    return compile_for


def sloppy_backend(relative: float) -> Callable[[TracedProgram], Run]:
    """Off by a relative error."""

    def compile_for(program: TracedProgram) -> Run:
        def run(inputs: Sequence[Any], sizes: Mapping[str, int]) -> Sequence[Any]:
            out = run_function(program.func, inputs, sizes)
            return [(o * (1 + relative)).astype(o.dtype) if o.dtype.kind == "f" else o for o in out]

        return run

    return compile_for


@pytest.mark.parametrize("backend", ["c", "reference"])
def test_a_right_backend_passes(backend: str) -> None:
    check_backend(normalised, X, backend=backend, shapes="(B, 3)")


@pytest.mark.parametrize("new", ["exp2", "expm1"])
def test_a_wrong_instruction_is_found(new: str) -> None:
    with pytest.raises(Mismatch, match="expected"):
        check_backend(normalised, X, backend=faulty_backend("exp", new))


def test_an_error_of_a_few_units_passes_and_one_of_many_does_not() -> None:
    check_backend(normalised, X, backend=sloppy_backend(2.0**-22))
    with pytest.raises(Mismatch):
        check_backend(normalised, X, backend=sloppy_backend(2.0**-16))


def test_zeros_are_compared_with_their_sign() -> None:
    check_backend(lambda x: apply("multiply", x, x), np.float32([0.0, -0.0]))
    with pytest.raises(Mismatch, match=r"is 0.0, expected -0.0"):
        check_backend(lambda x: apply("negative", x), np.float32([0.0]), backend=faulty_backend("negative", "abs"))


def test_a_wrong_shape_and_dtype_are_found() -> None:
    def wrong(change: Callable[[Any], Any]) -> Callable[[TracedProgram], Run]:
        return lambda program: lambda inputs, sizes: [change(o) for o in run_function(program.func, inputs, sizes)]

    with pytest.raises(Mismatch, match="shape"):
        check_backend(normalised, X, backend=wrong(lambda o: o[:1]))
    with pytest.raises(Mismatch, match="dtype"):
        check_backend(normalised, X, backend=wrong(lambda o: o.astype(np.float64)))


def test_an_op_is_checked_by_its_samples() -> None:
    check_backend("relu", backend="c", examples=3)
    with pytest.raises(Mismatch, match=r"apply\('maximum'"):
        check_backend("maximum", backend=faulty_backend("maximum", "minimum"))


def test_a_failing_program_prints_as_python_that_fails_again() -> None:
    drawn = (draw_program(RandomChooser(seed)) for seed in range(200))
    program = next(p for p in drawn if any(step.op == "tanh" for step in p.steps))
    faulty = faulty_backend("tanh", "sin")
    with pytest.raises(Mismatch) as caught:
        check_backend(program, backend=faulty)
    text = "from cuvil" + str(caught.value).partition("\nfrom cuvil")[2]
    assert "apply('tanh', x0)" in text
    assert len(text.splitlines()) < 20
    scope: dict[str, Any] = {"faulty": faulty}
    with pytest.raises(Mismatch):
        exec(text.replace("    x0,\n", "    x0,\n    backend=faulty,\n"), scope)


def test_arguments_are_checked() -> None:
    with pytest.raises(ArgumentError, match="unknown backend"):
        check_backend(normalised, X, backend="fortran")
    with pytest.raises(ArgumentError, match="2 shapes for 1 arrays"):
        check_backend(normalised, X, shapes="(B, 3), (B,)")


def test_right_passes_pass() -> None:
    def clean(func: FuncOp, scope: Scope) -> None:
        eliminate_common_subexpressions(func)
        eliminate_dead_code(func)

    check_pass(clean, normalised, X, shapes="(B, 3)")
    check_pass(clean, examples=10)


def test_a_pass_that_changes_values_is_found() -> None:
    def wrong(func: FuncOp, scope: Scope) -> None:
        swapped(func, "maximum", "add")

    check_pass(wrong, normalised, X)  # has no maximum
    with pytest.raises(Mismatch):
        check_pass(wrong, lambda x: apply("maximum", x, x), X)


def test_a_pass_that_breaks_the_ir_is_found() -> None:
    def wrong(func: FuncOp, scope: Scope) -> None:
        last = func.body.block.last_op
        assert isinstance(last, ReturnOp)
        last.operands[0].owner.properties.clear()  # type: ignore[union-attr]

    with pytest.raises(Mismatch, match="after the pass"):
        check_pass(wrong, lambda x: apply("sum", x, axes=(1,), keepdims=True), X)


def test_a_wrong_pass_is_found_among_random_programs() -> None:
    def wrong(func: FuncOp, scope: Scope) -> None:
        swapped(func, "add", "maximum")

    with pytest.raises(Mismatch, match="check_backend"):
        check_pass(wrong, examples=60)


def _negated_twice(c: Any) -> Case:
    return Case(lambda F, x: F.op("negative", F.op("negative", x)), (OperandSample((c.integer(0, 3),), float32),))


def test_a_right_rule_passes_and_a_wrong_one_does_not() -> None:
    @rule("negative", name="negative-of-negative", example=_negated_twice)
    def right(F: Any, op: Any) -> Any:
        "-(-x) -> x"
        return inner.operands[0] if (inner := F.producer(op.operands[0], "negative")) else None

    @rule("negative", name="negative-of-negative-is-abs", example=_negated_twice)
    def wrong(F: Any, op: Any) -> Any:
        "-(-x) -> abs(x)"
        inner = F.producer(op.operands[0], "negative")
        return F.op("abs", inner.operands[0]) if inner else None

    assert check_rule(right) > 0
    with pytest.raises(Mismatch, match="negative-of-negative-is-abs"):
        check_rule(wrong)


def test_transforms_are_compared_with_their_definition() -> None:
    def looped(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda xs: np.stack([fn(x) for x in xs])

    def broadcast(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return fn

    check_transform(broadcast, looped, lambda x: apply("exp", x), X)
    with pytest.raises(Mismatch, match="shape"):
        check_transform(broadcast, looped, lambda x: apply("sum", x, axes=(0,), keepdims=False), X)
    with pytest.raises(Mismatch, match="returns"):
        check_transform(lambda fn: lambda x: (fn(x), fn(x)), looped, lambda x: apply("exp", x), X)
