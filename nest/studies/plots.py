"""Plots of a study as SVG that fits light and dark pages."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Stands for the color of the text around, which SVG knows by name only.
_TEXT = "#010203"

#: Told apart on white and on black, and by most of those who see few colors
#: (Okabe and Ito 2008, and three between).
_COLOURS = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"),
    *("#8c6bb1", "#a6761d", "#7f7f7f"),
)
_DASHES = ("-", "--", ":", "-.")

_RC = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": _TEXT,
    "axes.edgecolor": _TEXT,
    "axes.labelcolor": _TEXT,
    "xtick.color": _TEXT,
    "ytick.color": _TEXT,
    "grid.color": "#808080",
    "grid.alpha": 0.3,
    "legend.frameon": False,
}

_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


def can_draw() -> bool:
    """Whether matplotlib is there."""
    return find_spec("matplotlib") is not None


def picture(name: str, draw: Callable[[Axes], bool]) -> str | None:
    """Return one plot as SVG; ``None`` if there is nothing to draw.

    The same name and plot give the same text. ``draw`` draws into axes, and says
    whether it drew anything.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({**_RC, "svg.hashsalt": f"nest-{name}"}):
        figure = Figure(figsize=(8, 4.2), layout="constrained")
        figure.patch.set_visible(False)
        axes = figure.add_subplot()
        axes.patch.set_visible(False)
        axes.grid()
        if not draw(axes):
            return None
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata=_NO_METADATA)
    text = buffer.getvalue()
    # What comes before is for files, not for pages.
    return text[text.index("<svg") :].replace(_TEXT, "currentColor")


def styles(solvers: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return how each of several lines or sets of points is drawn."""
    return {
        solver: {
            "color": _COLOURS[i % len(_COLOURS)],
            "linestyle": _DASHES[i // len(_COLOURS) % len(_DASHES)],
            "label": solver,
        }
        for i, solver in enumerate(solvers)
    }
