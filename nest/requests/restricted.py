"""Which plans of a problem may be searched: pins, target, free memory."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from msgspec import structs

from nest.constraints.pins import SETTINGS, describe, parse, restrict
from nest.constraints.targets import ANY, for_target, has_schedule, names, target
from nest.errors import InvalidOptionError
from nest.ir.io import problem_hash
from nest.ir.job import ANY_ORDER, GRANULARITIES, SCHEDULES, Schedules, named_schedules
from nest.requests.problems import ProblemRequest
from nest.requests.settings import Request, option_name, setting
from nest.requests.values import Pairs, one_of, restrictions

if TYPE_CHECKING:
    from nest.constraints.targets import Framework
    from nest.ir.plan import Plan
    from nest.ir.problem import Problem
    from nest.models.architectures import Architecture


#: The settings that pins name, for help.
_SETTINGS = ", ".join(
    f"{name} ({known.long})" if known.long else name for name, known in SETTINGS.items()
)


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class GranularityRequest(Request, group="Plans to search"):
    """Who has a strategy of its own."""

    granularity: str | None = setting(
        f"--granularity {'|'.join(GRANULARITIES)}",
        "Whether every stage or every layer has a strategy of its own.  "
        "[default: as the problem says]",
        one_of(*GRANULARITIES),
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class RestrictedRequest(ProblemRequest, GranularityRequest, group="Plans to search"):
    """A problem, and which of its plans may be searched."""

    pin: Pairs = setting(
        "--pin SETTING=VALUE,…",
        f"Only plans with these settings, such as tp=8,pp=4 or zero=0|1; "
        f"repeatable.  Settings: {_SETTINGS}.",
        restrictions,
        multiple=True,
    )
    forbid: Pairs = setting(
        "--forbid SETTING=VALUE,…",
        f"Only plans without these settings, such as zero=3; repeatable.  "
        f"Settings: {_SETTINGS}.",
        restrictions,
        multiple=True,
    )
    target: str | None = setting(
        "--target NAME",
        f"Only plans that a framework can express: {', '.join(names())}.  "
        f"[default: any]",
    )
    headroom: str | None = setting(
        "--headroom SIZE",
        "Memory of every device that plans leave free, such as 8GB or 10%.",
        str,
    )
    #: Whether plans for a model leave memory free that nobody asked for.
    SAFE: ClassVar[bool] = False

    def restricted(self, problem: Problem | None = None) -> Restricted:
        """Return the problem under everything that narrows down its plans."""
        return restricted_by(self, problem)

    def default_notes(self, restricted: Restricted) -> str:
        """Return :func:`defaults_of` the problem; empty for PROBLEM."""
        if self.model is None:
            return ""
        from nest.hardware import find_cluster
        from nest.hardware.links import reached_fraction
        from nest.models.named import load_model
        from nest.requests.networks import is_generated
        from nest.validation.software import meant_software

        pins = restricted.pins
        notes = defaults_of(
            restricted.whole,
            load_model(os.fspath(self.model)),
            {*self.given_job, *pins, *(SETTINGS[x].field for x in pins)},
        )
        if question := meant_software(self.software or ""):
            notes += f", software not known (--software {self.software!r}: {question})"
        _, missing = self.node_sizes(restricted.whole)
        if missing:
            sizes = " or ".join(map(str, sorted(missing)))
            notes += (
                f", no NVLink or other links in nodes of {sizes}, which "
                f"--topology does not have"
            )
        if is_generated(os.fspath(self.topology or "")):
            (site, _), *_ = find_cluster(os.fspath(self.cluster or ""))[0]
            inside, others = map(reached_fraction, (site.node, site.network))
            notes += (
                f", collectives reach {100 * inside:.0f} % of bandwidths in "
                f"nodes, {100 * others:.0f} % of others (--topology)"
            )
        return notes

    def node_sizes(self, problem: Problem) -> tuple[set[int], set[int]]:
        """Return the sizes of nodes of machines that a network has, and not.

        Both are empty without a network of one's own, and for files of clusters.
        """
        if self.topology is None or self.cluster is None:
            return set(), set()
        from nest.hardware import find_cluster

        machines, _ = find_cluster(os.fspath(self.cluster))
        sizes = {site.node.fan_out for site, _ in machines} - {1}
        network = problem.cluster.topology
        nodes = network.kind == "graph" or network.levels[0].fan_out > 1
        units = {*network.unit_sizes} if nodes else set()
        return sizes & units, sizes - units

    def notes(self, restricted: Restricted) -> list[str]:
        """Return what a report says about restrictions and defaults."""
        defaults = self.default_notes(restricted)
        return restricted.notes + [f"assumed: {defaults}"] * bool(defaults)


def restricted_by(
    request: ProblemRequest, problem: Problem | None = None
) -> Restricted:
    """Return a problem, by default its own, under what a request says about plans.

    Pins, forbidden settings, granularity and headroom count if the request has them.
    """
    name = request.target or ANY
    framework = target(name, "--target")
    rules = framework.rules
    granularity = getattr(request, "granularity", None)
    if rules is not None and granularity == "layer":
        raise InvalidOptionError(
            f"--granularity layer: expected stage with --target {name}, "
            f"which has one strategy for all layers, got layer; remove it"
        )
    _check_schedules(framework, cast("Schedules | None", request.schedule))
    calibration = request.calibration and os.fspath(request.calibration)
    problem = problem or request.find_problem()

    def under(headroom: str | None) -> Restricted:
        restricted = Restricted.of(
            problem,
            getattr(request, "pin", ()),
            getattr(request, "forbid", ()),
            granularity,
            framework,
            headroom,
            of_model=request.model is not None,
        )
        return replace(restricted, calibration=calibration or None)

    headroom = getattr(request, "headroom", None)
    is_safe = getattr(request, "SAFE", False) and request.model is not None
    if headroom is not None or not is_safe:
        return under(headroom)
    from nest.uncertainty.headroom import DEFAULT_HEADROOM

    try:
        safe = under(DEFAULT_HEADROOM)
    except InvalidOptionError:  # so little memory that no plan leaves it
        return under("0")
    return replace(safe, free=under("0"))


def _check_schedules(target: Framework, stated: Schedules | None) -> None:
    """Refuse schedules that a target does not run."""
    rules = target.rules
    if rules is None or stated in (None, ANY_ORDER):
        return
    there = [name for name in SCHEDULES if has_schedule(rules, name)]
    for name in named_schedules(stated or "1f1b"):
        if name not in there:
            raise InvalidOptionError(
                f"--schedule: expected some that {target.title} runs, "
                f"{', '.join(there)}, or {ANY_ORDER!r} for all of them, got "
                f"{name!r}; remove it or choose another target"
            )


def offered(problem: Problem) -> dict[str, tuple[str, str]]:
    """Return what bounds every answer: a name and values, by option."""
    job = problem.job
    degrees = {x.cp for kind in problem.graph.kinds for x in kind.costs}
    bounds: dict[str, tuple[str, Sequence[int | None]]] = {
        "sequence_length": ("sequence", (job.sequence_length,)),
        "global_batch": ("batch", (job.global_batch,)),
        "micro_batches": ("micro-batches", job.micro_batches),
        "cp": ("cp", sorted(degrees)),
    }
    return {
        name: (label, ",".join(map(str, values)))
        for name, (label, values) in bounds.items()
    }


def defaults_of(problem: Problem, model: Architecture, chosen: Collection[str]) -> str:
    """Return the defaults that the answer for a model rests on.

    Each comes with the option that chooses it. Settings that are ``chosen``
    are left out, and a sequence length that the model fixes.
    """
    is_fixed = all(x.sequence_length is not None for x in model.towers)
    return ", ".join(
        f"{label} {values} ({option_name(name)})"
        for name, (label, values) in offered(problem).items()
        if name not in chosen and not (is_fixed and name == "sequence_length")
    )


@dataclass(frozen=True)
class Restricted:
    """A problem under what narrows down its plans, and ``whole``, as it was.

    Pins and forbidden values are by setting. ``target`` is the framework, ``headroom``
    the memory to leave free, and ``calibration`` the file of a user's own one, ``None``
    for none. ``untargeted`` has the same restrictions, but is for any framework;
    ``free`` is the same without headroom, if that is only the default.
    """

    problem: Problem
    whole: Problem
    pins: Mapping[str, tuple[int | str, ...]]
    forbids: Mapping[str, tuple[int | str, ...]]
    target: Framework | None = None
    headroom: str | None = None
    untargeted: Problem | None = None
    calibration: str | None = None
    free: Restricted | None = None

    @property
    def target_name(self) -> str:
        """Name of the framework; empty where none is named."""
        return "" if self.target is None else self.target.name

    @classmethod
    def of(
        cls,
        problem: Problem,
        pin: Sequence[str],
        forbid: Sequence[str],
        granularity: str | None,
        framework: Framework | None = None,
        headroom: str | None = None,
        of_model: bool = False,
    ) -> Restricted:
        """Restrict a problem.

        The optimizer of the job stays if the problem is ``of_model``, whose
        request chose it; otherwise the target's own default replaces it.
        """
        if granularity is not None:
            job = structs.replace(problem.job, granularity=granularity)
            problem = structs.replace(problem, job=job)
        pins, forbids = parse(pin, "--pin"), parse(forbid, "--forbid")
        narrow = problem
        if headroom is not None:
            from nest.uncertainty.headroom import with_headroom

            narrow = with_headroom(problem, headroom)
        if framework is None or framework.name == ANY:
            narrow = restrict(narrow, pins, forbids)
            return cls(narrow, problem, pins, forbids, headroom=headroom)
        from nest.models.stated import shape_of

        optimizer = problem.job.optimizer if of_model else None
        targeted = for_target(narrow, framework, optimizer, shape_of(problem))
        untargeted = for_target(narrow, ANY, targeted.job.optimizer)
        return cls(
            restrict(targeted, pins, forbids),
            problem,
            pins,
            forbids,
            framework,
            headroom,
            restrict(untargeted, pins, forbids),
        )

    @property
    def text(self) -> str:
        """What restricts plans as on the command line; empty for none."""
        parts = [describe(self.pins, self.forbids)]
        if self.headroom not in (None, "0"):
            parts.insert(0, f"--headroom {self.headroom}")
        if self.target is not None:
            parts.insert(0, f"--target {self.target.name}")
        return " ".join(filter(None, parts))

    @property
    def notes(self) -> list[str]:
        """What a report says about the restrictions; empty for none."""
        lines = [f"only plans under {self.text}"] if self.text else []
        if self.target is not None:
            job = self.problem.job
            optimizer = job.optimizer
            lines.append(
                f"{self.target.title}, {self.target.packages}: schedule "
                f"{job.schedule_text}, {optimizer.name} with "
                f"{optimizer.gradient_bytes} bytes of gradient and "
                f"{optimizer.state_bytes} of state per weight"
            )
        if self.calibration is not None:
            lines.append(f"times under the calibration {self.calibration}")
        return lines

    def document(self) -> dict[str, Any]:
        """Return what a JSON document says about them; empty for none."""
        document: dict[str, Any] = {}
        if self.calibration is not None:
            document["calibration"] = Path(self.calibration).name
        if self.target is not None:
            document["target"] = self.target.name
        if self.headroom is not None:
            document["headroom"] = self.headroom
        if self.pins or self.forbids:
            document["restrictions"] = {
                "pin": {name: list(v) for name, v in self.pins.items()},
                "forbid": {name: list(v) for name, v in self.forbids.items()},
            }
        return document

    def adopt(self, plan: Plan) -> Plan:
        """Return a plan as one of the whole problem, which it is too."""
        return structs.replace(plan, problem_hash=problem_hash(self.whole))
