"""Which groups a layer communicates in, as keys of the network."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain

from nest.cost.axes import AXES, groups_of
from nest.ir.graph import CollectiveKind
from nest.ir.plan import Strategy
from nest.ir.problem import Problem
from nest.topology.protocol import Block, Kinds, Network, ParallelGroups

#: Keys of the network for all that :func:`~nest.cost.axes.groups_of` names.
GroupKeys = Mapping[str, Hashable]

#: Ranks that share dense weights, and those that share experts.
DATA_GROUPS = ("data", "expert-data")
#: The same at the end of the step.
STEP_GROUPS = ("step-data", "step-expert-data")
#: The same over all replicas.
SYNC_GROUPS = ("sync", "expert-sync")


class _Keys(dict[str, Hashable]):
    """Keys by name, each of which is made when it is first asked for."""

    def __init__(self, made: Callable[[str], Hashable]) -> None:
        super().__init__()
        self._made = made

    def __missing__(self, name: str) -> Hashable:
        key = self[name] = self._made(name)
        return key


class GroupTable:
    """The groups of every strategy on every block; remembers them."""

    def __init__(self, network: Network, problem: Problem) -> None:
        self._network, self._problem = network, problem
        self._known: dict[object, GroupKeys] = {}
        self._numbers: dict[object, int] = {}
        self._number_of: dict[object, int] = {}

    @cached_property
    def kinds(self) -> Mapping[str, Kinds]:
        """The kinds of collectives that layers run, by what the groups are for."""
        kinds: dict[str, set[CollectiveKind]] = {}
        costs = chain(*(kind.costs for kind in self._problem.graph.kinds))
        for call in chain(*(cost.collectives for cost in costs)):
            kinds.setdefault(call.axis, set()).add(call.kind)
        sharded: set[CollectiveKind] = {"all-gather", "reduce-scatter"}
        distributed = self._problem.job.distributed_optimizer
        kinds |= dict.fromkeys((*DATA_GROUPS, *STEP_GROUPS), sharded)
        whole: set[CollectiveKind] = {"all-reduce"}
        kinds |= dict.fromkeys(SYNC_GROUPS, whole | sharded if distributed else whole)
        return {**kinds, "replicas": whole}

    def _uses(self, strategy: Strategy) -> list[str]:
        """Return what the groups are for in which a strategy communicates.

        What :func:`~nest.cost.terms.sync_calls` runs at its ZeRO stage is among them.
        """
        names, zero = [x.name for x in AXES if x.name in self.kinds], strategy.zero
        names += DATA_GROUPS if zero >= 2 else ()
        names += (*STEP_GROUPS, "replicas") if zero >= 1 else ()
        distributed = self._problem.job.distributed_optimizer
        return [*names, *(SYNC_GROUPS if zero == 0 or distributed else ())]

    def keys(self, strategy: Strategy, block: Block) -> GroupKeys:
        """Return the key of the groups of every axis and purpose.

        Each is made when it is asked for, and holds for the kinds of collectives
        that layers run.
        """
        block = self._network.alike(block)
        key = (strategy.spread, block)
        if key not in self._known:
            purposes = groups_of(strategy)

            def made(name: str) -> Hashable:
                groups = ParallelGroups(block, *purposes[name])
                key: Hashable = self._network.groups(groups, self.kinds.get(name, ()))
                return key

            self._known[key] = _Keys(made)
        return self._known[key]

    def number(self, strategy: Strategy, block: Block) -> int:
        """Return a number that stands for all of a strategy's groups.

        Where it is the same on two blocks, with as many replicas, every
        collective takes the same on both.
        """
        block = self._network.alike(block)
        key = (strategy.spread, strategy.zero, block)
        if key not in self._number_of:
            keys = self.keys(strategy, block)
            groups = tuple(keys[name] for name in self._uses(strategy))
            self._number_of[key] = self._numbers.setdefault(groups, len(self._numbers))
        return self._number_of[key]

    def fastest(
        self, strategy: Strategy, blocks: Iterable[Block], *, passes: bool = False
    ) -> list[Block]:
        """Return some of blocks with as many replicas, that hold the least.

        For every other one of them there is one of these on which no collective that
        ``passes`` run, or none of the step's sync, is slower; whatever the ZeRO stage.
        """
        of_passes = (*DATA_GROUPS, *(x.name for x in AXES))
        names = [x for x in self.kinds if (x in of_passes) == passes]
        best_blocks: dict[Block, list[Hashable]] = {}
        for block in blocks:
            keys = list(map(self.keys(strategy, block).__getitem__, names))
            if not any(self._no_slower(x, keys) for x in best_blocks.values()):
                best_blocks = {
                    other: slower
                    for other, slower in best_blocks.items()
                    if not self._no_slower(keys, slower)
                }
                best_blocks[block] = keys
        return [*best_blocks]

    def _no_slower(self, keys: Sequence[Hashable], other: Sequence[Hashable]) -> bool:
        """Whether no collective is slower on some groups than on others."""
        return all(map(self._network.no_slower, keys, other))
