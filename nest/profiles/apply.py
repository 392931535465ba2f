"""Prefer measured layers over the analytic cost."""

from __future__ import annotations

import contextlib

from msgspec.structs import replace

from nest.errors import UnknownNameError
from nest.ir.graph import LayerCost, LayerKind
from nest.ir.problem import Problem
from nest.profiles.format import (
    DTYPE_BYTES,
    Entry,
    InvalidProfileError,
    Profile,
    check_roofline,
    peak_of,
)

#: Largest relative difference between the weights of a measured layer and of
#: the graph's: rows that pad a vocabulary, biases, norms.
WEIGHT_TOLERANCE = 0.05

#: What a name of a device may leave out.
_VENDORS = ("nvidia", "amd", "google", "intel")


def apply_profile(
    problem: Problem,
    profile: Profile,
    *,
    model: str | None = None,
    layers_per_node: int = 1,
    where: str = "profile",
) -> Problem:
    """Return the problem with the measured costs in place of the analytic.

    A cost whose kind, key and sequence length the profile has takes, for the
    ``n`` layers that its graph node stands for,

    - ``n`` times the measured forward and backward time;
    - ``n`` times the measured kept bytes, and the measured working memory as
      it is, where the profile has them. What the other recompute choices
      bring back follows: the measured kept bytes of a layer less theirs;
    - the time of selective recomputation scaled as the forward time is, for
      it repeats a part of the forward pass.

    Collectives stay, except those over ``tp`` where the measured times
    contain them. Weights stay. All other costs stay analytic;
    ``problem.source`` says how many are which.

    The problem's kinds are those of an architecture. ``model`` says whose entries to
    use, if the profile has several; a graph node stands for ``layers_per_node`` layers,
    unless it is an embedding or a head; ``where`` names the profile in messages.

    Raises ``InvalidProfileError`` if the profile is of another sequence length, device,
    data type, split of activations or model; if a layer runs faster than the device's
    peak; or if no cost is in it. Raises ``UnknownNameError`` if the profile has no such
    model.
    """
    entries = _entries(problem, profile, model, where)
    _check_setting(problem, profile, entries, where)
    peak = peak_of(problem.cluster.types[0].peak_flops, profile.dtype)
    for entry in entries:
        check_roofline(entry, peak, where)

    # Where plans choose, costs with another split of activations stay as they are.
    split = problem.job.plans_split_sequences and profile.sequence_parallel
    measured: dict[tuple[object, ...], Entry] = {
        (
            *(entry.kind, entry.tp, entry.cp, entry.ep, 0),
            *(split and entry.tp > 1, entry.samples),
        ): entry
        for entry in entries
    }
    total = taken = 0
    kinds = []
    for kind in problem.graph.kinds:
        single = kind.name.endswith(("embedding", "head"))
        count = 1 if single else layers_per_node
        costs = []
        for cost in kind.costs:
            total += 1
            measurement = measured.get((kind.name, *cost.key))
            if measurement is None:
                costs.append(cost)
                continue
            _check_weights(problem, profile, measurement, cost, count, where)
            taken += 1
            costs.append(_measured_cost(cost, measurement, count))
        kinds.append(LayerKind(name=kind.name, costs=tuple(costs)))
    if not taken:
        first = problem.graph.kinds[0]
        tp, *_, samples = first.costs[0].key
        raise InvalidProfileError(
            f"{where}: expected a layer of the problem, for example {first.name} "
            f"tp={tp} samples={samples}, got {_listed(entries)}; profile the layers "
            f"and degrees that the problem uses"
        )
    framework = (profile.framework, profile.framework_version, profile.dtype)
    summary = (
        f"{taken} of {total} layer costs measured ({entries[0].model} on "
        f"{profile.device}, {' '.join(filter(None, framework))}), "
        f"{total - taken} analytic"
    )
    return replace(
        problem,
        source="; ".join(filter(None, (problem.source, summary))),
        graph=replace(problem.graph, kinds=tuple(kinds)),
    )


def _entries(
    problem: Problem, profile: Profile, model: str | None, where: str
) -> tuple[Entry, ...]:
    """Return the entries of the model at the job's sequence length."""
    if model is None:
        if len(profile.models) > 1:
            raise InvalidProfileError(
                f"{where}: model: expected entries of one model, got "
                f"{', '.join(profile.models)}; name the one to use"
            )
        model = profile.models[0]
    if model not in profile.models:
        raise UnknownNameError(f"{where}: model", model, profile.models)
    entries = [entry for entry in profile.entries if entry.model == model]
    length = problem.job.sequence_length
    matching = tuple(e for e in entries if e.sequence_length == length)
    if not matching:
        lengths = sorted({entry.sequence_length for entry in entries})
        raise InvalidProfileError(
            f"{where}: sequence_length: expected {length}, as the job has, got "
            f"{' and '.join(map(str, lengths))}; profile with that length"
        )
    return matching


