"""Chakra traces: their nodes by hand, what is refused, what they weigh."""

from __future__ import annotations

import sys

import pytest
from msgspec.structs import replace

from nest.errors import InvalidPlanError, NestError
from nest.frameworks import chakra, chakra_format
from nest.frameworks.chakra_format import Node, Trace, decode, encode
from nest.ir import Strategy
from nest.simulation.events import Simulation
from tests.builders import (
    SINGLE,
    make_cost,
    make_levels,
    make_plan,
    make_problem,
    two_stages,
)
from tests.chakra import COLLECTIVE, COMPUTE, RECEIVE, SEND, nodes_of, replay

PLAN = make_plan(("a", SINGLE), ("b", SINGLE))


def traces_of(problem, plan=PLAN):
    files = chakra.export(Simulation(problem, plan))
    readme = files.pop("README")
    return files, readme


def test_nodes_worked_by_hand():
    """F = 10, 30 + 15 and G = 20 + 15, 40; M = 2; update 15 and 30 ns.

    The step of ``test_simulate.py``: passes end at 215 ns, and the first
    block's update at 230. A message is of 5 bytes.
    """
    files, _ = traces_of(two_stages(hbm=1e9))
    first, second = (nodes_of(files[f"trace.{i}.et"]) for i in (0, 1))
    ns = 1000
    assert [
        (x.kind, x.name, x.waits_for, x.attributes["duration_ps"]) for x in first
    ] == [
        (COMPUTE, "F of chunk 0, 0", (), 10 * ns),
        (SEND, "send F of chunk 0, 0", (1,), 0),
        (COMPUTE, "F of chunk 0, 1", (1,), 10 * ns),
        (SEND, "send F of chunk 0, 1", (3,), 0),
        (RECEIVE, "receive B of chunk 1, 0", (3,), 15 * ns),
        (COMPUTE, "B of chunk 0, 0", (5, 1, 5), 20 * ns),
        (RECEIVE, "receive B of chunk 1, 1", (6,), 15 * ns),
        (COMPUTE, "B of chunk 0, 1", (7, 3, 7), 20 * ns),
        (COMPUTE, "update", (8,), 15 * ns),
    ]
    assert [(x.kind, x.attributes["duration_ps"]) for x in second] == [
        (RECEIVE, 15 * ns),
        (COMPUTE, 30 * ns),
        (COMPUTE, 40 * ns),
        (SEND, 0),
        (RECEIVE, 15 * ns),
        (COMPUTE, 30 * ns),
        (COMPUTE, 40 * ns),
        (SEND, 0),
        (COMPUTE, 30 * ns),
    ]
    sent, received = first[1].attributes, second[0].attributes
    assert (sent["comm_src"], sent["comm_dst"], sent["comm_size"]) == (0, 1, 5)
    for name in ("comm_src", "comm_dst", "comm_tag", "comm_size"):
        assert sent[name] == received[name]
    assert first[0].attributes["is_cpu_op"] is False
    replayed = replay(files)
    assert replayed.end == 230 * ns
    # B of chunk 1 ends at 95 and 180 ns, see test_simulate.py.
    assert replayed.ends[1, 3] == 95 * ns
    assert replayed.ends[1, 7] == 180 * ns


def test_whole_microseconds_end_at_the_step_rounded_down():
    """1 quantum is 0.7 µs: passes of 10, 30 + 15 … quanta, 215 in all."""
    problem = replace(two_stages(), quantum_ps=700_000)
    problem = scaled(problem, 700)
    files, _ = traces_of(problem)
    assert replay(files).end == 215 * 700_000
    assert replay(files, in_us=True).end == 215 * 7 // 10
    first, second, *_ = nodes_of(files["trace.0.et"])
    assert (first.start_us, first.duration_us) == (0, 7)
    assert (second.start_us, second.duration_us) == (7, 0)


def scaled(problem, factor):
    """Return a problem whose times are so many times as long."""
    kinds = tuple(
        replace(
            kind,
            costs=tuple(
                replace(
                    cost,
                    forward_ns=cost.forward_ns * factor,
                    backward_ns=cost.backward_ns * factor,
                )
                for cost in kind.costs
            ),
        )
        for kind in problem.graph.kinds
    )
    graph = replace(problem.graph, kinds=kinds)
    levels = make_levels((8, 10.0 * factor, 1e9 / factor))
    cluster = replace(problem.cluster, topology=levels)
    return replace(problem, graph=graph, cluster=cluster)


