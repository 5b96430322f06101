"""The safetensors format: a checked reader and an atomic writer.

Layout (Hugging Face, safetensors README): a little-endian 64-bit header length, a JSON header, then the tensors'
bytes, which the offsets of the header cover without holes or overlaps.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from cuvil.frontend.importers.weights.array_views import Array, element_count, native_elements
from cuvil.frontend.importers.weights.element_types import SAFETENSORS, safetensors_name
from cuvil.frontend.importers.weights.file_bytes import file_bytes
from cuvil.frontend.importers.weights.json_text import is_text, parse_object
from cuvil.support.errors import WeightsError

_METADATA = "__metadata__"
# The limit that the format's own reader sets, against headers made to exhaust memory.
MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True)
class _Entry:
    """One tensor of a header: its name, type, shape and byte range in the data."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    begin: int
    end: int


def read_safetensors(data: memoryview, where: str) -> tuple[dict[str, Array], dict[str, str]]:
    """The tensors (views of ``data`` where alignment allows) and the metadata of a safetensors file.

    Raises:
        WeightsError: anything that the format does not allow, named.
    """
    entries, metadata, start = _read_header(data, where)
    tensors: dict[str, Array] = {}
    for entry in entries:
        what = f"{where}: tensor {entry.name!r}"
        flat = native_elements(data[start + entry.begin : start + entry.end], entry.dtype, what=what)
        tensors[entry.name] = flat.reshape(entry.shape)
    return tensors, metadata


def metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The ``__metadata__`` strings of a safetensors file; empty where it has none.

    Raises:
        WeightsError: the file is not a valid safetensors file.
    """
    return _read_header(file_bytes(Path(path), mmap=True), str(path))[1]


def _read_header(data: memoryview, where: str) -> tuple[list[_Entry], dict[str, str], int]:
    if len(data) < 8:
        raise WeightsError(f"{where}: {len(data)} bytes are too few for a safetensors file; it is cut short")
    length = int.from_bytes(data[:8], "little")
    if length > MAX_HEADER_BYTES:
        raise WeightsError(
            f"{where}: the header claims {length} bytes; at most {MAX_HEADER_BYTES} are accepted, "
            "this is no safetensors file"
        )
    start = 8 + length
    if start > len(data):
        raise WeightsError(
            f"{where}: the header claims {length} bytes but {len(data) - 8} follow; the file is cut short"
        )
    header = parse_object(bytes(data[8:start]), f"{where}: the header")
    metadata = _checked_metadata(header.pop(_METADATA, {}), where)
    entries = sorted(
        (_checked_entry(name, value, where) for name, value in header.items()),
        key=lambda entry: (entry.begin, entry.end),
    )
    position = 0
    for entry in entries:
        if entry.begin != position:
            fault = "overlaps the tensor before it" if entry.begin < position else "leaves a hole before it"
            raise WeightsError(
                f"{where}: tensor {entry.name!r} at bytes {entry.begin}..{entry.end} {fault}; expected it at {position}"
            )
        position = entry.end
    if position != len(data) - start:
        raise WeightsError(
            f"{where}: the tensors take {position} bytes but {len(data) - start} follow the header; "
            "the file is cut short or has bytes that belong to no tensor"
        )
    return entries, metadata, start


def _checked_metadata(value: object, where: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise WeightsError(f"{where}: {_METADATA} must be an object of strings")
    items = cast("dict[str, object]", value)
    for key, text in items.items():
        if not isinstance(text, str):
            raise WeightsError(f"{where}: {_METADATA} entry {key!r} must be a string, got {type(text).__name__}")
    return cast("dict[str, str]", items)


def _checked_entry(name: str, value: object, where: str) -> _Entry:
    what = f"{where}: tensor {name!r}"
    if not isinstance(value, dict):
        raise WeightsError(f"{what} must be an object, got {type(value).__name__}")
    fields = cast("dict[str, object]", value)
    if set(fields) != {"dtype", "shape", "data_offsets"}:
        raise WeightsError(f"{what} has the keys {sorted(fields)[:8]}; expected dtype, shape and data_offsets")
    name_of_type = fields["dtype"]
    dtype = SAFETENSORS.get(name_of_type) if isinstance(name_of_type, str) else None
    if dtype is None:
        raise WeightsError(f"{what} has dtype {name_of_type!r:.60}; expected one of {', '.join(SAFETENSORS)}")
    shape = _integers(fields["shape"], f"{what}: shape")
    offsets = _integers(fields["data_offsets"], f"{what}: data_offsets")
    if len(offsets) != 2 or not 0 <= offsets[0] <= offsets[1] < 2**63:
        raise WeightsError(f"{what} has data_offsets that are not [begin, end] with 0 <= begin <= end < 2**63")
    size = element_count(shape, dtype, what) * dtype.itemsize
    if size != offsets[1] - offsets[0]:
        raise WeightsError(
            f"{what} of dtype {name_of_type} and shape {list(shape)} takes {size} bytes, "
            f"but its data_offsets hold {offsets[1] - offsets[0]}"
        )
    return _Entry(name, dtype, shape, offsets[0], offsets[1])


def _integers(value: object, what: str) -> tuple[int, ...]:
    items = cast("list[object]", value) if isinstance(value, list) else None
    if items is None or any(type(item) is not int for item in items):
        raise WeightsError(f"{what} must be a list of integers")
    return cast("tuple[int, ...]", tuple(items))


def save(
    path: str | os.PathLike[str], tensors: Mapping[str, object], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors as one safetensors file, atomically: the path has the old content or the new, never a part.

    Args:
        path: the file to write.
        tensors: names to arrays of any shape; every dtype of safetensors, bfloat16 and float8 through ml_dtypes.
        metadata: strings to store beside them.

    Raises:
        WeightsError: a name, dtype or metadata entry that the format cannot hold, or a path that cannot be written.

    >>> import tempfile
    >>> from cuvil.weights import load
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(f"{folder}/model.safetensors", {"w": np.ones((2, 2), np.float32)})
    ...     load(f"{folder}/model.safetensors", mmap=False)["w"].shape
    (2, 2)
    """
    arrays = {name: np.asarray(value) for name, value in tensors.items()}
    header: dict[str, object] = {}
    if metadata:
        for key, text in metadata.items():
            if not (is_text(key) and is_text(text)):
                raise WeightsError(f"metadata entry {key!r}: {text!r:.60} must be two strings of valid Unicode")
        header[_METADATA] = dict(metadata)
    for name in arrays:
        if not is_text(name) or name == _METADATA:
            raise WeightsError(f"a tensor cannot be named {name!r}; expected valid Unicode other than {_METADATA!r}")
    # Wider elements first keeps every tensor aligned, since the data starts at a multiple of 8.
    order = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    position = 0
    for name in order:
        array = arrays[name]
        end = position + array.nbytes
        header[name] = {
            "dtype": safetensors_name(array.dtype, name),
            "shape": list(array.shape),
            "data_offsets": [position, end],
        }
        position = end
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    target = Path(path)
    scratch = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    try:
        try:
            with open(scratch, "xb") as file:
                file.write(len(text).to_bytes(8, "little") + text)
                for name in order:
                    file.write(_little_endian_bytes(arrays[name]))
                file.flush()
                os.fsync(file.fileno())
            os.replace(scratch, target)
        finally:
            scratch.unlink(missing_ok=True)
    except OSError as error:
        raise WeightsError(f"cannot write {path}: {error.strerror or error}") from error


def _little_endian_bytes(array: Array) -> memoryview:
    flat = np.ascontiguousarray(array).reshape(-1)
    if not flat.size:
        return memoryview(b"")
    # ml_dtypes elements of two bytes have no byte order in NumPy; the machine's is theirs.
    unit = flat.dtype.itemsize // 2 if flat.dtype.kind == "c" else flat.dtype.itemsize
    order = flat.dtype.byteorder if flat.dtype.byteorder in "<>" else "="
    return flat.view(f"{order}u{unit}").astype(f"<u{unit}", copy=False).view(np.uint8).data
