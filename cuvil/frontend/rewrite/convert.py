"""Finds the source of functions and compiles them rewritten."""

from __future__ import annotations
import __future__

import ast
import copy
import functools
import linecache
import logging
import operator
import os
import sysconfig
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any, cast

from cuvil.frontend.rewrite import runtime
from cuvil.frontend.rewrite.transform import RUNTIME, Mangle, transform
from cuvil.frontend.source import PACKAGE

log = logging.getLogger("cuvil.rewrite")

_FUTURE = functools.reduce(operator.or_, (getattr(__future__, n).compiler_flag for n in __future__.all_feature_names))

#: Code that is not the user's: it is traced as it is.
_FOREIGN = (
    PACKAGE,
    *(
        os.path.abspath(path) + os.sep
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
        if (path := sysconfig.get_paths().get(name))
    ),
)
_PARTS = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)

_LOCK = threading.RLock()
#: What code objects became, by file: equal code may come from several. None where a function stays as it is.
_CONVERTED: weakref.WeakKeyDictionary[types.CodeType, dict[str, types.CodeType | None]] = weakref.WeakKeyDictionary()
_MADE: weakref.WeakSet[types.CodeType] = weakref.WeakSet()
_FILES: dict[str, tuple[int, dict[int, list[tuple[ast.FunctionDef | ast.Lambda, str | None]]]]] = {}


def convert(f: Any) -> Any:
    """A callable that also takes traced conditions: a user's function, method or callable object, rewritten.

    Anything else, and functions whose source is not available, are returned as they are.

    >>> import operator
    >>> convert(operator.add) is operator.add
    True
    """
    if isinstance(f, types.FunctionType):
        return _function(f)
    if isinstance(f, types.MethodType):
        made = convert(f.__func__)
        return f if made is f.__func__ else types.MethodType(made, f.__self__)
    if type(f) is functools.partial:
        partial = cast("functools.partial[Any]", f)
        made = convert(partial.func)
        return f if made is partial.func else functools.partial(made, *partial.args, **partial.keywords)
    if f is range:
        return runtime.range_
    if isinstance(f, type) or not callable(f):
        return f
    method = getattr(type(f), "__call__", None)  # noqa: B004 - the method itself is wanted
    if isinstance(method, types.FunctionType):
        made = _function(method)
        return f if made is method else types.MethodType(made, f)
    return f


def _function(f: types.FunctionType) -> Callable[..., Any]:
    code = f.__code__
    try:
        made = _CONVERTED[code][code.co_filename]
    except KeyError:
        with _LOCK:
            made = _compile(f)
            _CONVERTED.setdefault(code, {})[code.co_filename] = made
            if made is not None:
                _register(made)
    if made is None:
        return f
    cells = dict(zip(code.co_freevars, f.__closure__ or (), strict=True))
    cells[RUNTIME] = _CELL
    new = types.FunctionType(
        made, f.__globals__, f.__name__, f.__defaults__, tuple(cells[name] for name in made.co_freevars)
    )
    new.__kwdefaults__ = f.__kwdefaults__
    new.__qualname__, new.__module__, new.__doc__ = f.__qualname__, f.__module__, f.__doc__
    new.__dict__.update(f.__dict__)
    new.__dict__["__wrapped__"] = f
    return new


def _register(code: types.CodeType) -> None:
    """Remember what was made, so that functions inside of it are not rewritten again."""
    stack = [code]
    while stack:
        current = stack.pop()
        _MADE.add(current)
        stack.extend(c for c in current.co_consts if isinstance(c, types.CodeType))


def is_users(filename: str) -> bool:
    """Whether code of a file is the user's own."""
    if filename.startswith(_FOREIGN) and not filename.startswith("<"):
        return False
    return not filename.startswith("<frozen") and not any(p in filename for p in _PARTS)


def _compile(f: types.FunctionType) -> types.CodeType | None:
    code = f.__code__
    if code in _MADE or not is_users(code.co_filename):
        return None
    found = _find(f)
    if found is None:
        log.info("%s is traced as it is: its source is not available", f.__qualname__)
        return None
    node, owner = found
    try:
        tree = copy.deepcopy(node)
        if isinstance(tree, ast.FunctionDef):
            tree.decorator_list = []
            tree.returns = None
            for a in ast.walk(tree.args):
                if isinstance(a, ast.arg):
                    a.annotation = None
        if owner is not None:
            tree = Mangle(owner).visit(tree)
        _forget_defaults(tree.args)
        plain = _build(copy.deepcopy(tree), code)
        if not _fits(plain, code):
            log.info("%s is traced as it is: its source has changed since it was loaded", f.__qualname__)
            return None
        made = _build(transform(tree, owner), code)
    except (SyntaxError, ValueError, RecursionError) as error:
        log.warning("%s is traced as it is: it could not be rewritten (%s)", f.__qualname__, error)
        return None
    known = {*code.co_freevars, RUNTIME}
    if not known.issuperset(made.co_freevars):
        log.info("%s is traced as it is: it reads variables that it has not captured", f.__qualname__)
        return None
    return _renamed(made, code.co_name, code.co_qualname)


def _forget_defaults(args: ast.arguments) -> None:
    """Defaults were evaluated when the function was made; the new one is given the same objects."""
    args.defaults = [ast.Constant(None) for _ in args.defaults]
    args.kw_defaults = [None if d is None else ast.Constant(None) for d in args.kw_defaults]


