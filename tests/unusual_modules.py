"""Small modules with something unusual in each, for training scripts.

As in ``tests/capture_models.py``, a factory returns a module and its example inputs,
and the file needs nothing but PyTorch and what a factory imports.
"""

from __future__ import annotations

import random

import numpy
import torch
from torch import nn
from torch.nn import functional as F


class Blocks(nn.Module):
    """Blocks between two linear layers, and the mean of squared differences."""

    def __init__(self, block: type[nn.Module] = nn.Sequential) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)
        self.blocks = nn.ModuleList(block() for _ in range(4))

    def run(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(self.run(x), target)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(x)))


def examples() -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets of four samples."""
    return torch.randn(4, 4), torch.randn(4, 2)


class DoubleLoss(Blocks):
    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(self.run(x).double(), target.double())


def double_loss():
    return DoubleLoss(Block), examples()


class Scaled(Block):
    """A block with a weight without axes."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * super().forward(x)


def scaled():
    return Blocks(Scaled), examples()


class EarlyRelu(nn.Module):
    """A block that changes what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.relu, self.up, self.down = (
            nn.ReLU(inplace=True),
            nn.Linear(8, 16),
            nn.Linear(16, 8),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.up(self.relu(x))))


def early_relu():
    return Blocks(EarlyRelu), examples()


class ChangedInput(Blocks):
    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x.mul_(0.5)
        return super().forward(x, target)


def changed_input():
    return ChangedInput(Block), examples()


class Assigned(Blocks):
    """In-place operations and assignments of items between the blocks."""

    def __init__(self) -> None:
        super().__init__(Block)
        self.rows = nn.Parameter(torch.randn(4, 8))

    def run(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for row, block in zip(self.rows, self.blocks, strict=True):
            x += row
            x = block(x)
        x[:, 0] = self.rows[0, 0]
        x[:, 1:3] *= 2
        return self.last(x)


def assigned():
    return Assigned(), examples()


class OtherWeights(Blocks):
    """Initial weights from the random numbers of NumPy and of Python."""

    def __init__(self) -> None:
        super().__init__(Block)
        self.register_buffer("scale", torch.tensor([random.random() for _ in range(8)]))
        weight = torch.tensor(numpy.random.rand(2, 8).tolist())  # noqa: NPY002
        self.last.weight = nn.Parameter(weight)

    def run(self, x: torch.Tensor) -> torch.Tensor:
        return super().run(x) + self.scale[:2]


def other_weights():
    return OtherWeights(), examples()


class Listed(Blocks):
    """Keeps tensors in a list and in a dict, which its forward pass reads."""

    def __init__(self) -> None:
        super().__init__(Block)
        self.shifts = [torch.linspace(0, 1, 8), torch.linspace(0, 1, 2)]
        self.scales = {"a.b": torch.linspace(1, 2, 8)}

    def run(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x * self.scales["a.b"] + self.shifts[0])
        return self.last(x) + self.shifts[1]


def listed():
    return Listed(), examples()


class Penalized(Blocks):
    """A penalty on all weights."""

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = super().forward(x, target)
        return loss + 0.01 * sum(p.square().mean() for p in self.parameters())


def penalized():
    return Penalized(Block), examples()


class Unlike(Block):
    """A block with a weight of another data type."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(8, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (super().forward(x) * self.gain).float()


def unlike():
    return Blocks(Unlike), examples()


def unseeded():
    """Weights that no seed of NumPy's older generator reaches."""
    module = Blocks(Block)
    weight = numpy.random.default_rng().random((2, 8)).tolist()
    module.last.weight = nn.Parameter(torch.tensor(weight))
    return module, examples()


class Reread(Blocks):
    """A block that runs again without gradients."""

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        with torch.no_grad():
            again = self.blocks[0](x)
        return F.mse_loss(self.last(x + again), target)


def reread():
    return Reread(Block), examples()


class Masked(nn.Module):
    """PyTorch's own encoder, which compares its mask with the causal one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        x = self.encoder(self.first(x), mask=mask)
        return F.mse_loss(self.last(x), target)


def masked():
    return Masked(), (torch.randn(4, 6, 4), torch.randn(4, 6, 2))


class Penalties(Blocks):
    """Blocks that keep a loss each, which the model adds to its own."""

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = super().forward(x, target)
        return loss + 0.1 * sum(block.penalty for block in self.blocks)


class EarlyPenalty(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.penalty = self.up(x).square().mean()
        return super().forward(x)


class LatePenalty(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        self.penalty = self.up(x).square().mean()
        return y


def early_penalty():
    return Penalties(EarlyPenalty), examples()


def late_penalty():
    return Penalties(LatePenalty), examples()


class Recurrent(nn.Module):
    """A block of a recurrent network."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.GRU(8, 8, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.network(x)[0]


def recurrent():
    return Blocks(Recurrent), (torch.randn(4, 6, 4), torch.randn(4, 6, 2))


class ChannelsLast(nn.Module):
    """Weights that are not in one piece, and one bias that two ranks cannot share."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 3, 3)
        self.to(memory_format=torch.channels_last)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        y = self.last(self.first(x).relu())
        return F.mse_loss(y.mean((2, 3)), target)


def channels_last():
    return ChannelsLast(), (torch.randn(4, 3, 8, 8), torch.randn(4, 3))
