import json
from typing import NamedTuple

import numpy as np
import pytest

from cuvil import dtypes
from cuvil.support.errors import WeightsError
from cuvil.weights import Misshaped, Mistyped, Report, cast, layout, merge, port, rename, split, tie, transpose


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


def test_names_become_dicts_and_lists():
    params, report = port({"layers.0.w": ones(1), "layers.1/w": ones(2), "head/2.b": ones(3), "s": ones()})
    assert [layer["w"].shape for layer in params["layers"]] == [(1,), (2,)]
    assert params["head"]["2"]["b"].shape == (3,)
    assert params["s"].shape == ()
    assert report == Report(loaded=4)


def test_ten_layers_are_a_list_in_the_order_of_their_numbers():
    params, _ = port({f"layers.{index}": ones(index) for index in reversed(range(12))})
    assert [layer.shape for layer in params["layers"]] == [(index,) for index in range(12)]


@pytest.mark.parametrize(
    "names, message",
    [
        (["a.b", "a/b"], "two tensors are named 'a/b'"),
        (["a", "a.b"], "'a' is a tensor and also holds 'a/b'"),
        (["a.b", "a"], "'a' is a tensor and also holds others"),
        (["a..b"], "no path"),
        ([""], "no path"),
        (["a." * 100 + "b"], "no path"),
    ],
)
def test_names_that_make_no_tree_are_refused(names, message):
    with pytest.raises(WeightsError, match=message):
        port(dict.fromkeys(names, ones(1)))


class Pair(NamedTuple):
    w: object
    b: object


def test_the_tree_has_the_form_of_like():
    like = {"layers": [Pair((2, 3), ones(2)), Pair((2, 3), None)], 3: (ones(1), (ones(4), {})), "scalar": ()}
    tensors = {
        "layers.0.w": ones(2, 3),
        "layers.0.b": ones(2),
        "layers.1.w": ones(2, 3),
        "3.0": ones(1),
        "3.1.0": ones(4),
        "scalar": ones(),
    }
    params, report = port(tensors, like=like)
    report.raise_if_incomplete()
    assert isinstance(params["layers"][0], Pair)
    assert params["layers"][0].w is tensors["layers.0.w"]
    assert params["layers"][1].b is None
    assert isinstance(params[3], tuple)
    assert params[3][1] == (tensors["3.1.0"], {})
    assert params["scalar"] is tensors["scalar"]


def test_a_real_port_of_an_attention_layer():
    generator = np.random.default_rng(0)
    tensors = {
        "bert.layer.0.attn.q.weight": generator.standard_normal((4, 4)),
        "bert.layer.0.attn.k.weight": generator.standard_normal((4, 4)),
        "bert.layer.0.attn.v.weight": generator.standard_normal((4, 4)),
        "bert.layer.0.conv.weight": generator.standard_normal((5, 4, 3, 3)),
        "bert.embedding.weight": generator.standard_normal((9, 4)),
        "bert.fused.weight": generator.standard_normal((8, 4)),
    }
    rules = [
        rename(r"bert\.(.*)", r"\1"),
        merge([rf"layer\.(\d+)\.attn\.{part}\.weight" for part in "qkv"], r"layers/\1/qkv"),
        transpose(r"layers/\d+/qkv"),
        rename(r"layer\.(\d+)\.conv\.weight", r"layers/\1/conv"),
        layout(r"layers/\d+/conv", "OIHW", "HWIO"),
        split(r"fused\.weight", ["gate", "up"]),
        tie("embedding.weight", "head.weight"),
        cast(r".*", "float32"),
    ]
    like = {
        "layers": [{"qkv": ones(4, 12), "conv": ones(3, 3, 4, 5)}],
        "gate": ones(4, 4),
        "up": ones(4, 4),
        "embedding": {"weight": ones(9, 4)},
        "head": {"weight": ones(9, 4)},
    }
    params, report = port(tensors, rules, like)
    report.raise_if_incomplete()
    assert report == Report(loaded=6)
    stacked = np.concatenate([tensors[f"bert.layer.0.attn.{part}.weight"] for part in "qkv"]).T
    np.testing.assert_array_equal(params["layers"][0]["qkv"], stacked.astype(np.float32), strict=True)
    np.testing.assert_array_equal(params["up"], tensors["bert.fused.weight"][4:].astype(np.float32), strict=True)
    np.testing.assert_array_equal(params["head"]["weight"], params["embedding"]["weight"])


def test_tied_parameters_stay_one_array():
    params, _ = port({"a": ones(2)}, [tie("a", "b")], like={"a": (2,), "b": (2,)})
    assert params["a"] is params["b"]


