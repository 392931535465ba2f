"""Preset ``piper``: the program proves what plain enumeration finds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nest.cost.score import score
from nest.ir import (
    Activations,
    Cluster,
    Device,
    Edge,
    Graph,
    Hierarchy,
    Job,
    Layer,
    LayerCost,
    LayerKind,
    Level,
    Problem,
)
from nest.solvers.base import SolveOptions, Status
from nest.solvers.registry import get_solver
from tests.properties.profiles import examples
from tests.properties.test_solvers_agree import check
from tests.strategies import Draw, pick

SIZES = st.sampled_from((0, 1, 7, 50, 120))


def draw_cost(draw: Draw, tp: int, recompute: tuple[str, ...]) -> LayerCost:
    kept = pick(draw, (0, 10, 60, 100))
    table = {
        "none": Activations(kept_bytes=kept, static_bytes=pick(draw, (0, 15, 40))),
        "selective": Activations(
            recompute="selective",
            # may need more than without, at one in flight or at several
            kept_bytes=draw(st.integers(0, 1 + kept // 4)),
            static_bytes=pick(draw, (0, 15, 70, 110)),
            extra_ns=float(draw(st.integers(0, 60))),
        ),
        "full": Activations(recompute="full", kept_bytes=kept // 8),
    }
    return LayerCost(
        tp=tp,
        forward_ns=float(draw(st.integers(0, 200))),
        backward_ns=float(draw(st.integers(0, 200))),
        weight_bytes=draw(SIZES),
        activations=tuple(table[name] for name in recompute),
    )


def draw_edge(draw: Draw, source: str, target: str) -> Edge:
    def extra() -> dict[int, int]:
        return {2: draw(SIZES)} if draw(st.booleans()) else {}

    return Edge(
        source=source,
        target=target,
        bytes_per_sample=draw(SIZES),
        source_extra_bytes_by_tp=extra(),
        target_extra_bytes_by_tp=extra(),
    )


@st.composite
def problems(draw: Draw) -> Problem:
    recompute = pick(
        draw,
        (
            ("none", "selective"),
            ("none", "selective"),
            ("none",),
            ("none", "full"),
            ("none", "selective", "full"),
        ),
    )
    num_layers = pick(draw, (3, 4, 3, 2, 1))
    if len(recompute) > 2:
        num_layers = min(num_layers, 3)
    degrees = pick(draw, ((1,), (1, 2), (1, 2), (2,)))
    kinds = []
    for number in range(draw(st.integers(1, num_layers))):
        costs = [
            draw_cost(draw, tp, recompute)
            for tp in degrees
            # a kind may lack a degree
            if tp == degrees[0] or draw(st.integers(0, 4))
        ]
        kinds.append(LayerKind(name=f"k{number}", costs=tuple(costs)))
    names = draw(st.permutations([f"l{i}" for i in range(num_layers)]))
    edges = [
        draw_edge(draw, names[i], names[j])
        for i in range(num_layers)
        for j in range(i + 1, num_layers)
        if draw(st.integers(0, 2 if j > i + 1 else 3)) != 1
    ]
    num_devices = pick(draw, (3, 4, 2, 1))
    if num_layers < 4:
        num_devices += draw(st.integers(0, 2))
    # around what a stage of one or two layers needs
    memory_bytes = pick(draw, (0, 1, 2, 3, 4, 6, 9)) * 40
    memory_bytes += draw(st.integers(0, 100))
    return Problem(
        graph=Graph(
            kinds=tuple(kinds),
            layers=tuple(
                Layer(id=name, kind=pick(draw, kinds).name) for name in sorted(names)
            ),
            edges=tuple(edges),
        ),
        cluster=Cluster(
            num_devices=num_devices,
            device=Device(memory_bytes=memory_bytes),
            topology=Hierarchy(
                levels=(
                    Level(
                        fan_out=num_devices,
                        bandwidth_bytes_per_s=pick(draw, (3e9, 3e10, 1e9, 3e8)),
                    ),
                )
            ),
        ),
        job=Job(
            global_batch=pick(draw, (4, 3, 6, 2, 12, 1)),
            replicas=(1,),
            recompute=recompute,
        ),
        preset="piper",
    )


@examples(300, full=3000)
@given(problems())
def test_dp_proves_the_optimum_of_brute_force(problem):
    """Equal to the quantum, infeasibility included."""
    check(("dp",), problem)


@examples(40, full=400)
@given(problems())
def test_a_warm_start_changes_nothing(problem):
    cold = get_solver("dp")().solve(problem, SolveOptions())
    if cold.status is Status.INFEASIBLE:
        return
    warm = get_solver("dp")().solve(problem, SolveOptions(warm_start=cold.plan))
    assert warm.status is Status.OPTIMAL
    assert warm.claimed_quanta == cold.claimed_quanta
    assert score(problem, warm.plan).step_quanta == warm.claimed_quanta
