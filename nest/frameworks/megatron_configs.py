"""Configurations of Megatron-LM, NeMo and Megatron-Bridge as its arguments.

Each layout has keys of its own for the same arguments: tables below say which.
What a file leaves out is asked for, or the default of the framework, which a
note names; what it says twice and differently is refused with both places.

Sources, all read in their repositories: Megatron-LM's ``yaml_arguments.py`` and
``examples/gpt3/gpt_config.yaml`` (``--yaml-cfg``), and its model configurations with
``MODEL_ARGS``; NeMo 1's ``megatron_gpt_config.yaml`` and ``megatron_gpt_model.py``;
Megatron-Bridge's ``ConfigContainer`` as it writes it down.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from nest.errors import InvalidOptionError, InvalidPlanError
from nest.frameworks import scripts
from nest.frameworks.arguments import Arguments, ignored_note, similar_name
from nest.frameworks.configs import Config, Entry
from nest.frameworks.faults import Correction, read_all
from nest.frameworks.keyed import read_data, split_path
from nest.frameworks.megatron import Reading
from nest.frameworks.megatron_options import MEGATRON, with_present_names
from nest.frameworks.shell_words import Word
from nest.models.architectures import Architecture

#: What a value stands for: options with their values, ``{}`` for the value
#: itself, and after ``!`` options that it switches off.
Meaning = tuple[str, ...]


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The meaning of a key of a configuration, in arguments."""

    #: The argument whose value it is, or that it switches on.
    option: str = ""
    #: The values without and with the option, where it is a switch.
    absent_for: tuple[Any, ...] = ()
    given_for: tuple[Any, ...] = ()
    #: The meaning of each value, where it is neither.
    means: dict[Any, Meaning] = {}
    #: The meaning of all values.
    any: Meaning = ()

    @property
    def has_meanings(self) -> bool:
        """Whether its values are not those of the option."""
        return bool(self.any or self.means or self.given_for)

    @property
    def meanings(self) -> list[tuple[Any, Meaning]]:
        """Return the values that there may be, with their meanings."""
        return [
            *self.means.items(),
            *((value, ()) for value in self.absent_for),
            *((value, (self.option,)) for value in self.given_for),
        ]


_SWITCHED = frozenset(f"--{name}" for name in MEGATRON.switches.split())
_PLAIN = {
    name[2:].replace("-", "_"): Key(name)
    for name in (
        *(f"--{name}" for name in (MEGATRON.values + MEGATRON.switches).split()),
        *MEGATRON.refusals,
    )
}


