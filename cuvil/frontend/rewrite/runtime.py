"""What rewritten functions call: control flow as Python runs it where it is concrete, regions where it is traced."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from xdsl.dialects.builtin import LocationAttr

from cuvil.frontend.dispatch import asoperand, elementwise
from cuvil.frontend.namespace.creation import zeros
from cuvil.frontend.pytree import TreeDef, flatten, leaf_paths
from cuvil.frontend.regions import (
    Kind,
    Region,
    around,
    as_condition,
    as_index,
    build_loop,
    build_switch,
    build_while,
    emit_check,
    here,
    inside,
    kind_of,
    open_region,
    plainly,
)
from cuvil.frontend.rewrite.exits import is_placeholder
from cuvil.frontend.source import at_user_line
from cuvil.frontend.tracer import METHODS, Trace, Tracer, current_trace
from cuvil.support.errors import ArgumentError, ArgumentTypeError, CuvilError, TracingError
from cuvil.symbolic import Dim, Expr, ceildiv, dim_max

Thunk = Callable[[], Any]
Cells = dict[str, types.CellType]


class _Undefined:
    """The value of a variable that is not bound."""

    def __repr__(self) -> str:
        return "unbound"


UNDEFINED = _Undefined()
_SCALARS = (bool, int, float)


def _trace(x: Tracer) -> Trace:
    trace = current_trace()
    x.value_in(trace)  # raises where the value's own trace has ended
    assert trace is not None
    return trace


# ------------------------------------------------------------------------------------------------ variables


def _cells(*functions: Callable[..., Any] | None) -> Cells:
    """The variables that functions share with what is around them."""
    out: Cells = {}
    for f in functions:
        if f is not None:
            made = cast(types.FunctionType, f)
            out.update(zip(made.__code__.co_freevars, made.__closure__ or (), strict=True))
    return out


def _get(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return UNDEFINED


def _read(cells: Cells) -> dict[str, Any]:
    return {name: _get(cell) for name, cell in cells.items()}


def _write(cells: Cells, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if value is not UNDEFINED:
            cells[name].cell_contents = value
        elif _get(cells[name]) is not UNDEFINED:
            del cells[name].cell_contents


def _label(name: str) -> str:
    if is_placeholder(name):
        return "the value to return"
    return name if name.startswith("the value") else f"variable {name!r}"


def _is_array(x: Any) -> bool:
    try:
        asoperand(x)
    except ArgumentTypeError:
        return False
    return True


def _same(a: Any, b: Any) -> bool:
    """Whether two values that are no arrays are one and the same for a program."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if type(a) is float:
        return a.hex() == b.hex()
    try:
        return bool(a == b)
    except Exception:  # noqa: BLE001 - whatever an object's own __eq__ raises
        return False


# ------------------------------------------------------------------------------------------------- branches


def if_(test: Any, true: Thunk, false: Thunk, names: Sequence[str]) -> None:
    """An ``if`` statement; ``names`` are the variables that its branches bind and that are read after it."""
    if isinstance(test, Tracer):
        _branch(test, (false, true), names)
    else:
        plainly(true if test else false)


def _branch(test: Tracer, branches: Sequence[Thunk], names: Sequence[str]) -> None:
    parent, location = _trace(test), here()
    condition = as_condition(test, "the condition of an if")
    cells = _cells(*branches)
    before = _read(cells)
    regions: list[Region] = []
    states: list[dict[str, Any]] = []
    try:
        for run in branches:
            _write(cells, before)
            region = open_region(parent, (), ())
            inside(region, run)
            regions.append(region)
            states.append({n: _get(cells[n]) for n in names})
    finally:
        _write(cells, before)
    _write(cells, _merge(parent, condition, regions, states, location))


