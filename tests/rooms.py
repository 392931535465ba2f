"""The rooms of the code: what each holds, and on which floor it is.

A room is a package, or a few modules that belong together. It imports from
itself and from rooms on lower floors; every import is checked by
``tests/unit/project/test_imports.py``, also those inside functions.
``python -m tests.rooms`` writes the table into docs/architecture.md.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.rows import rows

ROOT = Path(__file__).parents[1]
PACKAGES = ("nest", "formulations", "baselines")
PAGE = ROOT / "docs" / "architecture.md"

#: Lines of the page between which the rooms stand.
BEGIN, END = "<!-- rooms: begin -->", "<!-- rooms: end -->"


class Room(NamedTuple):
    """A room.

    Attributes
    ----------
    floor
        Its floor, from 0 up.
    name
        What people call it.
    core
        Whether a newcomer has to know it. The others are satellites; below
        floor 9 the core imports none.
    holds
        What is in it, for the page.
    modules
        Modules and packages; by default the package ``nest.`` with its name.
        A module belongs to the longest of these that it is in.
    """

    floor: int
    name: str
    core: bool
    holds: str
    modules: Sequence[str] = ()

    @property
    def prefixes(self) -> Sequence[str]:
        """The modules and packages in it."""
        return self.modules or (f"nest.{self.name}",)

    @property
    def places(self) -> str:
        """Where its files are."""
        paths = []
        for name in self.prefixes:
            path = name.replace(".", "/")
            is_file = (ROOT / f"{path}.py").is_file()
            paths.append(f"`{path}.py`" if is_file else f"`{path}`")
        return ", ".join(paths)


ROOMS = tuple(Room(*values) for values in rows("rooms", "rooms"))


def room_of(module: str) -> Room:
    """Return the room of a module.

    Raises
    ------
    LookupError
        If it is in none.
    """
    matches = [
        (len(prefix), room)
        for room in ROOMS
        for prefix in room.prefixes
        if module == prefix or (prefix != "nest" and module.startswith(f"{prefix}."))
    ]
    if not matches:
        raise LookupError(f"{module}: expected a room in tests/data/rows/rooms.yaml")
    return max(matches, key=lambda match: match[0])[1]


class Import(NamedTuple):
    """A module that another one imports, and whether only in a function."""

    module: str
    lazy: bool


def modules() -> dict[str, Path]:
    """Return the path of every module that is shipped."""
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if parts[-1] == "__init__":
                parts = parts[:-1]
            found[".".join(parts)] = path
    return found


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """Return a file's syntax tree."""
    return ast.parse(path.read_text())


def imports(path: Path, known: dict[str, Path]) -> set[Import]:
    """Return what a module imports, but for the types of annotations."""
    return set(_imports(tree_of(path), known, lazy=False))


def _imports(node: ast.AST, known: dict[str, Path], lazy: bool) -> Iterator[Import]:
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        for child in node.orelse:
            yield from _imports(child, known, lazy)
        return
    names: set[str] = set()
    if isinstance(node, ast.Import):
        names = {alias.name for alias in node.names}
    elif isinstance(node, ast.Call) and "import_module" in ast.dump(node.func):
        names = {x.value for x in node.args if isinstance(x, ast.Constant)}
    elif isinstance(node, ast.ImportFrom) and node.module is not None:
        inner = {f"{node.module}.{alias.name}" for alias in node.names}
        names = (inner & known.keys()) or {node.module}
    yield from (Import(name, lazy) for name in names & known.keys())
    lazy = lazy or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    for child in ast.iter_child_nodes(node):
        yield from _imports(child, known, lazy)


#: What names a module, perhaps with a name in it, in a text.
_MODULE_TEXT = re.compile(r"((?:nest|formulations|baselines)\.[.\w]+)(?::\w+)?")


def named_in_texts(path: Path, known: dict[str, Path]) -> set[str]:
    """Return the modules that a module names in its texts."""
    texts = (
        node.value
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    matches = filter(None, map(_MODULE_TEXT.fullmatch, texts))
    return {match[1] for match in matches} & known.keys()


def section() -> str:
    """Return the table of the page: rooms by floor, with their files."""
    lines = ["| floor | room | holds |", "|---:|---|---|"]
    for room in sorted(ROOMS, key=lambda room: -room.floor):
        name = f"**{room.name}**" if room.core else room.name
        places = "" if not room.modules else f" ({room.places})"
        lines.append(f"| {room.floor} | {name}{places} | {room.holds} |")
    return "\n".join(lines)


def page() -> str:
    """Return the page with the rooms as they are."""
    before, rest = PAGE.read_text().split(f"{BEGIN}\n")
    _, after = rest.split(f"{END}\n")
    return f"{before}{BEGIN}\n{section()}\n{END}\n{after}"


if __name__ == "__main__":
    PAGE.write_text(page())
