"""What to cite: this project, and the papers of planners.

Title, authors, date and license of the project are those of CITATION.cff,
which a test compares. Papers are those that the modules of ``baselines`` name.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from nest.errors import UnknownNameError
from nest.util.stored import read_stored
from nest.util.versions import nest_version

#: Of lines of BibTeX, which a terminal may show.
_COLUMNS = 79


@dataclass(frozen=True)
class Publication:
    """A paper or a program to cite."""

    #: Of its BibTeX entry.
    key: str
    kind: str
    #: Family name and given names, joined by a comma; a group has no comma. ``others``
    #: stands for those that are left out.
    authors: tuple[str, ...]
    #: As published.
    title: str
    year: int
    #: Further fields of the entry, in their order.
    more: tuple[tuple[str, str], ...] = ()

    def text(self) -> str:
        """Return it as one line for people."""
        names = [
            "et al." if name == "others" else name.partition(",")[0]
            for name in self.authors
        ]
        who = ", ".join(names).replace(", et al.", " et al.")
        sentences = [f"{who} ({self.year}). {self.title}"]
        sentences += [
            f"{name} {value}" if name == "version" else value
            for name, value in self.more
            if name not in ("month", "eprinttype")
        ]
        return ". ".join(sentences) + "."

    def bibtex(self) -> str:
        """Return it as an entry of BibTeX."""
        authors = [x if "," in x or x == "others" else f"{{{x}}}" for x in self.authors]
        fields = [
            ("author", " and ".join(authors)),
            # Braces keep the capitals.
            ("title", f"{{{self.title}}}"),
            ("year", str(self.year)),
            *self.more,
        ]
        width = max(len(name) for name, _ in fields)
        indent = " " * (width + 6)
        lines = [
            line
            for name, text in fields
            for line in textwrap.wrap(
                f"  {name:<{width}} = {{{text}}},",
                _COLUMNS,
                subsequent_indent=indent,
                break_long_words=False,
                break_on_hyphens=False,
            )
        ]
        return "\n".join((f"@{self.kind}{{{self.key},", *lines, "}"))


#: When the version in CITATION.cff was released.
RELEASED = "2026-11-29"


def project() -> Publication:
    """Return this project, as it is installed."""
    return Publication(
        "nest",
        "software",
        ("The nest developers",),
        "nest: a comparison framework for planners of large training runs",
        int(RELEASED.partition("-")[0]),
        (("version", nest_version()), ("license", "MIT")),
    )


@cache
def papers() -> dict[str, Publication]:
    """Return the papers of re-implemented planners, by keyword."""
    return read_stored("nest.util", "papers", dict[str, Publication])


def works(solvers: Sequence[str] = ()) -> list[Publication]:
    """Return the project, and the papers of solvers.

    Raises ``UnknownNameError`` if a solver has no paper here.
    """
    by_keyword = papers()
    for name in solvers:
        if name not in by_keyword:
            raise UnknownNameError("planner with a paper", name, by_keyword)
    return [project(), *(by_keyword[name] for name in dict.fromkeys(solvers))]