def test_sync_is_split_by_price():
    """ZeRO 1 over dp = 2, R = 2: weights 100, gradients 100 bytes.

    Reduce-scatter and all-gather over 2 ranks: 10 + 50 ns each. All-reduce
    of the 50 bytes of a shard over 2 replicas: 2 · 10 + 2 · 25 = 70 ns.
    Without HBM there is no update: 190 ns, of which each has its price.
    """
    strategy = Strategy(dp=2, zero=1)
    cost = make_cost(10, 20, weight_bytes=100)
    problem = make_problem({"a": cost}, global_batch=4, micro_batches=(2,), zero=(1,))
    plan = make_plan(("a", strategy), replicas=2, micro_batch=2)
    files, readme = traces_of(problem, plan)
    *_, scatter, reduce, gather = nodes_of(files["trace.0.et"])
    assert [
        (
            x.kind,
            x.attributes["comm_type"],
            x.attributes["comm_size"],
            x.attributes["duration_ps"],
        )
        for x in (scatter, reduce, gather)
    ] == [
        (COLLECTIVE, 7, 100, 60_000),
        (COLLECTIVE, 0, 50, 70_000),
        (COLLECTIVE, 2, 100, 60_000),
    ]
    assert "2 replicas, of which this is the first" in readme
    assert "Block 0 is devices 0-1." in readme


def changed(trace, place, **fields):
    """Return a trace with another node of that number."""
    attributes = fields.pop("attributes", {})
    nodes = [
        node._replace(
            **fields,
            attributes={
                name: value
                for name, value in {**node.attributes, **attributes}.items()
                if value is not None
            },
        )
        if node.number == place
        else node
        for node in trace.nodes
    ]
    return trace._replace(nodes=tuple(nodes))


def without(trace, number):
    nodes = tuple(node for node in trace.nodes if node.number != number)
    return trace._replace(nodes=nodes)


def about(trace, **fields):
    return trace._replace(attributes={**trace.attributes, **fields})


#: What is changed in a trace, and what the refusal says.
# fmt: off
BROKEN = [
    (lambda t: changed(t, 3, number=1),
     r"trace.0.et: node 3: expected an id of its own, got 1"),
    (lambda t: changed(t, 3, number=0),
     r"trace.0.et: node 3: expected an id of its own, got 0"),
    (lambda t: changed(t, 3, data_deps=(8,)),
     r"trace.0.et: node 3: expected to wait for nodes before it, got node 8"),
    (lambda t: changed(t, 3, ctrl_deps=(99,)),
     r"trace.0.et: node 3: expected to wait for nodes before it, got node 99"),
    (lambda t: changed(t, 3, attributes={"duration_ps": None}),
     r"trace.0.et: node 3: expected attribute duration_ps, got none"),
    (lambda t: changed(t, 5, attributes={"comm_tag": None}),
     r"trace.0.et: node 5: expected attribute comm_tag, got none"),
    (lambda t: changed(t, 2, attributes={"comm_tag": 77}),
     r"trace.0.et: node 2: expected a node that receives the same tag and "
     r"bytes, got none"),
    (lambda t: changed(t, 2, attributes={"comm_size": 6}),
     r"trace.0.et: node 2: expected a node that receives the same tag and "),
    (lambda t: changed(t, 2, attributes={"comm_src": 1}),
     r"trace.0.et: node 2: comm_src: expected 0, got 1"),
    (lambda t: changed(t, 5, attributes={"comm_dst": 1}),
     r"trace.0.et: node 5: comm_dst: expected 0, got 1"),
    (lambda t: changed(
        t, 4, attributes={"comm_tag": t.nodes[1].attributes["comm_tag"]}),
     r"trace.0.et: node 4: expected a message of its own tag to send, got "
     r"that of trace.0.et: node 2"),
    (lambda t: without(t, 2),
     r"trace.1.et: node 1: expected a node that sends the same tag and bytes, "
     r"got none"),
    (lambda t: changed(t, 1, attributes={"duration_ps": 11_000}),
     r"trace: step: expected 215000 ps, got 216000 ps"),
    (lambda t: changed(t, 3, attributes={"duration_ps": 11_000}),
     r"trace.0.et: pass 2: expected .*20\), got .*21\)"),
    (lambda t: changed(t, 3, attributes={"chunk": 1}),
     r"trace.0.et: pass 2: expected \('forward', 0, 1, 20\), got "
     r"\('forward', 1, 1, 20\)"),
    (lambda t: changed(t, 3, attributes={"phase": "update"}),
     r"trace.0.et: pass 2: expected"),
    (lambda t: changed(t, 8, start_us=3),
     r"trace.0.et: node 8: expected 0 \+ 0 us, got 3 \+ 0"),
    (lambda t: changed(t, 8, duration_us=3),
     r"trace.0.et: node 8: expected 0 \+ 0 us, got 0 \+ 3"),
    (lambda t: about(t, step_ps=7),
     r"trace.0.et: metadata: step_ps: expected 215000, got 7"),
    (lambda t: about(t, block=1),
     r"trace.0.et: metadata: block: expected 0, got 1"),
    (lambda t: about(t, num_blocks=3),
     r"trace.0.et: metadata: num_blocks: expected 2, got 3"),
    (lambda t: t._replace(nodes=(*t.nodes, t.nodes[0]._replace(number=99))),
     r"trace.0.et: pass 5|expected 4 passes, got 5|step"),
]
# fmt: on


