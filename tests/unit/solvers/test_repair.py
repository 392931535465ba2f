"""Plans that do not fit are repaired as a planner's users would.

Two layers of 10 ns forward and 20 ns backward. With two bytes per weight, two per
gradient and twelve of optimizer state, a layer of ``2 w`` weight bytes holds ``16 w``.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from nest.ir import Activations, Plan, Problem, Strategy
from nest.solvers.base import Capabilities, SolverOutput, Status
from nest.solvers.judge import judge
from nest.solvers.repair import repair
from nest.solvers.result import Outcome, Verdict
from tests.builders import kept_or_full, make_cost, make_plan, make_problem

PLANNER = Capabilities(exact=False, method="none", overruns=True)
REMEDIES = PLANNER.remedies

FULL = Strategy(recompute="full")
SELECTIVE = Strategy(recompute="selective")


def layer(
    kept: int, *, samples: int = 1, full: int | None = 10, weight: int = 2
) -> Any:
    """Return a layer that keeps ``kept`` bytes, or ``full`` if recomputed."""
    activations = [Activations(kept_bytes=kept)]
    if full is not None:
        activations += [
            Activations(recompute="selective", kept_bytes=kept // 2, extra_ns=5.0),
            Activations(recompute="full", kept_bytes=full),
        ]
    return make_cost(
        10, 20, samples=samples, weight_bytes=weight, activations=tuple(activations)
    )


def broken(problem: Problem, plan: Plan) -> Verdict:
    claim = SolverOutput(status=Status.FEASIBLE, plan=plan, detail="a plan")
    verdict = judge(problem, claim, capabilities=PLANNER)
    assert verdict.status is Status.OVER_MEMORY
    return verdict


def test_recompute_only_where_it_does_not_fit() -> None:
    """With two micro-batches stage 1 keeps two of them, stage 2 one.

    Per stage 16 bytes of weights and gradients and state; 2 * 40 and 1 * 40
    of activations: 96 and 56 bytes of 60. Selective recomputation makes it
    16 + 2 * 20 = 56 on stage 1.
    """
    problem = make_problem(
        {"a": layer(40), "b": layer(40)},
        memory_bytes=60,
        global_batch=2,
        recompute=("none", "selective", "full"),
    )
    verdict = broken(problem, make_plan(("a", Strategy()), ("b", Strategy())))
    assert verdict.over_memory_bytes == 36
    fixed = repair(problem, verdict, REMEDIES)
    assert fixed.outcome is Outcome.SOLVED
    assert fixed.status is Status.FEASIBLE
    assert fixed.plan == make_plan(("a", SELECTIVE), ("b", Strategy()))
    assert fixed.over_memory_bytes is None
    assert fixed.extra["repair"] == ["recompute selective"]
    assert fixed.detail == (
        "repaired: recompute selective (was 36 bytes (60.0 %) too much memory; a plan)"
    )
    assert fixed.score is not None
    # 30 + 5 for the recomputed part, 30, and the longer one once more.
    assert fixed.score.step_quanta == 35 + 30 + 35


def test_milder_forms_stay_where_they_are_enough() -> None:
    """Selective is enough for stage 2 but not for stage 1.

    16 + 2 * 60 = 136 and 16 + 60 = 76 of 50; selective 76 and 46; full
    16 + 2 * 10 = 36.
    """
    problem = make_problem(
        {"a": layer(60), "b": layer(60)},
        memory_bytes=50,
        global_batch=2,
        recompute=("none", "selective", "full"),
    )
    verdict = broken(problem, make_plan(("a", Strategy()), ("b", Strategy())))
    fixed = repair(problem, verdict, REMEDIES)
    assert fixed.plan == make_plan(("a", FULL), ("b", SELECTIVE))
    assert fixed.extra["repair"] == ["recompute selective", "recompute full"]


def test_what_a_layer_has_no_cost_for_is_left_out() -> None:
    """Layer a cannot recompute; b has to, and can."""
    problem = make_problem(
        {"a": layer(5, full=None), "b": layer(60)},
        memory_bytes=50,
        recompute=("none", "full"),
    )
    plan = make_plan(("a", Strategy()), ("b", Strategy()))
    fixed = repair(problem, broken(problem, plan), REMEDIES)
    assert fixed.plan == make_plan(("a", Strategy()), ("b", FULL))
    # In one stage with it, b cannot either.
    verdict = broken(problem, make_plan(("a b", Strategy())))
    assert verdict.over_memory_bytes == 2 * 16 + 65 - 50
    left = repair(problem, verdict, REMEDIES)
    assert left.status is Status.OVER_MEMORY
    assert left.plan == verdict.plan
    assert left.over_memory_bytes == verdict.over_memory_bytes
    assert left.detail == (
        "47 bytes (94.0 %) too much memory; a plan; could not be repaired: "
        "no remedy helps"
    )
    assert "repair" not in left.extra


def test_zero_shards_more_until_it_fits() -> None:
    """Two ranks share 20 weights: 40 + 40 + 240 = 320 bytes of 190.

    ZeRO 1 halves the state: 200; ZeRO 2 the gradients too: 180, but 40 bytes
    of whole gradients while the layer runs make it 220, which is more;
    ZeRO 3 also halves the weights, and gathers them: 160 + 80.
    """
    cost = make_cost(10, 20, samples=1, weight_bytes=40)
    fields: dict[str, Any] = {
        "micro_batches": (2,),
        "global_batch": 2,
        "zero": (0, 1, 2, 3),
    }
    plan = make_plan(("a", Strategy(dp=2)), micro_batch=2)
    problem = make_problem({"a": cost}, memory_bytes=200, **fields)
    fixed = repair(problem, broken(problem, plan), REMEDIES)
    assert fixed.plan is not None
    assert fixed.plan.stages[0].strategy == Strategy(dp=2, zero=1)
    assert fixed.extra["repair"] == ["zero 1"]

    problem = make_problem({"a": cost}, memory_bytes=199, **fields)
    left = repair(problem, broken(problem, plan), REMEDIES)
    assert left.status is Status.OVER_MEMORY
    assert left.detail.endswith("could not be repaired: zero 1")
    # The plan is still the planner's own.
    assert left.plan == plan


def test_single_ranks_have_nothing_to_shard() -> None:
    problem = make_problem({"a": layer(40)}, memory_bytes=50, zero=(0, 3))
    left = repair(problem, broken(problem, make_plan(("a", Strategy()))), REMEDIES)
    assert left.detail.endswith("no remedy helps")


def test_smaller_micro_batch() -> None:
    """16 bytes, and 4 * 30 or 2 * 30 of activations, of 80.

    One of 3 samples does not divide the batch of 8.
    """
    costs = tuple(layer(30 * n, samples=n) for n in (1, 2, 3, 4))
    problem = make_problem(
        {"a": costs}, memory_bytes=80, micro_batches=(1, 2, 3, 4), global_batch=8
    )
    plan = make_plan(("a", Strategy()), micro_batch=4)
    fixed = repair(problem, broken(problem, plan), REMEDIES)
    assert fixed.plan == make_plan(("a", Strategy()), micro_batch=2)
    assert fixed.extra["repair"] == ["micro-batch 2"]


def test_smaller_micro_batch_that_saves_nothing_is_not_taken() -> None:
    """What does not fit are the weights: 160 bytes of 100."""
    costs = tuple(layer(0, samples=n, weight=20) for n in (1, 2))
    problem = make_problem(
        {"a": costs}, memory_bytes=100, micro_batches=(1, 2), global_batch=2
    )
    plan = make_plan(("a", Strategy()), micro_batch=2)
    left = repair(problem, broken(problem, plan), REMEDIES)
    assert left.detail.endswith("no remedy helps")


def test_micro_batch_that_the_ranks_do_not_divide_is_left_out() -> None:
    """Two data ranks cannot share one sample."""
    costs = tuple(layer(60 * n, samples=n) for n in (1, 2))
    problem = make_problem(
        {"a": costs}, memory_bytes=100, micro_batches=(1, 2, 4), global_batch=4
    )
    plan = make_plan(("a", Strategy(dp=2)), micro_batch=4)
    fixed = repair(problem, broken(problem, plan), REMEDIES)
    assert fixed.plan == make_plan(("a", Strategy(dp=2)), micro_batch=2)


@pytest.mark.parametrize(
    ("remedies", "done"),
    [
        (("recompute", "zero", "micro_batch"), ["recompute full"]),
        (("micro_batch", "recompute"), ["micro-batch 1"]),
        (("micro_batch",), ["micro-batch 1"]),
    ],
)
def test_remedies_in_the_order_of_the_planner(
    remedies: tuple[str, ...], done: list[str]
) -> None:
    """16 + 2 * 40 bytes of 60; recomputed 16 + 10, one sample 16 + 40."""
    costs = tuple(layer(40 * n, samples=n) for n in (1, 2))
    problem = make_problem(
        {"a": costs},
        memory_bytes=60,
        micro_batches=(1, 2),
        global_batch=2,
        recompute=("none", "full"),
    )
    plan = make_plan(("a", Strategy()), micro_batch=2)
    fixed = repair(problem, broken(problem, plan), remedies)
    assert fixed.status is Status.FEASIBLE
    assert fixed.extra["repair"] == done


def test_remedies_add_up() -> None:
    """Recompute is not enough, with a smaller micro-batch it is.

    16 + 2 * 40 = 96, recomputed 16 + 2 * 10 = 36, of one sample 26, of 30.
    """
    costs = tuple(layer(40 * n, samples=n, full=10 * n) for n in (1, 2))
    problem = make_problem(
        {"a": costs},
        memory_bytes=30,
        micro_batches=(1, 2),
        global_batch=2,
        recompute=("none", "full"),
    )
    plan = make_plan(("a", Strategy()), micro_batch=2)
    fixed = repair(problem, broken(problem, plan), REMEDIES)
    assert fixed.plan == make_plan(("a", FULL))
    assert fixed.extra["repair"] == ["recompute full", "micro-batch 1"]


def test_strategies_that_have_to_be_alike_change_together() -> None:
    """Under nest-artifact one stage cannot recompute without the other."""
    cost = make_cost(10, 20, weight_bytes=2, activations=kept_or_full(60, 10))
    problem = make_problem(
        {"a": cost, "b": cost},
        preset="nest-artifact",
        memory_bytes=50,
        recompute=("none", "full"),
        uneven_batches=True,
    )
    verdict = broken(problem, make_plan(("a", Strategy()), ("b", Strategy())))
    fixed = repair(problem, verdict, REMEDIES)
    assert fixed.plan == make_plan(("a", FULL), ("b", FULL))


def test_strategies_per_layer_stay_apart() -> None:
    """Only what is not yet recomputed changes."""
    problem = make_problem(
        {"a": layer(40), "b": layer(40)},
        memory_bytes=60,
        recompute=("none", "selective", "full"),
        granularity="layer",
    )
    plan = make_plan(("a b", Strategy()))
    stage = msgspec.structs.replace(
        plan.stages[0], strategy=None, strategies=(FULL, Strategy())
    )
    plan = msgspec.structs.replace(plan, stages=(stage,))
    # 2 * 16 + 10 + 40 = 82, then 2 * 16 + 10 + 20 = 62, then 52.
    fixed = repair(problem, broken(problem, plan), REMEDIES)
    assert fixed.extra["repair"] == ["recompute selective", "recompute full"]
    assert fixed.plan == make_plan(("a b", FULL))
