"""Plans with one strategy for all blocks, as neighbors of each other.

A *setting* is what such a plan chooses but for its cuts: replicas,
micro-batch, strategy, blocks, chunks per block and where they sit. Its
neighbors double or halve one or two of these, or take another choice. So good
settings are found from those of plans in hand, without pricing all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from msgspec.structs import replace

from nest.cost.model import CostModel
from nest.cost.space import BatchSplit, Runtime, batch_splits, runtime_of
from nest.ir.job import FIXED_CHUNKS
from nest.ir.plan import Placement, Plan, Strategy
from nest.search.passes.chunks import Uniform, prefix_shapes
from nest.search.passes.interleaved import tried_runtimes
from nest.search.stages.options import BatchTerms

#: Strategies of every batch to begin with where no plan is in hand.
PLAINEST = 2


class Setting(NamedTuple):
    """What a plan with one strategy for all blocks chooses."""

    replicas: int
    micro_batch: int
    strategy: Strategy
    blocks: int
    virtual_stages: int
    placement: Placement
    runtime: Runtime


def settings_of(plan: Plan) -> list[Setting]:
    """Return the settings of a plan, one for each strategy of its stages."""
    strategies = [stage.layer_strategies[0] for stage in plan.stages]
    return [
        Setting(
            replicas=plan.replicas,
            micro_batch=plan.micro_batch,
            strategy=strategy,
            blocks=plan.num_blocks,
            virtual_stages=plan.virtual_stages,
            placement=plan.placement,
            runtime=runtime_of(plan)._replace(virtual_stages=1),
        )
        for strategy in dict.fromkeys(strategies)
    ]


class Settings:
    """The settings of a problem, and their plans."""

    def __init__(self, model: CostModel) -> None:
        self.model = model
        self._shapes = prefix_shapes(model)
        #: Every batch configuration by its ``(R, B)``.
        self.splits = {split[:2]: split for split in batch_splits(model.problem)}
        self._terms: dict[tuple[Runtime, int, int], BatchTerms] = {}

    @cached_property
    def _chunk_layouts(self) -> list[tuple[int, Placement]]:
        """Chunks per block, and where they may sit."""
        counts = self.model.problem.job.chunk_counts
        layouts: list[tuple[int, Placement]] = [(x, "loop") for x in counts]
        if FIXED_CHUNKS["zb-v"] in counts:
            layouts.append((FIXED_CHUNKS["zb-v"], "v"))
        return layouts

    def terms(self, runtime: Runtime, split: BatchSplit) -> BatchTerms:
        """Return the terms of a batch configuration, which are priced once."""
        replicas = split.replicas if runtime.distributed_optimizer else 1
        key = runtime, split.micro_batch, replicas
        if key not in self._terms:
            self._terms[key] = BatchTerms(
                self._shapes, split.micro_batch, runtime, replicas
            )
        return self._terms[key]

    def plan(self, setting: Setting) -> Plan | None:
        """Return the plan of a setting with even chunks; ``None`` if none."""
        split = self.splits.get(setting[:2])
        if split is None:
            return None
        terms = self.terms(setting.runtime, split)
        if setting.strategy not in terms.row_of:
            return None
        uniform = Uniform(terms, terms.row_of[setting.strategy], split)
        if uniform.anywhere.missing.any():
            return None
        virtual = setting.virtual_stages
        if setting.blocks not in uniform.blocks(virtual):
            return None
        cuts = uniform.even_cuts(setting.blocks * virtual)
        if cuts is None:
            return None
        return uniform.plan(cuts, virtual, setting.placement)

    def neighbors(self, setting: Setting) -> Iterator[Setting]:
        """Yield the settings that differ by one step."""
        for virtual, placement in self._chunk_layouts:
            yield setting._replace(virtual_stages=virtual, placement=placement)
        for blocks in (setting.blocks - 1, setting.blocks + 1):
            yield setting._replace(blocks=blocks)
        for strategy in self._other_choices(setting.strategy):
            yield setting._replace(strategy=strategy)
        amounts = {
            "replicas": setting.replicas,
            "micro_batch": setting.micro_batch,
            "blocks": setting.blocks,
            **{x: getattr(setting.strategy, x) for x in ("dp", "tp", "cp")},
            "ep": setting.strategy.ep,
        }
        for up in (None, *amounts):
            for down in (None, *amounts):
                moved = {**amounts}
                if up is not None:
                    moved[up] *= 2
                if down is not None:
                    if moved[down] % 2:
                        continue
                    moved[down] //= 2
                if moved != amounts:
                    yield from self._with_amounts(setting, moved)

    def _with_amounts(
        self, setting: Setting, amounts: dict[str, int]
    ) -> Iterator[Setting]:
        """Yield a setting with other amounts, if a strategy has them."""
        degrees = {x: amounts[x] for x in ("dp", "tp", "cp", "ep")}
        degrees["etp"] = setting.strategy.etp if degrees["tp"] > 1 else 0
        whole = degrees["tp"] if degrees["etp"] else 1
        if degrees["dp"] * degrees["cp"] * whole % degrees["ep"]:
            return
        split = setting.strategy.sequence_parallel and degrees["tp"] > 1
        yield setting._replace(
            replicas=amounts["replicas"],
            micro_batch=amounts["micro_batch"],
            blocks=amounts["blocks"],
            strategy=replace(setting.strategy, **degrees, sequence_parallel=split),
        )

    def _other_choices(self, strategy: Strategy) -> Iterator[Strategy]:
        """Yield a strategy with another choice that takes no devices."""
        job = self.model.problem.job
        for zero in job.zero:
            yield replace(strategy, zero=zero)
        for recompute in job.recompute:
            yield replace(strategy, recompute=recompute)
        for split in job.sequence_choices(strategy.tp):
            yield replace(strategy, sequence_parallel=split)
        if strategy.tp > 1 and strategy.data_ranks % strategy.ep == 0:
            yield replace(strategy, etp=0 if strategy.etp else 1)

    def plainest(self) -> Iterator[Setting]:
        """Yield settings to begin with, the first strategies of batches."""
        for runtime in tried_runtimes(self.model.problem):
            for split in self.splits.values():
                for strategy in self.terms(runtime, split).strategies[:PLAINEST]:
                    blocks = split.devices // strategy.devices
                    if blocks:
                        yield Setting(
                            *split[:2],
                            strategy,
                            min(blocks, len(self._shapes.order)),
                            *self._chunk_layouts[0],
                            runtime,
                        )
