"""Solving symbols from the concrete shapes of a call, and saying precisely what does not fit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cuvil.support.errors import ShapeError
from cuvil.symbolic.expr import Dim, Expr, plain_symbol
from cuvil.symbolic.query import evaluate, free_symbols, linear_coefficient, substitute
from cuvil.symbolic.scope import Scope


@dataclass(frozen=True, slots=True)
class _Equation:
    """``dim == size``, and where it comes from."""

    dim: Expr
    size: int
    place: str


def solve(
    patterns: Sequence[Sequence[Dim]],
    shapes: Sequence[Sequence[int]],
    scope: Scope | None = None,
    *,
    names: Sequence[str] | None = None,
) -> dict[str, int]:
    """The symbols that make the ``patterns``, one for each argument, equal to the concrete ``shapes``.

    Plain symbols are read off first, then forms with one unknown that can be inverted (``2*S + 1``, ``B*S`` with B
    known) and equations of the scope (``H == 2*K``). Everything else, ``(S + 1)//2`` for one, is checked once its
    symbols are known. Relations of the scope whose symbols no argument determines are not checked.

    Raises ShapeError that names the argument (by ``names`` too where given), the axis, what was expected and what
    was found: another rank, another size, a symbol with two values, a broken relation, a symbol that the arguments
    do not determine.

    >>> from cuvil.symbolic import parse_dim
    >>> solve([[parse_dim("B"), parse_dim("2*S + 1")]], [(4, 7)])
    {'B': 4, 'S': 3}
    """
    if len(patterns) != len(shapes):
        raise ShapeError(f"expected {len(patterns)} arguments, got {len(shapes)}")

    def place(argument: int, axis: int | None = None) -> str:
        name = f" ({names[argument]})" if names is not None else ""
        return f"argument {argument}{name}" + ("" if axis is None else f", axis {axis}")

    env: dict[str, int] = {}
    origin: dict[str, str] = {}
    later: list[_Equation] = []
    for argument, (pattern, shape) in enumerate(zip(patterns, shapes, strict=True)):
        if len(pattern) != len(shape):
            raise ShapeError(
                f"{place(argument)}: expected {len(pattern)} axes of shape {_shape(pattern)}, got {len(shape)} of "
                f"shape {_shape(shape)}"
            )
        for axis, (dim, size) in enumerate(zip(pattern, shape, strict=True)):
            if size < 0:
                raise ShapeError(f"{place(argument, axis)}: expected a size >= 0, got {size}")
            name = plain_symbol(dim)
            if name is not None:
                known = env.setdefault(name, size)
                if known != size:
                    raise ShapeError(
                        f"{place(argument, axis)}: expected {name} = {known} as in {origin[name]}, got {size}"
                    )
                if name not in origin:
                    origin[name] = place(argument, axis)
            elif isinstance(dim, Expr):
                later.append(_Equation(dim, size, place(argument, axis)))
            elif dim != size:
                raise ShapeError(
                    f"{place(argument, axis)}: expected {dim}, got {size} (shape {_shape(shape)} for {_shape(pattern)})"
                )
    equations = list(later)
    if scope is not None:
        for relation in scope.relations:
            difference = relation.left - relation.right
            if relation.sign == "==" and isinstance(difference, Expr):
                equations.append(_Equation(difference, 0, f"the relation {relation}"))
    _invert(equations, env, origin)
    for equation in later:
        missing = sorted(free_symbols(equation.dim) - env.keys())
        if missing:
            raise ShapeError(
                f"{equation.place}: the size {equation.size} does not determine {', '.join(missing)} in "
                f"{equation.dim}; let an argument have {missing[0]} as a whole axis, or relate it to known symbols"
            )
        try:
            found = evaluate(equation.dim, env)
        except ShapeError as error:
            raise ShapeError(f"{equation.place}: expected {equation.dim}, got {equation.size}: {error}") from None
        if found != equation.size:
            raise ShapeError(
                f"{equation.place}: expected {equation.dim} = {found} with {_values(equation.dim.symbols, env, origin)}"
                f", got {equation.size}"
            )
    broken = None if scope is None else scope.first_broken(env)
    if broken is not None:
        used = _values(free_symbols(broken.left, broken.right), env, origin)
        raise ShapeError(f"expected sizes with {broken}, got {used}")
    return env


def _invert(equations: list[_Equation], env: dict[str, int], origin: dict[str, str]) -> None:
    """Add to ``env`` each symbol that an equation determines once the others in it are known."""
    progress = True
    while progress:
        progress = False
        for equation in equations:
            unknown = equation.dim.symbols - env.keys()
            if len(unknown) != 1:
                continue
            (name,) = unknown
            known: dict[str, Dim] = {other: env[other] for other in equation.dim.symbols if other != name}
            try:
                linear = linear_coefficient(substitute(equation.dim, known), name)
            except ShapeError as error:
                raise ShapeError(f"{equation.place}: {error}") from None
            if linear is None:
                continue
            coefficient, rest = linear
            if not isinstance(coefficient, int) or not isinstance(rest, int) or coefficient == 0:
                continue
            value, left = divmod(equation.size - rest, coefficient)
            if left or value < 0:
                given = _values(known.keys(), env, origin)
                raise ShapeError(
                    f"{equation.place}: expected {equation.dim} for an integer {name} >= 0"
                    f"{f' with {given}' if given else ''}, got {equation.size}, which none gives"
                )
            env[name] = value
            origin[name] = equation.place
            progress = True


def _shape(shape: Sequence[Dim]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def _values(names: Iterable[str], env: dict[str, int], origin: dict[str, str]) -> str:
    """``S = 3 (argument 0, axis 1)`` for each name."""
    return ", ".join(f"{name} = {env[name]} ({origin[name]})" for name in sorted(names))
