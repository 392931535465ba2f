"""The files beside the user's file that it imports."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path


def hashes_of_imports(path: Path) -> dict[str, str]:
    """Return the sha256 of every file that a Python file imports from its folder.

    Nothing runs: imports are read from the code. Those by a name that the code computes
    are not seen.

    Returns
    -------
    dict
        By path from the folder, in order.
    """
    path = path.resolve()
    hashes: dict[str, str] = {}
    pending = [path]
    while pending:
        file = pending.pop()
        code = file.read_bytes()
        name = file.relative_to(path.parent).as_posix()
        if name not in hashes:
            hashes[name] = hashlib.sha256(code).hexdigest()
            pending += _imported(file, code, path.parent)
    del hashes[path.name]
    return dict(sorted(hashes.items()))


def _imported(file: Path, code: bytes, folder: Path) -> Iterator[Path]:
    """Yield the files in a folder, or below, that the code of a file imports."""
    try:
        nodes = [*ast.walk(ast.parse(code))]
    except (SyntaxError, ValueError, RecursionError):
        return
    package = file.relative_to(folder).as_posix().split("/")[:-1]
    for node in nodes:
        names: list[tuple[str, ...]] = []
        match node:
            case ast.Import():
                names = [tuple(x.name.split(".")) for x in node.names]
            case ast.ImportFrom():
                around = package[: len(package) + 1 - node.level] if node.level else []
                inside = node.module.split(".") if node.module else []
                names = [(*around, *inside, x.name) for x in node.names]
        for segments in names:
            for end in range(1, len(segments) + 1):
                module = folder.joinpath(*segments[:end])
                candidates = (
                    module.with_name(f"{module.name}.py"),
                    module / "__init__.py",
                )
                yield from (x for x in candidates if x.is_file())
