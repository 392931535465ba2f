"""Problems of captured modules: layers, edges, memory, what plans may choose."""

import dataclasses

import pytest
from msgspec.structs import replace

from nest.capture.problem import (
    MAX_CLOSED_SETS,
    _Memory,
    checkpointed,
    covered,
    graph_of,
    source_of,
)
from nest.capture.records import Step
from nest.capture.strategies import TensorCut
from nest.errors import InvalidProblemError
from nest.hardware import find_cluster
from nest.ir.graph import enumerate_masks
from tests import captured
from tests.captured import captures, mlp, problem
from tests.loopback import tiny_problem


def blocks(*widths, tied=False):
    """Return captures of an embedding-like product, blocks, and a head."""

    def write(writer):
        values = writer.linear("embed", "x", 8, weight="table" if tied else "")
        writer.layer("embed", "embed", 0)
        for i, width in enumerate(widths):
            values = mlp(writer, f"blocks.{i}", values, width)
        first = len(writer.operations)
        values = writer.linear("head", values, 8, weight="table" if tied else "")
        loss = writer.loss(values)
        writer.layer("head", "head", first)
        return loss

    return captures(write)


def test_degrees_that_cut_nothing_are_refused():
    with pytest.raises(InvalidProblemError, match=r"--tp .*, got \(3,\) \(tp 3: .*"):
        problem(blocks(16), tp=(3,))


def cost_of(made, kind, **key):
    """Return the cost of a kind for a key."""
    (found,) = (x for x in made.graph.kinds if x.name == kind)
    key = {"tp": 1, "samples": 1} | key
    (cost,) = (x for x in found.costs if all(getattr(x, k) == key[k] for k in key))
    return cost


def kept(cost):
    """Return the bytes kept by each recompute choice."""
    return {x.recompute: x.kept_bytes for x in cost.activations}


def test_a_chain_of_blocks():
    """Sizes by hand: 4 × 8 values a sample in fp32 are 128 bytes."""
    made = problem(blocks(16, 16))
    assert [x.id for x in made.graph.layers] == [
        "embed",
        "blocks.0",
        "blocks.1",
        "head",
    ]
    assert [x.kind for x in made.graph.layers] == ["embed", "Mlp-16", "Mlp-16", "head"]
    assert [(e.source, e.target, e.bytes_per_sample) for e in made.graph.edges] == [
        ("embed", "blocks.0", 128),
        ("blocks.0", "blocks.1", 128),
        ("blocks.1", "head", 128),
    ]
    cost = cost_of(made, "Mlp-16", samples=2)
    # Two matrices of 8 × 16 values.
    assert cost.weight_bytes == 2 * 8 * 16 * 4
    # The input, what gelu reads, and what it makes: 128 and twice 256 bytes.
    assert kept(cost) == {"none": 2 * (128 + 256 + 256), "full": 2 * 128}
    assert kept(cost_of(made, "embed", samples=2)) == {"none": 256, "full": 256}
    assert made.job.recompute == ("none", "full")
    assert made.job.optimizer.state_bytes == 2 * made.job.optimizer.weight_bytes == 8
    assert made.job.uniform == ("dp", "tp", "cp", "zero")
    # Two FLOPs for each value and weight: 2 · 512 at the ends, 4 · 1024 in blocks.
    assert made.job.model_flops_per_sample == 3 * (2 * 512 + 4 * 1024)


def test_times_are_those_of_the_operator_model():
    """So small kernels take what the host takes to launch them."""
    made = problem(blocks(16))
    ((machine, _),) = find_cluster("a100x2")[0]
    cost = cost_of(made, "Mlp-16", samples=4)
    assert cost.forward_ns == 4 * machine.calibration.host_ns
    # A wide block is bound by its products, in fp32.
    wide = cost_of(problem(blocks(2**16)), "Mlp-65536", samples=4)
    flops = 2 * 2 * (4 * 4) * 8 * 2**16
    assert wide.forward_ns > flops / machine.device.peak_flops["fp32"] * 1e9
    assert wide.backward_ns > wide.forward_ns


