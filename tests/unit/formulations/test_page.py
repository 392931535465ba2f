"""The equations of formulations/README.md: their order, and references."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "formulations"
DEVICE_ORDERS = Path(__file__).parents[3] / "bench" / "best_order.py"
PAGE = (FOLDER / "README.md").read_text()

#: The models of the page by the letter of their equations, with the last one.
LAST = {"P": 9, "L": 23, "O": 3, "S": 7}

#: A reference such as ``(L13)`` or ``(L13')``.
_REFERENCE = re.compile(r"\(([PLOS])(\d+)'?\)")


@pytest.mark.parametrize("letter", LAST)
def test_equations_are_numbered_in_order(letter: str) -> None:
    blocks = re.findall(r"```math\n(.*?)```", PAGE, re.DOTALL)
    (model,) = [
        block for block in blocks if re.search(rf"& \\text{{\({letter}[12]\)}}", block)
    ]
    numbers = [int(n) for n in re.findall(rf"\({letter}(\d+)\)", model)]
    assert numbers == sorted(numbers)
    assert {*numbers} == {*range(numbers[0], numbers[-1] + 1)}
    assert numbers[0] == 1


def test_the_code_names_equations_of_the_page() -> None:
    named = {
        (path.name, letter, int(number))
        for path in (*FOLDER.rglob("*.py"), DEVICE_ORDERS)
        for letter, number in _REFERENCE.findall(path.read_text())
    }
    assert {letter for _, letter, _ in named} == {*LAST}
    assert [
        reference
        for reference in sorted(named)
        if not 1 <= reference[2] <= LAST[reference[1]]
    ] == []
    for letter, last in LAST.items():
        for number in range(1, last + 1):
            name = rf"\b{letter}{number}\b"
            assert re.search(name, PAGE), f"{letter}{number} is on no line"
