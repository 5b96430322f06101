"""Python's own control flow on traced values: rewritten functions against the same functions run by Python."""

from __future__ import annotations

import functools
import inspect
import re
import sys
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cuvil
import cuvil.numpy as cnp
from cuvil.frontend.pytree import flatten
from cuvil.frontend.rewrite.convert import convert
from cuvil.support.errors import CheckFailed, CuvilError, DTypeError, ShapeError, TracingError

HERE = re.escape(__file__)
X = np.float32([1, 2, 3])
I = np.int64  # noqa: E741 - short, as the numbers that it makes


def agree(fn: Callable[..., Any], *calls: tuple[Any, ...]) -> None:
    """Compiled on each backend, the function gives what Python gives for each call, with one compilation."""
    for backend in ("reference", "c"):
        compiled = cuvil.jit(fn, backend=backend)
        for args in calls:
            got, want = compiled(*args), fn(*args)
            a, at = flatten(got)
            b, bt = flatten(want)
            assert at == bt
            for g, w in zip(a, b, strict=True):
                np.testing.assert_allclose(np.asarray(g), np.asarray(w), rtol=1e-5)
        assert len(compiled.variants()) == 1


# ------------------------------------------------------------------------------------------------- statements


def if_else(x: Any) -> Any:
    if cnp.sum(x) > 0:
        y = x * 2
    else:
        y = x - 1
    return y


def if_alone(x: Any) -> Any:
    y = x
    if cnp.sum(x) > 0:
        temporary = x + 1
        y = temporary * temporary
    return y


def elif_chain(x: Any) -> Any:
    s = cnp.sum(x)
    if s > 10:
        kind = 3
    elif s > 0:
        kind = 2
    elif s > -10:
        kind = 1
    else:
        kind = 0
    return kind


def early_returns(x: Any) -> Any:
    if x[0] > 5:
        return x * 2
    if x[0] > 0:
        y = x + 1
        if y[1] > 4:
            return y
        y = y * 3
    else:
        y = x
    return y - 1


def containers(x: Any) -> Any:
    state = {"a": x, "n": 0}
    pair = (x, 1.0)
    if x[0] > 0:
        state = {"a": x * 2, "n": 1}
        pair = (x + 1, 2)
    return state, pair


def nested_ifs(x: Any) -> Any:
    out = 0
    if x[0] > 0:
        if x[1] > 0:
            out = 1
            if x[2] > 0:
                out = 2
        else:
            out = 3
    elif x[1] > 0:
        out = 4
    return out


def static_values_stay(x: Any) -> Any:
    name, axis = "sum", 0
    if x[0] > 0:
        x = x * 2
    return getattr(cnp, name)(x, axis=axis)


VECTORS = [(X,), (-X,), (3 * X,), (np.float32([6, -1, 0]),), (np.float32([-1, 5, 0]),), (np.float32([1, -1, -9]),)]


@pytest.mark.parametrize(
    "fn",
    [if_else, if_alone, elif_chain, early_returns, containers, nested_ifs, static_values_stay],
    ids=lambda f: f.__name__,
)
def test_branches(fn: Any) -> None:
    agree(fn, *VECTORS)


def collatz(n: Any) -> Any:
    steps = 0
    while n != 1:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        steps += 1
    return steps


def sum_with_jumps(n: Any) -> Any:
    s = 0
    for i in range(n):
        if i % 3 == 0:
            continue
        if i > 50:
            break
        s += i
    return s


def backwards(n: Any) -> Any:
    s = 0
    for i in range(n, -2, -3):
        s = s * 2 + i
    return s


def between(n: Any) -> Any:
    s = 0
    for i in range(2, n, 2):
        for j in range(i):
            if j > 5:
                break
            s += i * j
    return s


def return_in_a_loop(n: Any) -> Any:
    for i in range(1, n):
        if (i * i) % n == 1:
            return i, i * i
        if i > 40:
            return -i, 0
    return -1, n


def return_after_the_first_iteration(n: Any) -> Any:
    for i in range(-1, n):
        if not i <= 0:
            return i, n
    else:
        n = n + 1
    k = 2
    while k > 0 and n < 100:
        k -= 1
        if k == 0:
            return k, n * 2
        n = n + 30
    return -1, -n


def else_of_a_loop(n: Any) -> Any:
    found = 0
    while n > 0:
        n = n - 3
        if n == 1:
            found = 5
            break
    else:
        found = 7
    for i in range(n):  # noqa: B007
        pass
    else:
        found += 1
    return found


