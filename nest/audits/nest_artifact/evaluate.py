"""What NEST's artifact prints for a plan, in floats and to the last digit.

The shared model prices these inputs in integers under the preset
``nest-artifact``. The artifact adds doubles in an order of its own, and it
also prices pipelines whose stages are in reverse, which are no plans. This
repeats it, for audits of its figures; nothing is searched with it.

Source: reference/nest-artifact.md §2 and §4. Two things the recorded figures
imply beyond it: an edge is charged only if its layers follow each other
(BERT's tied embedding, which skips all layers, is not), and a first stage that
receives something does so at the level of the first two blocks of devices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import msgspec

from nest.audits.nest_artifact.importer import ArtifactFile
from nest.errors import InvalidProblemError
from nest.ir.base import Count
from nest.units import ceil_div


class NamedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a baseline, as inputs name it.

    ``p``, ``d`` and ``t`` are stages, replicas and tensor parallel width;
    ``layer_partition`` has the layers of every stage, where they are not split evenly.
    """

    num_transformer_layers: Count
    p: Count
    d: Count
    t: Count
    layer_partition: tuple[Count, ...] | None = None

    def sizes(self, num_nodes: int, intended: bool) -> list[int]:
        """Return the nodes of every stage; the first node is the embedding.

        Every stage has ``⌈L/p⌉`` nodes, or what the input lists, and the
        last one the rest. The intended split does not count the embedding.
        """
        each = ceil_div(self.num_transformer_layers, self.p)
        before_last = list(self.layer_partition or [each] * self.p)[:-1]
        if intended and before_last:
            before_last[0] += 1
        sizes: list[int] = []
        for size in [*before_last, num_nodes]:
            sizes.append(min(size, num_nodes - sum(sizes)))
        return [size for size in sizes if size]


def named_plans(file: ArtifactFile, where: str) -> dict[str, NamedPlan]:
    """Return the plans of baselines that an input names.

    Raises ``InvalidProblemError`` if they are something else.
    """
    try:
        return msgspec.convert(file.baselines or {}, dict[str, NamedPlan])
    except msgspec.ValidationError as error:
        raise InvalidProblemError(
            f"{where}: baselines: expected plans with p, d, t and "
            f"num_transformer_layers, got others ({error}); correct them"
        ) from None


def printed_time(
    file: ArtifactFile, width: int, replicas: int, stages: Sequence[Sequence[int]]
) -> float | None:
    """Return ``finalTimePerBatch`` of a pipeline, in the unit of the file.

    All stages have one tensor parallel ``width``; ``replicas`` is the data parallel
    degree. ``stages`` are ids of the layers of every stage, in the order in which the
    artifact takes them for a pipeline. ``None`` if a stage does not fit its memory,
    there are not as many devices, or the file has no such width.
    """
    size = width * file.ep_degree * file.cp_degree
    devices = len(stages) * size
    if replicas * devices > file.maxDevices or width not in file.nodes:
        return None
    nodes = {node.id: node for node in file.nodes[width]}
    rank = {layer: i for i, layer in enumerate(nodes_in_order(file, width))}
    offsets = [(len(stages) - 1 - i) * size for i in range(len(stages))]
    longest = 0.0
    for index, members in enumerate(stages):
        stages_left = len(stages) - index
        inside = set(members)
        before = offsets[index - 1] if index else offsets[-1] + size
        after = offsets[min(index + 1, len(stages) - 1)]
        level_in = _level(file, offsets[index] if index else 0, before)
        level_out = _level(file, offsets[index], after)
        entering = leaving = 0.0
        stash = 0
        for edge in file.edges[width]:
            source, target = edge.ends
            if (source in inside) == (target in inside):
                continue
            size_bytes = edge.communicationCost
            follows = rank[target] - rank[source] == 1
            if target in inside:
                stash += size_bytes
                if follows:
                    time = _transfer(file, size_bytes, level_in)
                    entering = max(entering, time)
            elif follows:
                time = _transfer(file, size_bytes, level_out)
                leaving = max(leaving, time)
        weights = sum(nodes[i].parameterSize for i in members)
        kept_bytes = sum(nodes[i].activationSize for i in members)
        # From the end on, as doubles add up.
        backwards = [nodes[i].optimalLatencyBw for i in members[::-1]]
        again = 0.0
        for time in backwards:
            again += time
        recomputes = file.activationRecomputation and stages_left > 1
        load = entering
        for i in members[::-1]:
            load += nodes[i].optimalLatencyFw
        backward = max(again, leaving) if recomputes else leaving
        for time in backwards:
            backward += time
        longest = max(longest, load + backward)
        state = 6 * weights if file.optimizerAlgorithm == "Adam" else 0
        further = stash if file.activationRecomputation else kept_bytes
        held = 2 * weights + state + kept_bytes + (stages_left - 1) * further
        if held > file.maxMemoryPerDevice:
            return None
    first = sum(nodes[i].parameterSize for i in stages[0])
    rounds = ceil_div(int(file.mbsInBatch), replicas) + len(stages) - 1
    return longest * rounds + _sync(file, replicas, devices, first)


def nodes_in_order(file: ArtifactFile, width: int) -> list[int]:
    """Return the ids of layers as the artifact numbers them: they ascend."""
    return sorted(node.id for node in file.nodes[width])


def _level(file: ArtifactFile, first: int, second: int) -> int:
    """Return the level at which two devices meet."""
    capacities = list(accumulate(file.devices_per_level, lambda x, y: x * y))
    for level, capacity in enumerate(capacities):
        if first // capacity == second // capacity:
            return level
    return len(capacities) - 1


def _transfer(file: ArtifactFile, size_bytes: int, level: int) -> float:
    slowest = min(file.bws[: level + 1])
    time = size_bytes / slowest + file.latency_per_level[level]
    return 2 * time if level else time


def _sync(file: ArtifactFile, replicas: int, pitch: int, weight_bytes: int) -> float:
    """Return the gradient sync of the first stage."""
    time = total = 0.0
    for i in range(int(math.log2(replicas))):
        latency, bandwidth = file.latency_per_level[0], file.bws[0]
        time += latency + weight_bytes / 2**i / bandwidth
    for level in range(1, _level(file, 0, (replicas - 1) * pitch) + 1):
        latency, bandwidth = file.latency_per_level[level], file.bws[level]
        time += 2 * (latency + weight_bytes / bandwidth) + total
        total += time
    return time
