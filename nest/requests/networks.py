"""Networks that the command line names: files and generators."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from nest.errors import InvalidOptionError, InvalidProblemError, UnknownNameError
from nest.util.quantities import RATE, read_in

if TYPE_CHECKING:
    from nest.ir.problem import Problem


def is_generated(text: str) -> bool:
    """Return whether a text is the name of a generated network, no file."""
    from nest.topology.generators import GENERATORS

    return not os.path.exists(text) and text.split(":")[0] in GENERATORS


def find_network(
    text: str, beside: Sequence[str] = (), order: str | None = None
) -> Any:
    """Return the network in a file, or the one that a name stands for, in an order.

    ``text`` is a file in one of the formats of :mod:`nest.topology.files`, or a name
    such as ``torus:4x4x4``, see :mod:`nest.topology.generators`; or a cluster, by its
    file or as ``h100x64``, whose network it is. ``beside`` is what the file does not
    say, as ``key=value``; ``order`` is ``given``, ``auto``, or a rank file.

    Raises ``InvalidOptionError`` if something is said beside a name, or badly;
    ``NestError`` is whatever the reader of the file refuses.
    """
    from nest.topology.generators import generate

    said = _read_beside(beside)
    if is_generated(text):
        if said:
            raise InvalidOptionError(
                f"--beside: expected a file with it, got the network "
                f"{text!r}; leave it out, or write it into the name"
            )
        graph = generate(text)
    elif not said and (found := _of_cluster(text)) is not None:
        graph = found
    else:
        graph = _read(text, said)
    return in_order(graph, order)


def _of_cluster(text: str) -> Any:
    """Return the network of a cluster file or name; ``None`` for others."""
    from nest.hardware.cluster_file import SUFFIXES, find_cluster
    from nest.hardware.fabric import mixed_cluster
    from nest.ir.io import decode, read_bytes
    from nest.topology.generators.build import check_size
    from nest.topology.graph.convert import graph_of, networkx_of

    if os.path.exists(text):
        if not text.endswith(SUFFIXES):
            return None
        try:
            data = read_bytes(text, InvalidProblemError)
            keys = decode(data, text, dict, "network", InvalidProblemError)
        except InvalidProblemError:
            return None  # the reader of networks says what is wrong
        if not {"num_devices", "device"} <= keys.keys():
            return None
    elif not re.fullmatch(r"[\w.+-]+[x×]\d+", text):
        return None
    parts, cluster = find_cluster(text)
    if cluster is None:
        (site, count), *rest = parts
        cluster = mixed_cluster(parts) if rest else site.cluster(count)
    check_size("NETWORK", cluster.num_devices, 0)
    network = cluster.topology
    if network.kind == "hierarchy":
        check_size("NETWORK", network.capacities[-1], 0)
        network = graph_of(network)
    return networkx_of(network)


def _read(text: str, said: Mapping[str, Any]) -> Any:
    from nest.topology.files import read_topology
    from nest.topology.generators import GENERATORS

    if not os.path.exists(text) and os.sep not in text and "." not in text:
        raise UnknownNameError("network", text.split(":")[0], GENERATORS)
    return read_topology(text, **said)


def in_order(graph: Any, order: str | None) -> Any:
    """Return a network with its devices in an order."""
    from nest.topology.files import read_rankfile
    from nest.topology.order import ORDERS, find_order

    if order is None or order == "given":
        return graph
    if order not in ORDERS and os.path.exists(order):
        found: Sequence[Any] = read_rankfile(order, graph)
    else:
        found = find_order(graph, order)
    graph.graph["order"] = list(found)
    return graph


def with_network(problem: Problem, network: Any, where: str) -> Problem:
    """Return a problem on the first devices of another graph or tree.

    Raises ``InvalidOptionError`` if the network has too few devices, and
    ``InvalidProblemError`` if it is no network.
    """
    from msgspec.structs import replace

    from nest.topology.generators.text import enlarged
    from nest.topology.graph.convert import topology_of

    topology = network
    if getattr(network, "kind", "") != "hierarchy":
        topology = topology_of(network, where)
    num_devices = problem.cluster.num_devices
    if topology.max_devices < num_devices:
        larger = ""
        if is_generated(where):
            larger = enlarged(where, num_devices)
        raise InvalidOptionError(
            f"--topology: expected a network of at least the {num_devices} "
            f"devices of --cluster, got {topology.max_devices} in {where!r}; "
            f"{larger or 'name a larger network, or fewer devices'}"
        )
    cluster = replace(problem.cluster, topology=topology)
    return replace(problem, cluster=cluster)


def _read_beside(texts: Sequence[str]) -> dict[str, Any]:
    """Return ``key=value`` pairs with values of the right type."""
    from nest.topology.files import FileSupplement

    hints = get_type_hints(FileSupplement)
    known = {field.name: hints[field.name] for field in fields(FileSupplement)}
    found: dict[str, Any] = {}
    for text in (part for entry in texts for part in entry.split(",")):
        key, equals, value = text.partition("=")
        key = key.strip().replace("-", "_")
        if not equals:
            raise InvalidOptionError(
                f"--beside: expected KEY=VALUE, got {text!r}; for example "
                f"devices_per_node=8"
            )
        if key not in known:
            raise UnknownNameError("--beside key", key, known)
        found[key] = _value(key, value.strip(), known[key])
    return found


def _value(key: str, text: str, hint: Any) -> Any:
    kinds = get_args(hint)
    try:
        if int in kinds:
            return int(text)
        if str in kinds:
            return text
        read: Callable[[str], float] = float
        if key.endswith("bytes_per_s"):
            read = partial(read_in, kind=RATE, unit="B/s")
        if float in kinds:
            return read(text)
        return tuple(map(read, re.split(r"/(?!s\b)", text)))
    except ValueError:
        kind = "a whole number" if int in kinds else "a number"
        if not {int, float} & set(kinds):
            kind = "numbers such as 4e11/2e11"
        raise InvalidOptionError(
            f"--beside: {key}: expected {kind}, got {text!r}; correct it"
        ) from None
