"""What users say about the shapes of a function's arguments, and what calls show: specs, hints and widening."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, TypeAlias

from cuvil.dtypes import DType, dtype
from cuvil.ops.record import Shape
from cuvil.support.errors import ArgumentError, CuvilError
from cuvil.symbolic import Dim, Expr, Relation, Scope, free_symbols, parse_dim, symbol

#: One array of an ``input_spec``: name, dtype (None: any) and shape.
Spec: TypeAlias = tuple[str, DType | None, Shape]


def _parse_size(size: Any) -> Dim:
    if isinstance(size, str):
        return parse_dim(size)
    if isinstance(size, Expr):
        return size
    try:
        number = operator.index(size)
    except TypeError:
        number = -1
    if number < 0:
        raise ArgumentError(f"the size {size!r} is no integer >= 0; give an axis that varies a name, such as 'B'")
    return number


def parse_spec(entry: Any) -> Spec:
    """One entry of an ``input_spec``: ``(name, dtype, shape)``; a dtype of None takes any.

    Raises:
        ArgumentError: anything else.
    """
    try:
        name, dt, dims = entry
        if isinstance(dims, str):
            raise ArgumentError(f"the shape {dims!r} is one text; write a tuple of sizes, such as ({dims!r},)")
        return str(name), None if dt is None else dtype(dt), tuple(_parse_size(d) for d in dims)
    except (TypeError, ValueError, CuvilError) as error:
        raise ArgumentError(
            f"an input_spec entry is (name, dtype, shape), e.g. ('x', 'float32', ('B', 3, 224, 224)); got {entry!r}:"
            f" {error}"
        ) from error


def spec_symbols(spec: Sequence[Spec]) -> frozenset[str]:
    """The symbols of a spec's shapes."""
    return free_symbols(*(d for _, _, shape in spec for d in shape))


def check_spec(spec: Sequence[Spec], constraints: Sequence[str], parameters: list[str]) -> None:
    """Tell an ``input_spec`` and ``constraints`` that cannot be meant.

    Raises:
        ArgumentError: entries in another order than the parameters, constraints that speak of no size of the spec or
            that nothing satisfies.
    """
    names = [name for name, _, _ in spec]
    if names != parameters and sorted(names) == sorted(parameters):
        raise ArgumentError(
            f"input_spec has the order {', '.join(names)}, the function's parameters {', '.join(parameters)}; entries"
            " are taken in order, so give them in that of the parameters"
        )
    if isinstance(constraints, str):
        raise ArgumentError(f"constraints is one text, {constraints!r}; write a list of them: [{constraints!r}]")
    scope = Scope(constraints)
    _check_symbols("constraint", scope.relations, spec_symbols(spec))
    if scope.admits_nothing:
        raise ArgumentError(f"no sizes satisfy all constraints {', '.join(constraints)}")


def check_hints(hints: Sequence[str], spec: Sequence[Spec] | None, constraints: Sequence[str]) -> None:
    """Tell hints that can never hold or that speak of unknown symbols.

    Raises:
        ArgumentError: such a hint, or hints without an ``input_spec`` that names the sizes.
    """
    if isinstance(hints, str):
        raise ArgumentError(f"hints is one text, {hints!r}; write a list of them: [{hints!r}]")
    if hints and spec is None:
        raise ArgumentError(
            f"hints such as {hints[0]!r} need an input_spec that names the sizes, e.g."
            " input_spec=[('x', None, ('B', 'S'))]"
        )
    for hint in hints:
        scope = Scope([hint])
        _check_symbols("hint", scope.relations, spec_symbols(spec or ()))
        if Scope([*constraints, hint]).admits_nothing:
            raise ArgumentError(
                f"the hint {hint} can never hold together with {', '.join(constraints) or 'sizes >= 0'}"
            )


def _check_symbols(what: str, relations: Sequence[Relation], known: frozenset[str]) -> None:
    for relation in relations:
        unknown = (free_symbols(relation.left) | free_symbols(relation.right)) - known
        if unknown:
            raise ArgumentError(
                f"the {what} {relation} speaks of {', '.join(sorted(unknown))}, which no size of input_spec has;"
                f" those have {', '.join(sorted(known)) or 'no symbols'}"
            )


def spec_text(spec: Sequence[Spec] | None) -> str:
    """A spec as messages show it."""
    if spec is None:
        return "(none)"
    return ", ".join(f"{n}: {d.name if d else 'any dtype'}[{', '.join(map(str, s))}]" for n, d, s in spec)


def widen(
    shapes: Sequence[tuple[int, ...]], seen: Sequence[Sequence[tuple[int, ...]]], names: Sequence[str]
) -> tuple[Shape, ...]:
    """Shapes with every axis that was seen to vary as a symbol; axes that always varied together share one.

    >>> widen([(4, 8), (4,)], [[(2, 8), (2,)]], ["x", "mask"])
    ((Expr('x_0'), 8), (Expr('x_0'),))
    """
    histories: dict[tuple[int, ...], Dim] = {}
    out: list[Shape] = []
    for k, shape in enumerate(shapes):
        dims: list[Dim] = []
        for axis, n in enumerate(shape):
            history = (n, *(s[k][axis] for s in seen))
            if all(h == n for h in history):
                dims.append(n)
                continue
            known = histories.get(history)
            if known is None:
                base = "".join(c if c.isalnum() else "_" for c in names[k]).strip("_") or f"arg{k}"
                known = histories[history] = symbol(f"{base}_{axis}")
            dims.append(known)
        out.append(tuple(dims))
    return tuple(out)


__all__ = ["Spec", "check_hints", "check_spec", "parse_spec", "spec_symbols", "spec_text", "widen"]
