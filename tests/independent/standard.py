"""The preset ``standard``, written from docs/cost-model.md alone.

Naive on purpose: groups are lists of devices, every collective is priced where it
occurs, nothing is kept for later. Names and sections are those of the page.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from nest.ir import (
    Device,
    DeviceTimes,
    GraphTopology,
    LayerCost,
    Plan,
    Problem,
    Strategy,
)
from tests.independent import graph, network
from tests.independent.record import MEMORY, BlockRecord, Record, StageRecord
from tests.independent.rules import (
    activations_of,
    batches,
    block_of,
    cost_of,
    expert_tensor,
    num_blocks,
    samples_per_rank,
    schedule_name,
    strategies_of,
)

# Integers and floats


def rounded(problem: Problem, ns: float) -> int:
    """Return a time in quanta, half up."""
    return math.floor(ns * 1000.0 / problem.quantum_ps + 0.5)


def up(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


# Groups


def sizes_and_strides(strategy: Strategy) -> dict[str, tuple[int, int]]:
    """Return size and stride of the groups of every axis."""
    dp, tp, cp, ep = strategy.dp, strategy.tp, strategy.cp, strategy.ep
    etp = expert_tensor(strategy)
    return {
        "tp": (tp, 1),
        "cp": (cp, tp),
        "dp": (dp, tp * cp),
        "ep": (ep, etp),
        "data": (dp * cp, tp),
        "expert-data": (dp * tp * cp // (etp * ep), etp * ep),
    }


def groups(strategy: Strategy, axis: str, starts: list[int]) -> list[list[int]]:
    """Return the groups of an axis in the blocks that begin at ``starts``."""
    devices = strategy.dp * strategy.tp * strategy.cp
    if axis == "replicas":
        return [[start + rank for start in starts] for rank in range(devices)]
    if axis in ("sync", "expert-sync"):
        own = "data" if axis == "sync" else "expert-data"
        return [
            [start + rank for start in starts for rank in group]
            for group in groups(strategy, own, [0])
        ]
    size, stride = sizes_and_strides(strategy)[axis]
    return [
        [start + tile + j + member * stride for member in range(size)]
        for start in starts
        for tile in range(0, devices, size * stride)
        for j in range(stride)
    ]


# Devices


def all_devices(problem: Problem) -> list[Device]:
    """Return what every device of the cluster is."""
    cluster = problem.cluster
    found = [cluster.device] * cluster.num_devices
    for part in cluster.others:
        for device in range(part.first, part.first + part.count):
            found[device] = part.device
    return found


def devices_at(problem: Problem, starts: Iterable[int], size: int) -> list[Device]:
    """Return the devices of a block, in all replicas."""
    every = all_devices(problem)
    return [device for x in starts for device in every[x : x + size]]


# Layers

#: What all stages do at once.
END_OF_STEP = ("sync", "expert-sync", "replicas", "step-data", "step-expert-data")


@dataclass
class LayerOfStage:
    """A layer where it runs: its cost entry, its strategy, its blocks."""

    problem: Problem
    plan: Plan
    name: str
    strategy: Strategy
    starts: list[int]

    @property
    def cost(self) -> LayerCost:
        cost = cost_of(
            self.problem,
            self.name,
            self.strategy,
            samples_per_rank(self.problem, self.plan, self.strategy),
        )
        assert cost is not None
        return cost

    def collective(self, kind: str, axis: str, size_bytes: int) -> float:
        """Return the time of all groups of an axis together, in ns."""
        topology = self.problem.cluster.topology
        own = axis.removeprefix("step-")
        lists = groups(self.strategy, own, self.starts)
        if isinstance(topology, GraphTopology):
            if axis in END_OF_STEP:
                lists = [
                    group
                    for starts in self.tiles()
                    for group in groups(self.strategy, own, starts)
                ]
            return graph.collective(topology, kind, lists, size_bytes)
        return max(
            network.collective(topology, kind, group, size_bytes) for group in lists
        )

    def tiles(self) -> list[list[int]]:
        """Return the starts of all blocks that the replicas have room for.

        Blocks of this one's size, whole blocks away from it.
        """
        n = self.strategy.dp * self.strategy.tp * self.strategy.cp
        pitch = self.problem.cluster.num_devices // self.plan.replicas
        k = self.starts[0]
        while k >= n:
            k -= n
        return [
            [replica * pitch + place for replica in range(self.plan.replicas)]
            for place in range(k, pitch - n + 1, n)
        ]

    # Sizes: of dense weights, then of experts

    @property
    def weights(self) -> tuple[int, int]:
        return (self.cost.weight_bytes, self.cost.expert_weight_bytes)

    @property
    def gradients(self) -> tuple[int, int]:
        optimizer = self.problem.job.optimizer
        dense, expert = self.weights
        return (
            up(dense * optimizer.gradient_bytes, optimizer.weight_bytes),
            up(expert * optimizer.gradient_bytes, optimizer.weight_bytes),
        )

    @property
    def state(self) -> tuple[int, int]:
        optimizer = self.problem.job.optimizer
        dense, expert = self.weights
        return (
            up(dense * optimizer.state_bytes, optimizer.weight_bytes),
            up(expert * optimizer.state_bytes, optimizer.weight_bytes),
        )

    @property
    def buffers(self) -> tuple[int, int]:
        optimizer = self.problem.job.optimizer
        dense, expert = self.weights
        return (
            math.ceil(dense * optimizer.buffer_bytes / optimizer.weight_bytes),
            math.ceil(expert * optimizer.buffer_bytes / optimizer.weight_bytes),
        )

    @property
    def sharing(self) -> tuple[int, int]:
        """Ranks ``z`` of a replica that share dense weights, experts."""
        sizes = sizes_and_strides(self.strategy)
        return (sizes["data"][0], sizes["expert-data"][0])

    # Passes

    @property
    def devices(self) -> list[Device]:
        strategy = self.strategy
        size = strategy.dp * strategy.tp * strategy.cp
        return devices_at(self.problem, self.starts, size)

    def slowest(self, field: str, otherwise: float) -> float:
        """Return the largest of the times that ``by_device`` may replace."""
        tables = {times.device: times for times in self.cost.by_device}
        return max(
            getattr(tables[x.name], field) if x.name in tables else otherwise
            for x in self.devices
        )

    def computation(self, phase: str) -> float:
        if phase == "forward":
            return self.slowest("forward_ns", self.cost.forward_ns)
        return self.slowest("backward_ns", self.cost.backward_ns)

    def host(self, phase: str) -> float:
        """Return what the host takes to issue a pass, in ns."""
        if phase == "forward":
            return self.slowest("forward_host_ns", self.cost.forward_host_ns)
        return self.slowest("backward_host_ns", self.cost.backward_host_ns)

    def calls(self, phase: str) -> list[tuple[str, float]]:
        """Return axis and time ``x`` of every collective of a pass."""
        return [
            (
                call.axis,
                call.count * self.collective(call.kind, call.axis, call.size_bytes),
            )
            for call in self.cost.collectives
            if call.phase == phase
        ]

    def gather_ns(self) -> float:
        """Return ``a_dense + a_expert``."""
        if self.strategy.zero < 3:
            return 0.0
        dense, expert = self.weights
        return self.collective("all-gather", "data", dense) + self.collective(
            "all-gather", "expert-data", expert
        )

    def scatter_ns(self) -> float:
        """Return ``d_dense + d_expert``."""
        if self.strategy.zero < 2:
            return 0.0
        dense, expert = self.gradients
        return self.collective("reduce-scatter", "data", dense) + self.collective(
            "reduce-scatter", "expert-data", expert
        )

    def one_pass(self, phase: str, zero_ns: float | None) -> tuple[int, int]:
        """Return a pass, with the ZeRO traffic ``y`` in the term or not.

        And what of it may hide behind another micro-batch.
        """
        fractions: dict[str, float] = {
            name: self.problem.job.overlap[name] for name in self.plan.overlap
        }
        moved = apart = 0.0
        shown = self.computation(phase)
        if zero_ns is not None:
            moved += zero_ns
            shown += (1.0 - fractions["weights"]) * zero_ns
        for axis, time in self.calls(phase):
            if axis == "ep" and self.pairs:
                apart += time
                continue
            moved += time
            if axis in ("tp", "cp", "ep"):
                shown += (1.0 - fractions.get(axis, 0.0)) * time
            else:
                shown += time
        issued = rounded(self.problem, self.host(phase))
        own = rounded(self.problem, max(moved, shown))
        whole = max(own + rounded(self.problem, apart), issued)
        return whole, whole - max(own, issued)

    @property
    def pairs(self) -> bool:
        """Whether experts' collectives hide behind another micro-batch."""
        job, overlap = self.problem.job, self.plan.overlap
        return job.schedule == "dualpipe-v" and "ep" not in overlap

    def passes(self, phase: str) -> tuple[int, int]:
        """Return a pass as the stage runs it, and what may hide in a pair."""
        traffic = [self.gather_ns()]
        if phase == "backward":
            traffic.append(self.scatter_ns())
        # What goes to the host, or comes back, runs beside the pass.
        entry = activations_of(self.cost, self.strategy.recompute)
        assert entry is not None
        transfer = rounded(self.problem, entry.transfer_ns)
        if "weights" in self.plan.overlap:
            whole, hidden = self.one_pass(phase, sum(traffic))
            return max(whole, transfer), hidden
        whole, hidden = self.one_pass(phase, None)
        whole = max(whole, transfer)
        return whole + sum(rounded(self.problem, x) for x in traffic), hidden

    def forward(self) -> int:
        """Return what the layer adds to the forward load."""
        return self.passes("forward")[0]

    def backward(self) -> int:
        """Return what it adds to the backward load, but recomputation."""
        return self.passes("backward")[0]

    def weight_backward(self) -> int:
        """Return what it adds to the gradients of weights of its stage."""
        fraction = self.problem.job.weight_backward_fraction
        times = []
        for device in self.devices:
            entry: LayerCost | DeviceTimes = self.cost
            for other in self.cost.by_device:
                if other.device == device.name:
                    entry = other
            if entry.weight_backward_ns is None:
                times.append(entry.backward_ns * fraction)
            else:
                times.append(entry.weight_backward_ns)
        found = rounded(self.problem, max(times))
        if "weights" not in self.plan.overlap:
            found += rounded(self.problem, self.scatter_ns())
        return found

    def paired(self, phase: str) -> int:
        """Return what of a pass hides behind the other one of a pair."""
        return self.passes(phase)[1]

    def recomputation(self) -> int:
        if self.strategy.recompute == "full":
            entry = activations_of(self.cost, "full")
            if entry is not None and not entry.reruns:
                return 0
            return self.one_pass("forward", None)[0]
        if self.strategy.recompute == "selective":
            entry = activations_of(self.cost, "selective")
            assert entry is not None
            extra_ns = self.slowest("extra_ns", entry.extra_ns)
            host_ns = self.slowest("extra_host_ns", entry.extra_host_ns)
            return rounded(self.problem, max(extra_ns, host_ns))
        return 0

    # End of the step

    def sync_ns(self) -> float:
        job = self.problem.job
        dense, expert = self.gradients
        dense_weights, expert_weights = self.weights
        z_dense, z_expert = self.sharing
        zero = self.strategy.zero
        time = 0.0
        if self.plan.distributed_optimizer:
            time += self.collective("reduce-scatter", "sync", dense) + self.collective(
                "reduce-scatter", "expert-sync", expert
            )
            time += self.collective(
                "all-gather", "sync", dense_weights
            ) + self.collective("all-gather", "expert-sync", expert_weights)
        elif zero == 0:
            time += self.collective("all-reduce", "sync", dense)
            time += self.collective("all-reduce", "expert-sync", expert)
        else:
            if zero == 1:
                time += self.collective(
                    "reduce-scatter", "step-data", dense
                ) + self.collective("reduce-scatter", "step-expert-data", expert)
            if zero in (1, 2):
                time += self.collective(
                    "all-gather", "step-data", dense_weights
                ) + self.collective("all-gather", "step-expert-data", expert_weights)
            time += self.collective("all-reduce", "replicas", up(dense, z_dense))
            time += self.collective("all-reduce", "replicas", up(expert, z_expert))
        return time * (1.0 - job.gradient_sync_overlap)

    def update_ns(self) -> float:
        stated = [
            x.hbm_bytes_per_s for x in self.devices if x.hbm_bytes_per_s is not None
        ]
        if not stated:
            return 0.0
        bandwidth = min(stated)
        if self.plan.distributed_optimizer:
            shares = self.sharing_with_replicas
        elif self.strategy.zero >= 1:
            shares = self.sharing
        else:
            shares = (1, 1)
        traffic = 0
        for gradient, weight, state, z in zip(
            self.gradients, self.weights, self.state, shares, strict=True
        ):
            traffic += up(gradient, z) + 2 * up(weight, z) + 2 * up(state, z)
        return traffic / bandwidth * 1e9

    @property
    def sharing_with_replicas(self) -> tuple[int, int]:
        dense, expert = self.sharing
        return (self.plan.replicas * dense, self.plan.replicas * expert)

    # Memory, but for what is kept

    def memory(self) -> dict[str, int]:
        zero = self.strategy.zero

        def shards(sizes: tuple[int, int], sharing: tuple[int, int]) -> int:
            return sum(map(up, sizes, sharing))

        parts = dict.fromkeys(MEMORY, 0)
        parts["weight_bytes"] = shards(
            self.weights, self.sharing if zero == 3 else (1, 1)
        )
        parts["gradient_bytes"] = shards(
            self.gradients, self.sharing if zero >= 2 else (1, 1)
        )
        if self.plan.distributed_optimizer:
            of_state = self.sharing_with_replicas
        else:
            of_state = self.sharing if zero >= 1 else (1, 1)
        parts["state_bytes"] = shards(self.state, of_state)
        entry = activations_of(self.cost, self.strategy.recompute)
        assert entry is not None
        parts["buffer_bytes"] = sum(self.buffers) + entry.static_bytes
        working = self.cost.working_bytes + entry.working_bytes
        for weight, gradient, z in zip(
            self.weights, self.gradients, self.sharing, strict=True
        ):
            if z > 1 and zero == 3:
                working += weight
            if z > 1 and zero >= 2:
                working += gradient
        optimizer = self.problem.job.optimizer
        if self.sharing[0] > 1 and zero == 2:
            working += optimizer.zero_2_bytes
        if self.sharing[0] > 1 and zero == 3:
            working += optimizer.zero_3_bytes
        parts["working_bytes"] = working
        return parts

    @property
    def kept_bytes(self) -> int:
        entry = activations_of(self.cost, self.strategy.recompute)
        assert entry is not None
        return entry.kept_bytes


