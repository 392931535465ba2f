"""Plots of a report as SVG that fits light and dark pages."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Stands for the colour of the text around, which SVG knows by name only.
_TEXT = "#010203"

#: Told apart on white and on black, and by most of those who see few colours
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

Draw = Callable[["Axes", dict[str, Any]], bool]


def draw_all(document: dict[str, Any]) -> dict[str, str] | None:
    """Return the plots of a report by name; ``None`` without matplotlib.

    The same document gives the same text. A plot of nothing is left out.
    """
    if not can_draw():
        return None
    found = {}
    for name, draw in _PLOTS.items():

        def drawn(axes: Axes, draw: Draw = draw) -> bool:
            return draw(axes, document)

        text = picture(name, drawn)
        if text is not None:
            found[name] = text
    return found


def can_draw() -> bool:
    """Whether matplotlib is there."""
    return find_spec("matplotlib") is not None


def picture(name: str, draw: Callable[[Axes], bool]) -> str | None:
    """Return one plot as SVG; ``None`` if there is nothing to draw.

    Parameters
    ----------
    name
        What it goes by; the same name and plot give the same text.
    draw
        Draws into axes, and says whether it drew anything.
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


def _curves(
    axes: Axes,
    document: dict[str, Any],
    curves: Mapping[str, Sequence[Sequence[float]]],
    last: float | None = None,
) -> bool:
    """Draw steps; the last one goes on to the right edge."""
    if not any(y > 0 for curve in curves.values() for _, y in curve):
        return False
    if last is None:
        last = 1.05 * max(x for curve in curves.values() for x, _ in curve)
    for solver, style in styles(document["run"]["solvers"]).items():
        points = curves.get(solver)
        if points:
            xs, ys = zip(*points, strict=True)
            axes.plot(
                [*xs, max(last, xs[-1])],
                [*ys, ys[-1]],
                drawstyle="steps-post",
                **style,
            )
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return True


def _step_time_profile(axes: Axes, document: dict[str, Any]) -> bool:
    axes.set_title("Performance profile: step time")
    axes.set_xlabel("times the best plan's step time")
    axes.set_ylabel("share of problems and seeds")
    axes.set_ylim(-0.02, 1.02)
    curves = document["answers"]["step_time_profile"]
    return _curves(axes, document, curves)


def _proof_time_profile(axes: Axes, document: dict[str, Any]) -> bool:
    axes.set_title("Performance profile: time to a proof")
    axes.set_xlabel("times the fastest proof's time")
    axes.set_ylabel("share of problems and seeds")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_ylim(-0.02, 1.02)
    return _curves(axes, document, document["times"]["proof_time_profile"])


def _cactus(which: str, title: str) -> Draw:
    def draw(axes: Axes, document: dict[str, Any]) -> bool:
        axes.set_title(title)
        axes.set_xlabel("seconds")
        axes.set_ylabel("cells")
        axes.set_xscale("symlog", linthresh=0.1)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.locator_params(axis="y", integer=True)
        drawn = _curves(
            axes,
            document,
            document["times"]["cactus"][which],
            document["run"]["time_limit_s"],
        )
        axes.set_xlim(left=0)
        return drawn

    return draw


def _gap_over_time(axes: Axes, document: dict[str, Any]) -> bool:
    axes.set_title("Mean primal gap over time")
    axes.set_xlabel("seconds")
    axes.set_ylabel("mean primal gap")
    axes.set_xscale("log")
    axes.set_ylim(-0.02, 1.02)
    axes.xaxis.set_major_formatter("{x:g}")
    curves = document["times"]["gap_over_time"]
    return _curves(axes, document, curves, document["run"]["time_limit_s"])


def _sweep(axes: Axes, document: dict[str, Any]) -> bool:
    groups = document["answers"].get("sweep", [])
    axes.set_title("What bandwidth buys")
    axes.set_xlabel("times the bandwidth")
    axes.set_ylabel("times as fast")
    lines: dict[str, list[tuple[float, float]]] = {}
    for group in groups:
        name = (
            f"{group['model']} {group['cluster']} b{group['batch']}, "
            f"{group['solver']}"
        )
        points = [
            (x["factor"], x["speed_up"])
            for x in group["bandwidths"]
            if x["speed_up"] is not None
        ]
        if len(points) > 1:
            lines.setdefault(name, points)  # the first seed
    for name, style in styles(lines).items():
        axes.plot(*zip(*lines[name], strict=True), marker="o", **style)
    if lines:
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return bool(lines)


_PLOTS: dict[str, Draw] = {
    "step_time_profile": _step_time_profile,
    "sweep": _sweep,
    "proof_time_profile": _proof_time_profile,
    "gap_over_time": _gap_over_time,
    "proven": _cactus("proven", "Proven after"),
    "close": _cactus("close", "Within 1 % of the best after"),
}
