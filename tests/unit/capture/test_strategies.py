"""Cuts of layers over tensor ranks, and what stages make again."""

import pytest
from msgspec.structs import replace

from nest.capture.strategies import function_name, remade, tensor_cut, why_not_local
from tests.captured import Writer, captures, mlp, problem

VIEW = "torch.Tensor.view"


def attention(writer, heads="-1", kv_heads=4, head_size=4):
    """Write separate q, k, v, attention of four heads, and o; return the layer."""
    batch, length = writer.batch, 4
    width = 4 * head_size
    first = len(writer.operations)
    made = []
    for name, count in (("q", 4), ("k", kv_heads), ("v", kv_heads)):
        y = writer.linear(f"block.{name}", "x", count * head_size)
        y = writer.run(
            VIEW,
            (y,),
            (batch, length, count, head_size),
            f"{{0}}.view({batch}, {length}, {heads}, {head_size})",
            view_of=y,
        )
        y = writer.run(
            "torch.Tensor.transpose",
            (y,),
            (batch, count, length, head_size),
            "{0}.transpose(1, 2)",
            view_of=y,
        )
        if name != "q" and kv_heads != 4:
            y = writer.run(
                "torch.Tensor.repeat_interleave",
                (y,),
                (batch, 4, length, head_size),
                f"{{0}}.repeat_interleave({4 // kv_heads}, dim=1)",
            )
        made.append(y)
    y = writer.run(
        "torch.nn.functional.scaled_dot_product_attention",
        made,
        (batch, 4, length, head_size),
        "torch.nn.functional.scaled_dot_product_attention({0}, {1}, {2})",
        saves=made,
    )
    y = writer.run(
        "torch.Tensor.transpose",
        (y,),
        (batch, length, 4, head_size),
        "{0}.transpose(1, 2)",
        view_of=y,
    )
    y = writer.run(
        "torch.Tensor.reshape",
        (y,),
        (batch, length, width),
        f"{{0}}.reshape({batch}, {length}, -1)",
    )
    y = writer.linear("block.o", y, 8)
    writer.layer("block", "Attention", first, block=True)
    return y


def cut_of(write, tp=2):
    """Return how the first layer of what is written is cut."""
    made = captures(lambda writer: writer.loss(write(writer)))
    return tensor_cut(made.small, made.layers[0], tp)


def test_columns_then_rows():
    cut = cut_of(lambda writer: mlp(writer, "block", "x"))
    assert cut.styles == {"block.up": "colwise", "block.down": "rowwise"}
    assert cut.axes == {"t0": 2, "t1": 2}
    assert not cut.reasons


def table(writer, rows=64, padding="None"):
    """Write the lookup of four words a sample in a table, as a block."""
    writer.given("words", (4,))
    options = (
        f"padding_idx={padding}, max_norm=None, norm_type=2.0, "
        "scale_grad_by_freq=False, sparse=False"
    )
    y = writer.run(
        "torch.nn.functional.embedding",
        ("words", writer.weight("embed.weight", (rows, 8))),
        (writer.batch, 4, 8),
        f"torch.nn.functional.embedding({{0}}, {{1}}, {options})",
        module=("embed", "Embedding"),
    )
    writer.layer("embed", "Embedding", 0, block=True)
    return y


def test_tables_are_cut_by_rows():
    cut = cut_of(table)
    assert cut.styles == {"embed": "table"}
    assert not cut.axes


@pytest.mark.parametrize(
    ("rows", "padding", "reason"),
    [
        (63, "None", "embed: 2 ranks do not divide its 63 rows"),
        (64, "0", "embed: PyTorch cuts no table with padding_idx or other options"),
        (4, "None", "embed: no torch.nn.Linear that can be cut"),
    ],
)
def test_tables_that_stay_whole(rows, padding, reason):
    """A sample looks up four rows, so a table of four stays whole."""
    cut = cut_of(lambda writer: table(writer, rows, padding))
    assert not cut.styles
    assert cut.reasons[0] == reason


def test_tables_that_share_their_weights_stay_whole():
    made = captures(lambda writer: writer.loss(table(writer))).small
    (shared,) = made.parameters
    shared = replace(shared, names=("embed.weight", "head.weight"))
    layer = captures(table).layers[0]
    cut = tensor_cut(replace(made, parameters=(shared,)), layer, 2)
    assert cut.reasons[0] == "embed: it shares its weight with another module"