def test_tensor_ranks_share_blocks():
    made = problem(blocks(16), tp=(1, 2))
    assert made.job.tensor_parallel == (1, 2)
    whole, half = (cost_of(made, "Mlp-16", samples=2, tp=tp) for tp in (1, 2))
    assert half.weight_bytes * 2 == whole.weight_bytes
    assert kept(half)["none"] == 2 * (128 + 128 + 128)
    assert [(x.kind, x.axis, x.phase, x.size_bytes) for x in half.collectives] == [
        ("all-reduce", "tp", "backward", 256),
        ("all-reduce", "tp", "forward", 256),
    ]
    # Ends are computed whole by every rank.
    assert cost_of(made, "head", tp=2).weight_bytes == 8 * 8 * 4
    assert not cost_of(made, "head", tp=2).collectives


def test_ranks_that_share_nothing_are_no_choice():
    made = problem(blocks(15), tp=(1, 2))
    assert made.job.tensor_parallel == (1,)
    assert source_of(made).reasons == (
        "tp 2: blocks.0.up: 2 ranks do not divide its 15 columns",
        "cp: the script that runs plans does not cut sequences",
    )


def test_blocks_whose_weights_others_read_stay_whole():
    def write(writer):
        values = mlp(writer, "blocks.0", "x")
        first = len(writer.operations)
        writer.run("torch.Tensor.square", ("blocks.0.up.weight",), (16, 8))
        loss = writer.loss(values)
        writer.layer("head", "head", first)
        return loss

    source = source_of(problem(captures(write), tp=(1, 2)))
    assert not any(source.shared.values())
    assert source.reasons[0] == (
        "tp 2: blocks.0.up: the module itself also reads its weights apart"
    )


@pytest.mark.parametrize("fails", [True, False])
def test_what_does_not_run_with_the_weights_of_a_rank_is_not_cut(fails):
    asked = []

    def run(styles, tp):
        asked.append((dict(styles), tp))
        if fails:
            raise InvalidProblemError("blocks.0: expected 16 columns, got 8")
        return made.small

    made = blocks(16)
    problem(dataclasses.replace(made, run=run), tp=(1, 2))
    assert asked[0] == ({"blocks.0.up": "colwise", "blocks.0.down": "rowwise"}, 2)
    source = source_of(problem(dataclasses.replace(made, run=run), tp=(1, 2)))
    reason = source.reasons[0]
    assert reason.startswith(
        "tp 2: with the weights of one rank the module fails: blocks.0"
        if fails
        else "tp 2: blocks.0.up: linear yields 2×4×16 on one rank instead of 2×4×8"
    )


def test_tied_weights_count_in_each_layer_that_uses_them():
    made = problem(blocks(16, tied=True))
    assert cost_of(made, "embed").weight_bytes == 8 * 8 * 4
    assert cost_of(made, "head").weight_bytes == 8 * 8 * 4
    assert not made.job.one_stage


def test_a_block_that_is_called_again_holds_its_weights_once():
    def write(writer):
        values = mlp(writer, "block", "x")
        first = len(writer.operations)
        for operation in writer.operations[:4]:
            source = values if operation.inputs[0] == "x" else f"t{first - 1}"
            inputs = (source, *operation.inputs[1:])
            if operation.function.endswith("add"):
                inputs = (values, f"t{first - 1}")
            shape = operation.outputs[0].shape
            writer.run(
                *(operation.function, inputs, shape, operation.code),
                module=(operation.calls[-1].path, "Linear")
                if operation.calls
                else ("", ""),
                saves=inputs[:1],
            )
            first = len(writer.operations)
        writer.layer("block@1", "Mlp-16", 4, block=True)
        first = len(writer.operations)
        loss = writer.loss(f"t{first - 1}")
        writer.layer("loss", "loss", first)
        return loss

    made = problem(captures(write))
    kinds = [layer.kind for layer in made.graph.layers]
    assert kinds == ["Mlp-16", "Mlp-16-2", "loss"]
    assert made.job.one_stage == ("Mlp-16", "Mlp-16-2")
    weights = [cost_of(made, kind).weight_bytes for kind in kinds]
    assert weights == [2 * 8 * 16 * 4, 0, 0]
    assert source_of(made).reasons[:1] == (
        "pp: block and block@1 share block.up.weight, so one stage has them",
    )


