import mmap as memory_map
import random
import struct
import zipfile

import ml_dtypes
import numpy as np
import pytest

from cuvil.support.errors import WeightsError
from cuvil.weights import load
from tests.weights.checkpoint_files import (
    LEGACY_MAGIC,
    Call,
    Name,
    Persistent,
    opcodes,
    pickled,
    storage,
    tensor,
    torch_legacy,
    torch_zip,
)

SIX = np.arange(6, dtype=np.float32)
GRID = tensor(storage("0", 6), (2, 3), (3, 1))


def loaded(tmp_path, content, **options):
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    return load(path, **options)


def refused(tmp_path, content, message, **options):
    with pytest.raises(WeightsError, match=message):
        loaded(tmp_path, content, **options)


def both_formats(value):
    yield torch_zip(pickled(value), {"0": SIX.tobytes()})
    yield torch_legacy(pickled(value), {"0": (6, SIX.tobytes())})


@pytest.mark.parametrize("mmap", [True, False])
def test_strides_offsets_and_shared_storages(tmp_path, mmap):
    stored = storage("0", 6)
    value = {
        "grid": GRID,
        "transposed": tensor(stored, (3, 2), (1, 3)),
        "column": tensor(stored, (2,), (3,), offset=1),
        "expanded": tensor(stored, (2, 4), (1, 0), offset=2),
        "scalar": tensor(stored, (), (), offset=5),
        "empty": tensor(stored, (0, 3), (3, 1), offset=6),
        "one": tensor(stored, (1, 2), (10**30, 1), offset=4),
    }
    for content in both_formats(value):
        found = loaded(tmp_path, content, mmap=mmap)
        grid = SIX.reshape(2, 3)
        np.testing.assert_array_equal(found["grid"], grid, strict=True)
        np.testing.assert_array_equal(found["transposed"], grid.T, strict=True)
        np.testing.assert_array_equal(found["column"], grid[:, 1], strict=True)
        np.testing.assert_array_equal(found["expanded"], [[2] * 4, [3] * 4])
        assert found["scalar"].shape == ()
        assert found["scalar"] == 5
        assert found["empty"].shape == (0, 3)
        np.testing.assert_array_equal(found["one"], [[4, 5]])
        assert np.shares_memory(found["grid"], found["transposed"])


@pytest.mark.parametrize(
    "kind, dtype",
    [
        ("FloatStorage", np.float32),
        ("DoubleStorage", np.float64),
        ("HalfStorage", np.float16),
        ("BFloat16Storage", ml_dtypes.bfloat16),
        ("LongStorage", np.int64),
        ("IntStorage", np.int32),
        ("ShortStorage", np.int16),
        ("CharStorage", np.int8),
        ("ByteStorage", np.uint8),
        ("BoolStorage", np.bool_),
        ("ComplexFloatStorage", np.complex64),
        ("ComplexDoubleStorage", np.complex128),
    ],
)
@pytest.mark.parametrize("big", [False, True])
def test_storage_types_in_both_byte_orders(tmp_path, kind, dtype, big):
    values = np.array([0, 1, 0], np.bool_).astype(dtype) if kind == "BoolStorage" else np.arange(3).astype(dtype)
    unit = values.dtype.itemsize // (2 if values.dtype.kind == "c" else 1)
    raw = values.view(f"u{unit}").astype(f"{'>' if big else '<'}u{unit}").tobytes()
    value = pickled({"w": tensor(storage("0", 3, kind), (3,), (1,))})
    for content in (
        torch_zip(value, {"0": raw}, byteorder=b"big" if big else b"little"),
        torch_legacy(value, {"0": (3, raw)}, little=not big),
    ):
        found = loaded(tmp_path, content)["w"]
        assert found.dtype == dtype
        assert found.tobytes() == values.tobytes()
        assert found.flags.aligned


