"""What makes traced arrays behave as NumPy arrays: operators, methods, and NumPy's own functions called on them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from cuvil.dtypes import float64, int64
from cuvil.frontend.dispatch import asoperand, dtype_of, elementwise, is_traced, result_dtype, weak_type
from cuvil.frontend.missing import missing_call, nearest
from cuvil.frontend.namespace import fourier, functions, linear_algebra
from cuvil.frontend.namespace.arguments import AnyArray
from cuvil.frontend.namespace.indexing import getitem
from cuvil.frontend.source import at_user_line
from cuvil.frontend.tracer import FUNCTION_METHODS, METHODS, Tracer
from cuvil.support.errors import ArgumentError, ArgumentTypeError, UnsupportedError

_SCALAR_OPERATORS = frozenset(
    {"add", "subtract", "multiply", "divide", "floor_divide", "remainder", "pow", "negative", "positive", "abs"}
)
_COMPARISONS = frozenset({"less", "less_equal", "greater", "greater_equal", "equal", "not_equal"})

_REDUCTIONS = {
    "add": "sum",
    "multiply": "prod",
    "maximum": "max",
    "minimum": "min",
    "logical_and": "all",
    "logical_or": "any",
}


def binary(name: str, left: Any, right: Any) -> AnyArray:
    """An operator of a traced array; NotImplemented where the other side is no operand, so that it may try."""
    try:
        a, b = asoperand(left), asoperand(right)
    except ArgumentTypeError:
        return NotImplemented
    if (out := _of_scalars(name, a, b)) is not None:
        return out
    if name == "pow":
        return _power(a, b)
    return FUNCTIONS[name](a, b)


def _of_scalars(name: str, *operands: Any) -> Tracer | None:
    """An operator of Python scalars only, which gives one too: its dtype gives way to that of an array that it meets.

    Without this, ``x * (scale + 1)`` would make a float16 ``x`` float32 and round a ``scale`` for a float64 ``x``.
    """
    kinds = {weak_type(x) for x in operands}
    if None in kinds or name not in _SCALAR_OPERATORS | _COMPARISONS:
        return None
    floats = float in kinds or name == "divide"
    out: Tracer = elementwise(name, *operands, dt=float64 if floats else int64)
    if name in _SCALAR_OPERATORS:
        out.weak = float if floats else int
    return out


def _power(a: Any, b: Any) -> AnyArray:
    """``a ** b``; as for NumPy's operator, small Python exponents of floats are the function that they mean."""
    if weak_type(b) is not None and not is_traced(b) and weak_type(a) is None and result_dtype(a, b).is_float:
        name = {2: "square", 0.5: "sqrt", -1: "divide", 1: "positive"}.get(b)
        x = elementwise_cast(a, b)
        if name == "divide":
            return FUNCTIONS["divide"](1.0, x)
        if name is not None:
            return FUNCTIONS[name](x)
    return FUNCTIONS["pow"](a, b)


def elementwise_cast(a: Any, b: Any) -> AnyArray:
    """The left operand of a power in the dtype of the result."""
    dt = result_dtype(a, b)
    return a if dtype_of(a) is dt else FUNCTIONS["astype"](a, dt)


def unary(name: str, x: Any) -> AnyArray:
    """An operator of one traced array."""
    out = _of_scalars(name, x)
    return FUNCTIONS[name](x) if out is None else out


# -------------------------------------------------------------------------------------- NumPy's own functions


def _unsupported(what: str, name: str) -> UnsupportedError:
    near = nearest(name, FUNCTIONS)
    hint = f"; the nearest names are {', '.join(near)}" if near else ""
    return UnsupportedError(
        f"numpy.{what} is not supported on traced arrays{at_user_line()}{hint}. Write it with functions of"
        " cuvil.numpy, or compute this part outside of the traced function."
    )


def _call(
    what: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], function: Callable[..., Any] | None = None
) -> AnyArray:
    """A function of the namespace, or of one of its extensions, called in NumPy's name."""
    function = FUNCTIONS.get(name) if function is None else function
    if function is None:
        raise _unsupported(what, name)
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        raise UnsupportedError(
            f"numpy.{what} on traced arrays does not take these arguments ({error}){at_user_line()};"
            f" cuvil.numpy.{name}{inspect.signature(function)} is what there is"
        ) from None
    return function(*args, **kwargs)


