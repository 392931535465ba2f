"""The options of a command: those of its request, and its output files.

:func:`takes` gives a command an option for each field of a request. The
command gets the request, which is made and checked as in Python, and a
:class:`Files` with the files that it writes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import get_annotations
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from nest.cli import inputs
from nest.cli.declare import Command, Decorator, option, parameter
from nest.cli.progress import ProgressLine, hint
from nest.cli.saying import say
from nest.errors import InvalidOptionError
from nest.requests.plans import PlanRequest, PlanSource, Talk
from nest.requests.problems import MODEL_FIELDS, file_settings
from nest.requests.settings import Request, groups_of, settings_of
from nest.util.files import check_output

if TYPE_CHECKING:
    from rich.console import RenderableType

    from nest.ir.plan import Plan
    from nest.ir.problem import Problem

#: Options of :class:`Files`, by its field.
_FILE_OPTIONS = {
    "output": ("-o --output FILE", "Write the plan to a file; '-' is standard output."),
    "json_path": ("--json FILE", "Also write a JSON document; '-' is standard output."),
    "csv_path": ("--csv FILE", "Also write a table as CSV; '-' is standard output."),
    "html_path": ("--html FILE", "Also write a page with charts, for a browser."),
    "plot_path": ("--plot FILE", "Draw a chart; FILE ends in .svg, .png or .pdf."),
}

_PLAN_OPTION = option(
    "--plan FILE|SETTINGS",
    "Plan instead of PLAN: a file, or settings such as tp=8,pp=4,zero=1.  Then "
    "it is the fastest plan that has them, or, if none fits, the one that needs "
    "least memory.",
    None,
    "plan_option",
)


@dataclass(frozen=True)
class Files:
    """The files that a command writes; ``-`` is standard output."""

    output: str | None = None
    json_path: str | None = None
    csv_path: str | None = None
    html_path: str | None = None
    plot_path: str | None = None

    @property
    def people(self) -> IO[str]:
        """Where to write text for people."""
        return inputs.people(self.json_path, self.output, self.csv_path)

    def show(self, *items: RenderableType) -> None:
        """Print items for people."""
        from nest.present.table import show

        show(self.people, *items)

    def check(
        self,
        request: Request | None = None,
        reads: Mapping[str, str | None] | None = None,
        writes: Mapping[str, str | None] | None = None,
    ) -> None:
        """Refuse files that cannot be written, or are named twice.

        Those of the command's own options and arguments come by their names.
        """
        inputs.check_page(self.html_path)
        if self.plot_path is not None:
            from nest.util.plots import check_plot

            check_plot(self.plot_path)
        writes = {
            "--json": self.json_path,
            "-o": self.output,
            "--html": self.html_path,
            "--plot": self.plot_path,
            "--csv": self.csv_path,
            **(writes or {}),
        }
        writes = {name: path for name, path in writes.items() if path}
        read = {} if request is None else file_settings(request)
        inputs.check_distinct_files({**read, **(reads or {}), **writes})
        for name, path in writes.items():
            check_output(path, name)

    def write_json(self, document: Mapping[str, Any]) -> None:
        """Write the document that ``--json`` asks for, if it does."""
        if self.json_path is not None:
            inputs.write_json(self.json_path, document)

    def write_csv(self, table: Callable[[], str]) -> None:
        """Write the table that ``--csv`` asks for, if it does."""
        if self.csv_path is not None:
            inputs.write_text(self.csv_path, table())

    def write_plan(self, plan: Plan | None) -> None:
        """Write the plan that ``-o`` asks for, or tell that there is none.

        In that case the file of that name is removed: nobody shall take the
        plan of an earlier run for this one.
        """
        if self.output is None:
            return
        if plan is not None:
            inputs.write_record(self.output, plan)
            return
        file = Path(self.output)
        removed = self.output != "-" and file.is_file()
        if removed:
            file.unlink()
        what = "removed" if removed else "not written"
        say(f"nest: {self.output} {what}: no plan", err=True)


def takes(
    kind: type[Request], *files: str, without: tuple[str, ...] = (), **helps: str
) -> Decorator:
    """Add the options of a request and of files to a command.

    The command gets the request first. If ``files`` are named, fields of
    :class:`Files`, in the order of help, it gets them second. Fields in ``without`` are
    no options, and ``helps`` are other texts for the help of some options.
    """
    settings = {
        name: declared
        for name, declared in settings_of(kind).items()
        if declared.usage and name not in without
    }
    groups = groups_of(kind)
    has_plan = "plan" in settings and issubclass(kind, PlanRequest)

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def run(**values: Any) -> Any:
            written = {name: values.pop(name) for name in files}
            arguments = {
                name: _value(declared.default, values.pop(name))
                for name, declared in settings.items()
            }
            arguments = {k: v for k, v in arguments.items() if v is not None}
            if has_plan:
                _choose_plan(arguments, values.pop("plan_option"))
            request = kind(**arguments)
            if not files:
                return command(request, **values)
            return command(request, Files(**written), **values)

        for name in reversed(files):
            usage, text = _FILE_OPTIONS[name]
            text = helps.get(name, text)
            option(usage, text, None, name, group="Output")(run)
        for name in reversed(_in_order(kind, settings)):
            text = helps.get(name, "")
            parameter(name, settings[name], text, groups[name])(run)
            if name == "plan" and has_plan:
                _PLAN_OPTION(run)
        return run

    return decorate


def _value(default: Any, value: Any) -> Any:
    """Return what a request gets; ``None`` leaves it to the default."""
    if isinstance(default, bool):  # a flag turns the default round
        return (not default) if value else None
    return None if value in (None, ()) else value


def _choose_plan(arguments: dict[str, Any], plan_option: str | None) -> None:
    """Merge PLAN and ``--plan``; with a model one argument is PLAN."""
    if plan_option is not None:
        if "plan" in arguments:
            raise InvalidOptionError(
                f"--plan: expected either it or PLAN, got "
                f"{arguments['plan']!r} too; remove one"
            )
        text = PlanSource(plan_option)
        text.option = "--plan"
        arguments["plan"] = text
    elif "model" in arguments and "problem" in arguments and "plan" not in arguments:
        arguments["plan"] = arguments.pop("problem")


def _in_order(kind: type[Request], settings: Mapping[str, Any]) -> list[str]:
    """Return fields in the order of help: own ones, the model, the rest."""
    arguments = [name for name, x in settings.items() if not x.flags]
    declared_here = [x for x in get_annotations(kind) if x in settings]
    model = [name for name in MODEL_FIELDS if name in settings]
    return [*dict.fromkeys((*arguments, *declared_here, *model, *settings))]


def _find_by_settings(problem: Problem, settings: str, name: str) -> Plan:
    """Return the plan that settings stand for, and tell which it is."""
    from nest.analysis.plan_by_settings import TIME_LIMIT_S, plan_by_settings

    unit = problem.time_unit
    with ProgressLine(unit, limit_s=TIME_LIMIT_S) as progress:
        named = plan_by_settings(problem, settings, name, on_progress=progress)
    hint(f"nest: {name} is {named.how}: {named.plan.text}")
    return named.plan


#: How commands tell about plans.
TALK = Talk(lambda text: hint(f"nest: warning: {text}"), _find_by_settings)
