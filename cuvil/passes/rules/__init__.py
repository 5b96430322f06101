"""The rule sets of the compiler, one module a family of root ops."""

from __future__ import annotations

from cuvil.passes.engine import Rule, RuleSet
from cuvil.passes.folding import FOLDING
from cuvil.passes.rules.arithmetic import ARITHMETIC
from cuvil.passes.rules.contractions import CONTRACTIONS
from cuvil.passes.rules.layout import LAYOUT
from cuvil.passes.rules.logic import LOGIC
from cuvil.passes.rules.movement import MOVEMENT
from cuvil.passes.rules.powers import POWERS
from cuvil.passes.rules.reductions import REDUCTIONS
from cuvil.passes.rules.relaxed import RELAXED
from cuvil.passes.rules.selection import SELECTION

#: Every rule set, in the order in which the rules of one root op are tried.
RULE_SETS: tuple[RuleSet, ...] = (
    RuleSet("folding", "the number of ops that are not constants", (FOLDING,)),
    ARITHMETIC,
    POWERS,
    LOGIC,
    SELECTION,
    LAYOUT,
    MOVEMENT,
    REDUCTIONS,
    CONTRACTIONS,
    RELAXED,
)

#: Every rule by name.
RULES: dict[str, Rule] = {r.name: r for s in RULE_SETS for r in s.rules}

__all__ = ["RULES", "RULE_SETS"]
