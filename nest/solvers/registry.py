"""The one list of solvers: keywords and where their classes are.

A solver is named by a lazy ``"module:Class"`` string, so that listing the
solvers imports no engine. Other packages add theirs through the entry-point
group ``nest.solvers``::

    [project.entry-points."nest.solvers"] mine = "my_package.planner:MySolver"

A planner that is a command has a description in place of a class, see
:mod:`nest.solvers.command`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import math
import os
import re
import subprocess
import sys
import uuid
from importlib import import_module, util
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from nest.errors import InvalidOptionError, SolverNotInstalledError, UnknownSolverError
from nest.solvers.base import COMMAND, Capabilities, Solver
from nest.solvers.descendants import MARK, end_all, end_marked
from nest.util.interpreters import environment, python, search_path
from nest.util.versions import DISTRIBUTION, nest_version, num_cpus, package_version

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.metadata import EntryPoint
    from pathlib import Path

#: Entry-point group for solvers of other packages.
GROUP = "nest.solvers"

_BUILT_IN = {
    "brute": "formulations.brute:BruteSolver",
    "dp": "nest.search.solver:DpSolver",
    "cpsat": "formulations.cpsat.solver:CpSatSolver",
    "milp": "formulations.milp.solver:MilpSolver",
    "alpa": "baselines.alpa:AlpaSolver",
    "galvatron": "baselines.galvatron:GalvatronSolver",
    "phaze": "baselines.phaze:PhazeSolver",
    "piper": "baselines.piper:PiperSolver",
    "megatron": "baselines.megatron:MegatronSolver",
    "mcmc": "baselines.mcmc:McmcSolver",
    "uniap": "baselines.uniap:UniapSolver",
    "ft": "baselines.ft:FtPlanner",
    "aceso": "baselines.aceso:AcesoSolver",
    "zb": "baselines.zb:ZbSolver",
    "random": "baselines.random_plans:RandomSolver",
}
_registered: dict[str, str] = {}

#: What proves orders of passes, and the package of its engine.
_ORDER_PROVER, _ORDER_ENGINE = "formulations.orders:prove_order", "ortools"

#: How long a solver of another package may take to be imported, whatever the
#: time limit is; and where solvers are only listed.
IMPORT_S = 20.0
LISTING_S = 10.0


class _Attempt(NamedTuple):
    """Why an import is not to be done here, and how long it was waited for."""

    reason: str | None
    waited_s: float = math.inf


_tried: dict[str, _Attempt] = {}

#: Exit code of the process that has imported a solver.
_IMPORTED = 93

_KEYWORD = re.compile(r"[a-z][a-z0-9_-]*")


def solver_names() -> list[str]:
    """Return all keywords: built-in ones first, each group in its order."""
    return [*_BUILT_IN, *_plugins().targets, *_registered]


def is_built_in(name: str) -> bool:
    """Whether a solver is one of this project's own."""
    return name in _BUILT_IN


def is_plugin(name: str) -> bool:
    """Whether a solver comes by an entry point of another package."""
    return name not in _BUILT_IN and name in _plugins().targets


def ignored_plugins() -> dict[str, str]:
    """Return the entry points that are not used, and why not."""
    return dict(_plugins().ignored)


def register_solver(name: str, target: str) -> None:
    """Add a solver for the life of this process; a second call replaces it.

    Parameters
    ----------
    name
        One lower-case token.
    target
        ``"module:Class"``, importable by a new Python process that has the
        ``sys.path`` of this one; or the target of a description, see
        :func:`nest.solvers.command.target_of`.

    Raises
    ------
    InvalidOptionError
        If the name is taken by a built-in solver or an entry point, or
        either argument is malformed.
    """
    if name in _BUILT_IN or name in _plugins().targets:
        raise InvalidOptionError(
            f"solver {name!r}: expected a new name, got that of an existing "
            f"solver; choose another one"
        )
    reason = _malformed_name(name) or _malformed_target(target)
    if reason is not None:
        raise InvalidOptionError(f"solver {name!r}: {reason}")
    _registered[name] = target


def register_planner(path: str | Path) -> str:
    r"""Add the planner of a description file and return its keyword.

    A second call with the same name replaces it.

    Raises
    ------
    InvalidOptionError
        If the file is no description, or its name is taken by a built-in
        solver or an entry point.

    Examples
    --------
    >>> import nest, pathlib, tempfile
    >>> from nest.solvers.registry import unregister_solver
    >>> path = pathlib.Path(tempfile.mkdtemp(), "mine.yaml")
    >>> _ = path.write_text(
    ...     "schema: nest-planner/1\n"
    ...     "name: mine\n"
    ...     "method: what I do\n"
    ...     "command: mine {problem} {plan}\n"
    ... )
    >>> nest.register_planner(path)
    'mine'
    >>> "mine" in nest.solver_names()
    True
    >>> unregister_solver("mine")
    """
    from nest.solvers.command import read_planner, target_of

    planner = read_planner(path)
    try:
        register_solver(planner.name, target_of(planner))
    except InvalidOptionError as error:
        raise InvalidOptionError(f"{path}: name: {error}") from None
    return planner.name


