"""Calls that cuvil does not have: an error that names the nearest ones, or a row of a diagnostic trace's report."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from cuvil.frontend.pytree import flatten
from cuvil.frontend.source import user_line
from cuvil.frontend.tracer import Missing, Trace, Tracer, current_trace
from cuvil.support.errors import CuvilError


def nearest(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """At most three names like this one."""
    return tuple(difflib.get_close_matches(name, list(known), 3))


def missing_call(
    error: CuvilError, what: str, near: tuple[str, ...], fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Raise the error; a diagnostic trace notes the call instead and goes on with an array as NumPy's would be.

    ``fn`` is NumPy's function; without one the trace cannot go on behind the call.
    """
    trace = current_trace()
    if trace is None or trace.missing is None:
        raise error
    filename, line = user_line()
    trace.missing.append(Missing(what, near, f"{filename}:{line}"))
    result = _stand_in(trace, fn, args, kwargs)
    if result is None:
        raise error
    return result


def _stand_in(trace: Trace, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Traced arrays of the shapes and dtypes that NumPy's function gives, or None where it gives nothing."""
    if not callable(fn):
        return None
    rng = np.random.default_rng(0)

    def concrete(leaf: Any) -> Any:
        if not isinstance(leaf, Tracer):
            return leaf
        shape = tuple(d for d in leaf.shape if isinstance(d, int))
        if len(shape) != leaf.ndim:
            raise TypeError("a symbolic shape")
        return np.asarray(rng.standard_normal(shape)).astype(leaf.dtype)

    try:
        leaves, tree = flatten((args, dict(kwargs)))
        positional, named = tree.unflatten([concrete(leaf) for leaf in leaves])
        with np.errstate(all="ignore"):
            results, out_tree = flatten(fn(*positional, **named))
        return out_tree.unflatten([Tracer(trace, trace.capture(np.zeros_like(np.asarray(r)))) for r in results])
    except Exception:  # noqa: BLE001 - whatever NumPy says of made-up values, the call itself is in the report
        return None


def missing_name(module: str, name: str, known: Iterable[str], numpy_module: Any) -> Callable[..., Any]:
    """What a namespace's ``__getattr__`` gives for a name that it does not have.

    Raises:
        AttributeError: always, unless a diagnostic trace notes the call and goes on with NumPy's function of the name.
    """
    near = () if name.startswith("_") else nearest(name, known)
    hint = f"; the nearest names are {', '.join(near)}" if near else ""
    message = f"module {module!r} has no attribute {name!r}{hint}"
    trace = current_trace()
    if name.startswith("_") or trace is None or trace.missing is None:
        raise AttributeError(message)
    fn = getattr(numpy_module, name, None)
    if not callable(fn):
        filename, line = user_line()
        trace.missing.append(Missing(f"{module}.{name}", near, f"{filename}:{line}"))
        raise AttributeError(message)

    def call(*args: Any, **kwargs: Any) -> Any:
        return missing_call(CuvilError(message), f"{module}.{name}", near, fn, args, kwargs)

    return call


__all__ = ["missing_call", "missing_name", "nearest"]