def whole_memory(
    problem: Problem, layers: Sequence[LayerOfStage], kept_bytes: int
) -> dict[str, int]:
    """Return the parts of the memory of some layers together."""
    total = dict.fromkeys(MEMORY, 0)
    for layer in layers:
        for part, size in layer.memory().items():
            if part == "working_bytes":
                total[part] = max(total[part], size)
            else:
                total[part] += size
    total["kept_bytes"] = kept_bytes
    devices = layers[0].devices if layers else [problem.cluster.device]
    total["reserve_bytes"] = max(x.reserve_bytes for x in devices)
    return total


# Stages


@dataclass
class Part:
    """A stage of a plan, or a chunk of an interleaved one.

    ``layers`` are in the order in which they run; ``offset`` and ``size``
    are of its block.
    """

    number: int
    offset: int
    size: int
    layers: list[LayerOfStage]


def run_order(problem: Problem, names: Iterable[str]) -> list[str]:
    """Return layers in the order of the whole graph: sources first.

    Where several could be next, the first one in the file is.
    """
    left = [str(x.id) for x in problem.graph.layers]
    edges = [(str(e.source), str(e.target)) for e in problem.graph.edges]
    order = []
    while left:
        name = next(
            name for name in left if not any(t == name and s in left for s, t in edges)
        )
        left.remove(name)
        order.append(name)
    wanted = set(names)
    return [name for name in order if name in wanted]


