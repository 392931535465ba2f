"""A second scorer, written from docs/cost-model.md alone.

It shares with the product the records of ``nest.ir`` and nothing else: their
fields are read, none of their methods is used.
"""

from __future__ import annotations

from nest.ir import Plan, Problem
from tests.independent import artifact, piper, standard
from tests.independent.record import Record
from tests.independent.rules import IllegalPlan, broken_rules

_PRESETS = {
    "standard": standard.score,
    "nest-artifact": artifact.score,
    "piper": piper.score,
}


def score(problem: Problem, plan: Plan) -> Record:
    """Return the score of a plan.

    Raises
    ------
    IllegalPlan
        If it breaks a rule.
    """
    broken = broken_rules(problem, plan)
    if broken:
        raise IllegalPlan(*broken)
    return _PRESETS[problem.preset](problem, plan)