def _merge(
    parent: Trace,
    condition: Tracer,
    regions: Sequence[Region],
    states: Sequence[dict[str, Any]],
    location: LocationAttr,
) -> dict[str, Any]:
    """The values of variables after branches that left them in different states."""
    out: dict[str, Any] = {}
    dynamic: list[tuple[str, TreeDef, list[Any], list[int]]] = []
    labels: list[str] = []
    for name in states[0]:
        values = [s[name] for s in states]
        if all(v is values[0] for v in values):
            out[name] = values[0]
            continue
        if any(v is UNDEFINED for v in values):
            values = _fill(name, values, regions)
        flat = [flatten(v) for v in values]
        tree = flat[0][1]
        if any(t != tree for _, t in flat):
            raise TracingError(
                f"{_label(name)} is {_shown(values)}, depending on a traced condition{at_user_line()}; every branch"
                " must give the same structure"
            )
        leaves: list[Any] = []
        open_leaves: list[int] = []
        for path, column in zip(leaf_paths(tree, name), zip(*(f[0] for f in flat), strict=True), strict=True):
            if all(_same(column[0], c) for c in column):
                leaves.append(column[0])
                continue
            if not all(_is_array(c) for c in column):
                raise TracingError(
                    f"{_label(path)} is {_shown(column)}, depending on a traced condition{at_user_line()}; only"
                    " arrays and numbers can depend on a traced value"
                )
            open_leaves.append(len(leaves))
            leaves.append(None)
            labels.append(_label(path))
            for region, c in zip(regions, column, strict=True):
                region.leaves.append(c)
        dynamic.append((name, tree, leaves, open_leaves))
    results = iter(build_switch(parent, condition, regions, labels, location))
    for name, tree, leaves, open_leaves in dynamic:
        for k in open_leaves:
            leaves[k] = next(results)
        out[name] = tree.unflatten(leaves)
    return out


def _shown(values: Iterable[Any]) -> str:
    return " or ".join(dict.fromkeys(_short(v) for v in values))


def _short(value: Any) -> str:
    if _is_array(value):
        return str(kind_of(value))
    text = repr(value)
    return text if len(text) < 40 else type(value).__name__


def _fill(name: str, values: Sequence[Any], regions: Sequence[Region]) -> list[Any]:
    """Values of a variable that some branches do not bind."""
    if not is_placeholder(name):
        which = "when the condition does not hold" if values[0] is UNDEFINED else "when the condition holds"
        raise TracingError(
            f"{_label(name)} is bound in one branch only: it has no value {which}, which is only known when the"
            f" compiled function runs{at_user_line()}. Bind it before the if, or in both branches."
        )
    known = next(v for v in values if v is not UNDEFINED)
    return [inside(r, lambda: _blank(known)) if v is UNDEFINED else v for v, r in zip(values, regions, strict=True)]


def _blank(value: Any) -> Any:
    """Something of a value's structure and types that nobody will read."""
    leaves, tree = flatten(value)
    return tree.unflatten(_zero(kind_of(x)) if _is_array(x) else x for x in leaves)


def _zero(kind: Kind) -> Any:
    return kind.weak() if kind.weak is not None else zeros(kind.aval.shape, dtype=kind.aval.dtype.numpy)


# ------------------------------------------------------------------------------------------------ expressions


def choose(test: Any, true: Thunk, false: Thunk) -> Any:
    """``a if test else b``"""
    if not isinstance(test, Tracer):
        return true() if test else false()
    return _choose(test, false, true, "the value of a conditional expression")


def _choose(test: Tracer, false: Thunk, true: Thunk, what: str) -> Any:
    parent, location = _trace(test), here()
    condition = as_condition(test, "the condition of an expression")
    regions = [open_region(parent, (), ()) for _ in range(2)]
    states = [{what: inside(r, run)} for r, run in zip(regions, (false, true), strict=True)]
    return _merge(parent, condition, regions, states, location)[what]


def and_(left: Any, right: Thunk) -> Any:
    """``left and right``"""
    if not isinstance(left, Tracer):
        return right() if left else left
    return _choose(left, lambda: False if left.cuvil_dtype.is_bool else left, right, "the value of 'and'")


def or_(left: Any, right: Thunk) -> Any:
    """``left or right``"""
    if not isinstance(left, Tracer):
        return left if left else right()
    return _choose(left, right, lambda: True if left.cuvil_dtype.is_bool else left, "the value of 'or'")


def not_(x: Any) -> Any:
    """``not x``"""
    if not isinstance(x, Tracer):
        return not x
    return elementwise("logical_not", as_condition(x, "the operand of not"))


