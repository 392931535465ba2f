"""Launch scripts of Megatron-LM: from the text of a script to a launch.

The script is read, never run. What it says twice and differently is refused
with both lines; what it does not say is asked for, or left at the framework's
default and named as such.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from nest.errors import InvalidOptionError, InvalidPlanError
from nest.frameworks.arguments import Arguments, ignored_note
from nest.frameworks.faults import (
    STAND_INS,
    Correction,
    Fault,
    raise_questions,
    read_all,
)
from nest.frameworks.keyed import read_data
from nest.frameworks.megatron import Reading, read_arguments
from nest.frameworks.megatron_model import model_flags
from nest.frameworks.megatron_options import (
    MEGATRON,
    check_program,
    check_refused,
    with_present_names,
)
from nest.frameworks.shell import Script, read_script, words_in
from nest.frameworks.shell_programs import PRINTING, SHELLS
from nest.frameworks.shell_words import Word
from nest.frameworks.swift import as_megatron, is_other_step, start_of
from nest.models.architectures import Architecture
from nest.models.zoo import architecture
from nest.util.text import whole_number

#: An argument whose value is that of a variable.
_BY_VARIABLE = re.compile(
    r"(?<![\w-])(--[\w-]+)[ =]+\"?\$\{?([A-Za-z_]\w*)(?::?-[^}\s]*)?\}?"
    r"(?![\w$.:/*+-])"
)

#: A program in Python, and a key of a configuration that Hydra changes for it.
_PYTHON = re.compile(r"(^|/)(python[\d.]*|torchrun)$|\.py$")
_OVERRIDE = re.compile(r"[+~]{0,2}[A-Za-z_]\w*(\.\w+)+=")
#: A command that has one of these starts Megatron-LM.
_SIGNS = frozenset(
    {
        "--num-layers",
        "--tensor-model-parallel-size",
        "--pipeline-model-parallel-size",
        "--micro-batch-size",
        "--yaml-cfg",
    }
)

#: Arguments that say the same as one of these.
_INSTEAD = {
    "--recompute-granularity": ("--recompute-activations",),
    "--position-embedding-type": (
        "--use-rotary-position-embeddings",
        "--no-position-embedding",
    ),
}

_Kinds = dict[str, str]

#: What faults about the devices that a script starts on have as their subject. With
#: their value, 0 for that of the cluster, reading goes on.
_DEVICES = "devices"


class _Launchers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The programs that start others, as ``data/launchers.yaml`` has them."""

    usual: _Kinds
    slurm: _Kinds
    mpi: _Kinds
    slurm_programs: tuple[str, ...]
    mpi_programs: tuple[str, ...]
    per_node_programs: frozenset[str]
    others: tuple[str, ...]


_LAUNCHERS = read_data("launchers", _Launchers)
_USUAL = _LAUNCHERS.usual
#: What options say: nodes, devices of each, ranks in all, devices in all.
_SLURM = _USUAL | _LAUNCHERS.slurm
_STARTERS: Mapping[str, _Kinds] = {
    **dict.fromkeys(_LAUNCHERS.slurm_programs, _SLURM),
    **dict.fromkeys(_LAUNCHERS.mpi_programs, _USUAL | _LAUNCHERS.mpi),
}


class _Option(NamedTuple):
    """An option about numbers of devices: whose it is, and what it says."""

    program: str
    name: str
    kind: str
    value: Word


class Count(NamedTuple):
    """A number that a script states, and where.

    ``variable`` is one of the environment, without which a default counts; each one of
    its value stands for ``step`` of the number.
    """

    value: int
    location: str
    variable: str = ""
    step: int = 1


class Start(NamedTuple):
    """What is started on how many devices, as a reader takes it."""

    arguments: Arguments
    world: int
    #: Whether the devices that the script states are known.
    counted: bool = True

    def corrected(self, correction: Correction) -> Start:
        """Return a copy in which an argument or the cluster is otherwise."""
        if correction.subject == "--cluster":
            return self._replace(world=int(correction.value or self.world))
        if correction.subject == _DEVICES:
            world = int(correction.value or 0) or self.world
            return self._replace(world=world, counted=False)
        return self._replace(arguments=self.arguments.corrected(correction))


