"""What crosses a cut, and what receiving it takes."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from nest.cost.quanta import Quanta
from nest.ir.problem import Problem
from nest.topology.alphabeta import NS_PER_S
from nest.topology.protocol import Link, Route
from nest.units import ceil_div


class Tensor(NamedTuple):
    """What one layer hands on: its consumers with their sizes per sample."""

    producer: int
    consumers: tuple[tuple[int, int], ...]


class Transfers:
    """The tensors of a problem, and the time of messages that carry them.

    ``edges`` has (source, target, bytes per sample) of every edge, in file order, and
    ``tensors`` what every layer hands on, by rising position.
    """

    def __init__(self, problem: Problem, quanta: Quanta) -> None:
        self._quanta = quanta
        self._records = problem.graph.edges
        self.edges = problem.graph.index_edges()
        consumers: dict[int, list[tuple[int, int]]] = {}
        for source, target, size_bytes in self.edges:
            consumers.setdefault(source, []).append((target, size_bytes))
        self.tensors = tuple(
            Tensor(producer, tuple(sorted(consumers[producer])))
            for producer in sorted(consumers)
        )

    def crossing(self, before: Collection[int]) -> dict[int, int]:
        """Return what crosses a cut: bytes per sample by producer.

        A tensor is as large as its largest consumer beyond the cut needs it; one of 0
        bytes does not cross. ``before`` has the positions of the layers in front of the
        cut.
        """
        crossing = {}
        for producer, consumers in self.tensors:
            if producer in before:
                size_bytes = 0
                for node, needed_bytes in consumers:
                    if needed_bytes > size_bytes and node not in before:
                        size_bytes = needed_bytes
                if size_bytes:
                    crossing[producer] = size_bytes
        return crossing

    def edge_bytes(self, tp: int) -> list[tuple[int, int, int]]:
        """Return (source, target, bytes per sample) at a tensor width."""
        return [
            (source, target, edge.bytes_per_sample_by_tp.get(tp, size_bytes))
            for (source, target, size_bytes), edge in zip(
                self.edges, self._records, strict=True
            )
        ]

    def edge_ends(self, tp: int, micro_batch: int) -> list[tuple[int, int, int, int]]:
        """Return (source, target, bytes at the source, bytes at the target).

        Activation and gradient of a micro-batch, ``2 (X + extra)``, for the
        end whose stage has tensor parallel degree ``tp``.
        """
        ends = []
        for (source, target, size_bytes), edge in zip(
            self.edges, self._records, strict=True
        ):
            extras = edge.source_extra_bytes_by_tp, edge.target_extra_bytes_by_tp
            at_source, at_target = (
                2 * micro_batch * (size_bytes + extra.get(tp, 0)) for extra in extras
            )
            ends.append((source, target, at_source, at_target))
        return ends

    def message(self, link: Link) -> int:
        """Quanta that a message costs whatever its size."""
        return self._quanta.round(link.alpha_ns, "a message")

    def tensor(self, link: Link, size_bytes: int, samples: int, shards: int) -> int:
        """Quanta that one tensor adds to a message, ``X / (shards β)``.

        ``X = size_bytes * samples``, times as many receivers as share a
        sender. The quotient of whole numbers is rounded once.
        """
        part_bytes = size_bytes * samples * link.receivers / (shards * link.senders)
        time_ns = part_bytes / link.beta * NS_PER_S
        return self._quanta.round(time_ns, "an edge")

    def receive(
        self, route: Route, sizes_bytes: Iterable[int], samples: int, shards: int
    ) -> int:
        """Quanta of a message with several tensors, on its slowest link.

        Nothing where there is no tensor. ``sizes_bytes`` has the bytes per sample of
        every tensor; each is split over so many ``shards``.
        """
        sizes = list(sizes_bytes)
        if not sizes:
            return 0
        return max(
            self.message(link)
            + sum(self.tensor(link, size, samples, shards) for size in sizes)
            for link in route
        )


def passing_bytes(
    entering: Collection[int], leaving: dict[int, int], samples: int, shards: int
) -> int:
    """Return what tensors that only pass a stage take, per micro-batch.

    ``entering`` and ``leaving`` are what crosses the cuts in front of the stage and
    behind it, see :meth:`Transfers.crossing`; each tensor is split over so many
    ``shards``.
    """
    return sum(
        ceil_div(size_bytes * samples, shards)
        for producer, size_bytes in leaving.items()
        if producer in entering
    )
