"""The op record: everything about an op, in one frozen place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from cuvil.dtypes import DType
from cuvil.ops.body import Scalar
from cuvil.support.errors import ArgumentError
from cuvil.symbolic import Dim

Shape: TypeAlias = tuple[Dim, ...]
Array: TypeAlias = NDArray[Any]
#: A static parameter's value: None, bool, int, float, str, DType, Dim or a (nested) tuple of those.
ParamValue: TypeAlias = Any
Params: TypeAlias = Mapping[str, ParamValue]

ParamKind = Literal["bool", "int", "float", "str", "dtype", "dim", "ints", "dims", "pairs", "scalar", "any"]


@dataclass(frozen=True)
class Param:
    """A static keyword of an op: its name, kind and one line of meaning.

    ``ints`` is a tuple of Python ints, ``dims`` a tuple of Dims, ``pairs`` a tuple of (Dim, Dim),
    ``scalar`` a Python bool, int or float.
    """

    name: str
    kind: ParamKind
    doc: str
    default: ParamValue = None


@dataclass(frozen=True)
class Aval:
    """Abstract value: what is known of an array without its elements."""

    shape: Shape
    dtype: DType

    @property
    def rank(self) -> int:
        return len(self.shape)


@dataclass(frozen=True)
class Obligation:
    """A relation between dims that an op needs: ``left == right`` (or ``<=``), and why, in the user's words."""

    relation: Literal["==", "!=", "<=", ">="]
    left: Dim
    right: Dim
    reason: str


@dataclass(frozen=True)
class ShapeResult:
    """Result shapes of an op, with what must hold for them to be right."""

    shapes: tuple[Shape, ...]
    obligations: tuple[Obligation, ...] = ()


# ---------------------------------------------------------------------------------------------- bodies


@dataclass(frozen=True)
class ScalarBody:
    """Element-wise: operands broadcast together as NumPy does; ``build(s, *scalars, **params)`` is the value.

    The operands share one dtype unless the record's dtype rule says otherwise (``where``, ``cast``).
    """

    build: Callable[..., Scalar]


@dataclass(frozen=True)
class IndexBody:
    """A generator: each element is a scalar function of its own int64 index scalars (iota, eye)."""

    build: Callable[..., Scalar]  # build(s, *index_scalars, **params)


@dataclass(frozen=True)
class ReduceBody:
    """Reduction of one operand over ``params["axes"]`` (sorted non-negative ints), ``params["keepdims"]``.

    ``combine`` is a scalar instruction that is associative and commutative; ``identity(dtype)`` its identity in
    the accumulation dtype, or None where nothing can be reduced (max of an empty axis is an error).
    The operand is cast to ``record.accumulate(dtype)`` first and the total to the result dtype.
    """

    combine: Literal["add", "mul", "min", "max", "and", "or"]
    identity: Callable[[DType], bool | int | float]
    allow_empty: bool = True


@dataclass(frozen=True)
class Condition:
    """``0 <= index < size``-like guard of a movement piece: ``low <= expr < high``."""

    expr: Dim
    low: Dim
    high: Dim


@dataclass(frozen=True)
class Piece:
    """Where an output element comes from: operand number, its index, and when this piece applies."""

    operand: int
    index: tuple[Dim, ...]
    when: tuple[Condition, ...] = ()


@dataclass(frozen=True)
class IndexMap:
    """Movement: ``build(out_index, in_shapes, out_shape, **params)`` lists pieces; the first that applies wins.

    ``out_index`` are symbols bounded by the output's dims. Where no piece applies the element is
    ``params[fill]`` when ``fill`` names a parameter.
    """

    build: Callable[..., tuple[Piece, ...]]
    fill: str | None = None


@dataclass(frozen=True)
class Decomposition:
    """Into other ops: ``build(F, *operands, **params)`` with F a :class:`~cuvil.ops.builder.Builder`."""

    build: Callable[..., Any]


@dataclass(frozen=True)
class Opaque:
    """A per-backend kernel, by name (gather, sort, matmul, convolution, attention, ...).

    ``decompose`` may stand beside it as an alternative in other ops (attention, lstm unrolled is not one).
    """

    kernel: str
    decompose: Callable[..., Any] | None = None


Body: TypeAlias = ScalarBody | IndexBody | ReduceBody | IndexMap | Decomposition | Opaque


# --------------------------------------------------------------------------------------------- samples


class Chooser(Protocol):
    """Makes the choices of a sample: hypothesis in tests, a random generator elsewhere."""

    def integer(self, low: int, high: int) -> int: ...
    def boolean(self) -> bool: ...
    def choice(self, options: Sequence[Any]) -> Any: ...


Domain = Literal["any", "finite", "moderate", "positive", "unit", "nonzero", "index"]


@dataclass(frozen=True)
class OperandSample:
    """A concrete operand to draw: shape, dtype and the domain of its values.

    ``any`` includes NaN, infinities, signed zeros and extremes; ``moderate`` is within about [-8, 8];
    ``unit`` is [-1, 1]; ``index`` is integers in ``[-size, size)`` of ``size``.
    """

    shape: tuple[int, ...]
    dtype: DType
    domain: Domain = "any"
    size: int = 0


