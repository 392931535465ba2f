"""No place that a stage can have takes less than the least over all."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nest.cost.model import Block, CostModel
from nest.cost.space import undivided
from nest.ir import Hierarchy, Problem
from nest.search.stages.closed_sets import MAX_CLOSED_SETS, closed_sets
from nest.search.stages.options import StageShapes, batch_terms
from tests.builders import with_cluster, with_job
from tests.properties.profiles import examples
from tests.strategies import Draw, problems


@st.composite
def on_odd_groups(draw: Draw) -> Problem:
    """Draw a problem with pairs of devices where groups may have three."""
    problem = draw(problems(preset="standard"))
    network = problem.cluster.topology
    if isinstance(network, Hierarchy):
        fan_out = draw(st.sampled_from((3, 5)))
        levels = [replace(level, fan_out=fan_out) for level in network.levels]
        problem = with_cluster(
            problem,
            topology=replace(network, levels=tuple(levels)),
            num_devices=min(8, fan_out ** len(levels)),
        )
    # What divides a micro-batch by two may be four devices or two.
    return with_job(problem, data_parallel=(2, 4))


@examples(100, full=2000)
@given(st.one_of(problems(), on_odd_groups()))
def test_no_place_of_a_replica_takes_less(problem):
    model = CostModel(problem)
    shapes = StageShapes(
        model, closed_sets(problem.graph, MAX_CLOSED_SETS, undivided(problem))
    )
    runtime = model.runtime
    for split, terms in batch_terms(shapes, runtime):
        if not terms.strategies:
            continue
        reached = {0}
        for offset in range(split.devices):
            if offset in reached:
                reached |= {offset + n for n in terms.devices.tolist()}
        for number, strategy in enumerate(terms.strategies):
            for offset in reached:
                if offset + strategy.devices > split.devices:
                    continue
                block = Block(split.replicas, split.devices, offset, strategy.devices)
                for kind, layer in enumerate(shapes.representatives):
                    passes = model.layers.passes(
                        *(layer, strategy, split.micro_batch, block), runtime.overlap
                    )
                    if passes is None:
                        continue
                    least = terms.least_anywhere[:, number, kind]
                    assert (least <= np.array(terms.schedule.amounts(passes))).all()