class Format(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kind of configuration, as ``data/megatron_configs.yaml`` has it."""

    #: Of the framework, for people.
    title: str
    #: What keys stand for.
    keys: dict[str, Key]
    #: Keys whose default the framework has not, or has elsewhere.
    required: tuple[str, ...]
    #: Sections whose keys are called as arguments are, or as the configurations of
    #: transformers call them.
    plain: tuple[str, ...] = ()
    transformer: tuple[str, ...] = ()
    #: Keys that say how many nodes there are, and devices of each.
    nodes: str = ""
    devices: str = ""
    #: Keys that plans know nothing of, with the values that change nothing.
    unsupported: dict[str, tuple[Any, ...]] = {}
    #: Keys that are read apart from ``keys``.
    elsewhere: tuple[str, ...] = ()

    @property
    def read(self) -> frozenset[str]:
        """All keys that are read."""
        counts = (self.nodes, self.devices)
        return frozenset(
            {*self.keys, *self.unsupported, *self.elsewhere, *counts} - {""}
        )


class _Tables(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    transformer: dict[str, Key]
    harmless: frozenset[str]
    megatron: Format
    nemo: Format
    bridge: Format


def _with_sections(record: Format) -> Format:
    """Return a format with the keys of its sections."""
    sections = dict.fromkeys(record.plain, _PLAIN) | dict.fromkeys(
        record.transformer, _PLAIN | _TABLES.transformer
    )
    inherited = {
        f"{section}.{name}".removeprefix("."): key
        for section, keys in sections.items()
        for name, key in keys.items()
    }
    return replace(record, keys=inherited | record.keys)


_TABLES = read_data("megatron_configs", _Tables)
_MEGATRON = _with_sections(_TABLES.megatron)
_NEMO = _with_sections(_TABLES.nemo)
_BRIDGE = _with_sections(_TABLES.bridge)
_ARGUMENTS = "MODEL_ARGS"


def _format_of(config: Config) -> Format:
    """Return the format of a configuration, which must be one that is known."""
    sections = config.sections
    if _ARGUMENTS in sections:
        return Format("Megatron-LM", _plain_keys(config), ())
    if {"language_model", "model_parallel"} <= sections.keys():
        return _MEGATRON
    if {"model", "train"} <= sections.keys():
        return _BRIDGE
    if {"model", "trainer"} <= sections.keys() and ("trainer.strategy" not in sections):
        return _NEMO
    names = [name for name in sections if "." not in name]
    raise InvalidPlanError(
        f"{config.where}: expected sections language_model and model_parallel "
        f"(Megatron-LM), {_ARGUMENTS} (its model configurations), model and trainer "
        f"(NeMo 1), or model and train (Megatron-Bridge), got "
        f"{', '.join(names) or 'none'}; pass another file, or the launch script"
    )


class _Source(NamedTuple):
    """The key that gives an option, and the words of its value."""

    key: str
    tokens: tuple[Word, ...]


class _Start(NamedTuple):
    """A configuration, devices and changes of its arguments, as a reader takes them."""

    config: Config
    world: int
    changes: tuple[Correction, ...] = ()

    def corrected(self, correction: Correction) -> _Start:
        """Return a copy in which a key, an argument or the cluster is otherwise."""
        if not correction.subject.startswith("--"):
            return self._replace(config=self.config.corrected(correction))
        if correction.subject == "--cluster":
            return self._replace(world=int(correction.value or self.world))
        return self._replace(changes=(*self.changes, correction))


def read_config(
    text: str,
    where: str,
    world: int,
    variables: Mapping[str, str] | None = None,
    overrides: Sequence[tuple[str, str]] = (),
    model: Architecture | None = None,
    ignored: Sequence[str] = (),
) -> scripts.Launched:
    """Read what a configuration starts.

    Parameters and errors are those of :func:`~nest.frameworks.scripts.read_launch`;
    variables are of the environment, and keys of the file count as arguments.

    Raises ``InvalidOptionError`` if it has no place for one of the variables.
    """
    references = re.findall(r"\$\{([^}]*)", text)
    used = {x for one in references for x in re.split(r"[^\w.]+", one)}
    scripts.check_variables(variables or {}, used, where)
    # Plain arguments are keys of the file; others are in a table.
    layout = _format_of(Config(text, where))
    keys, options = {}, []
    for name, value in overrides:
        if "." in name or name in layout.keys:
            keys[name] = value
        else:
            options.append((name, value))
    config = Config(text, where, variables, keys)

    def read(start: _Start) -> scripts.Launched:
        return _read(start, layout, options, model, ignored)

    return read_all(read, _Start(config, world))


def _read(
    start: _Start,
    layout: Format,
    options: Sequence[tuple[str, str]],
    model: Architecture | None,
    ignored: Sequence[str],
) -> scripts.Launched:
    """Return the launch of a configuration with further options."""
    config, world, changes = start
    where = config.where
    sources = _options(config, layout.keys)
    if layout is _NEMO:
        fp8 = _nemo_fp8(config)
        if not fp8:
            # NeMo keeps weights in fp8 only where it computes in it.
            sources.pop("--fp8-param-gather", None)
        sources |= fp8
    unread = _unread(config, layout.read)
    sources = _without(sources, ignored, where)
    tokens = [token for source in sources.values() for token in source.tokens]
    tokens += scripts.override_words(options)
    names = {option: source.key for option, source in sources.items()}
    arguments = with_present_names(Arguments(tokens, where, names, "file"))
    for change in changes:
        arguments = arguments.corrected(change)
    _check_supported(config, layout)
    _check_required(config, layout, arguments, sources, model)
    if model is not None:
        arguments = scripts.with_model(arguments, model, sources.keys())
    scripts.check_world(_world(config, layout), arguments, world)
    if layout is _NEMO:
        _check_checkpoints(config, arguments)
    reading = scripts.read_checked(arguments, world)
    notes = (
        *scripts.notes_of(arguments, layout.title, _first_keys(layout), sources),
        *ignored_note(where, (*unread, *scripts.unread_names(arguments))),
        *scripts.left_out_note(where, ignored),
    )
    if layout is _NEMO:
        return _as_nemo_keeps(config, reading, notes)
    return scripts.Launched(reading, notes)


def _without(
    sources: Mapping[str, _Source], ignored: Sequence[str], where: str
) -> dict[str, _Source]:
    """Return the sources of options without those of ``--ignore``."""
    for name in ignored:
        if not any(name in (option[2:], x.key) for option, x in sources.items()):
            raise InvalidOptionError(
                f"--ignore {name}: expected a key that {where} has and nest reads or "
                f"refuses, got none; remove it"
            )
    return {
        option: source
        for option, source in sources.items()
        if not {option[2:], source.key} & {*ignored}
    }


def _unread(config: Config, read: Collection[str]) -> tuple[str, ...]:
    """Return the keys that nest does not read, unread sections as a whole."""
    paths = {path for key in read for path in _prefixes(key)}
    siblings: dict[str, list[str]] = {}
    for path in sorted(paths):
        section, name = split_path(path)
        siblings.setdefault(section, []).append(name)
    unread: dict[str, None] = {}
    for key in config.names:
        if key in read or config.get(key) is None:
            continue
        first = next((x for x in _prefixes(key) if x not in paths), key)
        section, name = split_path(first)
        close = similar_name(name, siblings.get(section, ()))
        if close not in (None, name) and name not in _TABLES.harmless:
            meant = f"{section}.{close}".lstrip(".")
            remedy = f"did you mean {close!r}?"
            raise config.refuse(first, "a key that is known", name, remedy, meant)
        unread[first] = None
    return tuple(unread)


def _prefixes(key: str) -> list[str]:
    """Return the sections that a key is in, and the key itself."""
    names = key.split(".")
    return [".".join(names[:count]) for count in range(1, len(names) + 1)]


def _plain_keys(config: Config) -> dict[str, Key]:
    """Return the arguments that a file has as keys."""
    prefix = f"{_ARGUMENTS}."
    return {
        key: Key(key.removeprefix(prefix).replace("_", "-"))
        for key in config.names
        if key.startswith(f"{prefix}--")
    }


def _options(config: Config, keys: Mapping[str, Key]) -> dict[str, _Source]:
    """Return what keys stand for, by option, which they must not contradict."""
    sources: dict[str, _Source] = {}
    for name, key in keys.items():
        entry = config.get(name)
        if entry is None:
            continue
        options = _by_option(_words(config, name, key, entry))
        if not options and key.option:
            options = {key.option: ()}
        for option, tokens in options.items():
            before = sources.setdefault(option, _Source(name, tokens))
            if [x.text for x in before.tokens] != [x.text for x in tokens]:
                values = [
                    entry.unknown or _text(entry.value)
                    for entry in map(config.get, (before.key, name))
                    if entry is not None
                ]
                raise InvalidPlanError(
                    f"{config.location(before.key)} and "
                    f"{config.location(name)}: expected them to say the same, "
                    f"got {' and '.join(values)}; correct one of them"
                )
    return sources


def _by_option(tokens: Iterable[Word]) -> dict[str, tuple[Word, ...]]:
    """Return words by the option that they begin with."""
    options: dict[str, tuple[Word, ...]] = {}
    name = ""
    for token in tokens:
        if token.text.startswith("!"):
            options[token.text[1:]] = ()
            continue
        if token.text.startswith("--"):
            name = token.text
            options[name] = ()
        options[name] += (token,)
    return options


def _words(config: Config, name: str, key: Key, entry: Entry) -> Iterator[Word]:
    """Yield what a key says, as words of a launch line."""
    value, line = entry.value, entry.line
    if entry.unknown and (key.has_meanings or key.option in _SWITCHED):
        remedy = f"pass --say {name}=VALUE"
        raise config.refuse(name, "a value that the file states", entry.unknown, remedy)
    items = value if isinstance(value, list) else [value]
    if any(isinstance(item, dict) for item in items):
        raise config.refuse(name, "a value", "sections")
    if key.has_meanings:
        for text in _meaning(config, name, key, value):
            yield Word(text.replace("{}", _text(value)), line)
        return
    if key.option in _SWITCHED and not isinstance(value, bool):
        raise config.refuse(name, "true or false", _text(value), value="true")
    if value is False:
        return
    yield Word(key.option, line)
    if entry.unknown:
        yield Word("", line, entry.unknown)
    elif isinstance(value, list):
        for text in _listed(config, name, key, list(map(_text, value))):
            yield Word(text, line)
    elif value is not True:
        yield Word(_text(value), line)


def _meaning(config: Config, name: str, key: Key, value: Any) -> Meaning:
    """Return what one of the values of a key stands for."""
    if key.any:
        return key.any
    for candidate, meaning in key.meanings:
        # True is 1 to Python, and 16 is not "16".
        if candidate == value and type(candidate) is type(value):
            return meaning
    known_values = dict.fromkeys(_text(candidate) for candidate, _ in key.meanings)
    raise config.refuse(name, f"one of {', '.join(known_values)}", _text(value))


def _listed(config: Config, name: str, key: Key, texts: list[str]) -> list[str]:
    """Return the values of a list as the argument has them."""
    if key.option == "--pipeline-model-parallel-layout":
        raise config.refuse(
            name, "a text such as Et*8|t*8L", "a list", f"pass --say {name}=TEXT"
        )
    if key.option == "--moe-layer-freq":
        return [f"[{','.join(texts)}]"]
    return [",".join(texts)] if key.option == "--window-size" else texts


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _nemo_fp8(config: Config) -> dict[str, _Source]:
    """Return the format of fp8, which counts only where fp8 is on."""
    entry = config.get("model.fp8")
    if entry is None or entry.value is False:
        return {}
    for name, text in (("fp8_hybrid", "hybrid"), ("fp8_e4m3", "e4m3")):
        enabled = config.get(f"model.{name}")
        if enabled is not None and enabled.value is True:
            tokens = (Word("--fp8-format", enabled.line), Word(text, enabled.line))
            return {"--fp8-format": _Source(f"model.{name}", tokens)}
    expected = "fp8_hybrid or fp8_e4m3 with it"
    remedy = "pass --say model.fp8_hybrid=true"
    raise config.refuse("model.fp8", expected, "neither", remedy)


def _check_supported(config: Config, layout: Format) -> None:
    """Refuse what plans know nothing of and would change them."""
    for key, harmless in layout.unsupported.items():
        entry = config.get(key)
        if entry is not None and entry.value not in harmless:
            expected = " or ".join(map(_text, harmless)) or "no such key"
            got = _text(entry.value)
            raise config.refuse(key, expected, got, "plans know no other")


def _check_required(
    config: Config,
    layout: Format,
    arguments: Arguments,
    sources: Mapping[str, _Source],
    model: Architecture | None,
) -> None:
    """Refuse a configuration without a key that has no default."""
    required = list(layout.required)
    gates = sources.get("--swiglu")
    if layout is _MEGATRON and gates and not gates.key.endswith("_func"):
        # Gates without SwiGLU have another default width.
        required.append("language_model.ffn_hidden_size")
    if "--multi-latent-attention" in arguments.options:
        # It has no groups.
        required = [key for key in required if not key.endswith("num_query_groups")]
    for key in required:
        option = layout.keys[key].option
        stated = config.get(key) or (
            option and (option in sources or option in arguments.options)
        )
        shape = _is_shape(key)
        if not (stated or (shape and model is not None)):
            remedy = f"add it, or pass --say {key}=VALUE" + " or --model NAME" * shape
            raise config.refuse(key, "a value", "none", remedy)


def _is_shape(key: str) -> bool:
    section, _, name = key.partition(".")
    return section in ("model", "language_model") and name not in (
        "optim.name",
        "micro_batch_size",
    )


def _world(config: Config, layout: Format) -> scripts.Count | None:
    """Return how many devices a configuration says that it runs on."""
    each = config.get(layout.devices)
    if each is None or type(each.value) is not int or each.value < 1:
        return None
    nodes = config.get(layout.nodes)
    count, location = 1, ""
    if nodes is not None:
        if type(nodes.value) is not int:
            return None
        count = nodes.value
        location = f" and {config.location(layout.nodes)} {count}"
    return scripts.Count(
        each.value * count, f"{config.location(layout.devices)} {each.value}{location}"
    )


def _check_checkpoints(config: Config, arguments: Arguments) -> None:
    """Refuse a method of recomputation without a granularity.

    Versions before granularities recompute whole layers then, later ones nothing.
    """
    method = "model.activations_checkpoint_method"
    granularity = "model.activations_checkpoint_granularity"
    if config.get(method) and "--recompute-granularity" not in arguments.options:
        raise config.refuse(
            granularity,
            f"a value with {method}",
            "none",
            f"pass --say {granularity}=full for versions that have no such "
            f"key, or remove the method",
        )


def _as_nemo_keeps(
    config: Config, reading: Reading, notes: Sequence[str]
) -> scripts.Launched:
    """Return a launch with what NeMo keeps per weight.

    With ``megatron_amp_O2`` that is what Megatron-LM keeps; without, weights are in
    fp32 only, as are gradients: 2 + 4 + 10 bytes, of which layers count 2.
    """
    key = "model.megatron_amp_O2"
    entry = config.get(key)
    if entry is not None and not isinstance(entry.value, bool):
        raise config.refuse(key, "true or false", entry.unknown or _text(entry.value))
    if entry is not None and entry.value:
        return scripts.Launched(reading, tuple(notes))
    launch = reading.launch
    if launch.zero or launch.distributed_optimizer:
        raise config.refuse(
            key,
            "true with a sharded optimizer",
            "none, which is false" if entry is None else "false",
            f"plans shard no state beside whole weights in fp32; pass --say "
            f"{key}=true if that is meant",
        )
    wider = replace(launch, gradient_bytes=4, state_bytes=10)
    note = f"without {key} weights and gradients are in fp32"
    return scripts.Launched(reading._replace(launch=wider), (*notes, note))


def _first_keys(layout: Format) -> dict[str, str]:
    first: dict[str, str] = {}
    for name, key in layout.keys.items():
        first.setdefault(key.option, name)
    return first
