"""The ``nest`` command: its sub-commands, and what happens when one fails.

Exit codes: 0 fine, infeasible and out-of-time answers included; 1 a solver
failed, a plan is infeasible, or a file was asked for a plan and there is none;
2 bad input; 130 and 143 interrupted.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from importlib import import_module
from types import FrameType
from typing import NoReturn

import click

from nest.cli.declare import add_sections
from nest.cli.help_texts import SUMMARIES, add_examples
from nest.cli.inputs import Group
from nest.cli.progress import add_talk
from nest.cli.saying import say, say_error
from nest.errors import NestError, SolverError
from nest.util.text import clipped, closest

#: The commands of every module, which is imported when one of them is called.
_MODULES = {
    "auditing": ("audit",),
    "benching": ("bench", "sweep"),
    "checking": ("conform", "doctor", "cite"),
    "codesigning": ("codesign",),
    "completing": ("completion",),
    "inspecting": ("score", "check", "solvers", "problems", "versions"),
    "instances": ("instances",),
    "making": ("new",),
    "measuring": ("validate", "calibrate"),
    "pareto": ("pareto",),
    "plan_files": ("simulate", "trace", "export", "certify"),
    "profiling": ("import", "profile"),
    "questions": ("fit", "fits", "explain"),
    "reporting": ("report",),
    "scheduling": ("schedule",),
    "solving": ("compare", "solve"),
    "topology": ("topology",),
}
COMMANDS = {name: module for module, names in _MODULES.items() for name in names}


class _Commands(Group):
    """The group of all commands, which loads a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, with what every command has."""
        if cmd_name not in self.commands and cmd_name in COMMANDS:
            self.add_command(_load(cmd_name), cmd_name)
        return self.commands.get(cmd_name)

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """Write the list of commands without loading them."""
        width = formatter.width - 6 - max(map(len, COMMANDS))
        rows = [
            (name, click.Command(name, help=SUMMARIES[name]).get_short_help_str(width))
            for name in self.list_commands(ctx)
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _load(name: str) -> click.Command:
    """Import a command and add examples, words to complete and switches."""
    from nest.cli.completing import add_words
    from nest.cli.defaults import add_defaults

    module = import_module(f"nest.cli.{COMMANDS[name]}")
    kind = "command" if hasattr(module, f"{name}_command") else "group"
    command: click.Command = getattr(module, f"{name}_{kind}")
    for path, each in _walk(command, f"nest {name}"):
        add_words(path, each)
        add_examples(path, each)
        add_talk(each)
        add_sections(each)
        add_defaults(each)
    return command


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP arrived."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 79},
)
@click.option("--version", is_flag=True, help="Print the version and exit.")
@click.pass_context
def cli(context: click.Context, version: bool) -> None:
    """Compare planners for large training runs.

    A problem is a model graph, a cluster and a job; a plan says how to train.
    Solvers make plans, one shared cost model scores them all. PROBLEM is a
    file (JSON or YAML) or the name of a built-in problem or of an instance.
    """
    if version:
        from nest.util.versions import nest_version

        say(f"nest {nest_version()}")
        context.exit()
    if context.invoked_subcommand is None:
        say(context.get_help())


add_examples("nest", cli)
add_talk(cli)


def _walk(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """Yield a command and those of its group, each with its path."""
    yield path, command
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from _walk(inner, f"{path} {name}")


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield every command and group with its path, such as ``nest solve``."""
    with click.Context(cli, info_name="nest") as context:
        for name in COMMANDS:
            cli.get_command(context, name)
    yield from _walk(cli, "nest")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit; never shows a traceback.

    With ``NEST_DEBUG=1`` in the environment every exception is shown.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    code = None
    with _stop_signals():
        if "_NEST_COMPLETE" in os.environ:
            from nest.cli.completing import complete

            code = complete(cli)
        if code is None:
            code = _guarded(arguments)
    sys.exit(code)


