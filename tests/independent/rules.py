"""Which plans are legal, by docs/cost-model.md, section *Plans*."""

from __future__ import annotations

import re
from collections.abc import Callable

from nest.ir import Activations, LayerCost, Plan, Problem, Stage, Strategy


class IllegalPlan(Exception):
    """The plan breaks a rule; ``args`` are the rules."""


def batches(problem: Problem, plan: Plan) -> int:
    """Return ``M``, the micro-batches of a replica."""
    job = problem.job
    return -(-job.global_batch // (plan.replicas * plan.micro_batch))


def num_blocks(plan: Plan) -> int:
    return len(plan.stages) // plan.virtual_stages


def block_of(plan: Plan, chunk: int) -> int:
    """Return the block that a chunk sits on."""
    blocks = num_blocks(plan)
    if plan.placement == "v" and chunk >= blocks:
        return 2 * blocks - 1 - chunk
    return chunk % blocks


def leaves_order(problem: Problem) -> bool:
    """Return whether plans say in which order passes run, not the job."""
    schedule = problem.job.schedule
    return schedule == "any" or isinstance(schedule, tuple)


def schedule_names(problem: Problem) -> tuple[str, ...]:
    """Return the schedules with a name that plans may have."""
    schedule = problem.job.schedule
    if schedule == "any":
        return ("1f1b", "gpipe", "zb-h1", "zb-v")
    return schedule if isinstance(schedule, tuple) else (schedule,)


def schedule_name(problem: Problem, plan: Plan) -> str | None:
    """Return the schedule of a plan; ``None`` if it lists its passes."""
    if not leaves_order(problem):
        return str(problem.job.schedule)
    return plan.order if isinstance(plan.order, str) else None


def allowed_chunks(problem: Problem, name: str | None) -> tuple[int, ...]:
    """Return how many chunks a block may have under a schedule.

    ``any`` allows those of the job alone; a list, what its names allow.
    """
    job = problem.job
    own: tuple[int, ...] = (2,) if name in ("zb-v", "dualpipe-v") else (1,)
    if name in ("1f1b", None):
        own = job.virtual_stages
    if job.schedule == "any":
        return tuple(x for x in own if x in job.virtual_stages)
    return own


def strategies_of(stage: Stage) -> dict[str, Strategy]:
    """Return the strategy of every layer, by the text of its id."""
    names = [str(x) for x in stage.layers]
    if stage.strategies is not None:
        return dict(zip(names, stage.strategies, strict=True))
    assert stage.strategy is not None
    return dict.fromkeys(names, stage.strategy)


def cost_of(
    problem: Problem, layer: str, strategy: Strategy, samples: int
) -> LayerCost | None:
    """Return the entry of the table of the layer's kind, if there is one."""
    for node in problem.graph.layers:
        if str(node.id) == layer:
            kind = node.kind
    for table in problem.graph.kinds:
        if table.name == kind:
            for cost in table.costs:
                if (
                    *(cost.tp, cost.cp, cost.ep, cost.etp),
                    *(cost.sequence_parallel, cost.samples),
                ) == (
                    *(strategy.tp, strategy.cp, strategy.ep, strategy.etp),
                    *(strategy.sequence_parallel, samples),
                ):
                    return cost
    return None


def sequence_choices(problem: Problem, tp: int) -> tuple[bool, ...]:
    """Return what ``sequence_parallel`` of a strategy may be."""
    values = problem.job.sequence_parallel
    if isinstance(values, bool) or tp == 1:
        return (False,)
    return values


def activations_of(cost: LayerCost, recompute: str) -> Activations | None:
    for entry in cost.activations:
        if entry.recompute == recompute:
            return entry
    return None


def expert_tensor(strategy: Strategy) -> int:
    """Return ``etp``: ``tp``, or what the strategy states."""
    return strategy.etp if strategy.etp else strategy.tp


def samples_per_rank(problem: Problem, plan: Plan, strategy: Strategy) -> int:
    """Return the samples of a cost key: ``B/dp``, under piper ``B``."""
    if problem.preset == "piper":
        return plan.micro_batch
    return plan.micro_batch // strategy.dp


def broken_rules(problem: Problem, plan: Plan) -> list[str]:
    """Return what makes the plan illegal; nothing if it is legal."""
    job = problem.job
    broken = []

    def rule(name: str, holds: bool) -> None:
        if not holds:
            broken.append(name)

    replicas, micro_batch = plan.replicas, plan.micro_batch
    num_devices = problem.cluster.num_devices
    rule("1 <= R <= N", 1 <= replicas <= num_devices)
    rule("replicas", job.replicas is None or replicas in job.replicas)
    rule("micro_batches", micro_batch in job.micro_batches)
    rule(
        "RB divides A",
        job.uneven_batches or job.global_batch % (replicas * micro_batch) == 0,
    )
    blocks = num_blocks(plan)
    used = sum(stage.devices for stage in plan.stages[:blocks])
    rule("devices", used <= num_devices // replicas)
    rule(
        "pipeline_parallel",
        job.pipeline_parallel is None or blocks in job.pipeline_parallel,
    )
    # every layer in exactly one stage, no edge backwards
    where: dict[str, int] = {}
    for number, stage in enumerate(plan.stages):
        for layer in stage.layers:
            rule("layer twice", str(layer) not in where)
            where[str(layer)] = number
    known = {str(layer.id) for layer in problem.graph.layers}
    rule("layers", set(where) == known)
    if set(where) == known:
        for edge in problem.graph.edges:
            rule("edge backwards", where[str(edge.source)] <= where[str(edge.target)])
    for stage in plan.stages:
        for layer, strategy in strategies_of(stage).items():
            if layer in known:
                broken += _broken_by(problem, plan, layer, strategy)
    # extensions
    _schedule_rules(problem, plan, rule)
    rule("overlap", set(plan.overlap) <= set(job.overlap))
    everywhere = [
        strategy for stage in plan.stages for strategy in strategies_of(stage).values()
    ]
    if plan.distributed_optimizer:
        rule("distributed_optimizer", job.distributed_optimizer)
        rule(
            "distributed_optimizer: zero",
            all(strategy.zero <= 1 for strategy in everywhere),
        )
    _whole_plan(problem, plan, where, rule)
    if problem.preset == "nest-artifact":
        rule("one strategy", len(set(everywhere)) == 1)
    if problem.preset == "piper":
        rule("R = 1", replicas == 1)
        degrees = []
        for stage in plan.stages:
            shared = {(x.dp, x.tp) for x in strategies_of(stage).values()}
            rule("one dp and tp per stage", len(shared) == 1)
            degrees.append(next(iter(shared))[0])
        rule("dp of all stages <= M", sum(degrees) <= batches(problem, plan))
    return broken


def _schedule_rules(
    problem: Problem, plan: Plan, rule: Callable[[str, bool], None]
) -> None:
    """Check the order of passes, and the chunks that it needs."""
    name = schedule_name(problem, plan)
    count, blocks = batches(problem, plan), num_blocks(plan)
    in_v = name in ("zb-v", "dualpipe-v")
    if leaves_order(problem):
        listed = not isinstance(plan.order, str) and plan.order is not None
        if listed:
            rule("order: any", problem.job.schedule == "any")
            for fault in order_faults(plan, count):
                rule(fault, False)
        else:
            rule("order", name in schedule_names(problem))
    else:
        listed = False
        rule("no order", plan.order is None)
    if not listed:
        rule("placement", plan.placement == ("v" if in_v else "loop"))
    rule("virtual_stages", plan.virtual_stages in allowed_chunks(problem, name))
    if in_v:
        rule("V: S >= 2", blocks >= 2)
        if name == "dualpipe-v":
            rule("M >= 2S", count >= 2 * blocks)
    if plan.virtual_stages > 1 and not in_v and not listed:
        rule("interleaved: 1f1b", name == "1f1b")
        rule("interleaved: S >= 2", blocks >= 2)
        rule("interleaved: S divides M", count % blocks == 0)
    if leaves_order(problem):
        for number, stage in enumerate(plan.stages):
            used_kinds = {x.recompute for x in strategies_of(stage).values()}
            if used_kinds & {"full", "offload"}:
                rule("whole", not splits(plan, name, number))


def splits(plan: Plan, name: str | None, chunk: int) -> bool:
    """Return whether a chunk computes gradients of weights apart."""
    if name is not None:
        return name in ("zb-h1", "zb-v")
    return any(
        re.fullmatch(f"{chunk}[IW][0-9]+", text)
        for texts in plan.order or ()
        for text in texts
    )


def order_faults(plan: Plan, count: int) -> list[str]:  # noqa: C901
    """Return what is wrong with a plan's lists of passes.

    Every block runs each pass of its own chunks once: F, then either B, or I
    and later W. Passes wait for the same micro-batch: forward for the chunk
    in front, back for the chunk behind.
    """
    lists, blocks, last = plan.order, num_blocks(plan), len(plan.stages) - 1
    assert isinstance(lists, tuple)
    if len(lists) != blocks:
        return ["order: one list per block"]
    faults = []
    for block, texts in enumerate(lists):
        ran: list[tuple[int, str, int]] = []
        for text in texts:
            # int() reads more digits than 9, and other than ASCII ones
            if not re.fullmatch("[0-9]{1,9}[FBIW][0-9]{1,9}", text):
                return [f"order: {text!r} is no pass"]
            chunk, kind, number = re.split("([FBIW])", text)
            ran.append((int(chunk), kind, int(number)))
        for chunk, _, number in ran:
            if chunk > last or block_of(plan, chunk) != block:
                faults.append("order: on another block")
            if number >= count:
                faults.append("order: no such micro-batch")
        for chunk in range(last + 1):
            if block_of(plan, chunk) != block:
                continue
            for number in range(count):
                kinds = [k for c, k, m in ran if (c, m) == (chunk, number)]
                if kinds not in (["F", "B"], ["F", "I", "W"]):
                    faults.append("order: not F and B, or F, I and W")
    if faults:
        return faults
    ended: set[tuple[int, bool, int]] = set()
    todo = [[re.split("([FBIW])", text) for text in texts] for texts in lists]
    moved = True
    while moved:
        moved = False
        for own in todo:
            if not own:
                continue
            chunk, kind, number = int(own[0][0]), own[0][1], int(own[0][2])
            if kind == "F":
                waits = chunk > 0 and (chunk - 1, True, number) not in ended
            elif kind == "W":
                waits = False
            elif chunk == last:
                waits = (chunk, True, number) not in ended
            else:
                waits = (chunk + 1, False, number) not in ended
            if not waits:
                if kind != "W":
                    ended.add((chunk, kind == "F", number))
                own.pop(0)
                moved = True
    return ["order: passes wait for each other"] if any(todo) else []


def _whole_plan(
    problem: Problem,
    plan: Plan,
    where: dict[str, int],
    rule: Callable[[str, bool], None],
) -> None:
    """Check *Rules about whole plans*; ``where`` has every layer's stage."""
    job, blocks = problem.job, num_blocks(plan)
    everywhere = [
        strategy for stage in plan.stages for strategy in strategies_of(stage).values()
    ]
    for name in job.uniform:
        values = {
            (
                x.dp * x.tp * x.cp if name == "devices" else getattr(x, name),
                x.etp if name == "ep" else None,
            )
            for x in everywhere
        }
        rule(f"uniform {name}", len(values) == 1)
    if job.even_layers:
        kinds = [layer.kind for layer in problem.graph.layers]
        for kind in {kind for kind in kinds if kinds.count(kind) > 1}:
            shares = [0] * len(plan.stages)
            for layer in problem.graph.layers:
                if layer.kind == kind and str(layer.id) in where:
                    shares[where[str(layer.id)]] += 1
            rule(f"even {kind}", len(set(shares)) == 1)
    together = {
        where[str(layer.id)]
        for layer in problem.graph.layers
        if layer.kind in job.one_stage and str(layer.id) in where
    }
    rule("one_stage", len(together) <= 1)
    used = plan.replicas * sum(x.devices for x in plan.stages[:blocks])
    rule("idle_devices", job.idle_devices or used == problem.cluster.num_devices)
    for name, allowed in job.zero_with.items():
        for x in everywhere:
            count = {"r": plan.replicas, "pp": blocks, "cp": x.cp}[name]
            rule(f"zero_with {name}", count == 1 or x.zero in allowed)
    for name in job.sharded_with:
        for x in everywhere:
            count = {"tp": x.tp, "ep": x.ep, "pp": blocks}[name]
            shards = x.zero in (2, 3) and x.dp * x.cp > 1
            rule(f"sharded_with {name}", count == 1 or shards)
    for name in plan.overlap:
        for need in job.overlap_needs.get(name, ()):
            has = {
                "interleaving": blocks == 1 or plan.virtual_stages > 1,
                "sequence_parallel": all(
                    job.sequence_parallel is True or x.tp == 1 or x.sequence_parallel
                    for x in everywhere
                ),
                "no-full-recompute": all(x.recompute != "full" for x in everywhere),
                "gradients": "gradients" in plan.overlap,
            }
            rule(f"overlap_needs {name} {need}", has[need])
    if job.micro_batch_count == "at-least-stages":
        rule("at least stages", batches(problem, plan) >= blocks)
    if job.micro_batch_count == "multiple-of-stages":
        rule("multiple of stages", batches(problem, plan) % blocks == 0)


def _broken_by(
    problem: Problem, plan: Plan, layer: str, strategy: Strategy
) -> list[str]:
    """Return what is wrong with the strategy of a layer."""
    job = problem.job
    broken = []
    for field, allowed in (
        ("dp", job.data_parallel),
        ("tp", job.tensor_parallel),
        ("cp", job.context_parallel),
        ("ep", job.expert_parallel),
        ("zero", job.zero),
        ("recompute", job.recompute),
    ):
        if allowed is not None and getattr(strategy, field) not in allowed:
            broken.append(field)
    whole = job.expert_tensor_parallel
    if whole is not None and expert_tensor(strategy) not in whole:
        broken.append("etp")
    if strategy.sequence_parallel not in sequence_choices(problem, strategy.tp):
        broken.append("sequence_parallel")
    if problem.preset == "piper":
        if batches(problem, plan) % strategy.dp:
            broken.append("dp divides M")
    elif plan.micro_batch % strategy.dp:
        return [*broken, "dp divides B"]
    samples = samples_per_rank(problem, plan, strategy)
    cost = cost_of(problem, layer, strategy, samples)
    if cost is None:
        broken.append("no cost")
    elif activations_of(cost, strategy.recompute) is None:
        broken.append("no activations")
    return broken
