"""``alpa``: clusters, submeshes, shardings, the program over stages."""

from __future__ import annotations

import itertools
import random
import re

import numpy as np
import pytest
from msgspec.structs import replace

from baselines.alpa import AlpaSolver, Space
from baselines.alpa_inter import INFINITE, best_pipeline, least_sum, straddles
from baselines.alpa_intra import (
    Pick,
    least_shardings,
    max_n_succ,
    mesh_configurations,
    submesh_sizes,
)
from baselines.alpa_layers import cluster, read_graph
from baselines.transfers import Transfers
from nest.cost.model import CostModel
from nest.cost.score import score
from nest.ir import Activations, Strategy
from nest.solvers.base import Limit, OutOfTimeError, SolveOptions, Status
from nest.solvers.run import run_solver
from tests.builders import FLAT, make_cost, make_levels, make_problem

# Clusters


def chain_reads(*sizes):
    """Every layer reads the one before it."""
    return [[], *([(i, size)] for i, size in enumerate(sizes))]


def test_enough_clusters_leave_every_layer_alone():
    assert cluster([1, 2], chain_reads(5), 2) == [(0, 1), (1, 2)]
    assert cluster([1, 2], chain_reads(5), 16) == [(0, 1), (1, 2)]


def test_one_cluster_holds_all():
    assert cluster([1, 2, 3], chain_reads(5, 5), 1) == [(0, 3)]


def test_the_cut_is_where_least_passes():
    """Six layers in two: spans below 4.5 leave cuts at 2, 3 and 4."""
    reads = chain_reads(5, 5, 5, 1, 5)
    assert cluster([1] * 6, reads, 2) == [(0, 4), (4, 6)]
    # the least tensor of all lies where a span would compute too much
    reads = chain_reads(0, 5, 5, 1, 5)
    assert cluster([1] * 6, reads, 2) == [(0, 4), (4, 6)]


def test_ties_go_to_the_least_sum_and_then_to_equal_sizes():
    assert cluster([1] * 6, chain_reads(*[5] * 5), 2) == [(0, 3), (3, 6)]
    # cuts at 3 and 6 cost 5 each, at 4 and 6 they cost 3 and 5
    reads = chain_reads(9, 9, 5, 3, 9, 5, 9, 9)
    assert cluster([1] * 9, reads, 3) == [(0, 4), (4, 6), (6, 9)]


def test_a_span_at_the_bound_computes_too_much():
    """Four layers in two: 3/2 of the mean is 3, which three layers reach."""
    assert cluster([1] * 4, chain_reads(1, 9, 1), 2) == [(0, 2), (2, 4)]
    # 3 of 5 is less than 15/4, and the cheap cut is legal
    assert cluster([2, 1, 1, 1], chain_reads(1, 9, 9), 2) == [(0, 1), (1, 4)]


def test_one_layer_may_compute_more_than_the_bound():
    assert cluster([10, 1, 1], chain_reads(3, 3), 2) == [(0, 1), (1, 3)]


def test_fewer_clusters_where_the_bound_leaves_none():
    """Five equal layers in four would need a pair above 3/2 · 5/4."""
    found = cluster([1] * 5, chain_reads(2, 2, 2, 2), 4)
    assert found == [(0, 1), (1, 3), (3, 5)]


def test_layers_without_computation_are_clustered():
    assert cluster([0] * 4, chain_reads(9, 1, 9), 2) == [(0, 2), (2, 4)]


def test_a_producer_counts_once_with_its_largest_size():
    """Cut at 2: layer 0 is read twice behind it, 9 and not 9 + 7."""
    reads = [[], [(0, 1)], [(0, 7), (1, 1)], [(0, 9), (2, 11)]]
    # at 2: 9 + 1; at 1: 9 (layer 0 alone is before it) but too much behind
    assert cluster([1] * 4, reads, 2) == [(0, 2), (2, 4)]
    # at 3: 9 + 11 = 20, at 2: 10, if 3 and 1 layers are legal
    assert cluster([1, 1, 1, 3], reads, 2) == [(0, 2), (2, 4)]


