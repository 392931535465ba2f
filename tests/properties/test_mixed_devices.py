"""Two types of devices in one cluster, of other memory and other speed.

A test's own cluster says which type each device is; a block is as slow as its
slowest type. Exact solvers agree as on one type.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nest.cost.model import CostModel
from nest.cost.terms import LayerPrices
from nest.ir import Cluster, Device, Optimizer, Strategy
from nest.topology.protocol import Block
from tests.builders import make_cost, make_problem
from tests.properties.profiles import examples
from tests.properties.test_solvers_agree import solve, why_wrong
from tests.strategies import problems

#: What the passes of a layer take on the second type, in those of the first.
SLOWER = 3


class MixedCluster(Cluster, frozen=True, kw_only=True):
    """The first devices are of one type, the others of another."""

    num_first: int
    second: Device

    @property
    def types(self):
        """Both types."""
        return (self.device, self.second)

    def types_in(self, ranges=None):
        """Return which types some devices are of."""
        if ranges is None:
            return (0, 1)
        found = set()
        for first, end in ranges:
            found |= {0} if first < self.num_first else set()
            found |= {1} if end > self.num_first else set()
        return tuple(sorted(found))


@pytest.fixture(autouse=True, scope="module")
def _speeds():
    """Let the type of a block say how long its layers take."""
    terms = LayerPrices.terms

    def slower(self, layer, strategy, micro_batch, block, runtime):
        found = terms(self, layer, strategy, micro_batch, block, runtime)
        slow = block is not None and max(
            self.problem.cluster.types_in(block.ranges())
        )
        if found is None or not slow:
            return found
        return found._replace(
            forward=SLOWER * found.forward, backward=SLOWER * found.backward
        )

    LayerPrices.terms = slower
    yield
    LayerPrices.terms = terms


@st.composite
def mixed(draw, **options):
    """Draw a problem on two types of devices."""
    problem = draw(problems(preset="standard", **options))
    cluster = problem.cluster
    if cluster.num_devices == 1:
        return problem
    device = cluster.device
    memory = device.memory_bytes
    second = replace(
        device,
        memory_bytes=draw(
            st.sampled_from(
                (memory, memory // 2, max(0, memory - 1), 2 * memory)
            )
        ),
        hbm_bytes_per_s=draw(st.sampled_from((device.hbm_bytes_per_s, 5e8))),
    )
    first = draw(st.integers(1, cluster.num_devices - 1))
    if draw(st.booleans()):
        device, second = second, device
    return on_two_types(problem, device, first, second)


def on_two_types(problem, device, num_first, second):
    """Return a problem whose later devices are of another type."""
    cluster = MixedCluster(
        num_devices=problem.cluster.num_devices,
        device=device,
        topology=problem.cluster.topology,
        num_first=num_first,
        second=second,
    )
    return replace(problem, cluster=cluster)


def check(names, problem):
    truth = solve("brute", problem)
    wrong = [why_wrong(name, problem, truth) for name in names]
    assert not any(wrong), wrong


@pytest.mark.parametrize("granularity", ["stage", "layer"])
@pytest.mark.parametrize(
    ("second_bytes", "feasible"), [(99, False), (100, True)]
)
def test_a_path_that_fits_the_larger_devices_is_no_plan(
    granularity, second_bytes, feasible
):
    """Two layers of 100 bytes: one on the first device, one on the second.

    Both on the first need 200 bytes and have 150.
    """
    layer = make_cost(10, 20, kept_bytes=100)
    problem = make_problem(
        {"a": layer, "b": layer},
        edges=(("a", "b", 0),),
        devices=2,
        granularity=granularity,
    )
    device = replace(problem.cluster.device, memory_bytes=150)
    second = replace(device, memory_bytes=second_bytes)
    problem = on_two_types(problem, device, 1, second)
    truth = solve("brute", problem)
    assert (truth.plan is not None) == feasible
    check(("dp", "cpsat", "milp"), problem)


@pytest.mark.parametrize("granularity", ["stage", "layer"])
def test_a_slow_device_is_left_out_where_it_holds_up_the_others(granularity):
    """Three layers of 30 ns, or 90 on the second device; ten micro-batches.

    All on the first take 10 · 90 = 900 ns; the last layer on the second
    60 + 90 + 9 · 90 = 960. At the prices of the first it would be 630.
    """
    layer = make_cost(10, 20)
    problem = make_problem(
        {"a": layer, "b": layer, "c": layer},
        edges=(("a", "b", 0), ("b", "c", 0)),
        devices=2,
        granularity=granularity,
        global_batch=10,
        replicas=(1,),
    )
    device = problem.cluster.device
    problem = on_two_types(problem, device, 1, device)
    assert solve("dp", problem).claimed_quanta == 900
    check(("dp", "cpsat"), problem)


def test_an_update_without_a_place_is_that_of_the_fastest_devices():
    """50 bytes of weights, no state, at 1 or 0.5 bytes per ns.

    Gradients are read, weights read and written: 150 bytes.
    """
    problem = make_problem(
        {"a": make_cost(weight_bytes=50)},
        devices=2,
        hbm=5e8,
        optimizer=Optimizer(name="sgd", state_bytes=0),
    )
    slow = problem.cluster.device
    fast = replace(slow, hbm_bytes_per_s=1e9)
    model = CostModel(on_two_types(problem, slow, 1, fast))

    def sync(block):
        return model.layer_terms(0, Strategy(), 1, block).sync

    first, last = (Block(1, 2, offset, 1) for offset in (0, 1))
    assert [sync(first), sync(last), sync(None)] == [300, 150, 150]


@examples(60, full=2000)
@given(mixed())
def test_dp_and_cpsat_agree_with_brute_force(problem):
    check(("dp", "cpsat"), problem)


@examples(30, full=1000)
@given(mixed(granularity="layer"))
def test_they_agree_with_a_strategy_per_layer(problem):
    check(("dp", "cpsat"), problem)


@examples(15, full=500)
@given(mixed())
def test_milp_agrees_with_brute_force(problem):
    check(("milp",), problem)
