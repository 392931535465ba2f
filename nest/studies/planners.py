"""Published planners under the shared model: how far off, and where."""

from __future__ import annotations

from collections.abc import Sequence

from nest.constraints.pins import restrict
from nest.ir.problem import Problem
from nest.solvers.base import SolveOptions
from nest.solvers.result import SolveResult
from nest.solvers.run import run_solver
from nest.studies.blindness import INSTANCES
from nest.studies.solving import geometric_mean, prove, ratio, step_quanta, usable
from nest.studies.study import Findings, Plot, Series, Study, StudySetting, Value
from nest.studies.texts import read_texts
from nest.units import GB

TEXTS = read_texts("planners")

#: Seconds for one answer.
TIME_LIMIT_S = 60.0

#: Where layers of a stage may differ, two instances more.
PER_LAYER = (*("bert-large-a10gx8-per-layer", "llama2-7b-dgx-a100x16-per-layer"),)
QUICK_INSTANCES = (
    *("llama2-7b-jean-zay-a100x16", "qwen3-30b-a3b-h800x16"),
    *("gpt3-13b-jean-zay-v100x32", "llama3-8b-dgx-h100x32-leaf8"),
    "mixtral-8x7b-jean-zay-a100x32",
)

#: Keys of the columns of the table.
_KEYS = [column.key for column in TEXTS.tables["instances"].columns]


def study_of(planner: str, setting: StudySetting) -> Findings:
    """Compare a planner with the optimum, instance by instance."""
    names = (*INSTANCES, *PER_LAYER)
    rows: list[tuple[Value, ...]] = []
    for instance in setting.instances(names, QUICK_INSTANCES):
        setting.say(f"{instance.name}: dp")
        problem = instance.problem
        best = step_quanta(problem, prove(problem, TIME_LIMIT_S))
        setting.say(f"{instance.name}: {planner}")
        options = SolveOptions(time_limit_s=TIME_LIMIT_S)
        result = run_solver(problem, planner, options)
        rows.append((instance.name, *compare(problem, result, best)))
    return report(planner, rows)


def compare(
    problem: Problem, result: SolveResult, best: int | None
) -> tuple[Value, ...]:
    """Return the cells of a planner's result, after its instance."""
    nothing = (None,) * (len(_KEYS) - 2)
    if best is None:
        return (*nothing, "no proven optimum")
    if result.plan is None or result.score is None:
        return (*nothing, result.detail or str(result.outcome))
    belief = None
    if result.own_objective_ns is not None:
        belief = result.own_objective_ns / result.score.step_time_ns
    step, plan, over_bytes, note = usable(problem, result)
    over_gb = over_bytes / GB
    if step is None or plan is None:
        return (belief, over_gb, None, None, None, note)
    # What planners loop over, with a search inside.
    pins = {"r": (plan.replicas,), "b": (plan.micro_batch,), "pp": (plan.num_blocks,)}
    inside = step_quanta(problem, prove(restrict(problem, pins), TIME_LIMIT_S))
    ratios = step / best, ratio(inside, best), ratio(step, inside)
    return (belief, over_gb, *ratios, note)


def report(planner: str, rows: Sequence[Sequence[Value]]) -> Findings:
    """Return what the rows say."""

    def numbers(key: str) -> list[float]:
        cells = [row[_KEYS.index(key)] for row in rows]
        return [float(x) for x in cells if isinstance(x, (int, float))]

    ratios, beliefs = numbers("ratio"), numbers("belief")
    answered = len(numbers("over_gb"))
    over = sum(x > 0 for x in numbers("over_gb"))
    text = (
        f"`{planner}` answers {answered} of {len(rows)} instances with a plan; "
        f"{over or 'none'} of these do not fit by the shared model"
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
            f"Its own objective says {min(beliefs):.2f} to {max(beliefs):.2f} times "
            f"what the shared model says of the same plan."
        )
    table = TEXTS.table("instances", rows)
    series = [
        Series(
            column.heading,
            [
                (str(row[0]), value)
                for row in rows
                if isinstance(value := row[index], float)
            ],
        )
        for index, column in enumerate(table.columns)
        if column.key in ("ratio", "outer", "inner")
    ]
    return Findings(
        answers=answers,
        tables=(table,),
        plot=Plot(
            f"{planner} against the optimum",
            "instance",
            "times the optimal step time",
            series,
            kind="bars",
        ),
    )


def _study(planner: str, title: str, ignores: str, limits: str) -> Study:
    return TEXTS.study(
        planner,
        lambda setting: study_of(planner, setting),
        planner=planner,
        title=title,
        ignores=ignores,
        limits=limits,
    )


GALVATRON = _study(
    "galvatron",
    "Galvatron",
    "It does not see where stages sit, a slow stage in the middle, or the "
    "optimizer update, and leaves a fifth of the memory to a cache.",
    "All instances but the two *-per-layer* want one strategy per stage. "
    "There it runs in its coarse mode, one for the whole model.\n\n"
    "Its recorded searches on its own profiles are repeated digit by digit "
    "by `python bench/galvatron.py`.",
)

ALPA = _study(
    "alpa",
    "Alpa",
    "It does not see gradient synchronization, the optimizer update, what "
    "passes between stages, or where a stage sits, and uses every device.",
    "Sixteen clusters of layers, and its own placement rule; its users tune both.",
)