@pytest.mark.parametrize("seed", range(40))
def test_the_largest_input_is_as_small_as_enumeration_finds(seed):
    rng = random.Random(seed)
    num_layers = rng.randint(3, 8)
    count = rng.randint(2, num_layers - 1)
    work = [rng.randint(1, 4) for _ in range(num_layers)]
    reads = [
        [(p, rng.randint(0, 9)) for p in range(i) if rng.random() < 0.5]
        for i in range(num_layers)
    ]

    def largest(cuts):
        ends = [0, *cuts, num_layers]
        worst = 0
        for start, stop in itertools.pairwise(ends):
            inside = sum(work[start:stop])
            if stop > start + 1 and inside * 2 * count >= 3 * sum(work):
                return None
            seen = {}
            for reader in range(start, stop):
                for producer, size in reads[reader]:
                    if producer < start:
                        seen[producer] = max(seen.get(producer, 0), size)
            worst = max(worst, sum(seen.values()))
        return worst

    values = [
        value
        for cuts in itertools.combinations(range(1, num_layers), count - 1)
        if (value := largest(cuts)) is not None
    ]
    found = cluster(work, reads, count)
    if not values:
        assert len(found) < count
    else:
        assert largest([start for start, _ in found[1:]]) == min(values)
        assert len(found) == count


def test_work_is_that_of_the_least_split_entry():
    problem = make_problem(
        {
            "a": (
                make_cost(2, 4, tp=2, samples=2),
                make_cost(10, 20, samples=2),
                make_cost(7, 14, samples=4),
            ),
            "b": make_cost(3, 5, tp=2),
        },
        edges=(("a", "b", 6),),
    )
    work, reads = read_graph(Transfers(CostModel(problem)))
    # (10 + 20) / 2 samples; (3 + 5) on two devices
    assert work == [15, 16]
    assert reads == [[], [(0, 6)]]


# Submeshes and meshes


def test_submeshes_are_powers_of_two_and_whole_nodes():
    assert submesh_sizes(8, 64, every=False) == [1, 2, 4, 8, 16, 32, 64]
    assert submesh_sizes(4, 20, every=False) == [1, 2, 4, 8, 16]
    assert submesh_sizes(4, 20, every=True) == [1, 2, 4, 8, 12, 16, 20]
    assert submesh_sizes(6, 13, every=False) == [1, 2, 4, 6, 12]
    assert submesh_sizes(1, 4, every=False) == [1, 2, 4]


def strategy(dp=1, tp=1, ep=1):
    return Strategy(dp=dp, tp=tp, ep=ep)


def test_a_stage_with_one_strategy_has_one_per_mesh():
    usable = [strategy(), strategy(2), strategy(1, 2), strategy(4, 1)]
    found = mesh_configurations(usable, 2, 4, per_layer=False)
    assert found == [(strategy(2),), (strategy(1, 2),)]


def test_tensor_parallelism_leaves_a_node_on_a_flat_mesh_only():
    usable = [strategy(1, 8), strategy(2, 4), strategy(8, 1)]
    found = mesh_configurations(usable, 8, 2, per_layer=False)
    assert found == [(strategy(1, 8),), (strategy(8, 1),)]


def test_layers_mix_on_the_flat_mesh_and_experts_on_all():
    usable = [strategy(1, 4), strategy(2, 2), strategy(2, 2, 2), strategy(4)]
    found = mesh_configurations(usable, 4, 4, per_layer=True)
    assert found == [
        *((s,) for s in usable),
        (strategy(2, 2), strategy(2, 2, 2)),
        (strategy(1, 4), strategy(4)),
    ]


