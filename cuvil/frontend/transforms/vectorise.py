"""``vmap``: a function of one example as a function of many."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cuvil.frontend.dispatch import asoperand, wrap
from cuvil.frontend.program import trace_within
from cuvil.frontend.pytree import broadcast_prefix, flatten, leaf_paths
from cuvil.frontend.rewrite.convert import convert
from cuvil.frontend.source import at_user_line
from cuvil.frontend.tracer import current_trace
from cuvil.frontend.transforms.derivatives import function_name, parameter_names, parameter_path
from cuvil.frontend.transforms.mapped import Mapped
from cuvil.frontend.transforms.replay import aval_of_operand, builder_here, value_of
from cuvil.ops.builder import Builder
from cuvil.ops.record import Aval, Obligation
from cuvil.ops.requirements import format_shape
from cuvil.ops.vectorisation import Batched, with_axis
from cuvil.support.errors import ArgumentError, ArgumentTypeError, AxisError, CuvilError, ShapeError
from cuvil.symbolic import Dim

#: An axis, None for what all examples share, or a pytree of them that is a prefix of the arguments or results.
AxesTree = Any


@dataclass(frozen=True)
class _Mapped:
    """An argument that has an axis of examples."""

    operand: Any
    aval: Aval
    axis: int
    path: str

    @property
    def size(self) -> Dim:
        return self.aval.shape[self.axis]

    @property
    def example(self) -> Aval:
        """What is known of one example."""
        shape = self.aval.shape
        return Aval((*shape[: self.axis], *shape[self.axis + 1 :]), self.aval.dtype)

    def fronted(self, F: Builder[Any]) -> Batched:
        """The argument with the examples along its first axis."""
        value = value_of(F, self.operand, self.aval)
        others = (a for a in range(len(self.aval.shape)) if a != self.axis)
        return Batched(F.transpose(value, (self.axis, *others)), True)


def vmap(fun: Callable[..., Any], in_axes: AxesTree = 0, out_axes: AxesTree = 0) -> Any:
    """A function that runs ``fun`` on many examples at once.

    ``fun`` is written for one example; the result takes arrays with one axis more, the examples', and computes with
    whole arrays, not in a loop. It may be traced, compiled, differentiated and mapped again.

    Args:
        fun: the function of pytrees of arrays.
        in_axes: which axis of each positional argument counts the examples; negative ones count from the end, and
            None is for what all examples share. One for all, or a tuple with an entry per argument, which may go on as
            a pytree into the argument. Arguments given by keyword are shared.
        out_axes: where that axis stands in the results; None for a result that is the same for all examples.

    Raises:
        ShapeError: arguments with different numbers of examples.
        ArgumentError: ``in_axes`` or ``out_axes`` do not fit, or nothing is mapped.
        UnsupportedError: an op without a rule, by its name.

    >>> import numpy as np
    >>> import cuvil, cuvil.numpy as cnp
    >>> def distance(x, y):
    ...     return cnp.sqrt(cnp.sum((x - y) ** 2))
    >>> points = np.float32([[0, 0], [3, 4]])
    >>> cuvil.vmap(distance, in_axes=(0, None))(points, points[0]).tolist()
    [0.0, 5.0]
    >>> all_pairs = cuvil.vmap(cuvil.vmap(distance, in_axes=(None, 0)), in_axes=(0, None))
    >>> all_pairs(points, points).tolist()
    [[0.0, 5.0], [5.0, 0.0]]
    """
    if not callable(fun):
        raise ArgumentTypeError(f"vmap takes a function, got {type(fun).__name__}{at_user_line()}")
    name = function_name(fun)

    @functools.wraps(fun)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = flatten(args)
        if isinstance(in_axes, (tuple, list)) and len(in_axes) != len(args):
            raise ArgumentError(
                f"in_axes has {len(in_axes)} entries, and {name} was called with {len(args)} positional arguments"
                f"{at_user_line()}; give one for each"
            )
        axes = broadcast_prefix(in_axes, tree, "in_axes")
        names = parameter_names(fun)
        paths = [parameter_path(p, names) for p in leaf_paths(tree)]
        given = [
            None if axis is None else _mapped(leaf, axis, path, name)
            for leaf, axis, path in zip(leaves, axes, paths, strict=True)
        ]
        size = _common_size([m for m in given if m is not None], name)
        # Arrays that the examples share are traced too, so that one example's index may index them.
        shared = [m is None and isinstance(leaf, np.ndarray) for leaf, m in zip(leaves, given, strict=True)]
        traced = [m is not None or s for m, s in zip(given, shared, strict=True)]

        def of_one(*one: Any) -> Any:
            it = iter(one)
            return convert(fun)(
                *tree.unflatten(next(it) if t else x for x, t in zip(leaves, traced, strict=True)), **kwargs
            )

        F = builder_here()
        avals: list[Aval] = []
        values: list[Batched] = []
        for leaf, m, t in zip(leaves, given, traced, strict=True):
            if t:
                avals.append(aval_of_operand(asoperand(leaf)) if m is None else m.example)
                values.append(Batched(value_of(F, asoperand(leaf), avals[-1])) if m is None else m.fronted(F))
        _, positions = flatten(tuple(range(len(avals))))
        sub = trace_within(of_one, positions, avals, weak=[None] * len(avals), name=name)
        outputs: list[Batched] = Mapped(F, size).subprogram(sub, values)
        places = broadcast_prefix(out_axes, sub.out_tree, "out_axes")
        results = [
            wrap(F, _placed(F, o, axis, size, path, name))
            for o, axis, path in zip(outputs, places, leaf_paths(sub.out_tree, "result"), strict=True)
        ]
        return sub.out_tree.unflatten(results)

    return mapped


def _mapped(leaf: Any, axis: Any, path: str, name: str) -> _Mapped:
    if type(axis) is not int:
        raise ArgumentError(
            f"in_axes has {axis!r} for {path} of {name}{at_user_line()}; an axis is an integer, or None for an argument"
            " that all examples share"
        )
    try:
        x = asoperand(leaf)
    except CuvilError as error:
        raise ArgumentTypeError(
            f"{path} of {name} is {type(leaf).__name__}{at_user_line()}, which has no axis of examples; give it the"
            " axis None in in_axes"
        ) from error
    aval = aval_of_operand(x)
    rank = aval.rank
    if not -rank <= axis < rank:
        allowed = f"expected {-rank} <= axis < {rank}, or None" if rank else "it is a scalar: give it the axis None"
        raise AxisError(
            f"in_axes maps axis {axis} of {path} of {name}, which has shape {format_shape(aval.shape)}"
            f"{at_user_line()}; {allowed}"
        )
    return _Mapped(x, aval, axis % rank, path)


def _common_size(examples: Sequence[_Mapped], name: str) -> Dim:
    """The number of examples; that symbolic ones agree becomes a guard."""
    if not examples:
        raise ArgumentError(
            f"vmap of {name} maps no argument{at_user_line()}: in_axes is None for all of them; call {name} itself"
        )
    sizes = [m.size for m in examples]
    chosen = next((n for n in sizes if isinstance(n, int)), sizes[0])
    trace = current_trace()
    for m in examples:
        if m.size == chosen:
            continue
        if isinstance(m.size, int) and isinstance(chosen, int):
            listed = "; ".join(
                f"{e.path} has {e.size} along axis {e.axis} of {format_shape(e.aval.shape)}" for e in examples
            )
            raise ShapeError(f"vmap of {name} was given different numbers of examples{at_user_line()}: {listed}")
        assert trace is not None
        trace.require(
            "vmap", Obligation("==", m.size, chosen, f"{m.path} of {name} has as many examples as the others")
        )
    return chosen


def _placed(F: Builder[Any], output: Batched, axis: Any, size: Dim, path: str, name: str) -> Any:
    """A result with the examples' axis where ``out_axes`` wants it."""
    if axis is None:
        if output.own:
            raise ArgumentError(
                f"out_axes has None for {path} of {name}, which differs between the examples{at_user_line()}; give it"
                " an axis"
            )
        return output.value
    value = with_axis(F, output.value, output.own, size)
    rank = len(F.shape(value))
    if type(axis) is not int:
        raise ArgumentError(
            f"out_axes has {axis!r} for {path} of {name}{at_user_line()}; an axis is an integer or None"
        )
    if not -rank <= axis < rank:
        raise AxisError(
            f"out_axes puts the examples of {path} of {name} at axis {axis}{at_user_line()}; the result has {rank} axes"
            f" with them, so expected {-rank} <= axis < {rank}"
        )
    order = list(range(1, rank))
    order.insert(axis % rank, 0)
    return F.transpose(value, order)