def capacity_bytes(problem: Problem, plan: Plan, block: int) -> int:
    """Return the memory that every device of a block has."""
    offset = sum(x.devices for x in plan.stages[:block])
    starts = [x + offset for x in replica_starts(problem, plan)]
    devices = devices_at(problem, starts, plan.stages[block].devices)
    return min(x.memory_bytes for x in devices)


def replica_starts(problem: Problem, plan: Plan) -> list[int]:
    pitch = problem.cluster.num_devices // plan.replicas
    return [replica * pitch for replica in range(plan.replicas)]


def parts_of(problem: Problem, plan: Plan) -> list[Part]:
    """Place the stages side by side, every chunk on its block."""
    parts = []
    for number, stage in enumerate(plan.stages):
        block = block_of(plan, number)
        offset = sum(x.devices for x in plan.stages[:block])
        starts = [x + offset for x in replica_starts(problem, plan)]
        strategies = strategies_of(stage)
        parts.append(
            Part(
                number=number,
                offset=offset,
                size=stage.devices,
                layers=[
                    LayerOfStage(problem, plan, name, strategies[name], starts)
                    for name in run_order(problem, strategies)
                ],
            )
        )
    return parts


# Boundaries


def crossing(problem: Problem, parts: list[Part], cut: int) -> dict[str, int]:
    """Return bytes per sample of every producer across a cut.

    ``cut`` is the number of parts in front of it.
    """
    where = {layer.name: part.number for part in parts for layer in part.layers}
    tensors: dict[str, int] = {}
    for edge in problem.graph.edges:
        source, target = str(edge.source), str(edge.target)
        if where[source] < cut <= where[target] and edge.bytes_per_sample > 0:
            tensors[source] = max(tensors.get(source, 0), edge.bytes_per_sample)
    return tensors


