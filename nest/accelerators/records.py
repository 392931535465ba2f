"""Questions about a space of accelerators, and their answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from nest.accelerators.points import Point
from nest.accelerators.spec import Spec
from nest.ir.plan import Plan

T = TypeVar("T")


class ExtraAnalyses(NamedTuple):
    """Analyses that a user requests in addition to the best points."""

    #: The points that none is better than in throughput, area, power and price.
    frontier: bool = False
    #: What the next listed value of every parameter changes.
    sensitivity: bool = False
    #: What architecture, schedule and placement contribute.
    contributions: bool = False
    #: What Phaze's order and stop rule would have found.
    phaze_order: bool = False
    #: Seeds of random samples with as many exact step times as the search took; none by
    #: default.
    samples: tuple[int, ...] = ()


#: The best points alone.
NOTHING_MORE = ExtraAnalyses()


class ModelResult(NamedTuple):
    """The result of one model on one accelerator design.

    ``step_ps`` is the least step time, ``None`` if no plan fits.
    """

    model: str
    step_ps: int | None
    plan: Plan | None


def questions_of(models: Sequence[T]) -> list[tuple[T, ...]]:
    """Return for which of some models the best point is asked, in order.

    For each alone, and for all together if they are several.
    """
    alone = [(model,) for model in models]
    return [*alone, tuple(models)] if len(models) > 1 else list(alone)


class DesignResult(NamedTuple):
    """A point with its step times.

    Its index is -1 if it is not in the list. ``relative`` is its throughput relative to
    the base, 0 where a model fits no plan.
    """

    point: Point
    on: tuple[ModelResult, ...]
    relative: float


class Counts(NamedTuple):
    """For one question, the number of points by the reason that settled them.

    ``dominance``: never looked at, as a larger point is too slow; ``bound``:
    a bound from operators; ``together``: the placement on a point as fast as
    any of several alike; ``placement``: the placement on the point itself,
    which takes longer than the best; ``exact``: the step time is known;
    ``open``: nothing, as the search was stopped.
    """

    dominance: int
    bound: int
    together: int
    placement: int
    exact: int
    open: int = 0


class Best(NamedTuple):
    """The best point for some models.

    ``found`` is the best point known if the search was stopped; ``None`` if none fits
    them all, or none is known. No point has a larger throughput relative to the base
    than ``most_relative``, ``None`` if nothing is known; it is that of the point itself
    once it is proven best.
    """

    models: tuple[str, ...]
    found: DesignResult | None
    counts: Counts
    most_relative: float | None

    @property
    def proven(self) -> bool:
        """Whether no point is better, or none fits."""
        return not self.counts.open


class QuestionProgress(NamedTuple):
    """The progress of a question.

    A question is names of models, ``the frontier`` or ``sample SEED``. ``relative`` is
    the throughput of the best point known relative to the base, and none has more than
    ``most_relative``; ``None`` if nothing is known, or the question is another one.
    """

    question: str
    counts: Counts
    relative: float | None = None
    most_relative: float | None = None


class Neighbor(NamedTuple):
    """The best point with the next listed value of one parameter.

    ``listed`` says whether it is in the list and within the limits.
    """

    parameter: str
    value: int
    listed: bool
    found: DesignResult


class Contribution(NamedTuple):
    """The contributions of three choices to the throughput of a model.

    Of ``base architecture, operators one after the other, Megatron's plan`` each may be
    replaced by the best one: eight throughputs. A contribution is the mean, over the
    six orders of replacing them, of the logarithm of what it multiplies the throughput
    by (Shapley value); they multiply to the whole.

    ``step_ps`` are the eight by ``(architecture, schedule, placement)``, ``None`` where
    no plan fits or was found; then there are no ``factors``.
    """

    model: str
    step_ps: dict[tuple[bool, bool, bool], int | None]
    factors: tuple[float, float, float] | None


class Baseline(NamedTuple):
    """The result of another search."""

    #: ``tpu-v4-like``, ``phaze-order``, or ``sample SEED``.
    name: str
    #: Points that it looked at, in its order.
    evaluated: tuple[int, ...]
    best: DesignResult | None
    #: How much more throughput the best known point of the list has, as a fraction.
    regret: float | None
    #: How much more any point can have: the same once the best is proven.
    most_regret: float | None


class Answers(NamedTuple):
    """All that is known of a space."""

    spec: Spec
    #: The base, on which every model has a throughput of 1.
    base: DesignResult
    #: Of every model; of all together last, if they are several.
    best: tuple[Best, ...]
    #: As far as they were asked for; by rising area, in the order of parameters, of
    #: models.
    frontier: tuple[DesignResult, ...]
    sensitivity: tuple[Neighbor, ...]
    contributions: tuple[Contribution, ...]
    baselines: tuple[Baseline, ...]
    #: Questions about placements that were answered, and that were found in the
    #: directory.
    solved: int
    stored: int
    out_of_time: bool = False
