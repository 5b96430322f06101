"""PyTorch checkpoints, zip and legacy, read without torch into the pickled object and its storages."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from cuvil.frontend.importers.weights.array_views import Array, Storage
from cuvil.frontend.importers.weights.pickle_machine import interpret_pickle
from cuvil.frontend.importers.weights.torch_globals import ALLOWED, StorageRecord, TensorRecord, storage_record
from cuvil.frontend.importers.weights.zip_directory import ZipDirectory
from cuvil.support.errors import WeightsError

ZIP_MAGIC = b"PK\3\4"
# torch/serialization.py: MAGIC_NUMBER and PROTOCOL_VERSION, each a pickle of its own at the start of a legacy file.
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_PROTOCOL = 1001
# The integer's LONG1 opcode as every protocol from 2 on writes it: length 10, little-endian.
_LEGACY_MAGIC_OPCODE = b"\x8a\x0a" + _LEGACY_MAGIC.to_bytes(10, "little", signed=True)


@dataclass(frozen=True)
class TorchCheckpoint:
    """What a checkpoint holds: plain containers with :class:`TensorRecord` leaves, and the way to their values."""

    content: object
    _storage: Callable[[StorageRecord], Storage]

    def array(self, record: TensorRecord, tensor: str) -> Array:
        """The values of one tensor.

        Raises:
            WeightsError: its storage is missing, of another size, or too small for it.
        """
        return record.array(self._storage(record.storage), tensor)


def is_legacy(data: memoryview) -> bool:
    """Whether the bytes start as a legacy PyTorch checkpoint does."""
    return _LEGACY_MAGIC_OPCODE in bytes(data[:32])


def read_torch_zip(data: memoryview, where: str, *, verify: bool) -> TorchCheckpoint:
    """A checkpoint in the zip format of torch.save (PyTorch 1.6 and later).

    Args:
        data: the bytes of the file; stored records become views of them.
        where: the name of the file, for messages.
        verify: check the CRC-32 of every record that is used, which reads all of it.

    Raises:
        WeightsError: no such file, a hostile pickle, or records that do not fit what it says.
    """
    directory = ZipDirectory(data, where)
    pickles = [name for name in directory.names() if name == "data.pkl" or name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise WeightsError(f"{where}: a zip file with {len(pickles)} records data.pkl; a PyTorch checkpoint has one")
    prefix = pickles[0].removesuffix("data.pkl")
    if f"{prefix}constants.pkl" in directory:
        raise WeightsError(
            f"{where} is a TorchScript archive, a program; save its weights with torch.save(module.state_dict(), path)"
        )
    big_endian = False
    if f"{prefix}byteorder" in directory:
        order = bytes(directory.read(f"{prefix}byteorder", verify=True))
        if order not in (b"little", b"big"):
            raise WeightsError(f"{where}: the byteorder record says {order!r:.40}; expected little or big")
        big_endian = order == b"big"
    result = interpret_pickle(directory.read(pickles[0], verify=True), 0, ALLOWED, storage_record, where)
    storages: dict[str, Storage] = {}

    def storage(record: StorageRecord) -> Storage:
        found = storages.get(record.key)
        if found is None:
            content = directory.read(f"{prefix}data/{record.key}", verify=verify)
            found = Storage(content, big_endian, f"{where}: storage {record.key!r:.80}")
            storages[record.key] = found
        if len(found.data) != record.count * record.itemsize:
            raise WeightsError(
                f"{found.what} has {len(found.data)} bytes but is said to have {record.count} elements of "
                f"{record.itemsize} bytes; the file is damaged"
            )
        return found

    return TorchCheckpoint(result.value, storage)


def read_torch_legacy(data: memoryview, where: str) -> TorchCheckpoint:
    """A checkpoint in the format of torch.save before PyTorch 1.6: pickles, then the storages' bytes.

    Raises:
        WeightsError: a hostile pickle, or storages that are cut short or do not fit what it says.
    """
    position = 0

    def plain() -> object:
        nonlocal position
        result = interpret_pickle(data, position, {}, None, where)
        position = result.end
        return result.value

    if plain() != _LEGACY_MAGIC:
        raise WeightsError(f"{where}: the magic number of a legacy PyTorch checkpoint is missing")
    version = plain()
    if type(version) is not int or version != _LEGACY_PROTOCOL:
        raise WeightsError(f"{where}: a legacy checkpoint of another version than {_LEGACY_PROTOCOL}")
    system = plain()
    little = cast("dict[Any, Any]", system).get("little_endian") if type(system) is dict else None
    if type(little) is not bool:
        raise WeightsError(f"{where}: a legacy checkpoint that does not say its byte order")
    records: dict[str, StorageRecord] = {}

    def persistent(identifier: object) -> StorageRecord:
        record = storage_record(identifier)
        first = records.setdefault(record.key, record)
        if first.count * first.itemsize != record.count * record.itemsize:
            raise WeightsError(f"storage {record.key!r:.80} is given two sizes")
        return record

    result = interpret_pickle(data, position, ALLOWED, persistent, where)
    position = result.end
    keys = plain()
    if type(keys) is not list or any(type(key) is not str for key in cast("list[Any]", keys)):
        raise WeightsError(f"{where}: the list of storages is not a list of strings")
    names = cast("list[str]", keys)
    if len(set(names)) != len(names) or set(names) != set(records):
        raise WeightsError(f"{where}: the list of storages does not name each storage of the tensors once")
    storages: dict[str, Storage] = {}
    for key in names:
        record = records[key]
        if position + 8 > len(data):
            raise WeightsError(f"{where}: the file is cut short before storage {key!r:.80}")
        (count,) = struct.unpack_from("<q", data, position)
        if count != record.count:
            raise WeightsError(
                f"{where}: storage {key!r:.80} holds {count} elements but is said to have {record.count}; "
                "the file is damaged"
            )
        position += 8
        size = count * record.itemsize
        if position + size > len(data):
            raise WeightsError(
                f"{where}: storage {key!r:.80} takes {size} bytes but {len(data) - position} are left; it is cut short"
            )
        storages[key] = Storage(data[position : position + size], not little, f"{where}: storage {key!r:.80}")
        position += size
    if position != len(data):
        raise WeightsError(f"{where}: {len(data) - position} bytes follow the last storage and belong to nothing")
    return TorchCheckpoint(result.value, lambda record: storages[record.key])
