"""Rewrite rules of your own: write one with :func:`rule`, test it with ``cuvil.testing.check_rule``, pass it to jit.

See ``docs/design/rules.md`` and ``examples/own_rule.py``.
"""

from cuvil.ops.record import Chooser, OperandSample
from cuvil.passes.engine import Case, Rewriter, Rule, rule

__all__ = ["Case", "Chooser", "OperandSample", "Rewriter", "Rule", "rule"]
