"""Structured control flow for users: ``cond``, ``switch``, ``while_loop``, ``fori_loop``, ``scan`` and ``map``.

Outside of a traced function they run at once, in Python. Inside of one they become one op with regions, which runs
natively: a scan of 10,000 steps is one loop in C.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from cuvil.frontend.dispatch import ArrayLike, asoperand, dtype_of, is_traced, materialise
from cuvil.frontend.pytree import TreeDef, flatten, leaf_paths
from cuvil.frontend.regions import (
    Kind,
    as_condition,
    as_index,
    build_loop,
    build_switch,
    build_while,
    here,
    inside,
    kind_of,
    merged,
    next_kind,
    open_region,
)
from cuvil.frontend.rewrite.convert import convert
from cuvil.frontend.source import at_user_line
from cuvil.frontend.tracer import METHODS, Trace, Tracer, current_trace
from cuvil.ops.builder import NumpyBuilder
from cuvil.ops.record import Array, Aval
from cuvil.support.errors import ArgumentError, ArgumentTypeError, ShapeError
from cuvil.symbolic import Dim, Expr, Scope, dim_max

Tree = Any


# -------------------------------------------------------------------------------------------------- trees


def _leaves(tree: Tree, what: str) -> tuple[list[Any], TreeDef]:
    leaves, treedef = flatten(tree)
    for path, leaf in zip(leaf_paths(treedef, what), leaves, strict=True):
        try:
            asoperand(leaf)
        except ArgumentTypeError:
            raise ArgumentTypeError(
                f"{path} is {type(leaf).__name__}{at_user_line()}; control flow takes and gives arrays, numbers and"
                " containers of them"
            ) from None
    return leaves, treedef


def _same_tree(what: str, got: TreeDef, want: TreeDef) -> None:
    if got != want:
        raise ArgumentTypeError(f"{what} has the structure {got}, expected {want}{at_user_line()}")


def _array(x: Any) -> Array:
    """An eager result as an array, as a compiled function would return it."""
    return materialise(NumpyBuilder(), asoperand(x))


def _arrays(tree: Tree, what: str) -> Tree:
    leaves, treedef = _leaves(tree, what)
    return treedef.unflatten(_array(x) for x in leaves)


def _scratch() -> Trace:
    """A trace whose ops nobody keeps: for types and checks of eager code."""
    return Trace(Scope(()), "eager")


def _callable(f: Any, name: str, what: str) -> Any:
    """A function argument, rewritten where it is to be traced."""
    if not callable(f):
        raise ArgumentTypeError(f"{name}: {what} must be a function, got {type(f).__name__}{at_user_line()}")
    return f if current_trace() is None else convert(f)


# -------------------------------------------------------------------------------------------- cond, switch


def cond(pred: ArrayLike, true_fn: Callable[..., Tree], false_fn: Callable[..., Tree], *operands: Tree) -> Tree:
    """``true_fn(*operands)`` where ``pred`` holds, else ``false_fn(*operands)``; only one of them runs.

    Args:
        pred: a bool, or a traced array of one element.
        true_fn, false_fn: functions of the operands; both must give the same structure, shapes and dtypes.
        operands: pytrees. Values that the functions use from around them need not be among these.

    Raises:
        ShapeError, DTypeError, ArgumentTypeError: the branches give different types.

    >>> import numpy as np
    >>> cond(True, lambda x: x + 1, lambda x: x - 1, np.float32(1))
    array(2., dtype=float32)
    """
    true_fn, false_fn = _callable(true_fn, "cond", "true_fn"), _callable(false_fn, "cond", "false_fn")
    if not is_traced(pred):
        out = (true_fn if as_condition(pred) else false_fn)(*operands)
        return out if current_trace() is not None else _arrays(out, "the result of cond")
    return _branch("cond", as_condition(pred, "the condition of cond"), (false_fn, true_fn), operands)


def switch(index: ArrayLike, branches: Sequence[Callable[..., Tree]], *operands: Tree) -> Tree:
    """``branches[index](*operands)``, the index clamped to the branches there are; only that one runs.

    Raises:
        ArgumentError: no branches.
        ShapeError, DTypeError, ArgumentTypeError: the branches give different types.

    >>> switch(7, [lambda x: x, lambda x: 10 * x], 3)
    array(30)
    """
    if not branches:
        raise ArgumentError(f"switch needs at least one branch{at_user_line()}")
    branches = [_callable(f, "switch", f"branch {k}") for k, f in enumerate(branches)]
    number = as_index(index, "the index of switch")
    if not is_traced(number):
        out = branches[min(max(int(number), 0), len(branches) - 1)](*operands)
        return out if current_trace() is not None else _arrays(out, "the result of switch")
    if isinstance(number, Expr) or number.cuvil_dtype.is_bool:
        number = METHODS["binary"]("add", number, 0) if isinstance(number, Expr) else METHODS["astype"](number, "int64")
    return _branch("switch", number, branches, operands)


def _branch(name: str, selector: Tracer, branches: Sequence[Callable[..., Tree]], operands: Sequence[Tree]) -> Tree:
    parent = current_trace()
    assert parent is not None
    location = here()
    regions = [open_region(parent, (), ()) for _ in branches]
    trees: list[TreeDef] = []
    for region, f in zip(regions, branches, strict=True):
        region.leaves, made = inside(region, lambda f=f: _leaves(f(*operands), f"the result of {name}"))
        trees.append(made)
        _same_tree(f"the result of a branch of {name}", made, trees[0])
    tree = trees[0]
    labels = leaf_paths(tree, f"the result of {name}")
    return tree.unflatten(build_switch(parent, selector, regions, labels, location))


# -------------------------------------------------------------------------------------------------- loops


def while_loop(cond_fn: Callable[[Tree], ArrayLike], body_fn: Callable[[Tree], Tree], init: Tree) -> Tree:
    """Replace ``init`` by ``body_fn`` of it as long as ``cond_fn`` of it holds.

    Args:
        cond_fn: gives a bool, or an array of one element.
        body_fn: gives a pytree of the structure, shapes and dtypes of ``init``.
        init: a pytree.

    Raises:
        ShapeError, DTypeError, ArgumentTypeError: the loop would change a type.

    >>> while_loop(lambda x: x < 100, lambda x: 2 * x, np.int32(3))
    array(192, dtype=int32)
    """
    cond_fn, body_fn = _callable(cond_fn, "while_loop", "cond_fn"), _callable(body_fn, "while_loop", "body_fn")
    leaves, tree = _leaves(init, "the carried value")
    labels = leaf_paths(tree, "the carried value")

    def step(values: Sequence[Any]) -> list[Any]:
        out, made = _leaves(body_fn(tree.unflatten(values)), "the carried value")
        _same_tree("what the body of while_loop returns", made, tree)
        return out

    parent = current_trace()
    if parent is None:
        kinds = [kind_of(x) for x in leaves]
        while as_condition(cond_fn(tree.unflatten(leaves)), "the condition of while_loop"):
            leaves, kinds = _stepped(labels, kinds, step(leaves))
        return tree.unflatten(_array(x) for x in leaves)
    out = build_while(parent, leaves, labels, lambda v: cond_fn(tree.unflatten(v)), step, here())
    return tree.unflatten(out)


def _stepped(labels: Sequence[str], kinds: Sequence[Kind], out: list[Any]) -> tuple[list[Any], list[Kind]]:
    """Eager carried values after an iteration, in the types that a compiled loop would carry them in."""
    trace = _scratch()
    after = [next_kind(trace, n, k, kind_of(x)) for n, k, x in zip(labels, kinds, out, strict=True)]
    return [x if k.weak else materialise(NumpyBuilder(), asoperand(x), k.aval.dtype) for x, k in zip(out, after)], after


def fori_loop(lower: ArrayLike, upper: ArrayLike, body_fn: Callable[[Any, Tree], Tree], init: Tree) -> Tree:
    """``for i in range(lower, upper): init = body_fn(i, init)``.

    Bounds may be traced integers or sizes such as ``x.shape[0]``; ``i`` behaves as a Python integer does.

    Raises:
        ShapeError, DTypeError, ArgumentTypeError: the loop would change a type.

    >>> fori_loop(0, 5, lambda i, total: total + i, 0)
    array(10)
    """
    body_fn = _callable(body_fn, "fori_loop", "body_fn")
    low, high = as_index(lower, "the lower bound of fori_loop"), as_index(upper, "the upper bound of fori_loop")
    leaves, tree = _leaves(init, "the carried value")
    labels = leaf_paths(tree, "the carried value")

    def step(i: Any, values: Sequence[Any]) -> list[Any]:
        out, made = _leaves(body_fn(i, tree.unflatten(values)), "the carried value")
        _same_tree("what the body of fori_loop returns", made, tree)
        return out

    parent = current_trace()
    if parent is None:
        kinds = [kind_of(x) for x in leaves]
        for i in range(int(low), int(high)):
            leaves, kinds = _stepped(labels, kinds, step(i, leaves))
        return tree.unflatten(_array(x) for x in leaves)
    return tree.unflatten(build_range(parent, low, high, labels, leaves, step))


def build_range(
    parent: Trace,
    low: Any,
    high: Any,
    labels: Sequence[str],
    leaves: Sequence[Any],
    step: Callable[[Any, Sequence[Any]], Sequence[Any]],
) -> list[Tracer]:
    """A loop over integers: counted where the bounds are sizes, else with a condition."""
    if not isinstance(low, Tracer) and not isinstance(high, Tracer):
        trip = parent.scope.simplify(dim_max(high - low, 0))
        body = lambda i, state, _: step(i if low == 0 else METHODS["binary"]("add", i, low), state)  # noqa: E731
        return build_loop(parent, leaves, (), labels, trip, body, here())
    less = METHODS["binary"]
    out = build_while(
        parent,
        [_weak_index(low), *leaves],
        ["the loop's index", *labels],
        lambda v: less("less", v[0], high),
        lambda v: [less("add", v[0], 1), *step(v[0], v[1:])],
        here(),
    )
    return out[1:]


def _weak_index(i: Any) -> Any:
    """A bound as the first value of a loop's index: int64, and weak in promotion as Python integers are."""
    return METHODS["astype"](i, "int64").as_weak(int) if isinstance(i, Tracer) else i


