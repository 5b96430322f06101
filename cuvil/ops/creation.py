"""Creation ops: arrays made from indices and dims alone."""

from __future__ import annotations

import numpy as np

from cuvil.dtypes import ALL, NUMERIC, DType, float32, int64
from cuvil.ops.arithmetic import convert
from cuvil.ops.body import Scalar, ScalarBuilder
from cuvil.ops.cost import per_result
from cuvil.ops.drawing import draw_shape, draw_size
from cuvil.ops.dtype_rules import DTypes, accept
from cuvil.ops.record import (
    Array,
    Chooser,
    Example,
    IndexBody,
    Opaque,
    OpRecord,
    Param,
    Params,
    Shape,
    ShapeResult,
)
from cuvil.ops.registry import register
from cuvil.ops.requirements import Requirements, format_shape
from cuvil.ops.shape_rules import Shapes
from cuvil.symbolic import Dim

# ------------------------------------------------------------------------------------------------- iota


def _iota_shape(shapes: Shapes, params: Params) -> ShapeResult:
    shape: Shape = params["shape"]
    need = Requirements("iota")
    need.axis(params["axis"], len(shape))
    for d in shape:
        need.at_least(d, 0, f"sizes of {format_shape(shape)} are not negative")
    return need.result(shape)


def _iota_dtype(dtypes: DTypes, params: Params) -> tuple[DType, ...]:
    return (accept("iota", params["dtype"], NUMERIC, "dtype"),)


def _iota_body(s: ScalarBuilder, *index: Scalar, shape: Shape, axis: int, dtype: DType) -> Scalar:
    return s.cast(index[axis], dtype)


def _iota_reference(*, shape: tuple[int, ...], axis: int, dtype: DType) -> Array:
    steps = convert(np.arange(shape[axis], dtype=np.int64), dtype)
    column = steps.reshape((shape[axis], *[1] * (len(shape) - axis - 1)))
    return np.broadcast_to(column, shape).copy()


def _iota_sample(c: Chooser) -> Example:
    shape = draw_shape(c, 1, 4)
    return Example((), {"shape": shape, "axis": c.integer(0, len(shape) - 1), "dtype": c.choice(NUMERIC)})


IOTA = register(
    OpRecord(
        name="iota",
        doc="Each element is its own index along one axis; integers wrap, halves round.",
        category="creation",
        operands=(),
        params=(
            Param("shape", "dims", "result shape, of rank 1 or more"),
            Param("axis", "int", "axis whose index is counted"),
            Param("dtype", "dtype", "dtype of the result", int64),
        ),
        shape_rule=_iota_shape,
        dtype_rule=_iota_dtype,
        reference=_iota_reference,
        body=IndexBody(_iota_body),
        sample=_iota_sample,
        cost=per_result(_iota_shape),
        onnx=("Range",),
        torch=("prims.iota", "aten.arange"),
    )
)

# -------------------------------------------------------------------------------------------------- eye


def _eye_shape(shapes: Shapes, params: Params) -> ShapeResult:
    rows: Dim = params["rows"]
    cols: Dim = params["cols"]
    need = Requirements("eye")
    need.at_least(rows, 0, "the number of rows is not negative")
    need.at_least(cols, 0, "the number of columns is not negative")
    return need.result((rows, cols))


def _eye_dtype(dtypes: DTypes, params: Params) -> tuple[DType, ...]:
    return (accept("eye", params["dtype"], ALL, "dtype"),)


def _eye_body(s: ScalarBuilder, row: Scalar, col: Scalar, *, rows: Dim, cols: Dim, k: int, dtype: DType) -> Scalar:
    on_diagonal = s.instr("eq", col, s.add(row, s.const(k, int64)))
    return s.cast(on_diagonal, dtype)


def _eye_reference(*, rows: int, cols: int, k: int, dtype: DType) -> Array:
    return np.eye(rows, cols, k, dtype=dtype.numpy)


def _eye_sample(c: Chooser) -> Example:
    params = {"rows": draw_size(c), "cols": draw_size(c), "k": c.integer(-3, 3), "dtype": c.choice(ALL)}
    return Example((), params)


EYE = register(
    OpRecord(
        name="eye",
        doc="A matrix of 1 on diagonal k and 0 elsewhere; k counts upwards from the main diagonal.",
        category="creation",
        operands=(),
        params=(
            Param("rows", "dim", "number of rows"),
            Param("cols", "dim", "number of columns"),
            Param("k", "int", "diagonal", 0),
            Param("dtype", "dtype", "dtype of the result", float32),
        ),
        shape_rule=_eye_shape,
        dtype_rule=_eye_dtype,
        reference=_eye_reference,
        body=IndexBody(_eye_body),
        sample=_eye_sample,
        cost=per_result(_eye_shape),
        onnx=("EyeLike",),
        torch=("aten.eye",),
    )
)

# -------------------------------------------------------------------------------------------- dim_value


def _dim_value_shape(shapes: Shapes, params: Params) -> ShapeResult:
    return ShapeResult(((),))


def _dim_value_dtype(dtypes: DTypes, params: Params) -> tuple[DType, ...]:
    return (int64,)


def _dim_value_reference(*, dim: int) -> Array:
    return np.asarray(dim, np.int64)


def _dim_value_sample(c: Chooser) -> Example:
    return Example((), {"dim": c.integer(0, 1000)})


DIM_VALUE = register(
    OpRecord(
        name="dim_value",
        doc="The value of a dimension expression as a rank-0 int64 array.",
        category="creation",
        operands=(),
        params=(Param("dim", "dim", "the expression"),),
        shape_rule=_dim_value_shape,
        dtype_rule=_dim_value_dtype,
        reference=_dim_value_reference,
        body=Opaque("dim_value"),
        sample=_dim_value_sample,
        cost=per_result(_dim_value_shape),
        onnx=("Shape",),
        torch=("aten.sym_size",),
    )
)
