"""``cuvil.debug_trace``: what a function becomes, op by op and kernel by kernel, and what stands in its way."""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TextIO

import numpy as np
from xdsl.ir import Block, Operation, SSAValue

from cuvil.compiler import CompileOptions, fuse_program
from cuvil.dtypes import DType, bool_, dtype, float64, int64
from cuvil.frontend.program import TracedProgram, trace
from cuvil.frontend.pytree import argument_paths, flatten
from cuvil.frontend.tracer import Missing
from cuvil.ir.attributes import format_param
from cuvil.ir.control import ControlOp
from cuvil.ir.dialect import ConstantOp, TensorOp, aval_of
from cuvil.ir.interpreter import location_text
from cuvil.ops.record import Aval
from cuvil.passes.boundaries import boundaries, kernels_of, members
from cuvil.passes.pipeline import PassRecord
from cuvil.support.errors import ArgumentTypeError, CuvilError

_WEAK: dict[type, DType] = {bool: bool_, int: int64, float: float64}


@dataclass(frozen=True)
class OpRow:
    """A traced op: names of its operands and results, its parameters, and the user's line."""

    results: tuple[str, ...]
    op: str
    operands: tuple[str, ...]
    params: dict[str, str]
    types: tuple[str, ...]
    line: str
    depth: int = 0  # branches and loops that it stands in


@dataclass(frozen=True)
class KernelRow:
    """A kernel: its ops and why they are together."""

    number: int
    kind: str
    reason: str
    ops: tuple[str, ...]
    writes: tuple[str, ...]
    line: str
    inside: tuple[str, ...] = ()  # branches and loops that it runs in


@dataclass(frozen=True)
class BoundaryRow:
    """A value that one kernel writes and another reads, and why the two are not one."""

    producer: int
    consumer: int
    value: str
    reason: str


@dataclass(frozen=True)
class TraceReport:
    """What :func:`debug_trace` found. ``str()`` is the text, :meth:`as_json` the same as JSON values.

    Attributes:
        name: the function's name.
        inputs: name and type of each array that it takes.
        ops: the ops as they were traced.
        rules: how often each rewrite rule fired.
        kernels: the kernels in the order in which they run.
        boundaries: the values between kernels.
        unsupported: calls that cuvil does not have. Then the function cannot be compiled, and there are no kernels.
        error: what ended tracing early.
    """

    name: str
    inputs: tuple[tuple[str, str], ...] = ()
    ops: tuple[OpRow, ...] = ()
    rules: dict[str, int] = field(default_factory=dict[str, int])
    kernels: tuple[KernelRow, ...] = ()
    boundaries: tuple[BoundaryRow, ...] = ()
    unsupported: tuple[Missing, ...] = ()
    error: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The report as dicts, lists, strings and numbers."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"{self.name}({', '.join(f'{n}: {t}' for n, t in self.inputs)})"]
        if self.unsupported:
            lines += ["", f"unsupported ({len(self.unsupported)})"]
            for m in self.unsupported:
                near = f"; nearest: {', '.join(m.nearest)}" if m.nearest else "; nothing of a similar name"
                lines.append(f"  {m.what}  {m.line}{near}")
        if self.error is not None:
            lines += ["", "tracing ended early", f"  {self.error}"]
        lines += ["", f"traced ops ({len(self.ops)})"]
        lines += _table(
            [
                (
                    f"{'  ' * o.depth}{', '.join(o.results) or 'yield'} =",
                    f"{o.op}({', '.join((*o.operands, *(f'{k}={v}' for k, v in o.params.items())))})",
                    ", ".join(o.types),
                    o.line,
                )
                for o in self.ops
            ]
        )
        if self.rules:
            lines += ["", "rewrites: " + ", ".join(f"{name} x{count}" for name, count in self.rules.items())]
        if self.kernels:
            lines += ["", f"kernels ({len(self.kernels)})"]
            for k in self.kernels:
                where = f"in {', '.join(k.inside)}: " if k.inside else ""
                what = f"{k.kind}: {', '.join(k.ops) or 'copy'} -> {', '.join(k.writes)}"
                lines.append(f"  {k.number}. {where}{what}  {k.line}")
                lines.append(f"     {k.reason}")
        if self.boundaries:
            lines += ["", "not fused"]
            lines += [f"  {b.producer} -> {b.consumer}  {b.value}: {b.reason}" for b in self.boundaries]
        return "\n".join(lines)