class Launched(NamedTuple):
    """The launch that a script starts.

    Notes are defaults that count, and ignored arguments, as texts for the user.
    """

    reading: Reading
    notes: tuple[str, ...]


def read_launch(
    text: str,
    where: str,
    world: int,
    variables: Mapping[str, str] | None = None,
    overrides: Sequence[tuple[str, str]] = (),
    model: Architecture | None = None,
    ignored: Sequence[str] = (),
) -> Launched:
    """Read what a script of Megatron-LM starts.

    ``where`` is its name for messages, ``world`` the devices of the cluster, and
    ``variables`` are values of shell variables. ``overrides`` are arguments in addition
    to those of the script, and ``ignored`` those that do not count, without dashes; a
    ``model`` gives the arguments of the shape that the script leaves out.

    Raises ``InvalidPlanError`` if there is no launch or several, an argument is missing
    or out of range, or the script contradicts itself or the cluster.
    """
    script = read_script(text, where, variables)
    check_variables(variables or {}, script.used, where)
    tokens = find_words(script, where)
    tokens = without(tokens, ignored, where)
    swift = as_megatron(tokens, script.variables, where, [x for x, _ in overrides])
    doubled: list[Fault] = []
    more: tuple[str, ...] = ()
    unknown_model = None
    if swift is not None:
        tokens, more = swift.tokens, swift.notes
        doubled += swift.faults
        if model is None:
            model, unknown_model = swift.model, swift.unknown_model
    arguments = Arguments((*tokens, *override_words(overrides)), where, doubled=doubled)
    if unknown_model is not None and "--num-layers" not in arguments.options:
        rest = (text, where, world, variables, overrides)
        raise_questions(
            [unknown_model],
            [
                partial(read_launch, *rest, architecture(name), ignored)
                for name in STAND_INS
            ],
        )
    arguments = with_present_names(arguments)
    questions = _open_conditions(arguments)
    arguments.open = bool(questions)
    doubled += questions

    def read(start: Start) -> Launched:
        arguments, world, counted = start
        if model is not None:
            arguments = with_model(arguments, model)
        if "--yaml-cfg" in arguments.options:
            remedy = "import that file: nest import megatron-args FILE.yaml"
            raise arguments.refuse("--yaml-cfg", "arguments", "a configuration", remedy)
        taken: tuple[str, ...] = ()
        if counted:
            taken = check_devices(script, tokens, arguments, world)
        reading = read_checked(arguments, world, tokens)
        left_out = left_out_note(where, ignored)
        notes = (*taken, *notes_of(arguments), *more, *unread(arguments, tokens))
        notes += left_out
        return Launched(reading, notes)

    return read_all(read, Start(arguments, world), doubled)


def _open_conditions(arguments: Arguments) -> list[Fault]:
    """Return the questions about arguments of the script that decide on options."""
    questions: dict[str, Fault] = {}
    for token in arguments.unknown:
        decides = re.search(r" on a condition about \$(\d+) ", token.unknown)
        if decides is None or decides[1] in questions:
            continue
        questions[decides[1]] = Fault(
            f"{arguments.where}:{token.line}: expected options that the script states, "
            f"got {token.unknown}; say it with --set {decides[1]}=VALUE",
            subject=f"${decides[1]}",
            answers=("--set", f"{decides[1]}=<VALUE>"),
        )
    return [*questions.values()]