@contextlib.contextmanager
def _stop_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into exceptions, as Ctrl-C is one."""
    previous = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            # A signal that is ignored (nohup) stays ignored.
            if signal.getsignal(number) is signal.SIG_DFL:
                previous[number] = signal.signal(number, _terminate)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise Terminated(number)


def _guarded(arguments: Sequence[str] | None) -> int:
    """Run the command line; every exception becomes one line and a code."""
    debug = os.environ.get("NEST_DEBUG", "") not in ("", "0")
    if arguments is None:
        arguments = sys.argv[1:]
    try:
        # Not cli.main(): it has ways of its own to report interrupts and broken pipes.
        words = list(arguments)
        # Pages say what was called: parsing takes words from the list.
        with cli.make_context("nest", words, obj=tuple(arguments)) as context:
            code = cli.invoke(context)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except BrokenPipeError:
        # As cat would end.
        _drop_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        if debug:
            raise
        _drop_output()
        _say(
            f"nest: error: {error.filename or 'output'}: expected a file "
            f"that works, got {error.strerror or error}; check it"
        )
        return 2
    except KeyboardInterrupt as error:
        # A signal during a solve is the context of what the runner raises.
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, Terminated):
            cause = cause.__cause__ or cause.__context__
        if cause is not None:
            _say(f"nest: stopped by {signal.Signals(cause.number).name}")
            return 128 + cause.number
        _say("nest: interrupted")
        return 128 + signal.SIGINT
    except click.ClickException as error:
        if debug:
            raise
        _say(f"nest: error: {describe_usage(error, _called(arguments))}")
        return 2
    except NestError as error:
        if debug:
            raise
        _say(f"nest: error: {error}")
        return 1 if isinstance(error, SolverError) else 2
    except Exception as error:
        if debug:
            raise
        _say(
            f"nest: internal error: {type(error).__name__}: {error}; "
            f"run with NEST_DEBUG=1 for the traceback"
        )
        return 1


def _called(arguments: Sequence[str]) -> str:
    """Return the command that was called, such as ``nest solve``."""
    path = "nest"
    command: click.Command = cli
    with click.Context(cli) as context:
        for name in arguments:
            inner = None
            if isinstance(command, click.Group):
                inner = command.get_command(context, name)
            if inner is None:
                break
            path, command = f"{path} {name}", inner
    return path


def describe_usage(error: click.ClickException, called: str = "nest") -> str:
    """Return ``where: expected …, got …; remedy`` for an error of click."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else called
    see = f"see '{path} --help'"
    match error:
        case click.MissingParameter(param=click.Parameter() as parameter):
            return f"{path}: expected {_name(parameter)}, got none; {see}"
        case click.BadParameter(param=click.Parameter() as parameter):
            return f"{_name(parameter)}: {error.message}"
        case click.NoSuchOption():
            return (
                f"{path}: expected a known option, got "
                f"{error.option_name!r}; {_option_hint(error, see)}"
            )
        case click.BadOptionUsage():
            return f"{error.option_name}: expected a value, got none; {see}"
    text = error.format_message().rstrip(".")
    return f"{path}: expected a valid call, {text[:1].lower()}{text[1:]}; {see}"


#: How settings are written that are no options.
_ELSEWHERE = {
    "oversubscription": "--topology dgx:nodes=16,nodes_per_leaf=4,"
    "oversubscription=2, or 'nest sweep' with --vary oversubscription=1,2",
    "rails": "'nest sweep' with --vary rails=1,2",
    **dict.fromkeys(
        ("bandwidth", "network"),
        "--topology dgx:nodes=16,port_bytes_per_s=50GB/s, or 'nest sweep' "
        "with --vary network=1x,2x",
    ),
    "nodes": "--cluster 16x8xH100, or 'nest sweep' with --vary nodes=8,16",
    "devices": "--cluster h100x64, or 'nest sweep' with --vary devices=32,64",
    "memory": "'nest sweep' with --vary memory=80GB,141GB",
}


def _option_hint(error: click.NoSuchOption, otherwise: str) -> str:
    """Return the option that was meant; dashes make no two alike."""
    options = {
        name.lstrip("-"): name
        for parameter in (error.ctx.command.params if error.ctx else ())
        for name in parameter.opts
        if name.startswith("--")
    }
    name = error.option_name.lstrip("-")
    if name in _ELSEWHERE and "cluster" in options:
        return f"write {_ELSEWHERE[name]}"
    closest_name = closest(name, (*options, "help"))
    return f"did you mean '--{closest_name}'?" if closest_name else otherwise


def _name(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Option):
        return parameter.opts[-1]
    return (parameter.metavar or parameter.name or "argument").strip("[]")


def _say(text: str) -> None:
    """Write one line to standard error, if anybody still reads it."""
    with contextlib.suppress(OSError, ValueError):
        say_error(clipped(" ".join(text.split())))


def _drop_output() -> None:
    """Forget what is buffered: it would fail again when Python ends."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
