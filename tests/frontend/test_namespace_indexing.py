"""Indexing of traced arrays against NumPy, on static and on symbolic axes of every small size."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cuvil
import cuvil.numpy as cnp
from cuvil.frontend.namespace.indexing import getitem
from cuvil.support.errors import IndexOutOfBoundsError, ShapeError, TracingError
from cuvil.symbolic import symbol
from tests.frontend.tracing import assert_same, run_again, run_traced, symbolic_shape, traced

THIS_FILE = __file__


def counted(*shape: int) -> np.ndarray[Any, Any]:
    return np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)


BOUNDS = [None, 0, 1, 2, 5, -1, -2, -5]


@pytest.mark.parametrize("step", [None, 1, 2, 3, -1, -2, -3])
def test_slices_of_every_size(step: int | None) -> None:
    pattern = [(symbol("n"),)]
    for start, stop in itertools.product(BOUNDS, BOUNDS):
        index = slice(start, stop, step)
        for n in range(5):
            x = counted(n)
            expected = x[index]
            assert_same(run_traced(lambda a, i=index: a[i], x), expected)
            program, got = traced(lambda a, i=index: a[i], x, shapes=pattern)
            assert_same(got, expected)
            assert program.guards == (), f"x[{start}:{stop}:{step}] must hold for every size"


@pytest.mark.parametrize("step", [1, 2, -1])
def test_slices_with_symbolic_bounds(step: int) -> None:
    bounds = {
        "m": lambda n, m: m, "-m": lambda n, m: -m, "n - 1": lambda n, m: n - 1, "n - 2": lambda n, m: n - 2,
        "n - 3": lambda n, m: n - 3, "n - m": lambda n, m: n - m, "m + 1": lambda n, m: m + 1,
        "n//2": lambda n, m: n // 2, "none": lambda n, m: None,
    }  # fmt: skip
    for low, high in itertools.permutations(bounds, 2):

        def fn(a: Any, b: Any, low: str = low, high: str = high) -> Any:
            d, e = a.shape[0], b.shape[0]
            return a[slice(bounds[low](d, e), bounds[high](d, e), step)]

        program, _ = traced(fn, counted(3), counted(2), shapes=[(symbol("n"),), (symbol("m"),)])
        for n, m in itertools.product(range(4), range(4)):
            x, y = counted(n), counted(m)
            assert_same(run_again(program, x, y), fn(x, y))


def test_the_size_of_common_slices_is_simple() -> None:
    n = symbol("n")
    program, _ = traced(lambda a: (a[1:], a[:-1], a[::-1], a[::2], a[-1:], a[1:-1], a[:3]), counted(4), shapes=[(n,)])
    assert [str(o.shape[0]) for o in program.outputs] == [
        "max(n - 1, 0)", "max(n - 1, 0)", "n", "(n + 1)//2", "min(n, 1)", "max(n - 2, 0)", "min(n, 3)",
    ]  # fmt: skip


@st.composite
def indices(draw: st.DrawFn, shape: tuple[int, ...], arrays: bool) -> tuple[Any, ...]:
    """An index of basic parts, with integers inside; some axes take arrays of integers."""
    lead = draw(st.sampled_from([(), (2,), (3, 1)]))
    parts: list[Any] = []
    for d in shape:
        kinds = ["slice", "slice", "whole"] + (["int"] if d else []) + (["array", "array"] if arrays and d else [])
        kind = draw(st.sampled_from(kinds))
        if draw(st.integers(0, 5)) == 0:
            parts.append(None)
        if kind == "whole":
            parts.append(slice(None))
        elif kind == "int":
            parts.append(draw(st.integers(-d, d - 1)))
        elif kind == "array":
            keep = draw(st.sampled_from([lead, lead[-1:]]))
            values = draw(st.lists(st.integers(-d, d - 1), min_size=int(np.prod(keep)), max_size=int(np.prod(keep))))
            parts.append(np.array(values, np.int64).reshape(keep))
        else:
            step = draw(st.sampled_from([None, 1, 2, -1, -2]))
            parts.append(slice(draw(st.sampled_from(BOUNDS)), draw(st.sampled_from(BOUNDS)), step))
    if draw(st.booleans()):
        cut = draw(st.integers(0, len(parts)))
        more = draw(st.integers(cut, len(parts)))
        if not any(p is None for p in parts[cut:more]):
            parts[cut:more] = [Ellipsis]
    return tuple(parts)


@given(data=st.data())
def test_basic_indexing(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(0, 4), min_size=0, max_size=4).map(tuple))
    index = data.draw(indices(shape, arrays=False))
    x = counted(*shape)
    assert_same(run_traced(lambda a: a[index], x), x[index])
    assert_same(run_traced(lambda a: a[index], x, shapes=[symbolic_shape(shape)]), x[index])


@given(data=st.data())
def test_arrays_mixed_with_basic_indexing(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=4).map(tuple))
    index = data.draw(indices(shape, arrays=True))
    x = counted(*shape)
    expected = x[index]
    assert_same(run_traced(lambda a: a[index], x), expected)
    assert_same(run_traced(lambda a: a[index], x, shapes=[symbolic_shape(shape)]), expected)
    arrays = [p for p in index if isinstance(p, np.ndarray)]

    def with_traced(a: Any, *given: Any) -> Any:
        left = iter(given)
        return a[tuple(next(left) if isinstance(p, np.ndarray) else p for p in index)]

    assert_same(run_traced(with_traced, x, *arrays), expected)


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4)])
def test_concrete_masks(shape: tuple[int, ...]) -> None:
    x = counted(*shape)
    mask = x % 3 == 0
    assert_same(run_traced(lambda a: a[mask], x), x[mask])
    row = np.arange(shape[0]) != 1
    assert_same(run_traced(lambda a: a[row], x), x[row])
    last = np.arange(shape[-1]) > 1
    assert_same(run_traced(lambda a: a[..., last], x), x[..., last])
    assert_same(run_traced(lambda a: a[row.tolist()], x), x[row])


def test_lists_and_traced_scalars_index() -> None:
    x = counted(4, 3)
    assert_same(run_traced(lambda a: a[[0, -1]], x), x[[0, -1]])
    assert_same(run_traced(lambda a, i: a[i], x, np.int64(2)), x[2])
    assert_same(run_traced(lambda a, i: a[:, i], x, np.int32(-1)), x[:, -1])
    assert_same(run_traced(lambda a, i: a[i, 1], x, np.array([3, 0])), x[[3, 0], 1])
    assert_same(run_traced(lambda a: a[cnp.argmax(a[:, 0])], x), x[3])
    assert_same(run_traced(lambda a: a[[]], x), x[[]])


def test_a_loop_over_a_static_axis() -> None:
    x = counted(3, 2)
    assert_same(run_traced(lambda a: sum(row for row in a), x), x.sum(0))


def raised_line(kind: type[Exception], match: str, fn: Any, *arrays: Any, **options: Any) -> str:
    with pytest.raises(kind, match=match) as caught:
        run_traced(fn, *arrays, **options)
    return str(caught.value)


def test_errors_name_the_users_line() -> None:
    x = counted(3, 4)
    for message in (
        raised_line(IndexOutOfBoundsError, "index 3 is out of bounds for axis 0 of size 3", lambda a: a[3], x),
        raised_line(IndexOutOfBoundsError, "index -5 is out of bounds for axis 1", lambda a: a[:, -5], x),
        raised_line(IndexOutOfBoundsError, "index 9 is out of bounds", lambda a: a[[0, 9]], x),
        raised_line(IndexOutOfBoundsError, "too many indices: 3", lambda a: a[0, 0, 0], x),
        raised_line(IndexOutOfBoundsError, "bool index of shape", lambda a: a[np.array([True, False])], x),
        raised_line(TracingError, "size depends on values", lambda a: a[a > 1], x),
        raised_line(TracingError, "slice bound is the traced array", lambda a, n: a[:n], x, np.int64(2)),
        raised_line(TypeError, "arrays used as indices must be of integers", lambda a: a[np.array([0.5])], x),
        raised_line(TypeError, "got str", lambda a: a["key"], x),
        raised_line(TracingError, "cannot be changed in place", lambda a: a.__setitem__(0, 1), x),
    ):
        assert THIS_FILE in message, message


def test_an_integer_index_of_a_symbolic_axis_is_guarded() -> None:
    program, got = traced(lambda a: a[:, -1], counted(2, 3), shapes=[(symbol("B"), symbol("S"))])
    assert_same(got, counted(2, 3)[:, -1])
    assert [f"{g.obligation.left} {g.obligation.relation} {g.obligation.right}" for g in program.guards] == [
        "S - 1 >= 0"
    ]
    assert all(THIS_FILE in g.line for g in program.guards)


@given(data=st.data())
def test_at_updates(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=3).map(tuple))
    index = data.draw(indices(shape, arrays=data.draw(st.booleans())))
    op = data.draw(st.sampled_from(["set", "add", "multiply", "max", "min"]))
    x = counted(*shape)
    selected = x[index]
    values = np.float32(7) if data.draw(st.booleans()) else (counted(*selected.shape) * 3 - 5).astype(np.float32)
    expected = x.copy()
    if op == "set":
        expected[index] = values
    else:
        {"add": np.add, "multiply": np.multiply, "max": np.maximum, "min": np.minimum}[op].at(expected, index, values)

    def fn(a: Any, v: Any) -> Any:
        return getattr(cnp.at(a)[index], op)(v)

    assert_same(fn(x, values), expected)
    assert_same(run_traced(fn, x, values), expected)
    assert_same(run_traced(fn, x, values, shapes=[symbolic_shape(shape), np.shape(values)]), expected)


@st.composite
def mixed_indices(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """An index of every kind of part that NumPy has: masks of one axis or several, single bools, integer dtypes."""
    parts: list[Any] = []
    axis = 0
    lead = draw(st.sampled_from([(), (2,), (3, 1)]))
    while axis < len(shape) and draw(st.integers(0, 6)):
        d = shape[axis]
        kind = draw(st.sampled_from(["slice", "int", "array", "mask", "mask2", "bool", "new", "list"]))
        if kind in ("int", "array", "list") and not d:
            kind = "slice"
        if kind == "bool":
            parts.append(draw(st.sampled_from([True, False, np.True_, np.array(True)])))
        elif kind == "new":
            parts.append(None)
        elif kind == "mask2" and axis + 1 < len(shape):
            bits = draw(st.lists(st.booleans(), min_size=d * shape[axis + 1], max_size=d * shape[axis + 1]))
            parts.append(np.array(bits, bool).reshape(d, shape[axis + 1]))
            axis += 2
        else:
            if kind in ("mask", "mask2"):
                parts.append(np.array(draw(st.lists(st.booleans(), min_size=d, max_size=d)), bool))
            elif kind == "int":
                parts.append(draw(st.integers(-d, d - 1)))
            elif kind == "slice":
                parts.append(
                    slice(
                        draw(st.sampled_from(BOUNDS)),
                        draw(st.sampled_from(BOUNDS)),
                        draw(st.sampled_from([None, 2, -1])),
                    )
                )
            else:
                size = int(np.prod(lead))
                dt = draw(st.sampled_from([np.int64, np.int32, np.int8, np.uint8]))
                low = 0 if dt is np.uint8 else -d
                values = np.array(draw(st.lists(st.integers(low, d - 1), min_size=size, max_size=size)), dt).reshape(
                    lead
                )
                parts.append(values.tolist() if kind == "list" and lead == (2,) else values)
            axis += 1
    if draw(st.integers(0, 3)) == 0:
        # Behind the masks, which have the sizes of the axes that they stand at.
        masks = [k + 1 for k, p in enumerate(parts) if isinstance(p, np.ndarray) and p.dtype == bool and p.ndim]
        parts.insert(draw(st.integers(max(masks, default=0), len(parts))), Ellipsis)
    return tuple(parts)


@given(data=st.data())
def test_every_kind_of_index(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=4).map(tuple))
    index = data.draw(mixed_indices(shape))
    x = counted(*shape)
    try:
        expected = x[index]
    except IndexError:  # arrays that do not broadcast, more masks than axes
        with pytest.raises((IndexError, ShapeError)):
            getitem(x, index)
        return
    try:
        assert_same(getitem(x, index), expected)
    except IndexOutOfBoundsError:  # NumPy lets an index outside pass where nothing is taken
        assert not expected.size
        return
    assert_same(run_traced(lambda a: a[index], x), expected)
    written = x.copy()
    written[index] = 7
    assert_same(run_traced(lambda a: a.at[index].set(7.0), x), written)


def test_indices_run_in_compiled_code() -> None:
    """Many indices in one program: basic ones, arrays, masks, traced integers, new axes, and updates through them."""
    rng = np.random.default_rng(5)
    x = counted(4, 3, 5)
    i, j = np.array([[0, -1], [2, 1]]), np.array([1, -2])
    mask = rng.random((4, 3)) < 0.5
    indices: list[Any] = [
        1, -2, slice(None, None, -1), (..., -1), (slice(1, -1), None, slice(4, None, -2)), (i, 0), (slice(None), j, i),
        (i[..., None], slice(None), j), mask, (mask, j[0]), (slice(None), [True, False, True]), (None, True, ..., j),
        (j, slice(None), j), (False,), (slice(3, 1), 0), np.uint8(3),
    ]  # fmt: skip

    def fn(a: Any, k: Any) -> Any:
        read = [a[index] for index in indices] + [a[k], a[:, k % 3, 1], a[k, ..., k]]
        written = [a.at[index].add(1.0) for index in (1, (i, 0), (slice(None), j), mask, (slice(None, None, 2), j))]
        return read + written + [a.at[a > 3].set(0.0), a.at[k].max(30.0), a.at[mask, :].multiply(2.0)]

    k = np.array([2, 0])
    got = cuvil.jit(fn)(x, k)
    read = [x[index] for index in indices] + [x[k], x[:, k % 3, 1], x[k, ..., k]]
    written: list[Any] = []
    for index in (1, (i, 0), (slice(None), j), mask, (slice(None, None, 2), j)):
        y = x.copy()
        np.add.at(y, index, 1)
        written.append(y)
    top = x.copy()
    top[k] = np.maximum(top[k], 30)
    wanted = [*read, *written, np.where(x > 3, np.float32(0), x), top, np.where(mask[..., None], x * 2, x)]
    for g, w in zip(got, wanted, strict=True):
        assert_same(g, w)


def test_traced_masks() -> None:
    x = counted(3, 4)
    rows = np.array([True, False, True])
    assert_same(run_traced(lambda a: a.at[a > 5].set(-1.0), x), np.where(x > 5, np.float32(-1), x))
    assert_same(run_traced(lambda a, m: a.at[m].add(a[0]), x, rows), np.where(rows[:, None], x + x[0], x))
    assert_same(run_traced(lambda a, m: a.at[m, ...].min(2.0), x, rows), np.where(rows[:, None], np.minimum(x, 2), x))
    with pytest.raises(TracingError, match="takes one value for all"):
        run_traced(lambda a, m: a.at[m].set(np.ones((2, 4), np.float32)), x, rows)
    with pytest.raises(IndexError, match="traced bool index of shape"):
        run_traced(lambda a: a.at[a[None] > 1].set(0.0), x)
    with pytest.raises(TracingError, match="size depends on values"):
        run_traced(lambda a: a[a > 1], x)


def test_at_modes() -> None:
    x, i = counted(3), np.array([0, 5, -1])
    with pytest.raises(IndexError, match="index 5 is out of bounds"):
        run_traced(lambda a, k: a.at[k].set(9.0), x, i)
    assert_same(run_traced(lambda a, k: a.at[k].set(9.0, mode="fill"), x, i), np.array([9, 1, 9], np.float32))
    assert_same(run_traced(lambda a, k: a.at[k].add(1.0, mode="clip"), x, i), np.array([2, 1, 3], np.float32))
    y = counted(2, 3)
    got = run_traced(lambda a, k: a.at[1:, k].set(9.0, mode="fill"), y, i)
    assert_same(got, np.array([[0, 1, 2], [9, 4, 9]], np.float32))
    got = run_traced(lambda a, k: a.at[k].get(mode="fill", fill_value=-1.0), x, i)
    assert_same(got, np.array([0, -1, 2], np.float32))


def test_at_casts_values_to_the_array() -> None:
    got = run_traced(lambda a: a.at[0].set(2.7), np.array([1, 2], np.int32))
    assert_same(got, np.array([2, 2], np.int32))


@given(data=st.data())
def test_take_and_take_along_axis(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = counted(*shape)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    at = rng.integers(-shape[axis], shape[axis], data.draw(st.sampled_from([(), (3,), (2, 2)])))
    assert_same(run_traced(lambda a, i: cnp.take(a, i, axis=axis), x, at), np.take(x, at, axis))
    wild = rng.integers(-9, 9, (4,))
    for mode in ("clip", "wrap"):
        fn = lambda a, i, mode=mode: cnp.take(a, i, axis=axis, mode=mode)  # noqa: E731
        assert_same(run_traced(fn, x, wild), np.take(x, wild, axis, mode=mode))
    order = np.argsort(-x, axis=axis)
    assert_same(run_traced(lambda a, i: cnp.take_along_axis(a, i, axis), x, order), np.take_along_axis(x, order, axis))
    assert_same(run_traced(lambda a: cnp.take(a, [0]), x), np.take(x, [0]))
