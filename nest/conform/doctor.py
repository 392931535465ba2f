"""``nest doctor``: what can run here, what is missing and how to get it.

The core works if a solver of it proves a stored optimum in a process of its
own, as every solver runs. Everything else may be missing.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from typing import IO, Literal, NamedTuple

from nest.util.versions import DISTRIBUTION, machine, nest_version, package_version

#: Of a check: fine; optional and not there; what nest cannot do without.
State = Literal["ok", "missing", "broken"]

#: Exact solvers, each on an engine of its own; the first is the core.
ENGINES = ("dp", "cpsat", "milp")

#: A problem that every exact solver proves at once.
_PROBLEM = "mixed"

#: Seconds that it may take where everything is slow.
_LIMIT_S = 60.0


class Finding(NamedTuple):
    """What was found of one thing.

    ``found`` says on one line what is there, ``remedy`` what to do about it, if
    anything.
    """

    what: str
    state: State
    found: str
    remedy: str = ""


def examine(file: IO[str]) -> Iterator[Finding]:
    """Yield one finding after the other."""
    yield Finding("nest", "ok", nest_version())
    yield Finding(
        "Python",
        "ok",
        f"{platform.python_version()} ({platform.python_implementation()}), "
        f"{sys.executable}",
    )
    yield from _packages()
    yield from map(_engine, ENGINES)
    yield from _others()
    yield from _extras()
    yield from _machine()
    yield from _surroundings(file)


def _required() -> dict[str, list[tuple[str, str]]]:
    """Return packages and their versions by extra; ``""`` is the core."""
    required: dict[str, list[tuple[str, str]]] = {}
    try:
        texts = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        texts = []
    for text in texts:
        requirement, _, marker = text.partition(";")
        match = re.match(r"([A-Za-z0-9._-]+)\s*(.*)", requirement.strip())
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)", marker)
        if match is not None and "[" not in requirement:
            name, version = match.groups()
            key = extra[1] if extra is not None else ""
            required.setdefault(key, []).append((name, version))
    return required


def _packages() -> Iterator[Finding]:
    for name, bounds in _required().get("", ()):
        version = package_version(name)
        if version is not None and satisfies(version, bounds):
            yield Finding(name, "ok", f"{version} (wanted {bounds})")
            continue
        text = "not installed" if version is None else version
        yield Finding(
            name, "broken", f"{text} (wanted {bounds})", f"pip install '{name}{bounds}'"
        )


def satisfies(version: str, wanted: str) -> bool:
    """Whether a version keeps bounds such as ``<4,>=3.1``."""

    def parts(text: str) -> list[int]:
        return [int(part) for part in re.findall(r"\d+", text)]

    numbers = parts(version)
    for bound in filter(None, wanted.split(",")):
        match = re.fullmatch(r"\s*(>=|<)\s*([\d.]+)\s*", bound)
        if match is None:
            continue  # only these are used
        sign, limit = match[1], parts(match[2])
        if (numbers >= limit) != (sign == ">="):
            return False
    return True


def _engine(solver: str) -> Finding:
    """Let a solver prove what is known."""
    from nest.conform.problems import references
    from nest.solvers.base import SolveOptions, Status
    from nest.solvers.registry import availability, solver_version
    from nest.solvers.run import run_solver

    worst: State = "broken" if solver == ENGINES[0] else "missing"
    what = f"solver {solver}"
    reason = availability(solver)
    if reason is not None:
        text, _, remedy = reason.partition("; ")
        return Finding(what, worst, text, remedy)
    problem = next(x for x in references() if x.name == f"conform-{_PROBLEM}")
    limits = SolveOptions(time_limit_s=_LIMIT_S)
    result = run_solver(problem.problem, solver, limits)
    proven = result.status is Status.OPTIMAL
    if proven and result.step_quanta == problem.optimum_quanta:
        version = solver_version(solver) or "unknown version"
        text = f"proves a stored optimum in {result.wall_s:.2f} s ({version})"
        return Finding(what, "ok", text)
    came = result.detail or str(result.status or result.outcome)
    return Finding(
        what,
        worst,
        f"expected the proof of a stored optimum, got {came}",
        "reinstall its engine; 'nest conform' says more",
    )


def _others() -> Iterator[Finding]:
    """Yield the other solvers, those that can run in one line."""
    from nest.solvers.registry import availability, ignored_plugins, solver_names

    ready = []
    for name in solver_names():
        if name in ENGINES:
            continue
        reason = availability(name)
        if reason is None:
            ready.append(name)
        else:
            text, _, remedy = reason.partition("; ")
            yield Finding(f"solver {name}", "missing", text, remedy)
    yield Finding("other solvers", "ok", ", ".join(ready))
    for plugin, reason in ignored_plugins().items():
        remedy = "reinstall or remove the package that provides it"
        yield Finding(f"plug-in {plugin}", "missing", reason, remedy)


def _extras() -> Iterator[Finding]:
    for extra, packages in sorted(_required().items()):
        if extra in ("", "all"):
            continue
        there = {name: package_version(name) for name, _ in packages}
        text = ", ".join(
            f"{name} {version or 'not installed'}" for name, version in there.items()
        )
        if all(there.values()):
            yield Finding(f"extra {extra}", "ok", text)
        else:
            remedy = f"pip install '{DISTRIBUTION}[{extra}]'"
            yield Finding(f"extra {extra}", "missing", text, remedy)


def _machine() -> Iterator[Finding]:
    here = machine()
    yield Finding("processor", "ok", f"{here['cpus']} CPUs, {here['cpu']}")
    system = f"{here['system']} {here['release']}, {here['architecture']}"
    yield Finding("system", "ok", system)
    free, total = memory_bytes()
    if total is not None:
        text = f"{total / 2**30:.1f} GiB"
        if free is not None:
            text += f", {free / 2**30:.1f} GiB available"
        yield Finding("memory", "ok", text)


def memory_bytes() -> tuple[int | None, int | None]:
    """Return the memory that is available, and all of it, where known."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        # KiB, whatever they say
        sizes = [
            int(lines[name].split()[0]) * 1024 for name in ("MemAvailable", "MemTotal")
        ]
        return sizes[0], sizes[1]
    except (OSError, KeyError, ValueError, IndexError):
        pass
    try:
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None, None
    return None, pages * size


def _surroundings(file: IO[str]) -> Iterator[Finding]:
    from nest.util.terminal import columns_of

    encoding = getattr(file, "encoding", None) or "unknown"
    text = f"not a terminal: lines have at most {columns_of(file)} columns"
    if file.isatty():
        term = os.environ.get("TERM", "unknown")
        colors = "no colors" if os.environ.get("NO_COLOR") else "colors"
        text = f"{columns_of(file)} columns, {term}, {colors}"
    yield Finding("terminal", "ok", f"{text}, {encoding}")
    yield _folder("temporary files", tempfile.gettempdir(), "broken")
    # The only package that keeps a cache.
    home = os.environ.get("MPLCONFIGDIR") or os.path.expanduser("~")
    yield _folder("cache of plots", home, "missing")


def _folder(what: str, path: str, worst: State) -> Finding:
    """Say whether files can be written to a folder."""
    try:
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        variable = "TMPDIR" if worst == "broken" else "MPLCONFIGDIR"
        remedy = f"set {variable} to a folder that may be written"
        return Finding(what, worst, f"{path}: {error.strerror}", remedy)
    stat = os.statvfs(path)
    free = stat.f_bavail * stat.f_frsize / 2**30
    return Finding(what, "ok", f"{path}, {free:.1f} GiB free")
