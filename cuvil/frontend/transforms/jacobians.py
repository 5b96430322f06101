"""``jacfwd``, ``jacrev`` and ``hessian``: all derivatives of a function at once, from its derivatives in directions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cuvil.frontend.dispatch import apply, asoperand, dtype_of
from cuvil.frontend.pytree import TreeDef, flatten
from cuvil.frontend.rewrite.convert import convert
from cuvil.frontend.source import at_user_line
from cuvil.frontend.transforms.derivatives import function_name, linearize, vjp
from cuvil.frontend.transforms.replay import aval_of_operand
from cuvil.frontend.transforms.vectorise import vmap
from cuvil.ops.record import Shape
from cuvil.support.errors import DTypeError
from cuvil.symbolic import product

Tree = Any


def jacrev(fun: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Any:
    """A function that returns the Jacobian of ``fun`` by reverse mode: right for more inputs than outputs.

    The result is a pytree like that of ``fun``; each leaf of shape S holds a pytree like the argument, whose leaves of
    shape T have become arrays [*S, *T]. With several ``argnums`` it holds a tuple of those.

    Raises:
        DTypeError: an argument or a result holds something else than floats.

    >>> import numpy as np
    >>> import cuvil, cuvil.numpy as cnp
    >>> cuvil.jacrev(lambda x: cnp.stack([x[0] * x[1], x[1]]))(np.float32([2, 3])).tolist()
    [[3.0, 2.0], [0.0, 1.0]]
    """

    @functools.wraps(fun)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        chosen, of_chosen = _by_arguments(fun, argnums, args, kwargs)
        out, pull = vjp(of_chosen, *chosen)
        leaves, tree = _floats(out, function_name(fun), "returned")
        rows: list[Any] = []
        for k, leaf in enumerate(leaves):
            shape = aval_of_operand(leaf).shape

            def pull_one(c: Any, k: int = k) -> Any:
                return pull(tree.unflatten(c if j == k else None for j in range(len(leaves))))

            columns = vmap(pull_one)(_directions(leaf, shape))
            rows.append(_unpacked(columns, argnums, lambda x, shape=shape: _reshaped(x, (*shape, *x.shape[1:]))))
        return tree.unflatten(rows)

    return jacobian


def jacfwd(fun: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Any:
    """A function that returns the Jacobian of ``fun``, as :func:`jacrev`, by forward mode: right for few inputs.

    >>> import numpy as np
    >>> import cuvil, cuvil.numpy as cnp
    >>> cuvil.jacfwd(lambda x: cnp.stack([x[0] * x[1], x[1]]))(np.float32([2, 3])).tolist()
    [[3.0, 2.0], [0.0, 1.0]]
    """

    @functools.wraps(fun)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        chosen, of_chosen = _by_arguments(fun, argnums, args, kwargs)
        out, push = linearize(of_chosen, *chosen)
        outputs, out_tree = _floats(out, function_name(fun), "returned")
        leaves, tree = _floats(tuple(chosen), function_name(fun), "was given")
        columns: list[list[Any]] = []  # of each input leaf: one block for each output leaf
        for k, leaf in enumerate(leaves):
            shape = aval_of_operand(leaf).shape

            def push_one(t: Any, k: int = k) -> Any:
                return push(*tree.unflatten(t if j == k else None for j in range(len(leaves))))

            blocks, _ = flatten(vmap(push_one, out_axes=-1)(_directions(leaf, shape)))
            columns.append([_reshaped(x, (*x.shape[:-1], *shape)) for x in blocks])
        rows = [_unpacked(tree.unflatten(c[j] for c in columns), argnums, None) for j in range(len(outputs))]
        return out_tree.unflatten(rows)

    return jacobian


def hessian(fun: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Any:
    """A function that returns all second derivatives of ``fun``: forward mode over reverse mode.

    >>> import numpy as np
    >>> import cuvil, cuvil.numpy as cnp
    >>> cuvil.hessian(lambda x: x[0] ** 2 * x[1])(np.float32([2, 3])).tolist()
    [[6.0, 4.0], [4.0, 0.0]]
    """
    return jacfwd(jacrev(fun, argnums), argnums)


def _by_arguments(
    fun: Callable[..., Any], argnums: int | Sequence[int], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[Any], Callable[..., Any]]:
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    places = [n % len(args) for n in numbers]
    chosen = [args[n] for n in places]
    _floats(tuple(chosen), function_name(fun), "was given")

    def of_chosen(*given: Any) -> Any:
        full = list(args)
        for n, x in zip(places, given, strict=True):
            full[n] = x
        return convert(fun)(*full, **kwargs)

    return chosen, of_chosen


def _floats(value: Tree, name: str, did: str) -> tuple[list[Any], TreeDef]:
    leaves, tree = flatten(value)
    operands = [asoperand(x) for x in leaves]
    for x in operands:
        if not dtype_of(x).is_float:
            raise DTypeError(
                f"{name} {did} {dtype_of(x).name}{at_user_line()}, and a Jacobian is of floats; cast it with"
                " astype('float32')"
            )
    return operands, tree


def _directions(leaf: Any, shape: Shape) -> Any:
    """One for each element, [N, *shape]: 1 there and 0 elsewhere."""
    n = product(shape)
    dt = aval_of_operand(leaf).dtype
    eye = np.eye(n, dtype=dt.numpy) if isinstance(n, int) else apply("eye", rows=n, cols=n, k=0, dtype=dt)
    return _reshaped(eye, (n, *shape))


def _reshaped(x: Any, shape: Shape) -> Any:
    return x if tuple(x.shape) == tuple(shape) else apply("reshape", x, shape=tuple(shape))


def _unpacked(columns: tuple[Any, ...], argnums: int | Sequence[int], change: Callable[[Any], Any] | None) -> Any:
    leaves, tree = flatten(columns)
    done = tree.unflatten(leaves if change is None else [change(x) for x in leaves])
    return done[0] if isinstance(argnums, int) else done
