"""Tables that fit: nothing is cut, what is left out is named."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Text

from nest.present.fitted import FittedTable, fit, wrap
from nest.present.table import key_lines, show, terminal_table
from nest.present.verbosity import VERBOSE
from nest.util import terminal
from nest.util.tables import Column, Table
from nest.util.terminal import columns_of


class Terminal(io.StringIO):
    """A terminal of as many columns as COLUMNS says."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch):
    """Return what shows parts on a terminal of a width, as lines."""

    def lines(width: int, *parts: object) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("NO_COLOR", "1")
        file = Terminal()
        show(file, *parts)  # type: ignore[arg-type]
        return file.getvalue().splitlines()

    return lines


#: Natural widths 6, 9, 20, 5; with gaps of three 49 cells, of two 46.
COLUMNS = (
    Column("name"),
    Column("step time", rank=1, right=True),
    Column("strategy", rank=2, min_width=9),
    Column("gap %", rank=3, right=True),
)
ROW = ("solver", "1.25000 s", "dp4·tp2·zero1·single", "50.00")


def test_what_goes_first_is_as_the_columns_say(shown) -> None:
    """Widths in cells: 6+9+20+5 and three gaps; then 9 for strategy; …"""
    table = terminal_table(Table(COLUMNS, [ROW]))
    note = "not shown for want of width: "
    assert shown(49, table) == [
        "name     step time   strategy               gap %",
        "─" * 49,
        "solver   1.25000 s   dp4·tp2·zero1·single   50.00",
    ]
    assert shown(46, table)[2] == ("solver  1.25000 s  dp4·tp2·zero1·single  50.00")
    # Texts wrap after a joint before a column goes: 6+9+9+5+6.
    assert shown(35, table) == [
        "name    step time  strategy   gap %",
        "─" * 35,
        "solver  1.25000 s  dp4·tp2·   50.00",
        "                   zero1·",
        "                   single",
    ]
    assert shown(34, table)[0] == "name    step time  strategy"
    assert " ".join(shown(34, table)[-2:]) == (f"{note}gap %; --verbose shows all")
    assert shown(27, table)[2] == "solver   1.25000 s"
    assert shown(10, table)[2] == "solver"


def test_rows_of_a_table_that_cannot_fit_are_records(shown) -> None:
    columns = [Column("name"), Column("plan")]
    rows = [("first", "x" * 20), ("second", "y" * 20)]
    assert shown(20, terminal_table(Table(columns, rows))) == [
        "name  first",
        "plan  " + "x" * 10,
        "      " + "x" * 10,
        "",
        "name  second",
        "plan  " + "y" * 10,
        "      " + "y" * 10,
    ]


def test_everything_is_shown_if_asked_for(shown) -> None:
    token = VERBOSE.set(True)
    try:
        lines = shown(34, terminal_table(Table(COLUMNS, [ROW])))
    finally:
        VERBOSE.reset(token)
    assert lines == [
        "name       solver",
        "step time  1.25000 s",
        "strategy   dp4·tp2·zero1·single",
        "gap %      50.00",
    ]


def test_columns_without_texts_go_without_a_word(shown) -> None:
    """7+5 cells and one gap fit into 16; the empty column would not."""
    columns = [Column("status"), Column("claimed", rank=5), Column("gap %")]
    table = terminal_table(Table(columns, [("optimal", "", "50.00")]))
    assert shown(16, table) == ["status    gap %", "─" * 15, "optimal   50.00"]


def test_headers_wrap_before_a_column_goes(shown) -> None:
    columns = [Column("name"), Column("own objective", right=True)]
    assert shown(17, terminal_table(Table(columns, [("dp", "3 s")]))) == [
        "              own",
        "name    objective",
        "─" * 17,
        "dp            3 s",
    ]


def test_lines_end_at_words_then_joints_then_in_equal_parts() -> None:
    assert wrap("too much memory", 8) == ["too much", "memory"]
    assert wrap("dp4·tp2·recompute-selective", 12) == [
        "dp4·tp2·",
        "recompute-",
        "selective",
    ]
    # Thirteen letters into twelve cells: not twelve and one.
    assert wrap("abcdefghijklm", 12) == ["abcdefg", "hijklm"]
    assert wrap("层层层", 4) == ["层层", "层"]
    assert wrap("", 4) == [""]


