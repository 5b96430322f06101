import json
import os

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cuvil.frontend.importers.weights.element_types import SAFETENSORS
from cuvil.frontend.importers.weights.safetensors import read_safetensors
from cuvil.support.errors import WeightsError
from cuvil.weights import load, metadata, save


def file_of(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def refused(content, message):
    with pytest.raises(WeightsError, match=message):
        read_safetensors(memoryview(content), "a file")


NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(lambda name: name != "__metadata__")


@st.composite
def arrays(draw):
    dtype = draw(st.sampled_from(list(SAFETENSORS.values())))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    count = int(np.prod(shape))
    if dtype.kind == "b":
        return np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)), dtype).reshape(shape)
    size = count * dtype.itemsize
    return np.frombuffer(bytearray(draw(st.binary(min_size=size, max_size=size))), np.uint8).view(dtype).reshape(shape)


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(NAMES, arrays(), max_size=4), st.dictionaries(NAMES, NAMES, max_size=2), st.booleans())
def test_round_trip_keeps_every_bit(tmp_path_factory, tensors, notes, mmap):
    path = tmp_path_factory.mktemp("round") / "model.safetensors"
    save(path, tensors, notes)
    loaded = load(path, mmap=mmap)
    assert set(loaded) == set(tensors)
    for name, array in tensors.items():
        assert loaded[name].dtype == array.dtype
        assert loaded[name].shape == array.shape
        assert loaded[name].tobytes() == array.tobytes()
    assert metadata(path) == notes


def test_files_of_the_reference_writer_and_for_the_reference_reader(tmp_path):
    reference = pytest.importorskip("safetensors.numpy")
    tensors = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array(7), "e": np.empty((0, 2), np.float16)}
    reference.save_file(tensors, tmp_path / "theirs.safetensors")
    save(tmp_path / "ours.safetensors", tensors)
    for found in (load(tmp_path / "theirs.safetensors"), reference.load_file(tmp_path / "ours.safetensors")):
        for name, array in tensors.items():
            np.testing.assert_array_equal(found[name], array, strict=True)


def test_mapped_arrays_are_read_only_views_and_read_ones_are_writable(tmp_path):
    save(tmp_path / "a.safetensors", {"w": np.ones(4, np.float32)})
    mapped = load(tmp_path / "a.safetensors")["w"]
    assert not mapped.flags.writeable
    assert mapped.base is not None
    owned = load(tmp_path / "a.safetensors", mmap=False)["w"]
    owned[0] = 3
    assert load(tmp_path / "a.safetensors")["w"][0] == 1


def test_unaligned_tensors_are_copied_to_aligned_memory():
    header = {"a": entry("U8", (1,), (0, 1)), "b": entry("F64", (1,), (1, 9))}
    tensors, _ = read_safetensors(memoryview(file_of(header, b"\x07" + np.float64(2.5).tobytes())), "a file")
    assert tensors["b"].flags.aligned
    assert tensors["b"][0] == 2.5


def test_saving_makes_big_endian_and_strided_arrays_plain(tmp_path):
    grid = np.arange(6, dtype=">i4").reshape(2, 3)
    save(tmp_path / "a.safetensors", {"t": grid.T, "c": np.array([1 + 2j], ">c8")})
    loaded = load(tmp_path / "a.safetensors")
    assert loaded["t"].tolist() == grid.T.tolist()
    assert loaded["c"].tolist() == [1 + 2j]


