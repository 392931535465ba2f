"""Pictures for notebooks and files, drawn with Matplotlib where it is there.

Every function that draws does so into ``axes``, or into new ones, and returns
them. It raises :class:`~nest.errors.NestError` if Matplotlib is not installed.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nest.errors import InvalidOptionError, NestError
from nest.units import GIB
from nest.util.time_scale import TimeScale
from nest.util.versions import DISTRIBUTION

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: What a device range does, with a color of Okabe and Ito's palette, which
#: people with color blindness can tell apart.
_PASS_COLORS = {
    "forward": "#56B4E9",
    "backward": "#0072B2",
    "input-gradient": "#0072B2",
    "weight-gradient": "#009E73",
    "receive-forward": "#F0E442",
    "receive-backward": "#E69F00",
    "sync": "#D55E00",
}

#: Formats of files, by how their names end.
PLOT_SUFFIXES = (".svg", ".png", ".pdf")

#: What the parts of a device's memory are called.
MEMORY_LABELS = {
    "weight_bytes": "weights",
    "gradient_bytes": "gradients",
    "state_bytes": "optimizer state",
    "buffer_bytes": "buffers",
    "kept_bytes": "activations",
    "working_bytes": "working memory",
    "reserve_bytes": "reserve",
}


def check_plot(path: str | None) -> None:
    """Refuse a plot that cannot be drawn, before any work is done for it.

    Raises
    ------
    InvalidOptionError
        If the suffix names no format.
    NestError
        If matplotlib is missing.
    """
    if path is None:
        return
    import logging

    suffix = Path(path).suffix.lower()
    if suffix not in PLOT_SUFFIXES:
        raise InvalidOptionError(
            f"--plot {path}: expected a file name that ends in "
            f"{', '.join(PLOT_SUFFIXES)}, got {suffix or 'no suffix'}; rename it"
        )
    # Matplotlib tells at length of folders that it may not write to.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    _check_matplotlib("--plot")


def _check_matplotlib(what: str) -> None:
    """Raise ``NestError`` if Matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise NestError(
            f"{what}: expected matplotlib to be installed, got no such "
            f"package; install it with: pip install '{DISTRIBUTION}[plot]'"
        ) from None


