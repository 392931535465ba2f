"""Every kind of model becomes a problem, or is refused for what its loss compares."""

from __future__ import annotations

from typing import Any

import pytest

import nest
from nest.errors import InvalidProblemError
from nest.requests.modules import ModuleRequest
from tests.unit.capture.test_counts import MODELS, TINY, blocks

#: Kinds whose loss is no mean over samples, and what says so.
REFUSED = {
    "moe_einsum": "blocks.0.experts: expected a loss that is the mean of its samples'",
    "moe_index": "layers.layer1.mlp: expected a loss that is the mean of its samples'",
    "two_towers": "got matmul, which compares the samples of a batch with one another",
}


def request(name: str, **settings: Any) -> ModuleRequest:
    return ModuleRequest(
        factory=f"{MODELS}:{name}", cluster="a100x4", batch=8, tp=(1,), **settings
    )


@pytest.mark.parametrize("name", TINY)
def test_a_problem_is_solved(torch: Any, name: str) -> None:
    """Its layers are the blocks and what is between them."""
    problem = request(name, split_loss=name in REFUSED).build_problem()
    paths, calls = blocks(name)
    ids = [layer.id for layer in problem.graph.layers]
    assert set(paths) <= set(ids)
    assert len(ids) >= len(paths) * calls
    assert nest.solve(problem).status == "optimal"


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_loss_over_the_batch_is_refused(torch: Any, name: str) -> None:
    with pytest.raises(InvalidProblemError, match=REFUSED[name]):
        request(name).build_problem()
