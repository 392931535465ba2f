"""What help shows of a command before the command is loaded, and examples.

``help_texts.txt`` has a block for every command: its name, the first line of
its help where ``nest --help`` lists it, and two complete examples after ``$``.
"""

from __future__ import annotations

from pathlib import Path

import click

#: The first line of the help of each command in ``nest --help``.
SUMMARIES: dict[str, str] = {}

#: Commands that can be typed as they stand, given the files that they name,
#: by the command's path, such as ``nest import hf``.
EXAMPLES: dict[str, tuple[str, ...]] = {}

_TEXT = Path(__file__).with_suffix(".txt").read_text("utf-8")
for _block in _TEXT.split("\n\n"):
    _title, *_examples = _block.strip().split("\n$ ")
    _path, _, _summary = _title.partition(": ")
    EXAMPLES[_path] = tuple(_examples)
    if _summary:
        SUMMARIES[_path.removeprefix("nest ")] = _summary


def add_examples(path: str, command: click.Command) -> None:
    """Show the examples of a command below its help."""
    if path in EXAMPLES:
        lines = "\n".join(EXAMPLES[path]).replace("\n", "\n  ")
        # Line by line, not filled.
        command.epilog = f"\b\nExamples:\n  {lines}"
