"""PyTorch checkpoints assembled without torch, honest or lying, from pickle opcodes and zip records."""

import io
import struct
import zipfile
from dataclasses import dataclass
from typing import Any

LEGACY_MAGIC = 0x1950A86A20F9469CFC6C


@dataclass(frozen=True)
class Name:
    """A global."""

    module: str
    name: str


@dataclass(frozen=True)
class Call:
    """REDUCE of a global."""

    function: Any
    arguments: Any


@dataclass(frozen=True)
class Persistent:
    """A persistent id."""

    identifier: Any


def opcodes(value: Any) -> bytes:
    """Opcodes of protocol 2 that push the value."""
    if value is None:
        return b"N"
    if value is True or value is False:
        return b"\x88" if value else b"\x89"
    if isinstance(value, int):
        raw = value.to_bytes(max(1, (value.bit_length() + 8) // 8), "little", signed=True)
        return b"\x8a" + bytes([len(raw)]) + raw
    if isinstance(value, str):
        raw = value.encode("utf-8", "surrogatepass")
        return b"X" + struct.pack("<I", len(raw)) + raw
    if isinstance(value, float):
        return b"G" + struct.pack(">d", value)
    if isinstance(value, tuple):
        return b"(" + b"".join(map(opcodes, value)) + b"t"
    if isinstance(value, list):
        return b"](" + b"".join(map(opcodes, value)) + b"e"
    if isinstance(value, dict):
        return b"}(" + b"".join(opcodes(key) + opcodes(item) for key, item in value.items()) + b"u"
    if isinstance(value, Name):
        return f"c{value.module}\n{value.name}\n".encode()
    if isinstance(value, Call):
        return opcodes(value.function) + opcodes(value.arguments) + b"R"
    if isinstance(value, Persistent):
        return opcodes(value.identifier) + b"Q"
    raise AssertionError(f"no opcodes for {value!r}")


def pickled(value: Any) -> bytes:
    return b"\x80\x02" + opcodes(value) + b"."


def storage(key: str, count: int, kind: str = "FloatStorage", view: Any = ()) -> Persistent:
    return Persistent(("storage", Name("torch", kind), key, "cpu", count, *view))


def tensor(stored: Persistent, shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0) -> Call:
    hooks = Call(Name("collections", "OrderedDict"), ())
    return Call(Name("torch._utils", "_rebuild_tensor_v2"), (stored, offset, shape, strides, False, hooks))


def torch_zip(
    content: bytes,
    storages: dict[str, bytes],
    *,
    byteorder: bytes | None = b"little",
    method: int = zipfile.ZIP_STORED,
    extra: dict[str, bytes] | None = None,
) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr("archive/data.pkl", content)
        if byteorder is not None:
            archive.writestr("archive/byteorder", byteorder)
        for key, data in storages.items():
            # torch pads the records of storages to multiples of 64 by an extra field.
            record = zipfile.ZipInfo(f"archive/data/{key}")
            record.compress_type = method
            padding = -(file.tell() + 30 + len(record.filename.encode()) + 4) % 64
            record.extra = struct.pack("<HH", 0x4246, padding) + bytes(padding)
            archive.writestr(record, data)
        for name, data in (extra or {}).items():
            archive.writestr(name, data)
        archive.writestr("archive/version", b"3\n")
    return file.getvalue()


def torch_legacy(
    content: bytes, storages: dict[str, tuple[int, bytes]], *, little: bool = True, protocol: int = 1001
) -> bytes:
    """``storages`` gives the element count that is claimed and the bytes."""
    head = pickled(LEGACY_MAGIC) + pickled(protocol) + pickled({"protocol_version": 1001, "little_endian": little})
    data = b"".join(struct.pack("<q", count) + raw for count, raw in storages.values())
    return head + content + pickled(list(storages)) + data
