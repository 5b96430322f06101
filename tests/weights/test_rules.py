import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuvil.support.errors import DTypeError, WeightsError
from cuvil.weights import cast, drop, layout, merge, rename, reshape, split, tie, transpose


def grid(*shape, dtype=np.float32):
    return np.arange(np.prod(shape), dtype=dtype).reshape(shape)


def applied(rule, **tensors):
    return rule.apply({name.replace("_", "."): array for name, array in tensors.items()})


def refused(rule, message, **tensors):
    with pytest.raises(WeightsError, match=message):
        applied(rule, **tensors)


def test_rename_matches_whole_names_and_keeps_the_order():
    found, changed = applied(rename(r"a\.(\d+)", r"b/\1"), a_1=grid(1), xa_1=grid(1), a_12=grid(1), a_1x=grid(1))
    assert list(found) == ["b/1", "xa.1", "b/12", "a.1x"]
    assert changed == 2


def test_rename_onto_another_name_is_refused_but_swapping_is_not():
    refused(rename("a", "b"), "second tensor would be named 'b'", a=grid(1), b=grid(1))
    refused(rename("(a|b)", "c"), "second tensor would be named 'c'", a=grid(1), b=grid(1))
    found, _ = applied(rename("([ab])([ab])", r"\2\1"), ab=grid(1), ba=grid(2))
    assert found["ba"].shape == (1,)


def test_bad_patterns_and_templates_are_refused():
    with pytest.raises(WeightsError, match="no regular expression"):
        rename("(", "a")
    refused(rename("a", r"\1"), "does not fit pattern", a=grid(1))


def test_drop():
    assert applied(drop(r".*\.n"), a_n=grid(1), a_w=grid(1))[1] == 1
    assert str(drop(r".*\.n")) == r"drop('.*\\.n')"


def test_transpose_is_a_view_with_checked_axes():
    source = grid(2, 3, 4)
    found = applied(transpose("w", (2, 0, -2)), w=source)[0]["w"]
    assert found.shape == (4, 2, 3)
    assert np.shares_memory(found, source)
    for axes in ((0, 1), (0, 1, 1), (0, 1, 2, 3)):
        refused(transpose("w", axes), "expected . axes, each once", w=source)


def test_layout():
    source = grid(8, 3, 5, 7)
    np.testing.assert_array_equal(
        applied(layout("w", "OIHW", "HWIO"), w=source)[0]["w"], np.einsum("oihw->hwio", source), strict=True
    )
    refused(layout("w", "OIHW", "HWIO"), r"shape \[2, 3\]; expected 4 axes", w=grid(2, 3))
    for source_layout, target_layout in (("OIHW", "HWI"), ("OIHW", "HWIX"), ("OOHW", "HWOO")):
        with pytest.raises(WeightsError, match="the same letters"):
            layout("w", source_layout, target_layout)


def test_reshape():
    assert applied(reshape("w", (3, -1)), w=grid(2, 3))[0]["w"].shape == (3, 2)
    refused(reshape("w", (4, -1)), "does not fit", w=grid(2, 3))


@pytest.mark.parametrize(
    "source, dtype, values",
    [
        (np.array([1.5, np.inf, np.nan], np.float32), "bfloat16", [1.5, np.inf, np.nan]),
        (np.array([1.5, -2], ml_dtypes.float8_e5m2), "float32", [1.5, -2]),
        (np.array([1, 2], np.int64), "float16", [1, 2]),
        (np.array([0, 1], np.uint8), "bool", [False, True]),
        (np.array([-128, 127], np.int64), "int8", [-128, 127]),
        (np.array([], np.int64), "int8", []),
    ],
)
def test_cast(source, dtype, values):
    found = applied(cast("w", dtype), w=source)[0]["w"]
    assert found.dtype.name == dtype
    np.testing.assert_array_equal(found.astype(np.float64), values)


def test_cast_to_the_same_dtype_keeps_the_array():
    source = grid(2)
    assert applied(cast("w", "float32"), w=source)[0]["w"] is source


def test_cast_refuses_what_loses_more_than_precision():
    refused(
        cast("w", "float16"), "2 finite values of 'w' would become infinite", w=np.array([1e6, -1e6, 1], np.float32)
    )
    refused(cast("w", "float16"), "would become infinite", w=np.array([10**6]))
    refused(cast("w", "int8"), "fractions", w=grid(2))
    refused(cast("w", "bool"), "fractions", w=grid(2))
    refused(cast("w", "float32"), "imaginary", w=grid(2, dtype=np.complex64))
    refused(cast("w", "int8"), "cannot hold", w=np.array([128]))
    refused(cast("w", "uint8"), "cannot hold", w=np.array([-1]))
    refused(cast("w", "bool"), "cannot hold", w=np.array([2]))
    with pytest.raises(DTypeError):
        cast("w", "float31")


