"""Three modules of PyTorch for nest import torch: see docs/torch.md."""

import torch
from torch import nn
from torch.nn import functional as F


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.GroupNorm(8, width)
        self.one = nn.Conv2d(width, width, 3, padding=1)
        self.two = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        return x + self.two(F.silu(self.one(self.norm(x))))


class UNet(nn.Module):
    def __init__(self, widths):
        super().__init__()
        steps = list(zip(widths, widths[1:]))
        self.enter = nn.Conv2d(3, widths[0], 3, padding=1)
        self.left = nn.ModuleList(Residual(a) for a, _ in steps)
        self.shrink = nn.ModuleList(nn.Conv2d(a, b, 2, 2) for a, b in steps)
        self.middle = nn.Sequential(*(Residual(widths[-1]) for _ in range(4)))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in steps)
        self.right = nn.ModuleList(Residual(a) for a, _ in steps)
        self.leave = nn.Conv2d(widths[0], 3, 3, padding=1)

    def forward(self, images, noise):
        x, kept = self.enter(images + noise), []
        for block, shrink in zip(self.left, self.shrink):
            kept.append(block(x))
            x = shrink(kept[-1])
        x = self.middle(x)
        for block, grow in zip(reversed(self.right), reversed(self.grow)):
            x = block(grow(x) + kept.pop())
        return F.mse_loss(self.leave(x), noise)


def unet():
    images = torch.randn(4, 3, 256, 256)
    return UNet([256, 512, 1024, 2048]), (images, torch.randn_like(images))


class DLRM(nn.Module):
    def __init__(self, rows, width):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(n, width) for n in rows)
        self.dense = nn.Linear(13, width)
        pairs = len(rows) * (len(rows) + 1) // 2
        self.top = nn.Sequential(
            nn.Linear(width + pairs, 1024), nn.ReLU(), nn.Linear(1024, 1)
        )

    def forward(self, dense, sparse, clicks):
        x = self.dense(dense).relu()
        rows = [table(sparse[:, i]) for i, table in enumerate(self.tables)]
        features = torch.stack([x, *rows], dim=1)
        count = features.shape[1]
        i, j = torch.tril_indices(count, count, -1, device=x.device)
        scores = self.top(torch.cat([x, (features @ features.mT)[:, i, j]], dim=1))
        return F.binary_cross_entropy_with_logits(scores[:, 0], clicks)


def dlrm():
    inputs = torch.randn(4096, 13), torch.randint(0, 1000, (4096, 26, 8))
    return DLRM([2_000_000] * 26, 128), (*inputs, torch.rand(4096))


class Transformer(nn.Module):
    def __init__(self, words, width, depth):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 16, 4 * width, 0.0, batch_first=True)
            for _ in range(depth)
        )
        self.head = nn.Linear(width, words)

    def forward(self, tokens, labels):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def transformer():
    words = torch.randint(0, 32000, (2, 1024))
    return Transformer(32000, 4096, 24), (words, words)


def small():
    words = torch.randint(0, 1000, (8, 64))
    return Transformer(1000, 128, 4), (words, words)
