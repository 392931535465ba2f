"""``export``: a plan as the files of a training framework."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nest.constraints.targets import ANY, for_target
from nest.constraints.targets import names as target_names
from nest.cost.orders import with_named_order
from nest.errors import InvalidOptionError, InvalidPlanError
from nest.ir.io import encode, problem_hash
from nest.models.named import load_model
from nest.requests.plans import SILENT, PlanRequest, Talk
from nest.requests.settings import redeclared, setting
from nest.requests.values import PathText, also_needed, integer

if TYPE_CHECKING:
    from nest.cost.verdict import Score
    from nest.frameworks.launch import Settings
    from nest.ir.plan import Plan
    from nest.ir.problem import Problem
    from nest.requests.restricted import Restricted, RestrictedRequest


@dataclass(frozen=True, kw_only=True)
class ExportRequest(PlanRequest, command="nest export"):
    """A plan, and the framework whose files start it."""

    to: str = setting(
        "--to TARGET",
        "A framework, torch, chakra or csv; see docs/exports.md.",
        required=True,
    )
    output: PathText | None = setting(
        "-o --output DIR", "New or empty directory to write."
    )
    gpus_per_node: int | None = setting(
        "--gpus-per-node N",
        "Devices of a node.  [default: the lowest level, or finest "
        "units, of the network]",
        integer(),
        unit="devices",
    )
    flavor: str | None = setting(
        "--flavor NAME/FLAVOR",
        "What torchtitan calls the model, such as llama3/8B.  [default: its flavor, or "
        "a module with its shape]",
    )
    nearest: bool = setting(
        "--nearest",
        "Write the nearest plan that the framework can run instead, and say "
        "what that costs.",
    )
    model: PathText | None = redeclared(
        PlanRequest,
        "model",
        "Model instead of PROBLEM, with --cluster; or the model of PROBLEM, where that "
        "does not name one: a name, or a config.json of Hugging Face.",
    )


#: Gets a line about what was written: its text, and whether it is a warning.
Tell = Callable[[str, bool], None]


def export(
    request: ExportRequest,
    talk: Talk = SILENT,
    tell: Tell = lambda text, is_warning: None,
) -> dict[str, str | bytes]:
    """Return the files that start a plan, by name.

    With a problem that does not name its model, ``model`` does.
    """
    from nest.frameworks.export import TRACES, target_of
    from nest.frameworks.launch import Settings
    from nest.frameworks.layers import placement_of

    model, to = request.model, request.to
    is_trace = to in TRACES
    if request.problem is not None and request.given_job == ["model"]:
        request = replace(request, model=None)
    elif not is_trace and request.target is None:
        request = replace(request, target=to)
    request.check_problem_choice()
    request.check_plan_choice()
    if is_trace:
        options = {
            "--model": model if request.model is None else None,
            "--gpus-per-node": request.gpus_per_node,
            "--flavor": request.flavor,
            "--nearest": request.nearest or None,
        }
        for name, value in options.items():
            if value is not None:
                raise InvalidOptionError(
                    f"{name}: expected no such option with --to {to}, which says any "
                    f"plan as it is, got it; leave it out"
                )
    else:
        target_of(to)
        if request.flavor is not None and to != "torchtitan":
            raise InvalidOptionError(
                f"--flavor: expected --to torchtitan, which names models by "
                f"it, got --to {to}; leave it out"
            )
    problem = request.find_problem()
    if not is_trace:
        _refuse_captured(problem, f"--to {to}")
    plan = request.find_plan(problem, talk, warn=False)
    assert plan is not None
    other, why = request.made_with(problem, plan), ""
    if other is not None and other.target == ANY:
        # The notes say what the framework has otherwise.
        request = replace(request, target=ANY)
        problem = request.find_problem()
    if other is not None:
        why = request.difference(other)
        if not is_trace and other.target not in (ANY, to):
            made, _, _ = why.partition(";")
            why = f"{made}; solve with --target {to}"
    _refuse_foreign(problem, plan, to, why)
    if is_trace:
        named = request.problem
        folder = Path(named).parent if isinstance(named, (str, Path)) else Path()
        return {**_traces(problem, plan, to, folder, tell)}
    shape = None
    if model is not None:
        modules = placement_of(problem.graph).mtp
        shape = load_model(os.fspath(model), mtp=modules > 0)
    settings = Settings(shape, request.gpus_per_node, request.flavor)
    return _launch(problem, plan, to, settings, request.nearest, tell)


def launch_settings(
    request: RestrictedRequest, restricted: Restricted, option_name: str
) -> Settings:
    """Return what an export needs, or refuse what it cannot do without."""
    from nest.frameworks.hosts import node_size
    from nest.frameworks.launch import Settings
    from nest.frameworks.layers import placement_of
    from nest.frameworks.models import model_of

    problem = restricted.problem
    if restricted.target is None:
        remedy = "add the framework that runs it, such as --target megatron"
        raise also_needed(option_name, "--target", remedy)
    _refuse_captured(problem, option_name)
    placement = placement_of(problem.graph)
    try:
        settings = Settings(model_of(problem, placement))
    except InvalidOptionError:
        raise InvalidOptionError(
            f"{option_name}: expected a problem that names its model, got "
            f"{problem.name}; write the plan with -o, and pass 'nest "
            f"export' its --model"
        ) from None
    sizes, missing = request.node_sizes(problem)
    try:
        per_node = node_size(problem.cluster)
    except InvalidOptionError:
        per_node = 1
    if per_node == 1 and len(sizes) == 1:
        settings = settings._replace(gpus_per_node=sizes.pop())
    elif per_node == 1 and (missing or problem.cluster.topology.kind == "graph"):
        raise InvalidOptionError(
            f"{option_name}: expected a network that groups the devices into nodes, "
            f"got the network of {problem.name}, which has no nodes; write the plan "
            f"with -o, and pass 'nest export' its --gpus-per-node"
        )
    return settings


def _refuse_captured(problem: Problem, option: str) -> None:
    """Refuse to write a module of ``nest import torch`` for a framework."""
    from nest.capture.problem import source_of

    if source_of(problem) is not None:
        raise InvalidPlanError(
            f"{option}: expected a model of the framework, got {problem.name}, a "
            f"module of 'nest import torch'; run 'nest export --to torch'"
        )


def _refuse_foreign(problem: Problem, plan: Plan, to: str, why: str) -> None:
    """Refuse a plan that was made for something else.

    Plans of ``nest solve PROBLEM --target`` are of the problem, too. ``why``
    says for what it was made, and what to do about it, if that is known.
    """
    from nest.frameworks.export import TRACES

    if plan.problem_hash in (None, problem_hash(problem)):
        return
    for name in target_names() if to in TRACES else (to,):
        try:
            there = for_target(problem, name)
        except InvalidOptionError:
            continue
        if plan.problem_hash == problem_hash(there):
            return
    allowed = "any --target" if to in TRACES else f"--target {to}"
    if why:
        raise InvalidPlanError(
            f"plan: expected one of this problem, or of it with {allowed}, "
            f"got another: {why}"
        )
    raise InvalidPlanError(
        f"plan: expected one that was made for problem "
        f"{problem_hash(problem)[:12]}, or for it with {allowed}, got one for "
        f"{plan.problem_hash[:12]}; pass the problem that it was solved for, "
        f"with its target or none, or remove problem_hash from the plan"
    )


def _traces(
    problem: Problem, plan: Plan, to: str, folder: Path, tell: Tell
) -> Mapping[str, str | bytes]:
    """Return the traces of a plan's step, or its order of passes."""
    from nest.frameworks import chakra, schedule_csv, torch_script
    from nest.simulation.events import Simulation

    simulation = Simulation(problem, plan)
    _warn_if_infeasible(simulation.score, tell)
    if to == schedule_csv.NAME:
        return schedule_csv.export(simulation)
    if to == torch_script.NAME:
        return torch_script.export(problem, plan, folder, tell)
    return chakra.export(simulation)


