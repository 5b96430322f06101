"""The rules as a Markdown table, for the documentation."""

from __future__ import annotations

from collections.abc import Iterable

from cuvil.passes.engine import RuleSet


def format_table(rule_sets: Iterable[RuleSet]) -> str:
    """One section a rule set: its measure, and each rule's name, kind, domain and equation."""
    lines: list[str] = []
    for rules in rule_sets:
        lines += [f"### {rules.name}", "", f"Lowers {rules.measure}.", ""]
        lines += ["| rule | kind | domain | what |", "|---|---|---|---|"]
        lines += [f"| {r.name} | {r.kind} | {r.domain} | {_cell(r.doc)} |" for r in rules.rules]
        lines.append("")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("**", "\\*\\*").replace("\n", " ")
