"""Networks: the time of a transfer and of a collective, α–β models."""

from nest.topology.hierarchy import GroupShape, HierarchyNetwork

__all__ = ["GroupShape", "HierarchyNetwork"]
