"""Cost presets: data that turn the one cost model into a published one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nest.errors import UnknownNameError


@dataclass(frozen=True, kw_only=True)
class Preset:
    """The choices by which cost models differ.

    Attributes
    ----------
    name, summary
        Its keyword and one line for people.
    step_time
        ``sum-max``: ``Σ τ + (M-1) max τ + max Y``; ``slots-max``:
        ``(M+S-1) max τ + Y``; ``max``: ``max (τ + Y)``, the time per
        micro-batch in the steady state, with ``Y`` per micro-batch.
    sync_stages
        Whether ``Y`` is the maximum over the stages or the first stage's.
    uniform
        All stages share one strategy.
    last_stage_first
        The last stage sits on device 0, the one before it next, and so on.
    pitch_is_used
        Replicas are as far apart as the devices they use, instead of
        ``⌊N/R⌋``; only replica 0's boundaries are then priced.
    receive_per_edge
        A boundary costs its slowest edge (every edge to any other stage),
        instead of one message with all tensors that cross the cut.
    round_trip
        A transfer above level 0 costs twice: up and down.
    switch_tree_sync
        Gradient sync as NEST's code has it, instead of collectives.
    recompute_costs_backward
        A recomputed forward pass is charged the backward time.
    last_stage_recomputes
        Whether the last stage pays for recomputation.
    recompute_hides_receive
        A recomputed forward pass overlaps the receive of the gradient.
    inflight_capped
        In-flight micro-batches are at most ``M``.
    stash_boundary_only
        Under full recomputation a further in-flight micro-batch keeps the
        tensors that enter the stage; one keeps the activations.
    optimizer_update
        Whether the optimiser update takes time.
    ranks_take_turns
        The data parallel ranks of a stage take whole micro-batches in turn,
        instead of a share of each: ``dp`` divides ``M`` and ``Σ dp <= M``,
        what a stage does per micro-batch counts ``1/dp``, and ``⌈Σ dp from
        this stage on / dp⌉`` micro-batches are in flight.
    both_ends_pay
        An edge that leaves its stage costs both its stages, wherever they
        sit, ``2X/β`` of a rank's time: activation and gradient.
    server_sync
        Gradient sync with a parameter server spread over the ranks, ``4
        (dp-1)/dp W/β`` per step, divided by ``M``.
    recompute_per_layer
        The layers of a stage share ``dp`` and ``tp``, and each chooses its
        recomputation.
    weights_take_memory
        Whether weights, gradients and optimiser state count; if not, the
        static bytes of the activations hold them.
    extensions
        Whether a job may allow interleaving, overlap and the distributed
        optimiser; the published models know none of them.
    """

    name: str
    summary: str
    step_time: Literal["sum-max", "slots-max", "max"] = "sum-max"
    sync_stages: Literal["max", "first"] = "max"
    uniform: bool = False
    last_stage_first: bool = False
    pitch_is_used: bool = False
    receive_per_edge: bool = False
    round_trip: bool = False
    switch_tree_sync: bool = False
    recompute_costs_backward: bool = False
    last_stage_recomputes: bool = True
    recompute_hides_receive: bool = False
    inflight_capped: bool = True
    stash_boundary_only: bool = False
    optimizer_update: bool = True
    ranks_take_turns: bool = False
    both_ends_pay: bool = False
    server_sync: bool = False
    recompute_per_layer: bool = False
    weights_take_memory: bool = True
    extensions: bool = False


PRESETS = {
    preset.name: preset
    for preset in (
        Preset(
            name="standard",
            summary="the project's own model",
            extensions=True,
        ),
        Preset(
            name="nest-artifact",
            summary="NEST (MLSys'26 artifact), objective as coded",
            step_time="slots-max",
            sync_stages="first",
            uniform=True,
            last_stage_first=True,
            pitch_is_used=True,
            receive_per_edge=True,
            round_trip=True,
            switch_tree_sync=True,
            recompute_costs_backward=True,
            last_stage_recomputes=False,
            recompute_hides_receive=True,
            inflight_capped=False,
            stash_boundary_only=True,
            optimizer_update=False,
        ),
        Preset(
            name="piper",
            summary="Piper (NeurIPS'21), time per sample as coded",
            step_time="max",
            optimizer_update=False,
            ranks_take_turns=True,
            both_ends_pay=True,
            server_sync=True,
            recompute_per_layer=True,
            weights_take_memory=False,
        ),
    )
}


def get_preset(name: str) -> Preset:
    """Return the preset of that name.

    Raises
    ------
    UnknownNameError
        If there is none; the text lists them.
    """
    try:
        return PRESETS[name]
    except KeyError:
        raise UnknownNameError("preset", name, PRESETS) from None