def scan(
    f: Callable[[Tree, Tree], Any],
    init: Tree,
    xs: Tree = None,
    length: Dim | None = None,
    reverse: bool = False,
) -> tuple[Tree, Tree]:
    """Carry a value over the leading axis of ``xs`` and stack what each step gives.

    ``carry, y = f(carry, x)`` for each slice ``x`` of ``xs``; returns the last carry and the ``y`` stacked.

    Args:
        f: a function of the carry and a slice of ``xs``; the carry keeps its structure, shapes and dtypes.
        init: the first carry, a pytree.
        xs: a pytree of arrays with equal leading axes, or None.
        length: the number of steps, where ``xs`` has no arrays.
        reverse: go from the last slice to the first; ``ys[k]`` belongs to ``xs[k]`` all the same.

    Raises:
        ShapeError, DTypeError, ArgumentTypeError: leading axes differ, or the carry would change a type.
        ArgumentError: neither ``xs`` nor ``length`` says how many steps there are.

    >>> total, sums = scan(lambda c, x: (c + x, c + x), 0, np.arange(4))
    >>> int(total), sums.tolist()
    (6, [0, 1, 3, 6])
    """
    f = _callable(f, "scan", "f")
    leaves, tree = _leaves(init, "the carry")
    slices, xs_tree = _leaves(xs, "xs")
    slices = [asoperand(x) for x in slices]
    trip = _trip(slices, xs_tree, length)
    labels = leaf_paths(tree, "the carry")
    y_tree: list[TreeDef] = []

    def step(state: Sequence[Any], x: Sequence[Any]) -> list[Any]:
        out = f(tree.unflatten(state), xs_tree.unflatten(x))
        if type(out) is not tuple or len(cast(tuple[Any, ...], out)) != 2:
            raise ArgumentTypeError(f"scan: f must return (carry, y), got {type(out).__name__}{at_user_line()}")
        carry, made = _leaves(out[0], "the carry")
        _same_tree("the carry that f of scan returns", made, tree)
        y, made = _leaves(out[1], "y")
        if y_tree:
            _same_tree("the y that f of scan returns", made, y_tree[0])
        else:
            y_tree.append(made)
        return [*carry, *y]

    parent = current_trace()
    if parent is None:
        return _scan_now(step, leaves, tree, slices, int(trip), labels, y_tree, reverse)  # type: ignore[arg-type]
    body = lambda _, state, x: step(state, x)  # noqa: E731
    out = build_loop(parent, leaves, slices, labels, trip, body, here(), reverse=reverse)
    return tree.unflatten(out[: len(leaves)]), y_tree[0].unflatten(out[len(leaves) :])


