"""``nest completion``, and which words a shell may complete."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem, get_completion_class, shell_complete

from nest.cli.declare import typed
from nest.cli.saying import say_data
from nest.errors import SolverNotInstalledError
from nest.requests.values import one_of

if TYPE_CHECKING:
    _Type = click.ParamType[Any]
else:  # not generic in older versions
    _Type = click.ParamType

SHELLS = ("bash", "zsh", "fish")

#: What parts the words of a metavar.
_PART = re.compile(r"[|,…\[\] ]+")

#: A setting with at most so many values has each of them completed.
_FEW = 8

#: Set by the script of a shell that asks for words.
_VARIABLE = "_NEST_COMPLETE"


@click.command("completion")
@click.argument("shell", metavar="|".join(SHELLS), type=typed(one_of(*SHELLS)))
def completion_command(shell: str) -> None:
    """Print what makes a shell complete commands, options and names.

    For bash, put 'source' and the name of the file into ~/.bashrc; for zsh
    into ~/.zshrc after compinit; fish reads its folder of completions.
    """
    writer = get_completion_class(shell)
    assert writer is not None
    cli = click.get_current_context().find_root().command
    text = writer(cli, {}, "nest", _VARIABLE).source()
    # Click's script for fish cuts words, which may have commas, at each.
    text = text.replace('split ","', 'split --max 1 ","')
    say_data(f"{text}\n")


def complete(cli: click.Command) -> int | None:
    """Answer a shell that asks for words; ``None`` if none does."""
    instruction = os.environ.get(_VARIABLE)
    if not instruction:
        return None
    return shell_complete(cli, {}, "nest", _VARIABLE, instruction)


#: What returns words when a shell asks for them.
_Words = Callable[[], Iterable[str]]


def _in(module: str, read: Callable[[Any], Iterable[str]]) -> _Words:
    """Return what imports a module when a shell asks, and reads its words."""
    return lambda: read(import_module(module))


def _problems() -> Iterable[str]:
    from nest.models import builtin

    return (*builtin.names(), *_instances())


def _clusters() -> Iterable[str]:
    from nest.hardware.machines import machine_specs, machines

    return [
        f"{name}x{site.node.fan_out * nodes}"
        for spec, site in zip(machine_specs(), machines(), strict=True)
        for name in (spec.name, *spec.aliases)
        for nodes in (1, 2, 4, 8, 16, 32, 64, 128)
    ]


def _settings() -> Iterable[str]:
    """Return settings, with their values where these are few."""
    from nest.constraints.pins import SETTINGS

    for name, setting in SETTINGS.items():
        few = len(setting.numbers) <= _FEW
        values = (*setting.words, *(setting.numbers if few else ()))
        yield from (f"{name}={value}" for value in values or ("",))


def _solver_options() -> Iterable[str]:
    from nest.solvers.registry import solver_class, solver_names

    for name in solver_names():
        with contextlib.suppress(SolverNotInstalledError):
            for key in solver_class(name).capabilities.options:
                yield f"{name}.{key}="


_solvers = _in("nest.solvers.registry", lambda x: x.solver_names())
_instances = _in("nest.instances.store", lambda x: x.index())
_classes = _in("nest.instances", lambda x: (*(y.name for y in x.CLASSES), *x.STATES))
_machines = _in(
    "nest.hardware.machines",
    lambda x: [name for y in x.machine_specs() for name in (y.name, *y.aliases)],
)

#: Names to choose from, by the option or argument they are for.
_NAMES: dict[str, _Words] = {
    "--solver": _solvers,
    "--solvers": _solvers,
    "--prove": _solvers,
    "--model": _in("nest.models.zoo", lambda x: [y.name for y in x.ARCHITECTURES]),
    "--cluster": _clusters,
    "--target": _in("nest.constraints.targets", lambda x: x.names()),
    "--objectives": _in("nest.analysis.pareto", lambda x: x.OBJECTIVES),
    "--class": _classes,
    "--to": _in("nest.frameworks.export", lambda x: (*x.TARGETS, *x.TRACES)),
    "--machine": _machines,
    "--zero": lambda: "0123",
    "--overlap": _in("nest.ir.plan", lambda x: [f"{name}=" for name in x.OVERLAP]),
    "--vary": _in("nest.requests.sweeping", lambda x: [f"{name}=" for name in x.AXES]),
    "--option": _solver_options,
    "SETTING=VALUE,": _settings,
    "PROBLEM": _problems,
    "SET": _problems,
    "SOLVER": _solvers,
    "nest problems NAME": _problems,
    "nest instances show NAME": _instances,
    "nest instances fetch NAME|CLASS,": lambda: (*_instances(), *_classes()),
    "nest report PROBLEM] [PLAN": _problems,
    "nest audit NAME": _in("nest.studies", lambda x: x.study_names()),
    "nest completion bash|zsh|fish": lambda: SHELLS,
}

#: Words for a value that is a file or a directory, too.
_FILES = {
    **dict.fromkeys(("FILE", "PLAN", "PROBLEM", "SET", "GRID", "SPEC"), "file"),
    **dict.fromkeys(("LAYER", "CASE", "RUNS", "RESULTS", "PATH"), "file"),
    **dict.fromkeys(("NETWORK", "SOLVER"), "file"),
    "DIR": "dir",
}


class _Completed(_Type):
    """A type of values with words to complete."""

    def __init__(self, inner: _Type, names: _Words, kind: str | None) -> None:
        self.inner, self.name = inner, inner.name
        self._names, self._kind = names, kind

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        """Return what the type makes of a value."""
        return self.inner.convert(value, param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the names that go on so, and whether files may, too.

        Of a list with commas the last name is completed. Files come first:
        bash forgets what is in front of them.
        """
        before, comma, last = incomplete.rpartition(",")
        previous = before.split(",")
        kinds = () if self._kind is None else (self._kind,)
        return [
            *(CompletionItem(incomplete, type=kind) for kind in kinds),
            *(
                CompletionItem(f"{before}{comma}{name}")
                for name in self._names()
                if name.startswith(last) and name not in previous
            ),
        ]


def add_words(path: str, command: click.Command) -> None:
    """Let a shell complete the values of a command."""
    for parameter in command.params:
        what = (parameter.metavar or "").strip("[]…")
        keys = [*parameter.opts, f"{path} {what}", what]
        names = next((_NAMES[key] for key in keys if key in _NAMES), None)
        parts = _PART.split(what)
        kinds = [_FILES[word] for word in parts if word in _FILES]
        words = getattr(parameter.type, "func", None)
        # Small letters are what a value is, not what it is called.
        plain = tuple(dict.fromkeys(x for x in parts if x and x.islower()))
        keywords = getattr(words, "words", ()) or plain
        if names is None and keywords:
            names = _const(keywords)
        if names is not None or kinds:
            parameter.type = _Completed(
                parameter.type, names or _const(()), kinds[0] if kinds else None
            )


def _const(words: Iterable[str]) -> _Words:
    return lambda: words