def layout(strategy: Strategy) -> tuple[int, int, int, bool]:
    return (*(strategy.dp, strategy.tp, strategy.cp), strategy.sequence_parallel)


def splits_sequence(problem: Problem, strategy: Strategy) -> bool:
    if isinstance(problem.job.sequence_parallel, bool):
        return problem.job.sequence_parallel
    return strategy.sequence_parallel


def shards(problem: Problem, strategy: Strategy) -> int:
    count = strategy.dp * strategy.cp
    return count * strategy.tp if splits_sequence(problem, strategy) else count


def message(
    problem: Problem,
    starts: list[int],
    receiver: list[int],
    sender: list[int],
    sizes: list[float],
) -> int:
    """Return one message of tensors of so many bytes per shard, quanta.

    Of the replicas that begin at ``starts``; receiver and sender are places
    in one, the same ones for what a block hands on to itself.
    """
    topology = problem.cluster.topology
    if isinstance(topology, GraphTopology):
        links = [
            graph.link(
                topology,
                [
                    ([start + x for x in receiver], [start + x for x in sender])
                    for start in starts
                ],
            )
        ]
    else:
        links = []
        for start in starts:
            level = network.lowest_level(
                topology, [start + x for x in (*receiver, *sender)]
            )
            at = topology.levels[level]
            links.append(
                (at.launch_ns + at.latency_ns, network.through(topology, level, 2))
            )
    return max(
        rounded(problem, alpha)
        + sum(rounded(problem, size / beta * 1e9) for size in sizes)
        for alpha, beta in links
    )


