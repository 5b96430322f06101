"""einsum: the parser of its equations, and its decomposition into matmul, multiply and sum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from string import ascii_letters
from typing import Generic, TypeAlias

import numpy as np

from cuvil.ops import batching
from cuvil.ops.builder import Builder, V
from cuvil.ops.contraction import CONTRACTION_TOLERANCE, wide
from cuvil.ops.cost import Cost, traffic
from cuvil.ops.drawing import NUMERIC_DTYPES, draw_dtype, draw_size
from cuvil.ops.operand_dtypes import compute_dtype, one_numeric
from cuvil.ops.record import (
    Array,
    Chooser,
    Decomposition,
    Example,
    OperandSample,
    OpRecord,
    Param,
    Params,
    Shape,
    ShapeResult,
)
from cuvil.ops.registry import register
from cuvil.ops.requirements import Requirements, format_shape, present
from cuvil.support.errors import ArgumentError, ShapeError
from cuvil.symbolic import Dim, product

#: A letter, or a negative number for an ellipsis axis counted from the right.
Label: TypeAlias = str | int
Labels: TypeAlias = tuple[Label, ...]


@dataclass(frozen=True)
class Equation:
    """Labels of each operand's axes and of the result's."""

    operands: tuple[Labels, ...]
    result: Labels


@lru_cache(maxsize=1024)
def parse_equation(equation: str, ranks: tuple[int, ...]) -> Equation:
    """The labels of an einsum equation for operands of these ranks.

    Without ``->`` the result has the ellipsis axes, then the letters that stand once, in alphabetical order.

    Raises:
        ArgumentError: the equation is malformed or does not fit the number of operands.
        ShapeError: an operand's rank does not fit its labels.

    >>> parse_equation("...ij,jk", (3, 2)).result
    (-1, 'i', 'k')
    """
    text = equation.replace(" ", "")
    inputs, arrow, output = text.partition("->")
    terms = inputs.split(",")
    if len(terms) != len(ranks):
        raise ArgumentError(f"einsum: {equation!r} describes {len(terms)} operands, got {len(ranks)}")
    operands: list[Labels] = []
    for term, rank in zip(terms, ranks, strict=True):
        letters = len(_letters(term, equation))
        if rank < letters or ("..." not in term and rank != letters):
            raise ShapeError(f"einsum: the term {term!r} of {equation!r} does not fit an operand of rank {rank}")
        operands.append(_expand(term, rank - letters))
    ellipsis = max((-x for labels in operands for x in labels if isinstance(x, int)), default=0)
    used = Counter(x for labels in operands for x in labels)
    if not arrow:
        once = sorted(x for x, n in used.items() if isinstance(x, str) and n == 1)
        return Equation(tuple(operands), (*range(-ellipsis, 0), *once))
    wanted = _letters(output, equation)
    for letter in wanted:
        if letter not in used:
            raise ArgumentError(f"einsum: the result label {letter!r} of {equation!r} is in no operand")
    if len(set(wanted)) != len(wanted):
        raise ArgumentError(f"einsum: a label stands twice in the result of {equation!r}")
    if ellipsis and "..." not in output:
        raise ArgumentError(f"einsum: the result of {equation!r} lacks the '...' that its operands have")
    return Equation(tuple(operands), _expand(output, ellipsis))


def _letters(term: str, equation: str) -> str:
    letters = term.replace("...", "", 1)
    if not all(x.isascii() and x.isalpha() for x in letters):
        raise ArgumentError(f"einsum: {term!r} in {equation!r} has something else than letters and one '...'")
    return letters


def _expand(term: str, ellipsis: int) -> Labels:
    before, dots, after = term.partition("...")
    return (*before, *range(-ellipsis, 0), *after) if dots else tuple(before)


def _parse_for(shapes: tuple[Shape | None, ...], params: Params) -> Equation:
    return parse_equation(params["equation"], tuple(len(present(s)) for s in shapes))


def _label_dims(need: Requirements, equation: Equation, shapes: Sequence[Shape]) -> dict[Label, Dim]:
    dims: dict[Label, Dim] = {}
    for labels, shape in zip(equation.operands, shapes, strict=True):
        for label, d in zip(labels, shape, strict=True):
            known = dims.get(label)
            if known is None or (isinstance(label, int) and known == 1):
                dims[label] = d
            elif not (isinstance(label, int) and d == 1):
                what = f"label {label!r}" if isinstance(label, str) else "an ellipsis axis"
                need.equal(known, d, f"{what} has one size in {', '.join(format_shape(s) for s in shapes)}")
                # A static size wins, as it does in the broadcast of the decomposition's steps.
                dims[label] = d if isinstance(d, int) else known
    return dims


def _einsum_shape(shapes: tuple[Shape | None, ...], params: Params) -> ShapeResult:
    equation = _parse_for(shapes, params)
    need = Requirements("einsum")
    dims = _label_dims(need, equation, [present(s) for s in shapes])
    return need.result(tuple(dims[x] for x in equation.result))


# --------------------------------------------------------------------------------------- decomposition


@dataclass(frozen=True)
class _Term(Generic[V]):
    """A value with the labels of its axes, each once."""

    value: V
    labels: Labels


def _arrange(F: Builder[V], term: _Term[V], labels: Sequence[Label]) -> V:
    return F.transpose(term.value, tuple(term.labels.index(x) for x in labels))


def _diagonals(F: Builder[V], x: V, labels: Labels) -> _Term[V]:
    """Axes that share a label become one: their diagonal."""
    term = _Term(x, labels)
    for label in labels:
        axes = [a for a, y in enumerate(term.labels) if y == label]
        if len(axes) > 1:
            rest = tuple(a for a in range(len(term.labels)) if a not in axes)
            position = F.iota((F.shape(term.value)[axes[0]],), 0)
            front = F.transpose(term.value, (*axes, *rest))
            value = F.op("gather", front, *([position] * len(axes)), mode="clip")
            term = _Term(value, (label, *(term.labels[a] for a in rest)))
    return term


def _sum_away(F: Builder[V], term: _Term[V], kept: set[Label]) -> _Term[V]:
    axes = tuple(a for a, x in enumerate(term.labels) if x not in kept)
    if not axes:
        return term
    value = F.cast(F.sum(term.value, axes), F.dtype(term.value))
    return _Term(value, tuple(x for x in term.labels if x in kept))


def _contract(F: Builder[V], a: _Term[V], b: _Term[V], kept: set[Label]) -> _Term[V]:
    """Product of two terms, summed over the labels that nothing later needs."""
    a = _sum_away(F, a, kept | set(b.labels))
    b = _sum_away(F, b, kept | set(a.labels))
    batch = tuple(x for x in a.labels if x in b.labels and x in kept)
    summed = tuple(x for x in a.labels if x in b.labels and x not in kept)
    only_a = tuple(x for x in a.labels if x not in b.labels)
    only_b = tuple(x for x in b.labels if x not in a.labels)
    left, right = _arrange(F, a, batch + only_a + summed), _arrange(F, b, batch + summed + only_b)
    shape_a = dict(zip(batch + only_a + summed, F.shape(left), strict=True))
    shape_b = dict(zip(batch + summed + only_b, F.shape(right), strict=True))
    batch_a, batch_b = tuple(shape_a[x] for x in batch), tuple(shape_b[x] for x in batch)
    free_a, free_b = tuple(shape_a[x] for x in only_a), tuple(shape_b[x] for x in only_b)
    labels = batch + only_a + only_b
    if not summed:
        # An outer or element-wise product: no sum, so no matmul.
        left = F.reshape(left, (*batch_a, *free_a, *(1 for _ in free_b)))
        right = F.reshape(right, (*batch_b, *(1 for _ in free_a), *free_b))
        return _Term(F.mul(left, right), labels)
    if not only_a and not only_b:
        # A batch of dot products fuses as multiply and sum; a 1 by 1 matmul would not.
        dt = F.dtype(left)
        compute = compute_dtype(dt)
        axes = tuple(range(len(batch), len(batch) + len(summed)))
        return _Term(F.cast(F.sum(F.mul(F.cast(left, compute), F.cast(right, compute)), axes), dt), labels)
    k_a, k_b = product(shape_a[x] for x in summed), product(shape_b[x] for x in summed)
    left = F.reshape(left, (*batch_a, product(free_a), k_a))
    right = F.reshape(right, (*batch_b, k_b, product(free_b)))
    out = F.matmul(left, right)
    return _Term(F.reshape(out, (*F.shape(out)[: len(batch)], *free_a, *free_b)), labels)


def _einsum_body(F: Builder[V], *xs: V, equation: str) -> V:
    parsed = parse_equation(equation, tuple(len(F.shape(x)) for x in xs))
    dt = F.dtype(xs[0])
    shared = Counter(x for labels in parsed.operands for x in set(labels))
    private = any(n == 1 and x not in parsed.result for x, n in shared.items())
    if len(xs) > 2 or (len(xs) == 2 and private):
        # More than one product or sum: halves stay in float32 between them. One matmul keeps its halves, which
        # accumulate in float32 anyway and have the faster kernels.
        xs = tuple(F.cast(x, compute_dtype(dt)) for x in xs)
    terms = [_diagonals(F, x, labels) for x, labels in zip(xs, parsed.operands, strict=True)]
    done = terms[0]
    for at in range(1, len(terms)):
        later = {x for term in terms[at + 1 :] for x in term.labels}
        done = _contract(F, done, terms[at], later | set(parsed.result))
    done = _sum_away(F, done, set(parsed.result))
    return F.cast(_arrange(F, done, parsed.result), dt)


def _einsum_batched(
    F: Builder[V], operands: Sequence[V], own: Sequence[bool], size: Dim, *, equation: str
) -> Sequence[V]:
    """One label more, in front, for the examples: a letter that the equation does not have."""
    text = equation.replace(" ", "")
    free = next((x for x in ascii_letters if x not in text), None)
    if free is None:
        return batching.composed(F, operands, own, size, _einsum_body, {"equation": equation})
    ranks = tuple(len(F.shape(x)) - o for x, o in zip(operands, own, strict=True))
    result = parse_equation(equation, ranks).result
    dots = "..." if any(isinstance(x, int) for x in result) or "..." in text else ""
    inputs, arrow, output = text.partition("->")
    if not arrow:
        output = dots + "".join(x for x in result if isinstance(x, str))
    terms = (free + term if o else term for term, o in zip(inputs.split(","), own, strict=True))
    return [F.op("einsum", *operands, equation=f"{','.join(terms)}->{free}{output}")]


def _einsum_reference(*xs: Array, equation: str) -> Array:
    # NumPy's einsum sums in the operands' dtype, so ints wrap.
    return np.asarray(np.einsum(equation, *(wide(x) for x in xs))).astype(xs[0].dtype)


def _einsum_cost(shapes: tuple[Shape | None, ...], params: Params) -> Cost:
    # Contraction goes left to right: each step costs one multiply and add per combination of its labels.
    equation = _parse_for(shapes, params)
    dims = _label_dims(Requirements("einsum"), equation, [present(s) for s in shapes])
    flops: Dim = 0
    done = set(equation.operands[0])
    for at in range(1, len(equation.operands)):
        step = done | set(equation.operands[at])
        flops = flops + product(dims[x] for x in sorted(step, key=str)) * 2
        later = {x for labels in equation.operands[at + 1 :] for x in labels}
        done = {x for x in step if x in later or x in equation.result}
    return flops, traffic(*shapes, tuple(dims[x] for x in equation.result))


_SAMPLES = (
    "ij,jk->ik", "ij,jk", "bij,bjk->bik", "i,i->", "i,j->ij", "ij->ji", "ij->i", "ij->", "ii->i", "ii", "iij->ji",
    "bhqd,bhkd->bhqk", "bi,bi->b", "bi,bj->bij", "ab,bc,cd->ad", "ab,ac,a->bc", "...ij,...jk->...ik", "...i,i->...",
    "i...,i...->...", "ab,cd->ac", "abc,cb->a", "ij,ij->ij", "abc->cba", "...ab->...ba",
)  # fmt: skip


def _einsum_sample(c: Chooser) -> Example:
    equation: str = c.choice(_SAMPLES)
    sizes = {letter: draw_size(c) for letter in sorted(set(equation)) if letter.isalpha()}
    batch = tuple(draw_size(c) for _ in range(c.integer(0, 2)))
    dt = draw_dtype(c, NUMERIC_DTYPES)
    operands: list[OperandSample] = []
    for term in equation.split("->")[0].split(","):
        before, dots, after = term.partition("...")
        middle = tuple(d if c.boolean() else 1 for d in batch) if dots else ()
        shape = (*(sizes[x] for x in before), *middle, *(sizes[x] for x in after))
        operands.append(OperandSample(shape, dt, "unit" if len(sizes) > 3 else "moderate"))
    return Example(tuple(operands), {"equation": equation})


EINSUM = register(
    OpRecord(
        name="einsum",
        doc="Sum of products by Einstein's convention; '...' broadcasts, repeated labels take diagonals.",
        category="contraction",
        operands=("*xs",),
        params=(Param("equation", "str", "labels of the operands' axes and, after '->', of the result's"),),
        shape_rule=_einsum_shape,
        dtype_rule=one_numeric,
        reference=_einsum_reference,
        body=Decomposition(_einsum_body),
        sample=_einsum_sample,
        batch_rule=_einsum_batched,
        accumulate=compute_dtype,
        cost=_einsum_cost,
        tolerance=CONTRACTION_TOLERANCE,
        onnx=("Einsum",),
        torch=("aten.einsum",),
    )
)