def holds(test: Any, message: Thunk, text: str) -> Any:
    """What ``assert`` looks at: a traced test becomes a check of the compiled function."""
    if not isinstance(test, Tracer):
        return test
    said = message()
    condition = as_condition(test, "the condition of an assert")
    emit_check(condition, f"{text if said is None else said}{at_user_line()}")
    return True


# ------------------------------------------------------------------------------------------------------ loops


class _State:
    """The variables that a traced loop carries: numbers and arrays among their leaves change, the rest stays."""

    def __init__(self, cells: Cells, names: Sequence[str]) -> None:
        self.cells = cells
        self.names = list(names)
        self.before = _read(cells)
        self.trees: dict[str, TreeDef] = {}
        self.fixed: dict[str, list[Any]] = {}  # leaves by name; those that the loop carries are UNDEFINED
        self.never: list[str] = []  # unbound before the loop and after an iteration
        self.labels: list[str] = []
        self.leaves: list[Any] = []

    def start(self, parent: Trace, step: Callable[[Any], None]) -> None:
        """Read the variables. One that is unbound must be the value to return, or not be bound by the loop either.

        ``step`` runs an iteration of some number, for what it binds.
        """
        unbound = [n for n in self.names if self.before[n] is UNDEFINED]
        self.names = [n for n in self.names if self.before[n] is not UNDEFINED]
        for n in self.names:
            self._add(n, *flatten(self.before[n]))
        if not unbound:
            return
        # Everything that changes is traced, as it will be: nothing is decided by what it is at first.
        kinds = [kind_of(0), *map(kind_of, self.leaves)]
        region = open_region(parent, kinds, ["i", *self.labels])

        def iterate() -> None:
            self.load(region.arguments[1:])
            step(region.arguments[0])

        inside(region, iterate)
        found = {n: _get(self.cells[n]) for n in unbound}
        for n, value in found.items():
            if value is UNDEFINED:
                self.never.append(n)
                continue
            if not is_placeholder(n):
                raise TracingError(
                    f"{_label(n)} is bound in the loop only, which may not run at all: how often it runs is known"
                    f" when the compiled function runs{at_user_line()}. Bind it before the loop, to a value of the"
                    " shape and dtype that it will have."
                )
            self.names.append(n)
            leaves, tree = flatten(value)
            # The value that it starts with is made outside of the loop.
            self._add(n, [_zero(kind_of(x)) if _is_array(x) else x for x in leaves], tree)
        region.trace.alive = False
        self.restore()

    def _add(self, name: str, leaves: Sequence[Any], tree: TreeDef) -> None:
        self.trees[name] = tree
        self.fixed[name] = []
        for path, leaf in zip(leaf_paths(tree, name), leaves, strict=True):
            moves = _is_array(leaf)
            self.fixed[name].append(UNDEFINED if moves else leaf)
            if moves:
                self.leaves.append(leaf)
                self.labels.append(_label(path))

    def load(self, values: Sequence[Any]) -> None:
        """Set the variables for an iteration, or for what comes after the loop."""
        rest = iter(values)
        _write(self.cells, self.before)
        for n in self.names:
            leaves = [next(rest) if x is UNDEFINED else x for x in self.fixed[n]]
            self.cells[n].cell_contents = self.trees[n].unflatten(leaves)

    def store(self) -> list[Any]:
        """What an iteration leaves in the variables.

        Raises:
            TracingError: a variable has another structure, or what is no array changed.
        """
        out: list[Any] = []
        for n in self.never:
            if _get(self.cells[n]) is not UNDEFINED:
                raise TracingError(f"{_label(n)} is bound in some iterations of a traced loop only{at_user_line()}")
        for n in self.names:
            value = _get(self.cells[n])
            leaves, tree = flatten(value)
            if value is UNDEFINED or tree != self.trees[n]:
                became = _short(value) if value is UNDEFINED else str(tree)
                raise TracingError(
                    f"{_label(n)} enters the loop as {self.trees[n]} and is {became} after an"
                    f" iteration{at_user_line()}; a traced loop carries one structure"
                )
            for path, leaf, fixed in zip(leaf_paths(tree, n), leaves, self.fixed[n], strict=True):
                if fixed is UNDEFINED:
                    if not _is_array(leaf):
                        raise TracingError(f"{_label(path)} becomes {_short(leaf)} in a traced loop{at_user_line()}")
                    out.append(leaf)
                elif not _same(leaf, fixed):
                    raise TracingError(
                        f"{_label(path)} changes from {_short(fixed)} to {_short(leaf)} in a traced loop"
                        f"{at_user_line()}; only arrays and numbers can change from one iteration to the next"
                    )
        return out

    def restore(self) -> None:
        """Set the variables to what they were before the loop."""
        _write(self.cells, self.before)