def receive(
    problem: Problem,
    plan: Plan,
    receiver: Part,
    sender: Part,
    strategy: Strategy,
    tensors: dict[str, int],
) -> int:
    """Return the time in which a part receives the tensors of a cut."""
    if not tensors:
        return 0
    k, n = receiver.offset, receiver.size
    block = list(range(k, k + n))
    if k == sender.offset:
        # Both chunks sit on one block: the layers beside the cut count.
        if receiver.number > sender.number:
            beside = sender.layers[-1].strategy
        else:
            beside = sender.layers[0].strategy
        if layout(beside) == layout(strategy):
            return 0
        over = shards(problem, strategy)
        moved = [size * plan.micro_batch / over for size in tensors.values()]
        starts = replica_starts(problem, plan)
        return message(problem, starts, block, block, moved)
    other = list(range(sender.offset, sender.offset + sender.size))
    over, times = shards(problem, strategy), 1
    if not isinstance(problem.cluster.topology, GraphTopology):
        over, times = over * min(sender.size, n), n
    sizes = [size * plan.micro_batch * times / over for size in tensors.values()]
    return message(problem, replica_starts(problem, plan), block, other, sizes)


def strategy_changes(problem: Problem, plan: Plan, part: Part) -> list[int]:
    """Return strategy changes inside a part: forward, backward."""
    strategies = {layer.name: layer.strategy for layer in part.layers}
    totals = [0, 0]
    block = list(range(part.offset, part.offset + part.size))
    for edge in problem.graph.edges:
        ends = (str(edge.target), str(edge.source))
        if not set(ends) <= set(strategies) or edge.bytes_per_sample == 0:
            continue
        target, source = (strategies[end] for end in ends)
        if layout(target) == layout(source):
            continue
        for phase, strategy in enumerate((target, source)):
            size = edge.bytes_per_sample * plan.micro_batch / shards(problem, strategy)
            totals[phase] += message(
                problem, replica_starts(problem, plan), block, block, [size]
            )
    return totals


def passing_bytes(problem: Problem, plan: Plan, parts: list[Part], part: Part) -> int:
    """Return the bytes of a micro-batch that only pass through a part."""
    front = crossing(problem, parts, part.number)
    behind = crossing(problem, parts, part.number + 1)
    over = shards(problem, part.layers[0].strategy)
    return sum(
        up(size * plan.micro_batch, over)
        for producer, size in behind.items()
        if producer in front
    )


# Schedules


#: (direction, chunk of the plan, micro-batch); a direction may be "inputs" or
#: "weights" for parts of a backward pass.
PassOf = tuple[str, int, int]

#: What a block runs at a time: a pass, or a pair of them.
Item = tuple[PassOf, ...]


def pass_list(blocks: int, chunks: int, count: int, block: int) -> list[PassOf]:
    """Return the passes of a block of an interleaved plan."""
    total = count * chunks
    forward = []
    backward = []
    for j in range(total):
        turn = j // blocks % chunks
        micro_batch = j // (blocks * chunks) * blocks + j % blocks
        forward.append(("forward", turn * blocks + block, micro_batch))
        backward.append(("backward", (chunks - 1 - turn) * blocks + block, micro_batch))
    warm_up = min(total, 2 * (blocks - block - 1) + (chunks - 1) * blocks)
    passes = forward[:warm_up]
    for j in range(total - warm_up):
        passes += [forward[warm_up + j], backward[j]]
    return passes + backward[total - warm_up :]