def in_variables(text: str, lines: Sequence[str]) -> list[str]:
    """Return arguments as a script sets them: ``TP=4`` where it has ``$TP``.

    Arguments stay as they are if the script computes with the variable, or
    gives it to several arguments.
    """
    code = re.sub(r"(?m)^[ \t]*#.*$", "", text)
    inside = " ".join(x.partition("))")[0] for x in code.split("((")[1:])
    computed = {*re.findall(r"\w+", inside)}
    pairs = {*_BY_VARIABLE.findall(code)}
    arguments = Counter(argument for argument, _ in pairs)
    variables = Counter(variable for _, variable in pairs)
    named = {
        argument: variable
        for argument, variable in pairs
        if arguments[argument] == variables[variable] == 1 and variable not in computed
    }
    return [
        f"{named[name]}={value}" if value and name in named else line
        for line in lines
        for name, _, value in [line.partition(" ")]
    ]


def override_words(overrides: Sequence[tuple[str, str]]) -> list[Word]:
    """Return options of ``--say`` as words of a launch line."""
    return [
        Word(text, 0)
        for name, value in overrides
        for text in (f"--{name.lstrip('-').replace('_', '-')}", value)
        if text
    ]


def left_out_note(where: str, ignored: Sequence[str]) -> tuple[str, ...]:
    """Return the note about what ``--ignore`` leaves out, and why, if anything."""
    refusals = MEGATRON.refusals
    names = ", ".join(
        f"{name} ({refusals[option].why})" if option in refusals else name
        for name in ignored
        for option in [f"--{name.lstrip('-').replace('_', '-')}"]
    )
    return (f"{where}: left out, as --ignore says: {names}",) if names else ()


def without(
    tokens: Sequence[Word], ignored: Sequence[str], where: str
) -> tuple[Word, ...]:
    """Return the words of a launch line without arguments of ``--ignore``.

    Raises ``InvalidOptionError`` if there is no such argument.
    """
    names = {f"--{name.lstrip('-').replace('_', '-')}" for name in ignored}
    remaining, taken = [], set()
    drops = False
    for token in tokens:
        name = _name(token)
        if name.startswith("--"):
            drops = name in names
            taken |= {name} & names
        if not drops:
            remaining.append(token)
    for name in sorted(names - taken):
        raise InvalidOptionError(
            f"--ignore {name[2:]}: expected an argument that {where} has, got none; "
            f"remove it"
        )
    return tuple(remaining)


def read_checked(
    arguments: Arguments, world: int, tokens: Sequence[Word] = ()
) -> Reading:
    """Return what arguments say; the model is called as the file is.

    Raises ``InvalidPlanError`` if no run can start with them. The reason is an argument
    that nest does not know, or that plans cannot express, if there is one.
    """
    check_program(_launcher(tokens), arguments.where)
    name = re.sub(r"\W+", "-", arguments.where.rpartition("/")[2]).strip("-")
    try:
        return read_arguments(arguments, world, name)
    except InvalidPlanError:
        unread_names(arguments, tokens)
        raise


def check_variables(
    variables: Collection[str], used: Collection[str], where: str
) -> None:
    """Refuse variables of ``--set`` that a file has no place for.

    Raises ``InvalidOptionError`` if there is one.
    """
    for name in variables:
        if name not in used:
            raise InvalidOptionError(
                f"--set {name}: expected a variable that {where} uses, got "
                f"none; remove it"
            )


def unread(arguments: Arguments, tokens: Sequence[Word]) -> tuple[str, ...]:
    """Return the note about what :func:`unread_names` gives, if anything."""
    return ignored_note(arguments.where, unread_names(arguments, tokens), "argument")


def unread_names(arguments: Arguments, tokens: Sequence[Word] = ()) -> tuple[str, ...]:
    """Return the arguments that nest ignores, as the file calls them.

    Options of the launcher, before the program, are none of them.

    Raises ``InvalidPlanError`` if one is in no class, or as
    :func:`~nest.frameworks.megatron_options.check_refused` says.
    """
    check_refused(arguments)
    launcher = {name.replace("_", "-") for name in (*_USUAL, *_LAUNCHERS.others)}
    launcher.update(map(_name, _launcher(tokens)))
    ignored = [
        name
        for name in arguments.unread(MEGATRON.classed.keys() | launcher)
        if name not in launcher and name[2:] not in MEGATRON.present
    ]
    names = {name: text for name, (text, _) in arguments.underscored.items()}
    names |= arguments.names
    return tuple(names.get(name, name) for name in ignored)


