"""The allow-list of a PyTorch state dict: inert records in place of torch's storages, tensors and dtypes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import numpy as np

from cuvil.frontend.importers.weights.array_views import MAX_RANK, Array, Storage, strided_view
from cuvil.frontend.importers.weights.element_types import QUANTIZED_STORAGES, TORCH_DTYPES, TORCH_STORAGES
from cuvil.frontend.importers.weights.pickle_machine import InertGlobal
from cuvil.support.errors import WeightsError

_QUANTIZED = "it holds a quantized tensor, whose scales cuvil does not read; call .dequantize() on it before saving"


@dataclass(frozen=True)
class StorageRecord:
    """A storage that a pickle names by persistent id; its bytes lie elsewhere in the file.

    Attributes:
        key: the name of its bytes.
        dtype: its element type; None for an untyped storage, whose elements are bytes.
        count: the number of elements of the bytes under ``key``.
        begin: first element of the part that this storage is.
        end: the element after the last of that part.
    """

    key: str
    dtype: np.dtype[Any] | None
    count: int
    begin: int
    end: int

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return 1 if self.dtype is None else self.dtype.itemsize


@dataclass(frozen=True)
class TensorRecord:
    """A tensor as a pickle describes it: a strided window on a storage, in elements of its dtype."""

    storage: StorageRecord
    dtype: np.dtype[Any]
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    conjugated: bool
    negated: bool

    def array(self, storage: Storage, tensor: str) -> Array:
        """The tensor's values: a view of the storage, or a copy where conjugation or negation was put off.

        Raises:
            WeightsError: the window does not fit in the storage.
        """
        elements = storage.elements(self.dtype, conjugated=self.conjugated, negated=self.negated)
        if self.storage.dtype is not None:
            elements = elements[self.storage.begin : self.storage.end]
        return strided_view(elements, self.offset, self.shape, self.strides, tensor)


def storage_record(identifier: object) -> StorageRecord:
    """The storage that a persistent id ``("storage", type, key, location, count[, view])`` names.

    Raises:
        WeightsError: the id has another form or a count that is no count.
    """
    if type(identifier) is not tuple:
        raise WeightsError("a persistent id is not the tuple that names a storage")
    fields = cast("tuple[Any, ...]", identifier)
    if len(fields) not in (5, 6) or fields[0] != "storage":
        raise WeightsError("a persistent id is not the tuple that names a storage")
    kind, key, count = fields[1], fields[2], fields[4]
    if not isinstance(kind, InertGlobal) or not isinstance(kind.value, _StorageType):
        raise WeightsError("a persistent id names no storage type")
    if kind.value.quantized:
        raise WeightsError(_QUANTIZED)
    if type(key) is not str:
        raise WeightsError("a storage's key is not a string")
    _checked_count(count, "a storage's element count")
    view = fields[5] if len(fields) == 6 else None
    if view is None:
        return StorageRecord(key, kind.value.dtype, count, 0, count)
    if type(view) is not tuple or len(cast("tuple[Any, ...]", view)) != 3:
        raise WeightsError("a storage's view is not the tuple (key, offset, size)")
    _, begin, size = cast("tuple[Any, ...]", view)
    _checked_count(begin, "a storage view's offset")
    _checked_count(size, "a storage view's size")
    if begin + size > count:
        raise WeightsError(f"a storage view of elements {begin}..{begin + size} reaches outside its {count} elements")
    return StorageRecord(key, kind.value.dtype, count, begin, begin + size)


@dataclass(frozen=True)
class _StorageType:
    dtype: np.dtype[Any] | None
    quantized: bool = False


@dataclass(frozen=True)
class _TensorType:
    """torch.Tensor or Parameter: a type that may be named, never called."""


def _checked_count(value: object, what: str) -> None:
    if type(value) is not int or not 0 <= value < 2**63:
        raise WeightsError(f"{what} must be an integer from 0 to 2**63 - 1")


def _checked_sizes(value: object, what: str) -> tuple[int, ...]:
    # The length comes first: one long tuple may be named by every tensor of a hostile pickle.
    if type(value) is not tuple or len(cast("tuple[Any, ...]", value)) > MAX_RANK:
        raise WeightsError(f"{what} must be a tuple of at most {MAX_RANK} integers")
    if any(type(size) is not int for size in cast("tuple[Any, ...]", value)):
        raise WeightsError(f"{what} must be a tuple of integers")
    return cast("tuple[int, ...]", value)


def _tensor(arguments: tuple[Any, ...], dtype: np.dtype[Any] | None, flags: object) -> TensorRecord:
    storage, offset, shape, strides = arguments
    if not isinstance(storage, StorageRecord):
        raise WeightsError(f"a tensor is built on a {type(storage).__name__}; expected a storage")
    element = dtype or storage.dtype
    if element is None:
        raise WeightsError("a tensor is built on an untyped storage without a dtype")
    if storage.dtype is not None and storage.dtype != element:
        raise WeightsError(f"a tensor of {element} is built on a storage of {storage.dtype}")
    _checked_count(offset, "a tensor's storage offset")
    if flags is not None and (type(flags) is not dict or len(cast("dict[Any, Any]", flags)) > 8):
        raise WeightsError("a tensor's metadata must be a small dict")
    bits = cast("dict[Any, Any]", flags or {})
    unknown = [key for key in bits if key not in ("conj", "neg") and bits[key]]
    if unknown:
        raise WeightsError(f"a tensor's metadata sets {unknown[0]!r:.60}; only conj and neg are understood")
    conjugated, negated = bits.get("conj") is True, bits.get("neg") is True
    if (conjugated and element.kind != "c") or (negated and element.kind not in "fc"):
        raise WeightsError(f"a tensor of {element} has the conj or neg bit; only complex and float tensors can")
    return TensorRecord(
        storage,
        element,
        offset,
        _checked_sizes(shape, "a tensor's size"),
        _checked_sizes(strides, "a tensor's stride"),
        conjugated,
        negated,
    )


def _rebuild_tensor(arguments: tuple[Any, ...]) -> TensorRecord:
    _expect(arguments, (4,), "_rebuild_tensor")
    return _tensor(arguments, None, None)


def _rebuild_tensor_v2(arguments: tuple[Any, ...]) -> TensorRecord:
    # (storage, offset, size, stride, requires_grad, backward_hooks, metadata=None)
    _expect(arguments, (6, 7), "_rebuild_tensor_v2")
    return _tensor(arguments[:4], None, arguments[6] if len(arguments) == 7 else None)


def _rebuild_tensor_v3(arguments: tuple[Any, ...]) -> TensorRecord:
    # (storage, offset, size, stride, requires_grad, backward_hooks, dtype, metadata=None)
    _expect(arguments, (7, 8), "_rebuild_tensor_v3")
    dtype = arguments[6]
    if not isinstance(dtype, InertGlobal) or not isinstance(dtype.value, np.dtype):
        raise WeightsError("_rebuild_tensor_v3 is given no torch dtype")
    return _tensor(arguments[:4], cast("np.dtype[Any]", dtype.value), arguments[7] if len(arguments) == 8 else None)


def _rebuild_parameter(arguments: tuple[Any, ...]) -> TensorRecord:
    # (data, requires_grad, backward_hooks) and, in _rebuild_parameter_with_state, the attributes set on it
    _expect(arguments, (3, 4), "_rebuild_parameter")
    if not isinstance(arguments[0], TensorRecord):
        raise WeightsError(f"a parameter is built on a {type(arguments[0]).__name__}; expected a tensor")
    return arguments[0]


def _rebuild_from_type(arguments: tuple[Any, ...]) -> TensorRecord:
    # (function, type, arguments, state): a tensor on which attributes were set
    _expect(arguments, (4,), "_rebuild_from_type_v2")
    function, kind, inner, _ = arguments
    if not isinstance(kind, InertGlobal) or not isinstance(kind.value, _TensorType):
        raise WeightsError("_rebuild_from_type_v2 is given no tensor type")
    if not isinstance(function, InertGlobal) or function.construct not in _TENSOR_BUILDERS or type(inner) is not tuple:
        raise WeightsError("_rebuild_from_type_v2 is given no function that rebuilds a tensor")
    return cast("TensorRecord", cast("Callable[..., object]", function.construct)(inner))


_TENSOR_BUILDERS: tuple[object, ...] = (_rebuild_tensor, _rebuild_tensor_v2, _rebuild_tensor_v3, _rebuild_parameter)


def _expect(arguments: tuple[Any, ...], counts: tuple[int, ...], name: str) -> None:
    if len(arguments) not in counts:
        raise WeightsError(f"{name} has {len(arguments)} arguments; expected {' or '.join(map(str, counts))}")


def _ordered_dict(arguments: tuple[Any, ...]) -> OrderedDict[Any, Any]:
    if arguments:
        raise WeightsError("an OrderedDict is built from arguments; expected none, as pickle writes it")
    return OrderedDict()


def _size(arguments: tuple[Any, ...]) -> tuple[int, ...]:
    _expect(arguments, (1,), "torch.Size")
    return _checked_sizes(arguments[0], "a torch.Size")


def _device(arguments: tuple[Any, ...]) -> str:
    if not 1 <= len(arguments) <= 2 or any(type(argument) not in (str, int) for argument in arguments):
        raise WeightsError("a torch.device is built from something else than a name and a number")
    return ":".join(str(argument) for argument in arguments)


def _layout(arguments: tuple[Any, ...]) -> str:
    _expect(arguments, (1,), "torch.serialization._get_layout")
    return str(arguments[0]) if type(arguments[0]) is str else ""


def _refuser(message: str) -> Callable[[tuple[Any, ...]], NoReturn]:
    def refuse(arguments: tuple[Any, ...]) -> NoReturn:
        raise WeightsError(message)

    return refuse


def _allowed() -> Iterable[InertGlobal]:
    yield InertGlobal("collections", "OrderedDict", _ordered_dict)
    yield InertGlobal("torch", "Size", _size)
    yield InertGlobal("torch", "device", _device)
    yield InertGlobal("torch._utils", "_rebuild_tensor", _rebuild_tensor)
    yield InertGlobal("torch._utils", "_rebuild_tensor_v2", _rebuild_tensor_v2)
    yield InertGlobal("torch._utils", "_rebuild_tensor_v3", _rebuild_tensor_v3)
    yield InertGlobal("torch._utils", "_rebuild_parameter", _rebuild_parameter)
    yield InertGlobal("torch._utils", "_rebuild_parameter_with_state", _rebuild_parameter)
    yield InertGlobal("torch._tensor", "_rebuild_from_type_v2", _rebuild_from_type)
    yield InertGlobal("torch", "Tensor", value=_TensorType())
    yield InertGlobal("torch.nn.parameter", "Parameter", value=_TensorType())
    for name, dtype in TORCH_DTYPES.items():
        yield InertGlobal("torch", name, value=dtype)
    for name, dtype in TORCH_STORAGES.items():
        yield InertGlobal("torch", name, value=_StorageType(dtype))
        yield InertGlobal("torch.cuda", name, value=_StorageType(dtype))
    for module in ("torch", "torch.storage"):
        yield InertGlobal(module, "UntypedStorage", value=_StorageType(None))
    # Named so that the refusal can say what to do.
    for name in QUANTIZED_STORAGES:
        yield InertGlobal("torch", name, value=_StorageType(None, quantized=True))
    yield InertGlobal("torch._utils", "_rebuild_qtensor", _refuser(_QUANTIZED))
    for name in ("per_tensor_affine", "per_tensor_symmetric", "per_channel_affine", "per_channel_symmetric"):
        yield InertGlobal("torch", name)
    yield InertGlobal("torch.serialization", "_get_layout", _layout)
    yield InertGlobal(
        "torch._utils",
        "_rebuild_sparse_tensor",
        _refuser("it holds a sparse tensor; call .to_dense() on it before saving"),
    )
    yield InertGlobal(
        "torch._utils",
        "_rebuild_meta_tensor_no_storage",
        _refuser("it holds a tensor of the meta device, which has no values; materialize the model before saving"),
    )


ALLOWED: dict[tuple[str, str], InertGlobal] = {(entry.module, entry.name): entry for entry in _allowed()}
