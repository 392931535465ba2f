"""Defaults of common options, from the environment and from a file.

``NEST_TIME_LIMIT=60`` is ``--time-limit 60`` for every command that has the
option, and so is ``time-limit = 60`` in the file ``NEST_CONFIG``, or else in
``nest/config.toml`` of the user's folder of configurations. The command line
goes before the environment, and that before the file. A command names every
default that it takes: an answer can be repeated from what is printed.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import click

from nest.cli.progress import hint
from nest.errors import InvalidOptionError

#: The options that have such defaults.
COMMON = (
    *("calibration", "cluster", "global-batch", "headroom", "jobs", "price"),
    *("profile", "sequence-length", "solver", "solvers", "target"),
    *("time-limit", "tokens", "workers"),
)

#: Options that need ``--model``: without it they are not taken.
_OF_MODELS = {"calibration", "cluster", "global-batch", "profile", "sequence-length"}


def add_defaults(command: click.Command) -> None:
    """Let a command take the defaults of the options that it has."""
    names = {
        each.name: (each, each.opts[-1].removeprefix("--"))
        for each in command.params
        if isinstance(each, click.Option) and each.name
    }
    common = {key: x for key, x in names.items() if x[1] in COMMON}
    if common:
        command.context_settings["default_map"] = _Defaults(common)


class _Defaults(dict[str, Any]):
    """Options of a command with their names; holds the defaults stated."""

    def __contains__(self, key: object) -> bool:
        if not super().__contains__(key):
            return False
        name = super().__getitem__(str(key))[1]
        # What the command line has is read first.
        model = click.get_current_context().params.get("model")
        if name in _OF_MODELS and not isinstance(model, str):
            return False
        return _stated(name)[0] is not None

    def __getitem__(self, key: str) -> Any:
        option, name = super().__getitem__(key)
        value, where = _stated(name)
        # Click looks a default up more than once.
        told = click.get_current_context().meta.setdefault(__name__, set())
        if name not in told:
            told.add(name)
            hint(f"nest: --{name} {value} ({where})")
        return (value,) if option.multiple else value


def _stated(name: str) -> tuple[str | None, str]:
    """Return the default of an option as text, and where it is stated."""
    variable = f"NEST_{name.upper().replace('-', '_')}"
    if variable in os.environ:
        return os.environ[variable], variable
    path = config_path()
    has_file = path.is_file() or "NEST_CONFIG" in os.environ
    value = _read(path).get(name) if has_file else None
    return None if value is None else str(value), str(path)


def config_path() -> Path:
    """Return the file that may state defaults."""
    if named := os.environ.get("NEST_CONFIG"):
        return Path(named)
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(folder, "nest", "config.toml")


@functools.cache
def _read(path: Path) -> dict[str, Any]:
    """Return what a file states; every option of a command asks for it."""
    import tomllib

    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InvalidOptionError(
            f"{path}: expected a TOML file with defaults of options, got "
            f"{reason}; correct or remove it"
        ) from None
    for name, value in values.items():
        if name not in COMMON:
            raise InvalidOptionError(
                f"{path}: {name}: expected one of {', '.join(COMMON)}, got "
                f"another name; correct it"
            )
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise InvalidOptionError(
                f"{path}: {name}: expected a text or a number, got "
                f"{type(value).__name__}; write it as on the command line"
            )
    return values