def _check_setting(
    problem: Problem, profile: Profile, entries: tuple[Entry, ...], where: str
) -> None:
    """Refuse a profile that was measured under other conditions."""
    device = problem.cluster.device_name
    if not same_device(device, profile.device):
        raise InvalidProfileError(
            f"{where}: device: expected {device!r}, as the cluster has, got "
            f"{profile.device!r}; profile on that device"
        )
    dtype = problem.job.dtype
    if profile.dtype != dtype:
        raise InvalidProfileError(
            f"{where}: dtype: expected {dtype!r}, as the job has, got "
            f"{profile.dtype!r}; profile in that data type"
        )
    wide = any(entry.tp > 1 for entry in entries)
    parallel = problem.job.sequence_parallel
    if (
        wide
        and not problem.job.plans_split_sequences
        and profile.sequence_parallel != parallel
    ):
        raise InvalidProfileError(
            f"{where}: sequence_parallel: expected {str(parallel).lower()}, "
            f"as the job has, got {str(profile.sequence_parallel).lower()}; "
            f"profile like the job or with tp=1 only"
        )


def _check_weights(
    problem: Problem,
    profile: Profile,
    entry: Entry,
    cost: LayerCost,
    count: int,
    where: str,
) -> None:
    """Refuse a layer of another size: another model, or another count."""
    if entry.weight_bytes is None:
        return
    weights = entry.weight_bytes / DTYPE_BYTES[profile.dtype]
    own_bytes = cost.weight_bytes + cost.expert_weight_bytes
    expected = own_bytes / problem.job.optimizer.weight_bytes / count
    if abs(weights - expected) > WEIGHT_TOLERANCE * max(weights, expected):
        raise InvalidProfileError(
            f"{where}: {entry.name}: weight_bytes: expected about "
            f"{expected * DTYPE_BYTES[profile.dtype]:.0f}, as one layer of "
            f"the graph's has (layers_per_node {count}), got "
            f"{entry.weight_bytes}; check the model and layers_per_node"
        )


def _measured_cost(cost: LayerCost, entry: Entry, count: int) -> LayerCost:
    """Return the cost of ``count`` layers with what was measured of one.

    What the host takes to issue them stays: it counts collectives too, which
    no profile of one layer need have.
    """
    forward_ns = count * entry.forward_ns
    scale = forward_ns / cost.forward_ns if cost.forward_ns else 1.0
    kept_bytes = entry.kept_bytes
    activations = []
    for choice in cost.activations:
        changes: dict[str, float | int] = {"extra_ns": choice.extra_ns * scale}
        if kept_bytes is not None and choice.recompute == "none":
            changes["kept_bytes"] = count * kept_bytes
        elif kept_bytes is not None:
            # No choice keeps more than keeping everything does.
            choice_bytes = min(choice.kept_bytes, count * kept_bytes)
            changes["kept_bytes"] = choice_bytes
            changes["working_bytes"] = kept_bytes - choice_bytes // count
        activations.append(replace(choice, **changes))
    backward_ns = count * entry.backward_ns
    weight_backward_ns = cost.weight_backward_ns
    if weight_backward_ns is not None and cost.backward_ns:
        # Nobody measured it: its share of the pass stays as it was.
        share = weight_backward_ns / cost.backward_ns
        weight_backward_ns = min(share * backward_ns, backward_ns)
    collectives = cost.collectives
    if entry.includes_tp_collectives:
        collectives = tuple(c for c in collectives if c.axis != "tp")
    working_bytes = cost.working_bytes
    if entry.working_bytes is not None:
        working_bytes = entry.working_bytes
    return replace(
        cost,
        forward_ns=forward_ns,
        backward_ns=backward_ns,
        weight_backward_ns=weight_backward_ns,
        working_bytes=working_bytes,
        activations=tuple(activations),
        collectives=collectives,
        measured=True,
    )


def same_device(one: str, other: str) -> bool:
    """Whether two names are those of one device.

    Names that the hardware data know as one device are the same, and so are
    names that differ in case, blanks, hyphens or the vendor only.
    """
    return _canonical(one) == _canonical(other)


def _canonical(name: str) -> str:
    from nest.hardware import device_spec

    with contextlib.suppress(UnknownNameError):
        name = device_spec(name).name
    tokens = name.casefold().replace("-", " ").split()
    return " ".join(token for token in tokens if token not in _VENDORS)


def _listed(entries: tuple[Entry, ...]) -> str:
    names = [entry.name for entry in entries[:3]]
    more = len(entries) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")
