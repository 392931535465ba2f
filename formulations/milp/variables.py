"""Variables of the MILP model; symbols as in ``formulations/README.md``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from formulations.common import Choice, Task
from formulations.variables import Model as Base
from formulations.variables import Variable, Variables
from formulations.variables import create as create_shared

if TYPE_CHECKING:
    from pulp import LpVariable

#: Of the step time; half of a quantum that is less is no matter.
NEGLIGIBLE = 1e-7

#: A linear expression: pairs of a variable and its coefficient.
Terms = list[tuple[Any, float]]


@dataclass(frozen=True)
class Content:
    """What a slot holds in a solution."""

    #: Its cost profile.
    profile: int
    #: Its layers.
    layers: tuple[int, ...]
    #: How many layers of a kind take a choice, by ``(κ, h)``; at least one.
    counts: Mapping[tuple[int, int], int]
    #: Increments that pass it, where they take memory.
    passing: tuple[int, ...]
    #: Layout of its first layer.
    front: int


class Model(Base):
    """One sub-problem's model.

    Times are divided by ``scale_quanta`` and sizes by ``scale_bytes``, powers
    of two, which loses nothing: they bring the step time and memory near
    2**10, so that engines' absolute tolerances of 1e-9 are far below 1e-6 of
    it. What hides of gradient sync is a whole number of quanta where one is
    more than :data:`NEGLIGIBLE` of the step time.

    ``q[κ, s, g, h]``: layers of kind ``κ`` in slot ``s`` that take choice ``h`` if it
    has profile ``g``, else 0. ``some[κ, s, g, h]``: whether that number is positive.
    """

    def __init__(self, task: Task) -> None:
        from pulp import LpProblem

        super().__init__(task)
        self.engine = LpProblem("nest")
        self.q: Variables = {}
        self.some: Variables = {}
        least = max(self.sub_problem.bound, 1)
        most = max(self.cutoff or 0, least)
        self.scale_quanta = 1 << max(0, most.bit_length() - 10)
        capacity = max(
            profile.capacity_bytes
            for slot in self.slots.values()
            for profile in slot.profiles
        )
        self.whole = least * NEGLIGIBLE < 1
        self.scale_bytes = 1 << max(0, capacity.bit_length() - 10)

    def counts(self, s: int) -> Iterator[tuple[int, int, int, Choice]]:
        """Yield kind, profile and number of a slot's choices, and them."""
        for kind in range(len(self.instance.graph.members)):
            for g in range(len(self.slots[s].profiles)):
                for h, choice in enumerate(self.choices(kind, s, g)):
                    yield kind, g, h, choice

    def scaled(self, quanta: float) -> float:
        """Return a time as the engine sees it."""
        return quanta / self.scale_quanta

    def size(self, size_bytes: int) -> float:
        """Return a size as the engine sees it."""
        return size_bytes / self.scale_bytes

    @property
    def quantum(self) -> float:
        """What one of ``behind`` is as the engine sees it."""
        return self.scaled(1) if self.whole else 1.0

    def variable(
        self, *name: object, most: float | None = None, whole: bool = False
    ) -> LpVariable:
        """Return a new variable, at least 0."""
        from pulp import LpVariable

        self.instance.deadline.check()
        text = "_".join(map(str, name))
        return LpVariable(text, 0, most, "Integer" if whole else "Continuous")

    def binary(self, *name: object) -> LpVariable:
        """Return a new variable that is 0 or 1."""
        return self.variable(*name, most=1, whole=True)

    def share(self, *name: object) -> LpVariable:
        """Return a new variable that the binary ones make 0 or 1."""
        return self.variable(*name, most=1)

    def quanta(self, *name: object) -> LpVariable:
        """Return a new variable for a time; its kind is ``name[0]``."""
        return self.variable(*name, whole=self.whole and name[0] == "behind")

    def add(self, name: str, terms: Terms, sense: int, constant: float = 0.0) -> None:
        """Add the constraint ``Σ terms (<=, =, >=) constant``.

        ``sense`` is -1, 0 or 1, as in PuLP.

        Raises ``OutOfTimeError`` if the deadline passes.
        """
        from pulp import LpAffineExpression, LpConstraint

        self.instance.deadline.check()
        merged: dict[Variable, float] = {}
        for variable, coefficient in terms:
            merged[variable] = merged.get(variable, 0.0) + coefficient
        self.engine.addConstraint(
            LpConstraint(LpAffineExpression(merged), sense, name, constant)
        )


def create(task: Task) -> Model:
    """Return a model with all variables and no constraints.

    Without a choice the counts follow from ``x`` and ``w``; ``some`` has
    to be 0 or 1 only where working sets count.

    Raises ``OutOfTimeError`` if the deadline passes.
    """
    model = Model(task)
    create_shared(model)
    for s, slot in model.slots.items():
        for kind, g, h, _ in model.counts(s):
            index = (kind, s, g, h)
            most = len(model.instance.graph.members[kind])
            several = len(model.choices(kind, s, g)) > 1
            tight = slot.profiles[g].tight
            model.q[index] = model.variable("q", *index, most=most, whole=several)
            model.some[index] = model.variable(
                "some", *index, most=1, whole=several and tight
            )
    return model
