"""Plans that Phaze published, on the inputs of NEST's artifact.

The artifact lists, per instance, a plan of Phaze ``(p, d, t)``. Those for
BERT and GPT-3 are the optima of Phaze's objective on the instances' own
costs. Those for Llama 2 are not (``p d`` leaves devices idle that the optimum
uses): they come from other costs, so they are not tested.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from baselines.phaze import PhazeSolver
from nest.audits.nest_artifact.importer import import_nest_artifact
from nest.cost.score import score
from nest.solvers.base import SolveOptions


@pytest.fixture(scope="module")
def folder(shared_data: Path) -> Path:
    return shared_data / "nest-artifact"


def test_published_plans_for_bert_and_gpt3_are_found(folder):
    with (folder / "expected.csv").open() as text:
        rows = [
            row
            for row in csv.DictReader(text)
            if row["baseline"] == "Phaze"
            and ("bert" in row["instance"] or "gpt3" in row["instance"])
        ]
    assert len(rows) == 10
    for row in rows:
        problem = import_nest_artifact(folder / "instances" / f"{row['instance']}.json")
        plan = PhazeSolver().solve(problem, SolveOptions()).plan
        assert plan is not None
        found = (len(plan.stages), plan.replicas, plan.stages[0].layer_strategies[0].tp)
        published = tuple(int(row[f"baseline_{name}"]) for name in "pdt")
        assert found == published, row["instance"]
        verdict = score(problem, plan)
        assert verdict.feasible
        step = verdict.step_quanta * problem.quantum_ps / 1e12
        assert step >= float(row["exact_T"]) * (1 - 1e-7)
