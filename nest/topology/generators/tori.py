"""Tori and meshes, and slices of TPUs with their wrap-around rules."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import networkx as nx

from nest.errors import InvalidOptionError
from nest.topology.generators.build import Cable, Wiring, refuse

Coordinates = tuple[int, ...]


@dataclass(frozen=True)
class Generation:
    """What slices of a generation of TPUs are made of."""

    #: Dimensions of a slice.
    axes: int
    #: The largest slice: devices in all, and along an axis (0: any).
    max_devices: int
    max_axis: int
    #: All axes wrap if all are multiples of the first (cubes joined by optical
    #: switches); an axis wraps if it is of the second. 0: never.
    wrap_multiple: int
    wrap_length: int
    #: Devices of a host, along every axis (recalled).
    host: Coordinates
    #: Of a link in one direction (jax-ml/scaling-book, tpus.md).
    link_bytes_per_s: float

    def wraps(self, shape: Coordinates) -> tuple[bool, ...]:
        """Return which axes of a slice wrap around."""
        cubes = self.wrap_multiple > 0 and not any(
            length % self.wrap_multiple for length in shape
        )
        return tuple(cubes or length == self.wrap_length for length in shape)


#: By name. The largest v4 slice is 16x16x16 and the largest v5p slice
#: 16x20x28; cubes can be put together in any shape, so the devices count.
GENERATIONS = {
    "v4": Generation(3, 16 * 16 * 16, 0, 4, 0, (2, 2, 1), 45e9),
    "v5p": Generation(3, 16 * 20 * 28, 0, 4, 0, (2, 2, 1), 90e9),
    "v5e": Generation(2, 16 * 16, 16, 0, 16, (4, 2), 45e9),
    "v6e": Generation(2, 16 * 16, 16, 0, 16, (4, 2), 90e9),
}


def torus(shape: Coordinates, wrap: bool, link: Cable) -> nx.Graph:
    """Return the torus, or the mesh if it does not wrap around.

    Devices forward. Ranks count along the first axis first. An axis of 2
    that wraps has two cables between its devices, an axis of 1 none.
    """
    return _lattice("torus", shape, (wrap,) * len(shape), link)


def tpu(generation: str, shape: Coordinates, twisted: bool, link: Cable) -> nx.Graph:
    """Return a slice of TPUs, with the wrap-around rules of its generation.

    Slices ``n x n x 2n`` and ``n x 2n x 2n``, in any order of the axes, of those that
    wrap can be twisted: an axis of ``n`` that wraps around ends ``n`` further on every
    axis of ``2n``, which makes all axes alike (Cámara et al., TPDS 2010, recalled). A
    twisted slice has no ``coord`` and ``wrap``, since these describe a torus.
    """
    rules, where = GENERATIONS[generation], f"tpu-{generation}: shape"
    text = "x".join(map(str, shape))
    if len(shape) != rules.axes:
        refuse(where, f"{rules.axes} axes", text, "write " + "x".join("4" * rules.axes))
    if rules.max_axis and max(shape) > rules.max_axis:
        refuse(where, f"axes of at most {rules.max_axis}", text, "shorten it")
    if math.prod(shape) > rules.max_devices:
        raise InvalidOptionError(
            f"{where}: expected at most {rules.max_devices} devices, got {text} = "
            f"{math.prod(shape)}; that is the largest slice"
        )
    wraps = rules.wraps(shape)
    shifts = None
    if twisted:
        short = min(shape)
        if set(shape) != {short, 2 * short} or len(shape) != 3:
            raise InvalidOptionError(
                f"tpu-{generation}: twisted: expected a shape n x n x 2n or n x 2n x "
                f"2n, got {text}; leave twisted out"
            )
        if not all(wraps):
            raise InvalidOptionError(
                f"tpu-{generation}: twisted: expected all axes to be multiples of "
                f"{rules.wrap_multiple}, got {text}; such a slice does not wrap around"
            )
        shifts = [
            tuple(short if other > length else 0 for other in shape)
            if length == short
            else (0,) * len(shape)
            for length in shape
        ]
    boxes = {"host": rules.host}
    if rules.wrap_multiple:
        boxes["cube"] = (rules.wrap_multiple,) * len(shape)
    tiling = {
        what: box
        for what, box in boxes.items()
        if not any(n % length for n, length in zip(shape, box, strict=True))
    }
    return _lattice(where, shape, wraps, link, shifts, tiling)


def _lattice(
    where: str,
    shape: Coordinates,
    wraps: Sequence[bool],
    link: Cable,
    shifts: Sequence[Coordinates] | None = None,
    boxes: Mapping[str, Coordinates] | None = None,
) -> nx.Graph:
    """Return neighbors joined along every axis.

    ``shifts`` says for every axis by how much wrapping around it moves along
    the others; ``boxes`` of such sizes are units of the devices.
    """
    count = math.prod(shape)
    network = Wiring(where, count, count * len(shape))
    # Those of the first axis first.
    backward = itertools.product(*(range(n) for n in shape[::-1]))
    positions = [position[::-1] for position in backward]
    for position in positions:
        units = [
            what + ".".join(str(x // n) for x, n in zip(position, box, strict=True))
            for what, box in (boxes or {}).items()
        ]
        network.add_devices([_name(position)], *units, forward=True)
    none = (0,) * len(shape)
    for position in positions:
        for axis, (length, wrap) in enumerate(zip(shape, wraps, strict=True)):
            last = position[axis] == length - 1
            if length == 1 or (last and not wrap):
                continue
            step = shifts[axis] if shifts is not None and last else none
            to = [
                (x + shift) % size
                for x, shift, size in zip(position, step, shape, strict=True)
            ]
            to[axis] = (position[axis] + 1) % length
            network.connect(_name(position), _name(to), link)
    if shifts is None:
        coord = {_name(position): list(position) for position in positions}
        network.graph.graph |= {"coord": coord, "wrap": list(wraps)}
    return network.finished()


def _name(position: Sequence[int]) -> str:
    return "dev" + ".".join(map(str, position))
