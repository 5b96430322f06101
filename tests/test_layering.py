"""The layers of the package: imports go downward only, at module top, and heavy packages load where they are used."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "cuvil"

# A module may import from layers with a smaller number, and from its own unit: the part of its name given here.
LAYERS = {
    "support": 0,
    "symbolic": 1,
    "dtypes": 1,
    "ops": 2,
    "ir": 3,
    "frontend": 4,
    "passes": 4,
    "backends": 4,
    "runtime": 4,
    "compiler": 5,
    "jit": 6,
    "debug": 7,
    # The facades: the names that users import. They may use each other.
    "cache": 7,
    "numpy": 7,
    "nn": 7,
    "rules": 7,
    "testing": 7,
    "weights": 7,
    "cli": 9,
    "__init__": 8,
}
FACADES = 7

# Packages that are optional or slow to import: a function that needs one imports it.
HEAVY = frozenset({"torch", "onnx", "onnxruntime", "cupy", "tokenizers", "safetensors", "scipy", "hypothesis", "jax"})
# cuvil.testing is made of hypothesis strategies; nothing imports it but tests.
HEAVY_ALLOWED = {"testing": frozenset({"hypothesis"})}
NO_XDSL = frozenset({"support", "symbolic", "dtypes", "ops"})
STANDARD_LIBRARY_ONLY = frozenset({"support"})


@dataclass(frozen=True)
class Import:
    """One imported module name; `late` where it stands inside a function, `typing_only` under TYPE_CHECKING."""

    name: str
    line: int
    late: bool
    typing_only: bool


def unit_of(module: str) -> str:
    """The layer's unit that a module of cuvil belongs to: "cuvil.ir.text" is of "ir", "cuvil" itself "__init__"."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(source: str, module: str, *, is_package: bool) -> Iterator[Import]:
    """Every import of the source, wherever it stands; relative ones made absolute."""

    def visit(node: ast.AST, late: bool, typing_only: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, late, typing_only)
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".")[: len(module.split(".")) - node.level + is_package] if node.level else []
            target = ".".join([*base, *([node.module] if node.module else [])])
            # `from cuvil import ir` and `from cuvil.ir import text` name modules in their second half.
            for alias in node.names:
                yield Import(f"{target}.{alias.name}" if target == "cuvil" else target, node.lineno, late, typing_only)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "__import__"):
            if node.args and isinstance(node.args[0], ast.Constant):
                yield Import(str(node.args[0].value), node.lineno, late, typing_only)
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for child in node.body:
                yield from visit(child, late, True)
            for child in node.orelse:
                yield from visit(child, late, typing_only)
            return
        inner = late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inner, typing_only)

    yield from visit(ast.parse(source), False, False)


def faults(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """A sentence for each import that breaks a rule."""
    unit = unit_of(module)
    if unit not in LAYERS:
        return [f"{module}: {unit} is no layer; add it to LAYERS in tests/test_layering.py"]
    found: list[str] = []
    for imported in imports_of(source, module, is_package=is_package):
        root = imported.name.split(".")[0]
        at = f"{module}:{imported.line} imports {imported.name}"
        if root == "cuvil":
            other = unit_of(imported.name)
            if imported.name == "cuvil.__version__":
                continue
            if imported.late:
                found.append(f"{at} within a function")
            if other not in LAYERS:
                found.append(f"{at}, which is no layer")
            elif other != unit and not (LAYERS[other] < LAYERS[unit] or LAYERS[other] == LAYERS[unit] == FACADES):
                found.append(f"{at}, which is not below it")
        elif root == "xdsl" and unit in NO_XDSL:
            found.append(f"{at}; xDSL belongs in ir and above")
        elif root in HEAVY and not (imported.late or imported.typing_only):
            if root not in HEAVY_ALLOWED.get(unit, ()):
                found.append(f"{at} at module level; import it in the function that needs it")
        elif unit in STANDARD_LIBRARY_ONLY and root not in sys.stdlib_module_names:
            found.append(f"{at}; this layer uses the standard library only")
    return found


MODULES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=[module_name(path) for path in MODULES])
def test_imports_go_downward(path: Path) -> None:
    assert faults(path.read_text(), module_name(path), is_package=path.name == "__init__.py") == []


def test_every_folder_with_modules_is_a_package() -> None:
    """Without `__init__.py` a folder still imports, but type checkers, doctests and wheels pass over it."""
    folders = {path.parent for path in MODULES}
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


@pytest.mark.parametrize(
    ("module", "source", "fault"),
    [
        ("cuvil.ops.record", "from cuvil.ir.types import TensorType", "which is not below it"),
        ("cuvil.ops.record", "from cuvil import ir", "which is not below it"),
        ("cuvil.ops.record", "from ..ir import types", "which is not below it"),
        ("cuvil.passes.cse", "import cuvil.backends.c", "which is not below it"),
        ("cuvil.symbolic.expr", "import cuvil.dtypes", "which is not below it"),
        ("cuvil.runtime.call", "def f():\n  from cuvil.support import config", "within a function"),
        ("cuvil.runtime.call", "class A:\n  def f(self):\n    import cuvil.ir.text", "within a function"),
        ("cuvil.ir.text", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n  import cuvil.jit", "not below it"),
        ("cuvil.ir.text", "import importlib\nimportlib.import_module('cuvil.jit')", "not below it"),
        ("cuvil.jit", "from cuvil.numpy import sum", "which is not below it"),
        ("cuvil.ops.record", "from xdsl.ir import Operation", "xDSL belongs in ir"),
        ("cuvil.frontend.importers.torch", "import torch.fx", "at module level"),
        ("cuvil.frontend.importers.torch", "try:\n  import torch\nexcept ImportError:\n  torch = None", "module level"),
        ("cuvil.support.cache", "import numpy", "standard library only"),
        ("cuvil.surprise", "", "no layer"),
    ],
)
def test_a_broken_rule_is_found(module: str, source: str, fault: str) -> None:
    assert len(found := faults(source, module)) == 1, found
    assert fault in found[0]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("cuvil.ops.record", "from cuvil.symbolic import Dim\nfrom .registry import register\nimport numpy"),
        ("cuvil.frontend.importers.torch", "def load():\n  import torch"),
        ("cuvil.frontend.importers.torch", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n  import torch"),
        ("cuvil.nn", "import cuvil.numpy as cnp\nfrom cuvil.jit import jit"),
        ("cuvil.testing", "import hypothesis"),
        ("cuvil", "from cuvil.jit import jit\nfrom cuvil import numpy"),
        ("cuvil.runtime.package", "from cuvil.support import config\nimport xdsl.ir"),
    ],
)
def test_what_the_rules_allow(module: str, source: str) -> None:
    assert faults(source, module, is_package=module == "cuvil") == []
