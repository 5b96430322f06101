"""A NumPy-like namespace that runs at once on arrays and is traced under ``cuvil.jit``.

It follows the Python array API standard 2024.12, with NumPy's names beside it. Floats default to float32, integers to
int64; arrays keep their dtype.

>>> import numpy as np
>>> import cuvil.numpy as cnp
>>> cnp.sum(cnp.exp(np.zeros((2, 3), np.float32)), axis=-1).tolist()
[3.0, 3.0]
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as _np

from cuvil.frontend.missing import missing_name as _missing_name
from cuvil.frontend.namespace import fourier as fft
from cuvil.frontend.namespace import functions as _functions
from cuvil.frontend.namespace import linear_algebra as linalg
from cuvil.frontend.namespace.functions import *  # noqa: F403 - the list is functions.__all__
from cuvil.frontend.namespace.protocol import set_namespace as _set_namespace

pi: float = _np.pi
e: float = _np.e
inf: float = _np.inf
nan: float = _np.nan
newaxis = None

float16 = _np.float16
float32 = _np.float32
float64 = _np.float64
bfloat16 = ml_dtypes.bfloat16
complex64 = _np.complex64
complex128 = _np.complex128
int8 = _np.int8
int16 = _np.int16
int32 = _np.int32
int64 = _np.int64
uint8 = _np.uint8
uint16 = _np.uint16
uint32 = _np.uint32
uint64 = _np.uint64
bool_ = bool = _np.bool_  # noqa: A001 - the standard's name
ndarray = _np.ndarray
dtype = _np.dtype

__array_api_version__ = "2024.12"

__all__ = [
    "bfloat16",
    "bool",
    "bool_",
    "complex64",
    "complex128",
    "dtype",
    "e",
    "fft",
    "float16",
    "float32",
    "float64",
    "inf",
    "int8",
    "int16",
    "int32",
    "int64",
    "linalg",
    "nan",
    "ndarray",
    "newaxis",
    "pi",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
]  # fmt: skip
__all__ += _functions.__all__

_set_namespace(sys.modules[__name__])

if not TYPE_CHECKING:

    def __getattr__(name):
        return _missing_name("cuvil.numpy", name, __all__, _np)
