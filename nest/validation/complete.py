"""What follows from the stated cells of a row fills its empty ones.

Rules are general: arithmetic (devices are the product of the degrees), what
a software does (:mod:`nest.validation.software`) and how it counts FLOPs
(:mod:`nest.validation.flops`), shapes of models that are known by name and
batches of published recipes (``data/models.json`` and ``recipes.json``, each
entry with its source). Nothing is known about single rows. What was filled in
is in :attr:`Row.assumed`.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from msgspec.structs import replace

from nest.ir.base import Struct
from nest.models.architectures import Architecture, blocks
from nest.models.hf import from_hf
from nest.models.zoo import architecture, known_architecture
from nest.util.stored import read_stored
from nest.validation.flops import counted_time
from nest.validation.rows import Row
from nest.validation.software import software_of


class KnownModel(Struct, frozen=True, kw_only=True):
    """A model that rows may name without its shape."""

    #: Pattern of the whole name, upper or lower case.
    name: str
    #: Where the shape comes from.
    reference: str
    #: Pattern that is found in the row's source; empty for all.
    source: str = ""
    #: Cells of the row by column.
    columns: dict[str, int | bool] = {}
    #: Name of an architecture of the zoo, or fields of a configuration of Hugging Face,
    #: instead of columns.
    zoo: str = ""
    config: dict[str, Any] = {}
    #: Whether columns cannot say the shape, so that rows that state it mean this
    #: architecture too.
    beyond_columns: bool = False


KNOWN_MODELS = read_stored("nest.validation", "models", tuple[KnownModel, ...])


class Recipe(Struct, frozen=True, kw_only=True):
    """A published configuration, whose batch runs have that do not state it."""

    #: Of the recipe.
    name: str
    #: Patterns that are found in the columns of these names, upper or lower case; empty
    #: ones match all.
    framework: str
    model: str
    hardware: str = ""
    #: Cells that a row must have.
    stated: dict[str, int]
    #: Cells that it fills, all of them empty in the row.
    columns: dict[str, int]
    #: Where the recipe is.
    reference: str

    def matches(self, row: Row) -> bool:
        """Return whether a row ran what the recipe configures."""
        return (
            all(
                re.search(getattr(self, name), getattr(row, name) or "", re.IGNORECASE)
                for name in ("framework", "model", "hardware")
            )
            and all(getattr(row, k) == v for k, v in self.stated.items())
            and all(getattr(row, name) is None for name in self.columns)
        )


RECIPES = read_stored("nest.validation", "recipes", tuple[Recipe, ...])

#: Words of ``precision`` and the class of operators that they mean.
PRECISIONS = {
    "bf16": r"\b(bf16|bfloat16)\b",
    "fp16": r"\b(fp16|float16|half)\b",
    "fp8": r"\b(mx)?(fp8|float8)",
    "fp4": r"\b(nv|mx)?fp4",
    "int8": r"\bint8",
}


def complete(row: Row) -> Row:
    """Return a row with what its stated cells imply."""
    for rule in (_precision, _model, _devices, _recipe, _micro_batch, _step_time):
        filled = rule(row)
        if filled:
            values, why = filled
            row = replace(
                row, **values, assumed=(*row.assumed, f"{', '.join(values)}: {why}")
            )
    return row


Filled = tuple[dict[str, Any], str] | None


def _precision(row: Row) -> Filled:
    """Take the one class that the words of ``precision`` mean."""
    if row.precision_class or not row.precision:
        return None
    text = row.precision.lower()
    named = [name for name, pattern in PRECISIONS.items() if re.search(pattern, text)]
    if len(named) != 1:
        return None
    return {"precision_class": named[0]}, f"precision {row.precision}"


def _model(row: Row) -> Filled:
    """Take the shape of a model that is known by its name."""
    stored = known_model(row.model, row.source)
    if stored is None:
        return None
    values = {
        name: value
        for name, value in _columns_of(stored).items()
        if getattr(row, name) is None and (row.layers is None or name == "vocab")
    }
    return (values, stored.reference) if values else None


def known_model(name: str | None, source: str | None) -> KnownModel | None:
    """Return what is stored about a model of that name."""
    return _known_model(name or "", source or "")


@cache
def _known_model(name: str, source: str) -> KnownModel | None:
    for stored in KNOWN_MODELS:
        if re.fullmatch(stored.name, name, re.IGNORECASE) and re.search(
            stored.source, source, re.IGNORECASE
        ):
            return stored
    model = known_architecture(name)
    if model is None or len(model.towers) > 1:
        return None
    return KnownModel(name=model.name, reference=model.source, zoo=model.name)


def architecture_of(row: Row) -> Architecture | None:
    """Return the architecture that a row's model has by its name.

    None where the row states its shape, unless that is the known one and
    columns cannot say all of it.
    """
    stored = known_model(row.model, row.source)
    if stored is None:
        return None
    taken = any("layers" in text.split(":")[0].split(", ") for text in row.assumed)
    agrees = stored.beyond_columns and all(
        getattr(row, name) == value
        for name, value in _columns_of(stored).items()
        if name in ("layers", "hidden", "heads", "vocab", "experts")
    )
    return _architecture(stored) if taken or agrees else None


def _architecture(stored: KnownModel) -> Architecture | None:
    if stored.zoo:
        return architecture(stored.zoo)
    return _from_config(stored.name) if stored.config else None


@cache
def _from_config(name: str) -> Architecture:
    stored = next(model for model in KNOWN_MODELS if model.name == name)
    return from_hf(stored.config, name=name, where=f"models.json: {name}")


def _columns_of(stored: KnownModel) -> dict[str, int | bool]:
    """Return the cells that a known model fills."""
    model = _architecture(stored)
    if model is None:
        return stored.columns
    shapes = list(blocks(model, once=True))
    shape = next(one for one in shapes if one.attention.heads)
    dense: dict[str, int | bool] = {}
    if len(shapes) == 1 and not shape.mlp.experts:
        dense = {"ffn_hidden": shape.mlp.hidden, "gated_mlp": shape.mlp.gated}
    return {
        **dense,
        "layers": model.layers,
        "hidden": shape.hidden,
        "heads": shape.attention.heads,
        "kv_heads": shape.attention.kv_heads,
        "vocab": model.head.outputs,
        "experts": max(one.mlp.experts for one in shapes),
        **stored.columns,
    }


def _devices(row: Row) -> Filled:
    """Take ``num_devices`` or ``dp`` from ``tp·pp·cp·dp``."""
    if row.tp is None or row.pp is None:
        return None
    group = row.tp * row.pp * (row.cp or 1)
    if row.num_devices is None and row.dp is not None:
        return {"num_devices": group * row.dp}, "tp·pp·cp·dp"
    if row.dp is not None:
        return None
    count, why = row.num_devices, "num_devices / (tp·pp·cp)"
    if count is None:
        software = software_of(row)
        count, why = software.num_devices, f"{software.name}: devices of a job"
    if not count or count % group:
        return None
    values = {"dp": count // group}
    if row.num_devices is None:
        values["num_devices"] = count
    return values, why


def _recipe(row: Row) -> Filled:
    """Take the batch of the published recipe that a row ran.

    It says less than a row that states its batch: its tiers become C.
    """
    match = next((recipe for recipe in RECIPES if recipe.matches(row)), None)
    if match is None:
        return None
    tiers = {"time_tier": row.time_tier, "mem_tier": row.mem_tier}
    lowered = {name: "C" for name, tier in tiers.items() if tier is not None}
    return match.columns | lowered, match.reference


def _micro_batch(row: Row) -> Filled:
    """Divide the samples of a replica by its micro-batches."""
    if row.micro_batch is not None or not (row.global_batch and row.dp):
        return None
    share, rest = divmod(row.global_batch, row.dp)
    if rest:
        return None
    if row.grad_accum and share % row.grad_accum == 0:
        return {"micro_batch": share // row.grad_accum}, "grad_accum"
    if share == 1:
        return {"micro_batch": 1}, "one sample per replica"
    return None


def _step_time(row: Row) -> Filled:
    """Take the step time from FLOP/s, if it is known how they are counted.

    A time of this kind is of tier B where the row has no tier. Columns must
    say the whole shape.
    """
    if row.iter_time_s or row.tokens_per_s_per_gpu or row.samples_per_s:
        return None
    counted = counted_time(row)
    if counted is None or architecture_of(row) is not None:
        return None
    tier = {"time_tier": "B"} if row.time_tier is None else {}
    values = {"iter_time_s": counted.time_s, **tier}
    return values, f"FLOPs as counted by {counted.flop_count.name}"
