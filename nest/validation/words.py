"""Which words of a row are not understood.

Interconnect, overlap, software and attention are free text: what a row's
words do not say is taken from its device and its software. Words that no
rule reads may have been meant to say something, so they are told.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from contextlib import suppress

from nest.errors import InvalidOptionError, UnknownNameError
from nest.hardware.describe import reads
from nest.validation.negation import says
from nest.validation.rows import Row
from nest.validation.settings import (
    FLASH,
    UNFUSED,
    denied_overlap,
    machine_of,
    schedule_of,
)
from nest.validation.software import (
    COMPILED,
    dispatches_once,
    free_text,
    meant_software,
    software_of,
)

#: Words that the rules for a column read, in any case; a text with none of
#: them says nothing. An interconnect has rules of its own.
_READ = {
    "overlap": r"^none|gradient and parameter overlap off|all-to-all\b.*\b"
    r"overlap|\bschedule ",
    "attention_impl": rf"{UNFUSED}|{FLASH}|rms",
}

#: The most characters of an example.
_MOST = 60

#: Texts that say that nothing is stated.
_NOTHING = r"\s*(not (stated|known)\b.*|unknown|n/a|-)?\s*"


def not_understood(row: Row) -> dict[str, str]:
    """Return texts of a row that no rule reads, by column."""
    texts = {}
    software = software_of(row)
    if row.framework and not software.is_known:
        texts["framework"] = row.framework
    if software.kind == "eager" and says(COMPILED, free_text(row)):
        column = "framework" if says(COMPILED, row.framework or "") else "notes"
        texts[column] = getattr(row, column) or ""
    if row.dispatcher and dispatches_once(row.dispatcher) is None:
        texts["dispatcher"] = row.dispatcher
    for column, pattern in _READ.items():
        text = getattr(row, column)
        if text and not re.search(pattern, text, re.IGNORECASE):
            texts[column] = text
    if denied_overlap(row.overlap or ""):
        texts.pop("overlap", None)
    if row.overlap and "overlap" not in texts and schedule_of(row) is None:
        texts["overlap"] = row.overlap
    if row.interconnect and not reads(row.interconnect, row.hardware or ""):
        texts["interconnect"] = row.interconnect
    return {
        column: text
        for column, text in texts.items()
        if not re.fullmatch(_NOTHING, text, re.IGNORECASE)
    }


def words_lines(rows: Iterable[Row]) -> list[str]:
    """Return what is not understood: a line per column, with an example."""
    by_column: dict[str, list[tuple[Row, str]]] = {}
    for row in rows:
        for column, text in not_understood(row).items():
            by_column.setdefault(column, []).append((row, text))
    return [
        f"{column} of {len(texts)} row{'s' * (len(texts) > 1)} not "
        f"understood, so as the device and the software have it: "
        f"{_beginning(texts[0][1])!r} (line {texts[0][0].line})"
        + _question(column, *texts[0])
        for column, texts in sorted(by_column.items())
    ]


def _question(column: str, row: Row, text: str) -> str:
    """Return which software may be meant, or what a network is taken for."""
    question = ""
    if column == "framework":
        question = meant_software(text)
    elif column == "interconnect":
        with suppress(UnknownNameError, InvalidOptionError):
            rate = 8 * machine_of(row).network.bandwidth_bytes_per_s / 1e9
            question = f"taken as {rate:g} Gb/s per device"
    return f", {question}" if question else ""


def _beginning(text: str) -> str:
    """Return the first words of a long text, with a mark that more follow."""
    short = textwrap.shorten(text, _MOST, placeholder=" …", break_on_hyphens=False)
    return short if len(short) > len("…") else f"{text[: _MOST - 1]}…"
