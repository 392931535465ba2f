"""Small problems in half quanta, in which all hides and rounding decides."""

from __future__ import annotations

import itertools
from random import Random

from msgspec.structs import replace

from nest.ir import LayerCost, Problem
from tests.builders import call, make_cost, make_levels, make_problem


def half_quanta(random: Random) -> Problem:
    """Draw one to three layers on two devices, split over them or not.

    A layer that is split computes a whole number of quanta and a half, and
    all of its communication hides, at most with some of the names left out.
    """
    quantum_ps = random.choice((1000, 10_000, 3000, 7000))
    name = random.choice(("tp", "cp", "ep", "weights"))
    layered = random.random() < 0.3
    names = "abc"[: random.choice((1, 2, 3))]
    costs: dict[str, LayerCost | tuple[LayerCost, ...]] = {}
    # Two samples per micro-batch where one device of the group has each.
    samples = 2 if name in ("ep", "weights") else 1
    for layer in names:
        # Just below a power of two a sum has fewer bits behind the point.
        power = 2 ** random.randrange(6, 12) * 1000 // quantum_ps
        number = random.choice((power - 1, power - 2, random.randrange(900)))
        half_ns = (number + 0.5) * quantum_ps / 1000
        whole = make_cost(
            2 * half_ns + random.choice((0, 1)), 2 * half_ns, samples=samples
        )
        part = make_cost(half_ns, half_ns)
        if name == "weights":
            size = random.randrange(1, 60)
            whole, part = (replace(x, weight_bytes=size) for x in (whole, part))
        else:
            part = replace(
                part,
                **{name: 2},
                collectives=tuple(
                    call("all-reduce", name, phase, random.randrange(1, 60))
                    for phase in ("forward", "backward")
                ),
            )
        costs[layer] = (whole, part)
    other = random.choice(("gradients", "weights"))
    return make_problem(
        costs,
        edges=tuple(
            (a, b, random.choice((0, 5))) for a, b in itertools.pairwise(names)
        ),
        devices=2,
        topology=make_levels((2, random.choice((0.9, 0.1, 1.7, 33.3)), 1e9)),
        quantum_ps=quantum_ps,
        global_batch=8,
        micro_batches=(samples,),
        zero=(3,) if name == "weights" else (0,),
        replicas=random.choice((None, (1,))),
        schedule=random.choice(("1f1b", "gpipe")),
        granularity="layer" if layered else "stage",
        overlap={other: float(random.random() < 0.5), name: 1.0},
        gradient_sync_overlap=random.choice((0.0, 1.0)),
    )
