"""The settings of plans with one strategy, and what they cost."""

from __future__ import annotations

from nest.cost.model import CostModel
from nest.cost.space import PLAIN
from nest.search.passes.order_settings import Settings
from tests.builders import make_cost, make_levels, make_problem


def test_terms_are_priced_once_unless_they_depend_on_replicas() -> None:
    """Replicas that shard the optimizer hold less of it each."""
    problem = make_problem(
        {"a": make_cost(10, 20), "b": make_cost(10, 20)},
        edges=(("a", "b", 1),),
        topology=make_levels((4, 0.0, 1e9)),
        devices=4,
        global_batch=4,
        replicas=(1, 2),
        distributed_optimizer=True,
    )
    settings = Settings(CostModel(problem))
    one, two = settings.splits[1, 1], settings.splits[2, 1]
    sharded = PLAIN._replace(distributed_optimizer=True)
    for runtime in (PLAIN, sharded):
        terms = settings.terms(runtime, one)
        assert terms.model.runtime == runtime
        assert settings.terms(runtime, one) is terms
        others = settings.terms(runtime, two)
        assert (others is terms) == (runtime == PLAIN)
        assert others.replicas == (1 if runtime == PLAIN else 2)
