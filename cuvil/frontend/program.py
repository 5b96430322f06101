"""Traces a function into a program: an IR module, its symbols, guards and output structure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region, SSAValue

from cuvil.frontend.dispatch import TraceBuilder, asoperand, materialise
from cuvil.frontend.einops_backend import teach_einops
from cuvil.frontend.pytree import TreeDef, flatten, leaf_paths
from cuvil.frontend.rewrite.convert import convert
from cuvil.frontend.source import name_user_line
from cuvil.frontend.tracer import Guard, Missing, Trace, Tracer, current_trace, tracing
from cuvil.ir.attributes import ConstraintsAttr
from cuvil.ops.record import Aval
from cuvil.support.errors import ArgumentError, CuvilError, TracingError
from cuvil.symbolic import Scope, free_symbols


@dataclass
class Subprogram:
    """A function traced by itself, within the trace in progress where there is one.

    ``captured`` are the values of the traces around it that the function uses, each with the argument that stands for
    it in the block; they follow the function's own ``arguments``.
    """

    name: str
    block: Block
    arguments: tuple[SSAValue, ...]
    captured: tuple[tuple[Tracer, SSAValue], ...]
    results: tuple[SSAValue, ...]
    out_tree: TreeDef


def trace_within(
    fn: Callable[..., Any], in_tree: TreeDef, avals: Sequence[Aval], *, weak: Sequence[type | None], name: str
) -> Subprogram:
    """Run ``fn(*args)`` on arrays traced by themselves; ``in_tree`` is the structure of ``args``.

    Raises:
        TracingError: the function returned something that is not an array.
    """
    outer = current_trace()
    t = Trace(Scope(()), name) if outer is None else outer.within(name)
    tracers = [t.argument(a, n, w) for a, n, w in zip(avals, leaf_paths(in_tree, "arg"), weak, strict=True)]
    arguments = tuple(t.block.args)
    out_tree, results = _run(t, fn, in_tree.unflatten(tracers), {})
    return Subprogram(name, t.block, arguments, tuple(t.lifted.values()), tuple(results), out_tree)


def _run(t: Trace, fn: Callable[..., Any], args: Any, kwargs: Any) -> tuple[TreeDef, list[SSAValue]]:
    """What ``fn`` returns under a trace: its structure and the values of its leaves."""
    teach_einops()
    with tracing(t):
        try:
            result = convert(fn)(*args, **kwargs)
        except CuvilError as error:
            name_user_line(error)
            raise
        leaves, out_tree = flatten(result)
        builder = TraceBuilder(t)
        values: list[SSAValue] = []
        for path, leaf in zip(leaf_paths(out_tree, "result"), leaves, strict=True):
            try:
                operand = asoperand(leaf)
            except CuvilError as error:
                raise TracingError(
                    f"{t.name} returned {type(leaf).__name__} at {path}; a traced function returns arrays, numbers and"
                    " containers of them"
                ) from error
            values.append(materialise(builder, operand))
    return out_tree, values


@dataclass
class TracedProgram:
    """A traced function.

    ``weak`` are the Python scalar types of inputs that came from Python scalars (None for arrays).
    """

    name: str
    module: ModuleOp
    func: FuncOp
    scope: Scope
    guards: tuple[Guard, ...]
    inputs: tuple[Aval, ...]
    input_names: tuple[str, ...]
    out_tree: TreeDef
    outputs: tuple[Aval, ...]
    #: Least and greatest value of Python integer arguments, by input number, where narrower integers use them.
    int_ranges: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])


def trace(
    fn: Callable[..., Any],
    in_tree: TreeDef,
    avals: Sequence[Aval],
    *,
    weak: Sequence[type | None] | None = None,
    names: Sequence[str] | None = None,
    constraints: Sequence[str] = (),
    name: str | None = None,
    missing: list[Missing] | None = None,
) -> TracedProgram:
    """Run ``fn(*args, **kwargs)`` on traced arrays and collect its ops.

    ``in_tree`` is the structure of ``(args, kwargs)``; ``avals`` are its leaves. Calls that cuvil does not have are
    errors, or are added to ``missing`` where that is given (the program then computes nothing of use).

    Raises:
        ArgumentError: a symbol whose name begins with an underscore.
        TracingError: the function returned something that is not an array.
    """
    scope = Scope(constraints)
    for s in sorted(free_symbols(*(d for a in avals for d in a.shape))):
        if s.startswith("_"):
            raise ArgumentError(
                f"the dimension symbol {s!r} begins with an underscore, as the compiler's own loop variables do; name"
                f" it {s.lstrip('_') or 'N'!r}, for example"
            )
    t = Trace(scope, name or getattr(fn, "__name__", "function"))
    t.missing = missing
    names = list(names) if names is not None else leaf_paths(in_tree, "arg")
    weak = list(weak) if weak is not None else [None] * len(avals)
    tracers = [t.argument(a, n, w) for a, n, w in zip(avals, names, weak, strict=True)]
    args, kwargs = in_tree.unflatten(tracers)
    out_tree, values = _run(t, fn, args, kwargs)
    block = t.block
    block.add_op(ReturnOp(*values))
    func = FuncOp("main", ([a.type for a in block.args], [v.type for v in values]), Region(block))
    func.attributes["cuvil.name"] = StringAttr(t.name)
    if scope.relations:
        func.attributes["cuvil.constraints"] = ConstraintsAttr(tuple(str(r) for r in scope.relations))
    outputs = tuple(t.builder.aval(v) for v in values)
    return TracedProgram(
        t.name,
        ModuleOp([func]),
        func,
        scope,
        tuple(t.guards),
        tuple(avals),
        tuple(names),
        out_tree,
        outputs,
        t.int_ranges,
    )