@pytest.mark.parametrize(
    ("function", "writes"),
    [
        ("torch.Tensor.mul", False),
        ("torch.Tensor.__getitem__", False),
        ("torch.Tensor.__invert__", False),
        ("torch.Tensor.copy_", True),
        ("torch.Tensor.__iadd__", True),
        ("torch.batch_norm", True),
    ],
)
def test_buffers_that_blocks_share(function, writes):
    """Each block holds its own copy, unless the forward pass writes the buffer."""

    def write(writer):
        table = writer.weight("table", (10,), trained=False)
        values = writer.linear("embed", "x", 8)
        writer.layer("embed", "embed", 0)
        for i in range(3):
            first = len(writer.operations)
            values = mlp(writer, f"blocks.{i}", values)
            writer.run(function, (table, table), (10,), gradient=False)
            layer = writer.layers.pop()
            writer.layer(layer.name, layer.kind, first, block=True)
        first = len(writer.operations)
        loss = writer.loss(values)
        writer.layer("loss", "loss", first)
        return loss

    made = problem(captures(write))
    kinds = [layer.kind for layer in made.graph.layers]
    sizes = [
        {x.static_bytes for x in cost_of(made, kind).activations} for kind in kinds
    ]
    if writes:
        assert made.job.one_stage == ("Mlp-16", "Mlp-16-2")
        assert kinds[1:] == ["Mlp-16", "Mlp-16-2", "Mlp-16-2", "loss"]
        assert sizes == [{0}, {40}, {0}, {0}, {0}]
        assert source_of(made).reasons[:1] == (
            "pp: blocks.0 and blocks.2 and 1 others share table, so one stage has them",
        )
    else:
        assert made.job.one_stage == ()
        assert kinds == ["embed", *["Mlp-16"] * 3, "loss"]
        assert sizes == [{0}, {40}, {40}, {40}, {0}]


def test_nodes_hold_the_buffers_of_what_they_make_again():
    def write(writer):
        table = writer.weight("table", (10,), trained=False)
        mask = writer.run("torch.Tensor.lt", (table,), (4, 8), gradient=False)
        writer.layer("mask", "mask", 0)
        values = mlp(writer, "blocks.0", "x")
        first = len(writer.operations)
        values = writer.run("torch.Tensor.mul", (values, mask), (writer.batch, 4, 8))
        loss = writer.loss(values)
        writer.layer("loss", "loss", first)
        return loss

    made = problem(captures(write))
    sizes = [
        {x.static_bytes for x in cost_of(made, layer.kind).activations}
        for layer in made.graph.layers
    ]
    assert sizes == [{40}, {0}, {40}]


def test_batch_norm_needs_the_whole_batch():
    def write(writer):
        values = mlp(writer, "block", "x")
        first = len(writer.operations)
        values = writer.run(
            "torch.nn.functional.batch_norm",
            (values,),
            (writer.batch, 4, 8),
            "f({0}, None, None, training=True)",
            module=("norm", "BatchNorm1d"),
        )
        loss = writer.loss(values)
        writer.layer("norm", "norm", first)
        return loss

    made = problem(captures(write), global_batch=8, micro_batches=(1, 2, 8))
    job = made.job
    assert (job.micro_batches, job.data_parallel, job.replicas) == ((8,), (1,), (1,))
    assert job.recompute == ("none",)
    assert source_of(made).assumed[0] == (
        "norm: batch norm needs the whole batch in one micro-batch on one data rank; "
        "use another norm for data parallelism"
    )


def test_frozen_parameters_and_buffers_have_no_gradients():
    def write(writer):
        writer.weight("block.table", (10,), trained=False)
        return writer.loss(mlp(writer, "block", "x"))

    def with_loss(writer):
        loss = write(writer)
        writer.layer("loss", "loss", 4)
        return loss

    made = problem(captures(with_loss))
    cost = cost_of(made, "Mlp-16")
    assert cost.weight_bytes == 2 * 8 * 16 * 4
    assert {x.static_bytes for x in cost.activations} == {40}


@pytest.mark.parametrize("is_block", [True, False])
def test_modules_that_are_called_hold_parameters_that_nothing_reads(is_block):
    def write(writer):
        writer.weight("block.unused", (10,))
        values = mlp(writer, "block", "x")
        writer.layers[0] = replace(writer.layers[0], is_block=is_block)
        loss = writer.loss(values)
        writer.layer("loss", "loss", 4)
        return loss

    cost = cost_of(problem(captures(write)), "Mlp-16")
    assert cost.weight_bytes == (2 * 8 * 16 + 10) * 4


