"""``phaze``: its own objective is minimal."""

from __future__ import annotations

import math

from hypothesis import given
from msgspec.structs import replace

from nest.cost.model import Block, CostModel
from nest.cost.space import batch_splits, strategies
from nest.ir import Problem
from nest.solvers.base import SolveOptions
from nest.solvers.registry import get_solver
from tests.properties.profiles import examples
from tests.strategies import problems


def pipelines(problem: Problem):
    """Yield every sequence of stages as lists of layer positions."""
    edges = problem.graph.index_edges()
    everything = frozenset(range(len(problem.graph.layers)))

    def closed(layers):
        return all(s in layers for s, t, _ in edges if t in layers)

    def extend(done, left):
        if not left:
            yield []
            return
        members = sorted(left)
        for bits in range(1, 1 << len(members)):
            stage = {m for i, m in enumerate(members) if bits >> i & 1}
            if closed(done | stage):
                for rest in extend(done | stage, left - stage):
                    yield [stage, *rest]

    return extend(frozenset(), everything)


def step_ns(problem, model, case, plain, recomputing, stages):
    """Price a pipeline by the formulas of the paper's code.

    Infinite if a stage does not fit.
    """
    main = recomputing or plain
    last = plain or main
    (link,) = model.network.inside(Block(1, 0, 0, problem.cluster.num_devices))
    ns_per_byte = 1e9 / link.beta
    samples = case.micro_batch // main.dp / main.cp
    device = problem.cluster.device
    worst = 0.0
    for number, stage in enumerate(stages):
        behind = len(stages) - number
        block = Block(case.replicas, case.devices, 0, main.devices)
        terms = [model.layer_terms(i, main, case.micro_batch, block) for i in stage]
        ends = [model.layer_terms(i, last, case.micro_batch, block) for i in stage]
        entering = [
            size * samples
            for s, t, size in model.transfers.edges
            if t in stage and s not in stage
        ]
        leaving = [
            size * samples
            for s, t, size in model.transfers.edges
            if s in stage and t not in stage
        ]
        into = max(entering, default=0) * ns_per_byte
        out = max(leaving, default=0) * ns_per_byte
        forward = sum(t.forward for t in terms)
        backward = sum(t.backward - t.recomputed for t in terms)
        load = into + forward + out + backward
        activations = sum(t.kept_bytes for t in ends)
        if last.recompute != "none":
            activations += sum(t.working_bytes - device.reserve_bytes for t in terms)
        stash = activations
        if recomputing is not None:
            stash = sum(entering)
            again = sum(t.recomputed for t in terms)
            if behind > 1:
                load = into + forward + max(again, out) + backward
        memory = sum(t.static_bytes for t in terms) + activations
        if memory + (behind - 1) * stash > (device.memory_bytes - device.reserve_bytes):
            return math.inf
        worst = max(worst, load)
        if number == 0:
            weights = sum(t.weight_bytes for t in terms)
    d = case.replicas * main.dp * main.cp
    rounds = case.num_micro_batches + len(stages) - 1
    return worst * rounds + 4 * (d - 1) / d * weights * ns_per_byte


def least_step_ns(problem: Problem) -> float:
    model = CostModel(problem)
    plans = list(pipelines(problem))
    layers = range(len(problem.graph.layers))
    best = math.inf
    for case in batch_splits(problem):
        listed = [
            s
            for s in strategies(problem, case.micro_batch)
            if s.devices <= case.devices
        ]
        for tp in {s.tp for s in listed}:
            group = [s for s in listed if s.tp == tp]
            first = min((s.dp, s.cp, s.ep, s.zero) for s in group)
            usable = {
                s.recompute: s for s in group if (s.dp, s.cp, s.ep, s.zero) == first
            }
            names = {"none", "full" if "full" in usable else "selective"}
            able = {
                name: s
                for name, s in usable.items()
                if name in names
                and all(model.available(i, s, case.micro_batch) is None for i in layers)
            }
            plain = able.get("none")
            flags = [(plain, None)] if plain else []
            if rec := able.get("full") or able.get("selective"):
                flags.append((plain, rec))
            for flag in flags:
                for stages in plans:
                    used = len(stages) * (flag[1] or flag[0]).devices
                    if used <= case.devices:
                        best = min(best, step_ns(problem, model, case, *flag, stages))
    return best


@examples(60, full=1000)
@given(problems(preset="standard"))
def test_its_own_objective_is_minimal(problem):
    """Equal to plain enumeration, infeasibility included."""
    problem = replace(problem, quantum_ps=1000)
    output = get_solver("phaze")().solve(problem, SolveOptions())
    truth = least_step_ns(problem)
    if output.own_objective_ns is None:
        assert truth == math.inf
    else:
        assert math.isclose(output.own_objective_ns, truth, rel_tol=1e-12)


# The front end
