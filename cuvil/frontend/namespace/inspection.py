"""What the library tells of itself: ``__array_namespace_info__`` of the Python array API standard."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuvil.dtypes import COMPLEX, FLOATS, SIGNED, UNSIGNED, DType, bfloat16, bool_, float16
from cuvil.frontend.source import at_user_line
from cuvil.support.errors import ArgumentError

#: Dtypes that the standard has; bfloat16 and float16 are beyond it.
_STANDARD: dict[str, tuple[DType, ...]] = {
    "bool": (bool_,),
    "signed integer": SIGNED,
    "unsigned integer": UNSIGNED,
    "integral": SIGNED + UNSIGNED,
    "real floating": tuple(d for d in FLOATS if d not in (float16, bfloat16)),
    "complex floating": COMPLEX,
}
_STANDARD["numeric"] = _STANDARD["integral"] + _STANDARD["real floating"] + COMPLEX


def check_device(device: Any) -> None:
    """Raise for a device that is not the one that there is.

    Raises:
        ArgumentError: a device other than "cpu" and None.
    """
    if device not in (None, "cpu"):
        raise ArgumentError(f"there is no device {device!r}; the only device is 'cpu'{at_user_line()}")


class NamespaceInfo:
    """Dtypes, devices and capabilities of the namespace.

    >>> NamespaceInfo().default_dtypes()["real floating"].name
    'float32'
    """

    __module__ = "cuvil.numpy"

    def capabilities(self) -> dict[str, Any]:
        """Boolean masks and data-dependent shapes are there outside of ``jit``."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> str:
        """The device of arrays that are created without naming one."""
        return "cpu"

    def devices(self) -> list[str]:
        """All devices."""
        return ["cpu"]

    def default_dtypes(self, *, device: Any = None) -> dict[str, np.dtype[Any]]:
        """Dtypes of Python numbers and of creation functions.

        Raises:
            ArgumentError: an unknown device.
        """
        check_device(device)
        return {
            "real floating": np.dtype(np.float32),
            "complex floating": np.dtype(np.complex64),
            "integral": np.dtype(np.int64),
            "indexing": np.dtype(np.int64),
        }

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, np.dtype[Any]]:
        """The standard's dtypes by name, those of some kinds only where ``kind`` is given.

        Raises:
            ArgumentError: an unknown device or kind.
        """
        check_device(device)
        if kind is None:
            kind = ("bool", "numeric")
        if isinstance(kind, tuple):
            out: dict[str, np.dtype[Any]] = {}
            for k in kind:
                out.update(self.dtypes(kind=k))
            return out
        if kind not in _STANDARD:
            raise ArgumentError(f"no kind {kind!r}; expected one of {', '.join(_STANDARD)}{at_user_line()}")
        return {d.name: d.numpy for d in _STANDARD[kind]}


def __array_namespace_info__() -> NamespaceInfo:  # noqa: N807 - the standard's name
    """What the namespace has: devices, dtypes and capabilities (array API, inspection).

    >>> __array_namespace_info__().devices()
    ['cpu']
    """
    return NamespaceInfo()
