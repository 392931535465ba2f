"""All generators as data: their functions, parameters, units and defaults.

A new generator is a function that returns a graph and a record here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import networkx as nx

from nest.hardware.links import link_spec
from nest.topology.generators.clos import fat_tree, leaf_spine
from nest.topology.generators.direct import all_to_all, dragonfly, ring
from nest.topology.generators.nodes import RACK_SIZE, dgx, dgx1, nvl72, rail
from nest.topology.generators.tori import GENERATIONS, torus, tpu

#: What a parameter is: a tuple of axes, such as ``4x4x8``.
Shape = tuple[int, ...]

Value = int | float | bool | str | Shape | None


@dataclass(frozen=True)
class Parameter:
    """A parameter of a generator."""

    #: In text, and for people.
    name: str
    meaning: str
    #: ``int``, ``float``, ``bool``, ``str`` or ``tuple`` (a shape).
    kind: type
    #: Of a quantity.
    unit: str = ""
    #: Used if it is left out, unless it is required; ``None``: the generator chooses.
    default: Value = None
    #: Whether it must be given.
    required: bool = False
    #: The least value.
    minimum: float = 1
    #: Whether the minimum itself is too small.
    above: bool = False
    #: The words that it may be.
    choices: tuple[str, ...] = ()
    #: The argument of the generator's function that it is a part of: a
    #: :class:`~nest.topology.generators.build.Cable`, or
    #: :class:`~nest.topology.generators.build.Spines` for ``up``. By default it is an
    #: argument itself.
    argument: str = ""


@dataclass(frozen=True)
class Generator:
    """A generator of networks."""

    #: In text, and for people.
    name: str
    meaning: str
    #: Called with all parameters by name, those of one ``argument`` as one. It raises
    #: :class:`~nest.errors.InvalidOptionError` if values do not go together, or the
    #: network is too large.
    make: Callable[..., nx.Graph]
    #: The first one may be given without its name.
    parameters: tuple[Parameter, ...]
    #: What a user can start from.
    example: str
    #: Of nodes below leaves: from all values, devices of a node and nodes of a leaf.
    tree: Callable[..., tuple[int, int]] | None = None


def _count(name: str, meaning: str, default: int | None = None) -> Parameter:
    return Parameter(name, meaning, int, default=default, required=default is None)


def _latency(name: str, meaning: str, default: float, argument: str = "") -> Parameter:
    return Parameter(
        f"{name}_latency_ns",
        f"latency of {meaning}",
        float,
        unit="ns",
        default=default,
        minimum=0,
        argument=argument,
    )


def _link(
    name: str,
    meaning: str,
    bandwidth_bytes_per_s: float,
    latency_ns: float,
    argument: str = "",
) -> tuple[Parameter, ...]:
    """Return the two figures of a link, which are one argument."""
    bandwidth = Parameter(
        f"{name}_bytes_per_s",
        f"bandwidth of {meaning}, one way",
        float,
        unit="bytes/s",
        default=bandwidth_bytes_per_s,
        minimum=0,
        above=True,
        argument=argument or name,
    )
    return bandwidth, _latency(name, meaning, latency_ns, argument or name)


def _family(name: str, meaning: str, family: str) -> tuple[Parameter, ...]:
    """Return the figures of a stored link family.

    Its latency is that of a step through a switch, hence of two links.
    """
    spec = link_spec(family)
    return _link(name, f"{meaning} ({family})", spec.bytes_per_s, spec.latency_ns / 2)


#: What a switch adds: InfiniBand HDR (stas00/ml-engineering @744d01e18b,
#: network/README.md:729).
_SWITCH_NS = 600.0

_PORT = _family("port", "a device's port", "InfiniBand NDR")
_NVLINK = _family("nvlink", "a device's NVLinks", "NVLink 4")
_UP = _latency("up", "a link between switches", _SWITCH_NS)
_UPLINK = replace(_UP, argument="up")
_SPINES = Parameter(
    "spines",
    "above all leaves; else as many as make links up as fast as ports",
    int,
    argument="up",
)
_OVERSUBSCRIPTION = Parameter(
    "oversubscription",
    "bandwidth of a leaf's links down by that of its links up",
    float,
    default=1.0,
    argument="up",
)
_FABRIC = (_SPINES, _OVERSUBSCRIPTION, *_PORT, _UPLINK)
#: About 1 us a hop (jax-ml/scaling-book @0819a7d8c5, tpus.md:254).
_HOP_NS = link_spec("TPU ICI v4").latency_ns
_ICI = _link("link", "a link", GENERATIONS["v4"].link_bytes_per_s, _HOP_NS)
#: Bandwidth and latency of one of the six NVLinks of a V100.
_NVLINK_2 = (link_spec("NVLink 2").bytes_per_s / 6, link_spec("NVLink 2").latency_ns)


def _tpu(name: str) -> Generator:
    rules = GENERATIONS[name]
    return Generator(
        f"tpu-{name}",
        f"a slice of TPUs {name}, with their rules for wrapping around",
        partial(tpu, name),
        (
            Parameter("shape", "devices along each axis", tuple, required=True),
            Parameter("twisted", "a twisted torus", bool, default=False),
            *_link("link", "a link", rules.link_bytes_per_s, _HOP_NS),
        ),
        f"tpu-{name}:" + "x".join("4" * rules.axes),
    )


_RECORDS = (
    Generator(
        "fat-tree",
        "k-ary fat tree of k³/4 devices",
        fat_tree,
        (replace(_count("k", "ports of every switch, even"), minimum=2), *_PORT, _UP),
        "fat-tree:k=8",
        lambda x: (1, x["k"] // 2),
    ),
    Generator(
        "leaf-spine",
        "leaves of devices, joined by spines",
        leaf_spine,
        (
            _count("leaves", "leaf switches"),
            _count(
                "hosts",
                "devices of a leaf, without NVLink; for nodes with NVLink "
                "write dgx:nodes=16,nodes_per_leaf=4",
            ),
            *_FABRIC,
        ),
        "leaf-spine:leaves=4,hosts=8,oversubscription=2",
        lambda x: (1, x["hosts"]),
    ),
    Generator(
        "dgx",
        "nodes of devices behind NVSwitches, under leaves",
        dgx,
        (
            _count("nodes", "nodes"),
            _count("devices", "devices of a node", 8),
            Parameter(
                "ports",
                "a port per device, ports that the devices of a node pool, "
                "or one that they share",
                str,
                default="device",
                choices=("device", "pooled", "shared"),
            ),
            Parameter("nodes_per_leaf", "nodes of a leaf; else all of them", int),
            *_NVLINK,
            *_FABRIC,
        ),
        "dgx:nodes=4,ports=shared",
        lambda x: (x["devices"], x["nodes_per_leaf"] or x["nodes"]),
    ),
    Generator(
        "rail",
        "nodes whose device r has its port on leaf r",
        rail,
        (
            _count("nodes", "nodes"),
            _count("devices", "devices of a node, and leaves of a segment", 8),
            Parameter("segment", "nodes that share leaves; else all of them", int),
            replace(_SPINES, minimum=0, meaning=f"{_SPINES.meaning}; 0: rails only"),
            _OVERSUBSCRIPTION,
            *_NVLINK,
            *_PORT,
            _UPLINK,
        ),
        "rail:nodes=16,devices=8",
        lambda x: (x["devices"], x["segment"] or x["nodes"]),
    ),
    Generator(
        "nvl72",
        "racks of 72 devices on one NVLink switch plane",
        nvl72,
        (
            _count("racks", "racks"),
            *_family("nvlink", "a device's NVLinks", "NVLink 5"),
            *_FABRIC,
        ),
        "nvl72:racks=2",
        lambda _: (RACK_SIZE, 1),
    ),
    Generator(
        "dgx1",
        "DGX-1 nodes: eight devices in a mesh of NVLinks, four ports",
        dgx1,
        (
            _count("nodes", "nodes", 1),
            *_link(
                "nvlink", "one of the six NVLinks of a device (NVLink 2)", *_NVLINK_2
            ),
            *_family("pcie", "a device's PCIe link", "PCIe 3"),
            *_family("port", "a port of two devices", "InfiniBand EDR"),
        ),
        "dgx1:nodes=4",
    ),
    Generator(
        "torus",
        "a torus of any dimension, or a mesh",
        torus,
        (
            Parameter("shape", "devices along each axis", tuple, required=True),
            Parameter("wrap", "whether axes wrap around", bool, default=True),
            *_ICI,
        ),
        "torus:4x4x4",
    ),
    *(_tpu(name) for name in GENERATIONS),
    Generator(
        "dragonfly",
        "groups of routers, one global link between any two",
        dragonfly,
        (
            _count("p", "devices of a router"),
            _count("a", "routers of a group"),
            _count("h", "global links of a router"),
            Parameter("g", "groups; else a h + 1", int),
            *_family("port", "a device's port", "Slingshot"),
            *_link(
                "local",
                "a link inside a group",
                link_spec("Slingshot").bytes_per_s,
                _SWITCH_NS,
                "local_link",
            ),
            *_link(
                "global",
                "a link between groups",
                link_spec("Slingshot").bytes_per_s,
                2 * _SWITCH_NS,
                "global_link",
            ),
        ),
        "dragonfly:p=2,a=4,h=2",
    ),
    Generator(
        "ring",
        "devices in a circle",
        ring,
        (_count("devices", "devices"), *_ICI),
        "ring:devices=8",
    ),
    Generator(
        "all-to-all",
        "a link between any two devices",
        all_to_all,
        (_count("devices", "devices"), *_link("link", "a link", *_NVLINK_2)),
        "all-to-all:devices=4",
    ),
)

#: All generators by name.
GENERATORS: dict[str, Generator] = {record.name: record for record in _RECORDS}
