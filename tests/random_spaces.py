"""Random spaces of accelerators for tiny models, and what answers must be.

``python -m tests.random_spaces [NUMBER [POINTS]]`` compares so many spaces of
up to so many points, three models each, with enumerations, and says what they
took; 20 of up to 200 if none is given.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import yaml
from msgspec.structs import replace

from nest.accelerators.answers import answer
from nest.accelerators.objective import NO_PLAN, Objective
from nest.accelerators.records import Answers, ExtraAnalyses
from nest.accelerators.spec import Spec
from nest.accelerators.workload import QUANTUM_PS
from nest.models.architectures import Architecture
from nest.models.zoo import architecture
from tests.codesigns import spec_of
from tests.spaces import Enumerated, enumerate_space

ALL = ExtraAnalyses(frontier=True, sensitivity=True)

#: Values of parameters, of which spaces list some.
VALUES: dict[str, tuple[Any, ...]] = {
    "tensor_cores": (1, 2, 3, 4, 8),
    "rows": (4, 8, 16, 32),
    "columns": (4, 8, 24, 32),
    "vector_cores": (1, 2, 4),
    "lanes": (4, 8, 16),
    "sram": ("64 KiB", "256 KiB", "1 MiB"),
    "hbm": ("256 KiB", "512 KiB", "1 MiB", "8 MiB"),
    "hbm_bandwidth": ("2 GB/s", "10 GB/s", "50 GB/s"),
    "frequency": ("0.5 GHz", "1 GHz"),
    "link_bandwidth": ("1 GB/s", "5 GB/s"),
    "network_bandwidth": ("0.1 GB/s", "1 GB/s"),
    "devices_per_node": (1, 2),
    "core_buffer": ("1 KiB", "16 KiB"),
}


def tiny_model(name: str, random: Random) -> Architecture:
    """Return a model of one to three small layers."""
    like = architecture("gpt2")
    (tower,) = like.towers
    (run,) = tower.runs
    heads, size = random.choice([2, 4, 6]), random.choice([4, 8])
    attention = replace(
        run.block.attention,
        heads=heads,
        kv_heads=heads,
        head_size=size,
        causal=random.random() < 0.5,
    )
    hidden = heads * size
    mlp = replace(
        run.block.mlp,
        hidden=random.choice([2, 4]) * hidden,
        gated=random.random() < 0.3,
    )
    block = replace(run.block, hidden=hidden, attention=attention, mlp=mlp)
    runs = (replace(run, block=block, count=random.randint(1, 3)),)
    return replace(
        like,
        name=name,
        towers=(replace(tower, runs=runs, vocabulary=256),),
        head=replace(like.head, outputs=256),
    )


def random_spec(seed: int, max_points: int) -> tuple[Spec, dict[str, Any]]:
    """Return a space of at most so many points, and its models by name."""
    random = Random(seed)
    names = [f"tiny-{seed}-{number}" for number in range(3)]
    models = {name: tiny_model(name, random) for name in names}
    space: dict[str, Any] = {}
    points = 1
    for key in random.sample(list(VALUES), len(VALUES)):
        most = min(len(VALUES[key]), 3, max_points // points)
        count = random.randint(1, most)
        chosen = random.sample(VALUES[key], count)
        space[key] = chosen if count > 1 else chosen[0]
        points *= count
    kind = random.choice(["geometric-mean", "worst-case"])
    objective: dict[str, Any] = {
        "kind": kind,
        "base": {
            **{"name": "own", "tensor_cores": 2, "rows": 8, "columns": 8},
            **{"vector_cores": 1, "sram": "1 MiB", "hbm": "1 GiB"},
        },
    }
    if kind == "geometric-mean" and random.random() < 0.5:
        objective["weights"] = {names[0]: random.choice([2, 3])}
    document: dict[str, Any] = {
        "schema": "nest-codesign/1",
        "space": space,
        "models": names,
        "devices": random.choice([2, 4]),
        "job": {
            "global_batch": 4,
            "sequence_length": random.choice([16, 32]),
            "micro_batches": [1, 2],
            "tp": [1, 2],
        },
        "objective": objective,
        "convention": random.choice(["in-use", "paper", "overlapped"]),
        "attention": random.choice(["unfused", "fused"]),
        "technology": random.choice(["7nm", "45nm"]),
    }
    areas = sorted(
        point.area_e6_um2 for point in spec_of(yaml.safe_dump(document)).space.points
    )
    most = areas[len(areas) * random.randint(5, 10) // 10 - 1]
    document["limits"] = {"area": {"most": f"{most // 10**6 + 1} um2"}}
    return spec_of(yaml.safe_dump(document)), models


@contextmanager
def known(models: dict[str, Any]) -> Iterator[None]:
    """Let searches find models by their names."""
    with patch("nest.accelerators.answers.load_model", models.__getitem__):
        yield


def check(spec: Spec, found: Answers, every: Enumerated) -> None:
    """Compare answers with an enumeration; raise ``AssertionError``."""
    steps = np.array(every.steps)
    assert (np.array(every.bounds) <= steps).all()
    for number, best in enumerate(found.best):
        chosen: Sequence[int] = range(len(spec.models))
        if number < len(spec.models):
            chosen = (number,)
        objective = _objective(spec, found, chosen)
        costs = objective.costs(steps[list(chosen)]).tolist()
        expected = _smallest(spec, costs, objective.worst)
        assert sum(best.counts) == len(spec.space.points)
        assert best.proven
        relative = 0.0 if best.found is None else best.found.relative
        assert best.most_relative == relative
        assert (best.found is None) == (expected is None)
        if best.found is None or expected is None:
            continue
        assert best.found.point.index == expected
        for model, on in zip(chosen, best.found.on, strict=True):
            assert on.step_ps == steps[model][expected] * QUANTUM_PS
    _check_frontier(spec, found, steps)
    for neighbor in found.sensitivity:
        place = neighbor.found.point.index
        if neighbor.listed:
            for model, on in enumerate(neighbor.found.on):
                step = steps[model][place]
                quanta = None if step >= NO_PLAN else step * QUANTUM_PS
                assert on.step_ps == quanta


def _objective(spec: Spec, found: Answers, chosen: Sequence[int]) -> Objective:
    weights = spec.objective.weights
    return Objective(
        spec.objective.kind,  # type: ignore[arg-type]
        tuple(weights.get(spec.models[m], 1) for m in chosen),
        tuple((found.base.on[m].step_ps or 0) // QUANTUM_PS for m in chosen),
    )


def _smallest(spec: Spec, costs: Sequence[int], worst: int) -> int | None:
    """Return the best point: of equal ones the smallest, then the first."""
    fits = [
        (cost, point.area_e6_um2, point.index)
        for cost, point in zip(costs, spec.space.points, strict=True)
        if cost < worst
    ]
    return min(fits)[2] if fits else None


def _check_frontier(spec: Spec, found: Answers, steps: Any) -> None:
    """Compare the frontier: no point that fits beats one of it."""
    objective = _objective(spec, found, range(len(spec.models)))
    costs = objective.costs(steps).tolist()
    figures = [
        (cost, x.area_e6_um2, x.tdp_mw, x.price_micro_usd, x.index)
        for cost, x in zip(costs, spec.space.points, strict=True)
        if cost < objective.worst
    ]

    def beats(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
        no_worse = all(a <= b for a, b in zip(one[:4], other, strict=False))
        return no_worse and (one[:4] != other[:4] or one[4] < other[4])

    expected = {
        one[4]
        for one in figures
        if not any(beats(other, one) for other in figures if other != one)
    }
    assert {each.point.index for each in found.frontier} == expected


@cache
def compare(seed: int, max_points: int) -> tuple[Spec, Answers, Enumerated]:
    """Answer a random space, and compare it with its enumeration.

    Points are ruled out together however few they are: in such small spaces
    there would hardly be enough of them.
    """
    spec, models = random_spec(seed, max_points)
    with known(models), patch("nest.accelerators.search.LEAST_PARTED", 2):
        found = answer(spec, ALL)
        every = enumerate_space(spec)
    check(spec, found, every)
    return spec, found, every


def main(arguments: Sequence[str]) -> None:
    """Compare many spaces, and say what each took."""
    number = int(arguments[0]) if arguments else 20
    max_points = int(arguments[1]) if arguments[1:] else 200
    for seed in range(number):
        start_s = time.process_time()
        spec, found, every = compare(seed, max_points)
        best = found.best[-1]
        where = "none" if best.found is None else best.found.point.index
        print(
            f"space {seed}: {len(spec.space.points)} points, "
            f"{len(every.fits())} fit all models, best {where}, frontier "
            f"{len(found.frontier)}, {dict(best.counts._asdict())}, "
            f"{time.process_time() - start_s:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
