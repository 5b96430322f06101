"""Settings that all tests share: hypothesis profiles, the compile cache's folder, and golden texts."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# "ci" is the same on each run, so that a red build can be repeated; "nightly" looks for what it has missed.
settings.register_profile("ci", max_examples=50, deadline=None, derandomize=True, database=None)
settings.register_profile(
    "nightly",
    max_examples=2000,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile(os.environ.get("CUVIL_TEST_PROFILE") or "ci")

# Kept between runs, since its entries are addressed by content: the second run of the tests compiles next to nothing.
os.environ.setdefault("CUVIL_CACHE_DIR", str(Path(__file__).parents[1] / "build" / "test-cache"))

Golden = Callable[..., None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden texts instead of comparing")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """`golden(text, name="")` compares a text with golden/<test module>/<test>[.name].txt beside the test's file."""
    module = Path(request.path)
    test = re.sub(r"[^0-9A-Za-z_.-]+", "_", request.node.name).strip("_")
    update = bool(request.config.getoption("--update-golden"))

    def compare(text: str, name: str = "") -> None:
        path = module.parent / "golden" / module.stem / (f"{test}.{name}.txt" if name else f"{test}.txt")
        text = text if text.endswith("\n") else text + "\n"
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            return
        if not path.exists():
            pytest.fail(f"{path} does not exist; run this test with --update-golden, read the file and commit it")
        lines = difflib.unified_diff(
            path.read_text().splitlines(), text.splitlines(), "expected", "found", lineterm="", n=5
        )
        difference = "\n".join(lines)
        if difference:
            pytest.fail(f"{path} differs; --update-golden accepts what was found:\n{difference}", pytrace=False)

    return compare