def _trip(slices: Sequence[Any], tree: TreeDef, length: Dim | None) -> Dim:
    trip = length
    for path, x in zip(leaf_paths(tree, "xs"), slices, strict=True):
        shape = kind_of(x).aval.shape
        if not shape:
            raise ShapeError(f"scan: {path} has rank 0, and no leading axis to go over{at_user_line()}")
        if trip is None:
            trip = shape[0]
        elif trip != shape[0]:
            raise ShapeError(f"scan: {path} has {shape[0]} slices, expected {trip}{at_user_line()}")
    if trip is None:
        raise ArgumentError(f"scan without xs needs length=, the number of steps{at_user_line()}")
    if isinstance(trip, int) and trip < 0:
        raise ArgumentError(f"scan: length is {trip}; it must not be negative{at_user_line()}")
    return trip


def _scan_now(
    step: Callable[[Sequence[Any], Sequence[Any]], list[Any]],
    leaves: list[Any],
    tree: TreeDef,
    slices: Sequence[Any],
    trip: int,
    labels: Sequence[str],
    y_tree: list[TreeDef],
    reverse: bool,
) -> tuple[Tree, Tree]:
    n = len(leaves)
    kinds = [kind_of(x) for x in leaves]
    rows: list[list[Any]] = []
    for k in reversed(range(trip)) if reverse else range(trip):
        out = step(leaves, [np.asarray(x[k]) for x in slices])
        leaves, kinds = _stepped(labels, kinds, out[:n])
        rows.append([_array(y) for y in out[n:]])
    if reverse:
        rows.reverse()
    carry = tree.unflatten(_array(x) for x in leaves)
    if rows:
        trace = _scratch()
        for k in range(len(rows[0])):
            merged(trace, "y", [kind_of(r[k]) for r in rows])
        return carry, y_tree[0].unflatten(np.stack([r[k] for r in rows]) for k in range(len(rows[0])))
    # No step ran: a trace of one tells the shapes of what it would have stacked.
    region = open_region(
        _scratch(),
        [*kinds, *(Kind(Aval(x.shape[1:], dtype_of(x))) for x in slices)],
        [*labels, *("x" for _ in slices)],
    )
    out = inside(region, lambda: step(region.arguments[:n], region.arguments[n:]))
    shapes = [(kind_of(y).aval.shape, dtype_of(asoperand(y))) for y in out[n:]]
    return carry, y_tree[0].unflatten(np.zeros((0, *cast(tuple[int, ...], s)), d.numpy) for s, d in shapes)


def map(f: Callable[[Tree], Tree], xs: Tree) -> Tree:  # noqa: A001 - the public name
    """``f`` of each slice of ``xs`` along the leading axis, stacked. The slices are computed one after the other.

    >>> map(lambda x: x * x, np.arange(3)).tolist()
    [0, 1, 4]
    """
    f = _callable(f, "map", "f")
    return scan(lambda carry, x: (carry, f(x)), None, xs)[1]


__all__ = ["cond", "fori_loop", "map", "scan", "switch", "while_loop"]
