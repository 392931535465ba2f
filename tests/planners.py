"""Small problems, and words for plans, that tests of planners share."""

from __future__ import annotations

from typing import Any

from nest.ir import Plan, Problem
from tests.builders import make_cost, make_problem


def shape(plan: Plan) -> list[str]:
    """Return the stages as layers and strategy in words."""
    return [
        f"{' '.join(map(str, stage.layers))}: {stage.layer_strategies[0]}"
        for stage in plan.stages
    ]


def two_layers(size_bytes: int = 0, weights: int = 0, **fields: Any) -> Problem:
    """Return layers of 10 + 20 and 20 + 40 ns for two devices."""
    fields.setdefault("devices", 2)
    fields.setdefault("global_batch", 4)
    return make_problem(
        {
            "a": make_cost(10, 20, weight_bytes=2 * weights),
            "b": make_cost(20, 40, weight_bytes=weights),
        },
        edge=size_bytes,
        **fields,
    )


def chain_of(num_layers: int = 2, *, kept_bytes: int = 0, **fields: Any) -> Problem:
    """Return a chain of layers of 10 + 20 ns with edges of 100 bytes.

    A layer has costs for ``tp`` 1 and 2 and for one and two samples, or those
    of the field ``table``; a sample keeps ``kept_bytes``.
    """
    table = fields.pop(
        "table",
        tuple(
            make_cost(
                10 * n // tp,
                20 * n // tp,
                tp=tp,
                samples=n,
                weight_bytes=8 // tp,
                kept_bytes=kept_bytes * n // tp,
            )
            for tp in (1, 2)
            for n in (1, 2)
        ),
    )
    names = "abcdefgh"[:num_layers]
    fields.setdefault("devices", 4)
    return make_problem(dict.fromkeys(names, table), edge=100, **fields)
