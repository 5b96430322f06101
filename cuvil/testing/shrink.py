"""Makes a failing program smaller: fewer outputs, fewer steps, smaller sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from cuvil.ir.dialect import aval_of
from cuvil.ops.builder import concrete
from cuvil.ops.record import Aval
from cuvil.support.errors import CuvilError
from cuvil.symbolic import evaluate, free_symbols, plain_symbol
from cuvil.testing.programs import Input, Program, Step

_ATTEMPTS = 200


def shrunk(program: Program, fails: Callable[[Program], bool], attempts: int = _ATTEMPTS) -> Program:
    """The smallest program found that still fails, after at most ``attempts`` tries.

    Each round tries, in this order: one output alone, integers in place of symbols, an output's operands in its
    place, a step's result as a fresh input, a step's operand in place of its result, smaller sizes, tamer inputs.
    """
    best = program
    left = attempts
    progress = True
    while progress and left > 0:
        progress = False
        for candidate in _smaller(best):
            if left <= 0:
                break
            left -= 1
            if fails(candidate):
                best = candidate
                progress = True
                break
    return best


def _smaller(program: Program) -> Iterator[Program]:
    seen = {_key(program)}
    for candidate in _candidates(program):
        key = _key(candidate)
        if key not in seen:
            seen.add(key)
            yield candidate


def _key(p: Program) -> str:
    return repr((p.inputs, [(s.op, s.operands, dict(s.params)) for s in p.steps], p.outputs, dict(p.sizes)))


def _candidates(program: Program) -> Iterator[Program]:
    if len(program.outputs) > 1:
        for o in program.outputs:
            yield replace(program, outputs=(o,)).pruned()
    if program.symbols():
        yield _static(program)
    starts = program.step_starts()
    for o in program.outputs:
        # The operands of an output in its place.
        for start, k in zip(starts, range(len(starts)), strict=True):
            operands = tuple(v for v in program.steps[k].operands if v is not None)
            if start <= o < start + program.result_count(k) and any(v >= len(program.inputs) for v in operands):
                rest = tuple(v for v in program.outputs if v != o)
                yield replace(program, outputs=(*rest, *operands)).pruned()
    avals = _avals(program)
    if avals is not None:
        # Late cuts first: they take most of the program away.
        for k in reversed(range(len(program.steps) - 1)):
            yield from _with_input_for(program, k, avals)
        yield from _bypassed(program, avals)
    yield from _other_sizes(program)
    for k, i in enumerate(program.inputs):
        if i.constant:
            yield _with_inputs(program, k, replace(i, constant=False))
        if i.domain == "any":
            yield _with_inputs(program, k, replace(i, domain="moderate"))


def _with_inputs(program: Program, k: int, new: Input) -> Program:
    return replace(program, inputs=(*program.inputs[:k], new, *program.inputs[k + 1 :]))


def _avals(program: Program) -> list[Aval] | None:
    """What is known of every value, or None where the program does not trace."""
    try:
        everything = replace(program, outputs=tuple(range(_count(program))))
        traced = everything.trace(symbolic=bool(program.symbols()))
    except CuvilError:
        return None
    last = traced.func.body.block.last_op
    return None if last is None else [aval_of(v) for v in last.operands]


def _count(program: Program) -> int:
    starts = program.step_starts()
    if not starts:
        return len(program.inputs)
    return starts[-1] + program.result_count(len(program.steps) - 1)


def _with_input_for(program: Program, k: int, avals: list[Aval]) -> Iterator[Program]:
    """Step ``k`` gone, its results being new inputs."""
    start = program.step_starts()[k]
    count = program.result_count(k)
    results = avals[start : start + count]
    known = {n for i in program.inputs if not i.constant for n in map(plain_symbol, i.shape) if n is not None}
    if not free_symbols(*(d for a in results for d in a.shape)) <= known:
        return
    shapes = [a.shape for a in results]
    base = len(program.inputs)
    inputs = (*program.inputs, *(Input(s, a.dtype, seed=k) for s, a in zip(shapes, results, strict=True)))

    def renumbered(v: int | None) -> int | None:
        if v is None or v < base:
            return v
        if start <= v < start + count:
            return base + v - start
        return v + count if v < start else v

    steps = [
        Step(s.op, tuple(renumbered(o) for o in s.operands), s.params) for n, s in enumerate(program.steps) if n != k
    ]
    outputs = [n for o in program.outputs if (n := renumbered(o)) is not None]
    yield Program(inputs, tuple(steps), tuple(outputs), program.sizes).pruned()


def _static(program: Program) -> Program:
    """With integers in place of the symbols."""
    env = dict(program.sizes)
    inputs = tuple(
        replace(i, shape=tuple(evaluate(d, env) for d in i.shape), size=evaluate(i.size, env)) for i in program.inputs
    )
    steps = tuple(replace(s, params={k: concrete(v, env) for k, v in s.params.items()}) for s in program.steps)
    return replace(program, inputs=inputs, steps=steps, sizes={})


def _bypassed(program: Program, avals: list[Aval]) -> Iterator[Program]:
    """A step's first result replaced by one of its operands of the same type."""
    for start, step in zip(program.step_starts(), program.steps, strict=True):
        for o in step.operands:
            if o is not None and avals[o] == avals[start]:
                steps = tuple(
                    replace(s, operands=tuple(o if v == start else v for v in s.operands)) for s in program.steps
                )
                outputs = tuple(o if v == start else v for v in program.outputs)
                yield replace(program, steps=steps, outputs=outputs).pruned()


def _other_sizes(program: Program) -> Iterator[Program]:
    for name, size in program.sizes.items():
        for smaller in (1, 2, 3, size // 2, size - 1):
            if 0 < smaller < size:
                yield replace(program, sizes={**program.sizes, name: smaller})


__all__ = ["shrunk"]
