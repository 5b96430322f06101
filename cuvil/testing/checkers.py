"""Checks for users' own functions, rules, passes and transforms against the reference; failures print as Python."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from xdsl.dialects.func import FuncOp
from xdsl.utils.exceptions import VerifyException

from cuvil.compiler import BACKENDS, CompileOptions, compile_program
from cuvil.dtypes import dtype
from cuvil.frontend.program import TracedProgram, trace
from cuvil.frontend.pytree import flatten
from cuvil.ir.interpreter import run_function
from cuvil.ops.record import Array, Aval, OpRecord, Shape
from cuvil.ops.registry import get
from cuvil.passes.engine import Rule
from cuvil.passes.rule_check import check_rule as run_rule_examples
from cuvil.support.errors import ArgumentError, CuvilError, PassError
from cuvil.symbolic import Scope, free_symbols, parse_dim, solve
from cuvil.testing.bounds import Bounded, exact
from cuvil.testing.compare import Mismatch, disagreement, first_disagreement, run_function_bounded
from cuvil.testing.differential import Configuration
from cuvil.testing.generate import draw_program
from cuvil.testing.programs import Input, Program, Step
from cuvil.testing.shrink import shrunk
from cuvil.testing.strategies import HypothesisChooser

Pass = Callable[[FuncOp, Scope], Any]
#: Compiles a traced program and returns ``run(inputs, sizes) -> results``.
Backend = Callable[[TracedProgram], Callable[[Sequence[Array], Mapping[str, int]], Sequence[Array]]]

_EXAMPLES = 25


def _named_backend(name: str, optimise: bool) -> Backend:
    if name not in BACKENDS:
        raise ArgumentError(f"unknown backend {name!r}; expected one of {', '.join(BACKENDS)}, or a function")

    def compile_for(program: TracedProgram) -> Callable[[Sequence[Array], Mapping[str, int]], Sequence[Array]]:
        return compile_program(program, CompileOptions(backend=name, optimise=optimise)).run

    return compile_for


def _shapes(text: str | Sequence[Sequence[Any]]) -> list[Shape]:
    """``"(B, 3), (B,)"``, or shapes whose entries are integers and expressions."""
    if isinstance(text, str):
        return [
            tuple(parse_dim(d) for d in inner.split(",") if d.strip()) for inner in re.findall(r"\(([^()]*)\)", text)
        ]
    return [tuple(d if isinstance(d, int) else parse_dim(str(d)) for d in shape) for shape in text]


def check_backend(
    subject: Callable[..., Any] | Program | OpRecord | str,
    *args: Any,
    backend: str | Backend = "c",
    shapes: str | Sequence[Sequence[Any]] | None = None,
    optimise: Sequence[bool] = (True, False),
    examples: int = _EXAMPLES,
) -> None:
    """Compare a backend with the reference, with static and symbolic shapes, passes on and off.

    Args:
        subject: a function of arrays, with its arguments in ``args``; a :class:`Program`; or an op (a record or its
            name), of which ``examples`` samples are drawn.
        backend: a backend's name, or a function that compiles a traced program and returns ``run(inputs, sizes)``.
        shapes: symbolic shapes of the arguments, such as ``"(B, 8), (B,)"``, to check a symbolic variant as well.
        optimise: whether the algebraic passes run.

    Dtypes, shapes, integers and booleans must be equal; floats must lie within a bound that follows from the ops that
    the function applies (see :mod:`cuvil.testing.bounds`).

    Raises:
        Mismatch: a value differs. For a program and an op the message holds a smaller program as runnable Python.

    >>> from cuvil.testing import apply
    >>> check_backend(lambda x: apply("exp", x), np.float32([0, 1, np.nan]), backend="reference")
    """
    if isinstance(subject, (OpRecord, str)):
        record = get(subject) if isinstance(subject, str) else subject
        for program in _samples(record, examples):
            check_backend(program, backend=backend, optimise=optimise)
        return
    if isinstance(subject, Program):
        _check_program(subject, lambda p: _program_problem(p, backend, optimise))
        return
    problem = _function_problem(subject, args, shapes, backend, optimise)
    if problem is not None:
        raise Mismatch(problem)


def _function_problem(
    fn: Callable[..., Any],
    args: Sequence[Any],
    shapes: str | Sequence[Sequence[Any]] | None,
    backend: str | Backend,
    optimise: Sequence[bool],
) -> str | None:
    leaves, tree = flatten((tuple(args), {}))
    arrays = [np.asarray(a) for a in leaves]
    patterns: list[list[Shape]] = [[tuple(a.shape) for a in arrays]]
    if shapes is not None:
        symbolic = _shapes(shapes)
        if len(symbolic) != len(arrays):
            raise ArgumentError(f"shapes gives {len(symbolic)} shapes for {len(arrays)} arrays: {shapes!r}")
        if any(free_symbols(*s) for s in symbolic):
            patterns.append(symbolic)

    def traced(pattern: Sequence[Shape]) -> TracedProgram:
        return trace(fn, tree, [Aval(s, dtype(a.dtype)) for s, a in zip(pattern, arrays, strict=True)])

    for pattern in patterns:
        program = traced(pattern)
        sizes = solve(pattern, [a.shape for a in arrays], program.scope)
        want = run_function_bounded(program.func, arrays, sizes)
        for on in optimise:
            compiled = _named_backend(backend, on) if isinstance(backend, str) else backend
            got = compiled(traced(pattern))(arrays, sizes)
            wrong = first_disagreement(got, want)
            if wrong is not None:
                return f"{Configuration(pattern is not patterns[0], on)}: {wrong}"
    return None


def _program_problem(program: Program, backend: str | Backend, optimise: Sequence[bool]) -> str | None:
    """What is wrong with a program in any configuration; errors count."""
    shapes = [i.shape for i in program.arguments]
    try:
        return _function_problem(program.function(), program.draw(), shapes, backend, optimise)
    except CuvilError as error:
        return f"{type(error).__name__}: {error}"


def _check_program(program: Program, problem: Callable[[Program], str | None]) -> None:
    found = problem(program)
    if found is None:
        return
    small = shrunk(program, lambda p: problem(p) is not None)
    message = problem(small) or found
    raise Mismatch(f"{message}\n\n{small.source(message)}")


def _samples(record: OpRecord, count: int) -> list[Program]:
    """Programs of one op each, drawn from a record's samples."""
    out: list[Program] = []

    @settings(
        max_examples=count, database=None, derandomize=True, deadline=None, phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )  # fmt: skip
    @given(st.data())
    def draw(data: st.DataObject) -> None:
        chooser = HypothesisChooser(data.draw)
        example = record.sample(chooser)
        inputs = [
            Input(o.shape, o.dtype, o.domain, o.size, seed=chooser.integer(0, 9999))
            for o in example.operands
            if o is not None
        ]
        numbers = iter(range(len(inputs)))
        operands = tuple(None if o is None else next(numbers) for o in example.operands)
        results = tuple(range(len(inputs), len(inputs) + len(record.results)))
        out.append(Program(tuple(inputs), (Step(record.name, operands, example.params),), results))

    draw()
    return out


