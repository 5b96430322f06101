"""Every record runs for many examples at once as it does for each of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cuvil.ops  # noqa: F401  # fills the registry
from cuvil.ops.batching import composed, conv_by_windows
from cuvil.ops.builder import NumpyBuilder
from cuvil.ops.record import OpRecord
from cuvil.ops.registry import get, records
from cuvil.ops.vectorisation import Batched, Examples, vectorisable
from cuvil.testing.arrays import RandomChooser, draw_array
from tests.ops.record_checks import as_tuple, assert_close

F = NumpyBuilder()
RECORDS = [r for r in records() if r.operands]


def test_every_record_has_a_rule() -> None:
    assert [r.name for r in records() if not vectorisable(r)] == []


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: r.name)
def test_examples_together_are_examples_apart(record: OpRecord) -> None:
    for seed in range(24):
        example = record.sample(RandomChooser(seed))
        rng = np.random.default_rng(seed)
        count = seed % 4
        own = [o is not None and rng.random() < 0.6 for o in example.operands]
        if not any(own):
            own = [o is not None for o in example.operands]
        # One more than the examples, so that there is a shape to compare with where there is none.
        arrays = [[None if o is None else draw_array(rng, o) for _ in range(count + 1)] for o in example.operands]
        params = record.fill_params(example.params)
        given = [
            None if a[0] is None else Batched(np.stack(a)[:count], True) if o else Batched(a[0])
            for a, o in zip(arrays, own, strict=True)
        ]
        with np.errstate(all="ignore"):
            outputs = [_with_axis(o, count) for o in Examples(F, count).emit(record.name, given, params)]
            wanted = [
                as_tuple(record.reference(*(a[k] if o else a[0] for a, o in zip(arrays, own, strict=True)), **params))
                for k in range(count + 1)
            ]
        for k, out in enumerate(outputs):
            assert out.shape == (count, *wanted[0][k].shape) and out.dtype == wanted[0][k].dtype
            for got, want in zip(out, wanted, strict=False):
                assert_close(np.asarray(got), want[k], record)


def _with_axis(value: Batched, count: int) -> Any:
    return value.value if value.own else np.broadcast_to(value.value, (count, *value.value.shape))


def test_convolutions_by_windows_are_convolutions() -> None:
    """What runs where the number of examples is a symbol and each has its own weight."""
    record = get("conv")
    for seed in range(40):
        example = record.sample(RandomChooser(seed))
        rng = np.random.default_rng(seed)
        x, w, _ = (None if o is None else draw_array(rng, o) for o in example.operands)
        params = record.fill_params(example.params)
        assert_close(np.asarray(conv_by_windows(F, x, w, **params)), record.reference(x, w, None, **params), record)
        weights = np.stack([w, w + 1])
        (out,) = composed(F, [x, weights], [False, True], 2, conv_by_windows, params)
        for got, each in zip(out, weights, strict=True):
            assert_close(np.asarray(got), record.reference(x, each, None, **params), record)


def test_what_no_example_has_of_its_own_is_computed_once() -> None:
    (out,) = Examples(F, 5).emit("exp", [Batched(np.zeros(3))], {})
    assert not out.own and out.value.shape == (3,)
