"""The element types of weights files: what safetensors and PyTorch call them, as NumPy dtypes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from cuvil.support.errors import WeightsError

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_E4M3FN = np.dtype(ml_dtypes.float8_e4m3fn)
_E4M3FNUZ = np.dtype(ml_dtypes.float8_e4m3fnuz)
_E5M2 = np.dtype(ml_dtypes.float8_e5m2)
_E5M2FNUZ = np.dtype(ml_dtypes.float8_e5m2fnuz)
_E8M0FNU = np.dtype(ml_dtypes.float8_e8m0fnu)

SAFETENSORS: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "U16": np.dtype(np.uint16),
    "I16": np.dtype(np.int16),
    "U32": np.dtype(np.uint32),
    "I32": np.dtype(np.int32),
    "U64": np.dtype(np.uint64),
    "I64": np.dtype(np.int64),
    "F16": np.dtype(np.float16),
    "BF16": _BFLOAT16,
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
    "C64": np.dtype(np.complex64),
    "F8_E4M3": _E4M3FN,
    "F8_E4M3FNUZ": _E4M3FNUZ,
    "F8_E5M2": _E5M2,
    "F8_E5M2FNUZ": _E5M2FNUZ,
    "F8_E8M0": _E8M0FNU,
}
SAFETENSORS_NAMES: dict[np.dtype[Any], str] = {dtype: name for name, dtype in SAFETENSORS.items()}

TORCH_DTYPES: dict[str, np.dtype[Any]] = {
    "bool": np.dtype(np.bool_),
    "uint8": np.dtype(np.uint8),
    "int8": np.dtype(np.int8),
    "uint16": np.dtype(np.uint16),
    "int16": np.dtype(np.int16),
    "uint32": np.dtype(np.uint32),
    "int32": np.dtype(np.int32),
    "uint64": np.dtype(np.uint64),
    "int64": np.dtype(np.int64),
    "float16": np.dtype(np.float16),
    "bfloat16": _BFLOAT16,
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
    "complex64": np.dtype(np.complex64),
    "complex128": np.dtype(np.complex128),
    "float8_e4m3fn": _E4M3FN,
    "float8_e4m3fnuz": _E4M3FNUZ,
    "float8_e5m2": _E5M2,
    "float8_e5m2fnuz": _E5M2FNUZ,
    "float8_e8m0fnu": _E8M0FNU,
}

TORCH_STORAGES: dict[str, np.dtype[Any]] = {
    "BoolStorage": np.dtype(np.bool_),
    "ByteStorage": np.dtype(np.uint8),
    "CharStorage": np.dtype(np.int8),
    "ShortStorage": np.dtype(np.int16),
    "IntStorage": np.dtype(np.int32),
    "LongStorage": np.dtype(np.int64),
    "HalfStorage": np.dtype(np.float16),
    "BFloat16Storage": _BFLOAT16,
    "FloatStorage": np.dtype(np.float32),
    "DoubleStorage": np.dtype(np.float64),
    "ComplexFloatStorage": np.dtype(np.complex64),
    "ComplexDoubleStorage": np.dtype(np.complex128),
}
QUANTIZED_STORAGES = frozenset({"QInt8Storage", "QUInt8Storage", "QInt32Storage", "QUInt4x2Storage", "QUInt2x4Storage"})


def safetensors_name(dtype: np.dtype[Any], tensor: str) -> str:
    """The safetensors spelling of a dtype; byte order is ignored.

    Raises:
        WeightsError: safetensors has no such element type.

    >>> safetensors_name(np.dtype(">f4"), "w")
    'F32'
    """
    name = SAFETENSORS_NAMES.get(dtype.newbyteorder("=") if dtype.byteorder == ">" else dtype)
    if name is None:
        raise WeightsError(
            f"tensor {tensor!r} has dtype {dtype}, which safetensors cannot hold; "
            f"cast it to one of {', '.join(str(known) for known in SAFETENSORS_NAMES)}"
        )
    return name