# ------------------------------------------------------------------------------------------ rules and passes


def check_rule(rule: Rule, examples: int = 40, seed: int = 0) -> int:
    """Run a rewrite rule's generated test on the reference, before against after; returns how often it fired.

    Raises:
        Mismatch: a value, shape or dtype changed, the rule does not lower the program's weight, or it hardly fires;
            the message shows the program before and after.
    """
    try:
        return run_rule_examples(rule, examples, seed)
    except PassError as error:
        raise Mismatch(str(error)) from error


def check_pass(
    pass_fn: Pass,
    subject: Callable[..., Any] | Program | None = None,
    *args: Any,
    shapes: str | Sequence[Sequence[Any]] | None = None,
    examples: int = _EXAMPLES,
    steps: int = 6,
) -> None:
    """Check that a tensor-stage pass changes no value and leaves IR that verifies.

    Args:
        pass_fn: ``pass_fn(func, scope)``, which rewrites the function in place.
        subject: a function with its arguments in ``args``, a :class:`Program`, or nothing: then ``examples`` random
            programs of about ``steps`` steps are drawn.
        shapes: symbolic shapes of the arguments (of a program: its own).

    Raises:
        Mismatch: a value changed or the IR does not verify, with a smaller program as runnable Python.
    """
    if subject is None:
        for program in _random_programs(examples, steps):
            check_pass(pass_fn, program)
        return
    if isinstance(subject, Program):
        _check_program(
            subject, lambda p: _pass_problem(pass_fn, p.function(), p.draw(), [i.shape for i in p.arguments])
        )
        return
    problem = _pass_problem(pass_fn, subject, args, shapes)
    if problem is not None:
        raise Mismatch(problem)


