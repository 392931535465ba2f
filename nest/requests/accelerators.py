"""``codesign``: the best accelerators of a space."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from nest.errors import InvalidOptionError
from nest.requests import values as read
from nest.requests.benchmarks import jobs_setting
from nest.requests.settings import record, redeclared, setting
from nest.requests.solving import TimeLimitRequest
from nest.requests.values import (
    PathText,
    RefusedValueError,
    Words,
    also_needed,
    both_given,
    shown,
)

if TYPE_CHECKING:
    from nest.accelerators.records import Answers, ExtraAnalyses, QuestionProgress
    from nest.accelerators.spec import Spec


def _spec(value: Any) -> Any:
    """Read a specification, or the path of its file."""
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    from nest.accelerators.spec import Spec

    if isinstance(value, Spec):
        return value
    raise RefusedValueError(
        f"expected a specification or its file, got {shown(value)}; pass one"
    )


def _models(value: Any) -> tuple[str, ...]:
    if isinstance(value, str | os.PathLike):
        return (os.fspath(value),)
    return tuple(os.fspath(name) for name in value)


@dataclass(frozen=True)
class CodesignRequest(TimeLimitRequest, command="nest codesign"):
    """The best accelerators of a space for models."""

    spec: Spec | PathText = setting(
        "SPEC",
        "A YAML file with the space, its limits and the job.",
        _spec,
        required=True,
    )
    model: Words = setting(
        "--model NAME",
        "Model to choose an accelerator for, instead of those of SPEC: a name, see "
        "'nest problems --models', or a config.json of Hugging Face; repeatable.",
        _models,
        multiple=True,
    )
    _: KW_ONLY
    frontier: bool = setting(
        "--frontier",
        "Also find the points that none beats in throughput, area, power and price.",
    )
    sensitivity: bool = setting(
        "--sensitivity", "Also solve the next listed value of every parameter."
    )
    contributions: bool = setting(
        "--contributions",
        "Also say what architecture, schedule and placement contribute.",
    )
    phaze_order: bool = setting(
        "--phaze-order", "Also say what Phaze's order and stop rule would have found."
    )
    samples: int | None = setting(
        "--samples N",
        "Also draw N random samples of as many points as were solved.",
        read.integer(1, 10_000),
    )
    jobs: int = jobs_setting()
    dask: str | None = setting(
        "--dask ADDRESS|N",
        "Solve points on a Dask cluster: the address of its scheduler, or "
        "how many local workers to start.",
    )
    output: PathText | None = setting(
        "-o --output DIR",
        "Keep every solved point in a directory, which --resume goes on with.",
    )
    resume: bool = setting(
        "--resume", "Go on with the search of DIR: what is solved is kept."
    )
    time_limit: float | None = redeclared(
        TimeLimitRequest,
        "time_limit",
        "Wall-clock seconds for the whole command, after which the best "
        "point known and a bound on all others are shown.  [default: none]",
    )
    on_wave: Callable[[QuestionProgress], None] | None = record(
        "Called now and then with how far a question is."
    )

    @property
    def folder(self) -> str | None:
        """The directory of solved points, if there is one."""
        return None if self.output is None else os.fspath(self.output)

    @property
    def extra_analyses(self) -> ExtraAnalyses:
        """What is asked in addition to the best points."""
        from nest.accelerators.records import ExtraAnalyses

        return ExtraAnalyses(
            frontier=self.frontier,
            sensitivity=self.sensitivity,
            contributions=self.contributions,
            phaze_order=self.phaze_order,
            samples=tuple(range(self.samples or 0)),
        )

    def check(self) -> None:
        """Refuse settings that contradict each other."""
        if self.resume and self.output is None:
            raise also_needed("--resume", "-o DIR", "name the directory of the search")
        if self.dask is not None and self.jobs > 1:
            other = "--dask, whose workers are as many as the cluster has"
            raise both_given(f"--jobs {self.jobs}", other)

    def find_spec(self) -> Spec:
        """Return the specification, with the models of the request."""
        from nest.accelerators.spec import read_spec

        if not isinstance(self.spec, str):
            return with_models(self.spec, tuple(self.model), "spec")  # type: ignore[arg-type]
        return with_models(read_spec(self.spec), tuple(self.model), self.spec)


def with_models(spec: Spec, models: tuple[str, ...], where: str) -> Spec:
    """Return a specification with other models, if any are given.

    Raises ``NestError`` if there is no such model, or its job cannot be.
    """
    from nest.accelerators.answers import setting_of
    from nest.accelerators.tasks import workload_of

    for number, name in enumerate(models):
        if name in models[:number]:
            raise InvalidOptionError(
                f"--model: expected every model once, got {name!r} again; remove one"
            )
    chosen = models or spec.models
    for name in chosen:
        try:
            workload_of(setting_of(spec, name))
        except InvalidOptionError as error:
            raise InvalidOptionError(f"{where}: $.job: {error}") from None
    for name in spec.objective.weights:
        if chosen and name not in chosen:
            raise InvalidOptionError(
                f"--model: expected {name!r} too, which has a weight in the "
                f"specification, got {', '.join(chosen)}; add it, or remove its weight"
            )
    return replace(spec, models=chosen)


def search(
    request: CodesignRequest,
    spec: Spec,
    *,
    time_limit_s: float | None,
    on_wave: Callable[[QuestionProgress], None] | None = None,
    **more: Any,
) -> Answers:
    """Search a space of accelerators as a request says."""
    from nest.accelerators.answers import answer

    return answer(
        spec,
        request.extra_analyses,
        folder=request.folder,
        resume=request.resume,
        jobs=request.jobs,
        dask=request.dask,
        time_limit_s=time_limit_s,
        on_wave=on_wave or request.on_wave,
        **more,
    )