@pytest.mark.parametrize(
    "name, dtype",
    [
        ("float8_e4m3fn", ml_dtypes.float8_e4m3fn),
        ("float8_e5m2", ml_dtypes.float8_e5m2),
        ("float8_e4m3fnuz", ml_dtypes.float8_e4m3fnuz),
        ("float8_e5m2fnuz", ml_dtypes.float8_e5m2fnuz),
        ("float8_e8m0fnu", ml_dtypes.float8_e8m0fnu),
        ("uint16", np.uint16),
        ("uint64", np.uint64),
    ],
)
def test_untyped_storages_of_the_newer_dtypes(tmp_path, name, dtype):
    values = np.array([1, 2, 4], dtype)
    stored = Persistent(("storage", Name("torch.storage", "UntypedStorage"), "0", "cpu", values.nbytes))
    rebuilt = Call(
        Name("torch._utils", "_rebuild_tensor_v3"), (stored, 1, (2,), (1,), False, None, Name("torch", name))
    )
    found = loaded(tmp_path, torch_zip(pickled({"w": rebuilt}), {"0": values.tobytes()}))["w"]
    assert found.dtype == dtype
    assert found.astype(np.float32).tolist() == [2, 4]
    if values.itemsize > 1:
        odd = torch_zip(
            pickled({"w": rebuilt}).replace(opcodes(values.nbytes) + b"tQ", opcodes(values.nbytes + 1) + b"tQ"),
            {"0": values.tobytes() + b"\0"},
        )
        refused(tmp_path, odd, f"no multiple of the {values.itemsize} bytes")


def test_stored_records_are_mapped_and_deflated_ones_are_read(tmp_path):
    value = pickled({"w": GRID})
    base = loaded(tmp_path, torch_zip(value, {"0": SIX.tobytes()}))["w"]
    assert not base.flags.writeable
    while isinstance(base, np.ndarray):
        base = base.base
    assert isinstance(base.obj, memory_map.mmap)
    inflated = loaded(tmp_path, torch_zip(value, {"0": SIX.tobytes()}, method=zipfile.ZIP_DEFLATED))["w"]
    np.testing.assert_array_equal(inflated, SIX.reshape(2, 3), strict=True)


def test_parameters_and_tensors_with_attributes(tmp_path):
    state = {"note": 3}
    value = {
        "p": Call(Name("torch._utils", "_rebuild_parameter"), (GRID, True, {})),
        "q": Call(Name("torch._utils", "_rebuild_parameter_with_state"), (GRID, True, {}, state)),
        "r": Call(
            Name("torch._tensor", "_rebuild_from_type_v2"),
            (Name("torch._utils", "_rebuild_tensor_v2"), Name("torch", "Tensor"), GRID.arguments, state),
        ),
        "s": Call(Name("torch._utils", "_rebuild_tensor"), GRID.arguments[:4]),
    }
    found = loaded(tmp_path, torch_zip(pickled(value), {"0": SIX.tobytes()}))
    assert {name: array.tolist() for name, array in found.items()} == {name: [[0, 1, 2], [3, 4, 5]] for name in "pqrs"}


def test_deferred_conjugation_and_negation_are_applied(tmp_path):
    values = np.array([1 + 2j], np.complex64)
    stored = storage("0", 1, "ComplexFloatStorage")

    def flagged(**bits):
        return Call(Name("torch._utils", "_rebuild_tensor_v2"), (stored, 0, (1,), (1,), False, None, bits))

    content = pickled({"c": flagged(conj=True), "n": flagged(neg=True), "p": flagged(conj=False)})
    found = loaded(tmp_path, torch_zip(content, {"0": values.tobytes()}))
    assert [found[name].tolist() for name in "cnp"] == [[1 - 2j], [-1 - 2j], [1 + 2j]]


def test_many_deferred_copies_of_one_storage_are_one(tmp_path):
    arguments = (storage("0", 6), 0, (2, 3), (3, 1), False, None, {"neg": True})
    value = {str(index): Call(GRID.function, arguments) for index in range(9)}
    found = loaded(tmp_path, torch_zip(pickled(value), {"0": SIX.tobytes()}))
    assert all(np.shares_memory(found["0"], array) for array in found.values())


def test_legacy_storage_views(tmp_path):
    view = storage("0", 6, view=[("view", 2, 3)])
    value = {"root": GRID, "view": tensor(view, (2,), (1,), offset=1)}
    assert loaded(tmp_path, torch_legacy(pickled(value), {"0": (6, SIX.tobytes())}))["view"].tolist() == [3, 4]
    past = tensor(storage("0", 6, view=[("view", 4, 3)]), (1,), (1,))
    refused(tmp_path, torch_legacy(pickled({"w": past}), {"0": (6, SIX.tobytes())}), "reaches outside its 6 elements")
    outside = tensor(view, (4,), (1,))
    refused(tmp_path, torch_legacy(pickled({"w": outside}), {"0": (6, SIX.tobytes())}), "reaches outside its storage")


