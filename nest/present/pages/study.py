"""The files of a study: Markdown, JSON, and its plot."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from nest.studies.plots import can_draw, picture, styles
from nest.studies.study import Findings, Plot, Study
from nest.util.tables import to_markdown as table_markdown
from nest.util.versions import DISTRIBUTION, provenance

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Files of a study.
PAGE, DOCUMENT, PICTURE = "audit.md", "audit.json", "plot.svg"


def files(study: Study, findings: Findings, quick: bool) -> dict[str, str]:
    """Return the files of a study by name.

    Without matplotlib there is no plot, and the page says so.
    """
    drawn = draw(study.name, findings.plot) if can_draw() else None
    texts = {
        PAGE: to_markdown(study, findings, quick, plot=drawn is not None),
        DOCUMENT: to_json(study, findings, quick),
    }
    if drawn is not None:
        texts[PICTURE] = drawn + "\n"
    return texts


# Markdown


def to_markdown(
    study: Study, findings: Findings, quick: bool, plot: bool | None = None
) -> str:
    """Return a page; ``plot`` is whether the plot lies beside it.

    ``None`` says that nothing does.
    """
    blocks = [f"# Audit: {study.name}", f"**Question.** {study.question}"]
    blocks.append(f"**Method.** {study.method}")
    if quick:
        blocks.append(f"**Quick run.** {study.quick}")
    blocks += ["## Findings", _items(findings.answers)]
    for table in findings.tables:
        blocks += [f"### {table.title}", table.text]
        blocks.append(table_markdown(table))
    if plot:
        blocks.append(f"![{findings.plot.title}]({PICTURE})")
    elif plot is not None:
        blocks.append(f"The plot needs matplotlib: pip install '{DISTRIBUTION}[plot]'.")
    blocks += ["## Limits", _items(study.limits)]
    return "\n\n".join(blocks) + "\n"


def _items(texts: Any) -> str:
    return "\n".join(f"- {text}" for text in texts)


# JSON


def to_json(study: Study, findings: Findings, quick: bool) -> str:
    """Return the ``nest-audit/1`` document, as a file has it."""
    document = {
        "schema": "nest-audit/1",
        "audit": study.name,
        "quick": quick,
        "question": study.question,
        "method": study.method,
        "limits": list(study.limits),
        "findings": list(findings.answers),
        "tables": {table.key: table.records() for table in findings.tables},
        "plot": {
            "title": findings.plot.title,
            "x": findings.plot.x,
            "y": findings.plot.y,
            "series": {
                series.name: [list(point) for point in series.points]
                for series in findings.plot.series
            },
        },
        **provenance(),
    }
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


# The plot


def draw(name: str, plot: Plot) -> str | None:
    """Return a plot as SVG; ``None`` if there is nothing to show."""

    def drawn(axes: Axes) -> bool:
        axes.set_title(plot.title)
        axes.set_xlabel(plot.x)
        axes.set_ylabel(plot.y)
        series = [item for item in plot.series if item.points]
        if not series:
            return False
        # Before bars, whose lower ends they move.
        for letter, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
            if letter in plot.log:
                axes.set(**{f"{letter}scale": "log"})
                axis.set_major_formatter("{x:g}")
                axis.set_minor_formatter("{x:g}")
        look = styles(item.name for item in series)
        if plot.kind == "bars":
            _bars(axes, plot, look)
        for item in series if plot.kind != "bars" else ():
            style = dict(look[item.name])
            if plot.kind == "points":
                style["linestyle"] = "none"
            axes.plot(*zip(*item.points, strict=True), marker="o", **style)
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
        return True

    return picture(f"audit-{name}", drawn)


def _bars(axes: Axes, plot: Plot, look: dict[str, dict[str, Any]]) -> None:
    labels = list(dict.fromkeys(x for s in plot.series for x, _ in s.points))
    width = 0.8 / len(look)
    for index, (name, style) in enumerate(look.items()):
        points = dict(next(s.points for s in plot.series if s.name == name))
        shift = (index - (len(look) - 1) / 2) * width
        axes.bar(
            [i + shift for i, word in enumerate(labels) if word in points],
            [points[word] for word in labels if word in points],
            width,
            color=style["color"],
            label=name,
        )
    axes.set_xticks(range(len(labels)), [str(x) for x in labels])
    for label in axes.get_xticklabels():
        label.set(rotation=40, horizontalalignment="right", fontsize=7)
