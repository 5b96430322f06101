"""The executable: one native call, its plans and workspaces, and errors that leave it usable."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sample_programs import SAMPLES, compiled, traced

from cuvil.compiler import CompileOptions, compile_program, runtime_library
from cuvil.dtypes import float32, int64
from cuvil.frontend.dispatch import apply
from cuvil.ops.record import Aval
from cuvil.runtime.executable import Executable
from cuvil.runtime.library import RuntimeLibrary, load_library
from cuvil.support.errors import BackendError, IndexOutOfBoundsError
from cuvil.symbolic import symbol

B = symbol("B")


def _executable(fn: Any, *avals: Aval) -> Executable:
    runnable = compile_program(traced(fn, *avals), CompileOptions()).runnable
    assert isinstance(runnable, Executable)
    return runnable


@pytest.fixture(scope="module")
def chain() -> Executable:
    """Three kernels with two temporaries."""

    def fn(x: Any) -> Any:
        for _ in range(3):
            x = apply("cumulative_sum", x, axis=1, include_initial=False)
        return x

    return _executable(fn, Aval((B, 5), float32))


def test_plans_are_remembered_by_sizes(chain: Executable) -> None:
    for n in (4, 0, 4, 9):
        x = np.ones((n, 5), np.float32)
        (out,) = chain.run([x], {"B": n})
        np.testing.assert_array_equal(out, x.cumsum(1).cumsum(1).cumsum(1))
    assert chain.plan({"B": 4}) is chain.plan({"B": 4})
    assert chain.arena_bytes({"B": 0}) == 0
    assert 0 < chain.arena_bytes({"B": 100}) <= 2 * (100 * 5 * 4 + 64)
    for n in range(400):
        chain.plan({"B": n})
    assert len(chain._plans) <= 256


def test_inputs_of_any_layout(chain: Executable) -> None:
    x = np.arange(60, dtype=np.float32).reshape(6, 10)
    memory = np.zeros(6 * 5 * 4 + 1, np.uint8)
    odd = memory[1:].view(np.float32).reshape(6, 5)
    odd[...] = x[:, :5]
    for view in (x[:, ::2], x[::-1, :5], x[:, 5:], odd):
        (out,) = chain.run([view], {"B": view.shape[0]})
        np.testing.assert_allclose(out, view.cumsum(1).cumsum(1).cumsum(1), rtol=1e-6)


def test_errors_are_raised_once_and_forgotten() -> None:
    f = _executable(lambda x, i: apply("take", x, i, axis=0, mode="error"), Aval((4,), float32), Aval((B,), int64))
    x = np.arange(4, dtype=np.float32)
    for _ in range(3):
        with pytest.raises(IndexOutOfBoundsError, match="index 4 is out of bounds for an axis of size 4"):
            f.run([x, np.array([0, 4])], {"B": 2})
        (out,) = f.run([x, np.array([3, -4])], {"B": 2})
        np.testing.assert_array_equal(out, [3, 0])


def test_no_memory_for_the_arena(chain: Executable) -> None:
    huge = np.broadcast_to(np.float32(1), (1 << 45, 5))
    with pytest.raises(MemoryError):
        chain.run([huge], {"B": 1 << 45})
    (out,) = chain.run([np.ones((1, 5), np.float32)], {"B": 1})
    np.testing.assert_array_equal(out, [[1, 4, 10, 20, 35]])


def test_calls_from_many_threads_have_workspaces_of_their_own(chain: Executable) -> None:
    def call(seed: int) -> bool:
        x = np.random.default_rng(seed).integers(0, 9, (seed % 7 + 1, 5)).astype(np.float32)
        return np.array_equal(chain.run([x], {"B": len(x)})[0], x.cumsum(1).cumsum(1).cumsum(1))

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(call, range(120)))


def test_the_number_of_threads_changes_no_bit() -> None:
    program = compiled(SAMPLES["residual_layer_norm"])
    runnable: Any = program.runnable
    env = {"B": 7, "S": 33}
    arrays = SAMPLES["residual_layer_norm"].arrays(env)
    want = program.run(arrays, env)[0].tobytes()
    path = Path(runtime_library().library._name)
    for workers in (1, 2, 5):
        other = Executable(runnable.program, RuntimeLibrary(path, workers))
        assert other.run(arrays, env)[0].tobytes() == want


def test_a_library_that_cannot_be_loaded(tmp_path: Path) -> None:
    file = tmp_path / "broken.so"
    file.write_bytes(b"not a library")
    with pytest.raises(BackendError, match="cannot load the compiled code"):
        load_library(file)
