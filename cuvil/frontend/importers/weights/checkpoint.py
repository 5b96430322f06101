"""Loading weights by path: which format a file has, sharded checkpoints, folders."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath, PureWindowsPath

from cuvil.frontend.importers.weights.array_views import Array
from cuvil.frontend.importers.weights.file_bytes import file_bytes
from cuvil.frontend.importers.weights.json_text import parse_object
from cuvil.frontend.importers.weights.safetensors import read_safetensors
from cuvil.frontend.importers.weights.state_dict import named_tensors
from cuvil.frontend.importers.weights.torch_checkpoint import (
    ZIP_MAGIC,
    TorchCheckpoint,
    is_legacy,
    read_torch_legacy,
    read_torch_zip,
)
from cuvil.support.errors import WeightsError

_TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
_INDEX_SUFFIX = ".index.json"
# What a folder is searched for, in this order; names as the Hugging Face hub uses them.
_PREFERRED = (
    "model.safetensors.index.json",
    "model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
)
_MAX_INDEX_BYTES = 100_000_000


def load(path: str | os.PathLike[str], *, mmap: bool = True, entry: str | None = None) -> dict[str, Array]:
    """The tensors of a weights file by name; nothing in the file is run, and torch is not needed.

    Args:
        path: a ``.safetensors`` file, a PyTorch ``.pt``/``.pth``/``.bin``/``.ckpt`` file (zip or legacy format), an
            ``*.index.json`` of a sharded checkpoint, or a folder that holds one of these.
        mmap: map the file, so that values are read when they are first used and arrays are read-only; otherwise read
            it all into memory, check its checksums and give writable arrays. Values that the file holds in another
            byte order, compressed or unaligned are copied in either case.
        entry: the part of a PyTorch checkpoint that holds the tensors, with dots for parts of parts; by default the
            one of the usual names (``state_dict``, ``model``, ...) or else everything.

    Returns:
        Arrays of the stored shape and dtype; bfloat16 and float8 are those of ml_dtypes. Tensors that share a PyTorch
        storage share memory.

    Raises:
        WeightsError: no such file, or one that is malformed, cut short, contradictory or hostile.

    >>> import tempfile, numpy as np
    >>> from cuvil.weights import save
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(f"{folder}/model.safetensors", {"w": np.arange(3)})
    ...     {name: array.tolist() for name, array in load(folder, mmap=False).items()}
    {'w': [0, 1, 2]}
    """
    target = Path(path)
    if target.is_dir():
        target = _in_folder(target)
    read = _load_sharded if target.name.endswith(".json") else _load_file
    tensors = read(target, mmap=mmap, entry=entry)
    if mmap:
        # Copies of unaligned values are read-only too, so that what a caller may do depends on no accident of layout.
        for array in tensors.values():
            array.flags.writeable = False
    return tensors


def _in_folder(folder: Path) -> Path:
    for name in _PREFERRED:
        if (folder / name).is_file():
            return folder / name
    try:
        files = sorted(file for file in folder.iterdir() if file.is_file())
    except OSError as error:
        raise WeightsError(f"cannot list {folder}: {error.strerror or error}") from error
    for suffixes in ((_INDEX_SUFFIX,), (".safetensors",), _TORCH_SUFFIXES):
        found = [file for file in files if file.name.endswith(suffixes)]
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(file.name for file in found[:8])
            raise WeightsError(f"{folder} holds several weights files ({names}); give the path of one, or of an index")
    raise WeightsError(
        f"{folder} holds no weights file; expected *{_INDEX_SUFFIX}, *.safetensors, {', '.join(_TORCH_SUFFIXES)}"
    )


def _load_file(path: Path, *, mmap: bool, entry: str | None) -> dict[str, Array]:
    where = str(path)
    data = file_bytes(path, mmap=mmap)
    start = bytes(data[:9])
    if path.suffix != ".safetensors":
        checkpoint: TorchCheckpoint | None = None
        if start.startswith(ZIP_MAGIC):
            checkpoint = read_torch_zip(data, where, verify=not mmap)
        elif is_legacy(data):
            checkpoint = read_torch_legacy(data, where)
        if checkpoint is not None:
            records = named_tensors(checkpoint.content, entry, where)
            return {
                name: checkpoint.array(record, f"{where}: tensor {name!r:.120}") for name, record in records.items()
            }
        if start[8:] != b"{":
            raise WeightsError(
                f"{where} is no PyTorch checkpoint and no safetensors file; it starts with {start!r}. Expected the zip "
                "or legacy format of torch.save, or safetensors"
            )
    if entry is not None:
        raise WeightsError(f"{where} is a safetensors file, which has no entries; leave out entry={entry!r}")
    return read_safetensors(data, where)[0]


def _load_sharded(path: Path, *, mmap: bool, entry: str | None) -> dict[str, Array]:
    data = file_bytes(path, mmap=False)
    if len(data) > _MAX_INDEX_BYTES:
        raise WeightsError(f"{path} has {len(data)} bytes; an index of at most {_MAX_INDEX_BYTES} is accepted")
    index = parse_object(bytes(data).lstrip(), str(path))
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise WeightsError(f"{path} has no weight_map; expected an object from tensor names to shard files")
    shard_of: dict[str, str] = {}
    for name, shard in weight_map.items():  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        shard_of[str(name)] = _checked_shard(shard, path)  # pyright: ignore[reportUnknownArgumentType]
    shards = {
        shard: _load_file(path.parent / shard, mmap=mmap, entry=entry) for shard in dict.fromkeys(shard_of.values())
    }
    for shard, tensors in shards.items():
        for name in tensors:
            if name not in shard_of:
                raise WeightsError(f"{path.parent / shard} holds {name!r:.120}, which {path.name} does not name")
    result: dict[str, Array] = {}
    for name, shard in shard_of.items():
        if name not in shards[shard]:
            raise WeightsError(f"{path.parent / shard} lacks {name!r:.120}, which {path.name} says that it holds")
        result[name] = shards[shard][name]
    return result


def _checked_shard(shard: object, path: Path) -> str:
    """A shard's file name, which must stay inside the index's folder whatever system reads it."""
    if isinstance(shard, str) and shard and "\0" not in shard:
        for flavour in (PurePosixPath(shard), PureWindowsPath(shard)):
            if flavour.anchor or ".." in flavour.parts or not flavour.parts:
                break
        else:
            if shard.endswith((".safetensors", *_TORCH_SUFFIXES)):
                return shard
    raise WeightsError(
        f"{path} names the shard {shard!r:.120}; expected a weights file inside the folder of the index "
        f"(.safetensors, {', '.join(_TORCH_SUFFIXES)})"
    )