def test_room_for_stages_behind():
    """Room 100 - 40 - 10 - 5 = 45 for four times 10, less one."""
    assert max_n_succ(100, 40, 10, 5) == 3
    assert max_n_succ(65, 40, 10, 5) == 0
    assert max_n_succ(64, 40, 10, 5) == -1
    assert max_n_succ(10, 40, 10, 5) == -1
    assert max_n_succ(10**9, 40, 0, 5) == 4096


def test_a_stage_straddles_if_it_could_be_on_fewer_nodes():
    assert not straddles(0, 4, 4)
    assert not straddles(2, 2, 4)
    assert straddles(3, 2, 4)
    assert straddles(2, 4, 4)
    assert not straddles(4, 8, 4)
    assert straddles(2, 8, 4)


# The program over stages


def pipelines(num_clusters, sizes, num_devices):
    """All (stages, submeshes): tuples of (start, stop, position)."""
    for count in range(1, num_clusters + 1):
        for cuts in itertools.combinations(range(1, num_clusters), count - 1):
            spans = list(itertools.pairwise((0, *cuts, num_clusters)))
            for meshes in itertools.product(range(len(sizes)), repeat=count):
                if sum(sizes[m] for m in meshes) == num_devices:
                    yield [
                        (start, stop, mesh)
                        for (start, stop), mesh in zip(spans, meshes, strict=True)
                    ]


def brute_force(times, sizes, num_devices, num_micro, counts, node):
    best = None
    for stages in pipelines(times.shape[1], sizes, num_devices):
        if len(stages) not in counts or len(stages) > len(times):
            continue
        offset, values = 0, []
        for number, (start, stop, mesh) in enumerate(stages, 1):
            behind = len(stages) - number
            value = int(times[behind, start, stop - 1, mesh])
            if node and straddles(offset, sizes[mesh], node):
                value = INFINITE
            offset += sizes[mesh]
            values.append(value)
        if max(values) >= INFINITE:
            continue
        total = sum(values) + (num_micro - 1) * max(values)
        best = total if best is None else min(best, total)
    return best


def alpa_loop(times, sizes, num_devices, num_micro, counts):
    """Try every limit, ascending, until it alone is too slow."""
    best = None
    for limit in np.unique(times[times < INFINITE]).tolist():
        if best is not None and limit * num_micro >= best:
            break
        found = least_sum(times, sizes, num_devices, limit, counts)
        if found:
            total = found.objective(num_micro)
            best = total if best is None else min(best, total)
    return best


def random_times(rng, num_clusters, num_sizes, spread):
    """Draw times that grow with what is behind, some of them missing."""
    shape = (num_clusters, num_clusters, num_sizes, 2)
    times = np.array([rng.randint(1, spread) for _ in range(np.prod(shape))]).reshape(
        shape
    )
    behind = np.array(
        [rng.randint(-1, num_clusters) for _ in range(np.prod(shape))]
    ).reshape(shape)
    table = np.full((num_clusters, *shape[:3]), INFINITE, dtype=np.int64)
    for stages in range(num_clusters):
        fits = np.where(behind >= stages, times, INFINITE)
        table[stages] = fits.min(axis=-1)
    return table


@pytest.mark.parametrize("seed", range(60))
def test_the_program_finds_what_enumeration_finds(seed):
    rng = random.Random(seed)
    num_clusters = rng.randint(1, 5)
    num_devices = rng.choice((3, 4, 6, 8))
    node = rng.choice((2, 4))
    sizes = submesh_sizes(min(node, num_devices), num_devices, every=rng.random() < 0.5)
    times = random_times(rng, num_clusters, len(sizes), rng.choice((3, 40, 10**6)))
    num_micro = rng.choice((1, 2, 5, 64))
    counts = sorted(
        rng.sample(range(1, num_clusters + 1), rng.randint(1, num_clusters))
    )
    for aligned in (None, node):
        expected = brute_force(times, sizes, num_devices, num_micro, counts, aligned)
        found = best_pipeline(
            times, sizes, num_devices, num_micro, counts, node=aligned
        )
        if expected is None:
            assert found is None
            continue
        assert found is not None
        assert found.objective(num_micro) == expected
        used = [
            int(times[len(found.stages) - 1 - i, start, stop - 1, mesh])
            for i, (start, stop, mesh) in enumerate(found.stages)
        ]
        assert (sum(used), max(used)) == (found.total, found.largest)
        assert sum(sizes[mesh] for *_, mesh in found.stages) == num_devices
        # nothing is below its own value, and a cutoff there finds nothing
        for cutoff in (expected, expected + 1):
            again = best_pipeline(
                times,
                sizes,
                num_devices,
                num_micro,
                counts,
                node=aligned,
                cutoff=cutoff,
            )
            assert (again is None) == (cutoff == expected)
        if aligned is None:
            assert expected == alpa_loop(times, sizes, num_devices, num_micro, counts)