def _launcher(tokens: Sequence[Word]) -> tuple[Word, ...]:
    """Return the words up to the program, or to the text that a shell reads."""
    end = 0
    for index, token in enumerate(tokens, 1):
        if token.text.endswith(".py"):
            return tuple(tokens[:index])
        if _program(token) in SHELLS:
            end = index
    return tuple(tokens[:end])


def find_words(script: Script, where: str) -> tuple[Word, ...]:
    """Return the words of the command that starts Megatron-LM.

    Or, where there is none, of the variables that hold arguments.

    Raises ``InvalidPlanError`` if there is none of either, or several commands.
    """
    lines_of = {x.words: x.line for x in reversed(script.commands)}
    signed = [
        line
        for line in reversed(lines_of)
        if _SIGNS & {*map(_name, line)} or start_of(line) is not None
    ]
    # Scripts print what they run.
    commands = [
        line
        for line in signed
        if _program(line[0]) not in PRINTING and not is_other_step(line)
    ] or signed
    if len({*map(_arguments, commands)}) > 1:
        lines = ", ".join(str(lines_of[command]) for command in commands)
        raise InvalidPlanError(
            f"{where}: expected one command that starts Megatron-LM, got "
            f"those of lines {lines}; leave one"
        )
    if commands:
        return commands[0]
    tokens = [
        token
        for values in script.variables.values()
        for value in values
        for token in words_in(value)
    ]
    if _SIGNS & {*map(_name, tokens)}:
        return tuple(tokens)
    _check_no_overrides(script, where)
    raise InvalidPlanError(
        f"{where}: expected a command with arguments of Megatron-LM such as "
        f"--num-layers, got none; pass the script that starts it"
    )


def _check_no_overrides(script: Script, where: str) -> None:
    """Refuse a command whose program takes keys of a configuration."""
    for command in script.commands:
        tokens = command.words
        if not any(_PYTHON.search(token.text) for token in tokens):
            continue
        for token in tokens:
            if _OVERRIDE.match(token.text):
                raise InvalidPlanError(
                    f"{where}:{command.line}: expected arguments of Megatron-LM such "
                    f"as --num-layers, got a key such as {token.text}, which changes a "
                    f"configuration; import that file with --say KEY=VALUE, or the log "
                    f"with the arguments that Megatron-LM prints"
                )


def _name(token: Word) -> str:
    return token.text.partition("=")[0].replace("_", "-")


def _arguments(tokens: Sequence[Word]) -> tuple[str, ...]:
    """Return the words after the program: scripts echo what they run."""
    texts = [token.text for token in tokens]
    first = next((i for i, x in enumerate(texts) if x.endswith(".py")), 0)
    return tuple(texts[first:])


def with_model(
    arguments: Arguments, model: Architecture, stated: Collection[str] = ()
) -> Arguments:
    """Return arguments with those of a model's shape that are not given.

    ``stated`` are options that the file switches off or gives.
    """
    length = arguments.needed("--seq-length")
    tokens = [
        token
        for name, option in arguments.options.items()
        for token in (Word(name, option.line), *option.values)
    ]
    for name, values in model_flags(model, length):
        if name not in arguments.options and name not in stated:
            tokens += [Word(name, 0), *(Word(str(v), 0) for v in values)]
    return arguments.with_tokens(tokens)