def _launch(
    problem: Problem, plan: Plan, to: str, settings: Settings, nearest: bool, tell: Tell
) -> dict[str, str | bytes]:
    """Return the files of a framework, and tell what is otherwise there."""
    from nest.cost.score import score
    from nest.frameworks.export import as_run_by, check_schedule, export

    score(problem, plan)  # refuses a plan that is none of the problem
    problem, plan = with_named_order(problem, plan)
    if not nearest:
        check_schedule(problem, plan, to)
    there, changes = as_run_by(problem, to)
    for change in changes:
        tell(f"note: with {to}, {change}", True)
    if not nearest:
        _warn_if_infeasible(score(there, plan), tell)
        return {**export(problem, plan, to, settings)}
    from nest.frameworks.nearest import LARGE_LOSS
    from nest.frameworks.nearest import nearest as find_nearest

    closest = find_nearest(problem, plan, to, settings)
    tell(f"nearest plan: {closest.text}", False)
    before, after = closest.before.step_time_ns, closest.after.step_time_ns
    if after > (1 + LARGE_LOSS) * before:
        tell(
            f"note: this loses more than {LARGE_LOSS:.0%} of the step time; 'nest "
            f"solve --target {to}' finds the fastest plan that {to} can run",
            True,
        )
    return {**closest.files, "plan.json": encode(closest.plan).decode()}


def _warn_if_infeasible(score: Score, tell: Tell) -> None:
    for violation in score.violations:
        tell(f"warning: the plan is infeasible: {violation}", True)
