"""Texts from elsewhere: numbers in them, and what is shown of them."""

from __future__ import annotations

import io

import pytest
from rich.table import Table
from rich.text import Text

from nest.errors import NestError
from nest.models.zoo import ARCHITECTURES
from nest.present.table import show
from nest.util.text import clipped, closest, nearby, printable, whole_number
from tests.rows import rows

MODELS = tuple(model.name for model in ARCHITECTURES)

#: ESC, BEL, a C1 control that begins a sequence, DEL, a carriage return, an
#: override of direction, the separator of paragraphs, half a character.
HOSTILE = "a\x1b[2J\x07\x9b1m\x7f\r\u202e\u2029\udcffz"
HARMLESS = r"a\x1b[2J\x07\x9b1m\x7f\r\u202e\u2029\udcffz"


def test_control_characters_are_written_out() -> None:
    assert printable(HOSTILE) == HARMLESS
    assert printable("τ × 30 % …\n\tß") == "τ × 30 % …\n\tß"


@pytest.mark.parametrize("is_terminal", [False, True])
def test_tables_and_lines_show_no_control_characters(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    file = io.StringIO()
    file.isatty = lambda: is_terminal  # type: ignore[method-assign]
    name = HOSTILE.replace("\u2029", "")  # rich ends a line there
    table = Table(name, "b")
    table.add_row(Text(name), name)
    show(file, name, Text(name), table)
    # Styles of the table's own are no colors.
    said = file.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "")
    # rich drops some of them itself.
    wanted = HARMLESS
    for dropped in (r"\x07", r"\r", r"\u2029"):
        wanted = wanted.replace(dropped, "")
    assert said.count(wanted) == 5
    assert said.replace("\n", "").isprintable()


def test_names_in_brackets_are_no_markup() -> None:
    file = io.StringIO()
    table = Table("[bold]x[/bold]")
    table.add_row("[/no] :smile:")
    show(file, "[/nothing] [red]", table)
    said = file.getvalue()
    for text in ("[/nothing] [red]", "[bold]x[/bold]", "[/no] :smile:"):
        assert text in said


def test_long_numbers_and_words_are_cut_short() -> None:
    assert clipped("9" * 40) == "9" * 40
    assert clipped(f"got {'9' * 400}; x") == "got 999999999999… (400 digits); x"
    word = clipped(f"got {'x' * 10**6}; y")
    assert word.startswith("got xxx")
    assert "… (1000001 characters) …" in word
    assert len(word) < 300
    many = clipped("a b " * 10**5)
    assert len(many) < 10_100


def test_errors_are_one_line() -> None:
    """However many ends of lines there are in a name."""
    assert str(NestError("x: got 'a \r\n\n b\x85\u2028c'; end")) == (
        "x: got 'a b c'; end"
    )


def test_errors_are_cut_short_however_they_are_made() -> None:
    text = str(NestError(f"x: expected 1, got {'7' * 5000}; correct it"))
    assert text == "x: expected 1, got 777777777777… (5000 digits); correct it"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("007", 7),
        ("9" * 19, 10**19 - 1),
        ("9" * 20, None),
        ("9" * 5000, None),
        ("-1", None),
        ("", None),
        ("²", None),
        ("٣", None),
        ("1.0", None),
    ],
)
def test_whole_numbers(text: str, number: int | None) -> None:
    assert whole_number(text) == number


@pytest.mark.parametrize(("wrong", "meant"), rows("texts", "meant"))
def test_models_that_were_meant(wrong: str, meant: str | None) -> None:
    assert closest(wrong, MODELS) == meant


@pytest.mark.parametrize("name", MODELS)
def test_a_wrong_letter_leaves_the_family(name: str) -> None:
    """One letter left out, doubled, or swapped with the next one."""
    for i, letter in enumerate(name):
        front, back = name[:i], name[i + 1 :]
        for wrong in (
            front + back,
            front + 2 * letter + back,
            front + back[:1] + letter + back[1:],
        ):
            found = closest(wrong, MODELS)
            assert found is not None, wrong
            assert found[:2] == name[:2], wrong


def test_names_of_the_same_size_are_not_listed_first() -> None:
    names = ["gemma-7b", "mamba-3b", "opt-7b", "x"]
    assert nearby("mamba-7b", names, 2) == "mamba-3b, gemma-7b"
    assert nearby("mamba-7b", ["opt-7b", "gemma-7b"], 1) == "opt-7b"