def _counted(
    script: Script, tokens: Sequence[Word], where: str
) -> tuple[Count | None, tuple[str, ...]]:
    """Return the devices, and from where else nodes were taken.

    Raises ``InvalidPlanError`` if it says two numbers of devices; the text names both
    places.
    """
    counts: dict[str, tuple[str, Count]] = {}
    unknown: dict[str, tuple[str, Word]] = {}
    launcher = _launcher(tokens) or tuple(tokens)
    options = [*_launcher_options(launcher)] + [
        _Option("#SBATCH", name, _SLURM[name], value)
        for name, value in script.directives.items()
        if name in _SLURM
    ]
    for program, name, kind, value in options:
        text = re.sub(r"^(?:gpu:)?(?:[A-Za-z]\w*:)?", "", value.text)
        # One task may start all ranks of a node.
        if kind in counts or (name == "--ntasks-per-node" and text == "1"):
            continue
        value_stated = whole_number(text)
        if value_stated is not None and not value.unknown:
            location = f"{where}:{value.line}: {name} {text}"
            fallback = _fallback_of(script, value)
            counts[kind] = program, Count(value_stated, location, fallback)
        else:
            unknown.setdefault(kind, (name, value))
    stated = [counts["devices"][1]] if "devices" in counts else []
    if "ranks" in counts and _are_ranks(launcher, counts):
        stated.append(counts["ranks"][1])
    notes: tuple[str, ...] = ()
    # The manager spreads a total over as many nodes as it takes.
    spread = stated and "nodes" not in counts
    if "each" in counts and not (
        spread and counts["each"][0] not in _LAUNCHERS.per_node_programs
    ):
        if "nodes" in unknown:
            name, value = unknown["nodes"]
            got = value.unknown or repr(value.text)
            location = f"{where}:{value.line}: {name}"
            if "nodes" not in counts:
                variable = re.match(r"\$(\w+)", value.unknown)
                raise Fault(
                    f"{location}: expected a number of nodes that the script "
                    f"states, got {got}; say it with --set "
                    f"{variable[1] if variable else 'NAME'}=VALUE"
                    + (", NAME being its variable" * (variable is None)),
                    subject=_DEVICES,
                    answers=("--set", f"{variable[1] if variable else '<NAME>'}=<N>"),
                    value="0",
                )
            notes = (f"{location}: {got}; counted is {counts['nodes'][1].location}",)
        each = counts["each"][1]
        nodes = counts["nodes"][1] if "nodes" in counts else Count(1, "")
        locations = " and ".join(filter(None, (each.location, nodes.location)))
        total = nodes.value * each.value
        stated.insert(0, Count(total, locations, nodes.variable, each.value))
    for other in stated[1:]:
        if other.value != stated[0].value:
            raise Fault(
                f"{other.location}: expected the {stated[0].value} devices of "
                f"{stated[0].location}, got {other.value}; correct one of them",
                subject=_DEVICES,
                value="0",
            )
    if stated:
        return stated[0], notes
    world = script.variables.get("WORLD_SIZE", ())
    value_stated = whole_number(world[0].text) if world else None
    if value_stated is not None:
        location = f"{where}:{world[0].line}: WORLD_SIZE"
        return Count(value_stated, location), ()
    return None, ()


def _fallback_of(script: Script, value: Word) -> str:
    """Return the variable whose default a value is, empty if it is of none."""
    names = [
        name
        for name, default in script.fallbacks.items()
        if (default.line, default.text) == (value.line, value.text)
    ]
    return names[-1] if names else ""


def _are_ranks(
    launcher: Sequence[Word], counts: Mapping[str, tuple[str, Count]]
) -> bool:
    """Whether tasks are ranks, and do not start all those of a node."""
    before = Word("", 0)
    for token in launcher:
        # What is not known may start ranks, unless an option has it.
        may_start_ranks = token.unknown and not before.text.startswith("-")
        if may_start_ranks or _program(token) in _LAUNCHERS.per_node_programs:
            return False
        before = token
    program, tasks = counts["ranks"]
    nodes = counts["nodes"][1].value if "nodes" in counts else 1
    return program != "#SBATCH" or tasks.value != nodes


def _program(token: Word) -> str:
    return token.text.rpartition("/")[2]


