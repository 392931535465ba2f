"""Chakra execution traces of a step: a file per block of one replica.

Passes, messages and gradient sync become nodes; what they take and wait for
is what ``nest simulate`` says. A file stands for a device of its block, as
all devices of a block, and all replicas, do the same. Nodes say their time in
whole µs, as the format has it, and exactly in the attribute ``duration_ps``.
Traces are replayed before anybody gets them: docs/exports.md, *Chakra*.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from nest.cost.breakdown import with_fast_network
from nest.cost.model import CostModel
from nest.cost.rules import Pipeline
from nest.cost.schedules import Pass
from nest.cost.score import lay_out, score
from nest.cost.terms import sync_calls, weight_sizes
from nest.errors import InvalidPlanError
from nest.frameworks.chakra_format import (
    COLLECTIVES,
    Node,
    Trace,
    Value,
    encode,
    refuse,
)
from nest.frameworks.chakra_replay import PREFIX, duration_ps, read, replay
from nest.ir.io import problem_hash
from nest.simulation.events import MOST_TRACED, Simulation, check_passes, kind_of
from nest.units import ceil_div, quanta_to_ns

_PS_PER_US = 10**6
#: Attributes hold 64 bits.
_MAX_PS = 2**63

#: How passes are called: in names, and in the attribute ``phase``.
_LETTERS = {
    "forward": "F",
    "backward": "B",
    "input-gradient": "I",
    "weight-gradient": "W",
}


class Call(NamedTuple):
    """A collective of a block's gradient sync, of all of its layers.

    Kind and group are as the cost model calls them, ``size_bytes`` is that of the whole
    tensors, and ``quanta`` is what the block waits for.
    """

    kind: str
    group: str
    size_bytes: int
    quanta: int


def export(simulation: Simulation) -> dict[str, str | bytes]:
    """Return the traces of a step by name, with a README.

    They have been read and replayed: every pass ends when it does in the simulation.

    Raises ``InvalidPlanError`` if the step is too long for the format, and
    ``NestError`` if the package for the format is missing.
    """
    problem, plan = simulation.problem, simulation.plan
    files = write(simulation)
    traces = check(simulation, files)
    step = quanta_to_ns(simulation.step, problem.quantum_ps)
    blocks = ", ".join(
        f"{block} is devices {trace.attributes['devices']}"
        for block, trace in enumerate(traces)
    )
    readme = (
        f"# {problem.name}: a step of {step} ns; {simulation.score.num_micro_batches} "
        f"micro-batches in each of {plan.replicas} replicas, of which this is the "
        f"first.\n"
        f"Chakra traces to be replayed: {PREFIX}.N.et is a device of block N (from 0), "
        f"as all of them do the same; exact times are in duration_ps.\n"
        f"Block {blocks}.\n"
    )
    return {**files, "README": readme}


def write(simulation: Simulation) -> dict[str, bytes]:
    """Return the traces of a step by name.

    Raises ``InvalidPlanError`` if the step is too long for the format, and
    ``UnsupportedProblemError`` if it has more than :data:`MOST_TRACED` passes.
    """
    check_passes(simulation.score, MOST_TRACED)
    quantum_ps = simulation.problem.quantum_ps
    if simulation.step * quantum_ps >= _MAX_PS:
        raise InvalidPlanError(
            f"step: expected less than 2**63 ps in a trace, got "
            f"{simulation.step * quantum_ps}; scale the times of the problem"
        )
    writer = _Writer(simulation)
    traces = [
        Trace(writer.about(block), tuple(writer.nodes(block)))
        for block in range(simulation.plan.num_blocks)
    ]
    ends = replay(traces)
    files = {}
    for block, (trace, node_ends) in enumerate(zip(traces, ends, strict=True)):
        timed = tuple(map(_in_us, trace.nodes, node_ends))
        files[f"{PREFIX}.{block}.et"] = encode(trace._replace(nodes=timed))
    return files


def _in_us(node: Node, end_ps: int) -> Node:
    """Return a node with its times in whole µs.

    Starts and ends are rounded down, and durations are between them: so a
    replay in µs ends at the exact step, rounded down.
    """
    start_ps = end_ps - duration_ps(node)
    start_us = start_ps // _PS_PER_US
    return node._replace(start_us=start_us, duration_us=end_ps // _PS_PER_US - start_us)


class _Writer:
    """Makes the nodes of every block."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        problem, plan = simulation.problem, simulation.plan
        self.plan, self.score = plan, simulation.score
        self.model = CostModel(problem)
        self.pipeline = lay_out(problem, plan, self.model)
        self.fast = score(with_fast_network(problem), plan)
        self.quantum_ps = problem.quantum_ps
        self.last = len(plan.stages) - 1
        self.received_bytes = [
            (
                message_bytes(self.pipeline, i, i - 1) if i else 0,
                message_bytes(self.pipeline, i, i + 1) if i < self.last else 0,
            )
            for i in range(self.last + 1)
        ]
        self.hash = problem_hash(problem)
        #: The block that is written, its nodes, the last one that takes it, and those
        #: of its passes, by kind, chunk and micro-batch.
        self._block = 0
        self._made: list[Node] = []
        self._before: tuple[int, ...] = ()
        self._passes: dict[tuple[str, int, int], int] = {}

    def about(self, block: int) -> dict[str, Value]:
        """Return what a file says about itself."""
        stages = self.score.blocks[block].stages
        first, end = next(self.pipeline.blocks[block].ranges())
        return {
            "problem": self.simulation.problem.name,
            "problem_hash": self.hash,
            "replicas": self.plan.replicas,
            "num_micro_batches": self.score.num_micro_batches,
            "block": block,
            "num_blocks": self.plan.num_blocks,
            "stages": ", ".join(map(str, stages)),
            "devices": f"{first}-{end - 1}",
            "quantum_ps": self.quantum_ps,
            "step_ps": self.simulation.step * self.quantum_ps,
        }

    def nodes(self, block: int) -> list[Node]:
        """Return what a block runs, in order."""
        self._block, self._made, self._before, self._passes = block, [], (), {}
        for run, partner, _ in self.simulation.passes(block):
            if partner is None:
                self._pass(run)
            else:
                self._pair(run, partner)
        self._sync()
        return self._made

    def _add(
        self,
        name: str,
        kind: str,
        quanta: int,
        data_deps: Sequence[int] = (),
        **attributes: Value,
    ) -> int:
        """Add a node behind the last one that takes the block."""
        node_id = len(self._made) + 1
        before = () if kind == "send" else self._before
        after = tuple(dict.fromkeys(data_deps))
        times = {"is_cpu_op": False, "duration_ps": quanta * self.quantum_ps}
        self._made.append(Node(node_id, name, kind, before, after, times | attributes))
        if kind != "send":
            self._before = (node_id,)
        return node_id

    def _needs(self, run: Pass, received: int) -> list[int]:
        """Add what a pass receives; return the nodes that it waits for."""
        chunk, micro_batch = run.chunk, run.micro_batch
        if run.gradients == "weights":
            return [self._passes["B", chunk, micro_batch]]
        needed = [self._passes["F", chunk, micro_batch]] if run.backward else []
        sender = chunk + 1 if run.backward else chunk - 1
        if not 0 <= sender <= self.last:
            return needed
        letter = "B" if run.backward else "F"
        size_bytes = self.received_bytes[chunk][run.backward]
        source = self.plan.block_of(sender)
        if source != self._block:
            name = f"receive {letter} of chunk {sender}, {micro_batch}"
            received_by = self._add(
                *(name, "receive", received),
                phase=f"receive-{_direction(run)}",
                comm_src=source,
                comm_dst=self._block,
                comm_tag=self._tag(chunk, micro_batch, run.backward),
                comm_size=size_bytes,
                chunk=chunk,
                micro_batch=micro_batch,
            )
            return [*needed, received_by]
        needed.append(self._passes[letter, sender, micro_batch])
        if received:
            name = f"layout of {letter} of chunk {sender}, {micro_batch}"
            changed = self._add(
                *(name, "collective", received, needed[-1:]),
                phase=f"receive-{_direction(run)}",
                comm_type=COLLECTIVES["all-to-all"],
                comm_size=size_bytes,
                pg_name=f"block {self._block}",
                chunk=chunk,
                micro_batch=micro_batch,
            )
            needed[-1] = changed
        return needed

    def _pass(self, run: Pass) -> None:
        """Add a pass with what it receives and sends."""
        phase = kind_of(run)
        time, received = self.simulation.cost_of(run)
        needs = self._needs(run, received)
        node_id = self._add(
            *(_name(phase, run), "compute", time - received, needs),
            phase=phase,
            chunk=run.chunk,
            micro_batch=run.micro_batch,
        )
        self._hand_on(run, node_id)

    def _pair(self, there: Pass, back: Pass) -> None:
        """Add two passes that run together: one node, receives included."""
        needs = [node_id for run in (there, back) for node_id in self._needs(run, 0)]
        names = _name("forward", there), _name("backward", back)
        node_id = self._add(
            " with ".join(names),
            "compute",
            self.simulation.pair_time(there, back),
            needs,
            phase="pair",
            chunk=there.chunk,
            micro_batch=there.micro_batch,
            paired_chunk=back.chunk,
            paired_micro_batch=back.micro_batch,
        )
        for run in (there, back):
            self._hand_on(run, node_id)

    def _hand_on(self, run: Pass, node_id: int) -> None:
        """Record a pass, and add the message to the block that needs it."""
        if run.gradients == "weights":
            return
        letter = "B" if run.backward else "F"
        self._passes[letter, run.chunk, run.micro_batch] = node_id
        receiver = run.chunk - 1 if run.backward else run.chunk + 1
        if not 0 <= receiver <= self.last:
            return
        target = self.plan.block_of(receiver)
        if target != self._block:
            self._add(
                f"send {letter} of chunk {run.chunk}, {run.micro_batch}",
                "send",
                0,
                [node_id],
                phase=f"send-{_direction(run)}",
                chunk=run.chunk,
                micro_batch=run.micro_batch,
                comm_src=self._block,
                comm_dst=target,
                comm_tag=self._tag(receiver, run.micro_batch, run.backward),
                comm_size=self.received_bytes[receiver][run.backward],
            )

    def _tag(self, receiver: int, micro_batch: int, backward: bool) -> int:
        """Return the number of a message, one for each of a step."""
        count = self.score.num_micro_batches
        return 2 * (receiver * count + micro_batch) + backward

    def _sync(self) -> None:
        """Add a block's gradient sync and its update."""
        block = self._block
        total = self.score.blocks[block].sync
        update = min(self.fast.blocks[block].sync, total)
        calls = sync_of(self.pipeline, block, total - update)
        for call in calls:
            if call.kind != "all-gather":
                self._collective(call)
        if update:
            self._add("update", "compute", update, phase="update")
        for call in calls:
            if call.kind == "all-gather":
                self._collective(call)

    def _collective(self, call: Call) -> None:
        what = "weights" if call.kind == "all-gather" else "gradients"
        self._add(
            *(f"{call.kind} of {what}", "collective", call.quanta),
            phase="sync",
            comm_type=COLLECTIVES[call.kind],
            comm_size=call.size_bytes,
            pg_name=f"block {self._block} {call.group}",
        )


