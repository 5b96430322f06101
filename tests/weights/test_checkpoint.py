import json
import os

import numpy as np
import pytest

from cuvil.support.errors import WeightsError
from cuvil.weights import load, save
from tests.weights.checkpoint_files import pickled, storage, tensor, torch_zip


def write_index(folder, weight_map, name="model.safetensors.index.json", **more):
    (folder / name).write_text(json.dumps({"metadata": {"total_size": 8}, "weight_map": weight_map, **more}))


def shard(folder, name, *tensors):
    save(folder / name, {tensor: np.full(2, index, np.float32) for index, tensor in enumerate(tensors)})


def refused(path, message, **options):
    with pytest.raises(WeightsError, match=message):
        load(path, **options)


ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture
def sharded(tmp_path):
    shard(tmp_path, ONE, "a", "b")
    shard(tmp_path, TWO, "c")
    write_index(tmp_path, {"a": ONE, "c": TWO, "b": ONE})
    return tmp_path


def test_a_sharded_checkpoint_by_index_and_by_folder(sharded):
    for path in (sharded, sharded / "model.safetensors.index.json", str(sharded)):
        found = load(path)
        assert list(found) == ["a", "c", "b"]
        assert found["b"].tolist() == [1, 1]


def test_shards_of_pytorch_files_and_in_a_subfolder(tmp_path):
    (tmp_path / "parts").mkdir()
    value = pickled({"w": tensor(storage("0", 2), (2,), (1,))})
    (tmp_path / "parts" / "one.bin").write_bytes(torch_zip(value, {"0": np.ones(2, np.float32).tobytes()}))
    write_index(tmp_path, {"w": "parts/one.bin"}, "pytorch_model.bin.index.json")
    assert load(tmp_path)["w"].tolist() == [1, 1]


def test_a_shard_may_be_a_link_as_in_download_caches(sharded, tmp_path_factory):
    blobs = tmp_path_factory.mktemp("blobs")
    os.rename(sharded / ONE, blobs / "blob")
    os.symlink(blobs / "blob", sharded / ONE)
    assert set(load(sharded)) == {"a", "b", "c"}


@pytest.mark.parametrize(
    "name",
    [
        "../outside.safetensors",
        "/etc/outside.safetensors",
        "parts/../../outside.safetensors",
        "..\\outside.safetensors",
        "C:\\outside.safetensors",
        "C:outside.safetensors",
        "\\\\host\\share\\outside.safetensors",
        "a\0b.safetensors",
        "",
        ".",
        "model.safetensors.index.json",
        "outside",
        3,
        None,
        ["a.safetensors"],
    ],
)
def test_shards_outside_the_folder_and_of_other_kinds_are_refused(tmp_path, name):
    inner = tmp_path / "inner"
    inner.mkdir()
    shard(tmp_path, "outside.safetensors", "a")
    write_index(inner, {"a": name})
    refused(inner, "names the shard")


def test_an_index_and_its_shards_must_agree(sharded):
    write_index(sharded, {"a": ONE, "c": TWO})
    refused(sharded, f"{ONE} holds 'b', which model.safetensors.index.json does not name")
    write_index(sharded, {"a": ONE, "b": TWO, "c": TWO})
    refused(sharded, f"{TWO} lacks 'b'")
    write_index(sharded, {"a": ONE, "b": ONE, "c": "missing.safetensors"})
    refused(sharded, "cannot read .*missing.safetensors: No such file")


def test_a_tensor_in_two_shards_comes_from_the_one_that_the_index_names(tmp_path):
    shard(tmp_path, ONE, "a", "b")
    shard(tmp_path, TWO, "b", "c")
    write_index(tmp_path, {"a": ONE, "b": TWO, "c": TWO})
    assert load(tmp_path)["b"].tolist() == [0, 0]


@pytest.mark.parametrize(
    "text, message",
    [
        (b"", "empty"),
        (b"[]", "not a JSON object"),
        (b"{", "not valid JSON"),
        (b"{}", "no weight_map"),
        (b'{"weight_map": {}}', "no weight_map"),
        (b'{"weight_map": []}', "no weight_map"),
        (b'{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}', "given twice"),
        (b'{"weight_map": {"\xff": "x.safetensors"}}', "not UTF-8"),
        (b'{"a":' * 100_000, "nested too deeply"),
    ],
)
def test_malformed_indexes_are_refused(tmp_path, text, message):
    (tmp_path / "model.safetensors.index.json").write_bytes(text)
    refused(tmp_path, message)


def test_folders(tmp_path):
    refused(tmp_path, "holds no weights file")
    (tmp_path / "config.json").write_text("{}")
    refused(tmp_path, "holds no weights file")
    shard(tmp_path, "other.safetensors", "o")
    assert list(load(tmp_path)) == ["o"]
    shard(tmp_path, "second.safetensors", "s")
    refused(tmp_path, r"several weights files \(other.safetensors, second.safetensors\)")
    shard(tmp_path, "model.safetensors", "m")
    assert list(load(tmp_path)) == ["m"]


def test_content_decides_the_format_where_the_name_says_nothing(tmp_path):
    shard(tmp_path, "a.safetensors", "w")
    os.rename(tmp_path / "a.safetensors", tmp_path / "blob")
    assert list(load(tmp_path / "blob")) == ["w"]
    value = pickled({"v": tensor(storage("0", 1), (1,), (1,))})
    content = torch_zip(value, {"0": bytes(4)})
    (tmp_path / "blob").write_bytes(content)
    assert list(load(tmp_path / "blob")) == ["v"]
    (tmp_path / "a.safetensors").write_bytes(content)
    refused(tmp_path / "a.safetensors", "header claims")


def test_paths_that_are_no_files(tmp_path):
    refused(tmp_path / "none.pt", "cannot read .*none.pt: No such file")
    os.mkfifo(tmp_path / "pipe.pt")
    refused(tmp_path / "pipe.pt", "not a regular file")
    refused(tmp_path / "none.index.json", "cannot read")


def test_entry_is_for_pytorch_files_only(sharded):
    refused(sharded / ONE, "has no entries", entry="model")


@pytest.mark.parametrize("mmap", [True, False])
def test_arrays_outlive_the_file(tmp_path, mmap):
    shard(tmp_path, "a.safetensors", "z", "w")
    array = load(tmp_path / "a.safetensors", mmap=mmap)["w"]
    os.unlink(tmp_path / "a.safetensors")
    assert array.tolist() == [1, 1]