@pytest.mark.parametrize(("change", "message"), BROKEN)
def test_broken_traces_are_refused(change, message):
    simulation = Simulation(two_stages(), PLAN)
    files = chakra.write(simulation)
    chakra.check(simulation, files)
    trace = decode(files["trace.0.et"], "trace.0.et")
    files["trace.0.et"] = encode(change(trace))
    with pytest.raises(InvalidPlanError, match=message):
        chakra.check(simulation, files)


def test_traces_that_wait_for_each_other_are_refused():
    """Either block receives first what the other sends afterwards."""

    def message(kind, number, source, target, tag):
        ends = {"comm_src": source, "comm_dst": target, "comm_tag": tag}
        attributes = {"phase": "", "duration_ps": 0, "comm_size": 0, **ends}
        return Node(number, kind, kind, (), (), attributes)

    traces = [
        Trace({}, (message("receive", 1, *first), message("send", 2, *then)))
        for first, then in (((1, 0, 1), (0, 1, 2)), ((0, 1, 2), (1, 0, 1)))
    ]
    with pytest.raises(
        InvalidPlanError,
        match=r"trace.0.et: node 1: expected a message that can arrive, got "
        r"nodes that wait for each other",
    ):
        chakra.replay(traces)


#: A node of number 99 that computes, up to its attributes.
NODE = b"\x08\x63\x18\x04"


def record(*parts):
    data = b"".join(parts)
    return bytes([len(data)]) + data


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (b"", b"\x80", r"the length of a record at byte \d+"),
        (b"", b"\xff" * 9, r"the length of a record at byte"),
        (b"", b"\x01\xff", "a message Node, got other bytes"),
        (b"\x01\xff", b"", "a message GlobalMetadata, got other bytes"),
        (b"\x00", b"", "version 0.0.4, got ''"),
        # A node of type 3, which stores memory.
        (b"", record(b"\x08\x63\x18\x03"), "node 9: expected a type among "
         "compute, send, receive, collective, got 3"),
        # Attributes: nameless; is_cpu_op as int32; is_cpu_op twice.
        (b"", record(NODE, b"\x52\x00"),
         "node 9: attribute : expected a known name, got no value"),
        (b"", record(NODE, b"\x52\x0d\x0a\x09is_cpu_op\x38\x01"),
         "node 9: attribute is_cpu_op: expected bool_val, got int32_val"),
        (b"", record(NODE, b"\x52\x0e\x0a\x09is_cpu_op\xd8\x01\x01" * 2),
         "node 9: expected attribute is_cpu_op once, got it twice"),
    ],
)  # fmt: skip
def test_broken_bytes_are_refused(before, after, message):
    files, _ = traces_of(two_stages())
    with pytest.raises(InvalidPlanError, match=message):
        decode(before + files["trace.0.et"] + after, "trace.0.et")


def test_traces_that_are_cut_short_are_refused():
    files, _ = traces_of(two_stages())
    data = files["trace.0.et"]
    for cut, message in (
        (data[:-1], r"a record of \d+ bytes at byte \d+, got \d+"),
        (b"", "metadata and nodes, got an empty file"),
    ):
        with pytest.raises(InvalidPlanError, match=message):
            decode(cut, "trace.0.et")


def test_missing_files_are_named():
    simulation = Simulation(two_stages(), PLAN)
    files = chakra.write(simulation)
    files["trace.2.et"] = files.pop("trace.1.et")
    with pytest.raises(
        InvalidPlanError,
        match=r"files: expected trace.0.et to trace.1.et, got no trace.1.et",
    ):
        chakra.check(simulation, files)


def test_steps_of_many_days_are_refused():
    """A pass of 2**50 quanta of 10 ns is more than 2**63 ps."""
    problem = make_problem({"a": make_cost(10.0 * 2**50, 0)}, quantum_ps=10_000)
    with pytest.raises(
        InvalidPlanError,
        match=r"step: expected less than 2\*\*63 ps in a trace, got \d+; ",
    ):
        chakra.write(Simulation(problem, make_plan(("a", SINGLE))))


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    chakra_format._message.cache_clear()
    with pytest.raises(
        NestError,
        match=r"--to chakra: expected the package protobuf, got no such "
        r"package; install it with: pip install 'nest-planner\[chakra\]'",
    ):
        traces_of(two_stages())


def test_traces_stay_small():
    """A pass and a message are two nodes of about 150 bytes each."""
    problem = two_stages(global_batch=200)
    files, _ = traces_of(problem)
    for data in files.values():
        assert len(data) < 200 * 4 * 160
