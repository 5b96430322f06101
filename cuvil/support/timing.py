"""Where compile time goes: nested named spans, and progress lines for work that takes long."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

Progress = Callable[[int, int, str], None]
"""Called as `progress(done, total, what)` after each finished piece of work, from any thread."""


@dataclass(frozen=True)
class Span:
    """One timed stretch: its name, its depth of nesting, its start and length in seconds."""

    name: str
    depth: int
    start: float
    seconds: float


class Stopwatch:
    """Records spans of one thread's work, in the order in which they began.

    >>> watch = Stopwatch()
    >>> with watch.span("passes"):
    ...     with watch.span("fusion"):
    ...         pass
    >>> [(span.name, span.depth) for span in watch.spans]
    [('passes', 0), ('fusion', 1)]
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._origin = clock()
        self._spans: list[Span | None] = []
        self._depth = 0

    @contextmanager
    def span(self, name: str) -> Generator[None]:
        """Times the body of the `with` statement, one that raises included."""
        place, depth, start = len(self._spans), self._depth, self._clock()
        self._spans.append(None)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            self._spans[place] = Span(name, depth, start - self._origin, self._clock() - start)

    @property
    def spans(self) -> tuple[Span, ...]:
        """The finished spans."""
        return tuple(span for span in self._spans if span is not None)

    def total(self) -> float:
        """Seconds within spans of the outermost level."""
        return sum(span.seconds for span in self.spans if span.depth == 0)

    def as_text(self) -> str:
        """One line a span: milliseconds, share of the total, and the indented name."""
        total = self.total() or 1.0
        return "\n".join(
            f"{span.seconds * 1e3:10.2f} ms {span.seconds / total:6.1%}  {'  ' * span.depth}{span.name}"
            for span in self.spans
        )


def log_progress(
    logger: logging.Logger, *, every: float = 2.0, clock: Callable[[], float] = time.monotonic
) -> Progress:
    """A `Progress` that logs at level INFO at most once in `every` seconds, so short work stays silent."""
    last = clock()

    def report(done: int, total: int, what: str) -> None:
        nonlocal last
        now = clock()
        if now - last >= every:
            last = now
            logger.info("%d of %d: %s", done, total, what)

    return report