def _build(node: ast.FunctionDef | ast.Lambda, code: types.CodeType) -> types.CodeType:
    """Compile a function with the free variables of another one."""
    inner: ast.stmt = node if isinstance(node, ast.FunctionDef) else ast.Expr(node)
    names = [*code.co_freevars, RUNTIME]
    factory = ast.FunctionDef(
        "factory@", ast.arguments([], [ast.arg(n) for n in names], None, [], [], None, []), [inner], [], None
    )
    if "type_params" in factory._fields:
        factory.type_params = []  # type: ignore[attr-defined]
    module = ast.fix_missing_locations(ast.Module([factory], []))
    flags = code.co_flags & _FUTURE
    compiled = compile(module, code.co_filename, "exec", flags=flags, dont_inherit=True)
    (made,) = (c for c in compiled.co_consts if isinstance(c, types.CodeType))
    (function,) = (c for c in made.co_consts if isinstance(c, types.CodeType))
    return function


def _renamed(code: types.CodeType, name: str, qualname: str) -> types.CodeType:
    """Code whose functions of statements carry the user's name, as tracebacks show it."""
    constants: list[Any] = []
    for c in code.co_consts:
        if isinstance(c, types.CodeType):
            own = "@" not in c.co_name and c.co_name != "<lambda>"
            inner = c.co_name if own else name
            c = _renamed(c, inner, f"{qualname}.<locals>.{inner}" if own else qualname)
        constants.append(c)
    return code.replace(co_name=name, co_qualname=qualname, co_consts=tuple(constants))


def _fits(plain: types.CodeType, code: types.CodeType) -> bool:
    """Whether code compiled from the source found is a function's own."""
    counts = ("co_argcount", "co_posonlyargcount", "co_kwonlyargcount")
    if any(getattr(plain, c) != getattr(code, c) for c in counts):
        return False
    if any("@" in n for n in code.co_varnames):  # pytest rewrites assertions
        n = code.co_argcount + code.co_kwonlyargcount
        return plain.co_varnames[:n] == code.co_varnames[:n]
    return (plain.co_varnames, plain.co_names) == (code.co_varnames, code.co_names)


# ---------------------------------------------------------------------------------------------------- source


def _find(f: types.FunctionType) -> tuple[ast.FunctionDef | ast.Lambda, str | None] | None:
    """The tree of a function and the class around it."""
    code = f.__code__
    lines = linecache.getlines(code.co_filename, f.__globals__)
    if not lines:
        return None
    key = hash(tuple(lines))
    known = _FILES.get(code.co_filename)
    if known is None or known[0] != key:
        try:
            known = (key, _index(ast.parse("".join(lines))))
        except SyntaxError:
            return None
        _FILES[code.co_filename] = known
    nodes = [(n, owner) for n, owner in known[1].get(code.co_firstlineno, ()) if _matches(n, code)]
    if len(nodes) > 1:
        span = _positions(code)
        nodes = [(n, owner) for n, owner in nodes if _holds(n, span)]
    return nodes[0] if len(nodes) == 1 else None


def _index(tree: ast.Module) -> dict[int, list[tuple[ast.FunctionDef | ast.Lambda, str | None]]]:
    """Functions of a module by the first line of their code objects, with the class around each."""
    out: dict[int, list[tuple[ast.FunctionDef | ast.Lambda, str | None]]] = {}
    stack: list[tuple[ast.AST, str | None]] = [(tree, None)]
    while stack:
        node, owner = stack.pop()
        if isinstance(node, ast.FunctionDef):
            line = min((d.lineno for d in node.decorator_list), default=node.lineno)
            out.setdefault(line, []).append((node, owner))
        elif isinstance(node, ast.Lambda):
            out.setdefault(node.lineno, []).append((node, owner))
        elif isinstance(node, ast.ClassDef):
            owner = node.name
        stack.extend((child, owner) for child in ast.iter_child_nodes(node))
    return out


def _matches(node: ast.FunctionDef | ast.Lambda, code: types.CodeType) -> bool:
    name = node.name if isinstance(node, ast.FunctionDef) else "<lambda>"
    a = node.args
    counts = (len(a.posonlyargs) + len(a.args), len(a.kwonlyargs))
    return name == code.co_name and counts == (code.co_argcount, code.co_kwonlyargcount)


def _positions(code: types.CodeType) -> list[tuple[int, int]]:
    return [(line, column) for line, _, column, _ in code.co_positions() if line is not None and column is not None]


def _holds(node: ast.FunctionDef | ast.Lambda, span: list[tuple[int, int]]) -> bool:
    """Whether all of a function's code comes from inside a node's body."""
    body: list[Any] = node.body if isinstance(node, ast.FunctionDef) else [node.body]
    low = (body[0].lineno, body[0].col_offset)
    high = (body[-1].end_lineno, body[-1].end_col_offset)
    inner = [p for p in span if p != (node.lineno, 0)]
    return bool(inner) and all(low <= p <= high for p in inner)


class _Runtime:
    """What rewritten code sees as its runtime."""

    if_ = staticmethod(runtime.if_)
    while_ = staticmethod(runtime.while_)
    for_ = staticmethod(runtime.for_)
    choose = staticmethod(runtime.choose)
    and_ = staticmethod(runtime.and_)
    or_ = staticmethod(runtime.or_)
    not_ = staticmethod(runtime.not_)
    holds = staticmethod(runtime.holds)
    assigns = staticmethod(runtime.assigns)
    mutates = staticmethod(runtime.mutates)
    raises = staticmethod(runtime.raises)
    call = staticmethod(convert)


_CELL = types.CellType(_Runtime)