@pytest.mark.parametrize("wrapper", ["state_dict", "model", "model_state_dict"])
def test_wrappers_are_looked_through(tmp_path, wrapper):
    device = Call(Name("torch", "device"), ("cuda", 0))
    value = {
        wrapper: {"w": GRID},
        "device": device,
        "optimizer": {"state": {0: {"exp_avg": GRID}}},
        "epoch": 3,
        "note": None,
    }
    for content in both_formats(value):
        assert list(loaded(tmp_path, content)) == ["w"]


def test_other_containers_are_flattened_and_entries_chosen(tmp_path):
    value = {"encoder": {"w": GRID}, "decoder": [{"w": GRID}, GRID], "step": 3}
    for content in both_formats(value):
        assert list(loaded(tmp_path, content)) == ["encoder.w", "decoder.0.w", "decoder.1"]
        assert list(loaded(tmp_path, content, entry="encoder")) == ["w"]
        refused(
            tmp_path, content, "no entry 'encoders'; it has the entries 'encoder', 'decoder', 'step'", entry="encoders"
        )
        refused(tmp_path, content, "no entry 'encoder.w.x'", entry="encoder.w.x")
        refused(tmp_path, content, "no tensors under 'step'", entry="step")
    for content in both_formats(GRID):
        assert list(loaded(tmp_path, content)) == ["tensor"]


@pytest.mark.parametrize(
    "value, message",
    [
        ({"model": {"w": GRID}, "state_dict": {"w": GRID}}, "entries state_dict, model; choose one by entry="),
        ({"a.b": GRID, "a": {"b": GRID}}, "two tensors named 'a.b'"),
        ({"step": (3, GRID.function)}, "holds no tensors"),
    ],
)
def test_ambiguous_and_empty_checkpoints_are_refused(tmp_path, value, message):
    refused(tmp_path, torch_zip(pickled(value), {"0": SIX.tobytes()}), message)


def test_cyclic_and_exponential_containers_are_refused(tmp_path):
    cyclic = b"\x80\x02]q\0h\0a."
    refused(tmp_path, torch_zip(cyclic, {}), "too deeply or in themselves")
    exponential = b"\x80\x02)q\0" + (b"0(" + b"h\0" * 8 + b"tq\0") * 30 + b"."
    refused(tmp_path, torch_zip(exponential, {}), "too deeply or in themselves")


def lie(key="0", count=6, kind="FloatStorage", shape=(2, 3), strides=(3, 1), offset=0):
    return {"w": tensor(storage(key, count, kind), shape, strides, offset)}


