"""Writes a function's control flow as calls of the runtime, keeping every line number.

``if test: a() else: b()`` becomes::

    def true@1(): nonlocal y; y = a()
    def false@1(): nonlocal y; y = b()
    rt@.if_(test, true@1, false@1, ("y",))

The functions share the variables that they assign with the one around them, so that in plain Python nothing changes.
The runtime finds the variables' cells in the functions' closures.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from cuvil.frontend.rewrite.exits import Exits, none_of
from cuvil.frontend.rewrite.liveness import Liveness
from cuvil.frontend.rewrite.names import bound, declared, has_walrus, parameters, suspends

RUNTIME = "rt@"
_ITEM = "item@"

#: Methods of Python's own containers that change them.
_MUTATORS = frozenset(
    {"append", "extend", "insert", "pop", "remove", "clear", "update", "setdefault", "popitem", "add", "discard",
     "appendleft", "popleft", "extendleft", "sort", "reverse"}
)  # fmt: skip
#: Functions that look at the frame that calls them.
_FRAME_READERS = frozenset({"locals", "globals", "vars", "dir", "eval", "exec", "super", "breakpoint"})

_Node = TypeVar("_Node", bound=ast.AST)


def transform(node: ast.FunctionDef | ast.Lambda, owner: str | None) -> ast.FunctionDef | ast.Lambda:
    """A function's tree with its control flow rewritten; ``owner`` is the class that its private names belong to."""
    made = _Functions(owner).convert(node)
    return ast.fix_missing_locations(made)


def _call(name: str, *args: ast.expr) -> ast.Call:
    runtime = ast.Attribute(ast.Name(RUNTIME, ast.Load()), name, ast.Load())
    return ast.Call(runtime, list(args), [])


def _text(value: Any) -> ast.expr:
    if isinstance(value, (tuple, list)):
        return ast.Tuple([_text(v) for v in value], ast.Load())  # pyright: ignore[reportUnknownVariableType]
    return ast.Constant(value)


def _thunk(body: ast.expr) -> ast.Lambda:
    return ast.copy_location(ast.Lambda(_no_arguments(), body), body)


def _no_arguments(*names: str) -> ast.arguments:
    return ast.arguments([], [ast.arg(n) for n in names], None, [], [], None, [])


def _at(node: _Node, source: ast.AST) -> _Node:
    """Give new nodes the first line of what they stand for: a call takes its line from the end of its function."""
    line, column = source.lineno, source.col_offset  # type: ignore[attr-defined]
    for part in ast.walk(node):
        if part is node or ("lineno" in part._attributes and not hasattr(part, "lineno")):
            part.lineno, part.end_lineno = line, line  # type: ignore[attr-defined]
            part.col_offset, part.end_col_offset = column, column  # type: ignore[attr-defined]
    return node


class _Functions:
    """Converts functions, and the functions in them."""

    def __init__(self, owner: str | None) -> None:
        self.owner = owner
        self.count = 0

    def convert(self, node: ast.FunctionDef | ast.Lambda) -> ast.FunctionDef | ast.Lambda:
        """One function, in place."""
        if isinstance(node, ast.Lambda):
            if not suspends([node.body]):
                node.body = _Body(self, node, {}, Liveness({})).visit(node.body)
            return node
        if suspends(node.body):
            return node
        exits = Exits()
        body = exits.function(node.body)
        live = Liveness(exits.stops)
        live.function(body)
        work = _Body(self, node, exits.stops, live)
        outside = declared(body, ast.Global) | declared(body, ast.Nonlocal)
        local = bound(body) - outside - set(parameters(node.args))
        text = [s for s in body[:1] if _is_docstring(s)]
        rest = work.statements(body[len(text) :])
        node.body = [*text, *_declarations(local, node), *rest]
        return node

    def name(self, what: str) -> str:
        """A name for a new function; it becomes that of the user's function once it is compiled."""
        self.count += 1
        return f"{what}@{self.count}"


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _declarations(names: set[str], at: ast.AST) -> list[ast.stmt]:
    """Statements that make names local without binding them: only functions inside assign some of them."""
    return [_at(ast.AnnAssign(ast.Name(n, ast.Store()), ast.Constant(None), None, 1), at) for n in sorted(names)]