def _name(phase: str, run: Pass) -> str:
    return f"{_LETTERS[phase]} of chunk {run.chunk}, {run.micro_batch}"


def _direction(run: Pass) -> str:
    return "backward" if run.backward else "forward"


def message_bytes(pipeline: Pipeline, chunk: int, sender: int) -> int:
    """Return what every device of a chunk receives per micro-batch."""
    model, members = pipeline.model, pipeline.members[chunk]
    forward = sender < chunk
    _, strategy = members[0] if forward else members[-1]
    crossing = pipeline.crossings[chunk if forward else sender]
    shards = model.shards(strategy)
    return sum(
        ceil_div(size_bytes * pipeline.plan.micro_batch, shards)
        for size_bytes in crossing.values()
    )


def sync_of(pipeline: Pipeline, block: int, quanta: int) -> list[Call]:
    """Return the collectives of a block's gradient sync.

    The block waits ``quanta`` for all of them. Each has the part of it that it has of
    their prices.
    """
    model, runtime = pipeline.model, pipeline.runtime
    where = pipeline.blocks[block]
    shares: dict[tuple[str, str], tuple[int, Fraction]] = {}

    def add(kind: str, group: str, size_bytes: int, time_ns: float) -> None:
        if time_ns:
            share = shares.get((kind, group), (0, Fraction(0)))
            shares[kind, group] = (share[0] + size_bytes, share[1] + Fraction(time_ns))

    optimizer = model.problem.job.optimizer
    for chunk in pipeline.chunks(block):
        for layer, strategy in pipeline.members[chunk]:
            cost = model.layers.cost(layer, strategy, pipeline.plan.micro_batch)
            assert cost is not None
            sizes = weight_sizes(cost, strategy, optimizer)
            whole_bytes = sum(size.weight_bytes for size in sizes)
            own_ns = model.rules.layer_sync_ns(model.network, where, whole_bytes)
            if own_ns is not None:
                add("all-reduce", "sync", whole_bytes, own_ns)
                continue
            groups = model.groups.keys(strategy, model.rules.groups_at(where))
            for call in sync_calls(sizes, strategy, runtime):
                for part in call.parts:
                    single = call._replace(parts=(part,))
                    time_ns = model.layers.call_ns(single, groups)
                    add(call.kind, *part, time_ns)
    if quanta and not shares:
        # What no layer accounts for: rules of published models have it.
        shares["all-reduce", "sync"] = 0, Fraction(1)
    total = sum(price for _, price in shares.values())
    ends, so_far = [0], Fraction(0)
    for _, price in shares.values():
        so_far += price
        ends.append(quanta * so_far // total)
    return [
        Call(kind, group, size_bytes, end - start)
        for ((kind, group), (size_bytes, _)), (start, end) in zip(
            shares.items(), pairwise(ends), strict=True
        )
    ]


# Comparing with the simulation


def check(simulation: Simulation, files: Mapping[str, bytes]) -> list[Trace]:
    """Return traces, if they take what the simulation says.

    Raises ``InvalidPlanError`` if they are broken, a pass is missing or ends at another
    time, or the step does; the text names the file and the node.
    """
    traces = read(files)
    ends = replay(traces)
    quantum_ps = simulation.problem.quantum_ps
    step_ps = max(node_ends[-1] for node_ends in ends)
    if step_ps != simulation.step * quantum_ps:
        raise refuse(
            f"{PREFIX}: step", f"{simulation.step * quantum_ps} ps", f"{step_ps} ps"
        )
    for block, (trace, node_ends) in enumerate(zip(traces, ends, strict=True)):
        name = f"{PREFIX}.{block}.et"
        stated_ps = trace.attributes.get("step_ps")
        if stated_ps != step_ps:
            raise refuse(f"{name}: metadata: step_ps", str(step_ps), str(stated_ps))
        pairs = zip(trace.nodes, node_ends, strict=True)
        for index, (node, end) in enumerate(pairs, 1):
            timed = _in_us(node, end)
            if timed != node:
                raise refuse(
                    f"{name}: node {index}",
                    f"{timed.start_us} + {timed.duration_us} us",
                    f"{node.start_us} + {node.duration_us}",
                )
        expected = [
            (kind_of(run), run.chunk, run.micro_batch, end)
            for run, end in simulation.timeline.passes(block)
        ]
        got = list(_passes(trace.nodes, node_ends, quantum_ps))
        for index, pair in enumerate(zip(expected, got, strict=False), 1):
            if pair[0] != pair[1]:
                raise refuse(f"{name}: pass {index}", *map(str, pair))
        if len(expected) != len(got):
            raise refuse(name, f"{len(expected)} passes", str(len(got)))
    return traces


#: A pass: its phase, chunk and micro-batch, and when it ends in quanta.
_PassEnd = tuple[str, Value, Value, int]


def _passes(
    nodes: Sequence[Node], ends: Sequence[int], quantum_ps: int
) -> Iterator[_PassEnd]:
    """Yield the passes of a trace."""
    for node, end in zip(nodes, ends, strict=True):
        attributes = node.attributes
        if node.kind != "compute" or "chunk" not in attributes:
            continue
        phase = str(attributes["phase"])
        paired = {"forward": "", "backward": "paired_"}
        for run, prefix in (paired if phase == "pair" else {phase: ""}).items():
            chunk = attributes[f"{prefix}chunk"]
            micro_batch = attributes[f"{prefix}micro_batch"]
            yield run, chunk, micro_batch, end // quantum_ps
