"""``grad``, ``value_and_grad``, ``vjp``, ``jvp`` and ``linearize``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cuvil.dtypes import DType, complex64, float32
from cuvil.frontend.dispatch import TraceBuilder, apply, asoperand, weak_type, wrap
from cuvil.frontend.program import Subprogram, trace_within
from cuvil.frontend.pytree import TreeDef, flatten, leaf_paths, leaves_up_to, tree_map
from cuvil.frontend.rewrite.convert import convert
from cuvil.frontend.source import at_user_line
from cuvil.frontend.tracer import Tracer
from cuvil.frontend.transforms.differentiate import Backward, Forward
from cuvil.frontend.transforms.replay import aval_of_operand, builder_here, copying, value_of
from cuvil.ops.builder import Builder
from cuvil.ops.differentiation import Dual, has_tangent
from cuvil.ops.record import Aval
from cuvil.ops.requirements import format_shape
from cuvil.ops.transposes import zeros
from cuvil.support.errors import ArgumentError, ArgumentTypeError, CuvilError, DTypeError, ShapeError

#: A pytree of arrays.
Tree = Any


def stop_gradient(x: Tree) -> Tree:
    """``x`` itself, which the transforms take for a constant: its derivative is 0.

    >>> import cuvil
    >>> float(cuvil.grad(lambda x: x * cuvil.stop_gradient(x))(3.0))
    3.0
    """
    return tree_map(lambda leaf: apply("stop_gradient", leaf), x)


# --------------------------------------------------------------------------------- what is differentiated


@dataclass(frozen=True)
class _Point:
    """The arguments of a function at which it is differentiated; leaves of integers and the like are constants."""

    tree: TreeDef
    leaves: tuple[Any, ...]
    paths: tuple[str, ...]
    avals: tuple[Aval, ...]
    variable: tuple[bool, ...]

    def function(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """``fn`` of the variable leaves alone."""

        def call(*given: Any) -> Any:
            it = iter(given)
            args = self.tree.unflatten(next(it) if v else x for v, x in zip(self.variable, self.leaves, strict=True))
            return fn(*args)

        return call

    def variables(self) -> list[tuple[Any, Aval]]:
        """The variable leaves and what is known of them."""
        return [(x, a) for x, a, v in zip(self.leaves, self.avals, self.variable, strict=True) if v]

    def trace(self, fn: Callable[..., Any], name: str) -> Subprogram:
        """``fn`` traced over its variable leaves."""
        given = self.variables()
        _, tree = flatten(tuple(range(len(given))))
        weak = [weak_type(x) for x, _ in given]
        return trace_within(self.function(fn), tree, [a for _, a in given], weak=weak, name=name)

    def filled(self, values: Sequence[Any]) -> Tree:
        """A tree like the arguments: a value for each variable leaf, None for the constants."""
        it = iter(values)
        return self.tree.unflatten(next(it) if v else None for v in self.variable)


def _point(args: tuple[Any, ...], names: Sequence[str]) -> _Point:
    leaves, tree = flatten(args)
    operands: list[Any] = []
    avals: list[Aval] = []
    variable: list[bool] = []
    for leaf in leaves:
        try:
            x = asoperand(leaf)
        except CuvilError:
            # What is no array is an argument of another kind, which the function may take.
            operands.append(leaf)
            avals.append(Aval((), float32))
            variable.append(False)
            continue
        aval = aval_of_operand(x)
        operands.append(x if has_tangent(aval.dtype) else leaf)
        avals.append(aval)
        variable.append(has_tangent(aval.dtype))
    paths = [parameter_path(path, names) for path in leaf_paths(tree)]
    return _Point(tree, tuple(operands), tuple(paths), tuple(avals), tuple(variable))


def parameter_path(path: str, names: Sequence[str]) -> str:
    """A path into positional arguments in the names of the parameters.

    >>> parameter_path("[1]['w']", ["x", "params"])
    "params['w']"
    """
    number, _, rest = path[1:].partition("]")
    k = int(number)
    return (names[k] if k < len(names) else f"argument {k}") + rest


def parameter_names(fn: Callable[..., Any]) -> list[str]:
    """The names of a function's parameters, as far as Python knows them."""
    try:
        return list(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        return []


def function_name(fn: Callable[..., Any]) -> str:
    """What messages call a function."""
    return getattr(fn, "__name__", "the function")


# ------------------------------------------------------------------------------------- the two directions


class _Linear:
    """A function at a point and its derivative there, as a tape over the values computed so far."""

    def __init__(self, point: _Point, fn: Callable[..., Any], name: str) -> None:
        sub = point.trace(fn, name)
        self.F = builder_here()
        run = Backward(self.F)
        self.tape = run.tape
        self.given = point.variables()
        self.variables = [self.tape.variable(a) for _, a in self.given]
        duals = [Dual(value_of(self.F, x, a), t) for (x, a), t in zip(self.given, self.variables, strict=True)]
        self.outputs: list[Dual] = run.subprogram(sub, duals)
        self.out_tree = sub.out_tree
        self.out_avals = [self.F.aval(o.value) for o in self.outputs]

    def results(self) -> Tree:
        """What the function returns."""
        return self.out_tree.unflatten(wrap(self.F, o.value) for o in self.outputs)

    def pull(self, cotangents: Sequence[Any | None]) -> list[Any]:
        """Cotangents of the variables; None among those of the outputs is zero."""
        F = builder_here()
        known = [(o.tangent, c) for o, c in zip(self.outputs, cotangents, strict=True) if c is not None]
        with copying(F) as enter:
            found = self.tape.pull(
                F, [t for t, _ in known], [c for _, c in known], self.variables, self._bind(F), enter
            )
        return [
            _as_user_value(F, zeros(F, a) if c is None else c, x) for c, (x, a) in zip(found, self.given, strict=True)
        ]

    def push(self, tangents: Sequence[Any]) -> Tree:
        """Tangents of the outputs, None for those that are no floats."""
        F = builder_here()
        with copying(F) as enter:
            outputs = [o.tangent for o in self.outputs]
            found = self.tape.push(F, outputs, tangents, self.variables, self._bind(F), enter)
        return self.out_tree.unflatten(_result_tangents(F, found, self.out_avals))

    def _bind(self, F: Builder[Any]) -> Callable[[Any], Any]:
        """Values that the tape holds for another builder: a trace that began since, or one that has ended."""
        then = self.F
        if isinstance(F, TraceBuilder):
            trace = F.trace
            if isinstance(then, TraceBuilder):
                origin = then.trace
                return (lambda v: v) if origin is trace else (lambda v: Tracer(origin, v).value_in(trace))
            return trace.capture
        if isinstance(then, TraceBuilder):
            origin = then.trace
            return lambda v: Tracer(origin, v).value_in(None)
        return lambda v: v


def _result_tangents(F: Builder[Any], found: Sequence[Any | None], avals: Sequence[Aval]) -> list[Any]:
    return [
        wrap(F, zeros(F, a) if t is None else t) if has_tangent(a.dtype) else None
        for t, a in zip(found, avals, strict=True)
    ]


def _as_user_value(F: Builder[Any], value: Any, like: Any) -> Any:
    """The derivative by a Python number is a float32 (complex64), and weak while it is traced."""
    weak = weak_type(like)
    if weak is None:
        return wrap(F, value)
    if not isinstance(F, TraceBuilder):
        return F.cast(value, complex64 if F.dtype(value).is_complex else float32)
    out: Tracer = wrap(F, value)
    out.weak = weak
    return out


def _given(F: Builder[Any], tree: TreeDef, avals: Sequence[Aval], value: Tree, what: str, like: str) -> list[Any]:
    """(Co)tangents that a caller gives, as values; None for what has none.

    Raises:
        ArgumentError: another structure.
        ShapeError, DTypeError: an array that is not like what it belongs to.
    """
    out: list[Any] = []
    paths = leaf_paths(tree, what)
    for path, leaf, aval in zip(paths, leaves_up_to(tree, value, what), avals, strict=True):
        if leaf is None:
            out.append(None)
            continue
        x = asoperand(leaf)
        got = aval_of_operand(x)
        if not has_tangent(aval.dtype):
            if not has_tangent(got.dtype):
                out.append(None)
                continue
            raise DTypeError(f"{path} is given for {like} of {aval.dtype}, which has no derivative; pass None")
        if got.shape != aval.shape:
            raise ShapeError(
                f"{path} has shape {format_shape(got.shape)}{at_user_line()}; expected that of {like},"
                f" {format_shape(aval.shape)}"
            )
        if got.dtype is not aval.dtype and weak_type(x) is None:
            raise DTypeError(
                f"{path} is {got.dtype.name}{at_user_line()}; expected the dtype of {like}, {aval.dtype.name}"
            )
        out.append(value_of(F, x, aval))
    return out


# ------------------------------------------------------------------------------------------- the transforms


def vjp(fun: Callable[..., Any], *primals: Tree, has_aux: bool = False) -> Any:
    """The value of a function and the function that pulls cotangents back: reverse-mode differentiation.

    Args:
        fun: the function of pytrees of arrays.
        primals: its arguments. Leaves that are no floats are constants, and have None for a cotangent.
        has_aux: ``fun`` returns ``(out, aux)``, and ``aux`` is returned as it is.

    Returns:
        ``(out, pull)``, or ``(out, pull, aux)``. ``pull(c)`` takes cotangents like ``out`` (None for zero) and returns
        a tuple of those of the primals. It may be called any number of times.

    Raises:
        UnsupportedError: an op without a derivative, by its name.

    >>> import numpy as np
    >>> import cuvil, cuvil.numpy as cnp
    >>> y, pull = cuvil.vjp(lambda x: x * x, np.float32([1, 2]))
    >>> y.tolist(), pull(np.float32([1, 10]))[0].tolist()
    ([1.0, 4.0], [2.0, 40.0])
    """
    linear, split = _linearized(fun, primals, has_aux)
    out, aux = split(linear.results())
    tree, avals = split.first(linear)

    def pull(cotangent: Tree) -> tuple[Tree, ...]:
        given = _given(builder_here(), tree, avals, cotangent, "the cotangent", "the result")
        rest = [None] * (len(linear.outputs) - len(given))
        return split.point.filled(linear.pull([*given, *rest]))

    return (out, pull, aux) if has_aux else (out, pull)


def linearize(fun: Callable[..., Any], *primals: Tree, has_aux: bool = False) -> Any:
    """The value of a function and the function that pushes tangents forward, which computes nothing of ``fun`` again.

    Returns:
        ``(out, push)``, or ``(out, push, aux)``. ``push(*tangents)`` takes tangents like the primals (None for what
        does not change) and returns those of ``out``.

    >>> import cuvil, cuvil.numpy as cnp
    >>> y, push = cuvil.linearize(cnp.sin, 0.0)
    >>> float(y), float(push(2.0))
    (0.0, 2.0)
    """
    linear, split = _linearized(fun, primals, has_aux)
    out, aux = split(linear.results())

    def push(*tangents: Tree) -> Tree:
        given = _tangents(builder_here(), split.point, tangents)
        return split(linear.push(given))[0]

    return (out, push, aux) if has_aux else (out, push)


class _Split:
    """What a function returns: ``out``, or ``(out, aux)``."""

    def __init__(self, point: _Point, has_aux: bool) -> None:
        self.point = point
        self.has_aux = has_aux

    def __call__(self, result: Tree) -> tuple[Tree, Tree]:
        return (result[0], result[1]) if self.has_aux else (result, None)

    def check(self, tree: TreeDef, name: str) -> None:
        """Demand a pair where there is something else beside the result."""
        if self.has_aux and (tree.kind not in (tuple, list) or len(tree.children) != 2):
            raise ArgumentTypeError(
                f"has_aux=True, so {name} must return a pair (out, aux){at_user_line()}; it returned {tree}"
            )

    def first(self, linear: _Linear) -> tuple[TreeDef, list[Aval]]:
        """The structure of ``out`` and what is known of its leaves."""
        tree = linear.out_tree.children[0] if self.has_aux else linear.out_tree
        return tree, linear.out_avals[: tree.leaves]


def _linearized(fun: Callable[..., Any], primals: tuple[Tree, ...], has_aux: bool) -> tuple[_Linear, _Split]:
    point = _point(primals, parameter_names(fun))
    linear = _Linear(point, fun, function_name(fun))
    split = _Split(point, has_aux)
    split.check(linear.out_tree, function_name(fun))
    return linear, split


def _tangents(F: Builder[Any], point: _Point, tangents: tuple[Tree, ...]) -> list[Any]:
    """Tangents of the variable leaves, zeros where the caller gives None."""
    given = _given(F, point.tree, point.avals, tangents, "the tangent", "the primal")
    return [zeros(F, a) if t is None else t for t, a, v in zip(given, point.avals, point.variable, strict=True) if v]


def jvp(fun: Callable[..., Any], primals: Sequence[Tree], tangents: Sequence[Tree], *, has_aux: bool = False) -> Any:
    """The value of a function and its derivative in a direction: forward-mode differentiation.

    Args:
        fun: the function of pytrees of arrays.
        primals: its arguments.
        tangents: the direction, like ``primals``; None for what does not change, and for what is no float.
        has_aux: ``fun`` returns ``(out, aux)``, and ``aux`` is returned as it is.

    Returns:
        ``(out, tangent)``, or ``(out, tangent, aux)``; the tangent has None where ``out`` has no floats.

    Raises:
        UnsupportedError: an op without a derivative, by its name.

    >>> import numpy as np
    >>> import cuvil, cuvil.numpy as cnp
    >>> y, dy = cuvil.jvp(cnp.square, (np.float32(3),), (np.float32(1),))
    >>> float(y), float(dy)
    (9.0, 6.0)
    """
    if len(primals) != len(tangents):
        raise ArgumentError(f"jvp was given {len(primals)} primals and {len(tangents)} tangents{at_user_line()}")
    point = _point(tuple(primals), parameter_names(fun))
    sub = point.trace(fun, function_name(fun))
    F = builder_here()
    given = _tangents(F, point, tuple(tangents))
    duals = [Dual(value_of(F, x, a), t) for (x, a), t in zip(point.variables(), given, strict=True)]
    outputs: list[Dual] = Forward(F).subprogram(sub, duals)
    split = _Split(point, has_aux)
    split.check(sub.out_tree, function_name(fun))
    out, aux = split(sub.out_tree.unflatten(wrap(F, o.value) for o in outputs))
    found = _result_tangents(F, [o.tangent for o in outputs], [F.aval(o.value) for o in outputs])
    tangent, _ = split(sub.out_tree.unflatten(found))
    return (out, tangent, aux) if has_aux else (out, tangent)


def value_and_grad(fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Any:
    """A function that returns the value of ``fun`` and its gradient.

    Args:
        fun: returns a float of rank 0.
        argnums: the number of the argument to differentiate by, or several.
        has_aux: ``fun`` returns ``(value, aux)``.

    Returns:
        A function of the same arguments: ``(value, gradient)``, or ``((value, aux), gradient)``. The gradient is like
        the argument, a tuple of them where ``argnums`` has several.

    Raises:
        DTypeError: an argument to differentiate by holds something else than floats.
        ShapeError: the value is no scalar.
        UnsupportedError: an op without a derivative, by its name.

    >>> import numpy as np
    >>> import cuvil, cuvil.numpy as cnp
    >>> value, gradient = cuvil.value_and_grad(lambda w: cnp.sum(w * w))(np.float32([1, 2]))
    >>> float(value), gradient.tolist()
    (5.0, [2.0, 4.0])
    """
    if not callable(fun):
        raise ArgumentTypeError(f"a function is differentiated, got {type(fun).__name__}{at_user_line()}")
    several = not isinstance(argnums, int)
    numbers: tuple[int, ...] = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    name = function_name(fun)

    @functools.wraps(fun)
    def derived(*args: Any, **kwargs: Any) -> Any:
        chosen = [_position(n, len(args), name) for n in numbers]
        names = parameter_names(fun)
        point = _point(
            tuple(args[k] for k in chosen), [names[k] if k < len(names) else f"argument {k}" for k in chosen]
        )
        for path, aval, leaf, v in zip(point.paths, point.avals, point.leaves, point.variable, strict=True):
            if not v or not aval.dtype.is_float:
                raise DTypeError(_no_float(name, path, aval.dtype, leaf))

        def call(*given: Any) -> Any:
            full = list(args)
            for k, x in zip(chosen, given, strict=True):
                full[k] = x
            return convert(fun)(*full, **kwargs)

        linear = _Linear(point, call, name)
        split = _Split(point, has_aux)
        split.check(linear.out_tree, name)
        tree, avals = split.first(linear)
        if tree.kind is not None or avals[0].shape != () or not avals[0].dtype.is_float:
            got = str(tree) if tree.kind is not None else f"{avals[0].dtype.name}{format_shape(avals[0].shape)}"
            raise ShapeError(
                f"grad needs a function that returns one float of rank 0; {name} returned {got}{at_user_line()}. Sum or"
                " average it, or use cuvil.vjp with cotangents of your own"
            )
        F = builder_here()
        one = F.scalar(1, avals[0].dtype)
        gradients = point.filled(linear.pull([one, *(None for _ in linear.outputs[1:])]))
        value, aux = split(linear.results())
        gradient = gradients if several else gradients[0]
        return ((value, aux), gradient) if has_aux else (value, gradient)

    return derived


def grad(fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Any:
    """A function that returns the gradient of ``fun``, as :func:`value_and_grad` does, without the value.

    With ``has_aux`` it returns ``(gradient, aux)``.

    >>> import numpy as np
    >>> import cuvil, cuvil.numpy as cnp
    >>> cuvil.grad(lambda w, x: cnp.sum(cnp.tanh(w) * x))(np.float32([0, 0]), np.float32([3, 4])).tolist()
    [3.0, 4.0]
    >>> float(cuvil.grad(cuvil.grad(lambda x: x**3))(2.0))
    12.0
    """
    with_value = value_and_grad(fun, argnums, has_aux)

    @functools.wraps(fun)
    def derived(*args: Any, **kwargs: Any) -> Any:
        value, gradient = with_value(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return derived


def _position(n: int, count: int, name: str) -> int:
    if not -count <= n < count:
        raise ArgumentError(
            f"argnums has {n}, and {name} was called with {count} positional arguments{at_user_line()}; an argument to"
            " differentiate by is passed by position"
        )
    return n % count


def _no_float(name: str, path: str, dt: DType, leaf: Any) -> str:
    what = dt.name if isinstance(leaf, (Tracer, np.ndarray)) or weak_type(leaf) is not None else type(leaf).__name__
    return (
        f"{path} of {name} is {what}{at_user_line()}, and derivatives are by floats; cast it with astype('float32'), or"
        " leave it out of argnums (cuvil.vjp and cuvil.jvp take complex numbers)"
    )