def pass_lists(problem: Problem, plan: Plan) -> list[list[Item]]:
    """Return what every block runs, whatever the schedule."""
    count, blocks = batches(problem, plan), num_blocks(plan)
    name = schedule_name(problem, plan)
    if name is None:
        return read_lists(plan)
    lists: list[list[Item]] = []
    for block in range(blocks):
        if name == "zb-v":
            lists.append(zb_v(blocks, count, block))
        elif name == "dualpipe-v":
            lists.append(dualpipe_v(blocks, count, block))
        else:
            if plan.virtual_stages > 1:
                passes = pass_list(blocks, plan.virtual_stages, count, block)
            elif name == "zb-h1":
                passes = zb_h1(blocks, count, block)
            else:
                passes = plain(name, blocks, count, block)
            lists.append([(one,) for one in passes])
    return lists


def read_lists(plan: Plan) -> list[list[Item]]:
    """Return the passes that a plan lists itself."""
    kinds = {"F": "forward", "B": "backward", "I": "inputs", "W": "weights"}
    assert isinstance(plan.order, tuple)
    return [
        [
            ((kinds[kind], int(chunk), int(number)),)
            for chunk, kind, number in (re.split("([FBIW])", text) for text in texts)
        ]
        for texts in plan.order
    ]


def plain(name: str, blocks: int, count: int, block: int) -> list[PassOf]:
    """Return the passes of a block under 1F1B or GPipe."""
    forward = [("forward", block, m) for m in range(count)]
    backward = [("backward", block, m) for m in range(count)]
    if name == "gpipe":
        return forward + backward
    first = min(count, blocks - block)
    passes = forward[:first]
    for one, other in zip(backward, forward[first:], strict=False):
        passes += [one, other]
    return passes + backward[count - first :]


def zb_h1(blocks: int, count: int, block: int) -> list[PassOf]:
    passes: list[PassOf] = []
    ahead = min(count, blocks - block - 1)
    for m in range(ahead):
        passes.append(("forward", block, m))
    for m in range(count):
        if ahead < count:
            passes.append(("forward", block, ahead))
            ahead += 1
        passes.append(("inputs", block, m))
        if m - block >= 0:
            passes.append(("weights", block, m - block))
    done = {m for kind, _, m in passes if kind == "weights"}
    left = [m for m in range(count) if m not in done]
    return passes + [("weights", block, m) for m in left]


def zb_v(blocks: int, count: int, block: int) -> list[Item]:
    n = max(count, 2 * blocks - 1)
    r, left = block, blocks - block
    text = "Fa " * (2 * left - 1) + "Fb Fa " * r + "Fb Ib Wb " * left
    ran = text.split().count("Fa")
    for _ in range(n - blocks):
        if ran < n:
            text += "Fa "
            ran += 1
        text += "Ia Wa Fb Ib Wb "
    text += "Ia Ib " * r + "Ia Wa " * left + "Wb " * r + "Wa " * r
    names = {"F": "forward", "I": "inputs", "W": "weights"}
    chunk = {"a": block, "b": 2 * blocks - 1 - block}
    number: dict[str, int] = {}
    items: list[Item] = []
    for word in text.split():
        m = number.get(word, 0)
        number[word] = m + 1
        if m < count:
            items.append(((names[word[0]], chunk[word[1]], m),))
    assert set(number.values()) == {n}
    return items


def dualpipe_v(blocks: int, count: int, block: int) -> list[Item]:
    r, left = block, blocks - block - 1
    words = ["Fa"] * (2 * left) + ["Fa", "Fb"] * (r + 1)
    words += ["Ib", "W", "Fb"] * left
    rounds = count - 2 * blocks + r + 1
    for i in range(rounds):
        alone = i == 0 and r == blocks - 1
        words += ["Fa", "Bb"] if alone else ["FaBb"]
        words += ["FbBa"]
    words += ["Bb", "FbBa"] * left
    half = (r + 1) // 2
    for i in range(r + 1):
        of_b = half if r % 2 else half + 1
        words += ["Ib" if i >= of_b else "Bb", "Ia" if i >= half else "Ba"]
    words += ["W", "Ia"] * left
    chunk = {"a": block, "b": 2 * blocks - 1 - block}
    names = {"F": "forward", "I": "inputs", "B": "backward"}
    number: dict[tuple[bool, str], int] = {}
    queue: list[PassOf] = []
    items: list[Item] = []

    def one(word: str) -> PassOf:
        kind, where = word
        key = (kind == "F", where)
        m = number.get(key, 0)
        number[key] = m + 1
        if kind == "I":
            queue.append(("weights", chunk[where], m))
        return (names[kind], chunk[where], m)

    for word in words:
        if word == "W":
            if queue:
                items.append((queue.pop(0),))
        elif len(word) == 4:
            items.append((one(word[:2]), one(word[2:])))
        else:
            items.append((one(word),))
    assert set(number.values()) == {count}
    return items + [(one_left,) for one_left in queue]