def test_many_micro_batches_even_out_the_stages():
    """Times 10 and 2, or 7 and 6, or 9 alone on both devices.

    One micro-batch: 12, 13, 9. Three: 32, 27, 27, and fewer stages win only
    as the first of equals. Hundred: 1002, 706, 900.
    """
    times = np.full((2, 3, 3, 2), INFINITE, dtype=np.int64)
    times[:, 0, 0, 0], times[:, 1, 2, 0] = 10, 2
    times[:, 0, 1, 0], times[:, 2, 2, 0] = 7, 6
    times[:, 0, 2, 1] = 9
    for num_micro, expected in ((1, 9), (2, 18), (3, 27), (100, 706)):
        found = best_pipeline(times, (1, 2), 2, num_micro, (1, 2, 3))
        assert found is not None
        assert found.objective(num_micro) == expected
    assert found.stages == ((0, 2, 0), (2, 3, 0))


def test_no_devices_may_be_left():
    times = np.full((1, 1, 1, 1), 5, dtype=np.int64)
    assert best_pipeline(times, (2,), 3, 1, (1,)) is None
    assert best_pipeline(times, (2,), 2, 1, (1,)) is not None
    assert best_pipeline(times, (2,), 2, 1, ()) is None


# Shardings


@pytest.mark.parametrize("seed", range(40))
def test_shardings_cost_what_enumeration_finds(seed):
    """Each layer has one of two layouts or both; some differences cost."""
    rng = random.Random(seed)
    layouts = [(2, 1, 1), (1, 2, 1)]
    options = [
        {
            layout: Pick(rng.randint(0, 30), 0, Strategy(), None)
            for layout in rng.choice((layouts, layouts, layouts[:1]))
        }
        for _ in range(rng.randint(1, 6))
    ]
    edges = [
        (u, v, rng.randint(0, 30))
        for u, v in itertools.combinations(range(len(options)), 2)
        if rng.random() < rng.choice((0.3, 1.0))
    ]

    def cost(used):
        own = sum(picks[x].time for picks, x in zip(options, used, strict=True))
        return own + sum(q for u, v, q in edges if used[u] != used[v])

    found = least_shardings(options, edges, layouts)
    used = [
        next(layout for layout in layouts if picks.get(layout) is pick)
        for picks, pick in zip(options, found, strict=True)
    ]
    assert cost(used) == min(map(cost, itertools.product(*options)))


def test_shardings_leave_a_local_optimum():
    """Four layers, all neighbors: no single one gains by a change.

    The free layout for two and the other for two pays 4 · 10, one change of
    four 3 · 10; all in the first take 4 · 1, all in the second 4 · 0.
    """
    layouts = [(2, 1, 1), (1, 2, 1)]
    picks = dict(
        zip(
            layouts,
            (Pick(1, 0, Strategy(), None), Pick(0, 1, Strategy(), None)),
            strict=True,
        )
    )
    edges = [(u, v, 10) for u, v in itertools.combinations(range(4), 2)]
    assert least_shardings([picks] * 4, edges, layouts) == [picks[layouts[1]]] * 4


# The solver


def solve(problem, **extra):
    return AlpaSolver().solve(problem, SolveOptions(extra=extra))