@pytest.mark.parametrize(
    "value, message",
    [
        (lie(shape=(2, 4)), "reaches outside its storage of 6 elements"),
        (lie(offset=1), "reaches outside"),
        (lie(strides=(2**62, 1)), "reaches outside"),
        (lie(offset=2**62), "reaches outside"),
        (lie(shape=(2**40,), strides=(0,)), "expands 6 stored elements"),
        (lie(shape=(2**33, 2**33), strides=(0, 0)), "overflows"),
        (lie(shape=(2**33, 2**33, 0), strides=(0, 0, 0)), "overflows"),
        (lie(shape=(-1, 3)), "0 or more"),
        (lie(strides=(-3, 1)), "negative offset or stride"),
        (lie(offset=-1), "offset must be an integer from 0"),
        (lie(offset=2**63), "offset must be an integer from 0"),
        (lie(offset="0"), "offset must be an integer from 0"),
        (lie(count=-1), "count must be an integer from 0"),
        (lie(count=2**63), "count must be an integer from 0"),
        (lie(count=True), "count must be an integer from 0"),
        (lie(shape=(2,)), "1 sizes but 2 strides"),
        (lie(shape=[2, 3]), "tuple of at most 64 integers"),
        (lie(shape=(2, 3.0)), "tuple of integers"),
        (lie(shape=(1,) * 65, strides=(1,) * 65), "tuple of at most 64"),
        (lie(kind="QInt8Storage", count=24, shape=(24,), strides=(1,)), "quantized tensor"),
        ({"w": Persistent(("storage", Name("torch", "float32"), "0", "cpu", 6))}, "names no storage type"),
        ({"w": Persistent(("storage", "FloatStorage", "0", "cpu", 6))}, "names no storage type"),
        ({"w": Persistent(("storage", Name("torch", "FloatStorage"), 0, "cpu", 6))}, "key is not a string"),
        ({"w": Persistent(("module", Name("torch", "FloatStorage"), "0", "cpu", 6))}, "not the tuple"),
        ({"w": Persistent(("storage",))}, "not the tuple"),
        ({"w": Persistent("0")}, "not the tuple"),
        ({"w": Call(GRID.function, ())}, "has 0 arguments"),
        ({"w": Call(GRID.function, ("0", 0, (1,), (1,), False, None))}, "built on a str"),
        ({"w": Call(GRID.function, (*GRID.arguments, {"device": 1}))}, "only conj and neg"),
        ({"w": Call(GRID.function, (*GRID.arguments, [1]))}, "small dict"),
        ({"w": Call(GRID.function, (*GRID.arguments, {"conj": True}))}, "conj or neg bit"),
        (
            {"w": Call(GRID.function, (storage("0", 24, "BoolStorage"), *GRID.arguments[1:], {"neg": True}))},
            "conj or neg bit",
        ),
        ({"w": Call(Name("torch._utils", "_rebuild_parameter"), ("x", True, None))}, "built on a str"),
        ({"w": Call(Name("torch._utils", "_rebuild_tensor_v3"), (*GRID.arguments, "float32"))}, "no torch dtype"),
        (
            {"w": Call(Name("torch._utils", "_rebuild_tensor_v3"), (*GRID.arguments, Name("torch", "int32")))},
            "a tensor of int32 is built on a storage of float32",
        ),
        ({"w": tensor(storage("0", 24, "UntypedStorage"), (1,), (1,))}, "without a dtype"),
        ({"w": Call(Name("torch._utils", "_rebuild_qtensor"), ())}, "quantized tensor.*dequantize"),
        ({"w": Call(Name("torch._utils", "_rebuild_sparse_tensor"), ())}, "sparse tensor.*to_dense"),
        (
            {
                "w": Call(
                    Name("torch._tensor", "_rebuild_from_type_v2"),
                    (Name("torch._tensor", "_rebuild_from_type_v2"), Name("torch", "Tensor"), (), None),
                )
            },
            "no function that rebuilds",
        ),
        (
            {
                "w": Call(
                    Name("torch._tensor", "_rebuild_from_type_v2"),
                    (GRID.function, Name("torch", "float32"), GRID.arguments, None),
                )
            },
            "no tensor type",
        ),
        ({"w": Call(Name("collections", "OrderedDict"), ([["a", 1]],))}, "built from arguments"),
        ({"w": Call(Name("os", "system"), ("true",))}, "global os.system"),
        ({"w": Name("torch.nn.modules.linear", "Linear")}, r"global torch\.nn\.modules\.linear\.Linear"),
        ({"w": Call(Name("torch", "device"), ([],))}, "torch.device"),
        ({"w": Call(Name("torch", "Size"), ([2],))}, "torch.Size"),
    ],
)
def test_lying_pickles_are_refused_in_both_formats(tmp_path, value, message):
    for content in both_formats(value):
        refused(tmp_path, content, message)


@pytest.mark.parametrize("count", [5, 7, 0, 2**62])
def test_a_storage_count_that_is_not_that_of_its_bytes_is_refused(tmp_path, count):
    value = pickled(lie(count=count, shape=(1,), strides=(1,)))
    refused(tmp_path, torch_zip(value, {"0": SIX.tobytes()}), f"24 bytes but is said to have {count} elements")
    refused(tmp_path, torch_legacy(value, {"0": (6, SIX.tobytes())}), f"6 elements but is said to have {count}")
    refused(tmp_path, torch_legacy(value, {"0": (count, SIX.tobytes())}), "cut short|belong to nothing|reaches outside")