def save_plot(path: str, draw: Callable[[Axes], object]) -> None:
    """Write a picture to a file that ends in one of :data:`PLOT_SUFFIXES`.

    The same picture is the same file.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from nest.util.files import write_atomically

    # No pyplot: it would keep figures, and ask for a display.
    with mpl.rc_context({"svg.hashsalt": "nest", "svg.fonttype": "none"}):
        figure = Figure(figsize=(8, 5), layout="constrained")
        draw(figure.add_subplot())
        suffix = Path(path).suffix.lower()
        stamp = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(suffix, {})
        buffer = io.BytesIO()
        figure.savefig(buffer, format=suffix.removeprefix("."), dpi=150, metadata=stamp)
    write_atomically(Path(path), buffer.getvalue())


def _axes(axes: Axes | None) -> Axes:
    """Return axes to draw into: those of a caller, or new ones.

    Raises
    ------
    NestError
        If a caller passes something else.
    """
    if axes is None:
        return new_axes()
    if not hasattr(axes, "barh"):
        raise NestError(
            f"axes: expected axes of matplotlib, got {axes!r}; to write a "
            f"file, call .figure.savefig(FILE) on what the plot returns"
        )
    return axes


def new_axes() -> Axes:
    """Return axes of a new figure."""
    _check_matplotlib("plot")
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(9, 4), layout="constrained")
    axes: Axes = figure.add_subplot()
    return axes


def timeline(events: Sequence[Mapping[str, Any]], axes: Axes | None = None) -> Axes:
    """Draw what every block does when.

    Parameters
    ----------
    events
        Rows of a simulation: ``block``, ``kind``, ``start_ns``, ``duration_ns``.
    """
    axes = _axes(axes)
    end_ns = max((x["start_ns"] + x["duration_ns"] for x in events), default=0)
    scale = TimeScale.fitting(end_ns or 1.0)
    blocks = sorted({event["block"] for event in events})
    for kind, color in _PASS_COLORS.items():
        label: str | None = kind
        for block in blocks:
            spans = [
                (x["start_ns"] / scale.unit_ns, x["duration_ns"] / scale.unit_ns)
                for x in events
                if x["block"] == block and x["kind"] == kind
            ]
            if spans:
                axes.broken_barh(
                    spans,
                    (block - 0.4, 0.8),
                    facecolors=color,
                    edgecolor="white",
                    linewidth=0.3,
                    label=label,
                )
                label = None
    axes.set_yticks(blocks)
    axes.invert_yaxis()
    axes.set_ylabel("block of devices")
    axes.set_xlabel(f"time ({scale.unit})")
    axes.set_xlim(0, end_ns / scale.unit_ns if end_ns else 1)
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=5)
    return axes


def memory(
    rows: Sequence[Mapping[str, Any]], limit_bytes: int, axes: Axes | None
) -> Axes:
    """Draw what a device of every stage holds, and what it has.

    Parameters
    ----------
    rows
        Rows of a score: ``stage`` and the parts of its memory.
    limit_bytes
        What a device has.
    """
    axes = _axes(axes)
    stages = [row["stage"] for row in rows]
    below = [0.0] * len(rows)
    for name, label in MEMORY_LABELS.items():
        sizes = [row[name] / GIB for row in rows]
        if any(sizes):
            axes.bar(stages, sizes, bottom=below, label=label)
        below = [a + b for a, b in zip(below, sizes, strict=True)]
    axes.axhline(limit_bytes / GIB, color="black", linestyle="--")
    axes.set_xlabel("stage; the line is the memory of a device")
    axes.set_ylabel("GiB per device")
    axes.locator_params(axis="x", integer=True)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return axes


def bars(rows: Sequence[Mapping[str, Any]], axes: Axes | None, title: str) -> Axes:
    """Draw the step time of every solver, and its lower bound.

    A plan over memory is hatched; a solver without a plan is named.

    Parameters
    ----------
    rows
        Rows of a comparison: ``solver``, ``outcome``, ``status``,
        ``feasible``, ``step_time_ns``, ``lower_bound_ns``.
    """
    axes = _axes(axes)
    times = [row["step_time_ns"] or 0 for row in rows]
    scale = TimeScale.fitting(max(times, default=0) or 1.0)
    names = [row["solver"] for row in rows]
    drawn = axes.barh(names, [time_ns / scale.unit_ns for time_ns in times])
    for bar, row in zip(drawn, rows, strict=True):
        if row["step_time_ns"] is None:
            said = row["status"] or row["outcome"]
            axes.annotate(f" no plan: {said}", (0, row["solver"]), va="center")
        elif not row["feasible"]:
            bar.set(hatch="//", edgecolor="white", label="over memory")
    bounds = [
        (row["solver"], row["lower_bound_ns"] / scale.unit_ns)
        for row in rows
        if row["lower_bound_ns"] is not None
    ]
    if bounds:
        solvers, ends = zip(*bounds, strict=True)
        axes.plot(ends, solvers, "k|", markersize=18, label="lower bound")
    handles, labels = axes.get_legend_handles_labels()
    if labels:
        by_label = dict(zip(labels, handles, strict=True))
        legend = axes.legend(by_label.values(), by_label, loc="upper left")
        legend.set_bbox_to_anchor((1.0, 1.0))
    axes.set_title(title)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel(f"step time ({scale.unit})")
    return axes


def accelerators(document: Mapping[str, Any], axes: Axes | None = None) -> Axes:
    """Draw relative throughput against area, of all points of answers.

    The line is the most throughput within so much area; where the best point
    is not proven, another one is what no point has more than.

    Parameters
    ----------
    document
        ``nest-codesign-answers/1``.
    """
    axes = _axes(axes)
    best = document["best"][-1] if document["best"] else None
    others = [x["best"] for x in document["baselines"] if x["best"]]
    marked = {
        "frontier": (document["frontier"], "o"),
        "other searches": (others, "s"),
        "base": ([document["base"]], "D"),
        "best": ([best["found"]] if best and best["found"] else [], "*"),
    }
    positions: list[tuple[float, float]] = []
    for label, (points, marker) in marked.items():
        points_drawn = [(x["point"]["area_mm2"], x["relative"]) for x in points]
        positions += points_drawn
        if points_drawn:
            areas, throughputs = zip(*points_drawn, strict=True)
            axes.scatter(
                areas,
                throughputs,
                s=120 if label == "best" else 30,
                marker=marker,
                label=label,
            )
    widest = max(area for area, _ in positions)
    line: list[tuple[float, float]] = []
    for area, relative in sorted(positions, key=lambda x: (x[0], -x[1])):
        if not line or relative > line[-1][1]:
            line.append((area, relative))
    line.append((widest, line[-1][1]))
    areas, throughputs = zip(*line, strict=True)
    axes.step(areas, throughputs, where="post", color="black", linewidth=0.8)
    if best and not best["proven"] and best["most_relative"]:
        axes.axhline(
            best["most_relative"],
            color="black",
            linestyle="--",
            label="no point has more",
        )
    axes.set_xlabel("area of the die (mm²)")
    axes.set_ylabel(
        f"throughput relative to {document['spec']['base_name']}; not calibrated"
    )
    axes.legend(loc="lower right")
    return axes