def test_labelled_texts_hang(shown) -> None:
    rows = [("plan", "one replica of eight stages"), ("gap", "0 %")]
    assert shown(30, key_lines(rows)) == [
        "plan  one replica of eight",
        "      stages",
        "gap   0 %",
    ]


def test_texts_that_may_not_be_broken_are_not(shown) -> None:
    text = "ARGS=(--tensor-model-parallel-size 8)"
    assert shown(20, Text(text, no_wrap=True)) == [text]
    assert shown(20, "only [bold] plans under --pin") == [
        "only [bold] plans",
        "under --pin",
    ]


def test_width_of_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "USUAL_COLUMNS", 80)
    monkeypatch.setenv("COLUMNS", "33")
    assert columns_of(io.StringIO()) == 33
    for text in ("0", "wide", "", "-5", "²", "1e2", "100001", "9" * 5000):
        monkeypatch.setenv("COLUMNS", text)
        assert columns_of(io.StringIO()) == 80


def test_width_of_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """What COLUMNS says, else 80 columns."""
    table = terminal_table(
        Table(
            (Column("solver"), Column("note", rank=1, min_width=20)),
            [("dp", " ".join(["word"] * 30))],
        )
    )
    monkeypatch.setattr(terminal, "USUAL_COLUMNS", 80)
    # dp, three blanks, and thirty words with a blank between two.
    natural = 2 + 4 + 3 + 30 * 5 - 1
    for text, width in (
        *(("40", 40), ("007", 7), ("0", 80), ("wide", 80)),
        ("200", natural),
    ):
        monkeypatch.setenv("COLUMNS", text)
        file = io.StringIO()
        show(file, table)
        widest = max(map(len, file.getvalue().splitlines()))
        assert widest == natural if width == natural else widest <= width


def test_narrow_pipes_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1")
    file = io.StringIO()
    show(file, terminal_table(Table(COLUMNS, [ROW])), "a note", key_lines([("a", "b")]))
    assert "".join(file.getvalue().split()).endswith("anoteab")


def test_no_colour_means_no_style_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    table = terminal_table(Table((Column("a", style=lambda _: "green"),), [("x",)]))
    for value, styled in (("1", False), ("", True)):
        monkeypatch.setenv("NO_COLOR", value)
        monkeypatch.setenv("TERM", "xterm-256color")
        file = Terminal()
        show(file, table, Text("dim", style="dim"))
        assert ("\x1b" in file.getvalue()) == styled


words = st.text(st.sampled_from("ab ·-,9层"), max_size=30)


@st.composite
def tables(draw: st.DrawFn) -> FittedTable:
    count = draw(st.integers(1, 6))
    columns = [
        Column(
            draw(st.sampled_from(["solver", "own objective", "%"])),
            rank=0 if number == 0 else draw(st.integers(0, 4)),
            min_width=draw(st.one_of(st.none(), st.integers(8, 12))),
            right=draw(st.booleans()),
        )
        for number in range(count)
    ]
    rows = draw(st.lists(st.lists(words, min_size=count, max_size=count), min_size=1))
    return FittedTable(Table(columns, rows))


@given(tables(), st.integers(20, 120))
def test_no_line_is_too_long_and_no_column_too_narrow(table, width) -> None:
    """Whatever the table is; letters of what is shown are all there."""
    natural = [
        max(cell_len(row[n]) for row in table.table.rows)
        for n in range(len(table.columns))
    ]
    widths = fit(table.columns, natural, width)
    if widths is None:
        return
    for number, cells in widths.items():
        column = table.columns[number]
        words_of = max(map(cell_len, column.heading.split()))
        texts = min(natural[number], column.min_width or natural[number])
        assert cells >= max(words_of, texts)
    assert all(
        table.columns[n].rank or not natural[n]
        for n in range(len(natural))
        if n not in widths
    )
    file = Terminal()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(width))
        patch.setenv("NO_COLOR", "1")
        show(file, table)
    lines = file.getvalue().splitlines()
    assert max(map(cell_len, lines)) <= width
    shown_letters = sorted("".join(lines).replace(" ", ""))
    for row in table.table.rows:
        for number in widths:
            for letter in set(row[number]) - {" "}:
                assert letter in shown_letters
