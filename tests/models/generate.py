"""Models as ``transformers`` builds them, of sizes drawn at random.

``python -m tests.models.generate`` writes ``tests/data/models.json``: for
every family configurations as that package saves them, and how many
parameters the model has that it builds of them on the meta device. Sizes are
small; ``families.yaml`` says which fields are drawn, and what families need
besides. ``models-flops.json`` has configurations that the
package takes by default, and what PyTorch counts in a forward pass of them.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from nest.models.architectures import Architecture
from nest.models.hf import from_hf
from nest.models.hf.vision import RESNET_PIXELS

#: Configurations of each family that are stored.
STORED_PER_FAMILY = 2

STORED = Path(__file__).parents[1] / "data" / "models.json"
STORED_FLOPS = STORED.with_name("models-flops.json")

#: What families are there, what builds them, and which sizes are drawn.
TABLES = yaml.safe_load(Path(__file__).with_name("families.yaml").read_text())


def _sizes(
    rng: random.Random, heads: str, hidden: str, kv: str | None
) -> dict[str, Any]:
    """Draw heads, key and value heads that divide them, and a width."""
    count = rng.choice((4, 8, 12))
    fields = {heads: count, hidden: count * rng.choice((8, 16, 24))}
    if kv is not None:
        fields[kv] = rng.choice([n for n in (1, 2, 4) if count % n == 0])
    return fields


def _usual(rng: random.Random) -> dict[str, Any]:
    return _sizes(rng, "num_attention_heads", "hidden_size", "num_key_value_heads")


def _equal(rng: random.Random) -> dict[str, Any]:
    return _sizes(rng, "num_attention_heads", "hidden_size", None)


def _same_kv(rng: random.Random) -> dict[str, Any]:
    """Draw as many key and value heads as others."""
    found = _equal(rng)
    return {**found, "num_key_value_heads": found["num_attention_heads"]}


def _whole(rng: random.Random) -> dict[str, Any]:
    """Draw heads that together are as wide as the residual stream."""
    found = _usual(rng)
    found["head_dim"] = found["hidden_size"] // found["num_attention_heads"]
    return found


def _one_bias(rng: random.Random) -> dict[str, Any]:
    """Draw biases of all linear layers or of none."""
    return {**_usual(rng), **dict.fromkeys(("bias", "qkv_bias"), rng.random() < 0.5)}


def _channels(rng: random.Random) -> dict[str, Any]:
    """Draw a width, and heads of Mamba-2 that divide twice of it."""
    return {**_usual(rng), "mamba_n_heads": rng.choice((4, 8))}


def _expanded(rng: random.Random) -> dict[str, Any]:
    """Draw a width, and the channels of Mamba as a multiple of it."""
    hidden, factor = 32 * rng.choice((1, 2, 3)), rng.choice((1, 2))
    return {
        "hidden_size": hidden,
        "expand": factor,
        "intermediate_size": factor * hidden,
    }


def _divided(rng: random.Random) -> dict[str, Any]:
    """Draw a width, and heads of Mamba-2 that are twice as wide together."""
    heads, size = rng.choice((4, 8)), rng.choice((8, 16))
    return {
        "hidden_size": heads * size // 2,
        "expand": 2,
        "num_heads": heads,
        "head_dim": size,
    }


def _griffin(rng: random.Random) -> dict[str, Any]:
    """Draw heads and a width, which is that of the recurrence too."""
    found = _equal(rng)
    return {**found, "lru_width": found["hidden_size"]}


def _halves(rng: random.Random) -> dict[str, Any]:
    """Draw an encoder and a decoder of one width."""
    heads = rng.choice((2, 4))
    return {
        "d_model": 8 * heads * rng.choice((1, 2)),
        "encoder_attention_heads": heads,
        "decoder_attention_heads": rng.choice((2, 4)),
        "encoder_layers": rng.randint(1, 4),
        "decoder_layers": rng.randint(1, 4),
    }


def _two_towers(rng: random.Random) -> dict[str, Any]:
    """Draw a tower that sees and one that reads."""
    image = {"image_size": 32, "patch_size": rng.choice((4, 8))}
    text = {"vocab_size": rng.randint(99, 300), "max_position_embeddings": 20}
    usual = {"num_hidden_layers": 3, "intermediate_size": 50}
    return {
        "vision_config": {**_equal(rng), **usual, **image},
        "text_config": {**_equal(rng), **usual, **text},
    }


#: Functions that draw the sizes of a family, by their names in families.yaml.
SIZES = {
    draw.__name__.strip("_"): draw
    for draw in (
        *(_usual, _equal, _same_kv, _whole, _one_bias, _channels, _expanded, _divided),
        *(_griffin, _halves, _two_towers),
    )
}

#: What a family needs in addition to :data:`DRAWN`, or instead.
OTHERS: dict[str, dict[str, Any]] = {
    family: {name: row[name] for name in row if name != "families"}
    for row in TABLES["others"]
    for family in row["families"]
}
DRAWN: dict[str, Any] = TABLES["drawn"]


def drawn_sizes(rng: random.Random, value: Any) -> dict[str, Any]:
    """Draw the sizes of a family."""
    match value:
        case str():
            return SIZES[value](rng)
        case {"heads": heads, "hidden": hidden, "kv": kv}:
            return _sizes(rng, heads, hidden, kv)
    return dict(value)


def drawn_value(rng: random.Random, value: Any) -> Any:
    """Draw one of several values, or an integer from a range."""
    match value:
        case {"of": values}:
            return rng.choice(values)
        case {"from": low, "to": high}:
            return rng.randint(low, high)
    return value


def configuration(family: str, rng: random.Random) -> Any:
    """Return a configuration of a family, with sizes drawn at random."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = CONFIG_MAPPING[family]
    usual = kind().to_dict()
    more = dict(OTHERS.get(family, {}))
    sizes = more.pop("sizes", "usual")
    fields = {
        name: drawn_value(rng, value) for name, value in DRAWN.items() if name in usual
    }
    fields |= drawn_sizes(rng, sizes)
    fields |= {name: drawn_value(rng, value) for name, value in more.items()}
    if family == "resnet":
        widths = (16, 32, 64, 128)
        fields["hidden_sizes"] = widths[rng.choice((0, 1)) :][: len(fields["depths"])]
    return kind(**fields)