def _pass_problem(
    pass_fn: Pass, fn: Callable[..., Any], args: Sequence[Any], shapes: str | Sequence[Sequence[Any]] | None
) -> str | None:
    def backend(program: TracedProgram) -> Callable[[Sequence[Array], Mapping[str, int]], Sequence[Array]]:
        pass_fn(program.func, program.scope)
        program.func.verify()
        return lambda inputs, sizes: run_function(program.func, inputs, sizes)

    try:
        return _function_problem(fn, args, shapes, backend, (True,))
    except (CuvilError, VerifyException) as error:
        return f"after the pass, {type(error).__name__}: {error}"


def _random_programs(count: int, steps: int) -> list[Program]:
    out: list[Program] = []

    @settings(
        max_examples=count, database=None, derandomize=True, deadline=None, phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )  # fmt: skip
    @given(st.data())
    def draw(data: st.DataObject) -> None:
        out.append(draw_program(HypothesisChooser(data.draw), steps))

    draw()
    return out


# --------------------------------------------------------------------------------------------- transforms


def check_transform(
    transform: Callable[[Callable[..., Any]], Callable[..., Any]],
    reference: Callable[[Callable[..., Any]], Callable[..., Any]],
    fn: Callable[..., Any],
    *args: Any,
    ulp: float = 16.0,
) -> None:
    """Check that ``transform(fn)(*args)`` is what ``reference(fn)(*args)`` says: a vmap against a Python loop, say.

    ``ulp`` bounds the difference of floats in units of the result dtype's spacing at the largest magnitude of its
    array; integers, booleans, NaN and infinities must be equal, and so must the structure of the results.

    Raises:
        Mismatch: a result differs.

    >>> from cuvil.testing import apply
    >>> def negated(fn):
    ...     return lambda x: -fn(x)
    >>> def by_op(fn):
    ...     return lambda x: apply("negative", fn(x))
    >>> check_transform(by_op, negated, lambda x: apply("exp", x), np.float32([1, 2]))
    """
    got, got_tree = flatten(transform(fn)(*args))
    want, want_tree = flatten(reference(fn)(*args))
    if got_tree != want_tree:
        raise Mismatch(f"the transformed function returns {got_tree}, expected {want_tree}")
    for k, (g, w) in enumerate(zip(got, want, strict=True)):
        wrong = disagreement(g, _loosened(np.asarray(w), ulp))
        if wrong is not None:
            raise Mismatch(f"result {k}: {wrong}")


def _loosened(value: Array, ulp: float) -> Bounded:
    dt = dtype(value.dtype)
    if not dt.is_float:
        return exact(value)
    magnitude = np.abs(value.astype(np.float64))
    largest = float(np.max(magnitude, initial=0.0, where=np.isfinite(magnitude)))
    eps = 2.0**-7 if dt.name == "bfloat16" else float(np.finfo(dt.numpy).eps)
    return Bounded(value, np.where(np.isfinite(magnitude), ulp * eps * largest, 0.0))


__all__ = ["Backend", "Mismatch", "Pass", "check_backend", "check_pass", "check_rule", "check_transform"]
