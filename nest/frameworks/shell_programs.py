"""Programs that scripts call: which texts shells among them read as scripts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nest.frameworks.shell_words import Word, clean, one_word

#: Programs that read commands from a file, a text after ``-c`` or their input.
SHELLS = frozenset({"bash", "sh", "zsh", "dash"})
#: Programs that read a script from a file or their input.
_QUEUES = frozenset({"sbatch", "qsub", "bsub"})
#: Programs that read commands from their last words or their input.
_REMOTE = frozenset({"ssh", "pdsh", "clush"})
#: Programs that only print what they get.
PRINTING = frozenset({"echo", "printf", "logger", "cat", "tee"})
#: Options of shells and queues that have a value of their own.
_WITH_VALUE = frozenset({"-o", "+o", "-O", "--rcfile", "--init-file"})


class Inner(NamedTuple):
    """A text that a command reads as a script.

    ``start`` is the number of tokens before it, which start what is in it. In the same
    shell (``eval``) its variables stay.
    """

    start: int
    text: Word
    same_shell: bool = False
    #: Options of a queue, as ``#SBATCH`` lines have them.
    options: tuple[Word, ...] = ()


def inner_script(
    tokens: Sequence[Word], files: Mapping[str, Word], document: Word | None
) -> Inner | None:
    """Return the text that a command reads as a script, ``None`` if there is none.

    ``tokens`` are the command's words, and ``document`` is its input; ``files`` are
    texts of the files that the script has written, by name.
    """
    texts = [clean(word).text for word in tokens]
    programs = [text.rpartition("/")[2] for text in texts]
    if programs[0] in PRINTING:
        return None
    if programs[0] == "eval":
        return Inner(0, one_word(tokens[1:], tokens[0].line), same_shell=True)
    if programs[0] in ("source", ".") and texts[1:2]:
        text = files.get(plain_path(texts[1]))
        return None if text is None else Inner(0, text, same_shell=True)
    for index, program in enumerate(programs):
        if program in SHELLS:
            return _of_shell(tokens, texts, index, files, document)
        if program in _QUEUES:
            return _of_queue(tokens, texts, index, files, document)
        if program in _REMOTE and index == 0:
            return _of_remote(tokens, texts, document)
    text = files.get(plain_path(texts[0]))
    return None if text is None else Inner(0, text)


def plain_path(path: str) -> str:
    """Return a path without what changes nothing in it."""
    return re.sub(r"^(?:\./+)+", "", path)


def _of_shell(
    tokens: Sequence[Word],
    texts: Sequence[str],
    index: int,
    files: Mapping[str, Word],
    document: Word | None,
) -> Inner | None:
    """Return what a shell reads: a text, a file or its input."""
    at = index + 1
    while at < len(texts) and texts[at][:1] in ("-", "+") and texts[at] != "--":
        if re.fullmatch(r"-[a-z]*c[a-z]*", texts[at]):
            return _command_text(tokens, at + 1)
        at += 1 + (texts[at] in _WITH_VALUE)
    if at < len(texts):
        text = files.get(plain_path(texts[at]))
        return None if text is None else Inner(at, text)
    return None if document is None else Inner(len(tokens), document)


def _command_text(tokens: Sequence[Word], start: int) -> Inner | None:
    """Return the text of ``bash -c``; without quotes, all that follows."""
    if start >= len(tokens):
        return None
    text = tokens[start]
    if not re.search(r"\s", text.text):
        text = one_word(tokens[start:], text.line)
    return Inner(start, text)


def _of_queue(
    tokens: Sequence[Word],
    texts: Sequence[str],
    index: int,
    files: Mapping[str, Word],
    document: Word | None,
) -> Inner | None:
    """Return what a queue runs: a text, a file that was written, or its input."""
    options = tuple(tokens[index + 1 :])
    for at in range(index + 1, len(texts)):
        if texts[at] == "--wrap" and at + 1 < len(texts):
            return Inner(0, tokens[at + 1], options=options[: at - index - 1])
        if texts[at].startswith("--wrap="):
            text = tokens[at]._replace(text=tokens[at].text.partition("=")[2])
            return Inner(0, text, options=options[: at - index - 1])
        if plain_path(texts[at]) in files:
            text = files[plain_path(texts[at])]
            return Inner(0, text, options=options[: at - index - 1])
    return None if document is None else Inner(0, document, options=options)


def _of_remote(
    tokens: Sequence[Word], texts: Sequence[str], document: Word | None
) -> Inner | None:
    """Return the commands that another machine runs, if they are one text."""
    last = tokens[-1]
    if len(tokens) > 2 and re.search(r"\s", texts[-1]):
        return Inner(0, last)
    return None if document is None else Inner(0, document)
