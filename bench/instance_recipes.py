"""Recipes of instances: what each is made of, and the problem it makes."""

from __future__ import annotations

from typing import Any

import yaml
from msgspec.structs import replace

from bench.instance_classes import classes_of
from bench.instance_graphs import NETWORKS, graph_of
from bench.result_files import ROOT
from nest.constraints.targets import for_target
from nest.cost.magnitude import with_quantum
from nest.hardware import parse_clusters
from nest.instances import store
from nest.instances.records import Instance
from nest.ir import Hierarchy, Job, Level, Optimizer, Problem, problem_hash
from nest.requests.networks import find_network, with_network
from nest.requests.problems import MODEL_FIELDS, ProblemRequest
from nest.uncertainty.headroom import with_headroom

RECIPES = ROOT / "bench" / "instances" / "recipes.yaml"

#: Momentum and an fp32 copy of every weight.
MOMENTUM = Optimizer(name="sgd", weight_bytes=2, gradient_bytes=2, state_bytes=8)


def recipes() -> list[dict[str, Any]]:
    """Return all recipes."""
    found: list[dict[str, Any]] = yaml.safe_load(RECIPES.read_text())
    return found


def name_of(recipe: dict[str, Any]) -> str:
    """Return the name of an instance: what it is of, on what, which."""
    tag = recipe.get("tag", recipe.get("target"))
    what = recipe.get("model", recipe.get("graph"))
    return "-".join(filter(None, (what, recipe["cluster"], tag)))


def build(recipe: dict[str, Any]) -> Problem:
    """Return the problem of a recipe."""
    problem = _of_network(recipe) if "graph" in recipe else _of_model(recipe)
    if "leaf" in recipe:
        problem = _with_leaves(problem, **recipe["leaf"])
    if "headroom" in recipe:
        problem = with_headroom(problem, recipe["headroom"])
    if "granularity" in recipe:
        job = replace(problem.job, granularity=recipe["granularity"])
        problem = replace(problem, job=job)
    if "target" in recipe:
        job = problem.job
        problem = for_target(problem, recipe["target"], job.optimizer)
    return replace(problem, name=name_of(recipe))


def _of_model(recipe: dict[str, Any]) -> Problem:
    given = {k: v for k, v in recipe.items() if k in MODEL_FIELDS}
    network = given.pop("topology", None)
    problem = ProblemRequest(**given).model_problem(recipe.get("target"))
    return _on_network(problem, network)


def _on_network(problem: Problem, network: str | None) -> Problem:
    """Return a problem on a network with bandwidths of data sheets."""
    if network is None:
        return problem
    return with_quantum(with_network(problem, find_network(network), network))


def _of_network(recipe: dict[str, Any]) -> Problem:
    make, source = NETWORKS[recipe["graph"]]
    ((site, count),) = parse_clusters(recipe["cluster"])
    micro_batches = recipe["micro_batches"]
    samples = [1 << i for i in range(max(micro_batches).bit_length())]
    graph = graph_of(make(), site, recipe["dtype"], recipe["tp"], samples)
    problem = Problem(
        source=f"network: {source}; machine: {site.source}; costs: half of "
        f"the peak or the memory bandwidth, bench/instance_graphs.py",
        graph=graph,
        cluster=site.cluster(count),
        job=Job(
            global_batch=recipe["global_batch"],
            micro_batches=tuple(micro_batches),
            dtype=recipe["dtype"],
            optimizer=MOMENTUM,
            zero=(0, 1),
            recompute=("none", "full"),
        ),
    )
    return _on_network(problem, recipe.get("topology"))


def _with_leaves(problem: Problem, nodes: int, less: float) -> Problem:
    """Return a problem with a level of leaves of so many nodes each."""
    topology = problem.cluster.topology
    assert isinstance(topology, Hierarchy)
    *inside, top = topology.levels
    leaf = replace(top, name="leaf", fan_out=nodes)
    spine = Level(
        name="spine",
        fan_out=-(-top.fan_out // nodes),
        bandwidth_bytes_per_s=top.bandwidth_bytes_per_s / less,
        latency_ns=top.latency_ns,
        launch_ns=top.launch_ns,
    )
    changed = replace(topology, levels=(*inside, leaf, spine))
    cluster = replace(problem.cluster, topology=changed)
    return replace(problem, cluster=cluster)


def title_of(recipe: dict[str, Any], problem: Problem) -> str:
    """Return a line about an instance."""
    cluster, job = problem.cluster, problem.job
    samples = f"{job.global_batch} samples"
    if job.sequence_length is not None:
        samples = f"{job.global_batch} × {job.sequence_length} tokens"
    devices = " + ".join(f"{count} {name}" for name, count in cluster.counts.items())
    extra = [
        recipe.get("topology"),
        "leaf" in recipe
        and "leaves of {nodes} nodes, {less}:1".format(**recipe["leaf"]),
        "target" in recipe and f"plans for {recipe['target']}",
        "headroom" in recipe and f"{recipe['headroom']} of memory left free",
        "granularity" in recipe and "a strategy per layer",
        "overlap" in recipe and "with overlap",
        "schedule" in recipe and recipe["schedule"],
        "virtual_stages" in recipe
        and f"{max(recipe['virtual_stages'])} chunks per block at most",
    ]
    what = recipe.get("model", recipe.get("graph"))
    return ", ".join(
        [f"{what}, {samples} per step, on {devices}", *filter(None, extra)]
    )


def instance_of(recipe: dict[str, Any]) -> tuple[Instance, Problem]:
    """Return what the index says of a recipe's problem, and the problem."""
    problem = build(recipe)
    instance = Instance(
        name=problem.name,
        title=title_of(recipe, problem),
        problem_hash=problem_hash(problem),
        unlimited_hash=problem_hash(store.unlimited(problem)),
        classes=classes_of(problem),
        num_devices=problem.cluster.num_devices,
        num_layers=len(problem.graph.layers),
        quantum_ps=problem.quantum_ps,
        source=problem.source,
        recipe=recipe,
    )
    return instance, problem
