"""Traces a function into a program: an IR module, its symbols, guards and output structure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Region

from cuvil.dtypes import DType
from cuvil.frontend.dispatch import TraceBuilder, asoperand, materialise
from cuvil.frontend.pytree import TreeDef, flatten, leaf_paths
from cuvil.frontend.source import name_user_line
from cuvil.frontend.tracer import Guard, Trace, tracing
from cuvil.ir.attributes import ConstraintsAttr
from cuvil.ops.record import Aval
from cuvil.support.errors import ArgumentError, CuvilError, TracingError
from cuvil.symbolic import Scope, free_symbols


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
) -> TracedProgram:
    """Run ``fn(*args, **kwargs)`` on traced arrays and collect its ops.

    ``in_tree`` is the structure of ``(args, kwargs)``; ``avals`` are its leaves.

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
    names = list(names) if names is not None else leaf_paths(in_tree, "arg")
    weak = list(weak) if weak is not None else [None] * len(avals)
    tracers = [t.argument(a, n, w) for a, n, w in zip(avals, names, weak, strict=True)]
    args, kwargs = in_tree.unflatten(tracers)
    with tracing(t):
        try:
            result = fn(*args, **kwargs)
        except CuvilError as error:
            name_user_line(error)
            raise
        leaves, out_tree = flatten(result)
        builder = TraceBuilder(t)
        values = []
        for path, leaf in zip(leaf_paths(out_tree, "result"), leaves, strict=True):
            try:
                operand = asoperand(leaf)
            except CuvilError as error:
                raise TracingError(
                    f"{t.name} returned {type(leaf).__name__} at {path}; a traced function returns arrays, numbers and"
                    " containers of them"
                ) from error
            dt: DType | None = None
            values.append(materialise(builder, operand, dt))
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
