"""Differentiation over builders: duals carry tangents through ops, a tape carries cotangents back through them.

Each op has one rule, its ``jvp``: the tangents of its results as a linear function of those of its operands. It comes
from the record, from the scalar body (:mod:`cuvil.ops.scalar_derivatives`) or from the decomposition. Forward mode runs
the rule on arrays. Reverse mode runs it on a :class:`Tape`, which computes what does not depend on a tangent and notes
the rest, a list of ops that are linear in one operand each; pulled backwards, each step runs its record's
``transpose``. So both modes, and derivatives of derivatives, agree by construction.

>>> import numpy as np
>>> from cuvil.ops.builder import NumpyBuilder
>>> F = NumpyBuilder()
>>> tape = Tape(F)
>>> x = Dual(np.float64(3), tape.variable(F.aval(np.float64(3))))
>>> (y,) = Duals(tape).emit("square", [x], {})
>>> float(y.value), float(tape.pull(F, [y.tangent], [np.float64(1)], [x.tangent])[0])
(9.0, 6.0)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cuvil.dtypes import DType
from cuvil.ops.builder import Builder
from cuvil.ops.record import Array, Aval, Decomposition, Opaque, OpRecord, Pair, Params, ParamValue, ScalarBody, Shape
from cuvil.ops.registry import get
from cuvil.ops.scalar_derivatives import scalar_tangent
from cuvil.support.errors import UnsupportedError

#: A value of the builder at hand, or a :class:`Tangent` of a tape.
Value = Any


@dataclass(frozen=True, slots=True, eq=False)
class Tangent:
    """A tangent that is not known yet: a variable of a linear function.

    Rules of transposition see one in the place of each operand whose cotangent is asked for.
    """

    aval: Aval


@dataclass(frozen=True, slots=True)
class Dual:
    """A value and its tangent, None where it does not change."""

    value: Value
    tangent: Value | None = None


#: ``pull(F, cotangents, operands)``: a cotangent, or None, for each operand of a step, from those of its results, of
#: which at least one is not None. Operands with a tangent stand as :class:`Tangent`.
Pull = Callable[[Builder[Any], Sequence[Value | None], Sequence[Value | None]], Sequence[Value | None]]
#: ``push(F, operands)``: the tangents of a step's results.
Push = Callable[[Builder[Any], Sequence[Value | None]], Sequence[Value]]


@dataclass(frozen=True, slots=True)
class _Step:
    operands: tuple[Value | None, ...]
    results: tuple[Tangent, ...]
    pull: Pull
    push: Push
    origin: Any


class Tape(Builder[Any]):
    """Runs ops on known values at once, and notes those on tangents, which are linear."""

    def __init__(self, F: Builder[Any]) -> None:
        self.F = F
        self.steps: list[_Step] = []
        #: Where the steps being noted come from; given back when they are run.
        self.origin: Any = None

    def variable(self, aval: Aval) -> Tangent:
        """A tangent that the linear function takes."""
        return Tangent(aval)

    def emit(self, name: str, operands: Sequence[Value | None], params: dict[str, ParamValue]) -> tuple[Value, ...]:
        if not any(isinstance(o, Tangent) for o in operands):
            return self.F.emit(name, operands, params)
        record = get(name)
        filled = record.fill_params(params)
        if record.transpose is None:
            build = decomposition(record)
            assert build is not None, f"a derivative applies {name} to a tangent, which cannot be transposed"
            return as_results(build(self, *operands, **filled))
        transpose = record.transpose
        avals, _ = record.infer([None if o is None else self.aval(o) for o in operands], filled)

        def pull(F: Builder[Any], cotangents: Sequence[Value | None], given: Sequence[Value | None]) -> Sequence[Any]:
            return transpose(F, cotangents[0], given, **filled)

        def push(F: Builder[Any], given: Sequence[Value | None]) -> Sequence[Value]:
            return F.emit(name, given, filled)

        return self.note(operands, avals, pull, push)

    def note(
        self, operands: Sequence[Value | None], avals: Sequence[Aval], pull: Pull, push: Push
    ) -> tuple[Tangent, ...]:
        """Add a step that is linear in the tangents among its operands; returns those of its results."""
        results = tuple(Tangent(a) for a in avals)
        self.steps.append(_Step(tuple(operands), results, pull, push, self.origin))
        return results

    def constant(self, value: Array) -> Value:
        return self.F.constant(value)

    def aval(self, value: Value) -> Aval:
        return value.aval if isinstance(value, Tangent) else self.F.aval(value)

    def pull(
        self,
        F: Builder[Any],
        outputs: Sequence[Value | None],
        cotangents: Sequence[Value],
        variables: Sequence[Tangent],
        bind: Callable[[Value], Value] = lambda v: v,
        enter: Callable[[Any], None] = lambda origin: None,
    ) -> list[Value | None]:
        """The transpose of the linear function: cotangents of the variables from those of the outputs.

        None means zero. ``bind`` turns the values that the tape holds into values of ``F``, and ``enter`` is told the
        origin of each step before it runs.
        """
        known: dict[Tangent, Value] = {}
        for output, cotangent in zip(outputs, cotangents, strict=True):
            if isinstance(output, Tangent):
                _accumulate(F, known, output, cotangent)
        for step in reversed(self.steps):
            given = [known.pop(r, None) for r in step.results]
            if all(c is None for c in given):
                continue
            enter(step.origin)
            operands = [o if o is None or isinstance(o, Tangent) else bind(o) for o in step.operands]
            for operand, c in zip(step.operands, step.pull(F, given, operands), strict=True):
                if isinstance(operand, Tangent) and c is not None:
                    _accumulate(F, known, operand, fitted(F, c, operand.aval.shape))
        return [known.get(v) for v in variables]

    def push(
        self,
        F: Builder[Any],
        outputs: Sequence[Value | None],
        tangents: Sequence[Value],
        variables: Sequence[Tangent],
        bind: Callable[[Value], Value] = lambda v: v,
        enter: Callable[[Any], None] = lambda origin: None,
    ) -> list[Value | None]:
        """The linear function itself: tangents of the outputs from those of the variables."""
        known: dict[Tangent, Value] = dict(zip(variables, tangents, strict=True))
        for step in self.steps:
            enter(step.origin)
            operands = [None if o is None else known[o] if isinstance(o, Tangent) else bind(o) for o in step.operands]
            known.update(zip(step.results, step.push(F, operands), strict=True))
        return [known[o] if isinstance(o, Tangent) else o for o in outputs]


def _accumulate(F: Builder[Any], known: dict[Tangent, Value], at: Tangent, cotangent: Value) -> None:
    before = known.get(at)
    known[at] = cotangent if before is None else F.add(before, cotangent)


def fitted(F: Builder[Any], x: Value, shape: Shape) -> Value:
    """A value under a shape that is its own, though the symbols may not show it."""
    return F.reshape(x, shape)


def decomposition(record: OpRecord) -> Callable[..., Any] | None:
    """How a record is written in other ops, if it is."""
    body = record.body
    if isinstance(body, Decomposition):
        return body.build
    return body.decompose if isinstance(body, Opaque) else None


def as_results(value: Any) -> tuple[Value, ...]:
    """What a decomposition returns as a tuple."""
    return value if isinstance(value, tuple) else (value,)


class Duals(Builder[Dual]):
    """Runs ops on values with tangents; ``F`` takes both, a tape for unknown tangents."""

    def __init__(self, F: Builder[Any]) -> None:
        self.F = F

    def constant(self, value: Array) -> Dual:
        return Dual(self.F.constant(value))

    def aval(self, value: Dual) -> Aval:
        return self.F.aval(value.value)

    def emit(self, name: str, operands: Sequence[Dual | None], params: dict[str, ParamValue]) -> tuple[Dual, ...]:
        record = get(name)
        values = [None if o is None else o.value for o in operands]
        tangents = [None if o is None else o.tangent for o in operands]
        filled = record.fill_params(params)
        if all(t is None for t in tangents) or not self._changes(record, values, filled):
            return tuple(Dual(r) for r in self.F.emit(name, values, params))
        if record.no_gradient:
            raise no_derivative(name, record.no_gradient)
        if (parts := self._parts(record, values, filled)) is not None:
            return self._by_parts(parts, operands, filled)
        if record.jvp is not None:
            results = self.F.emit(name, values, params)
            found = record.jvp(self.F, values, results, tangents, **filled)
        elif isinstance(record.body, ScalarBody):
            results = self.F.emit(name, values, params)
            found = [scalar_tangent(self.F, record.body, values, results[0], tangents, filled)]
        elif (build := decomposition(record)) is not None:
            return as_results(build(self, *operands, **filled))
        else:
            raise no_derivative(name, "it has no rule for it")
        return tuple(
            Dual(r, None if t is None else fitted(self.F, t, self.F.shape(r)))
            for r, t in zip(results, found, strict=True)
        )

    def _changes(self, record: OpRecord, values: Sequence[Value | None], params: Params) -> bool:
        """Whether some result is a float or a complex number, which can have a tangent."""
        dtypes = record.dtype_rule(tuple(None if v is None else self.F.dtype(v) for v in values), params)
        return any(has_tangent(d) for d in dtypes)

    def _parts(self, record: OpRecord, values: Sequence[Value | None], params: Params) -> Callable[..., Any] | None:
        """How an op on complex numbers comes apart into real ones, where its own rule does not hold for them.

        Rules of linear ops and of analytic functions hold; a composition is written for real numbers.
        """
        dtypes = tuple(None if v is None else self.F.dtype(v) for v in values)
        if record.complex_rule is None or record.jvp is not None or not any(d and d.is_complex for d in dtypes):
            return None
        analytic = isinstance(record.body, ScalarBody) and record.dtype_rule(dtypes, params)[0].is_complex
        if not analytic:
            return record.complex_rule.parts
        if record.name == "sign":
            raise no_derivative("sign", "of a complex number it is no analytic function")
        return None

    def _by_parts(
        self, parts: Callable[..., Any], operands: Sequence[Dual | None], params: dict[str, ParamValue]
    ) -> tuple[Dual, ...]:
        given: list[Any] = []
        for o in operands:
            split = o is not None and self.dtype(o).is_complex
            given.append(Pair(self.op("real", o), self.op("imag", o)) if split else o)
        out = parts(self, *given, **params)
        return (self.op("complex", *out),) if isinstance(out, tuple) else (out,)


def has_tangent(dt: DType) -> bool:
    """Whether values of a dtype change smoothly: floats and complex numbers do."""
    return dt.is_float or dt.is_complex


def no_derivative(name: str, why: str) -> UnsupportedError:
    """The error of an op without a derivative."""
    return UnsupportedError(
        f"{name} has no derivative: {why}. Wrap its operand in cuvil.stop_gradient(...) to treat it as a constant, or"
        " compute it differently"
    )


def differentiable(record: OpRecord) -> str:
    """How the derivative of a record is found, or "" where it has none; completeness tests ask this.

    >>> from cuvil.ops.registry import get
    >>> differentiable(get("exp")), differentiable(get("matmul")), differentiable(get("tensordot"))
    ('scalar body', 'rule', 'decomposition')
    """
    if record.no_gradient:
        return ""
    if record.jvp is not None:
        return "rule"
    if isinstance(record.body, ScalarBody):
        return "scalar body"
    return "decomposition" if decomposition(record) is not None else ""


def through(build: Callable[..., Any]) -> Callable[..., Sequence[Any]]:
    """The ``jvp`` of an op that is differentiated as another way to compute it, ``build(F, *operands, **params)``."""

    def jvp(
        F: Builder[Any], operands: Sequence[Any], results: Sequence[Any], tangents: Sequence[Any], **params: ParamValue
    ) -> Sequence[Any]:
        duals = [None if o is None else Dual(o, t) for o, t in zip(operands, tangents, strict=True)]
        return [d.tangent for d in as_results(build(Duals(F), *duals, **params))]

    return jvp
