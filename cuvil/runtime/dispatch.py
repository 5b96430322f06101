"""The native dispatcher, an extension module in C: what building it takes, loading it, and the types of its parts."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable, Sequence
from functools import cache
from importlib.machinery import ExtensionFileLoader
from importlib.resources import files
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from cuvil.ops.record import Array
from cuvil.support.errors import BackendError

NAME = "cuvil_dispatch"


class NativePlan(Protocol):
    """What one set of symbol values fixes for a :class:`DispatchProgram` (opaque)."""


class DispatchProgram(Protocol):
    """One compiled program, called without ctypes. From any thread, as all here."""

    @property
    def workspaces(self) -> int: ...

    def plan(
        self, symbols: Sequence[int], offsets: Sequence[int], arena: int, extents: Sequence[int], releases: bool, /
    ) -> NativePlan: ...

    def run(self, inputs: Sequence[Array], plan: NativePlan, /) -> list[Array]: ...


#: How outputs become a call's result: the one itself, a tuple or list of them, a dict with these keys, or a call.
ResultForm = None | type[tuple[Any, ...]] | type[list[Any]] | tuple[str, ...] | Callable[[list[Array]], Any]


class Calls(Protocol):
    """The calls that a jitted function has met: from structure, dtypes and shapes to program and plan."""

    def __len__(self) -> int: ...

    def add(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        inputs: list[Array],
        program: DispatchProgram,
        plan: NativePlan,
        result: ResultForm,
        owner: Any,
        /,
    ) -> bool: ...

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any], /) -> Any: ...


class DispatchModule(Protocol):
    """The loaded extension module; ``native/dispatch.c`` describes its types."""

    Program: Callable[..., DispatchProgram]
    Calls: Callable[[int], Calls]


def obstacle() -> str | None:
    """Why this Python cannot have the dispatcher, or None. Says nothing of the C compiler."""
    if sys.implementation.name != "cpython":
        return f"it is made for CPython, and this is {sys.implementation.name}"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "this Python runs without the GIL, which guards the dispatcher's lists"
    header = _python_include() / "Python.h"
    if not header.is_file():
        return f"the headers of Python are not installed: there is no {header}"
    if not (Path(np.get_include()) / "numpy" / "arrayobject.h").is_file():
        return f"the headers of NumPy are not installed in {np.get_include()}"
    return None


def _python_include() -> Path:
    return Path(sysconfig.get_paths()["include"])


def source() -> str:
    """The C text, headed by the versions whose headers it sees: they decide what is built, and so the cache's key."""
    stamp = f"/* {sysconfig.get_config_var('SOABI')}, Python {sys.version}, NumPy {np.__version__} */".replace(
        "\n", " "
    )
    return f"{stamp}\n#line 1\n{(files('cuvil.runtime') / 'native' / 'dispatch.c').read_text()}"


def compile_flags() -> tuple[str, ...]:
    """What tells the compiler where the headers of Python and NumPy are."""
    folders = dict.fromkeys([str(_python_include()), sysconfig.get_paths()["platinclude"], np.get_include()])
    return tuple(f"-I{folder}" for folder in folders)


@cache
def load_dispatch(path: Path) -> DispatchModule:
    """The extension module in a file, loaded once per process.

    Raises:
        BackendError: it cannot be loaded into this Python.
    """
    loader = ExtensionFileLoader(NAME, str(path))
    spec = spec_from_loader(NAME, loader)
    assert spec is not None
    try:
        module = module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        raise BackendError(f"cannot load the dispatcher {path}: {error}") from error
    return cast(DispatchModule, module)
