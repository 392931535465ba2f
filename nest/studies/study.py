"""What a study is, and what it finds."""

from __future__ import annotations

import csv
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple, TypeVar

from nest.benchmarks.instances import Instance, find_set
from nest.errors import NestError
from nest.util.tables import Table

T = TypeVar("T")

#: What a cell of a table holds; ``None`` where there is nothing to say.
Value = str | int | float | None

#: Published inputs and answers of planners, one archive per planner. They are
#: facts under the MIT license, which each archive contains.
ARCHIVES = Path(__file__).with_name("data")


@contextmanager
def published_data(study: Study) -> Iterator[Path]:
    """Provide the folder with the published data that a study needs.

    The archives are unpacked into a folder that is removed at the end.
    """
    with TemporaryDirectory(prefix="nest-audit-") as folder:
        for name in sorted({file.split("/")[0] for file in study.files}):
            with tarfile.open(ARCHIVES / f"{name}.tar.xz") as archive:
                # Releases before Python 3.11.4 have no filters.
                archive.extraction_filter = getattr(tarfile, "data_filter", None)
                archive.extractall(folder)
        yield Path(folder)


class Series(NamedTuple):
    """Points of a plot that belong together."""

    name: str
    points: Sequence[tuple[str | float, float]]


class Plot(NamedTuple):
    """A plot.

    Bars stand side by side over words on the x axis.
    """

    title: str
    x: str
    y: str
    series: Sequence[Series]
    kind: Literal["bars", "lines", "points"] = "lines"
    log: Literal["", "x", "y", "xy"] = ""


class Findings(NamedTuple):
    """The outcome of a study.

    ``answers`` are sentences that answer the question, every figure of them computed.
    """

    answers: Sequence[str]
    tables: Sequence[Table]
    plot: Plot


@dataclass(frozen=True)
class StudySetting:
    """How a study is run.

    ``say`` is called with a text about the next task; ``over`` returns whether the user
    wants to end the study early.
    """

    quick: bool = False
    data: Path = field(default_factory=Path)
    say: Callable[[str], None] = field(default=lambda text: None)
    over: Callable[[], bool] = field(default=lambda: False)

    def each(self, items: Iterable[T]) -> Iterator[T]:
        """Yield items as long as there is time."""
        for item in items:
            if self.over():
                return
            yield item

    def instances(
        self, names: Sequence[str], quick_names: Sequence[str]
    ) -> Iterator[Instance]:
        """Yield the instances of these names as long as there is time."""
        chosen = quick_names if self.quick else names
        return self.each(find_set(chosen))


@dataclass(frozen=True, kw_only=True)
class Study:
    """A question, and how it is answered."""

    #: Keyword on the command line.
    name: str
    question: str
    method: str
    #: The part that a quick run covers.
    quick: str
    limits: tuple[str, ...]
    run: Callable[[StudySetting], Findings]
    #: Published data that the study needs, as paths in the data folder.
    files: tuple[str, ...] = ()

    def check(self, setting: StudySetting) -> None:
        """Refuse to begin without the published data.

        Raises ``NestError`` if a file or folder is missing.
        """
        for name in self.files:
            path = setting.data / name
            if not path.exists():
                raise NestError(
                    f"{path}: expected published data for audit {self.name!r} "
                    f"({', '.join(self.files)}), got nothing there; without --data the "
                    f"archive of the package is used, docs/audits.md has its origin"
                )


def read_rows(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Return the rows of a CSV file that has at least these columns.

    Raises ``NestError`` if it cannot be read, or lacks one.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            rows = list(reader)
            names = reader.fieldnames or ()
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise NestError(
            f"{path}: expected a CSV file, got {error}; get it anew"
        ) from None
    missing = [name for name in columns if name not in names]
    if missing:
        raise NestError(
            f"{path}: expected the columns {', '.join(columns)}, got none "
            f"called {missing[0]!r}; get it anew"
        )
    for line, row in enumerate(rows, 2):
        if None in row or None in row.values():
            raise NestError(
                f"{path}: line {line}: expected {len(names)} cells, got "
                f"another number; get it anew"
            )
    return rows


def number(text: str, where: str) -> float | None:
    """Return the number of a cell, ``None`` if it is empty.

    Raises ``NestError`` if it is something else.
    """
    try:
        return float(text) if text else None
    except ValueError:
        raise NestError(
            f"{where}: expected a number, got {text!r}; get the file anew"
        ) from None
