"""Variables that both models have; symbols as in ``formulations/README.md``.

How layers take choices is each model's own: 0/1 per layer for CP-SAT, counts
per kind for MILP. So are all constraints.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

from formulations.common import BACKWARD, FORWARD, SIDES, Choice, Task
from nest.cost.schedules.base import Weights
from nest.cost.space import undivided

#: Of the engine.
Variable = Any
Variables = dict[tuple[int, ...], Variable]


class Model(ABC):
    """One sub-problem's model: its constants and its variables.

    Sides ``d`` of a slot are those of :data:`formulations.common.SIDES`.

    - ``y[s, o]``: slot ``s`` takes option ``o``.
    - ``w[s, g]``: slot ``s`` has cost profile ``g``.
    - ``x[l, s]``: layer ``l`` is in slot ``s``.
    - ``at[l, s, g, j]``: layer ``l`` is in slot ``s``, which has profile ``g``, with
      layout ``j``; where layouts of a slot can differ.
    - ``end[l, s, d]``: layer ``l`` receives on a side of slot ``s``; where layouts can
      differ.
    - ``face[s, g, j, d]``: that layer of slot ``s``, which has profile ``g``, has
      layout ``j``.
    - ``moved[e, s, g, j, d]``: edge ``e`` inside slot ``s``, which has profile ``g``,
      leads from another layout to ``j`` (backward: from ``j`` to another one).
    - ``uses[s, d, r]``: slot ``s`` receives on a side at the times of entry ``r`` of
      its table.
    - ``width[s, n]``: slot ``s`` has ``n`` devices; where what a slot next to it
      receives depends on that.
    - ``c[i, s]``: increment ``i`` crosses the boundary before slot ``s``.
    - ``crossed[s]``: something crosses the boundary before slot ``s``.
    - ``passes[i, s]``: increment ``i`` passes slot ``s``; where it takes memory that
      could be short.
    - ``receive[s, d]``: receive of slot ``s`` on a side.
    - ``hidden[s]``: recomputation and receive of gradients that overlap it.
    - ``hideable[s]``: gradient sync of slot ``s`` that may hide behind its backward
      pass; ``behind[s]``: what does.
    - ``load[s, p]``: ``τ`` of slot ``s``, what counts for pace ``p``.
    - ``slowest[p]``: ``t_max`` of pace ``p``.
    - ``sync``, ``step``: ``Y`` and ``T``.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.instance, self.sub_problem, self.slots, self.cutoff, _ = task
        self.y: Variables = {}
        self.w: Variables = {}
        self.x: Variables = {}
        self.at: Variables = {}
        self.end: Variables = {}
        self.face: Variables = {}
        self.moved: Variables = {}
        self.uses: Variables = {}
        self.width: Variables = {}
        self.c: Variables = {}
        self.passes: Variables = {}
        self.receive: Variables = {}
        self.load: Variables = {}
        self.crossed: dict[int, Variable] = {}
        self.hidden: dict[int, Variable] = {}
        self.hideable: dict[int, Variable] = {}
        self.behind: dict[int, Variable] = {}
        self.slowest: dict[int, Variable] = {}
        self.sync: Variable = None
        self.step: Variable = None

    @property
    def layers(self) -> range:
        """Positions of the layers."""
        return range(self.instance.graph.num_layers)

    @cached_property
    def most_hideable(self) -> int:
        """Gradient sync of all layers together that may hide, at most."""
        return sum(
            len(members)
            * max(
                (
                    choice.hideable
                    for slot in self.slots.values()
                    for profile in slot.profiles
                    for choice in profile.choices[kind]
                ),
                default=0,
            )
            for kind, members in enumerate(self.instance.graph.members)
        )

    @property
    def rounds(self) -> Weights:
        """How often the largest of each pace counts."""
        split, stages = self.sub_problem.split, self.sub_problem.num_stages
        return self.instance.rounds(split, stages)

    @property
    def paces(self) -> range:
        """The paces of the schedule."""
        return range(self.instance.num_paces)

    def inside(self, s: int) -> list[int]:
        """Return the layers that can be in a slot, in the graph's order."""
        return [i for i in self.instance.graph.order if (i, s) in self.x]

    @property
    def together(self) -> tuple[int, ...]:
        """The layers that no two slots may part."""
        return undivided(self.instance.problem)

    @property
    def even_shares(self) -> list[tuple[int, tuple[int, ...], int]]:
        """Kinds that slots have equal shares of, their layers, the share."""
        if not self.instance.problem.job.even_layers:
            return []
        return [
            (kind, layers, len(layers) // self.sub_problem.num_stages)
            for kind, layers in enumerate(self.instance.graph.members)
            if len(layers) > 1
        ]

    def sender(self, s: int, d: int) -> int:
        """Return the slot from which a slot receives on a side."""
        return s - 1 if d == BACKWARD else s + 1

    def choices(self, kind: int, s: int, g: int) -> tuple[Choice, ...]:
        """Return how a kind of layer can run in a slot under a profile."""
        return self.slots[s].profiles[g].choices[kind]

    def move(self, e: int, s: int, g: int, j: int) -> int:
        """Return what it takes to bring an edge's tensor to a layout."""
        size = self.instance.graph.edge_sizes[e]
        return self.slots[s].profiles[g].moves[j][size]

    def held(self, s: int, g: int) -> list[tuple[Variable, tuple[int, ...]]]:
        """Return what says which bytes passing tensors take, and them."""
        passing = self.slots[s].profiles[g].passing
        if not self.slots[s].mixed:
            return [(self.w[s, g], sizes) for sizes in passing]
        return [
            (self.face[s, g, j, FORWARD], sizes)
            for j, sizes in enumerate(passing)
            if (s, g, j, FORWARD) in self.face
        ]

    @abstractmethod
    def binary(self, *name: object) -> Variable:
        """Return a new variable that is 0 or 1."""

    @abstractmethod
    def share(self, *name: object) -> Variable:
        """Return a new variable that the binary ones make 0 or 1."""

    @abstractmethod
    def quanta(self, *name: object) -> Variable:
        """Return a new variable for a time; its kind is ``name[0]``."""


def create(model: Model) -> None:
    """Create the variables of a model.

    Raises ``OutOfTimeError`` if the deadline passes.
    """
    instance = model.instance
    num_stages = model.sub_problem.num_stages
    for layer in model.layers:
        for s in instance.graph.slots_of(layer, num_stages):
            model.x[layer, s] = model.binary("x", layer, s)
    for s, slot in model.slots.items():
        instance.deadline.check()
        for o in range(len(slot.options)):
            model.y[s, o] = model.binary("y", s, o)
        for g in range(len(slot.profiles)):
            model.w[s, g] = model.share("w", s, g)
        for d in slot.sides:
            model.receive[s, d] = model.quanta("receive", s, d)
            for r in range(len(slot.receives[d])):
                model.uses[s, d, r] = model.share("uses", s, d, r)
            if slot.varies(d):
                _create_widths(model, model.sender(s, d))
        if FORWARD in slot.sides:
            _create_crossing(model, s)
        if slot.mixed:
            _create_layouts(model, s)
        if instance.artifact:
            model.hidden[s] = model.quanta("hidden", s)
        if instance.hides:
            model.hideable[s] = model.quanta("hideable", s)
            model.behind[s] = model.quanta("behind", s)
        for p in model.paces:
            model.load[s, p] = model.quanta("load", s, p)
    for p in model.paces:
        model.slowest[p] = model.quanta("slowest", p)
    model.sync = model.quanta("sync")
    model.step = model.quanta("step")


def _create_widths(model: Model, s: int) -> None:
    """Create what says how many devices a slot has."""
    for n in sorted({option.devices for option in model.slots[s].options}):
        if (s, n) not in model.width:
            model.width[s, n] = model.share("width", s, n)


def _create_crossing(model: Model, s: int) -> None:
    """Create what crosses the boundary before a slot, and what passes it."""
    instance, slot = model.instance, model.slots[s]
    model.crossed[s] = model.share("crossed", s)
    if not instance.artifact:
        for i in range(len(instance.graph.increments)):
            model.c[i, s] = model.share("c", i, s)
    if s > 1 and any(profile.passing for profile in slot.profiles):
        for i in instance.passing:
            model.passes[i, s] = model.share("passes", i, s)


def _create_layouts(model: Model, s: int) -> None:
    graph, slot = model.instance.graph, model.slots[s]
    inside = model.inside(s)
    for d in slot.sides:
        for layer in inside:
            model.end[layer, s, d] = model.share("end", layer, s, d)
        for g, profile in enumerate(slot.profiles):
            for j in range(len(profile.layouts)):
                model.face[s, g, j, d] = model.share("face", s, g, j, d)
    for g, profile in enumerate(slot.profiles):
        model.instance.deadline.check()
        for layer in inside:
            choices = profile.choices[graph.kind_of[layer]]
            for j in sorted({choice.layout for choice in choices}):
                model.at[layer, s, g, j] = model.binary("at", layer, s, g, j)
        if len(profile.layouts) < 2:
            continue
        for e in graph.edge_sizes:
            ends = graph.edges[e][:2]
            if not set(ends) <= set(inside):
                continue
            for j in range(len(profile.layouts)):
                for d in SIDES:
                    # Forward the target's layout counts, else the source's.
                    if (ends[1 - d], s, g, j) in model.at:
                        model.moved[e, s, g, j, d] = model.share("moved", e, s, g, j, d)