def test_a_loss_of_sums_is_asked_for():
    def write(writer):
        values = mlp(writer, "block", "x")
        loss = writer.run("torch.Tensor.sum", (values,), (), "{0}.sum()")
        writer.layer("loss", "loss", 4)
        return loss

    with pytest.raises(InvalidProblemError, match="or state with --split-loss"):
        problem(captures(write))
    made = problem(captures(write), split_loss=True)
    assert source_of(made).assumed[0] == (
        "--split-loss: every micro-batch computes the loss apart"
    )


def test_a_device_without_the_data_type():
    made = blocks(16)
    operations = tuple(
        replace(x, outputs=tuple(replace(y, dtype="float16") for y in x.outputs))
        for x in made.small.operations
    )
    made = dataclasses.replace(
        made,
        small=replace(made.small, operations=operations),
        large=replace(
            made.large,
            operations=tuple(
                replace(
                    x, outputs=tuple(replace(y, dtype="float16") for y in x.outputs)
                )
                for x in made.large.operations
            ),
        ),
    )
    assert problem(made).job.dtype == "fp16"
    with pytest.raises(InvalidProblemError, match="dtype: expected one of"):
        problem(made, cluster="tpuv4x4")


# ------------------------------------------------------------------ the graph


def branches(count):
    """Return captures of branches side by side whose results are added."""

    def write(writer):
        ends = []
        for i in range(count):
            first = len(writer.operations)
            ends.append(writer.linear(f"linear.{i}", "x", 8))
            writer.layer(f"linear.{i}", "linear", first)
        first = len(writer.operations)
        total = ends[0]
        for end in ends[1:]:
            total = writer.run("torch.Tensor.add", (total, end), (writer.batch, 4, 8))
        loss = writer.loss(total)
        writer.layer("loss", "loss", first)
        return loss

    return captures(write)


def test_branches_are_put_in_a_row_where_they_are_many():
    few, many = branches(3), branches(12)
    graph = graph_of(few)
    assert graph.closed_sets == 2**3 + 1
    assert all(edge.target == "loss" for edge in graph.edges)
    assert not [*graph.notes(4, "layers")]
    graph = graph_of(many)
    assert graph.closed_sets == 14
    assert len([edge for edge in graph.edges if not edge.bytes_per_sample]) == 11
    assert [*graph.notes(13, "layers")] == [
        "13 layers: 0 are joined to others without loss, none with loss; plans are "
        "exact for the 13 nodes that are left, in the order in which they run (14 "
        "closed sets)"
    ]


@pytest.mark.parametrize(
    ("edges", "count"),
    [({}, 8), ({(0, 1): 0, (1, 2): 0}, 4), ({(0, 2): 0, (1, 2): 0}, 5)],
)
def test_closed_sets_are_counted(edges, count):
    assert len(enumerate_masks(3, edges, MAX_CLOSED_SETS)) == count


def test_counting_closed_sets_stops():
    assert MAX_CLOSED_SETS < len(enumerate_masks(20, {}, MAX_CLOSED_SETS)) < 2**20


def test_what_later_readers_need_crosses_with_the_first_one():
    """A node hands on all that readers from there on need, once."""

    def write(writer):
        near = writer.linear("a", "x", 8)
        far = writer.linear("b", "x", 16)
        writer.layer("a", "a", 0)
        first = len(writer.operations)
        values = writer.linear("c", near, 16)
        writer.layer("c", "c", first)
        first = len(writer.operations)
        values = writer.run("torch.Tensor.add", (values, far), (writer.batch, 4, 16))
        loss = writer.loss(values)
        writer.layer("loss", "loss", first)
        return loss

    made = captures(write)
    edges = graph_of(made).edges
    assert {(x.source, x.target): x.bytes_per_sample for x in edges} == {
        ("a", "c"): 128 + 256,
        ("a", "loss"): 256,
        ("c", "loss"): 256,
    }


def test_masks_do_not_cross():
    def write(writer):
        mask = writer.run("torch.arange", (), (4, 8), gradient=False)
        writer.layer("mask", "mask", 0)
        values = writer.linear("a", "x", 8)
        writer.layer("a", "a", 1)
        first = len(writer.operations)
        values = writer.run("torch.Tensor.add", (values, mask), (writer.batch, 4, 8))
        loss = writer.loss(values)
        writer.layer("loss", "loss", first)
        return loss

    graph = graph_of(captures(write))
    assert {(x.source, x.target): x.bytes_per_sample for x in graph.edges} == {
        ("mask", "loss"): 0,
        ("a", "loss"): 128,
    }
    assert graph.closed_sets == 5