def test_ranks_add_up_what_they_look_up():
    """Outputs of 2 × 4 × 8 values, and a table of 64 × 8, in fp32."""

    def write(writer):
        first = len(writer.operations)
        loss = writer.loss(table(writer))
        writer.layer("head", "head", first + 1)
        return loss

    (kind, _) = problem(captures(write), tp=(1, 2)).graph.kinds
    whole, half = (
        next(x for x in kind.costs if (x.tp, x.samples) == (tp, 2)) for tp in (1, 2)
    )
    assert not whole.collectives
    assert [(x.kind, x.axis, x.phase, x.size_bytes) for x in half.collectives] == [
        ("all-reduce", "tp", "forward", 2 * 4 * 8 * 4)
    ]
    assert half.weight_bytes * 2 == whole.weight_bytes == 64 * 8 * 4
    # A rank's backward pass makes the gradient of all rows before it keeps its own.
    assert (half.working_bytes, whole.working_bytes) == (64 * 8 * 4, 2 * 4 * 8 * 4)


def test_attention_is_cut_by_heads():
    cut = cut_of(attention)
    assert cut.styles == {
        "block.q": "colwise",
        "block.k": "colwise",
        "block.v": "colwise",
        "block.o": "rowwise",
    }
    assert cut.axes["t1"] == 2  # after the view
    assert cut.axes["t2"] == 1  # after the transpose


def test_heads_that_share_keys_and_values():
    cut = cut_of(lambda writer: attention(writer, kv_heads=2))
    assert len(cut.styles) == 4


@pytest.mark.parametrize(
    ("kv_heads", "tp", "reason"),
    [
        (1, 2, "the module itself: view: 2 ranks do not divide 1 heads or columns"),
        (2, 4, "the module itself: view: 4 ranks do not divide 2 heads or columns"),
        (4, 3, "block.q: 3 ranks do not divide its 16 columns"),
    ],
)
def test_ranks_that_do_not_divide_the_heads(kv_heads, tp, reason):
    cut = cut_of(lambda writer: attention(writer, kv_heads=kv_heads), tp)
    assert not cut.styles
    assert cut.reasons[0] == reason


def between(function, code, **settings):
    """Write two linear layers with an operation between them."""

    def write(writer):
        first = len(writer.operations)
        y = writer.linear("block.up", "x", 16)
        inputs = [y]
        for name in settings.get("beside", ()):
            inputs.append(writer.weight(name, (16,)))
        shape = settings.get("shape", (4, 16))
        y = writer.run(function, inputs, (writer.batch, *shape), code)
        y = writer.linear("block.down", y, 8)
        writer.layer("block", "Block", first, block=True)
        return y

    return write


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (
            between("torch.Tensor.chunk", "{0}.chunk(2, dim=-1)", shape=(4, 8)),
            "block: chunk takes several projections from one linear layer (a fused q, "
            "k, v or gate and up), whose columns a rank would have in another order; "
            "use one linear layer for each",
        ),
        (
            between("torch.Tensor.cumsum", "{0}.cumsum(1)"),
            "block: cumsum has no rule for a cut tensor",
        ),
        (
            between("torch.Tensor.mul", "{0} * {1}", beside=("scale",)),
            "block: scale is whole, but each rank would have a part of its gradient",
        ),
        (
            between("torch.softmax", "torch.softmax({0}, dim=-1)"),
            "block: softmax needs all of the axis that is cut",
        ),
        (
            between("torch.Tensor.__getitem__", "{0}[:, :, :8]", shape=(4, 8)),
            "block: an index takes a part of the axis that is cut",
        ),
        (
            between("torch.view_as_complex", "torch.view_as_complex({0})", shape=(4,)),
            "block: a view mixes the axis that is cut with the one before it",
        ),
        (
            between("torch.Tensor.transpose", "{0}.transpose(1, 2)", shape=(16, 4)),
            "block.down: its input is not cut along the last axis",
        ),
    ],
)
def test_operations_that_keep_layers_whole(write, reason):
    def run(writer):
        y = write(writer)
        # The operation between runs in the block.
        operation = writer.operations[1]
        calls = (replace(writer.operations[0].calls[0], path="block"),)
        writer.operations[1] = replace(operation, calls=calls)
        return y

    cut = cut_of(run)
    assert not cut.styles
    assert cut.reasons[0] == reason