def shapes(output):
    return [str(stage.strategy) for stage in output.plan.stages]


def two_layers(**job):
    """Two layers: 30 ns on one device each, 18 on two."""
    cost = (make_cost(10, 20), make_cost(6, 12, tp=2))
    job.setdefault("global_batch", 4)
    return make_problem(
        {"a": cost, "b": cost}, edges=(("a", "b", 1000),), devices=2, **job
    )


def test_few_micro_batches_take_one_wide_stage():
    """M = 4: 4 · 36 = 144 against 2 · 30 + 3 · 30 = 150."""
    output = solve(two_layers())
    assert shapes(output) == ["tp2"]
    assert output.own_objective_ns == 144
    assert output.status is Status.FEASIBLE
    assert output.claimed_quanta is None
    assert output.lower_bound_quanta is None


def test_what_passes_between_stages_is_not_seen():
    """M = 8: 2 · 30 + 7 · 30 = 270 against 8 · 36 = 288.

    The shared model adds two messages of 10 + 1000 ns to the pipeline.
    """
    problem = two_layers(global_batch=8)
    output = solve(problem)
    assert shapes(output) == ["single", "single"]
    assert output.own_objective_ns == 270
    assert score(problem, output.plan).step_quanta == 270 + 1010 * (2 + 7)


def test_the_quantum_does_not_change_the_unit_of_the_objective():
    problem = replace(two_layers(), quantum_ps=500)
    assert solve(problem).own_objective_ns == 144


def test_room_is_needed_for_one_micro_batch_more():
    """First stage of two: 3 · 10 bytes, though only two are in flight."""
    cost = (make_cost(10, 20, kept_bytes=10), make_cost(6, 12, tp=2, kept_bytes=5))
    problem = make_problem(
        {"a": cost, "b": cost}, devices=2, global_batch=8, memory_bytes=30
    )
    assert shapes(solve(problem)) == ["single", "single"]
    device = replace(problem.cluster.device, memory_bytes=29)
    tight = replace(problem, cluster=replace(problem.cluster, device=device))
    # one stage of two devices: 2 · (5 + 5)
    assert shapes(solve(tight)) == ["tp2"]
    device = replace(device, memory_bytes=19)
    full = replace(problem, cluster=replace(problem.cluster, device=device))
    output = solve(full)
    assert output.status is Status.NO_SOLUTION
    assert output.detail == (
        "2 clusters; no pipeline of submeshes uses exactly 2 devices and fits"
    )


def test_gpipe_overruns_and_is_reported_so():
    """Alpa counts two micro-batches in flight, GPipe keeps all eight."""
    cost = make_cost(10, 20, kept_bytes=10)
    problem = make_problem(
        {"a": cost, "b": cost},
        devices=2,
        global_batch=8,
        memory_bytes=30,
        schedule="gpipe",
    )
    result = run_solver(problem, "alpa")
    assert result.status is Status.OVER_MEMORY


def recomputing(memory_bytes, **job):
    cost = make_cost(
        10,
        20,
        activations=(
            Activations(kept_bytes=50),
            Activations(recompute="full", kept_bytes=10),
        ),
    )
    return make_problem(
        {"a": cost},
        devices=1,
        memory_bytes=memory_bytes,
        global_batch=2,
        recompute=("none", "full"),
        **job,
    )


def test_recomputation_is_tried_where_it_must_be():
    """Without 2 · 50 bytes; with it 2 · 10, and 10 ns more."""
    output = solve(recomputing(100))
    assert (shapes(output), output.own_objective_ns) == (["single"], 60)
    output = solve(recomputing(99))
    assert output.own_objective_ns == 80
    assert shapes(output) == ["recompute-full"]


def test_recomputation_can_be_set():
    output = solve(recomputing(100), recompute="full")
    assert output.own_objective_ns == 80
    assert solve(recomputing(99), recompute="none").plan is None