class _Body(ast.NodeTransformer):
    """Rewrites the statements and expressions of one function."""

    def __init__(
        self,
        functions: _Functions,
        node: ast.FunctionDef | ast.Lambda,
        stops: Mapping[ast.AST, Sequence[str]],
        live: Liveness,
    ) -> None:
        self.functions = functions
        self.live = live
        self.stops = stops
        body: list[Any] = node.body if isinstance(node, ast.FunctionDef) else []
        positional = [*node.args.posonlyargs, *node.args.args]
        self.first = positional[0].arg if positional else None
        self.globals = declared(body, ast.Global)
        self.nonlocals = declared(body, ast.Nonlocal)
        self.locals = bound(body) - self.globals - self.nonlocals - set(parameters(node.args))
        self.inside: list[set[str]] = []  # what each statement of control flow around binds
        self.comprehensions = 0

    def statements(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """A list of statements, each replaced by one or more."""
        out: list[ast.stmt] = []
        for node in body:
            made = self.visit(node)
            out += made if isinstance(made, list) else [made]
        return out

    # ------------------------------------------------------------------------------------ control flow
    def _nested(
        self,
        what: str,
        body: Sequence[ast.stmt],
        shared: set[str],
        at: ast.AST,
        *args: str,
        first: Sequence[ast.stmt] = (),
    ) -> ast.FunctionDef:
        """A function of some statements; ``shared`` are variables of the function around it."""
        names = bound([*first, *body])
        self.inside.append(names)
        inner = self.statements(body)
        self.inside.pop()
        head: list[ast.stmt] = []
        if names & self.globals:
            head.append(ast.Global(sorted(names & self.globals)))
        outer = (names & self.nonlocals) | shared
        if outer:
            head.append(ast.Nonlocal(sorted(outer)))
        head += _declarations(names - self.globals - outer - set(args), at)
        statements = [*head, *first, *inner] or [ast.Pass()]
        function = ast.FunctionDef(self.functions.name(what), _no_arguments(*args), statements, [], None)
        if hasattr(function, "type_params") or "type_params" in function._fields:
            function.type_params = []  # type: ignore[attr-defined]
        return _at(function, at)

    def _shared(self, names: set[str], live: set[str]) -> set[str]:
        """Which of the names that a statement binds are seen outside of it."""
        return {n for n in names - self.globals - self.nonlocals if n in live or n in self.live.always}

    def visit_If(self, node: ast.If) -> list[ast.stmt]:
        names = bound([*node.body, *node.orelse])
        after = self.live.after[node]
        shared = self._shared(names, after | self.live.before[node] | bound([node.test]))
        true = self._nested("true", node.body, shared & bound(node.body), node)
        false = self._nested("false", node.orelse, shared & bound(node.orelse), node)
        out = sorted(self._shared(names, after))
        test = self.visit(node.test)
        call = _call("if_", test, ast.Name(true.name, ast.Load()), ast.Name(false.name, ast.Load()), _text(out))
        return [true, false, _at(ast.Expr(call), node)]

    def _more(self, node: ast.While | ast.For, test: ast.expr | None, shared: set[str]) -> ast.FunctionDef:
        """The function that says whether a loop goes on."""
        stops = self.stops.get(node, ())
        value = none_of(stops) if stops else None
        if value is None:
            assert test is not None
            value = test
        elif test is not None:
            value = ast.BoolOp(ast.And(), [value, test])
        answer = _at(ast.Return(value), test or node)
        return self._nested("test", [answer], shared & bound([answer]), node)

    def visit_While(self, node: ast.While) -> list[ast.stmt]:
        names = bound([*node.body, node.test])
        carried = self._shared(names, self.live.before[node] | self.live.after[node])
        flow = {n for n in carried if n in self.live.before[node] or n in self.live.after[node]}
        test = self._more(node, node.test, carried)
        body = self._nested("body", node.body, carried & bound(node.body), node)
        call = _call("while_", ast.Name(test.name, ast.Load()), ast.Name(body.name, ast.Load()), _text(sorted(flow)))
        return [test, body, _at(ast.Expr(call), node)]

    def visit_For(self, node: ast.For) -> list[ast.stmt]:
        item = _at(ast.Assign([node.target], ast.Name(_ITEM, ast.Load())), node)
        names = bound([*node.body, node.target])
        carried = self._shared(names, self.live.before[node] | self.live.after[node])
        flow = {n for n in carried if n in self.live.before[node] or n in self.live.after[node]}
        body = self._nested("body", node.body, carried, node, _ITEM, first=[item])
        out: list[ast.stmt] = [body]
        more: ast.expr = ast.Constant(None)
        if self.stops.get(node):
            test = self._more(node, None, carried)
            out.append(test)
            more = ast.Name(test.name, ast.Load())
        call = _call("for_", self.visit(node.iter), ast.Name(body.name, ast.Load()), more, _text(sorted(flow)))
        return [*out, _at(ast.Expr(call), node)]

    # --------------------------------------------------------------------------------- other statements
    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        said = ast.unparse(node.test)
        binds = node.msg is not None and has_walrus([node.msg])
        test = self.visit(node.test)
        message = None if node.msg is None else self.visit(node.msg)
        if binds:
            return ast.copy_location(ast.Assert(test, message), node)
        holds = _at(_call("holds", test, _thunk(message or ast.Constant(None)), _text(said)), node)
        return ast.copy_location(ast.Assert(holds, message), node)

    def visit_Raise(self, node: ast.Raise) -> list[ast.stmt]:
        self.generic_visit(node)
        return [_at(ast.Expr(_call("raises")), node), node]

    def visit_Assign(self, node: ast.Assign) -> list[ast.stmt]:
        effects = self._effects(node.targets, node)
        self.generic_visit(node)
        return [*effects, node]

    def visit_AugAssign(self, node: ast.AugAssign) -> list[ast.stmt]:
        effects = self._effects([node.target], node)
        self.generic_visit(node)
        return [*effects, node]

    def visit_AnnAssign(self, node: ast.AnnAssign) -> list[ast.stmt]:
        # A variable that statements share must not be annotated; every local one is declared at the top.
        if node.value is None:
            return []
        return self.visit_Assign(ast.copy_location(ast.Assign([node.target], node.value), node))

    def visit_Delete(self, node: ast.Delete) -> list[ast.stmt]:
        return [*self._effects(node.targets, node), node]

    def visit_Expr(self, node: ast.Expr) -> list[ast.stmt]:
        effects: list[ast.stmt] = []
        call = node.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _MUTATORS:
            root = _root(call.func.value)
            level = None if root is None else self._level(root.id)
            if root is not None and level is not None and not has_walrus([call.func.value]):
                said = ast.unparse(call.func)
                target = copy.deepcopy(call.func.value)
                effects = [_at(ast.Expr(_call("mutates", target, _text(said), _text(level))), node)]
        self.generic_visit(node)
        return [*effects, node]

    def _effects(self, targets: Sequence[ast.expr], at: ast.stmt) -> list[ast.stmt]:
        """Checks that come before an assignment to something that outlives a branch."""
        out: list[ast.stmt] = []
        for target in targets:
            for part in ast.walk(target):
                if isinstance(part, ast.Name) and isinstance(part.ctx, (ast.Store, ast.Del)):
                    if part.id in self.globals | self.nonlocals:
                        kind = "global" if part.id in self.globals else "nonlocal"
                        out.append(
                            ast.Expr(_call("assigns", ast.Constant(None), _text(f"{kind} {part.id}"), _text(-1)))
                        )
                elif isinstance(part, (ast.Attribute, ast.Subscript)) and not isinstance(part.ctx, ast.Load):
                    root = _root(part)
                    level = None if root is None else self._level(root.id)
                    if root is not None and level is not None:
                        of = ast.Name(root.id, ast.Load()) if part.value is root else ast.Constant(None)
                        out.append(ast.Expr(_call("assigns", of, _text(ast.unparse(part)), _text(level))))
        return [_at(s, at) for s in out]

    def _level(self, name: str) -> int | None:
        """How many statements of control flow around, from the inside, leave a name's binding outside (-1: all).

        None where the innermost one binds it itself, or there is none.
        """
        for k, names in enumerate(reversed(self.inside)):
            if name in names:
                return k or None
        return (len(self.inside) or None) if name in self.locals else -1

    # -------------------------------------------------------------------------------------- expressions
    def visit_Call(self, node: ast.Call) -> ast.expr:
        if isinstance(node.func, ast.Name) and node.func.id in _FRAME_READERS:
            if node.func.id == "super" and not node.args and not node.keywords and self.first is not None:
                # Inside of the functions that statements become, Python would not find the arguments itself.
                node.args = [ast.Name("__class__", ast.Load()), ast.Name(self.first, ast.Load())]
                return _at(node, node.func)
            for k, a in enumerate(node.args):
                node.args[k] = self.visit(a)
            return node
        self.generic_visit(node)
        node.func = _at(_call("call", node.func), node.func)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        binds = has_walrus([node.body, node.orelse])
        self.generic_visit(node)
        if binds:
            return node
        return _at(_call("choose", node.test, _thunk(node.body), _thunk(node.orelse)), node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        binds = has_walrus(node.values[1:])
        self.generic_visit(node)
        if binds:
            return node
        name = "and_" if isinstance(node.op, ast.And) else "or_"
        out = node.values[-1]
        for value in reversed(node.values[:-1]):
            out = _at(_call(name, value, _thunk(out)), node)
        return out

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        return _at(_call("not_", node.operand), node) if isinstance(node.op, ast.Not) else node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        binds = has_walrus(node.comparators)
        self.generic_visit(node)
        if len(node.ops) == 1 or self.comprehensions or binds:
            return node
        # a < b < c is (a < (t := b)) and (t < c): what stands in the middle is computed once.
        parts: list[ast.expr] = []
        left = node.left
        for op, right in zip(node.ops, node.comparators, strict=True):
            if right is node.comparators[-1]:
                parts.append(_at(ast.Compare(left, [op], [right]), node))
                break
            held = self.functions.name("middle")
            named = _at(ast.NamedExpr(ast.Name(held, ast.Store()), right), node)
            parts.append(_at(ast.Compare(left, [op], [named]), node))
            left = _at(ast.Name(held, ast.Load()), node)
        out = parts[-1]
        for part in reversed(parts[:-1]):
            # What a lambda binds is its own; the innermost one reads what those around it bound.
            out = _at(_call("and_", part, _thunk(out)), node)
        return out

    def _comprehension(self, node: _Node) -> _Node:
        self.comprehensions += 1
        self.generic_visit(node)
        self.comprehensions -= 1
        return node

    def visit_ListComp(self, node: ast.ListComp) -> ast.ListComp:
        return self._comprehension(node)

    def visit_SetComp(self, node: ast.SetComp) -> ast.SetComp:
        return self._comprehension(node)

    def visit_DictComp(self, node: ast.DictComp) -> ast.DictComp:
        return self._comprehension(node)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> ast.GeneratorExp:
        return self._comprehension(node)

    # ------------------------------------------------------------------------------- functions inside
    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.decorator_list = [self.visit(d) for d in node.decorator_list]
        node.args.defaults = [self.visit(d) for d in node.args.defaults]
        node.args.kw_defaults = [None if d is None else self.visit(d) for d in node.args.kw_defaults]
        made = self.functions.convert(node)
        assert isinstance(made, ast.FunctionDef)
        return made

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AsyncFunctionDef:
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        node.args.defaults = [self.visit(d) for d in node.args.defaults]
        if suspends([node.body]):
            return node
        around, self.comprehensions = self.comprehensions, 0
        node.body = self.visit(node.body)
        self.comprehensions = around
        return node

    def visit_With(self, node: ast.With) -> ast.With:
        node.items = [self.visit(i) for i in node.items]
        node.body = self.statements(node.body)
        return node

    def _try(self, node: Any) -> Any:
        node.body, node.orelse = self.statements(node.body), self.statements(node.orelse)
        node.finalbody = self.statements(node.finalbody)
        for handler in node.handlers:
            handler.body = self.statements(handler.body)
        return node

    def visit_Try(self, node: ast.Try) -> ast.Try:
        return self._try(node)

    def visit_TryStar(self, node: ast.TryStar) -> ast.TryStar:
        return self._try(node)

    def visit_Match(self, node: ast.Match) -> ast.Match:
        node.subject = self.visit(node.subject)
        for case in node.cases:
            case.guard = None if case.guard is None else self.visit(case.guard)
            case.body = self.statements(case.body)
        return node


def _root(node: ast.expr) -> ast.Name | None:
    """The variable that a chain of attributes and subscripts starts from."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node if isinstance(node, ast.Name) else None


class Mangle(ast.NodeTransformer):
    """Gives private names (``__x``) the form that they have in a class, as compiling it there does."""

    def __init__(self, owner: str) -> None:
        self.prefix = "_" + owner.lstrip("_")

    def _mangled(self, name: str) -> str:
        return self.prefix + name if name.startswith("__") and not name.endswith("__") and "." not in name else name

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = self._mangled(node.id)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.Attribute:
        self.generic_visit(node)
        node.attr = self._mangled(node.attr)
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.arg = self._mangled(node.arg)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        return node  # has an owner of its own