def test_split_with_sizes_for_grouped_queries():
    found, changed = applied(split(r"(.*)\.qkv", [r"\1.q", r"\1.k", r"\1.v"], sizes=[4, 1, 1]), a_qkv=grid(6, 2))
    assert {name: part.shape for name, part in found.items()} == {"a.q": (4, 2), "a.k": (1, 2), "a.v": (1, 2)}
    assert changed == 1


def test_split_faults():
    refused(split("w", ["a", "b"]), "3 elements, which do not make parts", w=grid(3))
    refused(split("w", ["a", "b"], groups=2), "do not make parts", w=grid(2))
    refused(split("w", ["a", "b"], sizes=[5, -2]), "do not make parts", w=grid(3))
    refused(split("w", ["a", "b"], axis=1), "no axis 1", w=grid(4))
    refused(split("w", ["a", "a"]), "second tensor would be named 'a'", w=grid(4))
    with pytest.raises(WeightsError, match="1 sizes for 2 names"):
        split("w", ["a", "b"], sizes=[1])
    with pytest.raises(WeightsError, match="at least one"):
        split("w", [])


def test_merge_by_captured_groups_wherever_the_parts_lie():
    rule = merge([r"(\d)\.q", r"(\d)\.k"], r"\1.qk", axis=-1)
    tensors = {"1.k": grid(2, 1), "0.q": grid(2, 3), "x": grid(1), "1.q": grid(2, 3) + 9, "0.k": grid(2, 1)}
    found, changed = rule.apply(tensors)
    assert list(found) == ["1.qk", "0.qk", "x"]
    assert changed == 4
    np.testing.assert_array_equal(found["1.qk"], np.concatenate([tensors["1.q"], tensors["1.k"]], axis=1))


def test_merge_faults():
    rule = merge(["a", "b"], "c")
    refused(rule, "nothing matches 'b' to go with 'a'", a=grid(2))
    refused(rule, r"'b' of shape \[2, 2\] does not fit", a=grid(2), b=grid(2, 2))
    refused(rule, "does not fit", a=grid(2, 3), b=grid(2, 2))
    refused(rule, "cast one first", a=grid(2), b=grid(2, dtype=np.int32))
    refused(rule, "second tensor would be named 'c'", a=grid(2), b=grid(2), c=grid(2))
    refused(merge(["a", "b"], "c", axis=1), "no axis 1", a=grid(2), b=grid(2))
    refused(merge(["a", "b"], "c", groups=2), "multiple of 2 groups", a=grid(2), b=grid(3))
    refused(merge([".*", "b"], "c"), "matches two of the patterns", b=grid(2))
    refused(merge([r"\d", "b"], "c"), "match one pattern with the same groups", **{"1": grid(2), "2": grid(2)})
    with pytest.raises(WeightsError, match="at least two patterns"):
        merge(["a"], "c")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_merge_undoes_split(data):
    rank = data.draw(st.integers(1, 3))
    axis = data.draw(st.integers(-rank, rank - 1))
    groups = data.draw(st.integers(1, 3))
    sizes = [groups * data.draw(st.integers(0, 3)) for _ in range(3)]
    shape = [data.draw(st.integers(1, 3)) for _ in range(rank)]
    shape[axis] = sum(sizes)
    source = grid(*shape)
    names = ["q", "k", "v"]
    parts, _ = split("qkv", names, axis, sizes=sizes, groups=groups).apply({"qkv": source})
    assert [parts[name].shape[axis] for name in names] == sizes
    whole, _ = merge(names, "qkv", axis, groups=groups).apply(parts)
    np.testing.assert_array_equal(whole["qkv"], source, strict=True)


def test_tie_works_both_ways():
    array = grid(2)
    for present in ("a", "b"):
        found, changed = tie("a", "b").apply({present: array})
        assert found["a"] is found["b"] is array
        assert changed == 1
    assert tie("a", "b").apply({"c": array})[1] == 0


def test_tie_of_two_that_are_there_needs_equal_bits():
    nan = np.array([np.nan, 0.0], np.float32)
    found, changed = tie("a", "b").apply({"a": nan, "b": nan.copy()})
    assert found["b"] is found["a"]
    assert changed == 2
    refused(tie("a", "b"), "differ", a=grid(2), b=grid(2) + 1)
    refused(tie("a", "b"), "differ", a=grid(2), b=grid(2, 1))
    refused(tie("a", "b"), "differ", a=np.array([0.0]), b=np.array([-0.0]))
    refused(tie("a", "b"), "differ", a=grid(2), b=grid(2, dtype=np.int32))
