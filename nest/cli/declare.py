"""How options are declared: those of requests, and those of one command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from nest.requests.settings import Setting
from nest.requests.values import RefusedValueError

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]


class Option(click.Option):
    """An option that knows the section of the help in which it stands."""

    def __init__(self, *flags: Any, group: str = "", **settings: Any) -> None:
        super().__init__(*flags, **settings)
        self.group = group


class Argument(click.Argument):
    """An argument that the help explains; click does so from 8.5 on."""

    group = "Arguments"

    def __init__(self, *names: Any, text: str = "", **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.text = text

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        """Return the row of the help."""
        return str(self.metavar), self.text


def add_sections(command: click.Command) -> None:
    """Let the help of a command show its options in sections.

    Arguments come first, then options of the command alone. An argument without
    a text is explained above.
    """

    def write(context: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {Argument.group: [], "": []}
        for each in command.get_params(context):
            row = each.get_help_record(context)
            if row is not None and row[1]:
                group = getattr(each, "group", "")
                sections.setdefault(group, []).append(row)
        for group, rows in sections.items():
            if rows:
                with formatter.section(group or "Options"):
                    formatter.write_dl(rows)

    if not isinstance(command, click.Group):
        command.format_options = write  # type: ignore[method-assign, assignment]


def option(
    usage: str,
    text: str,
    read: Callable[[Any], Any] | None = None,
    *names: str,
    default: Any = None,
    **settings: Any,
) -> Decorator:
    """Return what adds an option to a command.

    ``usage`` is as the help shows it, such as ``-o --output FILE``; a flag has no word
    for its value. The default is added to the text of the help. ``read`` turns the text
    of the command line into the value, ``names`` are what the command calls it, where
    that is not the option itself, and ``settings`` more for :func:`click.option`.
    """
    declared = Setting(usage, text)
    flags, metavar = declared.flags, declared.metavar
    if default is not None:
        settings["default"] = default
        text += f"  [default: {default}]" if metavar else ""
    if metavar:
        settings |= {"type": read and typed(read), "metavar": metavar}
    else:
        settings["is_flag"] = True
    return click.option(*flags, *names, cls=Option, help=text, **settings)


def typed(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a reader whose errors are those of click."""

    def convert(value: Any) -> Any:
        try:
            return read(value)
        except RefusedValueError as error:
            raise click.BadParameter(str(error)) from None

    convert.words = getattr(read, "words", ())  # type: ignore[attr-defined]
    return convert


def parameter(
    name: str, declared: Setting, text: str = "", group: str = ""
) -> Decorator:
    """Return what adds the setting of a request to a command.

    The request reads the value: click passes on the text. The option stands
    in the section ``group`` of the help.
    """
    text = text or declared.help
    if not declared.flags:
        return click.argument(
            name,
            cls=Argument,
            metavar=declared.usage,
            nargs=-1 if declared.is_multiple else 1,
            required=declared.is_required,
            text=text,
        )
    settings: dict[str, Any] = {"is_flag": True}
    if declared.metavar:
        if declared.default not in (None, ()):
            text += f"  [default: {declared.default}]"

        def keep(value: Any) -> Any:
            return value

        keep.words = getattr(declared.read, "words", ())  # type: ignore[attr-defined]
        settings = {
            "type": keep,
            "metavar": declared.metavar,
            "multiple": declared.is_multiple,
            "required": declared.is_required,
        }
    return click.option(
        *declared.flags, name, cls=Option, group=group, help=text, **settings
    )


def output_option(what: str) -> Decorator:
    """Add ``-o``, the file that what was made goes to; it must be given."""
    text = f"Where to write the {what}; '-' is standard output."
    return option("-o --output FILE", text, required=True)


def json_option(what: str) -> Decorator:
    """Add ``--json``, which writes a document instead; alone it is ``-``."""
    return option(
        "--json [FILE]",
        f"Write {what} as JSON instead; '-', or no FILE, is standard output.",
        None,
        "json_path",
        is_flag=False,
        flag_value="-",
    )
