"""Writes environment.md, the table of environment variables, from the list that cuvil reads them by."""

from __future__ import annotations

from pathlib import Path

from cuvil.support.config import VARIABLES

PAGE = Path(__file__).with_name("environment.md")


def page() -> str:
    """The whole text of the page."""
    rows = [f"| `{variable.name}` | {variable.default} | {variable.meaning} |" for variable in VARIABLES]
    return "\n".join(
        [
            "# Environment variables",
            "",
            "Made from `cuvil/support/config.py` by `make docs-tables`. Each variable is read when it is needed, so a",
            "change holds from the next compilation on. A value that makes no sense is an error that says what does.",
            "",
            "| variable | default | meaning |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(page())
