"""Tracing: inputs, constants, source lines, guards and what ends up in the IR."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sample_programs import traced
from xdsl.dialects.func import ReturnOp

from cuvil.dtypes import float32
from cuvil.frontend.dispatch import apply
from cuvil.frontend.namespace import protocol  # noqa: F401 - fills in the operators of traced arrays
from cuvil.frontend.program import Subprogram, trace, trace_within
from cuvil.frontend.pytree import flatten
from cuvil.frontend.tracer import current_trace
from cuvil.ir.dialect import ConstantOp, TensorOp, aval_of
from cuvil.ir.interpreter import location_text
from cuvil.ir.verifier import verify_stage
from cuvil.ops.record import Aval
from cuvil.support.errors import ShapeError, TracingError
from cuvil.symbolic import symbol

B, S = symbol("B"), symbol("S")
MATRIX = Aval((B, S), float32)
#: The structure of the arguments of a function of one array.
ONE_ARGUMENT = flatten((0,))[1]


def _ops(program: Any, kind: type) -> list[Any]:
    return [op for op in program.func.body.block.ops if isinstance(op, kind)]


def test_a_program_is_what_the_function_did() -> None:
    program = traced(lambda x, y: apply("add", apply("exp", x), y), MATRIX, MATRIX)
    assert [op.name for op in program.func.body.block.ops] == ["cuvil.exp", "cuvil.add", "func.return"]
    assert program.inputs == (MATRIX, MATRIX) and program.outputs == (MATRIX,)
    assert program.input_names == ("x0", "x1") and program.guards == ()
    verify_stage(program.module, "tensor")
    assert current_trace() is None


def test_ops_know_the_users_line() -> None:
    def fn(x: Any) -> Any:
        y = apply("exp", x)
        return apply("sin", y)

    program = traced(fn, MATRIX)
    first = fn.__code__.co_firstlineno
    assert [location_text(op) for op in _ops(program, TensorOp)] == [
        f"{__file__}:{first + 1}",
        f"{__file__}:{first + 2}",
    ]


def test_captured_arrays_are_copied_once() -> None:
    w = np.ones(3, np.float32)
    program = traced(lambda x: apply("add", apply("multiply", x, w), w), Aval((B, 3), float32))
    (constant,) = _ops(program, ConstantOp)
    w[:] = 5
    np.testing.assert_array_equal(constant.value, [1, 1, 1])
    assert not constant.value.flags.writeable


def test_unknown_relations_become_guards() -> None:
    n, m = symbol("N"), symbol("M")
    program = traced(lambda x, y: apply("add", x, y), Aval((n,), float32), Aval((m,), float32))
    (guard,) = program.guards
    o = guard.obligation
    assert {str(o.left), str(o.right)} == {"N", "M"} and o.relation == "==" and guard.op == "add"
    assert guard.line.startswith(__file__)
    assert "cuvil.constraints" in program.func.attributes


def test_known_relations_need_no_guard() -> None:
    n, m = symbol("N"), symbol("M")
    avals = Aval((n,), float32), Aval((m,), float32)
    program = traced(lambda x, y: apply("add", x, y), *avals, constraints=("N == M",))
    assert program.guards == ()
    with pytest.raises(ShapeError, match=r"test_program.py:\d+"):
        traced(lambda x, y: apply("add", x, y), *avals, constraints=("N >= 4", "M == N + 1"))


def test_results_are_flattened_and_rebuilt() -> None:
    program = traced(lambda x: {"a": [x, apply("exp", x)], "b": None, "c": 3}, MATRIX)
    assert [a.shape for a in program.outputs] == [(B, S), (B, S), ()]
    assert program.out_tree.unflatten([1, 2, 3]) == {"a": [1, 2], "b": None, "c": 3}
    returned = program.func.body.block.last_op
    assert isinstance(returned, ReturnOp) and returned.operands[0] is program.func.body.block.args[0]


def test_a_trace_that_fails_leaves_no_trace_behind() -> None:
    def fn(x: Any) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError):
        traced(fn, MATRIX)
    assert current_trace() is None


def test_traces_nest_without_mixing() -> None:
    outer: list[Any] = []

    def fn(x: Any) -> Any:
        outer.append(x)
        inner = traced(lambda y: apply("exp", y), MATRIX)
        assert len(_ops(inner, TensorOp)) == 1
        with pytest.raises(TracingError, match="used outside of the call"):
            traced(lambda y: apply("add", y, outer[0]), MATRIX)
        return apply("sin", x)

    program = traced(fn, MATRIX)
    assert [op.name for op in _ops(program, TensorOp)] == ["cuvil.sin"]


def test_long_programs_trace_in_linear_time_without_recursion() -> None:
    def fn(x: Any) -> Any:
        for _ in range(10_000):
            x = apply("sin", x)
        return x

    program = traced(fn, MATRIX)
    assert len(_ops(program, TensorOp)) == 10_000


def test_a_function_traced_within_another_captures_its_values() -> None:
    """What an inner function uses of the traces around it becomes arguments of its block, once each."""
    seen: list[Subprogram] = []
    scalar = Aval((), float32)

    def outer(x: Any) -> Any:
        def middle(y: Any) -> Any:
            def inner(z: Any) -> Any:
                return x * y + z * x

            seen.append(trace_within(inner, ONE_ARGUMENT, [scalar], weak=[None], name="inner"))
            return y

        seen.append(trace_within(middle, ONE_ARGUMENT, [scalar], weak=[None], name="middle"))
        return x

    program = trace(outer, flatten(((0,), {}))[1], [scalar])
    inner, middle = seen
    assert [aval_of(a) for a in inner.block.args] == [scalar] * 3
    assert inner.arguments == tuple(inner.block.args[:1])
    assert [value for _, value in inner.captured] == list(inner.block.args[1:])
    assert not middle.captured
    assert program.func.body.block.args[0].type == inner.block.args[1].type


def test_a_value_of_an_inner_trace_does_not_leave_it() -> None:
    def outer(x: Any) -> Any:
        kept: list[Any] = []
        trace_within(lambda y: kept.append(y) or y, ONE_ARGUMENT, [Aval((), float32)], weak=[None], name="inner")
        return x + kept[0]

    with pytest.raises(TracingError, match="outside of the call"):
        trace(outer, flatten(((0,), {}))[1], [Aval((), float32)])
