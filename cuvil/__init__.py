"""cuvil turns Python models into fast native inference code."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from cuvil.support.logs import configure_logging

if TYPE_CHECKING:
    from cuvil.debug import TraceReport, debug_trace
    from cuvil.frontend.buckets import Buckets
    from cuvil.frontend.control import cond, fori_loop, map, scan, switch, while_loop  # noqa: A004
    from cuvil.frontend.pytree import register_pytree_node
    from cuvil.frontend.transforms.derivatives import grad, jvp, linearize, stop_gradient, value_and_grad, vjp
    from cuvil.frontend.transforms.jacobians import hessian, jacfwd, jacrev
    from cuvil.frontend.transforms.vectorise import vmap
    from cuvil.jit import Jitted, compile, jit  # noqa: A004
    from cuvil.support import errors

__version__ = "0.1.0"

__all__ = [
    "Buckets",
    "Jitted",
    "TraceReport",
    "__version__",
    "compile",
    "cond",
    "debug_trace",
    "errors",
    "fori_loop",
    "grad",
    "hessian",
    "jacfwd",
    "jacrev",
    "jit",
    "jvp",
    "linearize",
    "map",
    "register_pytree_node",
    "scan",
    "stop_gradient",
    "switch",
    "value_and_grad",
    "vjp",
    "vmap",
    "while_loop",
]

#: Where the public names are, loaded at their first use: importing cuvil costs next to nothing.
_HOMES = {
    "jit": "cuvil.jit",
    "compile": "cuvil.jit",
    "Jitted": "cuvil.jit",
    "TraceReport": "cuvil.debug",
    "debug_trace": "cuvil.debug",
    "Buckets": "cuvil.frontend.buckets",
    "register_pytree_node": "cuvil.frontend.pytree",
    "cond": "cuvil.frontend.control",
    "switch": "cuvil.frontend.control",
    "while_loop": "cuvil.frontend.control",
    "fori_loop": "cuvil.frontend.control",
    "scan": "cuvil.frontend.control",
    "map": "cuvil.frontend.control",
    **dict.fromkeys(
        ("grad", "jvp", "linearize", "stop_gradient", "value_and_grad", "vjp"), "cuvil.frontend.transforms.derivatives"
    ),
    "vmap": "cuvil.frontend.transforms.vectorise",
    **dict.fromkeys(("hessian", "jacfwd", "jacrev"), "cuvil.frontend.transforms.jacobians"),
}
_MODULES = {
    "cache": "cuvil.cache",
    "errors": "cuvil.support.errors",
    "nn": "cuvil.nn",
    "numpy": "cuvil.numpy",
    "rules": "cuvil.rules",
    "testing": "cuvil.testing",
    "weights": "cuvil.weights",
}

#: What fills in the operators of traced arrays, and is their namespace: functions to compile need it whether they use
#: cuvil.numpy or not.
_OPERATORS = "cuvil.numpy"


class _Package(ModuleType):
    """The package itself, in which ``cuvil.jit`` is the function although a module has that name too."""

    def __setattr__(self, name: str, value: Any) -> None:
        # The import system binds a submodule to its name in the package once it is loaded.
        if name == "jit" and isinstance(value, ModuleType):
            value = value.jit
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


configure_logging()


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        importlib.import_module(_OPERATORS)
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES})
