"""Files with the operators of a layer, ``nest-layer/1``."""

from __future__ import annotations

from nest.errors import InvalidProblemError
from nest.ir.base import FileStruct
from nest.ir.io import decode
from nest.operator_schedule.checks import check_operators
from nest.operator_schedule.records import Operator

#: What ticks are called in a file that does not say.
TICKS = "ticks"

#: The longest name of them.
_MOST_CHARACTERS = 20


class Layer(FileStruct, frozen=True, kw_only=True, tag="nest-layer/1"):
    """The operators of a layer, pass by pass.

    ``unit`` is what ticks are, such as ``cycles`` or ``ps``. ``passes`` are operators
    by the name of their pass, such as ``forward``, which run one after the other.
    """

    name: str = ""
    unit: str = TICKS
    passes: dict[str, tuple[Operator, ...]]


def decode_layer(data: bytes, where: str = "layer") -> Layer:
    """Decode a layer; ``where`` names the source in messages."""
    layer = decode(data, where, Layer, "layer", InvalidProblemError)
    if not 1 <= len(layer.unit) <= _MOST_CHARACTERS:
        raise InvalidProblemError(
            f"{where}: $.unit: expected a word of at most {_MOST_CHARACTERS} "
            f"characters, got {layer.unit!r}; shorten it"
        )
    if not layer.passes:
        raise InvalidProblemError(
            f"{where}: $.passes: expected at least one pass, got none; add "
            f"one, such as forward"
        )
    for name, operators in layer.passes.items():
        at = f"{where}: $.passes.{name}"
        if not operators:
            raise InvalidProblemError(
                f"{at}: expected at least one operator, got none; remove the pass"
            )
        try:
            check_operators(operators)
        except InvalidProblemError as error:
            raise InvalidProblemError(f"{at}: {error}") from None
    return layer
