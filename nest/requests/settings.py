"""What a request is made of: settings, each with reader, unit and help.

A request is a frozen dataclass whose fields are declared by :func:`setting`.
It reads every value when it is made. Errors name the option of the command
line; :func:`in_python` turns such a message into one about Python arguments.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from nest.errors import InvalidOptionError, NestError
from nest.requests.values import RefusedValueError, anything, flag, text

_METADATA = "setting"


@dataclass(frozen=True)
class Setting:
    """A value that a request holds, with its help, reader, default and unit.

    ``usage`` is the option as its help shows it, such as ``-o --output FILE``, or an
    argument such as ``[PROBLEM]``; a flag has no word for its value. ``read`` turns
    text or a Python value into what the request holds. The unit is empty for texts and
    counts. An option that ``is_multiple`` may come several times.
    """

    usage: str
    help: str
    read: Callable[[Any], Any] = text
    default: Any = None
    unit: str = ""
    is_multiple: bool = False
    is_required: bool = False

    @property
    def flags(self) -> list[str]:
        """The option's spellings; empty for an argument."""
        return [word for word in self.usage.split() if word.startswith("-")]

    @property
    def metavar(self) -> str:
        """The word for the value; empty for a flag."""
        return self.usage.removeprefix(" ".join(self.flags)).strip()

    @property
    def name(self) -> str:
        """What errors of the command line call it."""
        return self.flags[-1] if self.flags else self.usage.strip("[]…")


def setting(
    usage: str,
    help: str,
    read: Callable[[Any], Any] | None = None,
    *,
    default: Any = None,
    unit: str = "",
    multiple: bool = False,
    required: bool = False,
) -> Any:
    """Declare a field of a request, see :class:`Setting`.

    A flag reads ``True`` and ``False``.
    """
    is_flag = read is None and all(x.startswith("-") for x in usage.split())
    if default is None and (multiple or is_flag):
        default = () if multiple else False
    declared = Setting(
        usage,
        help,
        read or (flag if is_flag else text),
        default,
        unit,
        multiple,
        required,
    )
    if required:
        return dataclasses.field(metadata={_METADATA: declared})
    return dataclasses.field(default=default, metadata={_METADATA: declared})


def record(help: str) -> Any:
    """Declare a field that only Python callers can give, not an option."""
    declared = Setting("", help, anything)
    return dataclasses.field(default=None, metadata={_METADATA: declared})


def redeclared(request: Any, name: str, help: str = "") -> Any:
    """Declare a field of another request, perhaps with another help text."""
    field = request.__dataclass_fields__[name]
    declared = field.metadata[_METADATA]
    if help:
        declared = dataclasses.replace(declared, help=help)
    return dataclasses.field(default=field.default, metadata={_METADATA: declared})


@dataclass(frozen=True, kw_only=True)
class Request:
    """Base of all requests."""

    #: The command that asks the same, for messages. A class names it by its argument
    #: ``command``.
    COMMAND: ClassVar[str] = "nest"
    #: The section of the help in which the settings stand that the class declares, its
    #: argument ``group``; empty for those of one question.
    GROUP: ClassVar[str] = ""

    def __init_subclass__(cls, command: str = "", group: str = "") -> None:
        super().__init_subclass__()
        cls.COMMAND = command or cls.COMMAND
        cls.GROUP = group

    def __post_init__(self) -> None:
        for name, declared in settings_of(type(self)).items():
            value = getattr(self, name)
            if value is None:
                continue
            try:
                value = declared.read(value)
            except RefusedValueError as error:
                raise InvalidOptionError(f"{declared.name}: {error}") from None
            object.__setattr__(self, name, value)


def settings_of(request: Any) -> dict[str, Setting]:
    """Return the settings of a kind of request, by field."""
    return {
        field.name: field.metadata[_METADATA]
        for field in dataclasses.fields(request)
        if _METADATA in field.metadata
    }


def groups_of(request: type[Request]) -> dict[str, str]:
    """Return the section of the help for each setting, by field."""
    groups: dict[str, str] = {}
    for kind in reversed(request.__mro__):
        for name in inspect.get_annotations(kind):
            groups.setdefault(name, vars(kind).get("GROUP", ""))
    return groups


def given_settings(request: Request) -> list[str]:
    """Return the fields whose value is not the default."""
    return [
        name
        for name, declared in settings_of(type(request)).items()
        if getattr(request, name) != declared.default
    ]


def option_name(field: str) -> str:
    """Return the option of a field."""
    return "--" + field.replace("_", "-")


#: Options in a message, each with a value, that are an example.
_EXAMPLE = re.compile(r"(such as|for example)((?: --[\w-]+ [^\s;]*[^\s;,])+)")
_COMMAND = re.compile(r"'nest (\w+) --help'")


def in_python(message: str, request: type[Request]) -> str:
    """Return a message about options as one about Python arguments."""
    names = {
        flag: field
        for field, declared in settings_of(request).items()
        for flag in declared.flags
    }
    arguments = {
        declared.name: field
        for field, declared in settings_of(request).items()
        if declared.usage and not declared.flags
    }
    names |= {option_name(field): field for field in arguments.values()}

    def spelled(match: re.Match[str]) -> str:
        return names.get(match[0], match[0])

    def example(match: re.Match[str]) -> str:
        flags, values = match[2].split()[::2], match[2].split()[1::2]
        if not {*flags} <= {*names}:
            return match[0]
        pairs = zip(flags, values, strict=True)
        shown = (f"{names[flag]}={value!r}" for flag, value in pairs)
        return f"{match[1]} {', '.join(shown)}"

    # The name of one of several, such as "solver: expected one of".
    head, colon, rest = message.partition(":")
    if f"{head}s" in names.values() and head not in names.values():
        message = f"{head}s{colon}{rest}"
    message = _COMMAND.sub(r"help(nest.\1)", message)
    message = _EXAMPLE.sub(example, message)
    message = re.sub(r"(?<![\w-])--?[a-z][\w-]*", spelled, message)
    for argument, field in arguments.items():
        message = re.sub(rf"\b{re.escape(argument)}\b", field, message)
    command = request.COMMAND
    return message.replace(f"{command}:", f"{command.replace(' ', '.')}:")


@contextmanager
def python_errors(request: type[Request]) -> Iterator[None]:
    """Let errors inside speak of Python arguments."""
    try:
        yield
    except NestError as error:
        error.args = (in_python(str(error), request),)
        raise