def test_storages_that_are_missing_or_named_as_paths_are_refused(tmp_path):
    refused(tmp_path, torch_zip(pickled(lie(key="1")), {"0": SIX.tobytes()}), "no record 'archive/data/1'")
    secret = tmp_path / "secret"
    secret.write_bytes(SIX.tobytes())
    for key in ("../../secret", str(secret), "../version", ""):
        refused(tmp_path, torch_zip(pickled(lie(key=key)), {"0": SIX.tobytes()}), "no record")


def test_legacy_headers_are_checked(tmp_path):
    value = pickled({"w": GRID})
    stored = {"0": (6, SIX.tobytes())}
    good = torch_legacy(value, stored)
    refused(tmp_path, torch_legacy(value, stored, protocol=1002), "another version")
    refused(tmp_path, torch_legacy(value, stored, little=3), "byte order")
    head = good[: good.index(value)]
    refused(tmp_path, head + value + pickled([0]) + bytes(32), "not a list of strings")
    refused(tmp_path, head + value + pickled("0") + bytes(32), "not a list of strings")
    refused(tmp_path, good.replace(pickled(LEGACY_MAGIC), pickled([LEGACY_MAGIC])), "magic number")
    malformed = pickled({"w": tensor(storage("0", 6, view=[(1, 2)]), (1,), (1,))})
    refused(tmp_path, torch_legacy(malformed, stored), "a storage's view is not the tuple")
    refused(tmp_path, torch_legacy(value, {}), "does not name each storage")
    refused(tmp_path, torch_legacy(value, {**stored, "1": (0, b"")}), "does not name each storage")
    refused(tmp_path, good + b"\0", "1 bytes follow the last storage")
    two = pickled({"w": GRID, "v": tensor(storage("0", 5), (1,), (1,))})
    refused(tmp_path, torch_legacy(two, stored), "given two sizes")
    refused(tmp_path, torch_legacy(value, {"0": (-6, SIX.tobytes())}), "-6 elements")


def test_bad_bools_and_byte_orders_are_refused(tmp_path):
    value = pickled(lie(kind="BoolStorage", count=2, shape=(2,), strides=(1,)))
    refused(tmp_path, torch_zip(value, {"0": b"\0\2"}), "other than 0 and 1")
    refused(tmp_path, torch_zip(value, {"0": b"\0\1"}, byteorder=b"middle"), "byteorder record")
    assert loaded(tmp_path, torch_zip(value, {"0": b"\0\1"}, byteorder=None))["w"].tolist() == [False, True]


def test_archives_that_are_no_checkpoints_are_refused(tmp_path):
    value = pickled({"w": GRID})
    two = torch_zip(value, {}, extra={"other/data.pkl": value})
    refused(tmp_path, two, "2 records data.pkl")
    script = torch_zip(value, {}, extra={"archive/constants.pkl": value})
    refused(tmp_path, script, "TorchScript archive")
    refused(tmp_path, b"\x80\x02}.", "no PyTorch checkpoint")
    refused(tmp_path, b"text", "no PyTorch checkpoint")


@pytest.mark.parametrize("mmap", [True, False])
def test_every_truncation_is_refused(tmp_path, mmap):
    for content in both_formats({"w": GRID}):
        for length in range(len(content)):
            refused(tmp_path, content[:length], ".", mmap=mmap)


def test_damaged_files_load_or_are_refused_but_never_crash(tmp_path):
    draw = random.Random(5)
    for content in both_formats({"w": GRID, "t": tensor(storage("0", 6), (3, 2), (1, 3))}):
        accepted = 0
        for _ in range(600):
            damaged = bytearray(content)
            for _ in range(draw.randint(1, 3)):
                damaged[draw.randrange(len(damaged))] = draw.choice([0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)])
            try:
                found = loaded(tmp_path, bytes(damaged), mmap=draw.random() < 0.5)
            except WeightsError:
                continue
            accepted += 1
            assert sum(array.nbytes for array in found.values()) <= 2**20
        # Damage to the values themselves is not seen without checksums, so some files still load.
        assert 0 < accepted < 600


def test_checksums_are_checked_when_the_file_is_read(tmp_path):
    content = bytearray(torch_zip(pickled({"w": GRID}), {"0": SIX.tobytes()}))
    position = bytes(content).index(struct.pack("<f", 5.0))
    content[position] ^= 1
    refused(tmp_path, bytes(content), "CRC-32", mmap=False)
