"""``fits``: whether a launch or a plan fits, and what would make it fit."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from nest.errors import InvalidOptionError
from nest.requests import launch_files
from nest.requests.plans import SILENT, PlanRequest, PlanSource, Talk
from nest.requests.settings import option_name, redeclared, settings_of
from nest.requests.values import Pairs

if TYPE_CHECKING:
    from nest.analysis.fits import Fits
    from nest.requests.problems import ProblemLike
    from nest.solvers.cell import OnProgress

#: How names of files end that are launches, whatever they contain.
_LAUNCHES = (".sh", ".bash", ".slurm", ".sbatch", ".toml")

#: Fields that count beside a launch file, which says everything else; and
#: beside a configuration of DeepSpeed, too.
_WITH_LAUNCH = ("model", "cluster", "overlap", "calibration", "software")
_WITH_DEEPSPEED = ("sequence_length", "tp")


@dataclass(frozen=True)
class FitsRequest(PlanRequest, command="nest fits"):
    """A launch file, or a problem and a plan, whose memory is in question."""

    problem: ProblemLike | None = redeclared(
        PlanRequest,
        "problem",
        "A launch file with --cluster: a script or configuration of "
        "Megatron-LM or DeepSpeed, a job file of torchtitan; or a problem.",
    )
    variables: Pairs = launch_files.VARIABLES
    say: Pairs = launch_files.SAY

    @property
    def launch_path(self) -> str | None:
        """The file of a launch, if the request names one."""
        path = self.plan if self.problem is None else self.problem
        if not isinstance(path, str) or isinstance(path, PlanSource):
            return None
        if path.endswith(_LAUNCHES):
            return path
        if self.cluster is None:
            return None
        # A problem has a cluster, so a file with one is a launch; but with
        # --model it may be the file of a plan.
        if self.model is None or not os.path.isfile(path):
            return path if self.model is None else None
        is_own = re.search(r"schema\W+nest-", launch_files.read_text(path))
        return None if is_own else path

    def launch_request(self, path: str) -> launch_files.LaunchFileRequest:
        """Return the request that reads the launch file."""
        allowed = _WITH_LAUNCH + _WITH_DEEPSPEED * path.endswith(".json")
        wrong = [name for name in self.given_job if name not in allowed]
        wrong += ["plan"] * (None not in (self.problem, self.plan))
        wrong += ["target"] * (self.target is not None)
        if wrong:
            reason = "which is a launch and says it"
            if wrong[0] == "topology":
                reason = "as memory does not depend on the network"
            raise InvalidOptionError(
                f"{option_name(wrong[0])}: expected no such option with "
                f"{path}, {reason}, got it; remove it"
            )
        if self.cluster is None:
            raise InvalidOptionError(
                f"--cluster: expected <machine>x<devices> with {path}, which "
                f"does not say it, got none; for example --cluster h100x64"
            )
        if path.endswith(".toml"):
            return self._read_by(launch_files.TorchtitanRequest, path)
        if path.endswith(".json") or "--deepspeed" in launch_files.read_text(path):
            return self._read_by(launch_files.DeepSpeedRequest, path)
        return self._read_by(launch_files.MegatronRequest, path)

    def _read_by(
        self, kind: type[launch_files.LaunchFileRequest], path: str
    ) -> launch_files.LaunchFileRequest:
        """Return the request of a kind, with what it has a use for."""
        overlap: Any = self.overlap or {}
        say: Any = self.say
        shared = ("cluster", "model", "calibration", "software", "variables", "say")
        values = {name: getattr(self, name) for name in shared}
        values["overlap"] = tuple(f"{x}={y}" for x, y in overlap.items())
        if kind is launch_files.DeepSpeedRequest:
            values["say"] = [x for x in say if x[0] != "pp"]
            values["pp"] = dict(say).get("pp")
            values["sequence_length"] = self.sequence_length
            tp: Any = self.tp
            values["tp"] = tp[0] if tp and len(tp) == 1 else tp
        fields = settings_of(kind)
        for name in ("say", "variables"):
            if values[name] and name not in fields:
                flag = settings_of(FitsRequest)[name].flags[0]
                raise InvalidOptionError(
                    f"{flag} {values[name][0][0]}: expected no such option with "
                    f"{path}, which leaves nothing open, got it; remove it"
                )
        settings = {k: v for k, v in values.items() if v and k in fields}
        return kind(path=path, **settings)


def find_fits(
    request: FitsRequest, talk: Talk = SILENT, on_progress: OnProgress | None = None
) -> Fits:
    """Answer a request, and tell which plan settings stand for."""
    from nest.analysis.fits import fits
    from nest.frameworks.export import lines_of
    from nest.frameworks.nearest import even_stages
    from nest.frameworks.scripts import in_variables

    path = request.launch_path
    if path is not None:
        launch = request.launch_request(path)
        imported = launch.imported(any_sequences=True)
        lines = partial(lines_of, launch.FRAMEWORK, imported.model)
        return fits(
            imported.problem,
            imported.plan,
            target=launch.FRAMEWORK,
            cut=even_stages,
            lines=lambda *changed: in_variables(launch.text, lines(*changed)),
            notes=imported.notes,
            on_progress=on_progress,
        )
    for name, flag in (("say", "--say"), ("variables", "--set")):
        if getattr(request, name):
            raise InvalidOptionError(
                f"{flag}: expected a launch file with it, got none; name the "
                f"file, or remove the option"
            )
    problem, plan = request.find_problem_and_plan(talk)
    return fits(problem, plan, target=request.target, on_progress=on_progress)