def while_(test: Thunk, body: Thunk, names: Sequence[str]) -> None:
    """A ``while`` statement; ``names`` are the variables that go from one iteration to the next, or to what follows."""
    while True:
        answer = test()
        if isinstance(answer, Tracer):
            _while(_trace(answer), test, body, names)
            return
        if not answer:
            return
        plainly(body)


def _while(parent: Trace, test: Thunk, body: Thunk, names: Sequence[str]) -> None:
    state = _State(_cells(test, body), names)

    def step(values: Sequence[Any]) -> list[Any]:
        state.load(values)
        body()
        return state.store()

    def condition(values: Sequence[Any]) -> Any:
        state.load(values)
        return test()

    try:
        state.start(parent, lambda _: body())
        out = build_while(parent, state.leaves, state.labels, condition, step, here())
    except BaseException:
        state.restore()
        raise
    state.load(out)


class TracedRange:
    """``range(...)`` of traced integers or sizes that are symbols: what a ``for`` statement goes over natively."""

    def __init__(self, start: Any, stop: Any, step: int) -> None:
        self.start, self.stop, self.step = start, stop, step

    def __iter__(self) -> Iterator[int]:
        raise TracingError(
            f"a range of traced bounds has no numbers yet{at_user_line()}: a for statement goes over it natively; for a"
            " list use cuvil.map or cuvil.scan, for an array cuvil.numpy.arange, or make that axis static"
        )

    def __len__(self) -> int:
        return len(list(self))


def range_(*args: Any) -> range | TracedRange:
    """``range``, of traced integers too."""
    if not any(isinstance(a, (Tracer, Expr)) for a in args) or not 1 <= len(args) <= 3:
        return range(*args)
    given = [as_index(a, "a bound of range") for a in args]
    start, stop, step = (0, given[0], 1) if len(given) == 1 else (*given, 1)[:3]
    if not isinstance(step, int):
        raise TracingError(f"the step of a range must be a Python integer, its sign decides{at_user_line()}")
    if step == 0:
        raise ArgumentError(f"range() arg 3 must not be zero{at_user_line()}")
    return TracedRange(start, stop, step)


def for_(items: Any, body: Callable[[Any], None], more: Thunk | None, names: Sequence[str]) -> None:
    """A ``for`` statement; ``more`` says whether it goes on, where ``break`` or ``return`` may end it."""
    if isinstance(items, TracedRange):
        _range(items, body, more, names)
        return
    if isinstance(items, Tracer) and items.ndim and not isinstance(items.shape[0], int):
        rows = items
        _range(TracedRange(0, rows.shape[0], 1), lambda i: body(rows[i]), more, names, _cells(body, more))
        return
    if isinstance(items, range):
        items = deque_of(items)
    rest = iter(items)
    for item in rest:
        plainly(lambda item=item: body(item))
        if more is None:
            continue
        answer = more()
        if isinstance(answer, Tracer):
            _rest(answer, rest, body, more, names)
            return
        if not answer:
            return


class deque_of:  # noqa: N801 - an iterator
    """Iterates over a range and knows what is left of it."""

    def __init__(self, items: range) -> None:
        self.left = items

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if not self.left:
            raise StopIteration
        item, self.left = self.left[0], self.left[1:]
        return item


def _rest(answer: Tracer, rest: Iterator[Any], body: Callable[[Any], None], more: Thunk, names: Sequence[str]) -> None:
    """The iterations after one that may have been the last, depending on a traced value."""
    if isinstance(rest, deque_of):
        left = rest.left
        try:
            _range(TracedRange(left.start, left.stop, left.step), body, more, names)
            return
        except CuvilError:
            # The body needs the number itself (an index of a list, a size): its iterations are traced one by one.
            pass
    test: Any = answer
    for item in rest:
        if isinstance(test, Tracer):
            cells = _cells(body)
            run = _Bound(body, item)
            _branch_on(test, run, cells, names)
        elif test:
            plainly(lambda item=item: body(item))
        else:
            return
        test = more()


