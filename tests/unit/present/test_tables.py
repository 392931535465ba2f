"""Every table of the command line at 80, 100 and 160 columns."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.cells import cell_len

import nest
from nest.present import table
from tests.tables import FOLDER, TABLES, WIDTHS, made, on_terminal, snapshot


@pytest.mark.parametrize("name", TABLES)
def test_how_tables_look(name: str) -> None:
    """As stored; ``python -m tests.tables`` stores what they look like."""
    parts = made(name)
    assert snapshot(parts) == (FOLDER / f"{name}.txt").read_text()
    for width in WIDTHS:
        assert max(map(cell_len, on_terminal(width, parts))) <= width


def calls() -> Iterator[tuple[str, str]]:
    """Yield where the code makes tables: file and function."""
    root = Path(nest.__file__).parent
    for path in root.rglob("*.py"):
        text = path.read_text()
        if "terminal_table(" not in text:
            continue
        for function in ast.walk(ast.parse(text)):
            if isinstance(function, ast.FunctionDef) and any(
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "terminal_table"
                for node in ast.walk(function)
            ):
                yield str(path.relative_to(root)), function.name


def test_every_table_is_among_them() -> None:
    """No function makes a table that no snapshot shows."""
    root = Path(nest.__file__).parent
    found = set()
    original = table.terminal_table

    def noting(*arguments, **settings):
        code = sys._getframe(1).f_code
        path = Path(code.co_filename).relative_to(root)
        found.add((str(path), code.co_name))
        return original(*arguments, **settings)

    users = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("nest.")
        and getattr(module, "terminal_table", None) is original
    ]
    with pytest.MonkeyPatch.context() as patches:
        for module in users:
            patches.setattr(module, "terminal_table", noting)
        for name in TABLES:
            made(name)
    assert found == set(calls())


def test_notes_say_what_is_left_out() -> None:
    lines = on_terminal(80, made("score-interleaved"))
    note = " ".join(lines).partition("not shown for want of width: ")[2]
    assert note.startswith("forward, sync; --verbose shows all")
