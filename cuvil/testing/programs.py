"""Programs as data: inputs and steps that become a Python function, its source text, or tensor IR."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cuvil.dtypes import DType
from cuvil.frontend.dispatch import apply
from cuvil.frontend.program import TracedProgram, trace
from cuvil.frontend.pytree import flatten
from cuvil.ops.builder import concrete
from cuvil.ops.record import Array, Aval, Domain, OperandSample, ParamValue, Shape
from cuvil.ops.registry import get
from cuvil.symbolic import Dim, Expr, evaluate, plain_symbol, substitute
from cuvil.testing.arrays import draw_array


@dataclass(frozen=True)
class Input:
    """An array that a program takes, or a constant that it holds.

    Values come from ``seed`` and ``domain`` (``size`` bounds those of the domain ``"index"``), so that a program is
    written in a few lines whatever its sizes.
    """

    shape: Shape
    dtype: DType
    domain: Domain = "moderate"
    size: Dim = 0
    constant: bool = False
    seed: int = 0

    def array(self, sizes: Mapping[str, int]) -> Array:
        """The array for the sizes of the symbols."""
        env = dict(sizes)
        shape = tuple(evaluate(d, env) for d in self.shape)
        sample = OperandSample(shape, self.dtype, self.domain, evaluate(self.size, env))
        return draw_array(np.random.default_rng(self.seed), sample)


@dataclass(frozen=True)
class Step:
    """One op on earlier values, which are numbered: inputs first, then each step's results."""

    op: str
    operands: tuple[int | None, ...]
    params: Mapping[str, ParamValue] = field(default_factory=dict[str, ParamValue])


@dataclass(frozen=True)
class Program:
    """A well-typed program over symbolic sizes, with sizes at which it runs.

    Every symbol is a whole axis of some input that is not a constant; shapes and parameters are expressions over
    them. ``sizes`` are those that the program was drawn for: its guards hold there.
    """

    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def arguments(self) -> tuple[Input, ...]:
        """Inputs that are passed at a call."""
        return tuple(i for i in self.inputs if not i.constant)

    def draw(self, sizes: Mapping[str, int] | None = None) -> list[Array]:
        """Arguments for sizes of the symbols."""
        env = self.sizes if sizes is None else sizes
        return [i.array(env) for i in self.arguments]

    def function(self) -> Callable[..., Any]:
        """The program as a Python function over arrays, traced or not."""
        constants = [i.array({}) if i.constant else None for i in self.inputs]

        def program(*args: Any) -> Any:
            given = iter(args)
            values: list[Any] = [next(given) if c is None else c for c in constants]
            dims: dict[str, Dim] = {}
            for i, v in zip(self.inputs, values, strict=True):
                for name, size in zip(map(plain_symbol, i.shape), v.shape, strict=True):
                    if name is not None:
                        dims.setdefault(name, size)
            for step in self.steps:
                operands = [None if o is None else values[o] for o in step.operands]
                out = apply(step.op, *operands, **{k: _bind(v, dims) for k, v in step.params.items()})
                values.extend(out if isinstance(out, tuple) else (out,))
            return tuple(values[o] for o in self.outputs)

        return program

    def trace(self, *, symbolic: bool, name: str = "program") -> TracedProgram:
        """The program as tensor IR, over symbols or over the sizes it was drawn for.

        Raises:
            ShapeError: what a shape rule says.
        """
        env = dict(self.sizes)
        avals = [
            Aval(i.shape if symbolic else tuple(evaluate(d, env) for d in i.shape), i.dtype) for i in self.arguments
        ]
        _, tree = flatten((tuple(range(len(avals))), {}))
        return trace(self.function(), tree, avals, name=name)

    def source(self, note: str = "", call: str = "check_backend(program, {args})") -> str:
        """Python that runs on its own: the function, its arguments, and the check that fails."""
        return _Source(self).text(note, call)

    def symbols(self) -> tuple[str, ...]:
        """Names of the symbols, in order of the arguments that have them."""
        found = (plain_symbol(d) for i in self.arguments for d in i.shape)
        return tuple(dict.fromkeys(n for n in found if n is not None))

    def pruned(self) -> Program:
        """Without the steps and inputs that no output needs (inputs that fix a symbol stay)."""
        starts = self.step_starts()
        live = set(self.outputs)
        for start, step in zip(reversed(starts), reversed(self.steps), strict=True):
            if any(start + k in live for k in range(_results(step))):
                live.update(o for o in step.operands if o is not None)
        keep_inputs = [k for k in range(len(self.inputs)) if k in live]
        needed = self._needed_symbols(live, starts)
        fixed = {n for k in keep_inputs for n in map(plain_symbol, self.inputs[k].shape) if n is not None}
        for k, i in enumerate(self.inputs):
            names = {n for n in map(plain_symbol, i.shape) if n is not None}
            if k not in live and not i.constant and (names & needed) - fixed:
                keep_inputs.append(k)
                fixed |= names
        keep_inputs.sort()
        number = {old: new for new, old in enumerate(keep_inputs)}
        steps: list[Step] = []
        following = len(keep_inputs)
        for start, step in zip(starts, self.steps, strict=True):
            count = _results(step)
            if not any(start + k in live for k in range(count)):
                continue
            steps.append(replace(step, operands=tuple(None if o is None else number[o] for o in step.operands)))
            number.update({start + k: following + k for k in range(count)})
            following += count
        used = {n for k in keep_inputs for n in map(plain_symbol, self.inputs[k].shape) if n is not None}
        return Program(
            tuple(self.inputs[k] for k in keep_inputs),
            tuple(steps),
            tuple(number[o] for o in self.outputs),
            {n: s for n, s in self.sizes.items() if n in used},
        )

    def step_starts(self) -> list[int]:
        """The number of the first result of each step."""
        out: list[int] = []
        following = len(self.inputs)
        for step in self.steps:
            out.append(following)
            following += _results(step)
        return out

    def result_count(self, step: int) -> int:
        """How many results a step has."""
        return _results(self.steps[step])

    def _needed_symbols(self, live: set[int], starts: list[int]) -> set[str]:
        needed: set[str] = set()
        for start, step in zip(starts, self.steps, strict=True):
            if any(start + k in live for k in range(_results(step))):
                needed |= _symbols(tuple(step.params.values()))
        for k, i in enumerate(self.inputs):
            if k in live:
                needed |= _symbols(i.shape) | _symbols((i.size,))
        return needed