def test_the_report_names_everything():
    tensors = {
        "layer/0/weight": ones(2, 3),
        "norm/scale": ones(3, 2),
        "half": ones(2, dtype=np.float16),
        "conv": ones(5, 4, 3, 3),
    }
    like = {
        "layers": [{"weight": (2, 3)}],
        "norm": {"scale": (2, 3)},
        "half": ones(2),
        "conv": (3, 3, 4, 5),
    }
    rules = [rename("nothing", "something"), transpose(r"no.*no")]
    params, report = port(tensors, rules, like)
    assert params["layers"] == [{"weight": None}]
    assert params["norm"] == {"scale": None}
    assert params["half"] is tensors["half"]
    assert report.loaded == 1
    assert report.missing == ("layers/0/weight",)
    assert report.unexpected == ("layer/0/weight",)
    assert report.misshaped == (
        Misshaped("norm/scale", (3, 2), (2, 3)),
        Misshaped("conv", (5, 4, 3, 3), (3, 3, 4, 5)),
    )
    assert report.mistyped == (Mistyped("half", "float16", "float32"),)
    assert report.nearest == {"layers/0/weight": ("layer/0/weight",), "layer/0/weight": ("layers/0/weight",)}
    assert not report.complete
    assert str(report) == (
        "1 parameters loaded\n"
        "missing (1):\n"
        "  layers/0/weight (nearest: layer/0/weight)\n"
        "unexpected (1):\n"
        "  layer/0/weight (nearest: layers/0/weight)\n"
        "misshaped (2):\n"
        "  norm/scale: got [3, 2], expected [2, 3] (transpose it)\n"
        "  conv: got [5, 4, 3, 3], expected [3, 3, 4, 5] (permute its axes by transpose or layout)\n"
        "mistyped (1):\n"
        "  half: got float16, expected float32 (cast it)\n"
        "rules that matched nothing (2):\n"
        "  rename('nothing', 'something')\n"
        "  transpose('no.*no', None)"
    )
    assert json.loads(report.to_json()) == {
        "loaded": 1,
        "missing": ["layers/0/weight"],
        "unexpected": ["layer/0/weight"],
        "misshaped": [
            {"name": "norm/scale", "got": [3, 2], "expected": [2, 3]},
            {"name": "conv", "got": [5, 4, 3, 3], "expected": [3, 3, 4, 5]},
        ],
        "mistyped": [{"name": "half", "got": "float16", "expected": "float32"}],
        "unused_rules": ["rename('nothing', 'something')", "transpose('no.*no', None)"],
        "nearest": {"layers/0/weight": ["layer/0/weight"], "layer/0/weight": ["layers/0/weight"]},
    }
    with pytest.raises(WeightsError, match=r"do not fit the model\.\n1 parameters loaded\nmissing"):
        report.raise_if_incomplete()


@pytest.mark.parametrize(
    "report, allowed",
    [
        (Report(loaded=1, unexpected=("a",)), True),
        (Report(loaded=1, missing=("a",)), False),
        (Report(loaded=1, misshaped=(Misshaped("a", (1,), (2,)),)), False),
        (Report(loaded=1, mistyped=(Mistyped("a", "int8", "int16"),)), False),
    ],
)
def test_any_fault_makes_a_port_incomplete(report, allowed):
    assert not report.complete
    with pytest.raises(WeightsError, match="do not fit"):
        report.raise_if_incomplete()
    if allowed:
        report.raise_if_incomplete(allow_unexpected=True)
    else:
        with pytest.raises(WeightsError, match="do not fit"):
            report.raise_if_incomplete(allow_unexpected=True)


def test_long_reports_are_cut_and_quick():
    tensors = {f"encoder/layer/{index}/weight": ones(1) for index in range(1500)}
    like = {"encoder": {"layers": [{"weight": (1,)} for _ in range(1500)]}}
    _, report = port(tensors, like=like)
    assert len(report.missing) == len(report.unexpected) == 1500
    assert "... and 1480 more" in str(report)
    assert "encoder/layers/3/weight (nearest: encoder/layer/3/weight" in str(report)


def test_leaves_of_like_may_be_anything_with_a_shape():
    class Spec:
        shape = (2,)
        dtype = dtypes.bfloat16

    class Shaped:
        shape = (2,)

    tensors = {"a": ones(2), "b": ones(2), "c": ones(2)}
    _, report = port(tensors, like={"a": Spec(), "b": (np.int64(2),), "c": Shaped()})
    assert report.mistyped == (Mistyped("a", "float32", "bfloat16"),)
    assert port({"a": ones(2)}, [cast("a", "bfloat16")], like={"a": Spec()})[1].complete


@pytest.mark.parametrize("leaf", ["text", 3, object(), {"deep": 1.5}])
def test_leaves_without_a_shape_are_refused(leaf):
    with pytest.raises(WeightsError, match="expected an array, a shape"):
        port({}, like={"a": leaf})


def test_trees_that_make_no_names_are_refused():
    with pytest.raises(WeightsError, match="two parameters are named '1'"):
        port({}, like={1: (2,), "1": (2,)})
    cyclic: dict = {}
    cyclic["a"] = cyclic
    with pytest.raises(WeightsError, match="nested more than 100 deep"):
        port({}, like=cyclic)
    symbolic = type("Spec", (), {"shape": ("B", 2)})()
    with pytest.raises(WeightsError, match="expected whole numbers"):
        port({}, like=symbolic)
