"""Which calls are blocks, and how the rest is split."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from nest.capture.layers import layers_of
from tests.captured import Writer
from tests.unit.capture.test_trace import blocks_of, captured, plain


@pytest.fixture
def layers(torch: Any) -> Any:
    from nest.capture.layers import layers_of

    return layers_of


def names(layers: Any) -> list[str]:
    return [x.name for x in layers]


def test_layers_have_every_operation_once(torch: Any, layers: Any) -> None:
    found = captured(blocks_of(torch, plain))
    for granularity in ("block", "module", "operator"):
        made = layers(found, granularity)
        assert made[0].first == 0
        assert made[-1].end == len(found.operations)
        assert all(x.end == y.first for x, y in itertools.pairwise(made))
        assert len(set(names(made))) == len(made)


def test_blocks_between_parts(torch: Any, layers: Any) -> None:
    found = captured(blocks_of(torch, plain, outer=lambda _, x: x * 2))
    made = layers(found)
    assert names(made) == ["mul", "blocks.0", "blocks.1", "blocks.2", "head"]
    assert [x.is_block for x in made] == [False, True, True, True, False]
    # The first block needs no gradient of its input.
    assert made[1].kind != made[2].kind == made[3].kind


def test_other_granularities(torch: Any, layers: Any) -> None:
    found = captured(blocks_of(torch, plain))
    parts = [f"blocks.{i}.{x}" for i in range(3) for x in "ab"]
    assert names(layers(found, "module")) == [*parts, "head"]
    assert len(layers(found, "operator")) == len(found.operations)


@pytest.mark.parametrize("depends", [True, False])
def test_repetitions_that_depend_on_each_other_are_one_layer(depends: bool) -> None:
    writer = Writer(2)
    first = writer.linear("first", "x", 8)
    values = first
    for _ in range(3):
        made = writer.linear("cell", values if depends else first, 8)
        values = writer.run("torch.Tensor.add", (values, made), (2, 4, 8))
    found = writer.capture(writer.loss(values))
    users = [
        [x.function for x in found.operations[layer.first : layer.end]]
        for layer in layers_of(found, "operator")
    ]
    linear, add = "torch.nn.functional.linear", "torch.Tensor.add"
    cells = [[linear, add, linear, add, linear], [add]]
    if not depends:
        cells = [[x] for x in (linear, add) * 3]
    assert users == [[linear], *cells, ["torch.Tensor.mean"]]


def tower(torch: Any, block: Any, count: int) -> Any:
    class Tower(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(block() for _ in range(count))

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return x

    return Tower


def residual(torch: Any) -> Any:
    class Part(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = torch.nn.Linear(16, 16)
            self.act = torch.nn.GELU()

        def forward(self, x: Any) -> Any:
            return self.act(self.a(x))

    class Residual(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = Part()
            self.second = Part()

        def forward(self, x: Any) -> Any:
            return x + self.second(self.first(x))

    return Residual


def test_towers_are_gone_into_and_residual_blocks_are_not(
    torch: Any, layers: Any
) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left = tower(torch, residual(torch), 3)()
            self.right = tower(torch, residual(torch), 2)()

        def forward(self, x: Any, y: Any) -> Any:
            return (self.left(x) * self.right(y)).mean()

    found = captured(lambda: (Model(), (torch.randn(4, 16), torch.randn(4, 16))))
    blocks = [x.name for x in layers(found) if x.is_block]
    assert blocks == [
        *(f"left.layers.{i}" for i in range(3)),
        *(f"right.layers.{i}" for i in range(2)),
    ]


def test_the_first_block_behind_frozen_embeddings_is_as_the_others(
    torch: Any, layers: Any
) -> None:
    """Nothing that passes its parts has a gradient, but they belong together."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Linear(16, 16).requires_grad_(False)
            self.blocks = torch.nn.ModuleList(residual(torch)() for _ in range(3))

        def forward(self, x: Any) -> Any:
            x = self.embed(x)
            for block in self.blocks:
                x = block(x)
            return x.mean()

    found = captured(lambda: (Model(), (torch.randn(4, 16),)))
    blocks = [x.name for x in layers(found) if x.is_block]
    assert blocks == [f"blocks.{i}" for i in range(3)]


def test_experts_are_no_blocks(torch: Any, layers: Any) -> None:
    def more(block: Any) -> None:
        block.experts = torch.nn.ModuleList(residual(torch)() for _ in range(3))

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            more(self)
            self.inner = torch.nn.Linear(16, 16)

        def forward(self, x: Any) -> Any:
            x = self.inner(x)
            return sum(expert(x) for expert in self.experts).mean()

    found = captured(lambda: (Model(), (torch.randn(4, 16),)))
    assert not any(x.is_block for x in layers(found))


def test_calls_that_hide_what_they_give_are_opened(torch: Any, layers: Any) -> None:
    def forward(block: Any, x: Any) -> Any:
        block.balance = [x.mean()]
        return plain(block, x)

    def loss(y: Any) -> Any:
        return y.mean()

    factory = blocks_of(torch, forward, loss=loss)

    def with_balance() -> Any:
        model, inputs = factory()

        class Whole(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.model = model

            def forward(self, x: Any) -> Any:
                return self.model(x) + sum(b.balance[0] for b in self.model.blocks)

        return Whole(), inputs

    blocks = [x for x in layers(captured(with_balance)) if x.is_block]
    assert len(blocks) == 3
    assert all(len(x.steps) > 1 for x in blocks)
    assert all(len(x.steps) == 1 for x in layers(captured(factory)) if x.is_block)


def test_memory_with_two_names_is_not_split(torch: Any, layers: Any) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = torch.nn.ModuleList(residual(torch)() for _ in range(3))

        def forward(self, x: Any) -> Any:
            whole = x.clone()
            half = whole[:, :8]
            y = self.blocks[0](whole.clone())
            half.add_(y[:, :8])
            return self.blocks[2](self.blocks[1](y + whole)).mean()

    made = layers(captured(lambda: (Model(), (torch.randn(4, 16),))))
    assert [(x.name, x.is_block) for x in made] == [
        ("blocks.0", False),
        ("blocks.1", True),
        ("blocks.2", True),
        ("mean", False),
    ]
