"""Read the fields of a Hugging Face configuration, with checks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import replace

from nest.errors import InvalidProblemError
from nest.models.blocks import Block, Head, Tower

T = TypeVar("T")

#: A fixed value, or the name of a flag with its default.
Switch = bool | tuple[str, bool]

#: Larger figures, and numbers of layers, are typing errors.
LARGEST = 2**31 - 1
MOST_LAYERS = 10_000


class Parts(NamedTuple):
    """The fields of an architecture that a configuration states."""

    towers: tuple[Tower, ...]
    head: Head
    max_sequence: int
    left_out: int = 0

    def with_tower(self, **fields: Any) -> Parts:
        """Return the model with other fields of its first tower."""
        first, *others = self.towers
        return self._replace(towers=(replace(first, **fields), *others))

    def with_head(self, **fields: Any) -> Parts:
        """Return the model with other fields of its head."""
        return self._replace(head=replace(self.head, **fields))

    def with_attention(self, **fields: Any) -> Parts:
        """Return a model of equal blocks with other fields of attention."""
        (run,) = self.towers[0].runs
        block = with_attention(run.block, **fields)
        return self.with_tower(runs=(replace(run, block=block),))


def with_attention(block: Block, **fields: Any) -> Block:
    """Return a block with other fields of its attention."""
    return replace(block, attention=replace(block.attention, **fields))


class Config:
    """The fields of a configuration.

    Every method raises :class:`~nest.errors.InvalidProblemError` if a field
    is missing and has no default, is of another type, or out of range; the
    text names the file and the field. Of ``fields``, the decoded JSON object, ``null``
    is no value; ``where`` is the name of the file, and of the object in it.
    """

    def __init__(self, fields: dict[str, Any], where: str) -> None:
        self.fields = fields
        self.where = where

    def updated(self, **fields: Any) -> Config:
        """Return the configuration with other values of fields."""
        return Config({**self.fields, **fields}, self.where)

    def refuse(
        self, name: str, expected: str, got: object, remedy: str = "correct the value"
    ) -> InvalidProblemError:
        """Return the error about one field."""
        return InvalidProblemError(
            f"{self.where}: {name}: expected {expected}, got {got}; {remedy}"
        )

    def _find(self, names: tuple[str, ...]) -> tuple[str, Any]:
        for name in names:
            if self.fields.get(name) is not None:
                return name, self.fields[name]
        return names[0], None

    def typed(self, name: str, value: object, kind: type[T], what: str) -> T:
        """Return a value of that type; true and false are no numbers."""
        if not isinstance(value, kind) or (
            isinstance(value, bool) and kind is not bool
        ):
            raise self.refuse(name, what, shown(value), "correct its type")
        return value

    def integer(self, *names: str, default: int | None = None, minimum: int = 1) -> int:
        """Read an integer; several names are the same field."""
        name, value = self._find(names)
        if value is None:
            if default is None:
                field, remedy = " or ".join(names), "add it or check model_type"
                raise self.refuse(field, "an integer", "no such field", remedy)
            return default
        count = self.typed(name, value, int, "an integer")
        layers = "layer" in name and "per_layer" not in name
        largest = MOST_LAYERS if layers else LARGEST
        if not minimum <= count <= largest:
            raise self.refuse(name, f"an integer from {minimum} to {largest}", count)
        return count

    def flag(self, name: str, default: bool) -> bool:
        """Read true or false."""
        value = self.fields.get(name)
        if value is None:
            return default
        return self.typed(name, value, bool, "true or false")

    def must_be(
        self, name: str, value: bool, why: str = "such models are not supported"
    ) -> None:
        """Refuse a flag that is set the other way."""
        if self.flag(name, value) != value:
            expected, got = ("true", "false") if value else ("false", "true")
            raise self.refuse(name, expected, got, why)

    def switch(self, spec: Switch) -> bool:
        """Return a fixed value, or read a flag by its name and default."""
        return spec if isinstance(spec, bool) else self.flag(*spec)

    def listed(self, name: str, kind: type[T], what: str) -> list[T] | None:
        """Read a list of values of one type; ``None`` without."""
        values = self.fields.get(name)
        if values is None:
            return None
        if not isinstance(values, list) or any(
            type(value) is not kind for value in values
        ):
            raise self.refuse(
                name, f"a list of {what}", shown(values), "correct its type"
            )
        return values

    def per_layer(
        self, name: str, layers: int, meanings: Mapping[str, str]
    ) -> list[str] | None:
        """Read a list with a word per layer, translated; ``None`` without."""
        entries = self.listed(name, str, "strings")
        if entries is None:
            return None
        self.check_length(name, entries, layers)
        for entry in entries:
            if entry not in meanings:
                expected = f"entries among {', '.join(meanings)}"
                remedy = "other layers are not supported"
                raise self.refuse(name, expected, shown(entry), remedy)
        return [meanings[entry] for entry in entries]

    def check_length(self, name: str, entries: Sequence[object], layers: int) -> None:
        """Refuse a list that has not an entry per layer."""
        if len(entries) != layers:
            expected = f"as many entries as there are layers, {layers}"
            raise self.refuse(name, expected, len(entries), "correct one of them")

    def drops(self, name: str, default: float) -> bool:
        """Return whether a dropout rate is not 0."""
        value = self.fields.get(name)
        if value is None:
            return default > 0
        # An integer may be larger than any float.
        if type(value) is not int:
            value = self.typed(name, value, float, "a number")
        if not 0 <= value <= 1:
            raise self.refuse(name, "a rate from 0 to 1", shown(value))
        return bool(value > 0)

    def has(self, name: str) -> bool:
        """Return whether a field has a value."""
        return self.fields.get(name) is not None

    def nested(self, name: str) -> Config:
        """Read an object inside this one."""
        value = self.fields.get(name)
        if not isinstance(value, dict):
            got = "no such field" if value is None else shown(value)
            raise self.refuse(name, "an object", got, "add it")
        return Config(value, f"{self.where}: {name}")

    def head_size(
        self,
        hidden: tuple[str, ...] = ("hidden_size",),
        heads: tuple[str, ...] = ("num_attention_heads",),
    ) -> int:
        """Return the width divided by the number of heads."""
        width, count = self.integer(*hidden), self.integer(*heads)
        what = f"{self._find(hidden)[0]} = {width}"
        return width // self.divisor(self._find(heads)[0], count, what, width)

    def kv_heads(
        self, heads: int, default: int, name: str = "num_key_value_heads"
    ) -> int:
        """Read the number of key and value heads, which all heads share."""
        count = self.integer(name, default=default)
        return self.divisor(name, count, f"the {heads} attention heads", heads)

    def divisor(self, name: str, value: int, what: str, whole: int) -> int:
        """Return a value that must divide ``whole``, which is ``what``."""
        if whole % value:
            raise self.refuse(
                name, f"a divisor of {what}", value, "correct one of them"
            )
        return value


def shown(value: object) -> str:
    """Return a value as JSON, cut short."""
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
