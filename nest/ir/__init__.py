"""The problem IR: frozen records, versioned files, a canonical hash."""

from nest.ir.cluster import (
    Cluster,
    Device,
    DeviceRange,
    GroupFraction,
    Hierarchy,
    Level,
)
from nest.ir.graph import (
    Activations,
    CollectiveCall,
    DeviceTimes,
    Edge,
    Graph,
    Layer,
    LayerCost,
    LayerKind,
)
from nest.ir.graph_topology import GraphTopology, NetworkLink, NetworkNode
from nest.ir.io import (
    decode_problem,
    encode,
    problem_hash,
    read_plan,
    read_problem,
    write,
)
from nest.ir.job import Job, Optimizer
from nest.ir.plan import RECOMPUTE, Plan, Stage, Strategy
from nest.ir.problem import Problem

__all__ = [
    "RECOMPUTE",
    "Activations",
    "Cluster",
    "CollectiveCall",
    "Device",
    "DeviceRange",
    "DeviceTimes",
    "Edge",
    "Graph",
    "GraphTopology",
    "GroupFraction",
    "Hierarchy",
    "Job",
    "Layer",
    "LayerCost",
    "LayerKind",
    "Level",
    "NetworkLink",
    "NetworkNode",
    "Optimizer",
    "Plan",
    "Problem",
    "Stage",
    "Strategy",
    "decode_problem",
    "encode",
    "problem_hash",
    "read_plan",
    "read_problem",
    "write",
]
