"""Sets of problems: names, files, directories, patterns, and lists of them.

Named sets and problems come through one door, :func:`named`; a library of
instances plugs in there.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from nest import instances as library
from nest.errors import InvalidOptionError, InvalidProblemError, NestError
from nest.hardware import find_cluster
from nest.hardware.calibration_file import resting_on, with_calibration
from nest.ir.io import convert, decode, problem_hash, read_bytes, read_problem
from nest.ir.problem import Problem
from nest.models import builtin
from nest.models.choices import Request, choose
from nest.models.graphs import build_on
from nest.models.zoo import architecture
from nest.util.stored import read_stored
from nest.util.text import did_you_mean

_PROBLEMS = (".json", ".yaml", ".yml")
_LISTS = (".txt", ".yaml", ".yml")


@dataclass(frozen=True)
class Instance:
    """A problem of a benchmark.

    ``source`` is as the set says it. ``best_quanta`` is the step time of the best plan
    known before, if any is; ``axes`` says where it stands in the grid of a sweep.
    """

    name: str
    problem: Problem
    source: str
    best_quanta: int | None = None
    axes: Mapping[str, str | int | float] = field(default_factory=dict)

    @cached_property
    def hash(self) -> str:
        """The hash of the problem."""
        return problem_hash(self.problem)


class Recipe(Request, frozen=True, kw_only=True):
    """A problem in a list: a model on a cluster, and what its job asks for.

    ``name`` follows by default from ``model`` and ``cluster``, which are as ``--model``
    and ``--cluster`` say them.
    """

    name: str | None = None
    model: str
    cluster: str


def build(recipe: Recipe, calibration: str | None = None) -> Problem:
    """Return the problem of a model on a cluster.

    With the parameters of a calibration's file, if one is given.

    Raises ``NestError`` if there is no such model or cluster, the job does not divide
    it, or the calibration is not one of its devices.
    """
    model = architecture(recipe.model)
    machines, cluster = find_cluster(recipe.cluster)
    machines, fitted = with_calibration(machines, calibration)
    site, _ = machines[0]
    choices = choose(model, site, sum(count for _, count in machines), recipe)
    problem = build_on(model, machines, choices, cluster, recipe.name)
    if fitted is not None and calibration is not None:
        problem = resting_on(problem, fitted, machines, calibration)
    return problem


def named(text: str) -> list[Instance] | None:
    """Return the problems of a named set, or the one of a name, if known."""
    sets = _stored_sets()
    if text in sets:
        return list(_listed(sets[text], f"set {text}", Path(), ()))
    if text in builtin.names():
        return [Instance(text, builtin.load(text), text)]
    if text in library.names():
        return [_stored(text)]
    classes = library.class_words(text)
    if not {*classes} <= {*_classes()}:
        return None
    return [_stored(name) for name in library.names(classes)]


def _stored(name: str) -> Instance:
    record = library.best_known(name)
    return Instance(name, library.problem(name), name, best_quanta=record.value_quanta)


def set_names() -> list[str]:
    """Return the names of the sets that come along."""
    return [*_stored_sets(), *_classes()]


def _classes() -> list[str]:
    """Return the classes and states of the library's instances."""
    return [*(each.name for each in library.CLASSES), *library.STATES]


def _stored_sets() -> dict[str, list[Any]]:
    sets: dict[str, list[Any]] = read_stored(
        "nest.benchmarks", "sets", dict[str, list[Any]]
    )
    return {**sets, "built-in": list(builtin.names())}


def find_set(texts: Iterable[str]) -> list[Instance]:
    """Return the problems that words name, each once, with distinct names.

    Each is a named set, a built-in problem, a problem file, a directory, a pattern of
    files, or a list of these: a text file with one a line, or YAML, where a problem may
    also be a :class:`Recipe`.

    Raises ``NestError`` if a word names nothing, or a problem cannot be read; none is
    left out silently.
    """
    by_hash: dict[str, Instance] = {}
    for text in texts:
        for instance in _find(text, Path(), ()):
            by_hash.setdefault(instance.hash, instance)
    instances = list(by_hash.values())
    if not instances:
        raise InvalidOptionError(
            "SET: expected at least one problem, got none; name a problem, a "
            "file or a set"
        )
    names = [instance.name for instance in instances]
    return [
        replace(instance, name=f"{instance.name} ({instance.hash[:8]})")
        if names.count(instance.name) > 1
        else instance
        for instance in instances
    ]


def _find(text: str, folder: Path, inside: tuple[str, ...]) -> Iterator[Instance]:
    """Yield the problems of one word; files are sought from a folder."""
    path = folder / text
    if path.is_dir():
        files = sorted(
            file
            for file in path.iterdir()
            if file.suffix in _PROBLEMS and not file.name.startswith(".")
        )
        if not files:
            raise InvalidOptionError(
                f"{path}: expected a directory with problems "
                f"({', '.join(_PROBLEMS)}), got none; check the path"
            )
        for file in files:
            yield _read(file)
    elif path.exists():
        yield from _read_any(path, inside)
    elif glob.has_magic(text):
        matches = sorted(glob.glob(str(path)))
        if not matches:
            raise InvalidOptionError(
                f"{path}: expected a pattern of files, got one that none has; check it"
            )
        for match in matches:
            yield from _read_any(Path(match), inside)
    else:
        yield from _named(text, path)


def _named(text: str, path: Path) -> list[Instance]:
    instances = named(text)
    if instances is not None:
        return instances
    if os.sep in text or text.endswith((*_PROBLEMS, *_LISTS)):
        return [_read(path)]  # says that there is no such file
    names = [*set_names(), *builtin.names()]
    hint = did_you_mean(text, names, "see 'nest problems'")
    raise InvalidProblemError(
        f"{text}: expected a file, a directory, a set or a built-in problem "
        f"({', '.join(names)}), got none of them; {hint}"
    )


def _read(path: Path) -> Instance:
    problem = read_problem(path)
    return Instance(problem.name, problem, str(path))


def _read_any(path: Path, inside: tuple[str, ...]) -> Iterator[Instance]:
    """Yield the problem of a file, or those of a list."""
    if path.suffix not in _LISTS:
        yield _read(path)
        return
    real_path = os.path.realpath(path)
    if real_path in inside:
        raise InvalidOptionError(
            f"{path}: expected a list of problems, got one that lists itself; "
            f"remove it from there"
        )
    data = read_bytes(path, InvalidProblemError, "list of problems")
    entries: Any
    if path.suffix == ".txt":
        lines = data.decode(errors="replace").splitlines()
        stripped = (line.partition("#")[0].strip() for line in lines)
        entries = [line for line in stripped if line]
    else:
        kind: Any = object
        entries = decode(data, str(path), kind, "list", InvalidProblemError)
        if not isinstance(entries, list):
            yield _read(path)
            return
    yield from _listed(entries, str(path), path.parent, (*inside, real_path))


def _listed(
    entries: list[Any], where: str, folder: Path, inside: tuple[str, ...]
) -> Iterator[Instance]:
    for number, entry in enumerate(entries, 1):
        place = f"{where}: entry {number}"
        if isinstance(entry, str):
            yield from _find(entry, folder, inside)
            continue
        try:
            recipe = convert(entry, place, Recipe, InvalidProblemError)
            problem = build(recipe)
        except NestError as error:
            text = str(error).removeprefix(f"{place}: ")
            raise InvalidProblemError(f"{place}: {text}") from None
        yield Instance(problem.name, problem, place)