def _results(step: Step) -> int:
    return len(get(step.op).results)


def _symbols(value: ParamValue) -> frozenset[str]:
    if isinstance(value, tuple):
        out: frozenset[str] = frozenset()
        for v in value:
            out |= _symbols(v)
        return out
    return value.symbols if isinstance(value, Expr) else frozenset()


def _bind(value: ParamValue, dims: Mapping[str, Dim]) -> ParamValue:
    """A parameter over the sizes of a call: dims of the trace, or integers."""
    if isinstance(value, tuple):
        return tuple(_bind(v, dims) for v in value)
    if not isinstance(value, Expr):
        return value
    if all(isinstance(dims[n], int) for n in value.symbols):
        return concrete(value, {n: int(dims[n]) for n in value.symbols})  # type: ignore[call-overload]
    return substitute(value, {n: dims[n] for n in value.symbols})


class _Source:
    """Writes a program as Python."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.dtypes: set[str] = set()
        self.functions: set[str] = set()

    def text(self, note: str, call: str) -> str:
        p = self.program
        names = [f"c{k}" if i.constant else f"x{k}" for k, i in enumerate(p.inputs)]
        body: list[str] = []
        arguments = [n for n, i in zip(names, p.inputs, strict=True) if not i.constant]
        for symbol_name in p.symbols():
            k, axis = next(
                (k, a) for k, i in enumerate(p.inputs) for a, d in enumerate(i.shape) if plain_symbol(d) == symbol_name
            )
            if any(symbol_name in _symbols(tuple(s.params.values())) for s in p.steps):
                body.append(f"{symbol_name} = {names[k]}.shape[{axis}]")
        values = list(names)
        for step in p.steps:
            results = [f"v{len(values) + k}" for k in range(_results(step))]
            operands = ["None" if o is None else values[o] for o in step.operands]
            params = [f"{k}={self.param(v)}" for k, v in step.params.items()]
            body.append(f"{', '.join(results)} = apply({', '.join([repr(step.op), *operands, *params])})")
            values += results
        body.append(f"return {', '.join(values[o] for o in p.outputs)}")
        constants = [f"{n} = {self.array(i)}" for n, i in zip(names, p.inputs, strict=True) if i.constant]
        arrays = [f"{n} = {self.array(i)}" for n, i in zip(names, p.inputs, strict=True) if not i.constant]
        shapes = ", ".join(f"({''.join(f'{d}, ' for d in i.shape)})" for i in p.arguments)
        spec = f'\n    shapes="{shapes}",' if p.symbols() else ""
        args = ", ".join(arguments)
        check = f"check_backend(\n    program,\n    {args},{spec}\n)" if call.startswith("check_backend") else call
        imports: list[str] = []
        if self.dtypes:
            imports.append(f"from cuvil.dtypes import {', '.join(sorted(self.dtypes))}")
        if self.functions:
            imports.append(f"from cuvil.symbolic import {', '.join(sorted(self.functions))}")
        imports.append("from cuvil.testing import apply, check_backend, sample_array")
        head = [f'"""{note}"""'] if note else []
        return "\n".join(
            [
                *head,
                *imports,
                "",
                *constants,
                "",
                "",
                f"def program({', '.join(arguments)}):",
                *(f"    {line}" for line in body),
                "",
                "",
                *arrays,
                check.replace("{args}", args),
                "",
            ]
        )

    def param(self, value: ParamValue) -> str:
        if isinstance(value, tuple):
            inner = ", ".join(self.param(v) for v in value)
            return f"({inner},)" if len(value) == 1 else f"({inner})"
        if isinstance(value, DType):
            self.dtypes.add(value.name if not value.is_bool else "bool_")
            return value.name if not value.is_bool else "bool_"
        if isinstance(value, Expr):
            text = str(value)
            for short, long in (("max(", "dim_max("), ("min(", "dim_min(")):
                if short in text:
                    self.functions.add(long[:-1])
                    text = text.replace(short, long)
            return text
        if isinstance(value, float) and not np.isfinite(value):
            return f'float("{value}")'
        return repr(value)

    def array(self, i: Input) -> str:
        env = dict(self.program.sizes)
        shape = tuple(evaluate(d, env) for d in i.shape)
        size = f", size={evaluate(i.size, env)}" if i.domain == "index" else ""
        return f'sample_array("{i.dtype.name}", {shape}, "{i.domain}", seed={i.seed}{size})'


def from_values(
    inputs: Sequence[Input], steps: Sequence[Step], outputs: Sequence[int], sizes: Mapping[str, int]
) -> Program:
    """A program without what its outputs do not need."""
    return Program(tuple(inputs), tuple(steps), tuple(outputs), dict(sizes)).pruned()


__all__ = ["Input", "Program", "Step", "from_values"]