def test_neighbors_are_joined_where_few_bytes_cross():
    """Of 30 layers in three groups of ten, cuts are where the narrow tensors are."""

    def write(writer):
        values = "x"
        for i in range(30):
            first = len(writer.operations)
            values = writer.linear(f"l.{i}", values, 1 if i % 10 == 9 else 64)
            writer.layer(f"l.{i}", f"l{i}", first)
        first = len(writer.operations)
        loss = writer.loss(values)
        writer.layer("loss", "loss", first)
        return loss

    made = captures(write)
    nodes = graph_of(made, 5).nodes
    assert [layer for node in nodes for layer in node] == [*made.layers]
    assert {"l.10", "l.20"} <= {node[0].name for node in nodes}
    assert len(nodes) == 4
    ids = [node[0].name for node in nodes]
    assert [len(x) for x in covered(made.layers, ids)] == [len(x) for x in nodes]


def with_view(read_again):
    """Return captures of a product, a view, a function, and the loss, a layer each."""

    def write(writer):
        shape = (writer.batch, 4, 8)
        product = writer.linear("a", "x", 8)
        view = writer.run("torch.Tensor.view", (product,), shape, view_of=product)
        values = writer.run("torch.relu", (view,), shape)
        if read_again:
            values = writer.run("torch.Tensor.add", (values, product), shape)
        loss = writer.loss(values)
        for i, operation in enumerate(writer.operations):
            writer.layer(operation.function, operation.function, i)
            writer.layers[-1] = replace(writer.layers[-1], end=i + 1)
        return loss

    return captures(write)


def test_views_belong_to_what_makes_them():
    graph = graph_of(with_view(read_again=False))
    assert [len(node) for node in graph.nodes] == [2, 1, 1]
    assert [*graph.notes(4, "operators")] == [
        "4 operators: 1 are joined to others without loss, none with loss; plans are "
        "exact for the 3 nodes that are left (4 closed sets)"
    ]


def test_views_of_what_others_read_are_joined_where_fewer_bytes_cross():
    """Between product and view 128 bytes cross, between view and function 256."""
    made = with_view(read_again=True)
    assert [len(node) for node in graph_of(made).nodes] == [1, 1, 1, 1, 1]
    graph = graph_of(made, 5)
    assert [len(node) for node in graph.nodes] == [1, 2, 1, 1]
    assert [edge.bytes_per_sample for edge in graph.edges] == [128, 128, 128, 128]
    assert graph.joined_free == 1
    graph = graph_of(made, 3)
    assert [len(node) for node in graph.nodes] == [4, 1]
    assert [*graph.notes(5, "operators")] == [
        "5 operators: 1 are joined to others without loss, 2 with loss, where few "
        "bytes cross; plans are exact for the 2 nodes that are left, in the order in "
        "which they run (3 closed sets)"
    ]


@pytest.mark.parametrize(
    "ids", [[], ["head"], ["embed", "no"], ["embed", "head", "embed"]]
)
def test_ids_that_are_no_layers(ids):
    with pytest.raises(ValueError, match="expected layers"):
        covered(blocks(16).layers, ids)


@pytest.mark.parametrize("count", [2, 3])
def test_storages_that_several_layers_keep_count_in_the_first_and_the_last(count):
    """All blocks keep the table. A stage holds it, wherever plans cut."""

    def write(writer):
        table = writer.linear("table", "x", 8)
        writer.layer("table", "table", 0)
        values = "x"
        for i in range(count):
            first = len(writer.operations)
            values = writer.run(
                *("torch.Tensor.mul", (values, table), (writer.batch, 4, 8)),
                saves=(values, table),
            )
            writer.layer(f"block.{i}", f"block{i}", first, block=True)
        first = len(writer.operations)
        loss = writer.loss(values)
        writer.layer("loss", "loss", first)
        return loss

    made = captures(write)
    costs = problem(made)
    assert kept(cost_of(costs, "table"))["none"] == 0
    # Example inputs that several layers keep are held by the rank.
    assert kept(cost_of(costs, "block0"))["none"] == 128
    # Later ones keep their own input of 128 bytes; one between hands the table on.
    sizes = [kept(cost_of(costs, f"block{i}"))["none"] for i in range(1, count)]
    assert sizes == [*[128] * (count - 2), 128 + 128]
    assert checkpointed(made.small, made.layers) == frozenset()
    assert source_of(costs).assumed[-1] == (
        f"memory of kept tensors: up to {1 / count:.0%} too much in one stage: what "
        f"two layers keep counts in both, as where stages part them"
    )


