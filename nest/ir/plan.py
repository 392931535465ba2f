"""Plans: replicas, micro-batch and stages with their strategies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from msgspec import field

from nest.ir.base import (
    Count,
    Distinct,
    FileStruct,
    LayerId,
    Size,
    Struct,
    check_distinct,
)
from nest.ir.views import Row, Tabular

#: What becomes of activations until the backward pass: they are kept, a part or all of
#: them is computed again, or they go to the memory of the host and come back.
Recompute = Literal["none", "selective", "full", "offload"]
RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full", "offload")

#: Those that are offered unless somebody names others.
USUAL_RECOMPUTE = RECOMPUTE[:3]

#: Those whose activations are gone before weights have their gradients, where a
#: backward pass is split.
NOT_SPLIT = frozenset({"full", "offload"})

#: Communication that can run behind computation: the collectives of an axis
#: inside a pass, the per micro-batch ZeRO traffic, the gradient sync.
Overlap = Literal["tp", "cp", "ep", "weights", "gradients"]
OVERLAP: tuple[Overlap, ...] = ("tp", "cp", "ep", "weights", "gradients")

#: Where the chunks of a plan sit: chunk ``i`` on block ``i mod S``, or down
#: and up again, chunks ``r`` and ``2S-1-r`` on block ``r``.
Placement = Literal["loop", "v"]

#: The passes of every block, in the order they run.
PassLists = tuple[tuple[str, ...], ...]

#: Fields of a strategy that tell the entries of a cost table apart, besides
#: the samples.
COST_AXES = ("tp", "cp", "ep", "etp", "sequence_parallel")


def check_zero_stage(field: str, value: int) -> None:
    """Raise ``ValueError`` unless there is such a ZeRO stage."""
    if not 0 <= value <= 3:
        raise ValueError(f"{field}: expected 0, 1, 2 or 3, got {value}")


def check_sequence_parallel(sequence_parallel: bool, tp: int) -> None:
    """Raise ``ValueError`` if a sequence is split over no ranks."""
    if sequence_parallel and tp == 1:
        raise ValueError(
            "sequence_parallel: expected false with tp = 1, which leaves "
            "nothing to split over, got true; remove it"
        )


def check_expert_tensor(etp: int, tp: int) -> None:
    """Raise ``ValueError`` unless experts are cut as other layers (0), or whole (1)."""
    if etp and (etp > 1 or tp == 1):
        raise ValueError(
            f"etp: expected 1, for whole experts on each of several tensor ranks, or "
            f"none, for experts that are cut over all of them, got {etp} with tp = "
            f"{tp}; leave it out"
        )


def _written(default: Any) -> Any:
    """Return a field that files state even where it has its default."""
    return field(default_factory=lambda: default)


class Strategy(Struct, frozen=True, kw_only=True, order=True):
    """How one layer is spread over the devices of its stage.

    Attributes
    ----------
    dp, tp, cp
        Data, tensor and context parallel degree; a layer uses ``dp * tp * cp`` devices.
    ep
        Expert parallel degree; divides ``dp * cp * tp / expert_tp``, adds no devices.
    etp
        Tensor parallel degree of experts: 1 where each tensor rank holds whole ones, 0
        where experts are cut over ``tp`` as other layers are.
    sequence_parallel
        Whether activations between layers are also split over ``tp``, where
        the job leaves that to plans; else false.
    zero
        ZeRO stage 0..3; shards over the ``dp * cp`` ranks.
    recompute
        Which activations the backward pass computes again.
    """

    dp: Count = _written(1)
    tp: Count = _written(1)
    cp: Count = _written(1)
    ep: Count = _written(1)
    etp: Size = 0
    sequence_parallel: bool = False
    zero: Annotated[int, check_zero_stage] = _written(0)
    recompute: Recompute = _written("none")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sequence_parallel(self.sequence_parallel, self.tp)
        check_expert_tensor(self.etp, self.tp)
        ranks = self.devices // self.expert_tp
        if ranks % self.ep:
            product = "dp * cp * tp" if self.etp else "dp * cp"
            raise ValueError(
                f"ep: expected a divisor of {product} = {ranks}, got {self.ep}"
            )

    @property
    def devices(self) -> int:
        """Number of devices, ``dp * tp * cp``."""
        return self.dp * self.tp * self.cp

    @property
    def layout(self) -> tuple[int, ...]:
        """What activations between layers are split by."""
        return (self.dp, self.tp, self.cp, self.sequence_parallel)

    @property
    def degrees(self) -> tuple[int, ...]:
        """What a layer's cost depends on, see COST_AXES."""
        return (self.tp, self.cp, self.ep, self.etp, self.sequence_parallel)

    @property
    def spread(self) -> tuple[int, ...]:
        """The degrees that a layer's groups depend on."""
        return (self.dp, self.tp, self.cp, self.ep, self.etp)

    @property
    def expert_tp(self) -> int:
        """Tensor ranks that each expert is cut over."""
        return self.etp or self.tp

    @property
    def data_ranks(self) -> int:
        """Size of the group that shares dense weights, ``dp * cp``."""
        return self.dp * self.cp

    @property
    def expert_ranks(self) -> int:
        """Size of the group that shares experts."""
        return self.devices // (self.expert_tp * self.ep)

    @property
    def shares_weights(self) -> bool:
        """Whether several ranks of a replica share some weights, if only experts."""
        return self.data_ranks > 1 or self.expert_ranks > 1

    def __str__(self) -> str:
        labels = [
            f"{name}{value}"
            for name in ("dp", "tp", "cp", "ep")
            if (value := getattr(self, name)) > 1
        ]
        if self.etp:
            labels.append(f"etp{self.etp}")
        if self.sequence_parallel:
            labels.insert(1 + (self.dp > 1), "sp")
        if self.zero:
            labels.append(f"zero{self.zero}")
        if self.recompute != "none":
            labels.append(f"recompute-{self.recompute}")
        return "·".join(labels) or "single"