def duration(stages: list[StageRecord], item: Item) -> int:
    """Return how long a pass or a pair takes."""
    first = stages[item[0][1]]
    if len(item) == 2:
        other = stages[item[1][1]]
        return max(first.forward - first.paired_forward, other.paired_backward) + max(
            other.backward - other.paired_backward, first.paired_forward
        )
    kind = item[0][0]
    if kind == "inputs":
        return first.backward - first.weight_backward
    if kind == "weights":
        return first.weight_backward
    return first.forward if kind == "forward" else first.backward


def block_ends(lists: list[list[Item]], stages: list[StageRecord]) -> list[int]:
    """Return when every block has run its list."""
    last = len(stages) - 1
    #: ends by (whether forward, chunk, micro-batch)
    ended: dict[tuple[bool, int, int], int] = {}
    todo = [list(items) for items in lists]
    free = [0] * len(lists)

    def when(one: PassOf) -> int | None:
        """Return when the input of a pass is there, if that is known."""
        kind, chunk, m = one
        if kind == "forward":
            return 0 if chunk == 0 else ended.get((True, chunk - 1, m))
        if kind == "weights":
            return ended.get((False, chunk, m))
        if chunk == last:
            return ended.get((True, chunk, m))
        return ended.get((False, chunk + 1, m))

    while any(todo):
        moved = False
        for block, items in enumerate(todo):
            while items:
                inputs = [when(one) for one in items[0]]
                if None in inputs:
                    break
                start = max(x for x in (free[block], *inputs) if x is not None)
                free[block] = start + duration(stages, items[0])
                for kind, chunk, m in items.pop(0):
                    if kind != "weights":
                        ended[kind == "forward", chunk, m] = free[block]
                moved = True
        if not moved:
            raise ValueError("schedule: expected no deadlock, got one")
    return free


# The preset standard


def score(problem: Problem, plan: Plan) -> Record:
    parts = parts_of(problem, plan)
    count = batches(problem, plan)
    stages = []
    kept = []
    for part in parts:
        stages.append(stage_record(problem, plan, parts, part))
        kept.append(
            sum(layer.kept_bytes for layer in part.layers)
            + passing_bytes(problem, plan, parts, part)
        )
    lists = pass_lists(problem, plan)
    name = schedule_name(problem, plan)
    listed = plan.virtual_stages > 1 or name == "zb-h1" or plan.order is not None
    blocks = []
    for block in range(num_blocks(plan)):
        numbers = [i for i in range(len(parts)) if block_of(plan, i) == block]
        if listed:
            inflight, kept_bytes = listed_inflight(lists[block], numbers, stages, kept)
        else:
            inflight = count
            if name != "gpipe":
                inflight = min(count, num_blocks(plan) - block)
            stages[block].inflight = inflight
            kept_bytes = inflight * kept[block]
        sync = end_of_step(problem, plan, parts, numbers, stages)
        for number in numbers:
            stages[number].memory = whole_memory(
                problem, parts[number].layers, stages[number].inflight * kept[number]
            )
        blocks.append(
            BlockRecord(
                stages=tuple(number + 1 for number in numbers),
                load=sum(
                    stages[number].forward + stages[number].backward
                    for number in numbers
                ),
                sync=sync,
                inflight=inflight,
                memory=whole_memory(
                    problem,
                    [x for number in numbers for x in parts[number].layers],
                    kept_bytes,
                ),
            )
        )
    # step time
    loads = [stage.forward + stage.backward for stage in stages]
    if listed:
        passes = max(block_ends(lists, stages))
    elif name == "gpipe":
        passes = sum(loads) + (count - 1) * (
            max(stage.forward for stage in stages)
            + max(stage.backward for stage in stages)
        )
    else:
        passes = sum(loads) + (count - 1) * max(loads)
    step = passes + max(block.sync for block in blocks)
    return record(problem, plan, step, stages, blocks)


