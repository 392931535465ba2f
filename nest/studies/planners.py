"""Published planners under the shared model: how far off, and where."""

from __future__ import annotations

from collections.abc import Sequence

from nest.benchmarks.instances import find_set
from nest.constraints.pins import restrict
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.solvers.base import SolveOptions
from nest.solvers.result import SolveResult
from nest.solvers.run import run_solver
from nest.studies.blindness import INSTANCES
from nest.studies.solving import (
    geometric_mean,
    prove,
    step_quanta,
    usable,
)
from nest.studies.study import (
    Column,
    Findings,
    Plot,
    Series,
    Setting,
    Study,
    Table,
    Value,
)
from nest.units import GB

#: Seconds for one answer.
TIME_LIMIT_S = 60.0

#: Where layers of a stage may differ, two instances more.
PER_LAYER = (
    *("bert-large-a10gx8-per-layer", "llama2-7b-dgx-a100x16-per-layer"),
)
QUICK_INSTANCES = (
    *("llama2-7b-jean-zay-a100x16", "qwen3-30b-a3b-h800x16"),
    *("gpt3-13b-jean-zay-v100x32", "llama3-8b-dgx-h100x32-leaf8"),
    "mixtral-8x7b-jean-zay-a100x32",
)

_COLUMNS = (
    Column("instance", "instance"),
    Column("belief", "believed over shared", ".3f"),
    Column("over_gb", "GB over memory", ".1f"),
    Column("ratio", "over the optimum", ".3f"),
    Column("outer", "from the outer choice", ".3f"),
    Column("inner", "from the rest", ".3f"),
    Column("note", "note"),
)


def study_of(planner: str, setting: Setting) -> Findings:
    """Compare a planner with the optimum, instance by instance."""
    names = QUICK_INSTANCES if setting.quick else (*INSTANCES, *PER_LAYER)
    rows: list[tuple[Value, ...]] = []
    for instance in setting.each(find_set(list(names))):
        setting.say(f"{instance.name}: dp")
        problem = instance.problem
        best = step_quanta(problem, prove(problem, TIME_LIMIT_S))
        setting.say(f"{instance.name}: {planner}")
        found = run_solver(
            problem, planner, SolveOptions(time_limit_s=TIME_LIMIT_S)
        )
        rows.append((instance.name, *compare(problem, found, best)))
    return report(planner, rows)


def compare(
    problem: Problem, found: SolveResult, best: int | None
) -> tuple[Value, ...]:
    """Return what a row says of a planner's answer, after its instance."""
    nothing = (None,) * (len(_COLUMNS) - 2)
    if best is None:
        return (*nothing, "no proven optimum")
    if found.plan is None or found.score is None:
        return (*nothing, found.detail or str(found.outcome))
    belief = None
    if found.own_objective_ns is not None:
        belief = found.own_objective_ns / found.score.step_time_ns
    left = usable(problem, found)
    step, over_gb = left.step_quanta, left.over_bytes / GB
    if step is None or left.plan is None:
        return (belief, over_gb, None, None, None, left.note)
    inside = step_quanta(
        problem, prove(alike(problem, left.plan), TIME_LIMIT_S)
    )
    return (
        belief,
        over_gb,
        step / best,
        None if inside is None else inside / best,
        None if inside is None else step / inside,
        left.note,
    )


def alike(problem: Problem, plan: Plan) -> Problem:
    """Return a problem with the outer choice of a plan.

    That is replicas, micro-batch and the number of stages: what planners
    loop over, with a search inside.
    """
    pins = {
        "r": (plan.replicas,),
        "b": (plan.micro_batch,),
        "pp": (plan.num_blocks,),
    }
    return restrict(problem, pins)


