"""Which variables are read later, at each statement of control flow (after ``exits`` has run)."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cuvil.frontend.rewrite.names import bound, captured, read


@dataclass
class Liveness:
    """Backward analysis of one function.

    Attributes:
        after: variables that are live after each ``if``, ``while`` and ``for``.
        before: variables that are live at the start of each branch (of its two lists) or of each iteration.
        always: variables that functions inside of this one read, at any time.
    """

    stops: Mapping[ast.AST, Sequence[str]]
    after: dict[ast.AST, set[str]] = field(default_factory=dict[ast.AST, set[str]])
    before: dict[ast.AST, set[str]] = field(default_factory=dict[ast.AST, set[str]])
    always: set[str] = field(default_factory=set[str])

    def function(self, body: Sequence[ast.stmt]) -> None:
        """Analyse a function's statements."""
        self.always = captured(body)
        self._block(body, set())

    def _block(self, body: Sequence[ast.stmt], live: set[str]) -> set[str]:
        for node in reversed(body):
            live = self._statement(node, live)
        return live

    def _statement(self, node: ast.stmt, live: set[str]) -> set[str]:
        if isinstance(node, ast.If):
            self.after[node] = set(live)
            self.before[node] = self._block(node.body, live) | self._block(node.orelse, live)
            return self.before[node] | read([node.test])
        if isinstance(node, (ast.While, ast.For)):
            self.after[node] = set(live)
            head = live | set(self.stops.get(node, ()))
            if isinstance(node, ast.While):
                head = head | read([node.test])
            targets: set[str] = bound([node.target]) if isinstance(node, ast.For) else set()
            while True:
                grown = head | (self._block(node.body, head) - targets)
                if grown == head:
                    break
                head = grown
            self.before[node] = head
            return head | (read([node.iter]) if isinstance(node, ast.For) else set())
        if isinstance(node, ast.Return):
            return read([node])
        if isinstance(node, ast.With):
            names = bound([i.optional_vars for i in node.items if i.optional_vars])
            return (self._block(node.body, live) - names) | read([i.context_expr for i in node.items])
        if isinstance(node, (ast.Try, ast.Match)) or hasattr(node, "handlers"):
            # Any statement inside may be the last one that runs: nothing that is bound there is safely dead.
            inside = live | read([node])
            for block in _blocks(node):
                self._block(block, inside)
            return inside
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return (live - {node.name}) | read([node])
        if isinstance(node, ast.AugAssign):
            return live | read([node])
        return (live - bound([node])) | read([node])


def _blocks(node: ast.AST) -> list[list[ast.stmt]]:
    out: list[list[ast.stmt]] = []
    for name in ("body", "orelse", "finalbody"):
        out.append(getattr(node, name, []))
    for part in (*getattr(node, "handlers", []), *getattr(node, "cases", [])):
        out.append(part.body)
    return out
