"""A rewrite rule of your own: stated, property-tested, and used by the compiler.

    python examples/own_rule.py

The rule: ``log(softmax(x))`` is ``log_softmax(x)``, which does not lose the small probabilities to underflow. It holds
for real numbers, not bit for bit, so it runs under ``numerics="relaxed"`` only.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import cuvil
import cuvil.numpy as cnp
from cuvil import nn
from cuvil.dtypes import float32
from cuvil.rules import Case, Chooser, OperandSample, Rewriter, rule
from cuvil.testing import check_rule


def programs(c: Chooser) -> Case:
    """Programs that the test of the rule runs, before against after."""
    shape = (c.integer(0, 3), c.integer(1, 5))
    return Case(
        lambda F, x: F.op("log", softmax(F, x)),
        (OperandSample(shape, float32, "moderate"),),
    )


def softmax(F: Any, x: Any) -> Any:
    """exp(x - max(x)) / sum, as the compiler sees it after decomposition."""
    e = F.exp(F.op("subtract", x, F.max(x, (1,), keepdims=True)))
    return F.div(e, F.sum(e, (1,), keepdims=True))


@rule("log", name="log-of-softmax", kind="reassociates", example=programs)
def log_of_softmax(F: Rewriter, op: Any) -> Any:
    """log(exp(z) / s) -> z - log(s)"""
    quotient = F.producer(op.operands[0], "divide")
    exponential = F.producer(quotient.operands[0], "exp") if quotient is not None else None
    if quotient is None or exponential is None:
        return None
    return F.op("subtract", exponential.operands[0], F.op("log", quotient.operands[1]))


def main() -> int:
    fired = check_rule(log_of_softmax)
    print(f"log-of-softmax holds on generated programs; it fired {fired} times")

    def loss(x: Any) -> Any:
        return cnp.log(nn.softmax(x, axis=-1))

    x = np.array([[0, 200]], np.float32)
    with np.errstate(divide="ignore"):
        print("as written: ", cuvil.jit(loss)(x))
    print("with the rule:", cuvil.jit(loss, numerics="relaxed", rules=[log_of_softmax])(x))
    return 0


if __name__ == "__main__":
    sys.exit(main())
