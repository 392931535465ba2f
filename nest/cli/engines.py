"""What ``nest solve`` does for operations researchers: models and logs."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from nest.cli.inputs import write_json
from nest.cli.saying import say_log
from nest.errors import InvalidOptionError
from nest.requests.values import both_given
from nest.util.files import check_output

if TYPE_CHECKING:
    from nest.ir.plan import Plan
    from nest.ir.problem import Problem
    from nest.solvers.base import ModelWriter, SolveOptions

#: The option of solvers whose engine has a log.
LOG = "log"

#: How often a log on the terminal is looked at.
TICK_S = 0.2


@dataclass(frozen=True)
class EngineOptions:
    """What is asked of the engine of a solver.

    Where to write one model, or all that a proof needs, and the engine's log; a log on
    ``-`` goes to standard error.
    """

    model_path: str | None = None
    folder: str | None = None
    log_path: str | None = None

    def check(self, solver: str, extra: Mapping[str, str]) -> None:
        """Refuse what the solver cannot do, before it runs."""
        from nest.solvers.registry import solver_class

        promised = solver_class(solver).capabilities
        ends = promised.model_files
        for name, path in (
            ("--write-model", self.model_path),
            ("--write-models", self.folder),
        ):
            if path is not None and not ends:
                raise InvalidOptionError(
                    f"{name}: expected a solver that hands models to an engine, "
                    f"{_listed('model_files')}, got {solver}; choose one with --solver"
                )
        if self.model_path is not None and Path(self.model_path).suffix not in (*ends,):
            raise InvalidOptionError(
                f"--write-model: expected a name that ends in "
                f"{' or '.join(ends)}, which models of {solver} can be "
                f"written as, got {self.model_path!r}; rename it"
            )
        if self.log_path is not None and LOG not in promised.options:
            raise InvalidOptionError(
                f"--engine-log: expected a solver with an engine, "
                f"{_listed('options')}, got {solver}; choose one with --solver"
            )
        if self.log_path is not None and LOG in extra:
            raise both_given("--engine-log", f"--option {solver}.{LOG}")
        check_output(self.folder, "--write-models", folder=True)

    @property
    def writes_to(self) -> dict[str, str | None]:
        """Files that are written, by option."""
        return {"--write-model": self.model_path, "--engine-log": self.log_path}

    @property
    def writes(self) -> bool:
        """Whether models are asked for."""
        return self.model_path is not None or self.folder is not None

    @contextlib.contextmanager
    def logging(
        self, cells: dict[str, SolveOptions]
    ) -> Iterator[dict[str, SolveOptions]]:
        """Return the options of solvers with a log, and show it meanwhile."""
        if self.log_path is None:
            yield cells
        elif self.log_path != "-":
            yield _logged(cells, os.path.abspath(self.log_path))
        else:
            with (
                tempfile.NamedTemporaryFile(prefix="nest-log-") as file,
                _printed(file.name),
            ):
                yield _logged(cells, file.name)

    def write(
        self, problem: Problem, solver: str, plan: Plan | None
    ) -> list[dict[str, Any]]:
        """Write the models that are asked for, and say which they are."""
        from nest.solvers.registry import get_solver

        writer = cast("ModelWriter", get_solver(solver)())
        written = []
        if self.model_path is not None:
            path = Path(self.model_path)
            with _folder_next_to(path) as folder:
                models = writer.write_models(
                    problem, plan, folder, path.suffix, every=False
                )
                for model in models:
                    os.replace(folder / model["file"], path)
                    written.append({**model, "file": self.model_path})
        if self.folder is not None:
            suffix, *_ = writer.capabilities.model_files
            with _folder_next_to(Path(self.folder)) as folder:
                inner = folder / "models"
                inner.mkdir()
                models = writer.write_models(problem, plan, inner, suffix, every=True)
                index = _index(problem, solver, plan, models)
                write_json(str(inner / "index.json"), index)
                os.replace(inner, self.folder)
            written += [
                {**model, "file": os.path.join(self.folder, model["file"])}
                for model in models
            ]
        return written


def _index(
    problem: Problem, solver: str, plan: Plan | None, models: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return what a folder of models says about them."""
    from nest.cost.score import score
    from nest.ir.io import problem_hash

    step = None if plan is None else score(problem, plan).step_quanta
    return {
        "schema": "nest-models/1",
        "problem": problem.name,
        "problem_hash": problem_hash(problem),
        "solver": solver,
        "quantum_ps": problem.quantum_ps,
        "best_known_quanta": step,
        "models": models,
    }


def model_lines(models: Sequence[dict[str, Any]]) -> list[str]:
    """Return what to say about models that are written."""
    if not models:
        return ["no model written: bounds alone show that no plan fits"]
    if len(models) > 1:
        folder = os.path.dirname(models[-1]["file"])
        return [f"{len(models)} models in {folder}, see index.json there"]
    return [
        f"{x['file']}: the model of {x['sub_problem']}, {x['num_rows']} rows, "
        f"{x['num_columns']} columns, {x['num_integers']} of them integers; "
        f"its objective is in units of {x['objective_quanta']} quanta"
        for x in models
    ]


def _listed(field: str) -> str:
    """Return own solvers that promise something, for messages.

    Those of other packages are not worth the wait.
    """
    from nest.solvers.registry import is_built_in, solver_class, solver_names

    names = []
    for name in filter(is_built_in, solver_names()):
        with contextlib.suppress(Exception):
            value = getattr(solver_class(name).capabilities, field)
            if value and (field != "options" or LOG in value):
                names.append(name)
    return " or ".join(names)


def _logged(cells: dict[str, SolveOptions], path: str) -> dict[str, SolveOptions]:
    return {
        name: replace(options, extra={**options.extra, LOG: path})
        for name, options in cells.items()
    }


@contextlib.contextmanager
def _folder_next_to(path: Path) -> Iterator[Path]:
    """Return a folder on the same disk that is gone afterwards."""
    parent = path.resolve().parent
    try:
        with tempfile.TemporaryDirectory(dir=parent, prefix=f".{path.name}.") as folder:
            yield Path(folder)
    except OSError as error:
        raise InvalidOptionError(
            f"{path}: expected a file or folder that can be written, got "
            f"{error.strerror}; choose another path"
        ) from error


@contextlib.contextmanager
def _printed(path: str) -> Iterator[None]:
    """Print what is added to a file to standard error, as it comes."""
    ended = threading.Event()

    def follow() -> None:
        with open(path, "rb") as file:
            while True:
                last = ended.wait(TICK_S)
                text = file.read().decode(errors="replace")
                say_log(text)
                if last:
                    return

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