def endless(n: Any) -> Any:
    k = 0
    while True:
        n = n * 3
        k += 1
        if n > 1000:
            break
    return k, n


def while_with_and(n: Any) -> Any:
    k = 0
    while n > 0 and k < 7 and not n >= 14:
        n -= 1
        k += 2
    return n, k


def continue_in_while(n: Any) -> Any:
    k = s = 0
    while k < n:
        k += 1
        if k % 2:
            continue
        s += k
    return s


def concrete_range_with_traced_break(n: Any) -> Any:
    total = 0
    for i in range(100):
        if i >= n:
            break
        total += i
    return total


def concrete_list_with_traced_break(n: Any) -> Any:
    total = 0
    for k, v in enumerate([5, 6, 7]):
        if v == n:
            break
        total += k * v
    return total


def layers_with_traced_exit(n: Any) -> Any:
    scales = [1, 2, 3, 4]
    for k in range(4):
        n = n * scales[k]
        if n > 20:
            return n
    return -n


NUMBERS = [(I(n),) for n in (1, 2, 6, 7, 9, 10, 27)]


@pytest.mark.parametrize(
    "fn",
    [
        collatz, sum_with_jumps, backwards, between, return_in_a_loop, return_after_the_first_iteration, else_of_a_loop,
        endless, while_with_and,
        continue_in_while, concrete_range_with_traced_break, concrete_list_with_traced_break, layers_with_traced_exit,
    ],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_loops(fn: Any) -> None:
    agree(fn, *NUMBERS)


def test_a_loop_over_a_size_is_one_op() -> None:
    def fn(x: Any) -> Any:
        s = cnp.zeros(x.shape[1], dtype=cnp.float32)
        for i in range(x.shape[0]):
            s = s / 2 + x[i] * i
        for row in x:
            s = s * 0.5 + row
        return s

    spec = [("x", "float32", ("B", 4))]
    for backend in ("reference", "c"):
        compiled = cuvil.jit(fn, input_spec=spec, backend=backend)
        for n in (0, 1, 5):
            x = np.random.default_rng(n).standard_normal((n, 4)).astype(np.float32)
            np.testing.assert_allclose(compiled(x), fn(x), rtol=1e-5)
    text = cuvil.jit(fn, input_spec=spec, backend="reference").lower(np.ones((2, 4), np.float32)).as_text("tensor")
    assert text.count("cuvil.loop") == 2 and "trip = B" in text


# ------------------------------------------------------------------------------------------------ expressions


def logic(x: Any) -> Any:
    a = (x[0] > 0 and x[1] > 1) or not x[2] > 2
    b = x[0] < x[1] < x[2] < 100
    c = 1 if a else 2 if b else 3
    return a, b, c, (x[0] if x[0] > 1 else -x[0])


def lazy(x: Any) -> Any:
    i = x[0].astype("int64")
    return i < 3 and x[i] > 1, x[i] if 0 <= i < 3 else x[0]


def in_comprehensions(x: Any) -> Any:
    return [(v if v > 1 else -v) for v in x] + [k if x[0] > 0 and x[1] > 0 else -k for k in range(3)]


def assignment_expressions(x: Any) -> Any:
    if (s := cnp.sum(x)) > 0:
        return s * 2
    return s


@pytest.mark.parametrize("fn", [logic, in_comprehensions, assignment_expressions], ids=lambda f: f.__name__)
def test_expressions(fn: Any) -> None:
    agree(fn, *VECTORS)


def test_the_other_operand_is_not_evaluated() -> None:
    for first in (0, 1, 2, 3, 9):
        x = np.float32([first, 2, 0])
        agree(lazy, (x,))


def test_conditions_of_one_element_and_of_numbers() -> None:
    def fn(x: Any, n: Any) -> Any:
        return (1 if x[:1] > 0 else 0), (n and 5), (n or 7), (not n)

    for args in ((X, I(0)), (-X, I(3))):
        got = [np.asarray(v).item() for v in cuvil.jit(fn, backend="reference")(*args)]
        assert got == [np.asarray(v).item() for v in fn(*args)]


# ------------------------------------------------------------------------------------------- called functions


def relu(v: Any) -> Any:
    if v > 0:
        return v
    return 0.0 * v


class Base:
    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.__hidden = 2.0

    def step(self, v: Any) -> Any:
        if v > self.scale:
            return v * self.__hidden
        return v + self.__hidden


class Model(Base):
    def __call__(self, x: Any) -> Any:
        if x[0] > 0:
            v = super().step(x[0])
        else:
            v = self.step(x[1])
        return v * self.__class__.factor()

    @classmethod
    def factor(cls) -> float:
        return 3.0

    @staticmethod
    def choose(x: Any) -> Any:
        return x[0] if x[0] > 0 else x[1]

    @property
    def double(self) -> Callable[[Any], Any]:
        return lambda v: v * 2 if v > 1 else v


def test_functions_that_are_called_are_rewritten_too() -> None:
    model = Model(1.5)
    factors = [2.0, 3.0]

    def outer(x: Any, *, bias: float = 0.5) -> Any:
        def inner(v: Any, k: int = 1) -> Any:
            nonlocal_sum = v
            for f in factors:
                if v > k:
                    nonlocal_sum = nonlocal_sum + f
            return nonlocal_sum + bias

        triple = lambda v: v * 3 if v > 1 else v  # noqa: E731
        total = functools.partial(inner, k=2)(x[0]) + inner(x[1])
        total = total + sum(map(lambda v: v if v > 0 else -v, x))  # noqa: C417
        +triple(x[2]) + relu(x[0])
        return total + model(x) + model.step(x[1]) + Model.choose(x) + model.double(x[0])

    agree(outer, *VECTORS)
    agree(model, *VECTORS)


def decorated(fn: Any) -> Any:
    @functools.wraps(fn)
    def wrapper(*args: Any) -> Any:
        out = fn(*args)
        return out if cnp.sum(out) > 0 else -out

    return wrapper


@decorated
def behind_a_decorator(x: Any) -> Any:
    return x * 2 if x[0] > 2 else x


def test_decorators_recursion_and_inner_jit() -> None:
    agree(behind_a_decorator, *VECTORS)

    def depth(x: Any, n: int) -> Any:
        if n == 0:
            return x
        return depth(x * 2 if x[0] > 0 else x + 1, n - 1)

    agree(lambda x: depth(x, 4), *VECTORS)
    inner = cuvil.jit(if_else)
    agree(lambda x: inner(x) + inner(-x), *VECTORS)


def test_lambdas_of_one_line_are_told_apart() -> None:
    fns = [lambda x: x[0] if x[0] > 0 else x[1], lambda x: x[1] if x[0] > 0 else x[2], lambda x: x[2] if x[0] > 0 else x[0]]  # noqa: E501  # fmt: skip
    for fn in fns:
        agree(fn, (X,), (-X,))


def test_closures_globals_defaults_and_names_are_kept() -> None:
    box = {"k": 1}
    k = 10

    def fn(x: Any, n: int = 4, *rest: Any, flag: bool = True, **more: Any) -> Any:
        """Says what it does."""
        return box["k"] + k + n + len(rest) + flag + len(more)

    made = convert(fn)
    assert made is not fn and made.__wrapped__ is fn
    assert (made.__name__, made.__qualname__, made.__doc__) == (fn.__name__, fn.__qualname__, fn.__doc__)
    assert inspect.signature(made) == inspect.signature(fn)
    assert inspect.getsource(made) == inspect.getsource(fn)
    assert made(0) == fn(0) == 16
    box["k"], k = 2, 20
    assert made(0, 1, 2, flag=False, z=1) == fn(0, 1, 2, flag=False, z=1) == 25
    assert convert(made) is made


def test_what_is_not_the_users_is_left_alone() -> None:
    for f in (np.sum, len, cnp.sum, inspect.getsource, functools.reduce, Model, 3):
        assert convert(f) is f

    def generates(n: int) -> Any:
        yield from range(n)

    async def waits() -> int:
        return 1

    assert list(convert(generates)(3)) == [0, 1, 2]
    convert(waits)().close()


def test_without_source_functions_are_traced_as_they_are() -> None:
    scope: dict[str, Any] = {}
    exec("def fn(x):\n    return x + 1 if x.ndim else x\ndef bad(x):\n    return 1 if x[0] > 0 else 2", scope)
    assert cuvil.jit(scope["fn"], backend="reference")(X).tolist() == [2, 3, 4]
    with pytest.raises(TracingError, match="whose source cuvil can read"):
        cuvil.jit(scope["bad"], backend="reference")(X)


def test_source_that_has_changed_is_not_used(tmp_path: Any) -> None:
    path = tmp_path / "changed.py"
    path.write_text("def fn(x):\n    y = x + 1\n    return y\n")
    scope: dict[str, Any] = {"__name__": "changed"}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    path.write_text("def fn(x):\n    z = x + 2\n    return z\n")
    assert convert(scope["fn"]) is scope["fn"]


# ------------------------------------------------------------------------------------------------ plain Python


def plain(n: int, items: Any) -> Any:
    """A bit of everything; nothing in it is traced."""
    out: list[Any] = []
    seen: dict[str, int] = {}
    for k, item in enumerate(items):
        if k % 4 == 3:
            continue
        try:
            if item == "stop":
                break
            value: Any = 10 // item
        except ZeroDivisionError:
            value = None
        except TypeError as error:
            out.append(type(error).__name__)
            continue
        else:
            seen[str(k)] = seen.get(str(k), 0) + 1
        finally:
            n += 1
        with np.errstate(all="ignore"):
            if value is None:
                out.append("none")
            elif 1 < value < 5:
                out.append(value and -value)
            else:
                out.append(value or "zero")
        while n > 3:
            n -= 2
            if n == 4:
                return out, seen, n, "early"
    else:
        out.append("all")
    assert isinstance(out, list), "out"
    match n:
        case 0:
            label = "nothing"
        case k if k > 2:
            label = "many"
        case _:
            label = "few"
    del seen
    for i in range(3):  # noqa: B007
        pass
    return out, label, n, i, [a * b for a in range(2) for b in range(2) if a or b], (lambda q=n: q)()


@pytest.mark.parametrize("n", range(5))
@pytest.mark.parametrize("items", [[], [1, 2, 3], [0, "x", 100, 5, 7, 2], [4, "stop", 1], [1] * 9])
def test_concrete_code_runs_as_python_runs_it(n: int, items: Any) -> None:
    made = convert(plain)
    assert made is not plain
    assert made(n, items) == plain(n, items)


def test_unbound_variables_are_errors_as_in_python() -> None:
    def fn(flag: bool) -> Any:
        if flag:
            y = 1
        return y

    made = convert(fn)
    assert made(True) == 1
    with pytest.raises(NameError, match="y"):
        made(False)


# --------------------------------------------------------------------------------------------------- errors


def one_branch(x: Any) -> Any:
    if x[0] > 0:
        found = x
    return found


def other_shape(x: Any) -> Any:
    width = x
    if x[0] > 0:
        width = x[1:]
    return width


def other_dtype(x: Any) -> Any:
    kind = x
    if x[0] > 0:
        kind = x.astype("int32")
    return kind


def other_structure(x: Any) -> Any:
    both = x
    if x[0] > 0:
        both = (x, x)
    return both


def other_text(x: Any) -> Any:
    mode = "a"
    if x[0] > 0:
        mode = "b"
    return x if mode == "a" else -x


def growing(x: Any) -> Any:
    rows = x
    while cnp.sum(rows) < 100:
        rows = cnp.concat([rows, rows])
    return rows


def widening(x: Any) -> Any:
    total = x
    for i in range(x[0].astype("int32")):
        total = total.astype("float64") + i
    return total


def bound_by_a_loop(x: Any) -> Any:
    for i in range(x[0].astype("int32")):
        last = x * i
    return last


def changing_text(x: Any) -> Any:
    state = "start"
    while x[0] < 10:
        x = x + 1
        state = "running"
    return x, state


def changed_list(x: Any) -> Any:
    kept: list[Any] = []
    if x[0] > 0:
        kept.append(x)
    return kept


def changed_attribute(x: Any) -> Any:
    model = Base(1.0)
    if x[0] > 0:
        model.scale = 2.0
    return x * model.scale


def changed_element(x: Any) -> Any:
    table = {"n": 1}
    while x[0] < 10:
        x = x + 1
        table["n"] = 2
    return x


_COUNT = 0


def changed_global(x: Any) -> Any:
    global _COUNT
    if x[0] > 0:
        _COUNT = 1
    return x


def raising(x: Any) -> Any:
    if x[0] > 0:
        raise ValueError("too large")
    return x


def none_or_value(x: Any) -> Any:  # noqa: RET503
    if x[0] > 0:
        return x


@pytest.mark.parametrize(
    ("fn", "error", "words", "line"),
    [
        (one_branch, TracingError, "variable 'found' is bound in one branch only.*does not hold", 1),
        (other_shape, ShapeError, r"variable 'width' is float32\[3\] or float32\[2\]", 2),
        (other_dtype, DTypeError, r"variable 'kind' is float32\[3\] or int32\[3\]", 2),
        (other_structure, TracingError, "variable 'both' is .* same structure", 2),
        (other_text, TracingError, "variable 'mode' is 'a' or 'b'", 2),
        (growing, ShapeError, r"variable 'rows' enters the loop as float32\[3\] and is float32\[6\]", 2),
        (widening, DTypeError, r"variable 'total' enters the loop as float32\[3\] and is float64\[3\]", 2),
        (bound_by_a_loop, TracingError, "variable 'last' is bound in the loop only", 1),
        (changing_text, TracingError, "variable 'state' changes from 'start' to 'running'", 2),
        (changed_list, TracingError, r"kept.append\(...\) is a side effect", 3),
        (changed_attribute, TracingError, "assignment to model.scale is a side effect", 3),
        (changed_element, TracingError, r"assignment to table\['n'\] is a side effect", 4),
        (changed_global, TracingError, "assignment to global _COUNT is a side effect", 3),
        (raising, TracingError, "raise in a branch.*assert", 2),
        (none_or_value, TracingError, "the value to return is ", 1),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_errors_name_the_variable_and_the_line(fn: Any, error: Any, words: str, line: int) -> None:
    with pytest.raises(error, match=words) as caught:
        cuvil.jit(fn, backend="reference")(X)
    number = fn.__code__.co_firstlineno + line
    assert f"(at {__file__}:{number}, in {fn.__name__})" in str(caught.value)


def test_effects_in_called_methods_are_found_and_new_objects_may_change() -> None:
    class Counter:
        def __init__(self) -> None:
            self.calls = 0

        def count(self, x: Any) -> Any:
            self.calls += 1
            return x

    counter = Counter()

    def outside(x: Any) -> Any:
        return counter.count(x) if x[0] > 0 else x

    with pytest.raises(TracingError, match=r"assignment to self\.calls is a side effect"):
        cuvil.jit(outside, backend="reference")(X)

    def fresh(x: Any) -> Any:
        total = x
        if x[0] > 0:
            parts: list[Any] = []
            table: dict[str, Any] = {}
            for k in range(3):
                parts.append(x * k)
                table[str(k)] = k
            total = sum(parts[1:], parts[0]) + len(table)
        counts: list[int] = []
        if x.ndim == 1:
            counts.append(1)
        return total + len(counts)

    agree(fresh, (X,), (-X,))


def test_an_assert_is_checked_when_the_function_runs() -> None:
    def fn(x: Any, n: Any) -> Any:
        assert x.ndim == 1
        assert cnp.all(x > 0), f"{x.shape} must be positive"
        for i in range(n):
            assert x[0] > i
            x = x + 0.5
        if n > 100:
            assert x[0] < 0, "never"
        return x

    for backend in ("reference", "c"):
        for optimise in (True, False):
            compiled = cuvil.jit(fn, backend=backend, optimise=optimise)
            assert compiled(X, I(2)).tolist() == [2, 3, 4]
            with pytest.raises(AssertionError, match=rf"\(3,\) must be positive \(at {HERE}:\d+, in fn\)"):
                compiled(-X, I(2))
            with pytest.raises(CheckFailed, match=r"^x\[0\] > i "):
                compiled(X, I(7))
            assert compiled(X, I(2)).tolist() == [2, 3, 4]
    with pytest.raises(AssertionError):
        cuvil.jit(fn, backend="reference")(np.ones((2, 2), np.float32), I(1))


# ------------------------------------------------------------------------------------- tracebacks and debuggers


def failing(x: Any) -> Any:
    if x[0] > 0:
        for k in range(2):
            y = x @ cnp.ones((4, k + 1), dtype=cnp.float32)
    return y


def test_tracebacks_show_the_users_lines() -> None:
    with pytest.raises(CuvilError) as caught:
        cuvil.jit(failing, backend="reference")(X)
    frames = [f for f in traceback.extract_tb(caught.value.__traceback__) if f.filename == __file__]
    first = failing.__code__.co_firstlineno
    assert [f.lineno - first for f in frames if f.name == "failing"][-1] == 3  # type: ignore[operator]
    assert {f.name for f in frames[1:]} == {"failing"}
    assert all(f.line == inspect.getsource(failing).splitlines()[f.lineno - first].strip() for f in frames[1:])  # type: ignore[operator]


def test_a_debugger_sees_lines_and_variables() -> None:
    seen: list[tuple[int, Any]] = []
    first = early_returns.__code__.co_firstlineno

    def tracer(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != __file__ or frame.f_code.co_name != "early_returns":
            return None
        if event == "line":
            seen.append((frame.f_lineno - first, frame.f_locals.get("y")))
        return tracer

    old = sys.gettrace()
    sys.settrace(tracer)
    try:
        cuvil.jit(early_returns, backend="reference")(X)
    finally:
        sys.settrace(old)
    assert {1, 2, 3, 4, 5, 6, 7, 9, 10} <= {line for line, _ in seen}
    assert any(line == 5 and y is not None for line, y in seen)
