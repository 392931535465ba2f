"""Python processes that import no module from the working directory.

``python -c`` and ``python -m`` search the working directory first, so that a
``json.py`` in it would run in place of that of the standard library.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_SAFE, _PATH = "PYTHONSAFEPATH", "PYTHONPATH"

#: Value of ``PYTHONSAFEPATH`` where this program sets it, not the user.
_BY_NEST = "nest"

#: File descriptors that the processes of solvers inherit. Whoever removes the
#: temporary files of a pool waits until the last process has closed them.
INHERITED: list[int] = []


def python(*arguments: str) -> list[str]:
    """Return a command that starts this Python without that directory."""
    return [sys.executable, "-P", *arguments]


def search_path() -> list[str]:
    """Return the absolute search path of this process without relative ``.``.

    An absolute entry that names the working directory stays: the user or the
    location of a script put it there.
    """
    return [os.path.abspath(path) for path in sys.path if not _is_relative_here(path)]


def environment() -> dict[str, str]:
    """Return the environment for a process that :func:`python` starts."""
    variables = dict(os.environ)
    if _PATH in variables:
        named = variables.pop(_PATH).split(os.pathsep)
        absolute = [path for path in named if not _is_relative_here(path)]
        if absolute:
            variables[_PATH] = os.pathsep.join(absolute)
    return variables


@contextmanager
def safe_environment() -> Iterator[None]:
    """Make processes safe that other packages start within the block."""
    before = {name: os.environ.get(name) for name in (_SAFE, _PATH)}
    after = {_SAFE: _BY_NEST, **environment()}
    try:
        _set({name: after.get(name) for name in before})
        yield
    finally:
        _set(before)


def leave_safe_environment() -> None:
    """In a process started so: do not hand the variable to commands."""
    if os.environ.get(_SAFE) == _BY_NEST:
        del os.environ[_SAFE]


def ignore_working_directory() -> None:
    """Remove the directory where ``PYTHONPATH`` names it as ``.`` or empty.

    Python has made these entries absolute, before those of the library.
    """
    named = os.environ.get(_PATH)
    if not named or sys.flags.ignore_environment:
        return
    for path in filter(_is_relative_here, named.split(os.pathsep)):
        if os.path.abspath(path) in sys.path:
            sys.path.remove(os.path.abspath(path))
    _set({_PATH: environment().get(_PATH)})


def _is_relative_here(path: str) -> bool:
    return not os.path.isabs(path) and os.path.normpath(path or ".") == "."


def _set(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