def test_the_best_micro_batch_counts():
    """Four samples in one take 50, in four 4 · 20, in two 2 · 24."""
    cost = tuple(
        make_cost(time_ns, 0, samples=samples)
        for samples, time_ns in ((1, 20), (2, 24), (4, 50))
    )
    problem = make_problem(
        {"a": cost}, devices=1, global_batch=4, micro_batches=(1, 2, 4)
    )
    output = solve(problem)
    assert (output.plan.micro_batch, output.own_objective_ns) == (2, 48)


def data_parallel(**job):
    return make_problem(
        {"a": make_cost(10, 20, weight_bytes=8)},
        devices=2,
        global_batch=4,
        micro_batches=(2,),
        **job,
    )


@pytest.mark.parametrize(
    ("allowed", "expected"), [((0,), 0), ((0, 1, 2), 1), ((3, 2), 2)]
)
def test_zero_is_1_or_the_lowest_allowed(allowed, expected):
    output = solve(data_parallel(zero=allowed))
    assert output.plan.stages[0].strategy == Strategy(dp=2, zero=expected)


def test_zero_can_be_set():
    output = solve(data_parallel(zero=(0, 1, 2)), zero="0")
    assert output.plan.stages[0].strategy == Strategy(dp=2)


def test_one_rank_takes_the_zero_stage_that_is_listed():
    problem = make_problem({"a": make_cost(1, 1)}, devices=1, zero=(2, 1))
    assert solve(problem).plan.stages[0].strategy == Strategy(zero=1)


def test_experts_are_split_over_all_data_ranks_or_none():
    """Of ep 1, 2, 4 on four data ranks 2 would be the fastest."""
    cost = tuple(
        make_cost(time_ns, 0, ep=ep) for ep, time_ns in ((1, 30), (2, 10), (4, 20))
    )
    problem = make_problem({"a": cost}, devices=4, global_batch=4, micro_batches=(4,))
    output = solve(problem)
    assert (shapes(output), output.own_objective_ns) == (["dp4·ep4"], 20)


def test_context_parallelism_is_not_searched():
    cost = (make_cost(10, 0, tp=2), make_cost(1, 0, cp=2))
    problem = make_problem({"a": cost}, devices=2)
    assert shapes(solve(problem)) == ["tp2"]


def test_the_number_of_stages_keeps_to_the_job():
    output = solve(two_layers(pipeline_parallel=(2,)))
    assert (shapes(output), output.own_objective_ns) == (["single"] * 2, 150)
    assert solve(two_layers(pipeline_parallel=(3,))).plan is None


def test_clusters_bind_the_stages():
    cost = make_cost(10, 20)
    problem = make_problem(
        dict.fromkeys("abcd", cost),
        edges=tuple((a, b, 1) for a, b in itertools.pairwise("abcd")),
        devices=4,
        global_batch=64,
    )
    assert len(solve(problem).plan.stages) == 4
    # two clusters on one device each cannot use four devices
    assert solve(problem, clusters="2").plan is None


def mixing(size_bytes, **job):
    """Layer a wants to split the batch, layer b itself; one stage."""
    return make_problem(
        {
            "a": (make_cost(30, 0), make_cost(100, 0, tp=2, samples=2)),
            "b": (make_cost(100, 0), make_cost(40, 0, tp=2, samples=2)),
        },
        edges=(("a", "b", size_bytes),),
        devices=2,
        global_batch=2,
        micro_batches=(2,),
        pipeline_parallel=(1,),
        **job,
    )


def test_layers_of_a_stage_differ_if_resharding_pays():
    """30 + 40 and the tensor: 10 + 2 · 8/1 and 10 + 2 · 8/2 ns, so 104.

    Forward in b's layout, one shard, backward in a's, two. Alike they take 130 or 140.
    """
    problem = mixing(8, granularity="layer")
    output = solve(problem)
    (stage,) = output.plan.stages
    assert stage.strategies == (Strategy(dp=2), Strategy(tp=2))
    assert output.own_objective_ns == 30 + 40 + 26 + 18
    assert score(problem, output.plan).stages[0].load == 114


