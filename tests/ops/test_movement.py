"""Movement ops: hand-computed values, index maps on static and symbolic shapes, and refused operands."""

from __future__ import annotations

import numpy as np
import pytest

import cuvil.ops.movement
import cuvil.ops.reshaping
import cuvil.ops.windows  # noqa: F401
from cuvil.dtypes import float32, int32
from cuvil.ops.record import Aval
from cuvil.ops.registry import get
from cuvil.ops.reshaping import axis_groups, reshape_index
from cuvil.support.errors import ArgumentError, AxisError, DTypeError, ShapeError
from cuvil.symbolic import symbol

from .record_checks import check_sample, check_symbolic_index_map

B, S, T, i, j, k = (symbol(x) for x in "BSTijk")
NAMES = (
    "reshape", "transpose", "broadcast_to", "slice", "concat", "flip", "roll", "tile", "repeat", "pad", "window",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(30))
def test_index_map_gives_the_reference(name: str, seed: int) -> None:
    check_sample(name, seed)


SYMBOLIC = [
    ("reshape", [(B, S, 6)], {"shape": (B * S, 2, 3)}),
    ("reshape", [(B * S, 6)], {"shape": (B, S, 6)}),
    ("reshape", [(B, 1, S)], {"shape": (B, S, 1, 1)}),
    ("reshape", [(B, S)], {"shape": (S, B)}),
    ("reshape", [(4, S)], {"shape": (2, 2 * S)}),
    ("reshape", [(2 * S, B)], {"shape": (S, 2 * B)}),
    ("reshape", [(S + T, B)], {"shape": (B * S + B * T,)}),
    ("transpose", [(B, S, 3)], {"axes": (2, 0, 1)}),
    ("broadcast_to", [(S, 1)], {"shape": (B, S, T)}),
    ("slice", [(B, S + 2)], {"starts": (0, 1), "sizes": (B, S), "steps": (1, 1)}),
    ("slice", [(S, 3)], {"starts": (S - 1, 0), "sizes": (S, 2), "steps": (-1, 2)}),
    ("slice", [(S,)], {"starts": (0,), "sizes": ((S + 1) // 2,), "steps": (2,)}),
    ("concat", [(B, S), (B, 2), (B, T)], {"axis": 1}),
    ("flip", [(B, S)], {"axes": (1,)}),
    ("roll", [(B, S)], {"shifts": (T,), "axes": (1,)}),
    ("tile", [(S, 1, 2)], {"reps": (2, B, 3)}),
    ("repeat", [(S, B)], {"repeats": T, "axis": 0}),
    ("pad", [(B, S)], {"pairs": ((0, 0), (T, 2)), "value": 7}),
    ("pad", [(S + 1, B)], {"pairs": ((2, T), (0, 0)), "mode": "edge"}),
    ("pad", [(S + 1, B)], {"pairs": ((2, T), (0, 0)), "mode": "wrap"}),
    ("pad", [(S + T + 1, B)], {"pairs": ((S, T), (0, 0)), "mode": "reflect"}),
    ("window", [(B, S + 4)], {"axes": (1,), "sizes": (3,), "strides": (2,), "dilations": (2,)}),
    ("window", [(S + T, 3)], {"axes": (0,), "sizes": (T + 1,), "strides": (1,), "dilations": (1,)}),
]


@pytest.mark.parametrize(("name", "shapes", "params"), SYMBOLIC)
@pytest.mark.parametrize("env", [{"B": 2, "S": 3, "T": 4}, {"B": 3, "S": 1, "T": 1}, {"B": 1, "S": 5, "T": 2}])
def test_index_map_of_symbolic_shapes(name: str, shapes: list, params: dict, env: dict[str, int]) -> None:
    check_symbolic_index_map(name, shapes, params, env)


@pytest.mark.parametrize(("name", "shapes", "params"), [s for s in SYMBOLIC if s[0] not in ("pad", "window")])
@pytest.mark.parametrize("env", [{"B": 0, "S": 2, "T": 1}, {"B": 2, "S": 0, "T": 1}])
def test_index_map_of_empty_symbolic_shapes(name: str, shapes: list, params: dict, env: dict[str, int]) -> None:
    check_symbolic_index_map(name, shapes, params, env)


@pytest.mark.parametrize("name", ["tril", "triu"])
@pytest.mark.parametrize("seed", range(12))
def test_triangles(name: str, seed: int) -> None:
    # Their decomposition needs element-wise ops; here the rules and the reference are checked.
    record = get(name)
    x = np.random.default_rng(seed).normal(size=(2, 3, 4)).astype(np.float32)
    want = np.tril(x, seed % 5 - 2) if name == "tril" else np.triu(x, seed % 5 - 2)
    np.testing.assert_array_equal(record.reference(x, k=seed % 5 - 2), want)
    assert record.infer([Aval((B, S), float32)], {"k": 0})[0] == (Aval((B, S), float32),)


@pytest.mark.parametrize("seed", range(12))
def test_stack(seed: int) -> None:
    check_sample("stack", seed)


def test_reshape_maps_equal_axes_one_to_one() -> None:
    assert reshape_index((i, j, k), (B, S, 6), (B, S, 6)) == (i, j, k)
    assert reshape_index((i, j), (B, S, 6), (B, 6 * S)) == (i, j // 6, j % 6)
    assert reshape_index((i, j, k), (B, 12), (B, 3, 4)) == (i, 4 * j + k)
    assert reshape_index((i, k), (B, 1, S), (B, S)) == (i, 0, k)


def test_reshape_groups() -> None:
    groups = axis_groups((B, 4, S, 5), (B, 2, 2 * S, 5))
    assert [(g.inputs, g.outputs) for g in groups] == [((0,), (0,)), ((1, 2), (1, 2)), ((3,), (3,))]


def test_reshape_needs_as_many_elements() -> None:
    rule = get("reshape").shape_rule
    assert rule(((B, S, 8),), {"shape": (B, 8 * S)}).obligations == ()
    (o,) = rule(((B, S),), {"shape": (T, 4)}).obligations
    assert (o.relation, o.left, o.right) == ("==", B * S, 4 * T)
    with pytest.raises(ShapeError, match="hold as many elements"):
        rule(((2, 3),), {"shape": (5,)})


def test_hand_computed_values() -> None:
    x = np.arange(6).reshape(2, 3)
    np.testing.assert_array_equal(
        get("window").reference(np.arange(6), axes=(0,), sizes=(2,), strides=(2,), dilations=(3,)),
        [[0, 3], [2, 5]],
    )
    pad = get("pad").reference
    np.testing.assert_array_equal(pad(np.arange(3), pairs=((2, 1),), mode="reflect", value=0), [2, 1, 0, 1, 2, 1])
    np.testing.assert_array_equal(pad(np.arange(3), pairs=((2, 1),), mode="wrap", value=0), [1, 2, 0, 1, 2, 0])
    np.testing.assert_array_equal(pad(np.arange(3), pairs=((2, 1),), mode="edge", value=0), [0, 0, 0, 1, 2, 2])
    np.testing.assert_array_equal(pad(np.arange(3), pairs=((2, 1),), mode="constant", value=9), [9, 9, 0, 1, 2, 9])
    np.testing.assert_array_equal(
        get("slice").reference(x, starts=(1, 2), sizes=(2, 2), steps=(-1, -2)), [[5, 3], [2, 0]]
    )
    np.testing.assert_array_equal(get("repeat").reference(np.arange(2), repeats=2, axis=0), [0, 0, 1, 1])


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_pad_is_numpys(mode: str) -> None:
    x = np.random.default_rng(0).normal(size=(4, 5))
    got = get("pad").reference(x, pairs=((2, 3), (0, 4)), mode=mode, value=0)
    np.testing.assert_array_equal(got, np.pad(x, ((2, 3), (0, 4)), mode=mode))


def test_obligations_of_slices_and_windows() -> None:
    rule = get("slice").shape_rule
    whole = {"starts": (0,), "sizes": (S,), "steps": (1,)}
    assert rule(((S,),), whole).obligations == ()
    assert rule(((S + 2,),), {**whole, "starts": (2,)}).obligations == ()
    (o,) = rule(((T,),), whole).obligations
    assert (o.relation, o.left, o.right) == ("<=", S, T)
    assert rule(((S + T,),), whole).obligations == ()
    (o,) = rule(((S,),), {**whole, "sizes": (S + T,)}).obligations
    assert (o.relation, o.left, o.right) == ("<=", S + T, S)
    assert get("window").shape_rule(
        ((S,),), {"axes": (0,), "sizes": (3,), "strides": (2,), "dilations": (1,)}
    ).shapes == (((S - 3) // 2 + 1, 3),)


@pytest.mark.parametrize(
    ("name", "shapes", "params", "error"),
    [
        ("transpose", [(2, 3)], {"axes": (0, 0)}, AxisError),
        ("broadcast_to", [(2, 3)], {"shape": (2, 4)}, ShapeError),
        ("broadcast_to", [(2, 3)], {"shape": (3,)}, ShapeError),
        ("slice", [(4,)], {"starts": (2,), "sizes": (3,), "steps": (1,)}, ShapeError),
        ("slice", [(4,)], {"starts": (-1,), "sizes": (1,), "steps": (1,)}, ShapeError),
        ("slice", [(4,)], {"starts": (0,), "sizes": (1,), "steps": (0,)}, ArgumentError),
        ("slice", [(4,)], {"starts": (1,), "sizes": (3,), "steps": (-1,)}, ShapeError),
        ("slice", [(4,)], {"starts": (4,), "sizes": (2,), "steps": (-1,)}, ShapeError),
        ("concat", [(2, 3), (3, 3)], {"axis": 1}, ShapeError),
        ("concat", [(2, 3), (3,)], {"axis": 0}, ShapeError),
        ("flip", [(2, 3)], {"axes": (2,)}, AxisError),
        ("roll", [(2, 3)], {"axes": (0,), "shifts": (1, 2)}, ArgumentError),
        ("tile", [(2, 3)], {"reps": (2,)}, ArgumentError),
        ("pad", [(2,)], {"pairs": ((-1, 0),)}, ShapeError),
        ("pad", [(2,)], {"pairs": ((2, 0),), "mode": "reflect"}, ShapeError),
        ("pad", [(2,)], {"pairs": ((2, 0),), "mode": "mirror"}, ArgumentError),
        ("window", [(2,)], {"axes": (0,), "sizes": (5,), "strides": (1,), "dilations": (1,)}, ShapeError),
        ("stack", [(2,), (3,)], {"axis": 0}, ShapeError),
        ("tril", [(2,)], {"k": 0}, ShapeError),
    ],
)
def test_refused(name: str, shapes: list, params: dict, error: type[Exception]) -> None:
    record = get(name)
    with pytest.raises(error):
        record.infer([Aval(s, float32) for s in shapes], record.fill_params(params))


def test_concat_needs_one_dtype() -> None:
    with pytest.raises(DTypeError, match="cast"):
        get("concat").infer([Aval((2,), float32), Aval((2,), int32)], {"axis": 0})


def test_involutions_and_idempotents() -> None:
    x = np.arange(12).reshape(3, 4)
    flip = get("flip").reference
    np.testing.assert_array_equal(flip(flip(x, axes=(0, 1)), axes=(0, 1)), x)
    for name in ("tril", "triu"):
        reference = get(name).reference
        np.testing.assert_array_equal(reference(reference(x, k=1), k=1), reference(x, k=1))
