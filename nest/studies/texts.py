"""The words of a study: its question, method and limits, and its tables.

They lie in ``data/<name>.toml``. Lines of a text are joined; names in braces
stand for values that the study gives.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import NamedTuple

import msgspec

from nest.studies.study import Findings, Study, StudySetting, Value
from nest.util.tables import Column, Table


class ColumnText(NamedTuple):
    """The key of a column, its heading, and the format of its numbers."""

    key: str
    name: str
    form: str = ""


class TableText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table without its rows.

    ``text`` is what a reader must know to read it; there are no columns if rows decide
    them.
    """

    title: str
    text: str
    columns: tuple[ColumnText, ...] = ()


class StudyTexts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of texts; see :class:`Study` for all but ``tables``.

    Paragraphs of ``limits`` are limits of their own.
    """

    question: str
    method: str
    quick: str
    limits: str
    tables: dict[str, TableText]
    files: tuple[str, ...] = ()

    def study(
        self, name: str, run: Callable[[StudySetting], Findings], **values: str
    ) -> Study:
        """Return the study of that name that ``run`` answers."""
        limits = self.limits.format(**values).split("\n\n")
        return Study(
            name=name,
            question=_filled(self.question, values),
            method=_filled(self.method, values),
            quick=_filled(self.quick, values),
            limits=tuple(map(_joined, limits)),
            run=run,
            files=self.files,
        )

    def table(
        self,
        key: str,
        rows: Sequence[Sequence[Value]],
        columns: Sequence[Column] = (),
        **values: str | float,
    ) -> Table:
        """Return a table with these rows, and the columns of its text."""
        text = self.tables[key]
        return Table(
            columns or [Column(*each) for each in text.columns],
            rows,
            text.title,
            _filled(text.text, values),
            key,
        )


def _joined(text: str) -> str:
    return " ".join(text.split())


def _filled(text: str, values: dict[str, str] | dict[str, str | float]) -> str:
    return _joined(text).format(**values)


def read_texts(name: str) -> StudyTexts:
    """Return the texts in ``data/<name>.toml``, checked."""
    path = files("nest.studies") / "data" / f"{name}.toml"
    stored = tomllib.loads(path.read_text(encoding="utf-8"))
    return msgspec.convert(stored, StudyTexts)