def test_joined_layers_keep_a_storage_once():
    """The two layers of 128 bytes of input are one node, so what both keep is once."""

    def write(writer):
        values = writer.linear("a", "x", 8)
        writer.layer("a", "a", 0)
        for name in ("b", "c"):
            first = len(writer.operations)
            writer.linear(name, values, 8)
            writer.layer(name, name, first)
        first = len(writer.operations)
        loss = writer.loss(f"t{first - 1}")
        writer.layer("loss", "loss", first)
        return loss

    made = captures(write)
    apart = [(layer,) for layer in made.layers]
    together = [apart[0], (*apart[1], *apart[2]), apart[3]]
    for nodes, count in ((apart, 2), (together, 1)):
        memory = _Memory(made.small, nodes, frozenset())
        sizes = [memory.kept_bytes(x, TensorCut(), 1)[0] for x in made.layers[1:3]]
        assert sum(sizes) == count * 2 * 128


def test_recomputed_blocks_keep_what_they_read_whether_or_not_others_do():
    """Blocks that are computed again only keep the border that they read."""

    def write(writer):
        values = writer.linear("embed", "x", 8)
        writer.layer("embed", "embed", 0)
        for i in range(2):
            first = len(writer.operations)
            inner = writer.linear(f"blocks.{i}", values, 64)
            inner = writer.run(
                *("torch.Tensor.exp", (inner,), (writer.batch, 4, 64)), saves=(inner,)
            )
            inner = writer.linear(f"down.{i}", inner, 8)
            shape = (writer.batch, 4, 8)
            values = writer.run("torch.relu", (inner,), shape)
            border = writer.tensors[values]
            saved = {border.storage: border.size_bytes}
            writer.operations[-1] = replace(writer.operations[-1], saved=saved)
            writer.layer(f"blocks.{i}", "block", first, block=True)
        first = len(writer.operations)
        loss = writer.loss(values)
        writer.layer("loss", "loss", first)
        return loss

    made = problem(captures(write))
    costs = [kept(cost_of(made, x.kind)) for x in made.graph.layers[1:3]]
    # Input, what both products of 64 columns keep, and the output of relu.
    assert [x["none"] for x in costs] == [128 + 2 * 1024 + 128] * 2
    assert [x["full"] for x in costs] == [128] * 2


def test_blocks_that_recomputation_helps():
    made = blocks(16, 16)
    assert checkpointed(made.small, made.layers) == {"blocks.0", "blocks.1"}
    flags = {
        kind.name: {
            x.reruns for x in kind.costs[0].activations if x.recompute == "full"
        }
        for kind in problem(made).graph.kinds
    }
    assert flags == {"embed": {False}, "Mlp-16": {True}, "head": {False}}
    # A stage runs the operations of a block one by one where it cannot call it.
    embed, first, *others = made.layers
    steps = tuple(Step(operation=i) for i in range(first.first, first.end))
    layers = [embed, replace(first, steps=steps), *others]
    assert checkpointed(made.small, layers) == {"blocks.1"}


def test_other_problems_have_no_module():
    assert source_of(tiny_problem()) is None
    assert captured.problem(blocks(16)).model.startswith('{"module":')


def test_recomputed_blocks_keep_an_input_that_they_first_view():
    """The input has 128 bytes a sample, what gelu reads and makes 256 bytes each."""

    def write(writer):
        values = writer.linear("embed", "x", 8)
        writer.layer("embed", "embed", 0)
        first = len(writer.operations)
        rows = writer.run(
            "torch.Tensor.flatten", (values,), (writer.batch, 32), view_of=values
        )
        inner = writer.linear("block.up", rows, 64)
        inner = writer.run(
            "torch.nn.functional.gelu", (inner,), (writer.batch, 64), saves=(inner,)
        )
        values = writer.linear("block.down", inner, 32)
        writer.layer("block", "block", first, block=True)
        first = len(writer.operations)
        loss = writer.loss(values)
        writer.layer("loss", "loss", first)
        return loss

    made = captures(write)
    assert checkpointed(made.small, made.layers) == {"block"}
    sizes = kept(cost_of(problem(made), "block", samples=2))
    assert sizes == {"none": 2 * (128 + 256 + 256), "full": 2 * 128}