class _Bound:
    """An iteration as a branch."""

    def __init__(self, body: Callable[[Any], None], item: Any) -> None:
        self.body, self.item = body, item

    def __call__(self) -> None:
        self.body(self.item)


def _branch_on(test: Tracer, run: Thunk, cells: Cells, names: Sequence[str]) -> None:
    parent, location = _trace(test), here()
    condition = as_condition(test, "the condition of a loop")
    before = _read(cells)
    regions = [open_region(parent, (), ()) for _ in range(2)]
    try:
        skipped = {n: before[n] for n in names}
        inside(regions[1], run)
        done = {n: _get(cells[n]) for n in names}
    finally:
        _write(cells, before)
    _write(cells, _merge(parent, condition, regions, [skipped, done], location))


def _range(
    items: TracedRange,
    body: Callable[[Any], None],
    more: Thunk | None,
    names: Sequence[str],
    cells: Cells | None = None,
) -> None:
    parent, location = current_trace(), here()
    assert parent is not None
    state = _State(_cells(body, more) if cells is None else cells, names)
    binary = METHODS["binary"]
    start, stop, step = items.start, items.stop, items.step

    def at(k: Tracer) -> Any:
        scaled = k if step == 1 else binary("multiply", k, step)
        return scaled if isinstance(start, int) and start == 0 else binary("add", scaled, start)

    def run(i: Any, values: Sequence[Any]) -> list[Any]:
        state.load(values)
        body(i)
        return state.store()

    try:
        state.start(parent, body)
        if more is None and not isinstance(start, Tracer) and not isinstance(stop, Tracer):
            span: Dim = stop - start if step > 0 else start - stop
            trip = parent.scope.simplify(dim_max(ceildiv(span, abs(step)), 0))
            out = build_loop(parent, state.leaves, (), state.labels, trip, lambda k, v, _: run(at(k), v), location)
        else:
            compare = "less" if step > 0 else "greater"

            def condition(values: Sequence[Any]) -> Any:
                state.load(values[1:])
                inner = binary(compare, values[0], stop)
                return inner if more is None else and_(inner, more)

            def following(values: Sequence[Any]) -> list[Any]:
                return [binary("add", values[0], step), *run(values[0], values[1:])]

            first = METHODS["astype"](start, "int64").as_weak(int) if isinstance(start, Tracer) else start
            out = build_while(
                parent, [first, *state.leaves], ["the loop's number", *state.labels], condition, following, location
            )[1:]
    except BaseException:
        state.restore()
        raise
    state.load(out)


# ---------------------------------------------------------------------------------------------- side effects

_CONTAINERS = (list, dict, set, bytearray, deque)


def _in_region(level: int) -> bool:
    """Whether one of the innermost ``level`` statements of control flow (-1: any) is being traced into a region."""
    stack = around()
    return any(stack if level < 0 else stack[len(stack) - level :])


def assigns(target: Any, text: str, level: int) -> None:
    """Before an assignment to an attribute, an element, or a variable of another function.

    Raises:
        TracingError: in a branch or loop on a traced value, where it would happen whether the branch is taken or not.
    """
    if _in_region(level) and not isinstance(target, Tracer):
        raise TracingError(
            f"the assignment to {text} is a side effect in a branch or loop on a traced value{at_user_line()}: it would"
            " happen once, when the function is traced, whatever the value is. Bind a variable instead, and assign"
            " after the branch."
        )


def mutates(target: Any, text: str, level: int) -> None:
    """Before a call of a method that changes a container."""
    if isinstance(target, _CONTAINERS) and _in_region(level):
        raise TracingError(
            f"{text}(...) is a side effect in a branch or loop on a traced value{at_user_line()}: it would happen once,"
            " when the function is traced, whatever the value is. Carry an array (x = x.at[i].set(value)), or stack"
            " results with cuvil.scan."
        )


def raises() -> None:
    """Before a ``raise`` statement."""
    if _in_region(-1):
        raise TracingError(
            f"raise in a branch or loop on a traced value{at_user_line()}: it would raise whatever the value is. Write"
            " assert condition, message: that is checked when the compiled function runs."
        )
