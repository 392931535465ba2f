"""What a model computes beyond shapes, as Megatron-LM's arguments, and back.

Without these arguments a launch trains another model at the same cost: the base of
rotary positions is 10,000 by default, and the epsilon of norms 1e-5.
"""

from __future__ import annotations

from math import gcd, isfinite

from msgspec.structs import replace

from nest.errors import InvalidPlanError
from nest.frameworks.arguments import Arguments
from nest.models.architectures import Architecture
from nest.models.blocks import Attention
from nest.models.details import Details, Rotary, Router

#: An option: name and values.
Flag = tuple[str, tuple[object, ...]]


class Flags(list[Flag]):
    """Options in the order in which they are written."""

    def add(self, name: str, *values: object, when: object = True) -> None:
        """Add an option if ``when`` is true."""
        if when:
            self.append((name, values))


#: Defaults of megatron-core 0.19.
_EPSILON = 1e-5
#: Rows of the vocabulary that it pads to, for each rank of tensor parallelism.
_ROWS = 128

#: Activation functions of the MLP without a gate, and with one, that arguments say.
_UNGATED = {
    "gelu": (),
    "gelu_new": (),
    "gelu_fast": (),
    "gelu_pytorch_tanh": (),
    # Its fused kernels have no such function.
    "relu2": ("--squared-relu", "--no-bias-gelu-fusion"),
}
_GATED = {"silu": (), "swish": ()}

#: What its scaling for Llama 3 takes as given.
_LLAMA3 = {"low_frequency": 1.0, "high_frequency": 4.0, "original_length": 8192}
#: What its scaling by YaRN takes as given of latent attention, and by default of other.
_YARN = {"beta_fast": 32.0, "beta_slow": 1.0, "original_length": 4096, "rounded": True}


def details_flags(model: Architecture) -> Flags:
    """Return the arguments of what a model computes beyond its shape.

    None where that is not known of the model.

    Raises ``InvalidPlanError`` if no argument says it; the text names the field.
    """
    details, flags = model.details, Flags()
    if details is None:
        return flags
    block = model.towers[0].last

    def refuse(field: str, expected: str, got: object) -> InvalidPlanError:
        return InvalidPlanError(
            f"model: {field}: expected {expected}, got {got} in {model.name}; "
            f"Megatron's arguments say no other"
        )

    for name in details.others:
        raise refuse(name, "a plain transformer", "another value")
    epsilon = details.norm_epsilon
    flags.add("--norm-epsilon", epsilon, when=epsilon not in (None, _EPSILON))
    functions = _GATED if block.mlp.gated else _UNGATED
    if details.activation is not None:
        if details.activation not in functions:
            raise refuse("activation", " or ".join(functions), details.activation)
        for name in functions[details.activation]:
            flags.add(name)
    if details.rotary is not None:
        latent = block.attention.key_value_rank > 0
        reason = _why_no_rotary(details.rotary, latent)
        if reason is not None:
            raise refuse(*reason)
        flags += _rotary_flags(details.rotary, latent)
    experts = next((b.mlp for b in model.towers[0].blocks() if b.mlp.experts), None)
    if details.router is not None and experts is not None:
        scores = details.router.scores
        if scores not in ("softmax", "sigmoid"):
            raise refuse("router", "softmax or sigmoid", scores)
        alone = experts.experts_per_token == 1
        if scores == "softmax" and details.router.normalized and alone:
            raise refuse("router", "weights that differ from one", "one expert a token")
        flags += _router_flags(details.router)
    return flags


def _why_no_rotary(rotary: Rotary, latent: bool) -> tuple[str, str, object] | None:
    """Return field, what arguments say and what it is, ``None`` if they say it."""
    if rotary.base != int(rotary.base):
        return "rotary base", "a whole number", rotary.base
    if latent and (rotary.fraction != 1 or rotary.interleaved):
        return "rotary positions", "whole heads with latent attention", "others"
    scalings = ("yarn",) if latent else ("linear", "llama3", "yarn")
    if rotary.scaling and rotary.scaling not in scalings:
        return "rotary scaling", f"none or {' or '.join(scalings)}", rotary.scaling
    if rotary.scaling == "linear" and rotary.factor != int(rotary.factor):
        return "rotary scaling: factor", "a whole number", rotary.factor
    if rotary.scaling == "yarn" and rotary.interleaved:
        return "rotary scaling", "halves of heads with yarn", "interleaved pairs"
    fixed: dict[str, float] = {}
    if latent or rotary.scaling == "llama3":
        fixed = {"llama3": _LLAMA3, "yarn": _YARN}.get(rotary.scaling, {})
    for name, value in fixed.items():
        if getattr(rotary, name) != value:
            field = f"rotary scaling: {name}"
            return field, f"{value:g}", f"{getattr(rotary, name):g}"
    return None


def _rotary_flags(rotary: Rotary, latent: bool) -> Flags:
    """Return the arguments of rotary positions that they can say."""
    flags = Flags()
    flag, scaling = flags.add, rotary.scaling
    flag("--rotary-base", int(rotary.base), when=rotary.base != Rotary().base)
    flag("--rotary-percent", rotary.fraction, when=rotary.fraction != 1)
    flag("--rotary-interleaved", when=rotary.interleaved)
    if scaling == "linear":
        flag("--rotary-seq-len-interpolation-factor", int(rotary.factor))
    elif scaling == "llama3":
        flag("--use-rope-scaling")
        flag("--rope-scaling-factor", rotary.factor)
    # Latent attention is scaled by default.
    flag("--rope-type", "yarn" if scaling else "rope", when=latent)
    if scaling == "yarn":
        flag("--rotary-scaling-factor", rotary.factor)
        flag("--mscale", rotary.mscale)
        flag("--mscale-all-dim", rotary.mscale_all)
    if scaling == "yarn" and not latent:
        fast, slow = rotary.beta_fast, rotary.beta_slow
        flag("--yarn-original-max-position-embeddings", rotary.original_length)
        flag("--yarn-beta-fast", fast, when=fast != _YARN["beta_fast"])
        flag("--yarn-beta-slow", slow, when=slow != _YARN["beta_slow"])
        flag("--no-yarn-correction-range-round-to-int", when=not rotary.rounded)
    return flags


