"""What must not matter: names, order, file format, units."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nest.cost import quanta as rounding
from nest.cost.score import score
from nest.ir import Level, Plan, Problem, decode_problem, encode, problem_hash
from nest.solvers.base import SolveOptions, SolverOutput
from nest.solvers.registry import get_solver
from tests.properties.profiles import examples
from tests.strategies import problems, problems_with_plans

#: Three quarters of it are whole, which is left of a sync where
#: ``gradient_sync_overlap`` is 0.25.
QUARTERED = 4
#: So is every division by a number of ranks up to 8, and a half of that.
HIGHLY_DIVISIBLE = 5040 * QUARTERED


def solve(problem: Problem, solver: str = "dp") -> SolverOutput:
    return get_solver(solver)().solve(problem, SolveOptions())


def answer(problem: Problem, solver: str = "dp") -> tuple[str, int | None]:
    output = solve(problem, solver)
    return str(output.status), output.claimed_quanta


def map_problem(problem, *, level, device, cost, edge, **fields):
    """Return the problem with its parts replaced by functions of them."""
    graph, cluster = problem.graph, problem.cluster
    return replace(
        problem,
        graph=replace(
            graph,
            kinds=tuple(
                replace(kind, costs=tuple(map(cost, kind.costs)))
                for kind in graph.kinds
            ),
            edges=tuple(map(edge, graph.edges)),
        ),
        cluster=replace(
            cluster,
            device=device(cluster.device),
            topology=replace(
                cluster.topology, levels=tuple(map(level, cluster.topology.levels))
            ),
        ),
        **fields,
    )


def stretch(problem: Problem, factor: int, **fields) -> Problem:
    """Multiply every time by a power of two, exactly."""

    def stretch_level(level: Level) -> Level:
        return replace(
            level,
            latency_ns=level.latency_ns * factor,
            bandwidth_bytes_per_s=level.bandwidth_bytes_per_s / factor,
        )

    def stretch_cost(cost):
        return replace(
            cost,
            forward_ns=cost.forward_ns * factor,
            backward_ns=cost.backward_ns * factor,
            forward_host_ns=cost.forward_host_ns * factor,
            backward_host_ns=cost.backward_host_ns * factor,
            activations=tuple(
                replace(
                    a,
                    extra_ns=a.extra_ns * factor,
                    extra_host_ns=a.extra_host_ns * factor,
                )
                for a in cost.activations
            ),
        )

    def stretch_device(device):
        hbm = device.hbm_bytes_per_s
        return replace(device, hbm_bytes_per_s=hbm and hbm / factor)

    return map_problem(
        problem,
        level=stretch_level,
        device=stretch_device,
        cost=stretch_cost,
        edge=lambda edge: edge,
        **fields,
    )


def with_whole_slopes(problem: Problem) -> Problem:
    """Let a byte take whole nanoseconds on every link.

    A time per byte has 12 decimal digits, so that of a third, twice as slow a link
    is not exactly twice as slow.
    """

    def whole(level: Level) -> Level:
        ns_per_byte = max(1, round(1e9 / level.bandwidth_bytes_per_s))
        return replace(level, bandwidth_bytes_per_s=1e9 / ns_per_byte)

    return map_problem(
        problem,
        level=whole,
        device=lambda device: device,
        cost=lambda cost: cost,
        edge=lambda edge: edge,
    )


@examples(60)
@given(problems(magnified=False).map(with_whole_slopes), st.sampled_from((2, 4, 1024)))
def test_a_longer_quantum_for_longer_times_changes_no_figure(problem, factor):
    """All times and the quantum times 2^k: the same number of quanta."""
    stretched = stretch(problem, factor, quantum_ps=problem.quantum_ps * factor)
    assert answer(stretched) == answer(problem)


def in_whole_quanta(problem: Problem) -> Problem:
    """Round a problem so that no cost term has a fraction.

    One byte takes 1 ns everywhere, all sizes are multiples of 20160 and all
    latencies of 4 ns, so that shards, shares of a ring, halves of them, and
    three quarters of what these add up to are whole. So is half of a backward
    pass, which gradients of weights take.
    """

    def whole_cost(cost):
        return replace(
            cost,
            forward_ns=float(round(cost.forward_ns)),
            backward_ns=2.0 * round(cost.backward_ns),
            forward_host_ns=float(round(cost.forward_host_ns)),
            backward_host_ns=float(round(cost.backward_host_ns)),
            activations=tuple(
                replace(a, extra_host_ns=float(round(a.extra_host_ns)))
                for a in cost.activations
            ),
            weight_bytes=cost.weight_bytes * HIGHLY_DIVISIBLE,
            expert_weight_bytes=cost.expert_weight_bytes * HIGHLY_DIVISIBLE,
            collectives=tuple(
                replace(c, size_bytes=c.size_bytes * HIGHLY_DIVISIBLE)
                for c in cost.collectives
            ),
        )

    def whole_edge(edge):
        return replace(
            edge,
            bytes_per_sample=edge.bytes_per_sample * HIGHLY_DIVISIBLE,
            bytes_per_sample_by_tp={
                tp: size * HIGHLY_DIVISIBLE
                for tp, size in edge.bytes_per_sample_by_tp.items()
            },
        )

    return map_problem(
        problem,
        level=lambda level: replace(
            level,
            latency_ns=float(QUARTERED * round(level.latency_ns)),
            bandwidth_bytes_per_s=1e9,
        ),
        device=lambda device: replace(
            device,
            memory_bytes=min(2**50, device.memory_bytes * HIGHLY_DIVISIBLE),
            hbm_bytes_per_s=device.hbm_bytes_per_s and 1e9,
        ),
        cost=whole_cost,
        edge=whole_edge,
    )


@contextmanager
def fractions() -> Iterator[list[float]]:
    """Collect the times that are rounded by more than doubles are off."""
    found: list[float] = []
    quantise, quantise_all = rounding.quantise, rounding.quantise_all

    def look(*times_ns):
        found.extend(x for x in times_ns if abs(x - round(x)) > 1e-3)

    def one(time_ns, quantum_ps):
        look(time_ns * 1000 / quantum_ps)
        return quantise(time_ns, quantum_ps)

    def every(times_ns, quantum_ps):
        look(*(times_ns * 1000 / quantum_ps).flat)
        return quantise_all(times_ns, quantum_ps)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounding, "quantise", one)
        patch.setattr(rounding, "quantise_all", every)
        yield found


@examples(60)
@given(problems(magnified=False).map(in_whole_quanta), st.sampled_from((2, 8, 64)))
def test_times_scale(problem, factor):
    """Where nothing is rounded, times x k make the optimum x k.

    Of whole terms the step time is sums, whole multiples and maxima. Elsewhere
    it need not scale: half a quantum is rounded up, twice that is not.
    Longer times would exceed what a term may be, or the digits of a slope.
    """
    with fractions() as rounded:
        status, quanta = answer(problem)
    assert not rounded
    assert answer(stretch(problem, factor)) == (
        status,
        None if quanta is None else quanta * factor,
    )


@st.composite
def relabelled(draw) -> tuple[Problem, Problem]:
    """Draw a problem, and itself with other names in another file order."""
    problem = draw(problems())
    graph = problem.graph
    ids = draw(
        st.permutations([f"x{i}" if i % 2 else i for i in range(len(graph.layers))])
    )
    name = {str(layer.id): new for layer, new in zip(graph.layers, ids, strict=True)}
    kind = {k.name: f"kind {i}" for i, k in enumerate(graph.kinds)}
    other = replace(
        graph,
        kinds=tuple(
            replace(k, name=kind[k.name], costs=tuple(draw(st.permutations(k.costs))))
            for k in draw(st.permutations(graph.kinds))
        ),
        layers=tuple(
            replace(layer, id=name[str(layer.id)], kind=kind[layer.kind])
            for layer in draw(st.permutations(graph.layers))
        ),
        edges=tuple(
            replace(edge, source=name[str(edge.source)], target=name[str(edge.target)])
            for edge in draw(st.permutations(graph.edges))
        ),
    )
    return problem, replace(problem, graph=other)


@examples(60)
@given(relabelled())
def test_names_and_file_order_do_not_matter(pair):
    problem, other = pair
    assert answer(other) == answer(problem)


@examples(15)
@given(relabelled())
def test_names_and_file_order_do_not_matter_to_brute_force(pair):
    problem, other = pair
    assert answer(other, "brute") == answer(problem, "brute")


@examples(60)
@given(problems())
def test_a_file_is_the_problem(problem):
    again = decode_problem(encode(problem))
    assert again == problem
    assert problem_hash(again) == problem_hash(problem)
    assert encode(again) == encode(problem)


@examples(30)
@given(problems())
def test_solving_twice_gives_the_same_plan(problem):
    first, second = solve(problem), solve(problem)
    assert first.plan == second.plan
    if first.plan is not None:
        assert encode(first.plan) == encode(second.plan)


@examples(60)
@given(problems_with_plans())
def test_layer_order_inside_a_stage_does_not_matter_to_the_score(pair):
    problem, plan = pair
    if plan is None:
        return
    other = Plan(
        replicas=plan.replicas,
        micro_batch=plan.micro_batch,
        stages=tuple(
            replace(stage, layers=stage.layers[::-1]) for stage in plan.stages
        ),
    )
    assert score(problem, other) == score(problem, plan)


@examples(40)
@given(problems_with_plans())
def test_the_order_of_questions_does_not_matter_to_the_score(pair):
    """A cost model that has priced other plans gives the same price."""
    from nest.cost.model import CostModel

    problem, plan = pair
    if plan is None:
        return
    used = CostModel(problem)
    best = solve(problem).plan
    for earlier in itertools.chain([best] if best else [], [plan]):
        score(problem, earlier, used)
    assert score(problem, plan, used) == score(problem, plan)
