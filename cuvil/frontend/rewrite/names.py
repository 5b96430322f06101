"""Which names statements and expressions of Python bind and read."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

#: Scopes of their own: what they bind is not bound around them.
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def parameters(args: ast.arguments) -> list[str]:
    """Names of a function's parameters."""
    found = [a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
    return found + [a.arg for a in (args.vararg, args.kwarg) if a is not None]


def _walk(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Nodes without the insides of functions and classes; comprehensions are looked into."""
    stack = list(nodes)
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            stack.extend((*node.decorator_list, *node.args.defaults, *(d for d in node.args.kw_defaults if d)))
        elif isinstance(node, ast.Lambda):
            stack.extend((*node.args.defaults, *(d for d in node.args.kw_defaults if d)))
        elif isinstance(node, ast.ClassDef):
            stack.extend((*node.decorator_list, *node.bases, *(k.value for k in node.keywords)))
        else:
            stack.extend(ast.iter_child_nodes(node))


def bound(nodes: Iterable[ast.AST]) -> set[str]:
    """Names that statements bind (or delete) in the function around them."""
    out: set[str] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            out.add(node.name)
        if isinstance(node, _COMPREHENSIONS):
            # Only an assignment expression inside of one binds a name around it.
            out |= {n.target.id for n in _walk([node]) if isinstance(n, ast.NamedExpr)}
            continue
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            out.add(node.id)
        elif isinstance(node, ast.alias):
            out.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            out.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            out.add(node.rest)
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            stack.extend(n for n in list(_walk([node]))[1:] if isinstance(n, ast.NamedExpr))
        else:
            stack.extend(ast.iter_child_nodes(node))
    return out


def read(nodes: Iterable[ast.AST]) -> set[str]:
    """Names that statements or expressions read, those free in functions inside of them included."""
    out: set[str] = set()
    for node in nodes:
        out |= _read(node)
    return out


def _read(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Name):
        return set() if isinstance(node.ctx, ast.Store) else {node.id}
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        return {node.target.id} | _read(node.value)
    if isinstance(node, ast.Lambda):
        outside = read((*node.args.defaults, *(d for d in node.args.kw_defaults if d)))
        return outside | (_read(node.body) - set(parameters(node.args)))
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        outside = read((*node.decorator_list, *node.args.defaults, *(d for d in node.args.kw_defaults if d)))
        declared = _declared(node.body)
        local = (bound(node.body) - declared) | set(parameters(node.args))
        return outside | (read(node.body) - local) | declared
    if isinstance(node, _COMPREHENSIONS):
        targets = bound([g.target for g in node.generators])
        first = _read(node.generators[0].iter)
        return first | (read(ast.iter_child_nodes(node)) - targets)
    return read(ast.iter_child_nodes(node))


def _declared(body: Sequence[ast.stmt]) -> set[str]:
    return {name for node in _walk(body) if isinstance(node, (ast.Global, ast.Nonlocal)) for name in node.names}


def declared(body: Sequence[ast.stmt], kind: type[ast.Global] | type[ast.Nonlocal]) -> set[str]:
    """Names that a function's own statements declare global, or nonlocal."""
    return {name for node in _walk(body) if isinstance(node, kind) for name in node.names}


def captured(nodes: Iterable[ast.AST]) -> set[str]:
    """Names that functions and classes inside of statements read from around them, at any later time."""
    out: set[str] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            out |= _read(node)
        stack.extend(ast.iter_child_nodes(node))
    return out


def suspends(nodes: Iterable[ast.AST]) -> bool:
    """Whether a function's own statements yield or await: its frames are not ours to cut up."""
    found = (ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor, ast.AsyncWith)
    return any(isinstance(n, found) or (isinstance(n, ast.comprehension) and n.is_async) for n in _walk(nodes))


def has_walrus(nodes: Iterable[ast.AST]) -> bool:
    """Whether expressions hold an assignment expression, which binds in the scope that it stands in."""
    return any(isinstance(n, ast.NamedExpr) for n in _walk(nodes))
