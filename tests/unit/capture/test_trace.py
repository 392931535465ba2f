"""What a capture sees of unusual modules, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def blocks_of(torch: Any, forward: Callable[[Any, Any], Any], **extra: Any) -> Any:
    """Return a factory of three equal blocks that compute as `forward` says.

    A block has linear layers ``a`` and ``b``. A function in `extra` takes a block and
    gives it more; ``outer`` changes the input of the first block.
    """
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(16, 16)
            self.b = nn.Linear(16, 16)
            extra.get("more", lambda _: None)(self)

        def forward(self, x: Any) -> Any:
            return forward(self, x)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(3))
            self.head = nn.Linear(16, 1)

        def forward(self, x: Any) -> Any:
            x = extra.get("outer", lambda _, y: y)(self, x)
            for block in self.blocks:
                x = block(x)
            return extra.get("loss", lambda y: y.mean())(self.head(x))

    return lambda: (Model(), (torch.randn(4, 16),))


def captured(factory: Any) -> Any:
    from nest.capture.factory import build
    from nest.capture.trace import capture

    return capture(build(factory, "model"))


def refusal(factory: Any) -> str:
    from nest.capture.factory import InvalidModuleError

    with pytest.raises(InvalidModuleError) as raised:
        captured(factory)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def plain(block: Any, x: Any) -> Any:
    return x + block.b(block.a(x).relu())


def test_values_are_not_read(torch: Any) -> None:
    for forward in (
        lambda block, x: block.a(x) * x.sum().item(),
        lambda block, x: block.a(x) if x.sum() > 0 else block.b(x),
        lambda block, x: block.a(x[(x[:, 0] > 0).nonzero()[:, 0]]),
        lambda block, x: block.a(x[x[:, 0] > 0]),
    ):
        text = refusal(blocks_of(torch, forward))
        assert text.startswith("model: blocks.0: expected a forward pass that is the s")


def test_parameters_do_not_change(torch: Any) -> None:
    def scaled(block: Any, x: Any) -> Any:
        with torch.no_grad():
            block.a.weight.mul_(0.9)
        return block.a(x)

    def assigned(block: Any, x: Any) -> Any:
        block.a.weight.data = block.a.weight.data * 0.9
        return block.a(x)

    text = refusal(blocks_of(torch, scaled))
    assert "blocks.0: expected parameters that only the optimizer changes" in text
    assert "torch.Tensor.mul_ on blocks.0.a.weight" in text
    assert "blocks.0.a.weight.data" in refusal(blocks_of(torch, assigned))


def test_buffers_do_not_change(torch: Any) -> None:
    def more(block: Any) -> None:
        block.register_buffer("mean", torch.zeros(16))

    def moved(block: Any, x: Any) -> Any:
        with torch.no_grad():
            block.mean.mul_(0.9).add_(x.mean(0))
        return block.a(x)

    def replaced(block: Any, x: Any) -> Any:
        block.mean = block.mean * 0.9
        return block.a(x)

    def spectral(block: Any) -> None:
        torch.nn.utils.parametrizations.spectral_norm(block.a)

    def normed(block: Any) -> None:
        block.norm = torch.nn.BatchNorm1d(16)

    text = refusal(blocks_of(torch, moved, more=more))
    assert "changes nothing that the module keeps, got torch.Tensor.mul_ on" in text
    text = refusal(blocks_of(torch, replaced, more=more))
    assert "another one for blocks.0.mean" in text
    text = refusal(blocks_of(torch, plain, more=spectral))
    assert "got torch.nn.functional.normalize on blocks.0.a.parametrizations" in text
    found = captured(blocks_of(torch, lambda block, x: block.norm(x), more=normed))
    assert sum(x.buffer for x in found.parameters) == 3 * 3


def test_loss_is_a_scalar_with_a_gradient(torch: Any) -> None:
    text = refusal(blocks_of(torch, plain, loss=lambda y: y))
    assert "expected a scalar loss" in text
    assert "shape (4, 1)" in text
    text = refusal(blocks_of(torch, plain, loss=lambda y: {"loss": y}))
    assert "a value of class dict" in text
    text = refusal(blocks_of(torch, plain, loss=lambda y: y.mean().detach()))
    assert "without a gradient" in text


def test_failures_name_the_module(torch: Any) -> None:
    text = refusal(blocks_of(torch, lambda block, x: block.a(x[:, 1:])))
    assert text.startswith("model: blocks.0.a: expected a forward pass that runs")


def test_parameters_outside_of_modules_are_refused(torch: Any) -> None:
    def more(block: Any) -> None:
        block.hidden = [torch.nn.Linear(16, 16)]

    factory = blocks_of(torch, lambda block, x: block.hidden[0](x), more=more)
    assert "keep modules in a ModuleList" in refusal(factory)


def test_module_is_left_as_it_was(torch: Any) -> None:
    from nest.capture.factory import build
    from nest.capture.trace import capture

    built = build(blocks_of(torch, plain), "model")
    before = dict(built.module.named_parameters())
    assert capture(built) == capture(built)
    after = dict(built.module.named_parameters())
    assert all(after[name] is value for name, value in before.items())


def test_functions_without_text_have_a_reason(torch: Any) -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            return gradient * 2

    def outer(_model: Any, x: Any) -> Any:
        return Double.apply(x)

    found = captured(blocks_of(torch, plain, outer=outer))
    first = found.operations[0]
    assert (first.code, "Double" in first.obstacle) == ("", True)
    mapped = blocks_of(
        torch, plain, outer=lambda _, x: torch.vmap(lambda row: row * 2)(x)
    )
    first = captured(mapped).operations[0]
    assert (first.code, first.obstacle) == ("", "the function vmap")


def test_in_place_functions_make_new_names(torch: Any) -> None:
    def outer(_model: Any, x: Any) -> Any:
        y = torch.zeros_like(x)
        y[:, :8] = x[:, 8:]
        return y.add_(1)

    found = captured(blocks_of(torch, plain, outer=outer))
    zeros, part, put, added = found.operations[:4]
    assert put.code == "{0}[:, :8] = {1}"
    assert put.inputs == (zeros.outputs[0].name, part.outputs[0].name)
    assert put.accessors == ("{0}",)
    assert added.inputs == (put.outputs[0].name,)
    assert len({x.outputs[0].storage for x in (zeros, put, added)}) == 1
    assert len({x.outputs[0].name for x in (zeros, put, added)}) == 3


def test_gradients_are_switched_off_by_accessors(torch: Any) -> None:
    def outer(model: Any, x: Any) -> Any:
        with torch.no_grad():
            return model.head(x)

    found = captured(blocks_of(torch, plain, outer=lambda m, x: x + outer(m, x)))
    assert found.operations[0].accessors == (".detach()",)
    assert found.modules[0].obstacle == "a call without gradients"


def test_tied_weights_and_constants(torch: Any) -> None:
    def more(block: Any) -> None:
        block.b.weight = block.a.weight
        block.tables = [torch.ones(16)]

    def forward(block: Any, x: Any) -> Any:
        return block.b(block.a(x * block.tables[0]))

    found = captured(blocks_of(torch, forward, more=more))
    names = [x.names for x in found.parameters]
    assert ("blocks.0.a.weight", "blocks.0.b.weight") in names
    assert ("blocks.0.tables[0]",) in names
    assert found.num_parameters == 3 * (256 + 16 + 16) + 17


def test_samples_repeat_in_turn(torch: Any) -> None:
    from nest.capture.factory import build, with_samples
    from nest.capture.trace import capture

    factory = blocks_of(torch, plain)
    once = capture(build(factory, "model"))
    twice = capture(build(factory, "model", samples=8))
    assert (once.batch, twice.batch) == (4, 8)
    assert twice.forward_flops == 2 * once.forward_flops
    rows, kept, number = with_samples((torch.arange(3), torch.ones(2), 5), samples=5)
    assert rows.tolist() == [0, 1, 2, 0, 1]
    assert (tuple(kept.shape), number) == ((2,), 5)


def test_a_module_with_two_paths_has_tied_weights(torch: Any) -> None:
    def more(block: Any) -> None:
        block.twin = block.a

    found = captured(blocks_of(torch, plain, more=more))
    names = [x.names for x in found.parameters]
    assert ("blocks.0.a.weight", "blocks.0.twin.weight") in names
    assert found.num_parameters == 3 * 2 * (256 + 16) + 17


def test_modules_read_their_own_parameters(torch: Any) -> None:
    """What they are given counts, also where a parametrization makes a weight."""

    def more(block: Any) -> None:
        torch.nn.utils.parametrizations.weight_norm(block.a)
        block.scaled = torch.nn.Bilinear(16, 16, 16)
        block.scaled.forward = lambda x, weight: x @ weight

    def given(block: Any, x: Any) -> Any:
        return block.scaled(block.a(x), block.b.weight)

    assert captured(blocks_of(torch, given, more=more)).num_parameters

    def hide(block: Any) -> None:
        block.a.other = (block.b,)
        block.a.forward = lambda x: x @ block.a.other[0].weight

    text = refusal(blocks_of(torch, lambda block, x: block.a(x), more=hide))
    assert "model: blocks.0.a: expected a module that reads its own" in text
    assert "got blocks.0.b.weight, which it does not hold" in text


def test_hooks_on_gradients(torch: Any) -> None:
    """A module that is called as a whole may have them."""

    def hooked(_: Any, x: Any) -> Any:
        x = x * 1
        if x.requires_grad:
            x.register_hook(lambda gradient: gradient * 0.1)
        return x

    def more(block: Any) -> None:
        block.b.weight.register_hook(lambda gradient: gradient * 0.1)

    text = refusal(
        blocks_of(torch, plain, outer=lambda m, x: hooked(m, m.blocks[0](x)))
    )
    assert "expected a forward pass without hooks outside its parts" in text
    text = refusal(blocks_of(torch, plain, more=more))
    assert "expected parameters without hooks, got one on blocks.0.b.weight" in text
    found = captured(blocks_of(torch, lambda block, x: hooked(block, block.a(x))))
    obstacles = [x.obstacle for x in found.operations if "hook" in x.function]
    assert obstacles == ["an argument of class function"] * 3


def test_gradients_are_not_computed_in_the_forward_pass(torch: Any) -> None:
    def backward(block: Any, x: Any) -> Any:
        block.a(x).sum().backward()
        return block.b(x)

    def whole(block: Any, x: Any) -> Any:
        torch.autograd.backward(block.a(x).sum())
        return block.b(x)

    def grad(block: Any, x: Any) -> Any:
        y = block.a(x)
        return torch.autograd.grad(y.sum(), block.a.weight, create_graph=True)[0] @ y.T

    for forward, name in (
        (backward, "backward()"),
        (whole, "backward()"),
        (grad, "torch.autograd.grad"),
    ):
        text = refusal(blocks_of(torch, forward))
        assert text.startswith("model: blocks.0: expected a forward pass that leaves")
        assert f"got {name}; return the loss alone" in text


def test_weights_that_are_made_otherwise_are_refused(torch: Any) -> None:
    def lazy(block: Any) -> None:
        block.a = torch.nn.LazyLinear(16)

    text = refusal(blocks_of(torch, plain, more=lazy))
    assert "got none for blocks.0.a.weight of a lazy module; give it its sizes" in text

    def derived(block: Any) -> None:
        block.scaled = block.a.weight * 2

    text = refusal(blocks_of(torch, plain, more=derived))
    assert "expected weights that are parameters, got blocks.0.scaled" in text


def test_modules_count_no_passes(torch: Any) -> None:
    """What is the same after a second pass, such as a length, is no state."""

    def counted(block: Any, x: Any) -> Any:
        block.passes = getattr(block, "passes", 0) + 1
        return block.a(x)

    def measured(block: Any, x: Any) -> Any:
        block.length, block.last = len(x), block.a(x)
        return block.last

    text = refusal(blocks_of(torch, counted))
    assert "blocks.0.passes: expected a forward pass that changes nothing" in text
    assert captured(blocks_of(torch, measured)).num_parameters


def test_masks_of_pytorch_s_own_encoder_are_not_read(torch: Any) -> None:
    nn = torch.nn

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2)

        def forward(self, x: Any) -> Any:
            mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
            return self.encoder(x, mask=mask).mean()

    made = captured(lambda: (Model(), (torch.randn(4, 6, 16),)))
    layer = next(x for x in made.modules if x.call.path == "encoder.layers.0")
    assert "is_causal=False" in layer.code
