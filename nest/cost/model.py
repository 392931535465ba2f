"""The cost terms of a problem: everything that is ever added up.

:class:`CostModel` answers what a layer adds to its stage, what a stage pays
to receive across a cut, and which blocks are alike, every answer rounded once.
``score``, the tables of the searches and the formulations all read these and
compute no cost of their own. Symbols follow docs/cost-model.md.
"""

from __future__ import annotations

import copy

from msgspec.structs import replace

from nest.cost.groups import GroupTable
from nest.cost.magnitude import check_magnitude
from nest.cost.quanta import Quanta
from nest.cost.rules import get_rules
from nest.cost.space import PLAIN, Runtime
from nest.cost.terms import LayerPrices, LayerTerms
from nest.cost.transfers import Tensor, Transfers
from nest.ir.plan import Strategy
from nest.ir.problem import Problem
from nest.topology import Block, Network, network_of

__all__ = ["Block", "CostModel", "LayerTerms", "Tensor"]


class CostModel:
    """Cost terms of one problem; remembers what it computed.

    The network is made anew unless it is given.

    Attributes
    ----------
    index, order
        Position of every layer by the text of its id, and the positions, sources first.
    rules
        What its preset says about stages and the step.
    network
        Times of transfers and collectives.
    quanta
        Its rounding.
    transfers
        The tensors between layers, and what receiving them takes.
    groups, layers
        Parallel groups, and the terms of layers on them.
    runtime
        How plans run their stages, where nothing else is said.

    Raises
    ------
    UnknownNameError
        If the problem's preset does not exist.
    InvalidProblemError
        If the preset cannot express the problem, or a step could take more
        than 2**61 quanta.
    """

    def __init__(self, problem: Problem, network: Network | None = None) -> None:
        self.problem = problem
        self.index = problem.graph.index
        self.order = tuple(problem.graph.topological_order())
        self.rules = get_rules(problem.preset)
        self.network = network or network_of(problem.cluster.topology)
        self.rules.check(problem)
        check_magnitude(problem, self.network)
        self.quanta = Quanta(problem.quantum_ps)
        self.transfers = Transfers(problem, self.quanta)
        self.groups = GroupTable(self.network, problem)
        self.layers = LayerPrices(
            problem, self.rules, self.network, self.groups, self.quanta
        )
        self.runtime = PLAIN

    def under(self, runtime: Runtime) -> CostModel:
        """Return the model of plans that run their stages in such a way.

        Both share what they have computed.
        """
        other = copy.copy(self)
        other.runtime = runtime
        return other

    def bounding(self) -> CostModel:
        """Return a model in which no collective takes longer, cheap to price."""
        other = copy.copy(self)
        other.network = self.network.bounding
        if other.network is self.network:
            return self
        other.groups = GroupTable(other.network, self.problem)
        other.layers = LayerPrices(
            self.problem, self.rules, other.network, other.groups, self.quanta
        )
        return other

    def within(self, memory_bytes: int) -> CostModel:
        """Return the model of the problem with at most such a capacity.

        Both share what they have computed: no term depends on it.
        """
        cluster = self.problem.cluster.within(memory_bytes)
        other = copy.copy(self)
        other.problem = replace(self.problem, cluster=cluster)
        return other

    def on_type(self, number: int) -> CostModel:
        """Return the model of the problem on devices of one type only."""
        device = self.problem.cluster.types[number]
        cluster = replace(self.problem.cluster, device=device, others=())
        other = copy.copy(self)
        other.problem = replace(self.problem, cluster=cluster)
        other.layers = LayerPrices(
            other.problem, self.rules, self.network, self.groups, self.quanta
        )
        return other

    # Layers

    def available(self, layer: int, strategy: Strategy, micro_batch: int) -> str | None:
        """Return why a layer cannot run under a strategy, or ``None``."""
        return self.layers.why_not(layer, strategy, micro_batch)

    def layer_terms(
        self,
        layer: int,
        strategy: Strategy,
        micro_batch: int,
        block: Block | None,
        runtime: Runtime | None = None,
        replicas: int = 1,
    ) -> LayerTerms | None:
        """Return the terms of a layer, or ``None`` if it is not available.

        By default those of :attr:`runtime`. Without a block they are the
        terms without any communication, for so many replicas: no block of
        one of them has smaller ones.
        """
        return self.layers.terms(
            *(layer, strategy, micro_batch, block), *(runtime or self.runtime, replicas)
        )

    # Devices

    def alike(self, block: Block) -> Block:
        """Return a block on which every layer costs the same.

        The same one for all blocks that the network cannot tell apart and
        that have the same types of devices.
        """
        twin = self.network.alike(block)
        types_in = self.problem.cluster.types_in
        same = types_in(twin.ranges()) == types_in(block.ranges())
        return twin if same else block

    def capacity_bytes(self, block: Block) -> int:
        """Return the memory that each device of a block has."""
        return self.problem.cluster.memory_bytes(block.ranges())

    def shards(self, strategy: Strategy) -> int:
        """Return over how many ranks an activation between layers is split."""
        return self.problem.job.shards(strategy)