def stage_record(
    problem: Problem, plan: Plan, parts: list[Part], part: Part
) -> StageRecord:
    """Return the times of a stage's passes."""
    changes = strategy_changes(problem, plan, part)
    forward = sum(layer.forward() for layer in part.layers)
    backward = sum(layer.backward() + layer.recomputation() for layer in part.layers)
    from_front = from_behind = 0
    if part.number > 0:
        from_front = receive(
            problem,
            plan,
            part,
            parts[part.number - 1],
            part.layers[0].strategy,
            crossing(problem, parts, part.number),
        )
    if part.number + 1 < len(parts):
        from_behind = receive(
            problem,
            plan,
            part,
            parts[part.number + 1],
            part.layers[-1].strategy,
            crossing(problem, parts, part.number + 1),
        )
    return StageRecord(
        forward=forward + changes[0] + from_front,
        backward=backward + changes[1] + from_behind,
        receive_forward=from_front,
        receive_backward=from_behind,
        redistribution=sum(changes),
        sync=0,
        inflight=0,
        memory={},
        weight_backward=sum(x.weight_backward() for x in part.layers),
        paired_forward=sum(x.paired("forward") for x in part.layers),
        paired_backward=sum(x.paired("backward") for x in part.layers),
    )


def listed_inflight(
    items: list[Item], own: list[int], stages: list[StageRecord], kept: list[int]
) -> tuple[int, int]:
    """Return the most passes in flight on a block, and the most bytes they keep.

    Its stages get the most passes of their own.
    """
    flying = dict.fromkeys(own, 0)
    most_bytes = most_passes = 0
    for direction, chunk, _ in itertools.chain(*items):
        if direction == "forward":
            flying[chunk] += 1
        elif direction != "inputs":
            flying[chunk] -= 1
        stages[chunk].inflight = max(stages[chunk].inflight, flying[chunk])
        most_bytes = max(most_bytes, sum(n * kept[c] for c, n in flying.items()))
        most_passes = max(most_passes, sum(flying.values()))
    return most_passes, most_bytes


def end_of_step(
    problem: Problem,
    plan: Plan,
    parts: list[Part],
    numbers: list[int],
    stages: list[StageRecord],
) -> int:
    """Return the sync and update of a block that no pass hides.

    Its stages get their own.
    """
    update_and_sync = 0
    syncs = 0
    for number in numbers:
        of_chunk = 0
        for layer in parts[number].layers:
            if "gradients" in plan.overlap:
                update = rounded(problem, layer.update_ns())
                sync = rounded(problem, layer.sync_ns())
                of_chunk += update + sync
                syncs += sync
            else:
                of_chunk += rounded(problem, layer.sync_ns() + layer.update_ns())
        stages[number].sync = of_chunk
        update_and_sync += of_chunk
    hidden = 0
    if "gradients" in plan.overlap:
        hidden = min(
            math.floor(
                Fraction(repr(float(problem.job.overlap["gradients"]))) * syncs
                + Fraction(1, 2)
            ),
            sum(stages[number].backward for number in numbers),
        )
    if plan.virtual_stages == 1:
        stages[numbers[0]].sync = update_and_sync - hidden
    return update_and_sync - hidden


def record(
    problem: Problem,
    plan: Plan,
    step: int,
    stages: list[StageRecord],
    blocks: list[BlockRecord],
    samples: int | None = None,
) -> Record:
    """Add what follows from step time and memory.

    ``samples`` is what a step takes in, the global batch by default; if it
    is given, the step is that of a steady state, which has no passes.
    """
    job = problem.job
    seconds = step * problem.quantum_ps / 1e12
    simulated = None
    if samples is None:
        samples = job.global_batch
        ends = block_ends(pass_lists(problem, plan), stages)
        simulated = max(
            end + block.sync for end, block in zip(ends, blocks, strict=True)
        )
    throughput = samples / seconds if step else None
    peaks = [x.peak_flops.get(job.dtype) for x in all_devices(problem)]
    mfu = None
    if None not in peaks and job.model_flops_per_sample is not None and step:
        mfu = (job.model_flops_per_sample * samples) / (seconds * math.fsum(peaks))
    tokens = None
    if job.sequence_length is not None and throughput is not None:
        tokens = throughput * job.sequence_length
    return Record(
        step=step,
        simulated=simulated,
        num_micro_batches=batches(problem, plan),
        stages=stages,
        blocks=blocks,
        feasible=all(
            block.memory_bytes <= capacity_bytes(problem, plan, number)
            for number, block in enumerate(blocks)
        ),
        throughput=throughput,
        tokens=tokens,
        tokens_per_device=tokens and tokens / len(list(all_devices(problem))),
        memory_left=min(
            capacity_bytes(problem, plan, number) - block.memory_bytes
            for number, block in enumerate(blocks)
        ),
        mfu=mfu,
    )