def ufunc(fn: Any, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> AnyArray:
    """``numpy.add(x, y)``, ``numpy.add.reduce(x)`` and their like, called with a traced array."""
    try:
        return _ufunc(fn, method, inputs, kwargs)
    except UnsupportedError as error:
        what = f"numpy.{fn.__name__}" + ("" if method == "__call__" else f".{method}")
        return missing_call(error, what, nearest(fn.__name__, FUNCTIONS), getattr(fn, method), inputs, kwargs)


def _ufunc(fn: Any, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> AnyArray:
    name: str = fn.__name__
    if kwargs.get("out") is not None:
        raise ArgumentError(
            f"numpy.{name}(..., out=...) would change an array in place, which a traced function cannot{at_user_line()}"
            "; use the returned array"
        )
    if method == "__call__":
        options = {k: v for k, v in kwargs.items() if k != "dtype"}
        target = kwargs.get("dtype")
        if target is not None:
            inputs = tuple(FUNCTIONS["astype"](x, target) for x in inputs)
        return _call(name, name, inputs, options)
    if method == "reduce" and name in _REDUCTIONS:
        # The ufunc's own default is the first axis, unlike that of the function.
        options = {"axis": 0, **{k: v for k, v in kwargs.items() if v is not None or k == "axis"}}
        return _call(f"{name}.reduce", _REDUCTIONS[name], inputs, options)
    if method == "accumulate" and name in ("add", "multiply"):
        scan = "cumulative_sum" if name == "add" else "cumulative_prod"
        return _call(f"{name}.accumulate", scan, inputs, {"axis": 0, **kwargs})
    if method == "outer":
        left, right = (FUNCTIONS["asarray"](x) for x in inputs)
        wide = FUNCTIONS["reshape"](left, (*left.shape, *(1,) * right.ndim))
        return _call(f"{name}.outer", name, (wide, right), kwargs)
    raise _unsupported(f"{name}.{method}", name)


def function(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AnyArray:
    """``numpy.concatenate(...)`` and its like, called with a traced array."""
    try:
        return _function(fn, args, kwargs)
    except UnsupportedError as error:
        what = f"{getattr(fn, '__module__', 'numpy')}.{fn.__name__}"
        return missing_call(error, what, nearest(fn.__name__, FUNCTIONS), fn, args, kwargs)


def _function(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AnyArray:
    name: str = fn.__name__
    if getattr(np, name, None) is fn:
        return _call(name, name, args, kwargs)
    for module, path, found in ((np.linalg, "linalg", LINALG), (np.fft, "fft", FFT)):
        if getattr(module, name, None) is fn:
            return _call(f"{path}.{name}", f"{path}.{name}", args, kwargs, found.get(name))
    module = str(getattr(fn, "__module__", "numpy")).removeprefix("numpy").lstrip(".")
    raise _unsupported(f"{module}.{name}" if module else name, name)


_NAMESPACE: list[ModuleType] = []


def set_namespace(module: ModuleType) -> None:
    """Set what ``x.__array_namespace__()`` returns."""
    _NAMESPACE[:] = [module]


def namespace(api_version: str | None) -> ModuleType:
    """The module of ``x.__array_namespace__()``.

    Raises:
        ArgumentError: a version of the array API that is not implemented.
    """
    if api_version not in (None, "2021.12", "2022.12", "2023.12", "2024.12"):
        raise ArgumentError(f"no array API version {api_version!r}{at_user_line()}; expected '2024.12' or an older one")
    return _NAMESPACE[0] if _NAMESPACE else functions


#: Every function that user code can call, by each of its names.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: value for name, value in vars(functions).items() if callable(value) and not name.startswith("_")
}

LINALG: dict[str, Callable[..., Any]] = {name: getattr(linear_algebra, name) for name in linear_algebra.__all__}
FFT: dict[str, Callable[..., Any]] = {name: getattr(fourier, name) for name in fourier.__all__}

METHODS.update(
    {
        "binary": binary,
        "unary": unary,
        "getitem": getitem,
        "__ufunc__": ufunc,
        "__function__": function,
        "__namespace__": namespace,
        **{
            name: FUNCTIONS[name]
            for name in (
                "transpose", "matrix_transpose", "at", "astype", "reshape", "squeeze", "swapaxes",
                "sum", "prod", "max", "min", "mean", "var", "std", "any", "all", "argmax", "argmin", "cumulative_sum",
                "real", "imag", "conj", "arange", "stack", "tile", "concat", "expand_dims", "einsum", "divmod",
                *FUNCTION_METHODS,
            )
        },
    }
)  # fmt: skip