@pytest.mark.parametrize(
    ("function", "code", "shape"),
    [
        ("torch.softmax", "torch.softmax({0}, dim=1)", (4, 16)),
        ("torch.Tensor.__getitem__", "{0}[:, None]", (1, 4, 16)),
        ("torch.Tensor.__getitem__", "{0}[..., 1:, :]", (3, 16)),
        ("torch.Tensor.permute", "{0}.permute(0, 1, 2)", (4, 16)),
        ("torch.Tensor.to", "{0}.to(torch.float32)", (4, 16)),
        ("torch.view_as_complex", "torch.view_as_complex({0}[..., None])", (4, 16)),
    ],
)
def test_operations_that_take_a_part(function, code, shape):
    cut = cut_of(between(function, code, shape=shape))
    assert cut.styles == {"block.up": "colwise", "block.down": "rowwise"}


def test_a_layer_whose_weight_is_tied_stays_whole():
    def write(writer):
        y = mlp(writer, "block", "x")
        tied = writer.parameters["block.up.weight"]
        writer.parameters["block.up.weight"] = replace(
            tied, names=(*tied.names, "other.weight")
        )
        return y

    assert not cut_of(write).styles


def test_a_result_that_leaves_the_layer():
    def write(writer):
        first = len(writer.operations)
        y = writer.linear("block.up", "x", 16)
        writer.layer("block", "Block", first, block=True)
        return y

    cut = cut_of(write)
    assert cut.reasons == (
        "block: no linear layer in it takes the columns of another one and sums over "
        "them",
    )


def test_what_runs_with_the_weights_of_one_rank():
    """Numbers of heads that the module fixes are found by running it so."""

    def run(heads):
        made = captures(lambda writer: writer.loss(attention(writer, heads)))
        return made, tensor_cut(made.small, made.layers[0], 2)

    made, cut = run("4")
    parts = []
    for operation in made.small.operations:
        outputs = []
        for tensor in operation.outputs:
            shape = list(tensor.shape)
            if tensor.name in cut.axes:
                shape[cut.axes[tensor.name]] //= 2
            outputs.append(replace(tensor, shape=tuple(shape)))
        parts.append(replace(operation, outputs=tuple(outputs)))
    layer = made.layers[0]
    local = replace(made.small, operations=tuple(parts))
    assert why_not_local(made.small, local, layer, cut) == ""
    for function, code, said in (
        ("view", "{0}.view(2, 4, 2, 4)", ""),
        ("transpose", "{0}.transpose(2, 1)", "transpose takes another number"),
    ):
        index = next(
            i for i, x in enumerate(parts) if x.function == f"torch.Tensor.{function}"
        )
        other = [*parts]
        other[index] = replace(parts[index], code=code)
        local = replace(made.small, operations=tuple(other))
        assert said in why_not_local(made.small, local, layer, cut)
        assert said or not why_not_local(made.small, local, layer, cut)
    parts[1] = replace(
        parts[1], outputs=(replace(parts[1].outputs[0], shape=(2, 4, 4, 2)),)
    )
    local = replace(made.small, operations=tuple(parts))
    assert why_not_local(made.small, local, layer, cut) == (
        "the module itself: view yields 2×4×4×2 on one rank instead of 2×4×2×4: the "
        "module fixes its number of heads or columns; leave it open, as in view(b, t, "
        "-1, size)"
    )
    local = replace(made.small, operations=tuple(parts[:1]))
    assert "other functions run" in why_not_local(made.small, local, layer, cut)


def test_what_stages_make_again():
    """Masks and tables; not what has weights, a gradient or random numbers."""
    writer = Writer(2)
    kept = []

    def add(function, inputs, shape, gradient=False):
        first = len(writer.operations)
        name = writer.run(function, inputs, shape, gradient=gradient)
        writer.layer(name, function, first)
        return name

    table = writer.weight("table", (4,), trained=False)
    kept.append(add("torch.arange", (), (4,)))
    kept.append(add("torch.Tensor.lt", (kept[0], table), (4,)))
    kept.append(add("torch.Tensor.eq", ("x", kept[1]), (2, 4, 8)))
    add("torch.rand", (), (4,))
    add("torch.Tensor.mul", (kept[0], writer.weight("scale", (4,))), (4,))
    loss = add("torch.Tensor.mean", ("x",), (), gradient=True)
    assert remade(writer.capture(loss), writer.layers) == set(kept)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        ("torch.Tensor.__getitem__", "getitem"),
        ("torch.Tensor.__iadd__", "add"),
        ("torch.Tensor.__rsub__", "sub"),
        ("torch.Tensor.mT.__get__", "mT"),
        ("torch.Tensor.add_", "add"),
    ],
)
def test_names_of_functions(function, name):
    writer = Writer(2)
    writer.run(function, ("x",), (2,))
    assert function_name(writer.operations[0]) == name