def _router_flags(router: Router) -> Flags:
    """Return the arguments of how experts are scored and weighted."""
    flags, scores, scale = Flags(), router.scores, router.scale
    flags.add("--moe-router-score-function", scores, when=scores != "softmax")
    flags.add("--moe-router-pre-softmax", when=not router.normalized)
    flags.add("--moe-router-topk-scaling-factor", scale, when=scale != 1)
    flags.add("--moe-router-enable-expert-bias", when=router.expert_bias)
    return flags


def padding_flags(rows: int, tp: int, multiple: int = _ROWS) -> list[Flag]:
    """Return the argument with which Megatron pads the vocabulary.

    To another ``multiple`` than usual if the model has one, or else by no row. None
    where it pads by none anyway, or where ``tp`` does not divide the vocabulary.
    """
    if multiple != _ROWS:
        return [("--make-vocab-size-divisible-by", (multiple,))]
    if rows % (_ROWS * tp) == 0 or rows % tp:
        return []
    return [("--make-vocab-size-divisible-by", (gcd(rows // tp, _ROWS),))]


def read_details(arguments: Arguments, attention: Attention, experts: bool) -> Details:
    """Return what arguments say of a model beyond its shape.

    A value that the file does not state is taken as the default: no cost has it.
    """

    def float_of(name: str, default: float) -> float:
        arguments.used.add(name)
        option = arguments.options.get(name)
        try:
            value = float(option.values[0].text) if option else default
        except (IndexError, ValueError):
            return default
        return value if isfinite(value) else default

    def has_option(name: str) -> bool:
        arguments.used.add(name)
        return name in arguments.options

    def text_of(name: str, default: str) -> str:
        arguments.used.add(name)
        option = arguments.options.get(name)
        return option.values[0].text if option and option.values else default

    rotary = Rotary(
        base=float_of("--rotary-base", 10_000),
        fraction=float_of("--rotary-percent", 1.0),
        interleaved=has_option("--rotary-interleaved"),
    )
    factor = float_of("--rope-scaling-factor", 8.0)
    linear = float_of("--rotary-seq-len-interpolation-factor", 1.0)
    yarn = replace(
        rotary,
        scaling="yarn",
        factor=float_of("--rotary-scaling-factor", 1.0),
        original_length=int(_YARN["original_length"]),
        mscale=float_of("--mscale", 1.0),
        mscale_all=float_of("--mscale-all-dim", 0.0),
    )
    of_others = replace(
        yarn,
        original_length=int(
            float_of("--yarn-original-max-position-embeddings", yarn.original_length)
        ),
        beta_fast=float_of("--yarn-beta-fast", yarn.beta_fast),
        beta_slow=float_of("--yarn-beta-slow", yarn.beta_slow),
        rounded=not has_option("--no-yarn-correction-range-round-to-int"),
    )
    has_option("--yarn-correction-range-round-to-int")
    latent = attention.key_value_rank > 0
    scaled = has_option("--use-rope-scaling")
    if latent:
        # Its scaling is the default, and no other argument counts.
        rotary = yarn if text_of("--rope-type", "yarn") == "yarn" else rotary
    elif text_of("--position-embedding-type", "") == "yarn":
        rotary = of_others
    elif scaled:
        original = int(_LLAMA3["original_length"])
        rotary = replace(
            rotary, scaling="llama3", factor=factor, original_length=original
        )
    elif linear != 1:
        rotary = replace(rotary, scaling="linear", factor=linear)
    router = Router(
        scores=text_of("--moe-router-score-function", "softmax"),
        normalized=not has_option("--moe-router-pre-softmax"),
        scale=float_of("--moe-router-topk-scaling-factor", 1.0),
        expert_bias=has_option("--moe-router-enable-expert-bias"),
    )
    has_option("--no-bias-gelu-fusion")
    squared = has_option("--squared-relu")
    activation = "silu" if arguments.has("--swiglu") else "gelu"
    arguments.check(
        not (squared and activation == "silu"),
        *("--squared-relu", "none with --swiglu", "both", "remove one of them"),
    )
    return Details(
        rotary=rotary if attention.rotary else None,
        router=router if experts else None,
        norm_epsilon=float_of("--norm-epsilon", _EPSILON),
        activation="relu2" if squared else activation,
    )


def other_details(expected: Architecture, got: Architecture) -> str | None:
    """Return a field beyond shapes in which models differ, ``None`` if none does.

    What is not known of either is not compared.
    """
    ours, theirs = expected.details, got.details
    if ours is None or theirs is None:
        return None
    for name in ("norm_epsilon", "rotary", "router"):
        a, b = getattr(ours, name), getattr(theirs, name)
        if isinstance(a, Rotary) and not a.scaling:
            # What is scaled by nothing has no length before.
            a = Rotary(base=a.base, fraction=a.fraction, interleaved=a.interleaved)
        if a is not None and b is not None and a != b:
            return name
    return None
