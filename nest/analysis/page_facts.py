"""What a page is made of: figures of a problem, of plans, and of a frontier.

Everything here is plain data, ready for JSON. Times and memory are those of scores, in
ns and bytes, and places of devices are those that the score charges for.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any

from nest.cost.breakdown import STEP_TERMS, breakdown
from nest.cost.model import CostModel
from nest.cost.rules import get_rules
from nest.cost.score import Score
from nest.cost.space import make_split
from nest.ir.io import problem_hash
from nest.ir.plan import Plan, Stage
from nest.ir.problem import Problem
from nest.units import quanta_to_ns
from nest.util.versions import provenance

SCHEMA = "nest-page/1"

#: Events of a timeline that a page shows, in all and per block of devices; of
#: longer ones the first half of so many, and the last half, with those that
#: end or begin at the same moment.
MOST_EVENTS, MOST_EVENTS_PER_BLOCK = 3000, 160

#: Rows of devices of a map; of more replicas it shows the first ones.
MOST_RANGES = 1500

#: Ranges of devices of a block that a table names.
MOST_NAMED = 2

#: Names of nodes that a text lists.
_NAMED_NODES = 2

#: Networks with more devices are shown level by level only.
MOST_DRAWN = 256

_NS_PER_DAY = 86_400 * 10**9
_NS_PER_HOUR = 3_600 * 10**9

Document = dict[str, Any]


@dataclass(frozen=True)
class Wish:
    """What a user states about the training run: its tokens, a price, and a target.

    The price is that of a device and hour; ``None`` stands for what the problem says.
    ``target`` is the framework that is to run it.
    """

    tokens: float | None = None
    price_usd_per_hour: float | None = None
    target: str = ""


@dataclass(frozen=True)
class Answer:
    """A plan that a page shows, and the solver or file that it comes from.

    ``status`` is what is proven of it, empty if nobody claims anything. No plan takes
    less than ``lower_bound_ns``, if that is known.
    """

    plan: Plan
    score: Score
    name: str
    status: str = ""
    lower_bound_ns: int | float | None = None


@dataclass(frozen=True)
class Context:
    """How a page came about: its command, and the settings of the answer.

    ``defaults`` are settings that nobody chose, with their options; ``asked`` are those
    that somebody chose, in addition to those of a problem's file; ``more`` are settings
    that no problem has: name, meaning and value. Solvers ran under ``limits``, by name.
    ``target`` is the option that names a framework, and ``untargeted`` the problem
    without it: settings that differ there were not chosen but belong to the framework.
    """

    command: str = ""
    defaults: Mapping[str, str] = field(default_factory=dict)
    asked: Collection[str] = ()
    more: Sequence[tuple[str, str, str]] = ()
    limits: Mapping[str, str] = field(default_factory=dict)
    target: str = ""
    untargeted: Problem | None = None


def page_document(
    kind: str,
    problem: Problem,
    answer: Answer | None,
    *,
    solvers: Sequence[Document] = (),
    context: Context | None = None,
    wish: Wish | None = None,
    frontier: Document | None = None,
    unfinished: str = "",
) -> Document:
    """Return the ``nest-page/1`` document of one problem.

    ``kind`` is what was asked: ``solve``, ``compare``, ``pareto``, ``report``, or
    ``several`` problems. Restrictions are part of the problem. ``solvers`` are rows of
    solvers or plans, and ``unfinished`` is why some of it is missing.
    """
    context, wish = context or Context(), wish or Wish()
    document: Document = {
        "schema": SCHEMA,
        "kind": kind,
        "problem": problem_facts(problem),
        "unfinished": unfinished,
        "answer": None,
        "plan": None,
        "terms": None,
        "timeline": None,
        "solvers": list(solvers),
        "frontier": frontier,
        "network": network_facts(problem, None if answer is None else answer.plan),
        "searched": searched(problem, context),
        "repeat": {"command": context.command, **provenance()},
    }
    if answer is not None:
        document["answer"] = answer_facts(problem, answer, wish)
        document["plan"] = plan_facts(problem, answer.plan, answer.score)
        document["terms"] = term_facts(problem, answer.plan, answer.score)
        document["timeline"] = timeline_facts(problem, answer.plan, answer.score)
    return document


# The problem


def problem_facts(problem: Problem) -> Document:
    """Return what the problem is."""
    return {
        "name": problem.name,
        "source": problem.source,
        "hash": problem_hash(problem),
        "preset": problem.preset,
        "time_unit": problem.time_unit,
        "quantum_ps": problem.quantum_ps,
        "num_devices": problem.cluster.num_devices,
    }


# The answer


def answer_facts(problem: Problem, answer: Answer, wish: Wish) -> Document:
    """Return the figures by which a user judges a plan."""
    found = answer.score
    return {
        "name": answer.name,
        "status": answer.status,
        "feasible": found.feasible,
        "violations": list(found.violations),
        "step_time_ns": found.step_time_ns,
        "step_time_quanta": found.step_quanta,
        "lower_bound_ns": answer.lower_bound_ns,
        "tokens_per_s": found.throughput_tokens_per_s,
        "mfu": found.mfu,
        "memory_left_bytes": found.memory_left_bytes,
        "run": run_facts(problem, found, wish),
    }


def run_facts(problem: Problem, found: Score, wish: Wish) -> Document:
    """Return what a step and a run cost, as far as prices are known."""
    price = _price_per_hour(problem, wish.price_usd_per_hour)
    steady = get_rules(problem.preset).steady_state
    length, step_ns = problem.job.sequence_length, found.step_time_ns
    in_seconds = problem.time_unit == "s" and not steady
    facts: Document = {
        "tokens": wish.tokens,
        "tokens_per_step": None,
        "usd_per_hour": price if in_seconds else None,
        "usd_per_step": None,
        "steps": None,
        "days": None,
        "usd_per_run": None,
    }
    if not in_seconds:
        return facts
    if price is not None:
        facts["usd_per_step"] = price * step_ns / _NS_PER_HOUR
    if length is None:
        return facts
    facts["tokens_per_step"] = problem.job.global_batch * length
    if wish.tokens is None:
        return facts
    steps = math.ceil(wish.tokens / facts["tokens_per_step"])
    facts["steps"] = steps
    facts["days"] = steps * step_ns / _NS_PER_DAY
    if price is not None:
        facts["usd_per_run"] = steps * price * step_ns / _NS_PER_HOUR
    return facts


def _price_per_hour(problem: Problem, given: float | None) -> float | None:
    """Return what all devices of the cluster cost per hour, if known."""
    cluster = problem.cluster
    if given is not None:
        return given * cluster.num_devices
    prices = [
        (device.price_usd_per_hour, cluster.devices_of(number))
        for number, device in enumerate(cluster.types)
    ]
    if any(price is None for price, _ in prices):
        return None
    return sum((price or 0.0) * count for price, count in prices)


# The plan


def plan_facts(problem: Problem, plan: Plan, found: Score) -> Document:
    """Return stages, and where they are: blocks of devices.

    A block has one stage, or several chunks of an interleaved plan. The ranges of its
    devices are (first, end), one per replica; ``nodes`` are those of the first ones.
    """
    model = CostModel(problem)
    split = make_split(problem, plan.replicas, plan.micro_batch)
    places = get_rules(problem.preset).blocks(plan, split.devices)

    def ns(quanta: int) -> int | float:
        return quanta_to_ns(quanta, problem.quantum_ps)

    blocks = []
    for number, scored in enumerate(found.blocks):
        chunks = plan.chunks_of(number)
        strategies = dict.fromkeys(
            str(strategy)
            for chunk in chunks
            for strategy in plan.stages[chunk].layer_strategies
        )
        blocks.append(
            {
                "stages": list(scored.stages),
                "strategies": list(strategies),
                "devices_per_replica": plan.stages[number].devices,
                "ranges": [list(x) for x in places[number].ranges()],
                "nodes": [
                    nodes_text(problem, devices)
                    for devices in islice(places[number].ranges(), MOST_NAMED)
                ],
                "num_layers": sum(len(plan.stages[c].layers) for c in chunks),
                "load_ns": ns(scored.load),
                "sync_ns": ns(scored.sync),
                "memory": scored.memory,
                "memory_bytes": scored.memory_bytes,
                "capacity_bytes": model.capacity_bytes(places[number]),
            }
        )
    used = plan.replicas * plan.devices_used
    return {
        "replicas": plan.replicas,
        "devices_used": used,
        "devices_idle": problem.cluster.num_devices - used,
        "stages": [
            {
                "number": number,
                "block": plan.block_of(number - 1) + 1,
                "layers": _layers(stage),
                "num_layers": len(stage.layers),
                "devices": stage.devices,
                "strategies": list(dict.fromkeys(map(str, stage.layer_strategies))),
                "forward_ns": ns(terms.forward),
                "backward_ns": ns(terms.backward),
                "sync_ns": ns(terms.sync),
                "inflight": terms.inflight,
                "memory_bytes": terms.memory_bytes,
            }
            for number, (stage, terms) in enumerate(
                zip(plan.stages, found.stages, strict=True), 1
            )
        ],
        "blocks": blocks,
    }


def nodes_text(problem: Problem, devices: Sequence[int]) -> str:
    """Return the nodes of devices from a first to before an end.

    Empty if there are none. Nodes of a hierarchy are numbered from 0, as
    launchers do; those of a graph have names.
    """
    first, end = devices
    topology = problem.cluster.topology
    names = list(dict.fromkeys(topology.nodes_of(range(first, end))))
    if len(names) <= 1:
        return "".join(names)
    if all(name.isdecimal() for name in names):
        numbers = list(map(int, names))
        low, high = numbers[0], numbers[-1]
        if numbers == list(range(low, high + 1)):
            return f"{low}–{high}"
    if len(names) <= _NAMED_NODES:
        return ", ".join(names)
    return f"{names[0]} … {names[-1]} ({len(names)})"


def _layers(stage: Stage) -> str:
    first, last = stage.layers[0], stage.layers[-1]
    return f"{first}" if len(stage.layers) == 1 else f"{first} – {last}"


def term_facts(problem: Problem, plan: Plan, found: Score) -> Document:
    """Return where the step time goes; the terms add up to it."""
    terms = breakdown(problem, plan, found)
    return {
        "step": [
            {
                "name": name,
                "meaning": STEP_TERMS[name],
                "time_ns": quanta_to_ns(quanta, problem.quantum_ps),
                "quanta": quanta,
            }
            for name, quanta in terms.step.items()
        ],
        "slowest_block": terms.slowest + 1,
        "num_loads": terms.num_loads,
    }


# The timeline


def timeline_facts(problem: Problem, plan: Plan, found: Score) -> Document | None:
    """Return what every block does when, in one replica.

    All of it, or the first and the last events where there are too many (see
    :data:`MOST_EVENTS`); ``windows`` are the spans of time that are complete.
    ``None`` where the rules price one micro-batch among many.
    """
    if get_rules(problem.preset).steady_state:
        return None
    from nest.simulation.events import Simulation

    simulation = Simulation(problem, plan, found)

    def ns(quanta: int) -> int | float:
        return quanta_to_ns(quanta, problem.quantum_ps)

    events = [
        (event.start, event.start + event.duration, block, event)
        for block in range(plan.num_blocks)
        for event in simulation.events(block)
    ]
    windows = _windows(
        [(start, end) for start, end, _, _ in events],
        min(MOST_EVENTS, MOST_EVENTS_PER_BLOCK * plan.num_blocks),
    )
    rows = [
        {
            "block": block + 1,
            "kind": event.kind,
            "start_ns": ns(start),
            "end_ns": ns(end),
            "stage": None if event.chunk is None else event.chunk + 1,
            "micro_batch": event.micro_batch,
        }
        for start, end, block, event in events
        if any(low <= start and end <= high for low, high in windows)
    ]
    return {
        "step_time_ns": ns(simulation.step),
        "num_events": len(events),
        "windows": [[ns(low), ns(high)] for low, high in windows],
        "events": rows,
        "blocks": [
            {
                "stages": list(use.stages),
                "busy_ns": ns(use.busy),
                "idle_ns": ns(use.idle),
                "bubble_share": use.bubble_share,
                "end_ns": ns(use.end),
            }
            for use in simulation.uses()
        ],
    }


def _windows(spans: Sequence[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    """Return the times within which all events can be shown."""
    last = max(end for _, end in spans)
    if len(spans) <= most:
        return [(0, last)]
    half = most // 2
    ends = sorted(end for _, end in spans)
    starts = sorted((start for start, _ in spans), reverse=True)
    return [(0, ends[half - 1]), (starts[half - 1], last)]


# The network


def network_facts(problem: Problem, plan: Plan | None = None) -> Document:
    """Return the levels of the network, or its links where it is a graph.

    ``units`` are sizes of groups of devices that are closer to each other
    than to others, for boundaries: nodes first. The picture of a graph has the
    stages of a plan on its devices.
    """
    cluster = problem.cluster
    topology, most = cluster.topology, cluster.num_devices
    sizes = [size for size in topology.unit_sizes if size < most]
    facts: Document = {
        "kind": topology.kind,
        "num_devices": most,
        "units": sizes,
        "levels": [],
        "picture": "",
    }
    if topology.kind == "hierarchy":
        below = (1, *topology.capacities)
        facts["levels"] = [
            {
                "name": level.name,
                "fan_out": level.fan_out,
                "devices": min(most, capacity),
                "num_units": -(-most // capacity),
                "bandwidth_bytes_per_s": level.bandwidth_bytes_per_s,
                "latency_ns": level.latency_ns,
            }
            for level, (under, capacity) in zip(
                topology.levels, pairwise(below), strict=True
            )
            if under < most and level.fan_out > 1
        ]
        return facts
    facts["num_switches"] = sum(n.kind != "device" for n in topology.nodes)
    facts["num_links"] = len(topology.links)
    bandwidths: dict[tuple[float, float], int] = {}
    for link in topology.links:
        key = (link.bandwidth_bytes_per_s, link.latency_ns)
        bandwidths[key] = bandwidths.get(key, 0) + 1
    facts["links"] = [
        {"bandwidth_bytes_per_s": speed, "latency_ns": ns, "count": count}
        for (speed, ns), count in sorted(bandwidths.items(), reverse=True)
    ]
    # A network may have room for more devices than the cluster has.
    fits = topology.max_devices == most
    if topology.max_devices <= MOST_DRAWN:
        from nest.topology.graph.convert import networkx_of
        from nest.topology.plot import network_svg

        facts["picture"] = network_svg(
            networkx_of(topology), plan=plan if fits else None
        )
    return facts


# What was searched


def searched(problem: Problem, context: Context) -> Document:
    """Return which values plans could take, and which option changes them.

    ``default`` is whether nobody chose them; that bound the answer all the
    same. ``asked`` is whether somebody did; what is neither comes with the
    problem. ``target`` is the framework whose they are, if that decided.
    """
    known = context.untargeted
    free = {} if known is None else {x[0]: x[2] for x in _settings(known)}
    rows = []
    for name, meaning, values in (*_settings(problem), *context.more):
        bound = values != free.get(name, values)
        option = context.target if bound else context.defaults.get(name, "")
        rows.append(
            {
                "name": name,
                "meaning": meaning,
                "values": values,
                "default": name in context.defaults and not bound,
                "asked": name in context.asked and not bound,
                "target": context.target if bound else "",
                "option": option,
            }
        )
    return {"settings": rows, "limits": dict(context.limits)}


def _settings(problem: Problem) -> list[tuple[str, str, str]]:
    """Return the name of every setting, what it is, and its values."""
    job, kinds = problem.job, problem.graph.kinds
    costs = [cost for kind in kinds for cost in kind.costs]

    def degrees(axis: str, allowed: Sequence[int] | None) -> str:
        known = sorted({int(getattr(cost, axis)) for cost in costs})
        return _list(x for x in known if allowed is None or x in allowed)

    split = job.sequence_parallel
    return [
        ("sequence_length", "sequence length", _list([job.sequence_length])),
        ("global_batch", "samples per step", _list([job.global_batch])),
        ("micro_batches", "samples per micro-batch", _list(job.micro_batches)),
        ("replicas", "pipeline replicas", _any(job.replicas)),
        ("pp", "pipeline stages", _any(job.pipeline_parallel)),
        ("dp", "data parallel degree", _any(job.data_parallel)),
        ("tp", "tensor parallel degree", degrees("tp", job.tensor_parallel)),
        ("cp", "context parallel degree", degrees("cp", job.context_parallel)),
        ("ep", "expert parallel degree", degrees("ep", job.expert_parallel)),
        ("zero", "ZeRO stage", _list(job.zero)),
        ("recompute", "recomputation", _list(job.recompute)),
        (
            "sequence_parallel",
            "sequence parallelism",
            _list("on" if x else "off" for x in split)
            if isinstance(split, tuple)
            else ("on" if split else "off"),
        ),
        ("schedule", "pipeline schedule", job.schedule_text),
        ("virtual_stages", "chunks per stage", _list(job.chunk_counts)),
        (
            "overlap",
            "communication that may hide",
            _list(f"{name} {part:g}" for name, part in job.overlap.items()) or "none",
        ),
        (
            "distributed_optimizer",
            "optimizer sharded over replicas",
            "allowed" if job.distributed_optimizer else "no",
        ),
        ("granularity", "a strategy for every", job.granularity),
        ("dtype", "data type", job.dtype),
        (
            "optimizer",
            "optimizer",
            f"{job.optimizer.name}, {job.optimizer.state_bytes} bytes of "
            f"state per weight",
        ),
        ("gradients", "gradients", f"{job.optimizer.gradient_bytes} bytes per weight"),
    ]


def _list(values: Iterable[Any]) -> str:
    return ", ".join(str(value) for value in values)


def _any(values: Sequence[int] | None) -> str:
    return "every number" if values is None else _list(values)
