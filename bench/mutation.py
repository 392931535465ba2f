"""Mutation check: break one thing at a time; some test must notice.

Each row of ``mutations.toml`` replaces one snippet of one file by another one, in a
temporary copy of the repository (the working tree is never touched), and runs the tests
that should fail. Prints a table; exits 1 if a mutation survives, does not end, or its
snippet is not found exactly once, or if a test that noticed one fails without it, too.

    python bench/mutation.py                  all mutations
    python bench/mutation.py dp milp          those whose name starts so
    python bench/mutation.py --list           the table, without running
    python bench/mutation.py --check          whether every row still applies
    python bench/mutation.py -j 4             so many at a time (default 2)
    python bench/mutation.py --fast           only by the tests of make test
"""

from __future__ import annotations

import argparse
import ast
import compileall
import json
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
from contextlib import closing
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
            f"({_pattern(head)}{gaps[0]}){_pattern(middle)}({gaps[1]}{_pattern(tail)})"
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


class Tree:
    """A copy of the working tree, with a process that tests it."""

    def __init__(self, path: Path, fast: bool = False) -> None:
        copy_tree(path)
        # Else every run of tests would compile all modules anew.
        compileall.compile_dir(path, quiet=1)
        self.path, self.fast = path, fast
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.warm_pytest", str(TIMEOUT_S)],
            cwd=path,
            env={
                **os.environ,
                "PYTHONPATH": str(path),
                "PYTHONDONTWRITEBYTECODE": "1",
                "HYPOTHESIS_PROFILE": "quick" if fast else "break",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def test(self, tests: Sequence[str], stop: bool = True) -> tuple[int | None, str]:
        """Return pytest's exit status, or ``None`` in time, and its output."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        options = ["-q", "--tb=line", "-n", "0", "-p", "no:cacheprovider"]
        options += ["-x"] * stop
        if self.fast:
            tests = ["-m", "not slow", *tests]
        process.stdin.write(json.dumps([*options, *tests]) + "\n")
        process.stdin.flush()
        status, output = json.loads(process.stdout.readline())
        return status, output

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


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


#: A line of pytest's summary, with the name of the test.
_FAILURES = re.compile(r"^(?:FAILED|ERROR) (\S+?::.+?)(?: - .*)?$", re.MULTILINE)


def killer(output: str) -> str | None:
    """Return the first failing test that pytest names.

    A file that does not load is no test that notices something.
    """
    match = _FAILURES.search(output)
    return match[1] if match else None


def check(mutation: Mutation, tree: Tree) -> tuple[bool, str]:
    """Return whether the mutation was noticed, and by what."""
    path = tree.path / mutation.file
    source = path.read_text()
    try:
        path.write_text(mutation.broken(source))
        status, output = tree.test(shlex.split(mutation.tests))
    except LookupError as error:
        return False, str(error)
    finally:
        path.write_text(source)
    if status is None:
        return mutation.endless, f"no end after {TIMEOUT_S} s"
    if status == 0 or (tree.fast and status == 5):  # 5: no test is quick
        return False, "SURVIVED"
    failed_test = killer(output)
    if status != 1 or failed_test is None:
        return False, f"pytest exit {status}: {mutation.tests}"
    return True, failed_test


def failing_unbroken(tests: Sequence[str], tree: Tree) -> list[str]:
    """Return which of some tests of one file fail with nothing broken."""
    status, output = tree.test(tests, stop=False)
    if status not in (0, 1):
        return list(tests)
    failed = _FAILURES.findall(output)
    return [test for test in tests if test in failed]


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


class Trees:
    """Copies of the working tree, one for every test run at a time."""

    def __init__(self, folder: str, number: int, fast: bool) -> None:
        self._all = [
            Tree(Path(folder, str(name), "main"), fast) for name in range(number)
        ]
        self._free: queue.Queue[Tree] = queue.Queue()
        for tree in self._all:
            self._free.put(tree)
        self.first = self._all[0].path

    def use(self, task: Callable[[Tree], T]) -> T:
        """Call a task with a copy that no other one uses."""
        tree = self._free.get()
        try:
            return task(tree)
        finally:
            self._free.put(tree)

    def close(self) -> None:
        """End the processes of all copies."""
        for tree in self._all:
            tree.close()


def run(mutations: list[Mutation], jobs: int, fast: bool = False) -> int:
    """Run all; return how many survived, or -1 if nothing can be said."""
    with (
        tempfile.TemporaryDirectory(prefix="nest-mutation-") as folder,
        closing(Trees(folder, jobs, fast)) as trees,
        ThreadPoolExecutor(jobs) as pool,
    ):
        if not import_path(trees.first).is_relative_to(trees.first):
            print(f"expected the copy's code, got {import_path(trees.first)}")
            return -1
        survived = 0
        killers: dict[str, set[str]] = {}
        print(f"{'mutation':60} noticed by", flush=True)
        for mutation, (noticed, text) in zip(
            mutations,
            pool.map(lambda m: trees.use(lambda tree: check(m, tree)), mutations),
            strict=True,
        ):
            survived += not noticed
            file, colons, _ = text.partition("::")
            if noticed and colons:
                killers.setdefault(file, set()).add(text)
            print(f"{mutation.what:60} {text}", flush=True)
        # What fails with nothing broken, too, has noticed nothing.
        for failed in pool.map(
            lambda tests: trees.use(lambda tree: failing_unbroken(sorted(tests), tree)),
            killers.values(),
        ):
            for test in failed:
                print(f"fails, or does not end, without a mutation: {test}")
                survived = -1
    return survived


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen mutations."""
    parser = argparse.ArgumentParser(description="break one thing at a time")
    parser.add_argument("start", nargs="*", help="starts of names")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--fast", action="store_true")
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
    survived = run(mutations, options.jobs, options.fast)
    if survived < 0:
        return 1
    print(
        f"{len(mutations) - survived} of {len(mutations)} mutations noticed "
        f"in {time.monotonic() - start:.0f} s"
    )
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