def is_command(name: str) -> bool:
    """Whether a solver is a command with a description."""
    return solver_target(name).startswith(COMMAND)


def is_registered(name: str, target: str) -> bool:
    """Whether :func:`register_solver` has added a solver in this process."""
    return _registered.get(name) == target


def unregister_solver(name: str) -> None:
    """Forget what :func:`register_solver` added; unknown names are fine."""
    _registered.pop(name, None)


def solver_target(name: str) -> str:
    """Return the ``"module:Class"`` string of a solver.

    Raises
    ------
    UnknownSolverError
        If there is no such solver.
    """
    target = _BUILT_IN.get(name) or _registered.get(name)
    if target is None:
        target = _plugins().targets.get(name)
    if target is None:
        raise UnknownSolverError(name, solver_names())
    return target


def load_target(target: str) -> type[Solver]:
    """Import a ``"module:Class"`` string.

    Raises
    ------
    TypeError
        If what it names is not a solver class.
    """
    if target.startswith(COMMAND):
        from nest.solvers.command import solver_of

        return solver_of(target)
    reason = _malformed_target(target)
    if reason is not None:
        raise TypeError(reason)
    module_name, _, class_name = target.partition(":")
    found = getattr(import_module(module_name), class_name)
    capabilities = getattr(found, "capabilities", None)
    if not isinstance(found, type) or not (
        isinstance(capabilities, Capabilities) and hasattr(found, "solve")
    ):
        raise TypeError(
            f"{target}: expected a class with 'capabilities' and 'solve', got {found!r}"
        )
    return cast("type[Solver]", found)


def solver_class(name: str, limit_s: float | None = None) -> type[Solver]:
    """Return the class of a solver, whether or not its engine is there.

    ``limit_s`` is as for :func:`import_trouble`.

    Raises
    ------
    UnknownSolverError
        If there is no such solver.
    SolverNotInstalledError
        If its module cannot be imported.
    """
    target = solver_target(name)
    if is_plugin(name):
        reason = import_trouble(target, limit_s)
        if reason is not None:
            raise SolverNotInstalledError(f"solver {name!r}: {reason}")
    try:
        # Standard output belongs to the command.
        with contextlib.redirect_stdout(sys.stderr):
            return load_target(target)
    except Exception as error:  # a broken plug-in may raise anything
        text = " ".join(str(error).split())
        raise SolverNotInstalledError(
            f"solver {name!r}: expected a solver class at {target!r}, got "
            f"{type(error).__name__}: {text}; reinstall the package that provides it"
        ) from error


def import_trouble(target: str, limit_s: float | None = None) -> str | None:
    """Return why importing a solver would end the process that tries.

    Another process tries it, once for the life of this one. A failure that
    is an exception is none: it harms nobody.

    Parameters
    ----------
    target
        ``"module:Class"``.
    limit_s
        Seconds to wait for the import. Default and maximum: :data:`IMPORT_S`. A
        finished import is never repeated in this process. After a timeout, only a call
        with a longer limit imports again.
    """
    known = _tried.get(target)
    wait_s = IMPORT_S if limit_s is None else min(limit_s, IMPORT_S)
    if known is not None and (limit_s is None or wait_s <= known.waited_s):
        return known.reason
    code = (
        "import json, os, sys; sys.path[:] = json.loads(sys.argv[1]); "
        "from nest.util.interrupts import end_with_parent; "
        "from nest.solvers.descendants import adopt; "
        "adopt(); end_with_parent(int(sys.argv[3])); "
        "from nest.solvers.registry import load_target\n"
        "try: load_target(sys.argv[2])\n"
        "except Exception: pass\n"
        f"os._exit({_IMPORTED})"
    )
    mark = f"import-{os.getpid()}-{uuid.uuid4().hex}"
    with subprocess.Popen(
        python(*("-c", code, json.dumps(search_path())), *(target, str(os.getpid()))),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**environment(), MARK: mark},
        start_new_session=True,
    ) as process:
        try:
            process.wait(wait_s)
        except subprocess.TimeoutExpired:
            _tried[target] = _Attempt(
                f"importing {target} took more than {wait_s:g} s; allow more "
                f"time, or mend the package that provides it",
                wait_s,
            )
            return _tried[target].reason
        finally:
            if process.returncode is None:
                end_all(process.pid, mark)
            else:
                end_marked(mark)
    why = (
        f"importing {target} ended the process: exit {process.returncode}; "
        f"reinstall the package that provides it"
    )
    imported = process.returncode == _IMPORTED
    _tried[target] = _Attempt(None if imported else why)
    return _tried[target].reason


def try_plugins(limit_s: float) -> None:
    """Try to import all solvers of other packages, at the same time.

    Without a limit of their own, other functions then wait for none of them.
    """
    targets = [
        target
        for target in _plugins().targets.values()
        if _malformed_target(target) is None
    ]
    if not targets:
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(len(targets)) as pool:
        list(pool.map(import_trouble, targets, itertools.repeat(limit_s)))