def _launcher_options(launcher: Sequence[Word]) -> Iterator[_Option]:
    """Yield what the options of programs say that start others."""
    program, kinds = "", _USUAL
    for index, token in enumerate(launcher):
        following = launcher[index + 1 : index + 2]
        name, equals, text = token.text.partition("=")
        if not name.startswith("-"):
            new = _program(token)
            if new in _STARTERS or new in _LAUNCHERS.per_node_programs:
                program, kinds = new, _STARTERS.get(new, _USUAL)
            continue
        if short := re.fullmatch(r"(-[nNG])(\d+)", name):
            name, equals, text = short[1], "=", short[2]
        if name in kinds and (equals or following):
            value = token._replace(text=text) if equals else following[0]
            yield _Option(program, name, kinds[name], value)


def check_devices(
    script: Script, tokens: Sequence[Word], arguments: Arguments, world: int
) -> tuple[str, ...]:
    """Refuse a script whose degrees or cluster are not what it starts on.

    Returns what was taken from elsewhere, or from the script's defaults.

    Raises ``InvalidPlanError`` if it says on how many devices it starts, and they are
    others; the text names both places.
    """
    stated, notes = _counted(script, tokens, arguments.where)
    check_world(stated, arguments, world)
    return notes + tuple(
        f"{arguments.where}:{value.line}: ${number} is {value.text}, the "
        f"script's default; --set {number}=VALUE gives another"
        for number, value in script.defaults.items()
    )


def check_world(stated: Count | None, arguments: Arguments, world: int) -> None:
    """Refuse devices that a file states and that are not those of a cluster.

    Raises ``InvalidPlanError`` if they are others, or no multiple of its degrees; the
    text names both places.
    """
    if stated is None:
        return
    if stated.variable and stated.value != world and world % stated.step == 0:
        setting = f"{stated.variable}={world // stated.step}"
        raise Fault(
            f"{stated.location}: expected the {world} devices of --cluster, got "
            f"{stated.value}; name a cluster of {stated.value} devices, or pass --set "
            f"{setting}",
            subject=_DEVICES,
            answers=("--set", setting),
            value="0",
        )
    degrees = {
        name: arguments.count(name)
        for name in (
            "--tensor-model-parallel-size",
            "--pipeline-model-parallel-size",
            "--context-parallel-size",
        )
    }
    product = math.prod(degrees.values())
    if stated.value % product:
        locations = ", ".join(
            f"{arguments.location_of_value(name)} {degree}"
            for name, degree in degrees.items()
            if degree > 1
        )
        raise Fault(
            f"{stated.location}: expected devices for {product} ranks of a "
            f"data rank ({locations}), got {stated.value}; correct one of them",
            subject=_DEVICES,
            value=str(product),
        )
    if stated.value != world:
        raise Fault(
            f"{stated.location}: expected the {world} devices of --cluster, "
            f"got {stated.value}; name a cluster of {stated.value} devices",
            subject="--cluster",
            answers=("--cluster", str(stated.value)),
            value=str(stated.value),
        )


def notes_of(
    arguments: Arguments,
    title: str = "Megatron-LM",
    keys: Mapping[str, str] | None = None,
    stated: Collection[str] = (),
) -> list[str]:
    """Return what a file leaves open.

    The defaults of ``title`` count; ``keys`` are what the file calls options, and
    ``stated`` those that it switches off.
    """
    names = {*arguments.options, *stated}
    absent = [
        (keys or {}).get(option, option)
        for option in (f"--{name}" for name in MEGATRON.shaping.split())
        if not {option, *_INSTEAD.get(option, ())} & names
    ]
    notes = [*arguments.assumed]
    if absent:
        notes.append(
            f"not in the {arguments.what}, so {title}'s defaults: {', '.join(absent)}"
        )
    for name in ("--rampup-batch-size", "--step-batch-size-schedule"):
        if name in arguments.options:
            notes.append(
                f"{arguments.location(name)}: the global batch grows to its last size, "
                f"with which the plan counts; steps before are shorter"
            )
    for token in arguments.unknown:
        notes.append(
            f"{arguments.where}:{token.line}: not read: {token.unknown}; what "
            f"it holds is left out"
        )
    return notes
