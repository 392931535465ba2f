"""What starts a plan, for the screen of its answer."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from nest.present.screen import WIDTH


def launch_texts(files: Mapping[str, str]) -> list[str]:
    """Return what starts a plan, for one screen.

    Of the files of :func:`nest.frameworks.export.export` those that hold
    arguments, several of them to a line, and then how to start it as comments.
    """
    scripts = [
        _packed(text)
        for name, text in files.items()
        if name not in ("README", "hostfile", "rank_map.json")
    ]
    _, *how = files["README"].splitlines()
    comments = [
        line
        for text in how
        for line in textwrap.wrap(
            text, WIDTH, initial_indent="# ", subsequent_indent="# "
        )
    ]
    return [*scripts[:-1], "\n".join((scripts[-1], *comments))]


def _packed(text: str) -> str:
    """Return a text with the members of a bash array side by side."""
    lines: list[str] = []
    inside = False
    for line in text.rstrip("\n").splitlines():
        inside = inside and line != ")"
        if (
            inside
            and lines[-1].startswith("  -")
            and len(lines[-1]) + len(line.strip()) < WIDTH
        ):
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
        inside = inside or line == "ARGS=("
    return "\n".join(lines)