def get_solver(name: str, limit_s: float | None = None) -> type[Solver]:
    """Return the class of a solver that can run here.

    ``limit_s`` is as for :func:`import_trouble`.

    Raises
    ------
    UnknownSolverError
        If there is no such solver.
    SolverNotInstalledError
        If its module cannot be imported or the package of its engine is
        missing; the text says what to install.
    """
    solver = solver_class(name, limit_s)
    requires = solver.capabilities.requires
    missing = [package for package in requires if not _is_there(package)]
    if missing:
        raise SolverNotInstalledError(
            f"solver {name!r}: expected package {missing[0]!r}, got none; "
            f"install it with: {_pip_line(name, solver, missing)}"
        )
    return solver


def order_prover() -> Callable[..., Any] | None:
    """Return :func:`formulations.orders.prove_order`.

    ``None`` if its engine is missing.
    """
    if not _is_there(_ORDER_ENGINE):
        return None
    module_name, _, function = _ORDER_PROVER.partition(":")
    return cast("Callable[..., Any]", getattr(import_module(module_name), function))


def availability(name: str) -> str | None:
    """Return why a solver cannot run here, or ``None`` if it can.

    Raises
    ------
    UnknownSolverError
        If there is no such solver.
    """
    try:
        get_solver(name)
    except SolverNotInstalledError as error:
        return str(error).removeprefix(f"solver {name!r}: ")
    return None


def solver_version(name: str) -> str | None:
    """Return the version of a solver's package and of its engines.

    For example ``"nest 0.2.0, ortools 9.15.6755"``; ``None`` if unknown.
    """
    parts = []
    if name not in _BUILT_IN and name not in solver_names():
        return None
    if name in _BUILT_IN:
        parts.append(f"nest {nest_version()}")
    elif name not in _registered:
        parts.append(_plugins().versions[name])
    solver = solver_class(name)
    if name in _registered and hasattr(solver, "version"):
        parts.append(f"{name} {solver.version}")
    for package in solver.capabilities.requires:
        version = package_version(package)
        if version is not None:
            parts.append(f"{package} {version}")
    return ", ".join(parts) or None


def default_workers(name: str, limit_s: float | None = None) -> int:
    """Return how many workers a solver gets if nobody says otherwise.

    Every CPU where that changes no answer, see
    :attr:`~nest.solvers.base.Capabilities.parallel`; else one. ``limit_s`` is
    for :func:`import_trouble`.
    """
    try:
        parallel = solver_class(name, limit_s).capabilities.parallel
    except SolverNotInstalledError:
        parallel = False
    return num_cpus() if parallel else 1


class _Plugins(NamedTuple):
    """Entry points: targets, why others are ignored, whose they are."""

    targets: dict[str, str]
    ignored: dict[str, str]
    versions: dict[str, str]


@functools.cache
def _plugins() -> _Plugins:
    from importlib import metadata

    found = _Plugins({}, {}, {})
    try:
        points = [*metadata.entry_points(group=GROUP)]
    except Exception:  # one package's file is broken: take all others
        points = _readable(found.ignored)
    for point in sorted(points, key=lambda point: (point.name, point.value)):
        name, target = point.name, point.value
        origin, version = "unknown package", ""
        if point.dist is not None:
            origin, version = point.dist.name, point.dist.version
        # A malformed target is a solver that cannot be imported.
        reason = _malformed_name(name)
        if name in _BUILT_IN:
            reason = "a built-in solver has this name"
        elif found.targets.get(name, target) != target:
            reason = f"{found.targets[name]!r} has this name too"
        if reason is not None:
            found.ignored[f"{name} of {origin}"] = reason
        else:
            found.targets[name] = target
            found.versions[name] = f"{origin} {version}".strip()
    return found


def _readable(ignored: dict[str, str]) -> list[EntryPoint]:
    """Return the entry points of packages whose files can be read."""
    from importlib import metadata

    points: list[EntryPoint] = []
    for package in metadata.distributions():
        try:
            points += package.entry_points.select(group=GROUP)
        except Exception as error:
            text = " ".join(str(error).split())
            ignored[f"entry points of {package.name}"] = (
                f"expected lines 'name = module:Class', got a file that "
                f"cannot be read ({text}); reinstall it"
            )
    return points


def _malformed_name(name: str) -> str | None:
    if _KEYWORD.fullmatch(name):
        return None
    return "expected a name of lower-case letters, digits, '-' and '_'; rename it"


def _malformed_target(target: str) -> str | None:
    if target.startswith(COMMAND):
        return None
    module_name, _, class_name = target.partition(":")
    if (
        all(part.isidentifier() for part in module_name.split("."))
        and class_name.isidentifier()
    ):
        return None
    return f"expected a target 'module:Class', got {target!r}; correct it"


def _is_there(package: str) -> bool:
    # Only the top-level name: find_spec imports the parents of a dotted one.
    return util.find_spec(package.partition(".")[0]) is not None


def _pip_line(name: str, solver: type[Solver], missing: list[str]) -> str:
    extra = solver.capabilities.extra
    if name not in _BUILT_IN:
        return f"pip install {' '.join(missing)}"
    suffix = f"[{extra}]" if extra else ""
    return f"pip install '{DISTRIBUTION}{suffix}'"
