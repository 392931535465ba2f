"""Every label of a screen and every word of a table's heading is explained."""

from __future__ import annotations

import re
from pathlib import Path
from unittest.mock import patch

from nest.present.comparison import HEADINGS
from nest.present.screen import LABELS
from nest.util import tables
from nest.util.plots import MEMORY_LABELS
from tests.tables import TABLES, made

PAGE = Path(__file__).parents[3] / "docs" / "glossary.md"

#: Words that mean what they mean in any text, units, and names of solvers,
#: models and parameters.
_PLAIN_TEXT = """
a about algorithm all as because bert by bytes check classes compared constants
cpsat cut description failed find for formula gb gib gpt groups if in installed
instances is its kept large line mb meaning mhz mib mm more most ms not note ns
num of only p pair parameter per preferred problems reason rows s says seconds
skipped solved source that the then three times to together used value w what
when with x
"""
PLAIN = set(_PLAIN_TEXT.split())


#: Labels of the screens of ``nest fits``.
FITS_LABELS = ("problem", "smallest change", "why")


def entries() -> list[str]:
    return re.findall(r"^\| (.+?) \|", PAGE.read_text(), re.MULTILINE)


def words(text: str) -> set[str]:
    return set(re.findall(r"[a-z$%]+", text.lower()))


def test_every_label_is_an_entry_of_the_glossary() -> None:
    """A part of a word or of a term does not explain it."""
    labels = {*LABELS, *HEADINGS, *FITS_LABELS, *MEMORY_LABELS.values()}
    terms = {term.strip() for row in entries() for term in re.split("[,()]", row)}
    assert not labels - terms


def test_every_word_of_a_heading_is_in_the_glossary() -> None:
    headings: set[str] = set()
    original = tables.Table.__init__

    def noting(table: tables.Table, *values: object, **fields: object) -> None:
        original(table, *values, **fields)  # type: ignore[arg-type]
        headings.update(column.heading for column in table.columns)

    with patch.object(tables.Table, "__init__", noting):
        for name in TABLES:
            made(name)
    explained = set().union(*map(words, entries())) | PLAIN
    unknown = {
        heading: left
        for heading in sorted(headings)
        if (left := words(heading) - explained)
    }
    assert not unknown
