"""The package of the user's file, and the files that it imports."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path


def module_of(path: Path) -> tuple[Path, str]:
    """Return the folder that Python imports a file from, and its dotted name there.

    It is the file's folder, or that above the outermost package that the file is in,
    as files ``__init__.py`` have it.
    """
    path = path.resolve()
    folder, name = path.parent, path.stem
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        folder, name = folder.parent, f"{folder.name}.{name}"
    return folder, name


def hashes_of_imports(path: Path) -> dict[str, str]:
    """Return the sha256 of every file that a Python file imports from its folder.

    Of a file in a package that is the folder above the package. Nothing runs: imports
    are read from the code. Those by a name that the code computes are not seen.

    Returns
    -------
    dict
        By path from that folder, see :func:`module_of`, in order.
    """
    path = path.resolve()
    folder, module = module_of(path)
    packages = module.split(".")[:-1]
    hashes: dict[str, str] = {}
    pending = [path, *_files_of(folder, packages)]
    while pending:
        file = pending.pop()
        code = file.read_bytes()
        name = file.relative_to(folder).as_posix()
        if name not in hashes:
            hashes[name] = hashlib.sha256(code).hexdigest()
            for segments in _imported(file, code, folder):
                pending += _files_of(folder, segments)
                if packages:  # The file's own folder is searched, too.
                    pending += _files_of(path.parent, segments)
    del hashes[path.relative_to(folder).as_posix()]
    return dict(sorted(hashes.items()))


def _files_of(folder: Path, segments: Sequence[str]) -> Iterator[Path]:
    """Yield the files in a folder that an import of a dotted name runs."""
    for end in range(1, len(segments) + 1):
        module = folder.joinpath(*segments[:end])
        candidates = (module.with_name(f"{module.name}.py"), module / "__init__.py")
        yield from (x for x in candidates if x.is_file())


def _imported(file: Path, code: bytes, folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield the dotted names that the code of a file below a folder imports."""
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
        yield from names