@dataclass(frozen=True)
class Example:
    """One well-typed use of an op."""

    operands: tuple[OperandSample | None, ...]
    params: dict[str, ParamValue] = field(default_factory=dict[str, ParamValue])


# ---------------------------------------------------------------------------------------------- record

Category = Literal[
    "elementwise",
    "creation",
    "reduction",
    "contraction",
    "movement",
    "indexing",
    "composite",
    "sorting",
    "control",
    "complex",
    "linalg",
    "fourier",
]


@dataclass(frozen=True)
class Tolerance:
    """Largest error against the reference: relative and absolute, in units of the result dtype's epsilon."""

    ulp: float = 0.0
    absolute: float = 0.0


T = TypeVar("T")


class Pair(NamedTuple, Generic[T]):
    """The parts of a complex value."""

    re: T
    im: T


@dataclass(frozen=True)
class ComplexRule:
    """How an op takes complex operands.

    ``parts(F, *operands, **params)`` computes it from real and imaginary parts (a :class:`Pair`
    for each complex operand) and returns a Pair or a real value; None: by the NumPy reference, in a host call.
    """

    parts: Callable[..., Any] | None


@dataclass(frozen=True)
class OpRecord:
    """One op. The IR class, ``cnp`` function, interpreter row, tests and docs derive from it.

    ``operands`` are names; a last ``"*xs"`` takes one or more, a trailing ``"?"`` marks an optional operand
    (absent ones are None in rules and references, and are dropped at the end only).
    ``shape_rule(shapes, dtypes-free params) -> ShapeResult``; ``dtype_rule(dtypes, params) -> result dtypes``;
    ``reference(*arrays, **params)`` takes and returns NumPy arrays (a tuple where ``results`` > 1), with Dims
    in params already replaced by ints.
    """

    name: str
    doc: str
    category: Category
    operands: tuple[str, ...]
    shape_rule: Callable[[tuple[Shape | None, ...], Params], ShapeResult]
    dtype_rule: Callable[[tuple[DType | None, ...], Params], tuple[DType, ...]]
    reference: Callable[..., Any]
    body: Body
    sample: Callable[[Chooser], Example]
    params: tuple[Param, ...] = ()
    results: tuple[str, ...] = ("result",)
    accumulate: Callable[[DType], DType] = lambda d: d
    traits: frozenset[str] = frozenset({"pure"})  # commutative, associative, idempotent, involution
    cost: Callable[[tuple[Shape | None, ...], Params], tuple[Dim, Dim]] | None = None  # (flops, bytes)
    tolerance: Tolerance = Tolerance()
    onnx: tuple[str, ...] = ()
    torch: tuple[str, ...] = ()
    #: How the op takes complex operands; None where it does not.
    complex_rule: ComplexRule | None = None
    #: Tangents of the results, ``jvp(F, operands, results, tangents, **params)``; see :mod:`cuvil.ops.differentiation`.
    #: Derived from a scalar body or a decomposition where it is None.
    jvp: Callable[..., Sequence[Any]] | None = None
    #: Cotangents of the operands that the op is linear in, ``transpose(F, cotangent, operands, **params)``.
    transpose: Callable[..., Sequence[Any]] | None = None
    #: Why an op on floats has no derivative; what a user reads.
    no_gradient: str = ""
    #: The op on operands with a leading axis of examples, ``batch_rule(F, operands, batched, size, **params)``; see
    #: :mod:`cuvil.ops.vectorisation`. Derived from a scalar body or a decomposition where it is None.
    batch_rule: Callable[..., Sequence[Any]] | None = None

    @property
    def variadic(self) -> bool:
        """Whether the last operand takes any number of values."""
        return bool(self.operands) and self.operands[-1].startswith("*")

    @property
    def min_operands(self) -> int:
        """Operands that must be given."""
        return sum(1 for o in self.operands if not o.endswith("?") and not o.startswith("*"))

    def infer(self, avals: Sequence[Aval | None], params: Params) -> tuple[tuple[Aval, ...], tuple[Obligation, ...]]:
        """Result avals and obligations.

        Raises:
            ShapeError, DTypeError, AxisError, ArgumentError: the op does not take these operands.
        """
        shaped = self.shape_rule(tuple(a.shape if a else None for a in avals), params)
        typed = self.dtype_rule(tuple(a.dtype if a else None for a in avals), params)
        return tuple(Aval(s, d) for s, d in zip(shaped.shapes, typed, strict=True)), shaped.obligations

    def fill_params(self, given: Params) -> dict[str, ParamValue]:
        """All parameters in the record's order, defaults filled in.

        Raises:
            ArgumentError: an unknown name.
        """
        from_record = {p.name: p.default for p in self.params}
        unknown = [k for k in given if k not in from_record]
        if unknown:
            from_names = ", ".join(from_record) or "none"
            raise ArgumentError(f"{self.name} has no parameter {', '.join(unknown)}; it has: {from_names}")
        from_record.update(given)
        return from_record


def as_array(value: Any, dtype: DType) -> Array:
    """A NumPy array of exactly this dtype (values already are of it or convert without loss of meaning)."""
    return np.asarray(value, dtype=dtype.numpy)
