"""The model parts that layers of a graph are: embedding, blocks, head.

Frameworks count the blocks of a decoder, and its modules for multi-token
prediction, and know its embedding and its head. Graphs of models name their
layers so: ``embedding``, ``layer-3`` or ``layers-0-3`` for blocks, ``mtp-0``
for a module, ``head`` (:mod:`nest.models.graphs`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import reduce
from itertools import pairwise
from typing import NamedTuple

from nest.errors import InvalidPlanError, InvalidProblemError
from nest.ir.base import LayerId
from nest.ir.graph import Graph
from nest.ir.plan import Plan


class Chunk(NamedTuple):
    """The model parts of one stage, or of one chunk of an interleaved plan.

    ``layers`` and ``mtp`` count blocks and modules for multi-token prediction.
    """

    embedding: bool
    layers: int
    head: bool
    mtp: int = 0


def with_ends(counts: Sequence[int], modules: int = 0) -> tuple[Chunk, ...]:
    """Return chunks with these numbers of blocks, and the ends of the model.

    The last one has the modules for multi-token prediction, before the head.
    """
    last = len(counts) - 1
    return tuple(
        Chunk(index == 0, count, index == last, modules * (index == last))
        for index, count in enumerate(counts)
    )


class Placement(NamedTuple):
    """The layers of a graph from first to last, with what they stand for."""

    pieces: tuple[tuple[LayerId, Chunk], ...]

    @property
    def layers(self) -> int:
        """Blocks of the whole graph."""
        return sum(chunk.layers for _, chunk in self.pieces)

    @property
    def mtp(self) -> int:
        """Modules for multi-token prediction of the whole graph."""
        return sum(chunk.mtp for _, chunk in self.pieces)

    def cut(self, chunks: Sequence[Chunk]) -> list[list[LayerId]]:
        """Return the layers of every chunk.

        Raises ``InvalidPlanError`` if a chunk begins or ends inside a layer of the
        graph, or they hold more or fewer layers.
        """
        remaining = list(reversed(self.pieces))
        cuts: list[list[LayerId]] = []
        for index, chunk in enumerate(chunks, 1):
            layers: list[LayerId] = []
            held = Chunk(False, 0, False)
            while remaining and held != chunk:
                name, piece = remaining.pop()
                layers.append(name)
                held = joined(held, piece)
                if any(a > b for a, b in zip(held, chunk, strict=True)):
                    break
            if held != chunk:
                raise InvalidPlanError(
                    f"stages: expected cuts between layers of the graph ({self.layers} "
                    f"blocks, {max(piece.layers for _, piece in self.pieces)} at most "
                    f"in a layer), got a chunk {index} of {chunk.layers} blocks; use a "
                    f"graph with finer layers"
                )
            cuts.append(layers)
        if remaining:
            raise InvalidPlanError(
                f"stages: expected all {self.layers} blocks, got fewer; "
                f"correct the chunks"
            )
        return cuts


def joined(one: Chunk, other: Chunk) -> Chunk:
    """Return what two chunks hold together."""
    return Chunk(
        one.embedding or other.embedding,
        one.layers + other.layers,
        one.head or other.head,
        one.mtp + other.mtp,
    )


def placement_of(graph: Graph) -> Placement:
    """Read off what the layers of a graph stand for.

    Raises ``InvalidProblemError`` if it is no chain of an embedding, blocks, modules
    and a head by their names.
    """
    order = [graph.layers[i] for i in graph.topological_order()]
    edges = {(str(edge.source), str(edge.target)) for edge in graph.edges}
    chain = {(str(a.id), str(b.id)) for a, b in pairwise(order)}
    if edges != chain:
        raise InvalidProblemError(
            "graph: expected a chain of layers, got branches; frameworks cut "
            "chains only"
        )
    pieces: list[tuple[LayerId, Chunk]] = []
    blocks = modules = 0
    for layer in order:
        chunk = _read(str(layer.id), blocks, modules)
        if chunk is None:
            raise InvalidProblemError(
                f"graph: expected layers named embedding, layer-{blocks} (or "
                f"layers-{blocks}-N) and so on, mtp-{modules} and so on, and head, got "
                f"{str(layer.id)!r}; name them as the graphs of models do"
            )
        blocks += chunk.layers
        modules += chunk.mtp
        pieces.append((layer.id, chunk))
    first, *between, last = (chunk for _, chunk in pieces)
    inside = [bool(chunk.mtp) for chunk in between]
    if not (
        first.embedding
        and last.head
        and all(chunk.layers or chunk.mtp for chunk in between)
        and inside == sorted(inside)
    ):
        raise InvalidProblemError(
            "graph: expected an embedding, blocks, modules for multi-token "
            "prediction if there are any, and a head, in this order, got "
            "another order; frameworks run no other"
        )
    return Placement(tuple(pieces))


def _read(name: str, blocks: int, modules: int) -> Chunk | None:
    """Return the model parts of a layer, given the number of those before."""
    if name in ("embedding", "head"):
        return Chunk(name == "embedding", 0, name == "head")
    if name == f"mtp-{modules}":
        return Chunk(False, 0, False, 1)
    match = re.fullmatch(r"layers?-(\d{1,9})(?:-(\d{1,9}))?", name)
    if match is None or int(match[1]) != blocks:
        return None
    last = int(match[2] or match[1])
    return Chunk(False, last - blocks + 1, False) if last >= blocks else None


def chunks_of(plan: Plan, placement: Placement) -> tuple[Chunk, ...]:
    """Return what every stage of a plan holds."""
    stands_for = {str(name): piece for name, piece in placement.pieces}
    return tuple(
        reduce(joined, (stands_for[str(layer)] for layer in stage.layers))
        for stage in plan.stages
    )
