"""What is known changes for better plans and proofs, and for nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from bench.instance_updates import Change, encode_best_known, with_document, with_plan
from nest.cost.score import score
from nest.errors import NestError
from nest.instances import best_known, instance, names, problem, store
from nest.instances.records import BestKnown, Proof, Unlimited
from nest.ir import Problem
from nest.ir.io import plan_to_json, problem_hash
from nest.ir.plan import Plan
from nest.solvers.registry import register_solver, solver_class, unregister_solver


def computes_once(name: str) -> bool:
    plan = best_known(name).plan
    return plan is not None and not any(
        strategy.recompute == "full"
        for stage in plan.stages
        for strategy in stage.layer_strategies
    )


#: Closed, with plans that are quickly scored.
NAME, *_ = filter(computes_once, names(["tiny", "chain", "tight"], "closed"))
LOOSE, *_ = names(["tiny", "chain", "loose"], "closed")
INFEASIBLE, *_ = names(["tiny", "infeasible"])
HASH = instance(NAME).problem_hash
BEST = best_known(NAME)

Records = dict[str, BestKnown]


def best() -> tuple[Plan, int]:
    assert BEST.plan is not None
    assert BEST.value_quanta is not None
    return BEST.plan, BEST.value_quanta


def slower() -> tuple[Plan, int]:
    """Return a plan that fits and is slower: all is computed again."""
    plan, value = best()
    stages = tuple(
        replace(
            stage,
            strategy=replace(stage.layer_strategies[0], recompute="full"),
            strategies=None,
        )
        for stage in plan.stages
    )
    changed = replace(plan, stages=stages)
    found = score(problem(NAME), changed)
    assert found.feasible
    assert found.step_quanta > value
    return changed, found.step_quanta


def document(
    status: str = "optimal",
    plan: Plan | None = None,
    quanta: int | None = None,
    bound: int | None = None,
    **fields: Any,
) -> dict[str, Any]:
    cell = {
        "solver": "dp",
        "version": "nest 9",
        "outcome": "solved",
        "status": status,
        "step_time_quanta": quanta,
        "lower_bound_quanta": bound,
        "plan": plan_to_json(plan),
        "wall_s": 1.0,
    }
    cell |= {k: v for k, v in fields.items() if k in cell}
    return {
        "schema": fields.get("schema", "nest-compare/1"),
        "problem_hash": fields.get("problem_hash", HASH),
        "cells": [cell],
        "workers": 2,
    }


def told(
    records: Records, found: dict[str, Any], **answer: Any
) -> tuple[Records, list[Change]]:
    """Take a document in; its solver says the same again, or ``answer``."""
    cells = {cell["solver"]: cell for cell in found.get("cells", [])}
    if "result" in found:
        cells[found["result"]["solver"]] = found["result"]
    return with_document(
        records, found, "r.json", lambda _problem, solver: cells[solver] | answer
    )


def texts(
    records: Records, found: dict[str, Any], **answer: Any
) -> tuple[Records, list[str]]:
    after, changes = told(records, found, **answer)
    return after, [change.text for change in changes]


def test_from_nothing_to_closed() -> None:
    """A slower plan, the best one, then the proof."""
    plan, value = best()
    late, time = slower()
    records, changes = texts({}, document("feasible", late, time))
    assert changes == [f"value none -> {time}"]
    records, changes = texts(records, document("feasible", plan, value))
    assert changes == [f"value {time} -> {value}"]
    assert records[NAME].found_by == "dp nest 9"
    records, changes = texts(records, document("feasible", late, time, 7))
    assert changes == ["bound none -> 7"]
    assert records[NAME].plan == plan
    records, changes = texts(records, document(bound=value, plan=plan, quanta=value))
    assert changes == [f"bound 7 -> {value}", "status open -> closed"]
    (proof,) = records[NAME].proofs
    assert (proof.solver, proof.version) == ("dp", "nest 9")
    assert proof.method.startswith("dynamic program")
    assert texts(records, document(plan=plan, quanta=value, bound=9))[1] == [
        "nothing better"
    ]


def test_another_exact_solver_confirms() -> None:
    plan, value = best()
    found = document(plan=plan, quanta=value, bound=value, solver="cpsat")
    proofs = tuple(proof for proof in BEST.proofs if proof.solver == "dp")
    records, changes = texts({NAME: replace(BEST, proofs=proofs)}, found)
    assert changes == ["confirmed by cpsat nest 9"]
    assert [proof.solver for proof in records[NAME].proofs] == ["cpsat", "dp"]


def test_a_cell_of_a_benchmark_counts_too() -> None:
    plan, value = best()
    (cell,) = document(plan=plan, quanta=value, bound=value)["cells"]
    found = {
        "schema": "nest-bench-cell/1",
        "key": "x",
        "cell": {"problem_hash": HASH, "solver": "dp", "version": "9"},
        "result": cell,
    }
    records, changes = texts({}, found)
    assert records[NAME].status == "closed"
    assert changes[0] == f"value none -> {value}"


def test_a_plan_of_anybody_counts_as_scored() -> None:
    plan, value = best()
    late, time = slower()
    records, _ = with_plan({}, NAME, late, "p.json", "by hand")
    assert records[NAME].value_quanta == time
    assert records[NAME].found_by == "by hand"
    plan = replace(plan, problem_hash=None, solver="mine")
    records, _ = with_plan(records, NAME, plan, "p.json")
    assert records[NAME].value_quanta == value
    assert records[NAME].found_by == "mine"
    assert records[NAME].plan == replace(plan, problem_hash=HASH)
    _, changes = with_plan(records, NAME, late, "p.json")
    assert [change.text for change in changes] == ["nothing better"]


def test_what_failed_or_does_not_fit_changes_nothing() -> None:
    plan, value = best()
    cells = [
        document("no-solution"),
        document("optimal", plan, value, value, outcome="mismatch"),
        document("over-memory", plan, None, solver="mcmc"),
    ]
    for found in cells:
        records, changes = texts({}, found)
        assert changes == ["nothing better"]
        assert records[NAME] == BestKnown(problem_hash=HASH)


@pytest.mark.parametrize(
    ("found", "match"),
    [
        (
            document(*("feasible", *best()), problem_hash="f" * 64),
            "r.json: problem_hash: expected that of an instance, got fffff",
        ),
        (
            document("feasible", best()[0], best()[1] - 1),
            f"dp: step_time_quanta: expected {best()[1]}, what its plan",
        ),
        (
            document("feasible", best_known(LOOSE).plan, 1),
            f"expected a plan for {NAME}, got one that is none",
        ),
        (
            document("optimal", best()[0], best()[1], best()[1] + 1),
            "expected bounds of at most .* one of both is wrong",
        ),
        (
            document("feasible", bound=1, solver="mcmc"),
            "mcmc: expected bounds from solvers of nest that are exact and",
        ),
        (
            document("feasible", bound=1, solver="mine"),
            "mine: expected bounds from solvers of nest that are exact and",
        ),
        (
            document(schema="nest-pareto/1"),
            "expected nest-compare/1 or nest-bench-cell/1, got 'nest-par",
        ),
        (
            document("feasible", bound=-1),
            r"r.json: \$.cells\[0\].lower_bound_quanta: expected `int` >= 0",
        ),
        ({"cells": []}, "or nest-bench-cell/1, got none"),
        ({"schema": "nest-bench-cell/1"}, "expected key 'cell', got none"),
        ({"schema": "nest-compare/1"}, "expected key 'problem_hash', got no"),
        (document("infeasible"), "expected no plan, as dp nest 9 proved"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    found: dict[str, Any], match: str
) -> None:
    records = {NAME: BEST}
    with pytest.raises(NestError, match=match):
        told(records, found)
    assert records == {NAME: BEST}


def test_a_claimed_bound_is_proven_once_more() -> None:
    """What counts is the proof that is made here, and it is made once."""
    plan, value = best()
    asked: list[tuple[str, str]] = []

    def prove(asked_problem: Problem, solver: str) -> dict[str, Any]:
        asked.append((problem_hash(asked_problem), solver))
        (cell,) = document(plan=plan, quanta=value, bound=value)["cells"]
        return cell | {"version": "nest 10"}

    late, time = slower()
    claims = document("feasible", late, time, 7)
    records, changes = with_document({}, claims, "r.json", prove)
    assert asked == [(HASH, "dp")]
    assert [change.text for change in changes] == [
        f"value none -> {value}",
        f"bound none -> {value}",
        "status open -> closed",
    ]
    (proof,) = records[NAME].proofs
    assert (proof.version, proof.bound_quanta) == ("nest 10", value)
    with_document(records, claims, "r.json", prove)
    assert len(asked) == 1
    free = instance(NAME).unlimited_hash
    claims = document("no-solution", bound=9, problem_hash=free)
    records, _ = with_document(records, claims, "r.json", prove)
    assert asked[1:] == [(free, "dp")]
    assert records[NAME].unlimited == Unlimited(proof=proof)


@pytest.mark.parametrize(
    ("claim", "answer", "match"),
    [
        (
            document("feasible", *best(), best()[1]),
            {"lower_bound_quanta": best()[1] - 1, "detail": "12 are open"},
            f"{best()[1]} quanta, got {best()[1] - 1} quanta .12 are open.;",
        ),
        (
            document("feasible", *best(), 9),
            {"lower_bound_quanta": None},
            "dp: expected a bound that it proves here as well, 9 quanta, got "
            "none; raise --time-limit, or pass its plan alone",
        ),
        (
            document("feasible", *best(), 9),
            {"outcome": "error", "detail": "it broke"},
            "9 quanta, got none .it broke.; raise",
        ),
        (
            document("infeasible"),
            {"status": "no-solution", "lower_bound_quanta": 8},
            "as well, that no plan fits, got 8 quanta; raise",
        ),
        (
            document("infeasible"),
            {
                "status": "feasible",
                "plan": plan_to_json(best()[0]),
                "step_time_quanta": best()[1],
            },
            "as well, that no plan fits, got none; raise",
        ),
    ],
)
def test_a_bound_that_is_not_proven_here_is_refused(
    claim: dict[str, Any], answer: dict[str, Any], match: str
) -> None:
    """However good it looks: it may be typed by hand."""
    with pytest.raises(NestError, match=match):
        told({}, claim, **answer)


def test_solvers_of_others_close_nothing() -> None:
    """They may promise proofs; nobody else would have checked them."""
    register_solver("proud", "tests.loopback:Loopback")
    try:
        assert solver_class("proud").capabilities.exact
        with pytest.raises(NestError, match="got one from 'proud'; pass its"):
            told({}, document("feasible", bound=1, solver="proud"))
    finally:
        unregister_solver("proud")


def test_a_plan_that_does_not_fit_is_refused() -> None:
    assert BEST.unlimited is not None
    too_large = BEST.unlimited.plan
    assert too_large is not None
    with pytest.raises(NestError, match=r"p\.json: expected a plan that"):
        with_plan({}, NAME, too_large, "p.json")


def test_a_plan_below_a_bound_is_refused() -> None:
    """Somebody must be wrong, so neither counts."""
    plan, value = best()
    proof = Proof(solver="dp", version="nest 9", method="", bound_quanta=value + 1)
    records = {NAME: BestKnown(problem_hash=HASH, proofs=(proof,))}
    with pytest.raises(NestError, match=f"got {value + 1} from dp nest 9"):
        with_plan(records, NAME, plan, "p.json")
    none = replace(proof, bound_quanta=None)
    records = {NAME: BestKnown(problem_hash=HASH, proofs=(none,))}
    with pytest.raises(NestError, match="expected no plan, as dp nest 9"):
        with_plan(records, NAME, plan, "p.json")


def test_infeasible_closes() -> None:
    its = instance(INFEASIBLE).problem_hash
    found = document("infeasible", problem_hash=its)
    records, changes = told({}, found)
    assert [change.text for change in changes] == [
        "status open -> closed",
        "memory none -> infeasible",
    ]
    assert records[INFEASIBLE].infeasible


def test_what_fits_nowhere_has_no_bound() -> None:
    """Nothing has a time that a bound could be of, whoever proved one."""
    its = instance(INFEASIBLE).problem_hash
    bound = document("no-solution", bound=7, problem_hash=its, solver="cpsat")
    records, _ = told({}, bound)
    assert records[INFEASIBLE].bound_quanta == 7
    found = document("infeasible", problem_hash=its)
    records, changes = told(records, found)
    assert records[INFEASIBLE].bound_quanta is None
    assert changes[0].text == "bound 7 -> none"
    assert all(best_known(name).bound_quanta is None for name in names(["infeasible"]))


# Without a memory limit


def test_a_plan_that_does_not_fit_shows_that_memory_binds() -> None:
    assert BEST.unlimited is not None
    free = document(
        "feasible",
        BEST.unlimited.plan,
        BEST.unlimited.value_quanta,
        problem_hash=instance(NAME).unlimited_hash,
    )
    records, changes = texts({NAME: replace(BEST, unlimited=None)}, free)
    assert changes == ["memory none -> tight"]
    assert records[NAME] == BEST
    # A slower one is no better, and one that fits is a plan.
    plan, value = best()
    fits = document("feasible", plan, value, problem_hash=instance(NAME).unlimited_hash)
    assert texts(records, fits)[1] == ["nothing better"]
    records, changes = texts({}, fits)
    assert changes == [f"value none -> {value}"]
    assert records[NAME].unlimited is None or (records[NAME].unlimited.plan is None)


def test_a_bound_without_a_limit_shows_that_memory_does_not_bind() -> None:
    known = best_known(LOOSE)
    value = known.value_quanta
    assert value is not None
    its = instance(LOOSE).unlimited_hash
    records = {LOOSE: replace(known, unlimited=None)}
    low = document("no-solution", bound=value - 1, problem_hash=its)
    records, changes = texts(records, low)
    assert changes == ["nothing better"]
    at = document("no-solution", bound=value, problem_hash=its)
    records, changes = texts(records, at)
    assert changes == ["memory none -> loose"]
    above = document("no-solution", bound=value + 1, problem_hash=its)
    with pytest.raises(NestError, match="one of both is wrong"):
        texts(records, above)
    none = document("infeasible", problem_hash=its)
    with pytest.raises(NestError, match="without a memory limit, got infeas"):
        texts(records, none)


def test_the_file_is_a_line_per_instance(tmp_path: Path) -> None:
    """Encoded again it is the same bytes, whatever the order."""
    records = store.read_best_known()
    data = encode_best_known(dict(reversed(records.items())))
    assert data == store.best_known_path().read_bytes()
    assert len(data.splitlines()) == len(records) + 2
    path = tmp_path / "known.json"
    path.write_bytes(data[:-100])
    with pytest.raises(NestError, match="expected a file of best known plans"):
        store.read_best_known(path)
