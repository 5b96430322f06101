"""Turns ``return``, ``break`` and ``continue`` inside of other statements into flags and nested ``if`` statements.

Afterwards a function returns at its end only, and loops end by their tests: ``Loop.stops`` on a ``while`` or ``for``
node lists the flags that end it. Names of flags are no identifiers, so that no user's name is like them.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field

from cuvil.frontend.rewrite.names import FUNCTIONS

#: The value that a function returns, and whether it has been set.
VALUE, RETURNED = "return@", "returned@"


@dataclass
class Flags:
    """Names of the flags that a loop's ``break`` and ``continue`` set."""

    number: int

    @property
    def broken(self) -> str:
        return f"break@{self.number}"

    @property
    def skipped(self) -> str:
        return f"continue@{self.number}"


def is_placeholder(name: str) -> bool:
    """Whether a variable is the value to return: until it is set nobody reads it, whatever it holds."""
    return name == VALUE


def exits_of(nodes: Sequence[ast.stmt]) -> set[str]:
    """Which of ``return``, ``break`` and ``continue`` may leave a list of statements."""
    out: set[str] = set()
    stack: list[tuple[ast.AST, bool]] = [(n, False) for n in nodes]
    while stack:
        node, in_loop = stack.pop()
        if isinstance(node, ast.Return):
            out.add("return")
        elif isinstance(node, (ast.Break, ast.Continue)):
            if not in_loop:
                out.add("break" if isinstance(node, ast.Break) else "continue")
        elif isinstance(node, (ast.While, ast.For)):
            stack.extend((n, True) for n in node.body)
            stack.extend((n, in_loop) for n in node.orelse)
        elif not isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.expr)):
            stack.extend((n, in_loop) for n in ast.iter_child_nodes(node))
    return out


def always_leaves(nodes: Sequence[ast.stmt]) -> bool:
    """Whether control never reaches the end of a list of statements."""
    for node in nodes:
        if isinstance(node, (ast.Return, ast.Break, ast.Continue, ast.Raise)):
            return True
        if isinstance(node, ast.If) and always_leaves(node.body) and always_leaves(node.orelse):
            return True
        if isinstance(node, ast.With) and always_leaves(node.body):
            return True
    return False


def flags_of(exits: set[str], loop: Flags | None) -> list[str]:
    """Names of the flags that these exits set."""
    out = [RETURNED] if "return" in exits else []
    if loop is not None:
        out += [loop.broken] if "break" in exits else []
        out += [loop.skipped] if "continue" in exits else []
    return out


def _set(name: str, value: ast.expr, at: ast.AST) -> ast.stmt:
    return ast.copy_location(ast.Assign([ast.Name(name, ast.Store())], value), at)


def none_of(flags: Sequence[str]) -> ast.expr:
    """``not (a or b)``"""
    names: list[ast.expr] = [ast.Name(f, ast.Load()) for f in flags]
    return ast.UnaryOp(ast.Not(), names[0] if len(names) == 1 else ast.BoolOp(ast.Or(), names))


@dataclass
class Exits:
    """Lowers the exits of one function."""

    loops: int = 0
    stops: dict[ast.AST, list[str]] = field(default_factory=dict[ast.AST, list[str]])

    def function(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """The body with one ``return`` at its end at most."""
        if "return" not in exits_of(body[:-1]) and (not body or isinstance(body[-1], ast.Return)):
            last = body[-1:]  # a plain return at the end stays one
            return [*self._block(body[:-1], None), *last]
        if "return" not in exits_of(body):
            return self._block(body, None)
        start, end = body[0], body[-1]
        if not always_leaves(body):
            body = [*body, ast.copy_location(ast.Return(None), end)]
        lowered = self._block(body, None)
        final = ast.copy_location(ast.Return(ast.Name(VALUE, ast.Load())), end)
        return [_set(RETURNED, ast.Constant(False), start), *lowered, final]

    def _block(self, body: Sequence[ast.stmt], loop: Flags | None) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        for k, node in enumerate(body):
            rest = list(body[k + 1 :])
            if isinstance(node, ast.Return):
                out.append(_set(VALUE, node.value or ast.Constant(None), node))
                out.append(_set(RETURNED, ast.Constant(True), node))
                return out
            if isinstance(node, (ast.Break, ast.Continue)):
                assert loop is not None
                flag = loop.broken if isinstance(node, ast.Break) else loop.skipped
                return [*out, _set(flag, ast.Constant(True), node)]
            leaves = exits_of([node])
            if isinstance(node, (ast.While, ast.For)):
                out += self._loop(node, loop)
                guarded = leaves  # break and continue of its own are not among these
            elif isinstance(node, ast.If):
                if leaves and rest and always_leaves(node.body):
                    # What follows runs where the other branch is taken: no flag need be read.
                    node.orelse, rest = [*node.orelse, *rest], []
                elif leaves and rest and always_leaves(node.orelse):
                    node.body, rest = [*node.body, *rest], []
                node.body, node.orelse = self._block(node.body, loop), self._block(node.orelse, loop)
                out.append(node)
                guarded = leaves
                if not rest:
                    return out
            else:
                self._inside(node, loop)
                out.append(node)
                guarded = leaves
            if guarded and rest:
                inner = self._block(rest, loop)
                test = none_of(flags_of(guarded, loop))
                out.append(_locate(ast.If(test, inner, []), rest[0]))
                return out
        return out

    def _inside(self, node: ast.stmt, loop: Flags | None) -> None:
        """Lower the statements inside of ``with``, ``try`` and ``match``."""
        if isinstance(node, ast.With):
            node.body = self._block(node.body, loop)
        elif isinstance(node, (ast.Try, getattr(ast, "TryStar", ast.Try))):
            assert isinstance(node, ast.Try)
            left = exits_of(node.body)
            node.body = self._block(node.body, loop)
            for handler in node.handlers:
                handler.body = self._block(handler.body, loop)
            if left and node.orelse:
                inner = self._block(node.orelse, loop)
                node.orelse = [_locate(ast.If(none_of(flags_of(left, loop)), inner, []), node.orelse[0])]
            else:
                node.orelse = self._block(node.orelse, loop)
            node.finalbody = self._block(node.finalbody, loop)
        elif isinstance(node, ast.Match):
            for case in node.cases:
                case.body = self._block(case.body, loop)

    def _loop(self, node: ast.While | ast.For, around: Flags | None) -> list[ast.stmt]:
        own = Flags(self.loops)
        self.loops += 1
        leaves = exits_of(node.body)
        body = self._block(node.body, own)
        if "continue" in leaves:
            body = [_set(own.skipped, ast.Constant(False), node), *body]
        node.body = body
        orelse, node.orelse = node.orelse, []
        stops = [own.broken] if "break" in leaves else []
        stops += [RETURNED] if "return" in leaves else []
        self.stops[node] = stops
        out: list[ast.stmt] = [_set(own.broken, ast.Constant(False), node)] if "break" in leaves else []
        out.append(node)
        if orelse:
            inner = self._block(orelse, around)
            out += [_locate(ast.If(none_of(stops), inner, []), orelse[0])] if stops else inner
        return out


def _locate(node: ast.If, at: ast.stmt) -> ast.If:
    ast.copy_location(node, at)
    for part in ast.walk(node.test):
        ast.copy_location(part, at)
    return node
