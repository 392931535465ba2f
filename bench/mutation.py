"""Mutation check: break one thing at a time; some test must notice.

Each row of ``mutations.toml`` replaces one snippet of one file by another one,
in a temporary copy of the repository (the working tree is never touched), and
runs the tests that should fail. Prints a table; exits 1 if a mutation
survives, does not end, or its snippet is not found exactly once.

    python bench/mutation.py                  all mutations
    python bench/mutation.py dp milp          those whose name starts so
    python bench/mutation.py --list           the table, without running
    python bench/mutation.py --check          whether every row still applies
    python bench/mutation.py -j 4             so many at a time (default 2)
"""

from __future__ import annotations

import argparse
import ast
import compileall
import os
import queue
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "bench" / "mutations.toml"
TIMEOUT_S = 300

T = TypeVar("T")


@dataclass(frozen=True)
class Mutation:
    """One way to break the code.

    Attributes
    ----------
    what
        The room and the step that is broken.
    file, old, new
        The snippet and what takes its place. Line breaks and indentation
        are the formatter's business: any white space matches any other, and
        what both texts start and end with stays as it is laid out.
    tests
        Arguments of pytest, or the name of some in the table's ``tests``.
    endless
        Whether not to end counts as noticed.
    """

    what: str
    file: str
    old: str
    new: str
    tests: str
    endless: bool = False

    def broken(self, source: str) -> str:
        """Return the source with the snippet replaced.

        Raises
        ------
        LookupError
            If it is not there exactly once.
        """
        old, new = self.old.split(), self.new.split()
        same = _num_equal(old, new)
        ends = _num_equal(old[same:][::-1], new[same:][::-1])
        head, tail = old[:same], old[len(old) - ends :]
        middle = old[same : len(old) - ends]
        text = self.new
        if same or ends:
            text = " ".join(new[same : len(new) - ends])
        if text and not middle:
            text = f" {text}" if head else f"{text} "
        gaps = (
            r"\s+" if head and middle else "",
            r"\s+" if old[:-ends] and tail else "",
        )
        pattern = (
            f"({_pattern(head)}{gaps[0]}){_pattern(middle)}"
            f"({gaps[1]}{_pattern(tail)})"
        )
        result, found = re.subn(pattern, lambda m: m[1] + text + m[2], source)
        if found != 1:
            raise LookupError(f"snippet found {found} times in {self.file}")
        return result


def _num_equal(one: Sequence[str], other: Sequence[str]) -> int:
    """Return how many words two texts start with alike."""
    number = 0
    while one[number : number + 1] == other[number : number + 1] != []:
        number += 1
    return number


def _pattern(words: Iterable[str]) -> str:
    return r"\s+".join(map(re.escape, words))


def read_table() -> list[Mutation]:
    """Read the table; names of tests are replaced by what they stand for."""
    table = tomllib.loads(TABLE.read_text())
    names = table["tests"]
    return [
        Mutation(**{**row, "tests": names.get(row["tests"], row["tests"])})
        for row in table["break"]
    ]


def tracked_files() -> list[str]:
    """Return the files of the working tree that git does not ignore."""
    output = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout.decode()
    return [name for name in output.split("\0") if name]