def test_a_failed_save_leaves_the_old_file_and_no_scratch_file(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    save(path, {"w": np.ones(1)})
    before = path.read_bytes()

    def fail(source, target):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(WeightsError, match="no space left"):
        save(path, {"w": np.zeros(1)})
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.safetensors"]


@pytest.mark.parametrize(
    "tensors, notes, message",
    [
        ({"w": np.array(["text"])}, None, "cannot hold"),
        ({"w": np.ones(1, np.complex128)}, None, "cannot hold"),
        ({"w": np.ones(1, ml_dtypes.int4)}, None, "cannot hold"),
        ({"__metadata__": np.ones(1)}, None, "cannot be named"),
        ({"\ud800": np.ones(1)}, None, "cannot be named"),
        ({3: np.ones(1)}, None, "cannot be named"),
        ({}, {"a": 3}, "two strings"),
    ],
)
def test_save_refuses_what_the_format_cannot_hold(tmp_path, tensors, notes, message):
    with pytest.raises(WeightsError, match=message):
        save(tmp_path / "a.safetensors", tensors, notes)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "too few"),
        (b"\0" * 7, "too few"),
        (b"\xff" * 8 + b"{}", "at most 100000000"),
        (file_of(b"{}", length=2**63), "at most 100000000"),
        (file_of(b"{}", length=3), "cut short"),
        (file_of(b"{}", length=0), "not a JSON object"),
        (file_of(b""), "not a JSON object"),
        (file_of(b"[]"), "not a JSON object"),
        (file_of(b" {}"), "not a JSON object"),
        (file_of(b"{"), "not valid JSON"),
        (file_of(b'{"\xff": 1}'), "not UTF-8"),
        (file_of(b'{"a":' * 100_000), "nested too deeply"),
        (file_of(b'{"a":' + b"9" * 5000 + b"}"), "not valid JSON"),
        (file_of(b'{"\\ud800": 1}'), "no valid Unicode"),
        (file_of(b'{"a": 1, "a": 2}'), "given twice"),
        (file_of(b'{"a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}}'), "given twice"),
        (file_of({"a": 1}), "must be an object"),
        (file_of({"a": {}}), "expected dtype, shape and data_offsets"),
        (file_of({"a": {**entry(), "more": 1}}, bytes(8)), "expected dtype, shape and data_offsets"),
        (file_of({"a": entry("F31")}, bytes(8)), "dtype 'F31'"),
        (file_of({"a": entry("f32")}, bytes(8)), "dtype 'f32'"),
        (file_of({"a": entry(["F32"])}, bytes(8)), "dtype"),
        (file_of({"a": entry("F4")}, bytes(8)), "dtype 'F4'"),
        (file_of({"a": entry(shape=(2.0,))}, bytes(8)), "list of integers"),
        (file_of({"a": entry(shape=(True, 2))}, bytes(8)), "list of integers"),
        (file_of({"a": {**entry(), "shape": 2}}, bytes(8)), "list of integers"),
        (file_of({"a": entry(shape=(-1, -2))}, bytes(8)), "0 or more"),
        (file_of({"a": entry(shape=(1,) * 65, offsets=(0, 4))}, bytes(4)), "65 axes"),
        (file_of({"a": entry(shape=(2**32, 2**32))}, bytes(8)), "overflows"),
        (file_of({"a": entry(shape=(2**62, 4, 0), offsets=(0, 0))}), "overflows"),
        (file_of({"a": entry(shape=(0, 2**64), offsets=(0, 0))}), "overflows"),
        (file_of({"a": entry(shape=(10**4000,))}, bytes(8)), "overflows"),
        (file_of({"a": entry(shape=(3,))}, bytes(8)), "takes 12 bytes"),
        (file_of({"a": entry(offsets=(8, 0))}, bytes(8)), "begin <= end"),
        (file_of({"a": entry(offsets=(-8, 0))}, bytes(8)), "begin <= end"),
        (file_of({"a": entry(offsets=(0, 8, 8))}, bytes(8)), "begin, end"),
        (file_of({"a": entry(offsets=(2**64, 2**64 + 8))}, bytes(8)), "begin <= end"),
        (file_of({"a": entry(offsets=(0, 8)), "b": entry(offsets=(4, 12))}, bytes(12)), "overlaps"),
        (file_of({"a": entry(offsets=(0, 8)), "b": entry(offsets=(0, 8))}, bytes(8)), "overlaps"),
        (file_of({"a": entry(offsets=(4, 12))}, bytes(12)), "leaves a hole"),
        (file_of({"a": entry()}, bytes(7)), "follow the header"),
        (file_of({"a": entry()}, bytes(9)), "belong to no tensor"),
        (file_of({"__metadata__": {"a": 3}}), "must be a string"),
        (file_of({"__metadata__": []}), "object of strings"),
        (file_of({"a": entry("BOOL", (2,), (0, 2))}, b"\0\2"), "other than 0 and 1"),
    ],
)
def test_malformed_files_are_refused(content, message):
    refused(content, message)


def test_every_truncation_is_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    save(path, {"w": np.ones(3, np.float32), "n": np.ones(2, np.int8)}, {"k": "v"})
    content = path.read_bytes()
    for length in range(len(content)):
        refused(content[:length], ".")


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_headers_load_or_are_refused_but_never_crash(data):
    header = json.dumps({"a": entry(), "b": entry("U8", (2, 1), (8, 10)), "__metadata__": {"k": "v"}}).encode()
    content = bytearray(file_of(header, bytes(10)))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(content) - 1))
        content[position] = data.draw(st.one_of(st.sampled_from(b'0123456789[]{}:,"-'), st.integers(0, 255)))
    try:
        tensors, _ = read_safetensors(memoryview(bytes(content)), "a file")
    except WeightsError:
        return
    assert sum(array.nbytes for array in tensors.values()) == 10


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(["a", "b", "__metadata__"]), JSON, min_size=1), st.binary(max_size=8))
def test_headers_of_any_json_are_refused_unless_they_describe_nothing(header, data):
    try:
        tensors, _ = read_safetensors(memoryview(file_of(header, data)), "a file")
    except WeightsError:
        return
    assert tensors == {}
    assert data == b""
