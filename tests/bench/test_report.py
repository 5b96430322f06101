"""Tables, notes and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from bench.measure import Measurement, Outcome
from bench.report import as_json, best_peer, main_table, notes, profile_table, share_of_ceiling


def outcome() -> Outcome:
    ceilings = [{"flops_per_second": 1e11, "bytes_per_second": 1e10, "amx_flops_per_second": 0.0}] * 3
    return Outcome(
        "mlp",
        {
            "cuvil": Measurement("cuvil", "measured", "", 0.5, 1e-7, [1e-3, 2e-3, 1e-3]),
            "torch": Measurement("torch", "measured", "", 0.1, 1e-7, [3e-3, 6e-3, 3e-3]),
            "openvino-bf16": Measurement("openvino-bf16", "measured", "", 0.1, 1e-2, [1e-4, 1e-4, 1e-4]),
            "jax": Measurement("jax", "absent", "No module named 'jax'"),
        },
        "torch in float64",
        flops=50_000_000,
        traffic=1000,
        ceilings=ceilings,
        profile=[
            {"kernel": "matmul_0", "seconds": 4e-4, "flops": 20_000_000, "bytes": 1000},
            {"kernel": "add_0", "seconds": 1e-4, "flops": None, "bytes": None},
            {"kernel": "matmul_0", "seconds": 4e-4, "flops": 20_000_000, "bytes": 1000},
        ],
    )


def test_best_peer_computes_in_the_same_precision() -> None:
    best = best_peer(outcome())
    assert best is not None and best[0] == "torch" and best[1].median == pytest.approx(3.0)


def test_share_of_the_ceiling() -> None:
    assert share_of_ceiling(outcome()) == pytest.approx(0.5)


def test_nothing_is_compared_with_a_wrong_result() -> None:
    o = outcome()
    o.measurements["cuvil"] = Measurement("cuvil", "wrong", "error 1")
    assert best_peer(o) is None and share_of_ceiling(o) is None
    assert "wrong" in main_table([o], ["cuvil", "torch"])


def test_tables(golden: Callable[..., None]) -> None:
    systems = ["cuvil", "torch", "openvino-bf16", "jax"]
    text = main_table([outcome()], systems) + "\n\n" + profile_table(outcome()) + "\n\n"
    golden(text + "\n".join(notes([outcome()])) + "\n")


def test_json_holds_every_round() -> None:
    data: dict[str, Any] = json.loads(json.dumps(as_json([outcome()], {"threads": 2})))
    (entry,) = data["workloads"]
    assert data["threads"] == 2
    assert entry["measurements"]["torch"]["rounds"] == [3e-3, 6e-3, 3e-3]
    assert entry["best_peer"]["system"] == "torch"
    assert entry["measurements"]["jax"]["message"] == "No module named 'jax'"


def test_other_ways_of_compiling_have_a_column_of_their_own() -> None:
    o = outcome()
    o.measurements["cuvil-relaxed"] = Measurement("cuvil-relaxed", "measured", "", 0.5, 1e-7, [5e-4, 1e-3, 5e-4])
    head, _, row = main_table([o], ["cuvil", "cuvil-relaxed", "torch"]).splitlines()
    assert head.split("|")[-2].strip() == "best / cuvil-relaxed"
    assert row.split("|")[-2].strip() == "6.00"
    best = best_peer(o)
    assert best is not None and best[0] == "torch" and best[1].median == pytest.approx(3.0)