def report(planner: str, rows: Sequence[Sequence[Value]]) -> Findings:
    """Return what the rows say."""

    def numbers(key: str) -> list[float]:
        column = next(i for i, c in enumerate(_COLUMNS) if c.key == key)
        found = [row[column] for row in rows]
        return [float(x) for x in found if isinstance(x, (int, float))]

    ratios, beliefs = numbers("ratio"), numbers("belief")
    answered = len(numbers("over_gb"))
    over = sum(x > 0 for x in numbers("over_gb"))
    text = (
        f"`{planner}` answers {answered} of {len(rows)} instances with a "
        f"plan; {over or 'none'} of these do not fit by the shared "
        f"model"
    )
    if over:
        text += f", and {over - (answered - len(ratios))} do after repair"
    answers = [f"{text}."]
    mean = geometric_mean(ratios)
    if mean is not None:
        answers.append(
            f"Plans that fit take {mean:.3f} times the optimum in the "
            f"geometric mean, {min(ratios):.3f} to {max(ratios):.3f} times."
        )
    outer, inner = (geometric_mean(numbers(key)) for key in ("outer", "inner"))
    if outer is not None and inner is not None:
        answers.append(
            f"Of this, {outer:.3f} is the choice of replicas, micro-batch "
            f"and number of stages (the best plan with the same ones takes "
            f"so many times the optimum), and {inner:.3f} the rest."
        )
    if beliefs:
        answers.append(
            f"Its own objective says {min(beliefs):.2f} to "
            f"{max(beliefs):.2f} times what the shared model says of the "
            f"same plan."
        )
    series = [
        Series(
            column.title,
            [
                (str(row[0]), value)
                for row in rows
                if isinstance(value := row[index], float)
            ],
        )
        for index, column in enumerate(_COLUMNS)
        if column.key in ("ratio", "outer", "inner")
    ]
    return Findings(
        answers=answers,
        tables=(
            Table(
                "instances",
                "Every instance",
                "*Believed* is the planner's own objective over the shared "
                "step time of the plan it hands in. The ratio to the proven "
                "optimum is of the plan that fits, repaired if need be, and "
                "the product of the two after it.",
                _COLUMNS,
                rows,
            ),
        ),
        plot=Plot(
            f"{planner} against the optimum",
            "instance",
            "times the optimal step time",
            series,
            kind="bars",
        ),
    )


def _study(
    planner: str, title: str, ignores: str, limits: tuple[str, ...]
) -> Study:
    return Study(
        name=planner,
        question=(
            f"How far are {title}'s plans from the optimum under the shared "
            f"model, and where is the loss made?"
        ),
        method=(
            f"The re-implemented planner (`baselines/{planner}.py`) searches "
            f"its own space for the minimum of its own objective, from the "
            f"shared cost tables; the shared model scores its plan against "
            f"the optimum that `dp` proves. {ignores} A plan that does not "
            f"fit is repaired. `dp` under the plan's own replicas, "
            f"micro-batch and number of stages tells the loss of that choice "
            f"from the rest."
        ),
        quick="Five instances.",
        limits=(
            "A re-implementation on shared tables and not the authors' "
            "program on their profiles; its docstring lists the deviations.",
            "In full, nineteen instances on trees, chosen for variety: "
            "means are about them and no population.",
            "The shared model is a model. Where it is wrong about real "
            "machines (see docs/validation.md), so are these ratios.",
            *limits,
        ),
        run=lambda setting: study_of(planner, setting),
    )


GALVATRON = _study(
    "galvatron",
    "Galvatron",
    "It does not see where stages sit, a slow stage in the middle, or the "
    "optimiser update, and leaves a fifth of the memory to a cache.",
    (
        "All instances but the two *-per-layer* want one strategy per stage. "
        "There it runs in its coarse mode, one for the whole model.",
        "Its recorded searches on its own profiles are repeated digit by "
        "digit by `python bench/galvatron.py`.",
    ),
)

ALPA = _study(
    "alpa",
    "Alpa",
    "It does not see gradient synchronisation, the optimiser update, what "
    "passes between stages, or where a stage sits, and uses every device.",
    (
        "Sixteen clusters of layers, and its own placement rule; its users "
        "tune both.",
    ),
)