def test_layers_stay_alike_if_resharding_does_not_pay():
    """The same with 20 bytes: 70 + 10 + 40 + 10 + 20 = 150."""
    output = solve(mixing(20, granularity="layer"))
    assert (shapes(output), output.own_objective_ns) == (["dp2"], 130)
    assert solve(mixing(8)).own_objective_ns == 130


def nodes_of_two():
    """Three layers of 20, 40 and 20 ns, the second 20 on two devices."""
    wide = make_cost(20, 0, tp=2)
    return make_problem(
        {"a": make_cost(20, 0), "b": (make_cost(40, 0), wide), "c": make_cost(20, 0)},
        edges=(("a", "b", 1), ("b", "c", 1)),
        topology=make_levels((2, *FLAT), (2, 100.0, 1e8)),
        devices=4,
        global_batch=16,
    )


def test_stages_are_not_placed_across_nodes():
    """1, 2, 1 devices take 20 each; the middle one is on both nodes."""
    problem = nodes_of_two()
    output = solve(problem, placement="any")
    assert [stage.devices for stage in output.plan.stages] == [1, 2, 1]
    assert output.own_objective_ns == 60 + 15 * 20
    assert output.detail == ("3 clusters; 1 of 3 stages on more nodes than they must")
    # nothing else uses four devices
    assert solve(problem).plan is None


def test_layers_of_a_graph_come_in_topological_order():
    cost = make_cost(10, 20)
    problem = make_problem(
        {"d": cost, "c": cost, "b": cost, "a": cost},
        edges=(("a", "b", 9), ("a", "c", 9), ("b", "d", 9), ("c", "d", 9)),
        devices=2,
        global_batch=8,
    )
    output = solve(problem)
    assert len(output.plan.stages) == 2
    assert score(problem, output.plan).feasible


# Limits and words


def test_the_best_plan_so_far_when_time_runs_out(monkeypatch):
    """The first of two micro-batches is searched, the second is not."""
    problem = two_layers(micro_batches=(1, 2))
    calls = []

    def improve(self, case, recompute):
        calls.append(case.micro_batch)
        if len(calls) > 1:
            raise OutOfTimeError
        return original(self, case, recompute)

    original = Space.improve
    monkeypatch.setattr(Space, "improve", improve)
    reports = []
    output = AlpaSolver().solve(problem, SolveOptions(), reports.append)
    assert calls == [1, 2]
    assert output.limit is Limit.TIME
    assert output.own_objective_ns == 144
    assert "1 of 2 searches done" in output.detail
    assert [report.message for report in reports] == [
        "micro-batch 1, recompute none (1 of 2)",
        "",
        "micro-batch 2, recompute none (2 of 2)",
    ]
    assert reports[1].plan == output.plan


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"replicas": (2,)},
            r"^\$.job.replicas: expected 1 among the allowed values, as Alpa "
            r"searches a single pipeline, got \[2\]; add 1 or use solver dp$",
        ),
        (
            {"context_parallel": (2, 4)},
            r"^\$.job.context_parallel: expected 1 among .*, as Alpa searches "
            r"no context parallelism, got \[2, 4\]",
        ),
    ],
)
def test_jobs_outside_its_space_are_refused(change, message):
    reason = AlpaSolver().unsupported(two_layers(**change))
    assert reason is not None
    assert re.search(message, reason)


def test_all_numbers_of_nodes_are_submeshes_on_request():
    """Twelve devices in nodes of four: three nodes are no power of two."""
    cost = tuple(make_cost(40 / n, 0, tp=n) for n in (1, 12))
    problem = make_problem(
        {"a": cost},
        topology=make_levels((4, *FLAT), (3, *FLAT)),
        devices=12,
        global_batch=4,
    )
    assert solve(problem).plan is None
    assert shapes(solve(problem, submeshes="all")) == ["tp12"]
