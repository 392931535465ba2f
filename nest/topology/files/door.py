"""The one door: recognize a file that describes a topology, and read it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import networkx as nx

from nest.errors import UnknownNameError
from nest.topology.files import (
    astra_sim,
    graphs,
    kubernetes,
    nccl,
    nvidia_smi,
    simai,
    slurm_conf,
    slurm_yaml,
    topograph,
)
from nest.topology.files.hosts import NODE, PORT, UPLINKS
from nest.topology.files.source import Source, read_source
from nest.topology.files.supplement import supplement_of

_YAML = (".yaml", ".yml")

#: Options that lists of hosts need, and files that describe one node.
_PORTS = ("ports_per_node", *PORT)
_HOSTS = ("devices_per_node", *NODE, *_PORTS, *UPLINKS, "part")
_NODES = (
    "num_nodes",
    "node_latency_ns",
    *_PORTS,
    "pcie_bandwidth_bytes_per_s",
    "pcie_latency_ns",
    "socket_bandwidth_bytes_per_s",
)


class Format(NamedTuple):
    """A format of files."""

    #: What it is called, also by users.
    name: str
    #: What it is.
    title: str
    #: Of its files; a file of another name is recognized by content alone.
    suffixes: tuple[str, ...]
    #: A regular expression, of lines, that is found in files of the format only.
    mark: str
    #: Reads it; raises :class:`~nest.errors.InvalidProblemError` if the file is
    #: malformed or contradicts itself, and :class:`~nest.errors.InvalidOptionError` if
    #: an option is missing or does not fit the file.
    read: Callable[[Source], nx.Graph]
    #: Options that it may need in addition to the file.
    options: tuple[str, ...] = ()


FORMATS = {
    one.name: one
    for one in (
        Format(
            "astra-sim",
            "network of ASTRA-sim's analytical backends",
            _YAML,
            r"^npus_count\s*:",
            astra_sim.read,
        ),
        Format(
            "graphml",
            "GraphML",
            (".graphml", ".xml"),
            r"<graphml\b",
            graphs.read_graphml,
        ),
        Format(
            "kubernetes",
            "kubectl get nodes -o json",
            (".json",),
            r'"metadata"\s*:\s*\{',
            kubernetes.read,
            _HOSTS,
        ),
        Format(
            "nccl",
            "topology file of NCCL",
            (".xml",),
            r"<system\b",
            nccl.read,
            (*_NODES, "node_bandwidth_bytes_per_s"),
        ),
        Format(
            "node-link",
            "node-link JSON of networkx",
            (".json",),
            r'"(edges|links)"\s*:\s*\[',
            graphs.read_node_link,
        ),
        Format(
            "nvidia-smi",
            "nvidia-smi topo -m",
            (".txt", ".log"),
            r"^[ \t]*(\x1b\[[0-9;]*m[ \t]*)*GPU\d+\b",
            nvidia_smi.read,
            (*_NODES, "nvlink_bandwidth_bytes_per_s", "nvlinks_per_device"),
        ),
        Format(
            "simai",
            "topology file of SimAI",
            (".txt", ".topo"),
            r"\A\s*\d+[ \t]+([^\s:=]+[ \t]+){4}[^\s:=]+[ \t]*(\n|\Z)",
            simai.read,
        ),
        Format(
            "slurm-conf",
            "Slurm's topology.conf",
            (".conf",),
            r"(?i)^[ \t]*(SwitchName|BlockName|BlockSizes|RingName)=",
            slurm_conf.read,
            _HOSTS,
        ),
        Format(
            "slurm-yaml",
            "Slurm's topology.yaml",
            _YAML,
            r"^-\s+topology\s*:",
            slurm_yaml.read,
            (*_HOSTS, "num_nodes", "topology"),
        ),
        Format(
            "topograph-graph",
            "JSON of topograph's graph engine",
            (".json",),
            r'"instances"\s*:',
            topograph.read_graph,
            _HOSTS,
        ),
        Format(
            "topograph-model",
            "model of topograph",
            _YAML,
            r"^(switches|blocks|capacity_blocks)\s*:",
            topograph.read_model,
            _HOSTS,
        ),
    )
}


def read_topology(
    path: str | Path, format: str | None = None, **options: Any
) -> nx.Graph:
    """Read a file that describes a network.

    Parameters
    ----------
    path
        The file.
    format
        A key of :data:`FORMATS`; recognized from suffix and content by default.
    **options
        What the file does not say: the fields of
        :class:`~nest.topology.files.supplement.FileSupplement`; ``None`` is
        an option without a value.

    Returns
    -------
    networkx.Graph
        Nodes of ``kind`` device or switch, which may say ``forward``; edges with
        ``bandwidth`` (bytes/s, one way, full duplex) and ``latency_ns``; ``order``
        (devices by rank), and what else is known: ``units``, ``coord`` with ``wrap``,
        ``name``. A :class:`networkx.DiGraph` if the two directions of a link differ.

    Raises
    ------
    InvalidProblemError
        If the file cannot be read or recognized, or is inconsistent.
    InvalidOptionError
        If an option is missing or out of range, or the format does not ask for it.
    UnknownNameError
        If the format or an option is unknown.
    """
    supplement = supplement_of(options)
    if format is not None and format not in FORMATS:
        raise UnknownNameError("format", format, FORMATS)
    source = read_source(path, supplement)
    chosen = recognise(source) if format is None else FORMATS[format]
    preferred = Path(path).with_name("topology.yaml")
    if format is None and Path(path).name == "topology.conf" and preferred.is_file():
        raise source.error(
            f"expected the file that Slurm reads, got one that it ignores, as "
            f"topology.yaml is beside it; name that one, or give the format "
            f"{chosen.name}"
        )
    supplement.check_names(source.where, chosen.name, chosen.options)
    return chosen.read(source)


def recognise(source: Source) -> Format:
    """Return the format of a file.

    Its content decides, and the suffix where the content could be several.

    Raises ``InvalidProblemError`` if it is none of them, or could still be several.
    """
    matches = [
        one for one in FORMATS.values() if re.search(one.mark, source.text, re.M)
    ]
    if len(matches) > 1:
        suffix = Path(source.where).suffix.lower()
        matches = [one for one in matches if suffix in one.suffixes] or matches
    if len(matches) == 1:
        return matches[0]
    several = " or ".join(one.name for one in matches)
    raise source.refuse(
        "",
        f"one of the formats {', '.join(FORMATS)}",
        f"what could be {several}" if matches else "none of them",
        "give the format, or check the file",
    )