def build(config: Any, family: str) -> Any:
    """Build the model of a configuration on the meta device."""
    import torch
    import transformers

    kind = getattr(transformers, AUTO.get(family, "AutoModelForCausalLM"))
    with torch.device("meta"):
        return getattr(kind, "from_config", kind)(config)


#: Classes that build the models of families that are no causal decoders.
AUTO: dict[str, str] = {
    **dict.fromkeys(TABLES["masked"], "AutoModelForMaskedLM"),
    **dict.fromkeys(TABLES["paired"], "AutoModelForSeq2SeqLM"),
    **dict.fromkeys(TABLES["seeing"], "AutoModelForImageClassification"),
    **dict.fromkeys(TABLES["inside"], "AutoModel"),
    "clip": "AutoModel",
    "deit": "DeiTForImageClassification",
    "whisper": "AutoModelForSpeechSeq2Seq",
}


def parameters(model: Any) -> int:
    """Count the parameters of a model; shared ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())


def examples(
    family: str, count: int, seed: int = 0
) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield saved configurations of a family, and what they count."""
    rng = random.Random(f"{family}-{seed}")
    for _ in range(count):
        config = configuration(family, rng)
        total = parameters(build(config, family))
        tied = getattr(config, "tie_word_embeddings", False)
        if family in TABLES["inside"] and not tied:
            # The package builds it without the output layer of the whole.
            total += config.vocab_size * config.hidden_size
        yield json.loads(config.to_json_string()), total


FAMILIES: tuple[str, ...] = (
    *TABLES["decoders"],
    *(*TABLES["masked"], *TABLES["paired"], *TABLES["seeing"]),
    *(*TABLES["mixed"], "clip", "whisper"),
)


def inputs(config: Any, model: Architecture, length: int) -> dict[str, Any]:
    """Return one sample for a model on the meta device.

    Masks are given, as the package would look into them otherwise.
    """
    import torch

    def tokens(count: int) -> Any:
        return torch.empty(1, count, dtype=torch.long, device="meta")

    def pixels(size: int) -> Any:
        return torch.empty(1, 3, size, size, device="meta")

    lengths = model.lengths(length)
    first, last = model.towers[0], model.towers[-1]
    if config.model_type == "resnet":
        return {"pixel_values": pixels(RESNET_PIXELS)}
    if first.convolutions:
        heard = first.convolutions[0].positions * lengths[first.name]
        bins = first.convolutions[0].inputs
        return {
            "input_features": torch.empty(1, bins, heard, device="meta"),
            "decoder_input_ids": tokens(lengths[last.name]),
        }
    if last.reads:
        return {
            "input_ids": tokens(lengths[first.name]),
            "decoder_input_ids": tokens(lengths[last.name]),
        }
    if last is not first:
        return {
            "pixel_values": pixels(config.vision_config.image_size),
            "input_ids": tokens(lengths[last.name]),
        }
    if first.patch_values:
        return {"pixel_values": pixels(config.image_size)}
    found = {"input_ids": tokens(length)}
    unmasked = ("falcon", "mamba")
    if first.runs[0].block.attention.causal and config.model_type not in unmasked:
        found["attention_mask"] = torch.zeros(1, 1, length, length, device="meta")
    return found


def flops(family: str, length: int) -> dict[str, Any]:
    """Return a family's default configuration, its parameters and FLOPs.

    FLOPs are those that PyTorch counts in a forward pass of one sample on the meta
    device. Of experts the ones that tokens visit are multiplied with.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = CONFIG_MAPPING[family](dtype=None)
    saved = json.loads(config.to_json_string())
    model = build(config, family)
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("batched_mm")
    sample = inputs(config, from_hf(saved), length)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(**sample)
    return {
        "config": saved,
        "parameters": parameters(model),
        "flops": counter.get_total_flops(),
    }


#: Families whose FLOPs are stored, and tokens of a sample of them: no more
#: than any window has.
COUNTED: list[str] = TABLES["counted"]
COUNTED_LENGTH = 128


def stored() -> dict[str, list[dict[str, Any]]]:
    """Return the stored examples, by family."""
    found: dict[str, list[dict[str, Any]]] = json.loads(STORED.read_text())
    return found


def stored_flops() -> list[dict[str, Any]]:
    """Return the stored configurations with their FLOPs."""
    found: list[dict[str, Any]] = json.loads(STORED_FLOPS.read_text())
    return found


def main(path: Path = STORED, flops_path: Path = STORED_FLOPS) -> None:
    """Write the stored examples of all families."""
    found = {
        family: [
            {"config": config, "parameters": total}
            for config, total in examples(family, STORED_PER_FAMILY)
        ]
        for family in FAMILIES
    }
    lines = [
        f"{json.dumps(family)}: [\n"
        + ",\n".join(json.dumps(entry) for entry in entries)
        + "\n]"
        for family, entries in found.items()
    ]
    path.write_text("{" + ",\n".join(lines) + "}\n")
    lines = [json.dumps(flops(name, COUNTED_LENGTH)) for name in COUNTED]
    flops_path.write_text("[" + ",\n".join(lines) + "]\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