class Stage(Struct, frozen=True, kw_only=True):
    """A pipeline stage: its layers, its devices, its strategy.

    Exactly one of ``strategy`` (for all layers) and ``strategies`` (one per
    layer, in the order of ``layers``) is given.
    """

    layers: Distinct[LayerId]
    devices: Count
    strategy: Strategy | None = None
    strategies: tuple[Strategy, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.strategy is None) == (self.strategies is None):
            raise ValueError(
                "strategy: expected either strategy or strategies, got "
                + ("neither" if self.strategy is None else "both")
            )
        if self.strategies is not None and len(self.strategies) != len(self.layers):
            raise ValueError(
                f"strategies: expected one per layer "
                f"({len(self.layers)}), got {len(self.strategies)}"
            )
        for strategy in self.layer_strategies:
            if strategy.devices != self.devices:
                raise ValueError(
                    f"devices: expected dp * tp * cp = {strategy.devices} "
                    f"of strategy {strategy}, got {self.devices}"
                )

    @classmethod
    def of(cls, layers: Sequence[LayerId], strategies: Sequence[Strategy]) -> Stage:
        """Return the stage of layers with a strategy each."""
        same_strategy = len(set(strategies)) == 1
        return cls(
            layers=tuple(layers),
            devices=strategies[0].devices,
            strategy=strategies[0] if same_strategy else None,
            strategies=None if same_strategy else tuple(strategies),
        )

    @property
    def layer_strategies(self) -> tuple[Strategy, ...]:
        """One strategy per layer, in the order of ``layers``."""
        if self.strategies is not None:
            return self.strategies
        assert self.strategy is not None
        return (self.strategy,) * len(self.layers)


