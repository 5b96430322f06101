"""Array views over raw bytes: shape and stride checks, byte order, alignment."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cuvil.support.errors import WeightsError

Array = np.ndarray[Any, np.dtype[Any]]

# NumPy 2's own limit on the rank of an array (NPY_MAXDIMS).
MAX_RANK = 64
# An expanded tensor (stride 0) may have more elements than its storage; beyond this many it is taken for a bomb
# that the first copy would set off. 2**28 float32 elements are 1 GiB.
MAX_EXPANDED_ELEMENTS = 2**28


def element_count(shape: Sequence[int], dtype: np.dtype[Any], tensor: str) -> int:
    """The number of elements of a shape that an array of the dtype can have.

    Raises:
        WeightsError: too many axes, a negative size, or a byte count that does not fit in 63 bits (sizes of zero
            are left out of that count, as NumPy leaves them out).

    >>> element_count([2, 3], np.dtype(np.float32), "w")
    6
    """
    if len(shape) > MAX_RANK:
        raise WeightsError(f"{tensor} has {len(shape)} axes; expected at most {MAX_RANK}")
    nonzero = 1
    for size in shape:
        if size < 0:
            raise WeightsError(f"{tensor} has shape {_brief(shape)}; expected sizes of 0 or more")
        nonzero *= size or 1
        if nonzero * dtype.itemsize >= 2**63:
            raise WeightsError(f"{tensor} has shape {_brief(shape)}, whose size in bytes overflows 63 bits")
    return math.prod(shape)


def _brief(sizes: Sequence[int]) -> str:
    """A shape as text, with hostile thousand-digit sizes cut short."""
    return "[" + ", ".join(str(size) if abs(size) < 2**64 else "a huge number" for size in sizes) + "]"


def native_elements(data: memoryview, dtype: np.dtype[Any], *, big_endian: bool = False, what: str) -> Array:
    """The bytes as a flat array of the dtype in the machine's byte order, aligned for it.

    A view where the bytes already are so, a copy where not.

    Raises:
        WeightsError: the length is no multiple of the element size, or a bool is neither 0 nor 1.

    >>> native_elements(memoryview(bytes([0, 1, 0, 2])), np.dtype(np.int16), big_endian=True, what="w")
    array([1, 2], dtype=int16)
    """
    if len(data) % dtype.itemsize:
        raise WeightsError(f"{what} has {len(data)} bytes, no multiple of the {dtype.itemsize} bytes of one {dtype}")
    if not len(data):
        return np.empty(0, dtype)
    raw: Array = np.frombuffer(data, np.uint8)
    unit = dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize
    if unit > 1 and big_endian != (sys.byteorder == "big"):
        raw = raw.view(f"u{unit}").byteswap().view(np.uint8)
    elif raw.__array_interface__["data"][0] % dtype.alignment:
        raw = raw.copy()
    if dtype.kind == "b" and bool((raw > 1).any()):
        raise WeightsError(f"{what} is of bool but holds bytes other than 0 and 1; the file is damaged or mislabelled")
    return raw.view(dtype)


@dataclass
class Storage:
    """One run of bytes that tensors view; views of one dtype share their memory."""

    data: memoryview
    big_endian: bool
    what: str
    _elements: dict[tuple[np.dtype[Any], bool, bool], Array] = field(
        default_factory=dict[tuple[np.dtype[Any], bool, bool], Array], repr=False
    )

    def elements(self, dtype: np.dtype[Any], *, conjugated: bool = False, negated: bool = False) -> Array:
        """The whole storage as a flat array of the dtype, with signs changed where asked.

        Each form is made once, so that however many tensors ask for it, memory stays a small multiple of the storage.
        """
        form = dtype, conjugated, negated
        found = self._elements.get(form)
        if found is None:
            if negated:
                found = np.negative(self.elements(dtype, conjugated=conjugated))
            elif conjugated:
                found = np.conjugate(self.elements(dtype))
            else:
                found = native_elements(self.data, dtype, big_endian=self.big_endian, what=self.what)
            self._elements[form] = found
        return found


def strided_view(elements: Array, offset: int, shape: Sequence[int], strides: Sequence[int], tensor: str) -> Array:
    """A view of a flat array; offset and strides count elements, as PyTorch counts them.

    Raises:
        WeightsError: the view would reach outside the array, or is expanded beyond reason.

    >>> strided_view(np.arange(6), 0, (3, 2), (1, 3), "w")
    array([[0, 3],
           [1, 4],
           [2, 5]])
    """
    if len(shape) != len(strides):
        raise WeightsError(f"{tensor} has {len(shape)} sizes but {len(strides)} strides; expected as many")
    count = element_count(shape, elements.dtype, tensor)
    if offset < 0 or any(stride < 0 for stride in strides):
        raise WeightsError(f"{tensor} has a negative offset or stride; expected 0 or more")
    if count == 0:
        return np.empty(tuple(shape), elements.dtype)
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if last >= elements.size:
        raise WeightsError(
            f"{tensor} with shape {_brief(shape)}, strides {_brief(strides)} and offset {_brief([offset])} reaches "
            f"outside its storage of {elements.size} elements; the file is damaged"
        )
    if count > max(elements.size, MAX_EXPANDED_ELEMENTS):
        raise WeightsError(
            f"{tensor} expands {elements.size} stored elements to {count}; at most {MAX_EXPANDED_ELEMENTS} are "
            "accepted, save it as a contiguous tensor or with its true shape"
        )
    itemsize = elements.dtype.itemsize
    # The stride of an axis of size 1 is never stepped over and may be any number, even one that no C integer holds.
    steps = tuple(0 if size == 1 else stride * itemsize for size, stride in zip(shape, strides, strict=True))
    if steps == tuple(itemsize * math.prod(shape[axis + 1 :]) if shape[axis] > 1 else 0 for axis in range(len(shape))):
        return elements[offset : offset + count].reshape(tuple(shape))
    # ml_dtypes arrays export no buffer, bytes do; NumPy checks the bounds once more here.
    return np.ndarray(
        tuple(shape), elements.dtype, buffer=elements.view(np.uint8).data, offset=offset * itemsize, strides=steps
    )
