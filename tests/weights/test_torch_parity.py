"""The same checkpoints through cuvil and through PyTorch itself."""

import io
from collections import OrderedDict

import numpy as np
import pytest

from cuvil.support.errors import WeightsError
from cuvil.weights import load
from tests.weights.checkpoint_files import pickled, storage, tensor, torch_legacy, torch_zip

torch = pytest.importorskip("torch")


def bits(value):
    """A tensor's or an array's values as bytes, in row-major order."""
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value).tobytes()
    plain = value.detach().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_same(found, state):
    assert list(found) == list(state)
    for name, value in state.items():
        assert found[name].shape == tuple(value.shape), name
        assert found[name].dtype.name == str(value.dtype).removeprefix("torch."), name
        assert bits(found[name]) == bits(value), name


def example():
    generator = torch.Generator().manual_seed(0)
    grid = torch.randn(4, 6, generator=generator)
    attributed = torch.ones(2)
    attributed.note = 3
    complex_values = torch.randn(3, dtype=torch.complex64, generator=generator)
    state = OrderedDict(
        grid=grid,
        transposed=grid.t(),
        window=grid[1:3, ::2],
        expanded=torch.ones(1).expand(3, 4),
        scalar=torch.tensor(3),
        empty=torch.empty(0, 3),
        parameter=torch.nn.Parameter(torch.ones(3)),
        attributed=attributed,
        conjugated=complex_values.conj(),
        imaginary=complex_values.clone().conj().imag,
        channels_last=torch.randn(2, 3, 4, 5, generator=generator).to(memory_format=torch.channels_last),
    )
    for dtype in (
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
        *(torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2),
        *(torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
    ):
        state[str(dtype)] = torch.tensor([0.0, 1.0, 4.0]).to(dtype)
    return state


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("mmap", [True, False])
def test_state_dicts_load_as_torch_saved_them(tmp_path, zipped, protocol, mmap):
    state = example()
    torch.save(
        {"state_dict": state, "epoch": 3},
        tmp_path / "a.pt",
        pickle_protocol=protocol,
        _use_new_zipfile_serialization=zipped,
    )
    found = load(tmp_path / "a.pt", mmap=mmap)
    assert_same(
        {name.replace("torch.", ""): array for name, array in found.items()},
        {name.replace("torch.", ""): value for name, value in state.items()},
    )
    assert np.shares_memory(found["grid"], found["transposed"])
    assert all(array.flags.writeable is not mmap for name, array in found.items() if name != "empty")


def test_modules_with_tied_weights_and_buffers(tmp_path):
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(7, 4)
            self.norm = torch.nn.BatchNorm1d(4)
            self.head = torch.nn.Linear(4, 7, bias=False)
            self.head.weight = self.embedding.weight

    module = Tied()
    torch.save(module.state_dict(), tmp_path / "a.bin")
    found = load(tmp_path / "a.bin")
    assert_same(found, module.state_dict())
    assert np.shares_memory(found["embedding.weight"], found["head.weight"])


def test_optimizer_state_beside_the_model_is_left_out(tmp_path):
    module = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    torch.save({"model": module.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "a.pt")
    assert_same(load(tmp_path / "a.pt"), module.state_dict())
    assert "state.0.exp_avg" in load(tmp_path / "a.pt", entry="optimizer")


def test_files_without_checksums_load(tmp_path):
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"w": torch.ones(2)}, tmp_path / "a.pt")
    finally:
        torch.serialization.set_crc32_options(before)
    assert load(tmp_path / "a.pt", mmap=False)["w"].tolist() == [1, 1]


def test_big_endian_files_load(tmp_path):
    before = torch.serialization.get_default_load_endianness()
    content = torch_zip(
        pickled({"w": tensor(storage("0", 2), (2,), (1,))}), {"0": np.array([1, 2], ">f4").tobytes()}, byteorder=b"big"
    )
    (tmp_path / "a.pt").write_bytes(content)
    assert load(tmp_path / "a.pt")["w"].tolist() == torch.load(tmp_path / "a.pt")["w"].tolist() == [1, 2]
    assert torch.serialization.get_default_load_endianness() == before


def test_the_assembled_files_of_these_tests_are_what_torch_reads():
    zipped, legacy = (pickled({"w": tensor(storage("0", 6, view=view), (3, 2), (1, 3))}) for view in ([], [None]))
    raw = np.arange(6, dtype=np.float32).tobytes()
    for content in (torch_zip(zipped, {"0": raw}), torch_legacy(legacy, {"0": (6, raw)})):
        found = torch.load(io.BytesIO(content), weights_only=True)["w"]
        assert found.tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: torch.nn.Linear(2, 3), r"global torch\.nn\.modules\.linear\.Linear.*state_dict"),
        (lambda: {"w": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)}, "quantized"),
        (lambda: {"w": torch.ones(2).to_sparse()}, "sparse"),
        (lambda: {"w": torch.empty(2, device="meta")}, "meta device"),
        (lambda: {"w": torch.ones(2), "lr": np.float64(0.1)}, r"global numpy\S*scalar"),
        (lambda: {"w": torch.ones(2), "f": print}, r"global \w+\.print"),
    ],
)
@pytest.mark.parametrize("zipped", [True, False])
def test_what_is_no_plain_tensor_is_refused_with_advice(tmp_path, make, message, zipped):
    torch.save(make(), tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    with pytest.raises(WeightsError, match=message):
        load(tmp_path / "a.pt")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_archives_are_refused_with_advice(tmp_path):
    torch.jit.save(torch.jit.script(torch.nn.ReLU()), tmp_path / "a.pt")
    with pytest.raises(WeightsError, match="TorchScript archive"):
        load(tmp_path / "a.pt")