def copy_tree(target: Path) -> None:
    """Copy the working tree."""
    for name in tracked_files():
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def run_tests(
    tree: Path, tests: Sequence[str]
) -> subprocess.CompletedProcess[str]:
    """Run pytest on a copy; it must import the copy's code."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-x", "-q", "--tb=line"),
            *("-n", "0", "-p", "no:cacheprovider", *tests),
        ],
        cwd=tree,
        env={
            **os.environ,
            "PYTHONPATH": str(tree),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HYPOTHESIS_PROFILE": "break",
        },
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def import_path(tree: Path) -> Path:
    """Return where a copy imports the package from."""
    output = subprocess.run(
        [sys.executable, "-c", "import nest; print(nest.__file__)"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return Path(output.strip())


def killer(output: str) -> str:
    """Return the first failing test that pytest names."""
    match = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    return match[1] if match else "?"


def check(mutation: Mutation, tree: Path) -> tuple[bool, str]:
    """Return whether the mutation was noticed, and by what."""
    path = tree / mutation.file
    source = path.read_text()
    try:
        path.write_text(mutation.broken(source))
        result = run_tests(tree, shlex.split(mutation.tests))
    except LookupError as error:
        return False, str(error)
    except subprocess.TimeoutExpired:
        return mutation.endless, f"no end after {TIMEOUT_S} s"
    finally:
        path.write_text(source)
    if result.returncode == 0:
        return False, "SURVIVED"
    if result.returncode != 1:
        return False, f"pytest exit {result.returncode}: {mutation.tests}"
    return True, killer(result.stdout)


def why_not_clean(tests: Sequence[str], tree: Path) -> str | None:
    """Return why tests do not pass with nothing broken, or ``None``."""
    try:
        result = run_tests(tree, tests)
    except subprocess.TimeoutExpired:
        return f"no end after {TIMEOUT_S} s"
    return result.stdout[-2000:] if result.returncode else None


def why_not(mutation: Mutation) -> str | None:
    """Return why a row cannot be run, or ``None``.

    Its snippet must be found exactly once, what it becomes must be Python,
    and the files of its tests must be there.
    """
    path = ROOT / mutation.file
    if not path.is_file():
        return f"no file {mutation.file}"
    try:
        ast.parse(mutation.broken(path.read_text()))
    except (LookupError, SyntaxError) as error:
        return str(error)
    for word in shlex.split(mutation.tests):
        place = word.partition("::")[0]
        if place.startswith("tests/") and not (ROOT / place).exists():
            return f"no tests in {place}"
    return None


def clean_selections(mutations: Iterable[Mutation]) -> list[list[str]]:
    """Return what must pass unbroken: all tests of the table, each once."""
    expressions: dict[tuple[str, ...], set[str]] = {}
    for mutation in mutations:
        words = shlex.split(mutation.tests)
        chosen = ""
        if "-k" in words:
            place = words.index("-k")
            chosen = words.pop(place + 1)
            del words[place]
        expressions.setdefault(tuple(words), set()).add(chosen)
    return [
        [*paths, "-k", " or ".join(f"({text})" for text in sorted(found))]
        if "" not in found
        else list(paths)
        for paths, found in expressions.items()
    ]


class Trees:
    """Copies of the working tree, one for every test run at a time."""

    def __init__(self, folder: str, number: int) -> None:
        self._free: queue.Queue[Path] = queue.Queue()
        for name in range(number):
            tree = Path(folder, str(name), "main")
            copy_tree(tree)
            # Else every run of tests would compile all modules anew.
            compileall.compile_dir(tree, quiet=1)
            self._free.put(tree)
        self.first = self._free.queue[0]

    def use(self, task: Callable[[Path], T]) -> T:
        """Call a task with a copy that no other one uses."""
        tree = self._free.get()
        try:
            return task(tree)
        finally:
            self._free.put(tree)


def run(mutations: list[Mutation], jobs: int) -> int:
    """Run all; return how many survived, or -1 if nothing can be said."""
    with (
        tempfile.TemporaryDirectory(prefix="nest-mutation-") as folder,
        ThreadPoolExecutor(jobs) as pool,
    ):
        trees = Trees(folder, jobs)
        if not import_path(trees.first).is_relative_to(trees.first):
            print(f"expected the copy's code, got {import_path(trees.first)}")
            return -1
        # Nothing broken: every selection must pass, or it proves nothing.
        selections = clean_selections(mutations)
        for selection, trouble in zip(
            selections,
            pool.map(
                lambda s: trees.use(lambda tree: why_not_clean(s, tree)),
                selections,
            ),
            strict=True,
        ):
            if trouble is not None:
                print(f"without a mutation: {shlex.join(selection)}")
                print(trouble)
                return -1
        survived = 0
        print(f"{'mutation':60} noticed by", flush=True)
        for mutation, (noticed, text) in zip(
            mutations,
            pool.map(
                lambda m: trees.use(lambda tree: check(m, tree)), mutations
            ),
            strict=True,
        ):
            survived += not noticed
            print(f"{mutation.what:60} {text}", flush=True)
    return survived


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen mutations."""
    parser = argparse.ArgumentParser(description="break one thing at a time")
    parser.add_argument("start", nargs="*", help="starts of names")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("-j", type=int, default=2, dest="jobs")
    options = parser.parse_args(arguments)
    mutations = [
        mutation
        for mutation in read_table()
        if not options.start or mutation.what.startswith(tuple(options.start))
    ]
    if options.list:
        for mutation in mutations:
            print(f"{mutation.what:60} {mutation.file}")
        return 0
    if options.check:
        reasons = [(m.what, why_not(m)) for m in mutations]
        stale = [(what, reason) for what, reason in reasons if reason]
        for what, reason in stale:
            print(f"{what:60} {reason}")
        print(f"{len(mutations) - len(stale)} of {len(mutations)} rows apply")
        return 1 if stale else 0
    start = time.monotonic()
    survived = run(mutations, options.jobs)
    if survived < 0:
        return 1
    print(
        f"{len(mutations) - survived} of {len(mutations)} mutations noticed "
        f"in {time.monotonic() - start:.0f} s"
    )
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