class Plan(FileStruct, Tabular, frozen=True, kw_only=True, tag="nest-plan/1"):
    """A complete answer: how one training step runs.

    Attributes
    ----------
    replicas
        Number ``R`` of pipeline replicas.
    micro_batch
        Samples ``B`` that one pipeline step of one replica carries.
    stages
        The stages in pipeline order. In an interleaved plan they are the
        ``S v`` chunks in pipeline order: chunk ``i`` (from 0) sits on block
        ``i mod S``, and a replica uses the devices of the first ``S``.
    virtual_stages
        Chunks ``v`` per block; above 1 the schedule is interleaved.
    placement
        Where they sit; ``v`` for schedules of that shape, where chunks ``r``
        and ``2S-1-r`` sit on block ``r``.
    order
        Where the job leaves it to plans, in which order blocks run their passes: the
        name of a schedule, or the passes of every block, such as ``3F5``, the forward
        pass of micro-batch 5 through chunk 3 (both from 0); ``B`` is a backward pass,
        ``I`` and ``W`` its parts that compute gradients of inputs and of weights.
    overlap
        Communication that runs behind computation, as far as the job's fractions allow.
    distributed_optimizer
        Whether optimizer state and update are sharded over all ranks that
        share a weight, replicas included.
    problem_hash, solver
        Where the plan comes from; informative.
    """

    replicas: Count
    micro_batch: Count
    stages: tuple[Stage, ...]
    virtual_stages: Count = 1
    placement: Placement = "loop"
    order: str | PassLists | None = None
    overlap: tuple[Overlap, ...] = ()
    distributed_optimizer: bool = False
    problem_hash: str | None = None
    solver: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.stages:
            raise ValueError("stages: expected at least one stage, got none")
        if self.overlap:
            check_distinct("overlap", self.overlap)
        if self.placement == "v" and self.virtual_stages != 2:
            raise ValueError(
                f"virtual_stages: expected 2 with placement 'v', got "
                f"{self.virtual_stages}"
            )
        if self.virtual_stages > 1:
            self._check_chunks()

    def _check_chunks(self) -> None:
        count, virtual = len(self.stages), self.virtual_stages
        if count % virtual or count == virtual:
            raise ValueError(
                f"stages: expected a multiple of virtual_stages = {virtual}, "
                f"at least {2 * virtual} (two blocks), got {count}"
            )
        for i, chunk in enumerate(self.stages):
            block = self.block_of(i)
            first = self.stages[block]
            if chunk.devices != first.devices:
                raise ValueError(
                    f"stages: expected {first.devices} devices in stage {i + 1}, as in "
                    f"stage {block + 1} on the same block, got {chunk.devices}"
                )

    @property
    def text(self) -> str:
        """It in short: replicas, micro-batch, stages, chunks, strategies."""
        used = [s for stage in self.stages for s in stage.layer_strategies]
        strategies = list(dict.fromkeys(map(str, used)))
        if len(strategies) > 3:
            strategies[2:] = [f"{len(strategies) - 2} others"]
        chunks = f"v={self.virtual_stages}, " * (self.virtual_stages > 1)
        return (
            f"r={self.replicas}, b={self.micro_batch}, pp={self.num_blocks}, "
            f"{chunks}strategies {' | '.join(strategies)}"
        )

    @property
    def degrees(self) -> dict[str, str]:
        """Degrees as frameworks count them, as ranges over the stages."""
        used = [s for stage in self.stages for s in stage.layer_strategies]

        def span(values: Iterable[int]) -> str:
            low, *_, high = sorted({*values}) * 2
            return str(low) if low == high else f"{low}–{high}"

        folded = any(s.etp for s in used)
        return {
            "TP": span(s.tp for s in used),
            "PP": str(self.num_blocks),
            "VP": str(self.virtual_stages),
            "DP": span(self.replicas * s.dp for s in used),
            "CP": span(s.cp for s in used),
            "EP": span(s.ep for s in used),
            **({"ETP": span(s.expert_tp for s in used)} if folded else {}),
            "ZeRO": span(s.zero for s in used),
        }

    @property
    def recomputations(self) -> list[Recompute]:
        """How its stages recompute activations, the least first."""
        used = [s for stage in self.stages for s in stage.layer_strategies]
        return sorted({s.recompute for s in used}, key=RECOMPUTE.index)

    @property
    def degrees_text(self) -> str:
        """Degrees and recomputation for people: ``TP 4 · PP 8 · DP 2 …``."""
        texts = [
            f"{name} {text}"
            for name, text in self.degrees.items()
            if name not in ("EP", "VP") or text != "1"
        ]
        kinds = [kind.replace("none", "no") for kind in self.recomputations]
        return " · ".join([*texts, f"{' or '.join(kinds)} recomputation"])

    def __repr__(self) -> str:
        """Return what it is in a line; files have all of it."""
        return f"<Plan {self.text}>"

    def to_rows(self) -> list[Row]:
        """Return a row per stage; degrees are those of its first layer.

        Devices are those of the first replica, from 0. ``etp`` is a column where a
        strategy states it.
        """
        rows: list[Row] = []
        names = [*Strategy.__struct_fields__]
        if not any(s.etp for stage in self.stages for s in stage.layer_strategies):
            names.remove("etp")
        first = [0]
        for stage in self.stages[: self.num_blocks]:
            first.append(first[-1] + stage.devices)
        for index, stage in enumerate(self.stages):
            strategy = stage.layer_strategies[0]
            block = self.block_of(index)
            rows.append(
                {
                    "stage": index + 1,
                    "block": block + 1,
                    "first_layer": stage.layers[0],
                    "last_layer": stage.layers[-1],
                    "num_layers": len(stage.layers),
                    "first_device": first[block],
                    "devices": stage.devices,
                    **{name: getattr(strategy, name) for name in names},
                    "strategies": len(set(stage.layer_strategies)),
                }
            )
        return rows

    def block_of(self, chunk: int) -> int:
        """Return the block of a chunk, both from 0."""
        size = self.num_blocks
        if self.placement == "v":
            return min(chunk, 2 * size - 1 - chunk)
        return chunk % size

    def chunks_of(self, block: int) -> tuple[int, ...]:
        """Return the chunks of a block, all from 0."""
        size = self.num_blocks
        if self.placement == "v":
            return (block, 2 * size - 1 - block)
        return tuple(range(block, len(self.stages), size))

    @property
    def num_blocks(self) -> int:
        """Blocks ``S`` of devices in a replica; one per stage unless v > 1."""
        return len(self.stages) // self.virtual_stages

    @property
    def devices_used(self) -> int:
        """Devices that one replica uses."""
        return sum(stage.devices for stage in self.stages[: self.num_blocks])