def debug_trace(
    fn: Callable[..., Any],
    *args: Any,
    numerics: str = "standard",
    file: TextIO | None = None,
    **kwargs: Any,
) -> TraceReport:
    """Trace a function for some arguments and print what it becomes; nothing is compiled or run.

    The report lists the traced ops with the user's lines, shapes and dtypes, the kernels that they are fused into and
    why, and for each value between two kernels why those are not one. Calls that cuvil does not have are listed all at
    once with the nearest names: tracing goes on behind them with arrays of the shapes that NumPy's functions give.

    Args:
        fn: a function of arrays, jitted or not.
        args: arrays and Python numbers, in containers as for ``jit``; sizes are taken as they are.
        numerics: ``"standard"`` or ``"relaxed"``.
        file: where the text goes; None is standard output.
        kwargs: named arguments of the function.

    Raises:
        ArgumentTypeError: an argument that is no array or number.

    >>> import io, numpy as np
    >>> import cuvil, cuvil.numpy as cnp
    >>> x = np.ones((2, 3), np.float32)
    >>> report = cuvil.debug_trace(lambda x: cnp.sum(cnp.exp(x), axis=1) + 1, x, file=io.StringIO())
    >>> [op.op for op in report.ops], [k.ops for k in report.kernels]
    (['exp', 'sum', 'add'], [('exp', 'sum', 'add')])
    """
    fn = inspect.unwrap(fn)
    name = getattr(fn, "__name__", "function")
    leaves, tree = flatten((args, kwargs))
    names = argument_paths(tree, _parameters(fn))
    avals: list[Aval] = []
    weak: list[type | None] = []
    for leaf, label in zip(leaves, names, strict=True):
        kind = type(leaf) if type(leaf) in _WEAK else None
        try:
            array = np.asarray(leaf, None if kind is None else _WEAK[kind].numpy)
            avals.append(Aval(array.shape, dtype(array.dtype)))
        except (CuvilError, TypeError, ValueError) as error:
            raise ArgumentTypeError(
                f"debug_trace takes arrays and numbers; {label} is {type(leaf).__name__}"
            ) from error
        weak.append(kind)
    missing: list[Missing] = []
    inputs = tuple((n, _type(a)) for n, a in zip(names, avals, strict=True))
    try:
        program = trace(fn, tree, avals, weak=weak, names=names, name=name, missing=missing)
    except (CuvilError, AttributeError) as error:
        report = TraceReport(name, inputs, unsupported=tuple(missing), error=f"{type(error).__name__}: {error}")
    else:
        ops = _op_rows(program)
        if missing:
            report = TraceReport(name, inputs, ops, unsupported=tuple(missing))
        else:
            records = fuse_program(program, CompileOptions(backend="null", numerics=numerics))  # type: ignore[arg-type]
            report = TraceReport(name, inputs, ops, _rules(records), _kernel_rows(program), _boundary_rows(program))
    (sys.stdout if file is None else file).write(f"{report}\n")
    return report


def _parameters(fn: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        return []


def _type(aval: Aval) -> str:
    return f"{aval.dtype.name}[{', '.join(map(str, aval.shape))}]"


def _rules(records: Sequence[PassRecord]) -> dict[str, int]:
    found = {n: c for r in records if r.name == "rules" for n, c in r.detail.items() if c}
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def _op_rows(program: TracedProgram) -> tuple[OpRow, ...]:
    labels: dict[SSAValue, str] = dict(zip(program.func.body.block.args, program.input_names, strict=True))
    rows: list[OpRow] = []
    count = itertools.count()

    def name(value: SSAValue) -> str:
        labels[value] = f"%{next(count)}"
        return labels[value]

    def visit(block: Block, depth: int) -> None:
        for op in block.ops:
            if isinstance(op, ConstantOp):
                labels[op.results[0]] = _constant(op)
                continue
            if op.results:
                rows.append(_op_row(op, tuple(name(r) for r in op.results), labels, depth))
            if not isinstance(op, ControlOp):
                continue
            for body in op.bodies:
                for arg, value in zip(reversed(body.args), reversed(op.invariants), strict=False):
                    labels[arg] = labels.get(value, "?")  # the invariants come last, under their names outside
                for arg in body.args:
                    labels.setdefault(arg, f"%{next(count)}")
                visit(body, depth + 1)

    visit(program.func.body.block, 0)
    return tuple(rows)


def _op_row(op: Operation, results: tuple[str, ...], labels: dict[SSAValue, str], depth: int) -> OpRow:
    operands = tuple(labels.get(o, o.name_hint or "?") for o in op.operands)
    params = {k: format_param(v) for k, v in op.params.items()} if isinstance(op, TensorOp) else {}
    name = op.record.name if isinstance(op, TensorOp) else op.name.removeprefix("cuvil.")
    return OpRow(
        results, name, operands, params, tuple(_type(aval_of(r)) for r in op.results), location_text(op), depth
    )


def _constant(op: ConstantOp) -> str:
    aval = aval_of(op.results[0])
    return str(op.constant.array.item()) if aval.shape == () else f"constant {_type(aval)}"


def _inside(op: Operation) -> tuple[str, ...]:
    """The branches and loops around an op, the outermost first."""
    out: list[str] = []
    around = op.parent_op()
    while around is not None:
        if isinstance(around, ControlOp):
            out.append(around.name.removeprefix("cuvil."))
        around = around.parent_op()
    return tuple(reversed(out))


def _kernel_rows(program: TracedProgram) -> tuple[KernelRow, ...]:
    return tuple(
        KernelRow(
            k,
            op.kind,
            op.params["reason"],
            tuple(m.record.name for m in members(op)),
            tuple(_type(aval_of(r)) for r in op.results),
            location_text(op),
            _inside(op),
        )
        for k, op in enumerate(kernels_of(program.func), 1)
    )


def _boundary_rows(program: TracedProgram) -> tuple[BoundaryRow, ...]:
    return tuple(
        BoundaryRow(b.producer + 1, b.consumer + 1, _type(b.value), b.reason) for b in boundaries(program.func)
    )


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    if not rows:
        return []
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return ["  " + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]


__all__ = ["BoundaryRow", "KernelRow", "OpRow", "TraceReport", "debug_trace"]
