"""``mcmc``: FlexFlow's random walk over parallelization strategies.

Source: Jia, Zaharia and Aiken, "Beyond data and model parallelism for deep neural
networks", MLSys'19 (arXiv 1807.05358), §6; ``FFModel::mcmc_optimize`` and
``Simulator::simulate_runtime`` of github.com/flexflow/FlexFlow, as of 2021.

Search space
    Plans with one strategy per stage, or per layer where the job allows it,
    over data and tensor parallelism. FlexFlow gives every operator degrees
    and a range of devices; here neighbors on the same devices are a stage.
    Without ZeRO, recomputation, context and expert parallelism: the least
    that the job and its costs allow of each.

Search
    From data parallelism on all devices, ``budget + 1`` proposals. Every ``budget /
    100`` of them, at least 1 and at most 1000, the walk returns to the best plan found.
    A proposal is taken if it is better, else with probability ``exp(-alpha d)``, ``d``
    the loss. Of the proposals a quarter propagate: a layer's configuration, devices
    included, is copied to a neighbor, from there on to the next with probability 3/4,
    and so on; neighbors are chosen in proportion to the tensors between them. The
    others give a random layer a random configuration.

Temperature
    FlexFlow counts ``d`` in ms, with ``alpha`` 1 by default: its own models take from
    some ms to some hundred. On steps of seconds a loss of a percent is never taken, and
    in the artifact's units, which are not all ms, ``d`` says nothing. With
    ``unit=percent`` ``d`` is percent of the step that the walk is at, whatever a step
    takes. There ``alpha`` is 0.05 by default, a loss of a fifth is taken with
    probability 1/e: plans of pipelines are further apart than those of operators.

Objective
    The simulated time of a step, ``M Σ (F_s + G_s) + max Y_s``: no
    pipelining, the stages of all micro-batches run one after another, then
    all gradients are synchronized and weights updated, ``Y_s`` (FlexFlow's
    bulk-synchronous mode, the default). To it come 1 ms per MB that a device
    lacks, summed over the devices; with ``unit=percent`` 1 % of the time.

Memory
    Weights, gradients, optimizer state and the activations of one
    micro-batch. Nothing else in flight, no working sets, no reserve.

Pipelines
    NEST compares itself with this walk, and the plans that its artifact
    records as ``MCMC`` are pipelines of one ``tp``: of layers in even parts
    nearly always, of as many replicas as there are devices for mostly. How
    they were found it does not say. With ``pipelines=yes``, the default under
    a preset whose stages share a strategy, the time is
    ``Σ τ + (M-1) max τ + max Y``, ``τ`` the passes and receives of a stage,
    and a stage keeps what the schedule has in flight. One more move draws a
    number of even stages and a strategy for all of them. After a move that
    changes the devices of stages there are as many replicas as fit; new
    batches draw ``(R, B)`` and ``dp`` freely. Losses count in percent.

Ignored
    That stages overlap on different micro-batches, unless ``pipelines=yes``,
    so that a pipeline is only ever worth its memory; then also what the job's
    schedule keeps in flight.

Deviations
    FlexFlow has no micro-batches and no replicas: a random configuration
    draws ``(R, B)`` anew in a quarter of the cases, keeping ``R dp``, ``tp``
    as far as the batches allow; else it gives the layer's stage a random
    strategy, or (a third each) splits the stage in front of the layer, the
    second part with a random strategy, or merges it with the next one. A
    layer alone gets the strategy where every layer may have its own and the
    devices are as many. FlexFlow draws degrees that divide the batch and the
    devices of a node, and a random first device; here they are drawn from
    what has a cost, and the devices follow from the order of the stages.
    A proposal that breaks a rule is lost. The last operator may change too.
    Times come from the problem's cost table and its network model instead of
    measurements and an event simulation of every message. With steps of
    seconds ``alpha`` = 1 per ms all but forbids steps uphill; it is the
    default nevertheless, as that is how FlexFlow behaves on such models.
"""

from __future__ import annotations

import math
import random

from baselines.common import Planner, Search, why_not_alike, why_not_turns
from baselines.mcmc_pipelines import PipelinedWalk
from baselines.mcmc_walk import State, Walk
from nest.solvers.base import SolverOutput
from nest.units import quanta_to_ns

BUDGET = 20_000

#: Values of the options: whether stages overlap, and whether losses count in percent.
YES_NO = {"no": False, "yes": True}
UNITS = {"ms": False, "percent": True}

#: ``alpha`` per unit.
ALPHA = {"ms": 1.0, "percent": 0.05}


class McmcSolver(Planner):
    """Walk."""

    name = "mcmc"
    capabilities = Planner.promises(
        method="FlexFlow (re-impl.): random walk, pipelines if asked for",
        objective=(
            "simulated time, with pipelining if asked for, plus 1 ms or 1 % "
            "per MB that a device lacks"
        ),
        remedies=("micro_batch", "recompute", "zero"),
        options={
            "budget": f"stop after this many proposals (default {BUDGET})",
            "alpha": (
                f"take a loss of d units with probability exp(-alpha d) (default "
                f"{ALPHA['ms']:g} per ms, {ALPHA['percent']:g} per percent)"
            ),
            "pipelines": (
                "yes if stages work on several micro-batches at a time, else "
                "no (default no; yes where all stages share a strategy)"
            ),
            "unit": (
                "of losses: ms, or percent of the step (default ms; percent "
                "with pipelines)"
            ),
        },
    )

    refusals = (why_not_turns, why_not_alike)

    def run(self, search: Search) -> SolverOutput:
        """Return the best plan of the walk."""
        quantum_ps = search.problem.quantum_ps
        budget = search.count("budget", BUDGET)
        default = "yes" if search.by_replicas else "no"
        pipelines = search.choice("pipelines", YES_NO, default)
        unit = "percent" if pipelines else "ms"
        relative = search.choice("unit", UNITS, unit)
        alpha = _read_alpha(search, ALPHA["percent" if relative else "ms"])
        draw = random.Random(search.options.seed)
        walk = (PipelinedWalk if pipelines else Walk)(search.model)
        walk.relative = relative
        best = walk.start(draw)
        if best is None:
            return search.answer("no plan found to start from")

        def improve(state: State, value: int, message: str) -> None:
            plan = walk.plan(state)
            search.improve(plan, quanta_to_ns(value, quantum_ps), message)

        best_value = walk.value(best)
        improve(best, best_value, "data parallel")
        current, current_value = best, best_value
        span = min(1000, max(1, budget // 100))
        num_tried = num_taken = 0
        while num_tried <= budget and not search.out_of_time():
            if num_tried and num_tried % span == 0:
                current, current_value = best, best_value
            proposal = walk.rewrite(draw, current)
            num_tried += 1
            if proposal is None:
                continue
            value = walk.value(proposal)
            per_quantum = alpha * quantum_ps / 1e9
            if relative:
                per_quantum = alpha * 100 / max(current_value, 1)
            if value < current_value or draw.random() < math.exp(
                -per_quantum * (value - current_value)
            ):
                current, current_value = proposal, value
                num_taken += 1
            if value < best_value:
                best, best_value = proposal, value
                improve(best, best_value, f"proposal {num_tried}")
        return search.answer(f"{num_taken} of {num_tried} proposals taken")


def _read_alpha(search: Search, default: float) -> float:
    try:
        alpha = float(search.options.extra.get("alpha", default))
    except ValueError:
        alpha = math.nan
    if not 0 < alpha < math.inf:
        raise search.refusal("alpha", "a number > 0")
    return alpha
