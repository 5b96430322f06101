"""Random functions with nested control flow, compiled and run by Python on the same values.

Values are int64 arrays and numbers, so that results are equal bit for bit. A draw is Python source with a file of its
own; loops end because every iteration counts down or the loop is bounded by a range.
"""

from __future__ import annotations

import itertools
import linecache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cuvil
import cuvil.numpy as cnp

_FILES = itertools.count()
_NAMES = ("a", "b", "c")
_LIMIT = 1000


class Source:
    """Draws statements and writes them as text."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.lines: list[str] = []
        self.loops = 0

    def pick(self, *options: str) -> str:
        return self.data.draw(st.sampled_from(options))

    def number(self, low: int, high: int) -> int:
        return self.data.draw(st.integers(low, high))

    def scalar(self, names: tuple[str, ...], depth: int = 2) -> str:
        """A number: an int of Python, an element, a loop's number."""
        kind = self.number(0, 5) if depth else self.number(0, 1)
        if kind == 0:
            return str(self.number(-3, 5))
        if kind == 1:
            return self.pick(*names)
        left, right = self.scalar(names, depth - 1), self.scalar(names, depth - 1)
        if kind == 2:
            return f"({left} if {self.condition(names, depth - 1)} else {right})"
        op = self.pick("+", "-", "*", "//", "%") if kind < 5 else "+"
        if op in ("//", "%"):
            right = str(self.number(2, 5))
        return f"(({left} {op} {right}) % 97)"

    def condition(self, names: tuple[str, ...], depth: int = 1) -> str:
        kind = self.number(0, 5) if depth else 0
        left, right = self.pick(*names), self.scalar(names, 0)
        if kind == 1:
            return f"({self.condition(names, 0)} and {self.condition(names, 0)})"
        if kind == 2:
            return f"({self.condition(names, 0)} or {self.condition(names, 0)})"
        if kind == 3:
            return f"not {self.condition(names, 0)}"
        if kind == 4:
            return f"{left} <= {right} < {self.scalar(names, 0)}"
        return f"{left} {self.pick('<', '<=', '==', '!=', '>')} {right}"

    def block(self, indent: int, names: tuple[str, ...], loops: int, depth: int) -> None:
        """Some statements at an indentation; ``loops`` is how many loops are around."""
        for _ in range(self.number(1, 3)):
            self.statement(indent, names, loops, depth)

    def put(self, indent: int, text: str) -> None:
        self.lines.append("    " * indent + text)

    def statement(self, indent: int, names: tuple[str, ...], loops: int, depth: int) -> None:
        kind = self.number(0, 9) if depth else self.number(0, 2)
        if kind <= 1:
            self.put(indent, f"{self.pick(*_NAMES)} = {self.scalar(names)}")
        elif kind == 2:
            self.put(indent, self.pick("x = x + a", "x = x[::-1] % 89", "x = x.at[a % 4].set(b)", "b = x[a % 4] % 97"))
        elif kind <= 5:
            self.put(indent, f"if {self.condition(names)}:")
            self.block(indent + 1, names, loops, depth - 1)
            if self.number(0, 1):
                self.put(indent, f"elif {self.condition(names)}:")
                self.block(indent + 1, names, loops, depth - 1)
            if self.number(0, 1):
                self.put(indent, "else:")
                self.block(indent + 1, names, loops, depth - 1)
            if loops and self.number(0, 2) == 0:
                self.put(indent, f"if {self.condition(names)}:")
                self.put(indent + 1, self.pick("break", "continue", "return a, b, c, x"))
        elif kind <= 7:
            self.loops += 1
            i = f"i{self.loops}"
            limit = self.pick("a % 5", "n", "3", "b % 3 + 1")
            self.put(indent, f"for {i} in range({self.pick('', '1, ', '-1, ')}{limit}):")
            self.block(indent + 1, (*names, i), loops + 1, depth - 1)
            self._otherwise(indent, names, loops, depth)
        elif kind == 8:
            self.loops += 1
            k = f"k{self.loops}"
            self.put(indent, f"{k} = {self.scalar(names, 0)} % 6")
            self.put(indent, f"while {k} > 0 and {self.condition(names)}:")
            self.put(indent + 1, f"{k} = {k} - 1")
            self.block(indent + 1, (*names, k), loops + 1, depth - 1)
            self._otherwise(indent, names, loops, depth)
        elif loops and self.number(0, 1):
            self.put(indent, f"if {self.condition(names)}:")
            self.put(indent + 1, self.pick("break", "continue"))
        else:
            self.put(indent, f"if {self.condition(names)}:")
            self.put(indent + 1, "return a, b, c, x")

    def _otherwise(self, indent: int, names: tuple[str, ...], loops: int, depth: int) -> None:
        if self.number(0, 4) == 0:
            self.put(indent, "else:")
            self.block(indent + 1, names, loops, depth - 1)

    def function(self) -> str:
        self.put(0, "def fn(x, a, n):")
        self.put(1, "b, c = a - n, a % 3")
        self.block(1, (*_NAMES, "n"), 0, 3)
        self.put(1, "return a, b, c, x")
        return "\n".join(self.lines) + "\n"


class _Eager(np.ndarray[Any, Any]):
    """An array of Python's run, with ``at`` as traced arrays have it."""

    @property
    def at(self) -> Any:
        array = self

        class At:
            def __getitem__(self, index: Any) -> Any:
                def put(value: Any) -> Any:
                    out = array.copy()
                    out[index] = value
                    return out

                return type("Place", (), {"set": staticmethod(put)})

        return At()


def load(text: str) -> Any:
    """The function of a source text, which ``inspect`` finds too."""
    name = f"<random {next(_FILES)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    scope: dict[str, Any] = {"cnp": cnp}
    exec(compile(text, name, "exec"), scope)
    return scope["fn"]


def results(out: tuple[Any, ...]) -> list[list[int]]:
    return [np.asarray(v).reshape(-1).tolist() for v in out]


def check(text: str, backend: str) -> None:
    fn = load(text)
    compiled = cuvil.jit(fn, backend=backend)
    for a, n in ((0, 0), (3, 2), (-7, 4), (12, 1)):
        x = np.arange(4, dtype=np.int64) * 5 - a
        want = fn(x.view(_Eager), a, n)
        got = compiled(x, np.int64(a), np.int64(n))
        assert results(got) == results(want), (a, n)


@settings(max_examples=60)
@given(st.data())
def test_random_functions_on_the_reference(data: st.DataObject) -> None:
    text = Source(data).function()
    try:
        check(text, "reference")
    except BaseException as error:
        error.add_note(text)
        raise


@settings(max_examples=12)
@given(st.data())
def test_random_functions_run_natively(data: st.DataObject) -> None:
    text = Source(data).function()
    try:
        check(text, "c")
    except BaseException as error:
        error.add_note(text)
        raise


@pytest.mark.parametrize("backend", ["reference", "c"])
def test_symbols_as_bounds(backend: str) -> None:
    """The same function with sizes for bounds and with traced integers for them."""

    def by_size(x: Any) -> Any:
        total = cnp.zeros(2, dtype=cnp.int64)
        for i in range(x.shape[0] - 1, -1, -2):
            for j in range(i):
                if j > 2:
                    break
                total = total * 3 % 1000 + x[i] - j
        return total

    compiled = cuvil.jit(by_size, input_spec=[("x", "int64", ("N", 2))], backend=backend)
    for n in range(6):
        x = np.arange(2 * n, dtype=np.int64).reshape(n, 2)
        assert compiled(x).tolist() == by_size(x).tolist()
