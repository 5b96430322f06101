"""Spans nest, survive exceptions and add up; progress lines are rare."""

from __future__ import annotations

import logging

import pytest

from cuvil.support.timing import Span, Stopwatch, log_progress


class Clock:
    """A clock that the test turns."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_spans_nest_and_add_up() -> None:
    clock = Clock()
    watch = Stopwatch(clock)
    with watch.span("passes"):
        clock.now += 1.0
        with watch.span("fusion"):
            clock.now += 2.0
    with watch.span("emit"):
        clock.now += 1.0
    assert watch.spans == (Span("passes", 0, 0.0, 3.0), Span("fusion", 1, 1.0, 2.0), Span("emit", 0, 3.0, 1.0))
    assert watch.total() == 4.0
    assert watch.as_text().splitlines() == [
        "   3000.00 ms  75.0%  passes",
        "   2000.00 ms  50.0%    fusion",
        "   1000.00 ms  25.0%  emit",
    ]


def test_a_span_that_raises_is_kept_and_closed() -> None:
    watch = Stopwatch(Clock())
    with pytest.raises(ValueError, match="inside"), watch.span("a"):
        raise ValueError("inside")
    with watch.span("b"):
        pass
    assert [(span.name, span.depth) for span in watch.spans] == [("a", 0), ("b", 0)]


def test_progress_is_silent_for_short_work(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    progress = log_progress(logging.getLogger("cuvil.test"), every=2.0, clock=clock)
    with caplog.at_level(logging.INFO):
        for done in range(1, 6):
            clock.now += 1.0
            progress(done, 5, f"kernel_{done}")
    assert [record.getMessage() for record in caplog.records] == ["2 of 5: kernel_2", "4 of 5: kernel_4"]
