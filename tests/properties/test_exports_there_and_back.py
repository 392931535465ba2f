"""What a target's reader makes of an export is the plan that was written.

Files are read as users have them: by the requests of ``nest import``.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from nest.constraints.targets import for_target
from nest.cost.score import score
from nest.cost.space import batch_splits, strategies
from nest.errors import InvalidPlanError
from nest.frameworks.export import export, write_folder
from nest.frameworks.hosts import read_hosts
from nest.frameworks.launch import Launch, Settings, as_run, launch_of
from nest.frameworks.layers import placement_of
from nest.ir import Plan, Problem
from nest.requests import launch_files
from tests.exports import LAYERS, small_model, small_plan, small_problem
from tests.properties.profiles import PROFILE

#: The file that ``nest import`` gets, and its request.
FILES = {
    "megatron": ("args.sh", launch_files.MegatronRequest),
    "torchtitan": ("job.toml", launch_files.TorchtitanRequest),
    "deepspeed": ("run.sh", launch_files.DeepSpeedRequest),
    "maxtext": ("config.yml", launch_files.MaxTextRequest),
    "accelerate": ("accelerate.yaml", launch_files.AccelerateRequest),
}

#: Ways to cut the layers into chunks, and chunks per stage.
CUTS = (
    *(((LAYERS,), 1), ((4, 4), 1), ((3, 5), 1), ((2, 2, 2, 2), 1)),
    *(((2, 2, 2, 2), 2), ((3, 1, 2, 2), 2), ((1,) * 8, 2)),
)


@cache
def problem_for(target: str, experts: int) -> Problem:
    return for_target(small_problem(experts), target)


def random_plan(rng: Random, problem: Problem) -> Plan | None:
    """Return a plan with one strategy, ``None`` where that is no legal one."""
    split = rng.choice(batch_splits(problem))
    offered = strategies(problem, split.micro_batch)
    counts, virtual = rng.choice(CUTS)
    if not offered:
        return None
    plan = small_plan(
        problem,
        rng.choice(offered),
        counts,
        replicas=split.replicas,
        micro_batch=split.micro_batch,
        virtual_stages=virtual,
        distributed_optimizer=rng.random() < 0.2,
        overlap=tuple(x for x in problem.job.overlap if rng.random() < 0.3),
    )
    try:
        score(problem, plan)
    except InvalidPlanError:
        return None
    return plan


def read_back(target: str, folder: Path, experts: int) -> tuple[Problem, Plan]:
    """Return what ``nest import`` makes of an export."""
    name, request = FILES[target]
    if target == "deepspeed":
        array = (folder / "megatron-args.sh").read_text()
        command = 'deepspeed pretrain_gpt.py "${ARGS[@]}"'
        (folder / name).write_text(f"{array}\n{command}\n")
    more = {"model": "small"} if target == "accelerate" else {}
    made = request(
        path=str(folder / name),
        cluster="dgx-h100x16",
        rank_map=str(folder / "devices.json"),
        **more,
    ).imported()
    return made.problem, made.plan


def as_stated(target: str, problem: Problem, plan: Plan) -> Launch:
    """Return what every reader can tell of a plan."""
    launch = as_run(launch_of(problem, plan, placement_of(problem.graph)))
    return replace(launch, overlap=())


def check_random(
    target: str,
    rng: Random,
    num_plans: int,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Check so many random plans that the target can run."""
    done = 0
    for index in range(200 * num_plans):
        if done == num_plans:
            break
        experts = rng.choice((0, 4))
        problem = problem_for(target, experts)
        plan = random_plan(rng, problem)
        if plan is None:
            continue
        model = small_model(experts)
        try:
            files = export(problem, plan, target, Settings(model))
        except InvalidPlanError:
            continue
        monkeypatch.setattr(launch_files, "load_model", lambda _, m=model: m)
        devices = {"devices.json": json.dumps(read_hosts(files))}
        write_folder(folder / str(index), files | devices)
        found = read_back(target, folder / str(index), experts)
        assert as_stated(target, *found) == as_stated(target, problem, plan), plan
        done += 1
    assert done == num_plans


@pytest.mark.parametrize("target", FILES)
def test_a_few_plans_come_back(target, tmp_path, monkeypatch):
    check_random(target, Random(37), 3, tmp_path, monkeypatch)


@pytest.mark.parametrize("target", FILES)
def test_random_plans_come_back(target, tmp_path, monkeypatch):
    """100 plans of each target, or 1,000 with ``HYPOTHESIS_PROFILE=full``.

    ``HYPOTHESIS_PROFILE=full pytest tests/properties/test_exports_there_and_back.py``
    ran to the end on 28 November 2026: all of 5 * 1,000 plans came back.
    """
    num_plans = 1000 if PROFILE == "full" else 100
    check_random(target, Random(f"{target} 37"), num_plans, tmp_path, monkeypatch)
