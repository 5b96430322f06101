"""``cuvil.numpy`` with each function wrapped in ``jit``: ``xp`` is a namespace for the array API's test suite.

Every call is compiled for the shapes and static arguments that it has and runs on the backend that
``CUVIL_CONFORMANCE_BACKEND`` names (``c`` by default). Functions whose results have data-dependent sizes, that make
arrays from Python values, or that return no arrays, stay as they are.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

import cuvil
import cuvil.numpy as cnp

BACKEND = os.environ.get("CUVIL_CONFORMANCE_BACKEND", "c")

#: Functions that are not wrapped.
PLAIN = frozenset(
    {
        "__array_namespace_info__", "array", "asarray", "can_cast", "finfo", "from_dlpack", "iinfo", "isdtype",
        "result_type", "nonzero", "argwhere", "flatnonzero", "unique", "unique_all", "unique_counts",
        "unique_inverse", "unique_values", "at", "broadcast_shapes", "shape", "size", "ndim", "dtype",
    }
)  # fmt: skip


#: Arguments whose values decide the size of the result, so that they are known when the call is traced.
STATIC = {"repeat": 1}


class _Hole:
    """Stands for an array in the arguments of a call."""


_HOLE = _Hole()


def _punch(value: Any, arrays: list[np.ndarray]) -> Any:
    """A value without its arrays, which go to the list."""
    if isinstance(value, (np.ndarray, np.generic)):
        arrays.append(np.asarray(value))
        return _HOLE
    if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
        return type(value)(_punch(v, arrays) for v in value)
    return value


def _fill(value: Any, arrays: Any) -> Any:
    if value is _HOLE:
        return next(arrays)
    if type(value) in (tuple, list):
        return type(value)(_fill(v, arrays) for v in value)
    return value


def jitted(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose every call is traced and compiled."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        arrays: list[np.ndarray] = []
        known = STATIC.get(function.__name__)
        punched = tuple(a if k == known else _punch(a, arrays) for k, a in enumerate(args))
        named = {k: _punch(v, arrays) for k, v in kwargs.items()}

        def traced(*given: Any) -> Any:
            left = iter(given)
            return function(*_fill(punched, left), **{k: _fill(v, left) for k, v in named.items()})

        traced.__name__ = function.__name__
        return cuvil.jit(traced, backend=BACKEND, shapes="static")(*arrays)

    return run


def _wrapped(source: Any, name: str) -> ModuleType:
    module = ModuleType(name, source.__doc__)
    for key in source.__all__:
        value = getattr(source, key)
        if isinstance(value, ModuleType):
            value = _wrapped(value, f"{name}.{key}")
        elif callable(value) and not isinstance(value, type) and key not in PLAIN:
            value = jitted(value)
        setattr(module, key, value)
    return module


xp = _wrapped(cnp, "cuvil_jitted")
xp.__array_api_version__ = cnp.__array_api_version__  # type: ignore[attr-defined]
