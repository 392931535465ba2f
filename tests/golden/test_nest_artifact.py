"""Optima of NEST's own inputs, computed by an independent minimiser.

``expected.csv`` and ``small_expected.csv`` (see ``reference`` of the shared
data) hold, per instance, the exact minimum of NEST's objective and the step
time of the plan that NEST's published search returned.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

import pytest

from nest.audits.nest_artifact.evaluate import named_plans, nodes_in_order, printed_time
from nest.audits.nest_artifact.importer import import_nest_artifact, read_artifact_file
from nest.cost.score import score
from nest.ir import Plan, Problem, Stage, Strategy
from nest.search.solver import DpSolver
from nest.solvers.base import SolveOptions, Status
from nest.solvers.registry import get_solver

#: The figures are floats of another program; ours are rounded integers.
RELATIVE = 1e-7
PS_PER_S = 10**12


class Row(NamedTuple):
    path: Path
    exact: float | None
    nest: float | None
    nest_replicas: int = 0
    nest_tp: int = 0
    nest_sizes: tuple[int, ...] = ()


def number(text: str) -> float | None:
    return float(text) if text else None


def shipped(folder: Path) -> dict[str, Row]:
    with (folder / "expected.csv").open() as file:
        return {
            row["instance"]: Row(
                folder / "instances" / f"{row['instance']}.json",
                number(row["exact_T"]),
                number(row["nest_T"]),
                int(row["nest_d"] or 0),
                int(row["nest_t"] or 0),
                tuple(map(int, row["nest_stage_sizes"].split())),
            )
            for row in csv.DictReader(file)
        }


def small(folder: Path) -> dict[str, Row]:
    with (folder / "small_expected.csv").open() as file:
        return {
            row["instance"]: Row(
                folder / "small" / f"{row['instance']}.json",
                number(row["exact_T"]),
                number(row["nest_T_own_placement"]),
            )
            for row in csv.DictReader(file)
        }


def in_own_unit(quanta: int, problem: Problem) -> float:
    """One unit of the instance is imported as a second."""
    return quanta * problem.quantum_ps / PS_PER_S


@pytest.fixture(scope="module")
def folder(shared_data: Path) -> Path:
    return shared_data / "nest-artifact"


def check_optimum(row: Row, name: str) -> None:
    problem = import_nest_artifact(row.path)
    output = get_solver(name)().solve(problem, SolveOptions())
    if row.exact is None:
        assert output.status is Status.INFEASIBLE, row.path.stem
        return
    assert output.status is Status.OPTIMAL, row.path.stem
    assert output.plan is not None
    verdict = score(problem, output.plan)
    assert verdict.feasible
    assert verdict.step_quanta == output.claimed_quanta
    step = in_own_unit(verdict.step_quanta, problem)
    assert step == pytest.approx(row.exact, rel=RELATIVE), row.path.stem


def test_dp_finds_the_optimum_of_every_shipped_instance(folder):
    rows = shipped(folder)
    assert len(rows) == len(list((folder / "instances").iterdir()))
    for row in rows.values():
        check_optimum(row, "dp")


def test_dp_finds_the_optimum_of_every_small_instance(folder):
    rows = small(folder)
    assert len(rows) == len(list((folder / "small").iterdir()))
    for row in rows.values():
        check_optimum(row, "dp")


@pytest.mark.parametrize("name", ["cpsat", "milp"])
@pytest.mark.parametrize("instance", ["rnd3", "rnd14", "rnd21", "rnd53"])
def test_formulations_find_the_same_optimum(folder, name, instance):
    """Feasible and infeasible, with and without recomputation."""
    check_optimum(small(folder)[instance], name)


def test_scoring_nests_plans_reproduces_nests_figures(folder):
    """The stages of NEST's plans are listed in pipeline order."""
    scored = 0
    for row in shipped(folder).values():
        if row.nest is None:
            continue
        problem = import_nest_artifact(row.path)
        order = problem.graph.topological_order()
        ids = iter(problem.graph.layers[i].id for i in order)
        strategy = Strategy(tp=row.nest_tp, recompute=problem.job.recompute[0])
        plan = Plan(
            replicas=row.nest_replicas,
            micro_batch=1,
            stages=tuple(
                Stage(
                    layers=tuple(next(ids) for _ in range(size)),
                    devices=row.nest_tp,
                    strategy=strategy,
                )
                for size in row.nest_sizes
            ),
        )
        verdict = score(problem, plan)
        assert verdict.feasible
        step = in_own_unit(verdict.step_quanta, problem)
        assert step == pytest.approx(row.nest, rel=RELATIVE), row.path.stem
        scored += 1
    assert scored == 20


def test_nests_search_is_beaten_on_about_half_of_the_small_instances(folder):
    """Its answers are re-evaluated with its own placement."""
    solved = beaten = 0
    for row in small(folder).values():
        if row.nest is None:
            continue
        problem = import_nest_artifact(row.path)
        output = DpSolver().solve(problem, SolveOptions())
        assert output.claimed_quanta is not None
        solved += 1
        step = in_own_unit(output.claimed_quanta, problem)
        assert step <= row.nest * (1 + RELATIVE)
        beaten += step < row.nest * (1 - RELATIVE)
    assert 0.4 <= beaten / solved <= 0.6, (beaten, solved)


def cut(order: list[int], sizes: list[int]) -> list[list[int]]:
    ids = iter(order)
    return [[next(ids) for _ in range(size)] for size in sizes]


def test_every_printed_digit_is_repeated(folder):
    """NEST's own figures, and three readings of every baseline's plan."""
    own = baselines = 0
    with (folder / "expected.csv").open() as text:
        rows = list(csv.DictReader(text))
    for row in rows:
        path = folder / "instances" / f"{row['instance']}.json"
        file = read_artifact_file(path)
        order = nodes_in_order(file, min(file.nodes))
        if row["nest_T"]:
            sizes = list(map(int, row["nest_stage_sizes"].split()))
            found = printed_time(
                file, int(row["nest_t"]), int(row["nest_d"]), cut(order, sizes)
            )
            assert found == float(row["nest_T"]), row
            own += 1
        if not row["baseline"]:
            continue
        plan = named_plans(file, path.name)[row["baseline"]]
        for way in ("as_coded", "order_fixed", "intended"):
            sizes = plan.sizes(len(order), intended=way == "intended")
            stages = cut(order, sizes)
            if way == "as_coded":
                stages.reverse()
            found = printed_time(file, plan.t, plan.d, stages)
            assert found == number(row[f"baseline_T_{way}"]), (row, way)
            baselines += 1
    assert (own, baselines) == (54, 153)
