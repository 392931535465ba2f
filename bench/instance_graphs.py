"""Graphs that are no chains, from published convolutional networks.

Shapes are those of the papers. A layer takes what its operations take at half
of the device's peak in 16 bits, or what its bytes take at its memory bandwidth
if that is longer: an assumption, no measurement, which makes instances and no
predictions. Its backward pass takes twice as long. Over ``tp`` the output
channels are split: the output is gathered in the forward pass, the gradient of
the input is summed in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nest.hardware import Machine
from nest.ir import Activations, Edge, Graph, Layer, LayerCost, LayerKind
from nest.ir.graph import CollectiveCall

#: What of the peak operations reach.
FRACTION = 0.5

#: Bytes of a value.
VALUE_BYTES = 2


@dataclass(frozen=True)
class Node:
    """A layer: work and values of one sample.

    Attributes
    ----------
    operations
        Floating-point operations of the forward pass.
    weights
        How many.
    taken, made, inside
        Values that it takes in, hands on, and computes besides.
    """

    id: str
    operations: int
    weights: int
    taken: int
    made: int
    inside: int = 0


@dataclass
class Network:
    """Nodes and who hands how many values to whom, while it is written."""

    nodes: list[Node] = field(default_factory=list)
    links: list[tuple[str, str, int]] = field(default_factory=list)

    def add(self, node: Node, *sources: tuple[str, int]) -> str:
        self.nodes.append(node)
        self.links += [(source, node.id, size) for source, size in sources]
        return node.id

    def conv(
        self,
        name: str,
        size: int,
        channels: tuple[int, int],
        *sources: tuple[str, int],
        kernel: int = 1,
        stride: int = 1,
        first: tuple[int, int] | None = None,
    ) -> tuple[str, int]:
        """Add a convolution of so many outputs along each side.

        ``first`` are channels and kernel of one in front of it, at the size
        of its own output.
        """
        inputs, outputs = channels
        taken = size * size * stride * stride * inputs
        operations = weights = inside = 0
        if first is not None:
            middle, its = first
            weights += its * its * inputs * middle
            operations += 2 * its * its * inputs * middle * size * size
            inside += size * size * middle
            inputs = middle
        weights += kernel * kernel * inputs * outputs
        operations += 2 * kernel * kernel * inputs * outputs * size * size
        made = size * size * outputs
        node = Node(name, operations, weights, taken, made, inside + made)
        return self.add(node, *sources), made

    def join(self, name: str, *sources: tuple[str, int]) -> tuple[str, int]:
        """Add a node that puts channels side by side."""
        made = sum(size for _, size in sources)
        return self.add(Node(name, 0, 0, made, made), *sources), made

    def dense(
        self, name: str, shape: tuple[int, int], *sources: tuple[str, int]
    ) -> tuple[str, int]:
        inputs, outputs = shape
        node = Node(name, 2 * inputs * outputs, inputs * outputs, inputs, outputs)
        return self.add(node, *sources), outputs


def googlenet() -> Network:
    """Szegedy et al. 2015, arXiv 1409.4842, table 1."""
    net = Network()
    end = net.conv("conv1", 112, (3, 64), kernel=7, stride=2)
    # Pooling hands on a quarter of the values.
    end = net.conv(
        "conv2", 56, (64, 192), (end[0], end[1] // 4), kernel=3, first=(64, 1)
    )
    modules: Mapping[str, tuple[int, ...]] = {
        "3a": (28, 64, 96, 128, 16, 32, 32),
        "3b": (28, 128, 128, 192, 32, 96, 64),
        "4a": (14, 192, 96, 208, 16, 48, 64),
        "4b": (14, 160, 112, 224, 24, 64, 64),
        "4c": (14, 128, 128, 256, 24, 64, 64),
        "4d": (14, 112, 144, 288, 32, 64, 64),
        "4e": (14, 256, 160, 320, 32, 128, 128),
        "5a": (7, 256, 160, 320, 32, 128, 128),
        "5b": (7, 384, 192, 384, 48, 128, 128),
    }
    inputs = 192
    for name, (size, one, low3, three, low5, five, pool) in modules.items():
        entry = (end[0], size * size * inputs)
        ends = [
            net.conv(f"{name}-1x1", size, (inputs, one), entry),
            net.conv(
                f"{name}-3x3", size, (inputs, three), entry, kernel=3, first=(low3, 1)
            ),
            net.conv(
                f"{name}-5x5", size, (inputs, five), entry, kernel=5, first=(low5, 1)
            ),
            net.conv(f"{name}-pool", size, (inputs, pool), entry),
        ]
        end = net.join(f"{name}-join", *ends)
        inputs = one + three + five + pool
    net.dense("head", (1024, 1000), (end[0], 1024))
    return net


def squeezenet() -> Network:
    """Iandola et al. 2016, arXiv 1602.07360, table 1."""
    net = Network()
    ends = [net.conv("conv1", 111, (3, 96), kernel=7, stride=2)]
    inputs = 96
    for name, size, squeeze, expand in (
        ("fire2", 55, 16, 64),
        ("fire3", 55, 16, 64),
        ("fire4", 55, 32, 128),
        ("fire5", 27, 32, 128),
        ("fire6", 27, 48, 192),
        ("fire7", 27, 48, 192),
        ("fire8", 27, 64, 256),
        ("fire9", 13, 64, 256),
    ):
        share = size * size * inputs // len(ends)
        entry = [(source, share) for source, _ in ends]
        low = net.conv(f"{name}-squeeze", size, (inputs, squeeze), *entry)
        ends = [
            net.conv(
                f"{name}-{kernel}x{kernel}", size, (squeeze, expand), low, kernel=kernel
            )
            for kernel in (1, 3)
        ]
        inputs = 2 * expand
    net.conv("conv10", 13, (512, 1000), *ends)
    return net


def resnet50() -> Network:
    """He et al. 2016, arXiv 1512.03385, table 1."""
    net = Network()
    source, made = net.conv("conv1", 112, (3, 64), kernel=7, stride=2)
    end, inputs = (source, made // 4), 64
    for stage, (count, size, width) in enumerate(
        ((3, 56, 64), (4, 28, 128), (6, 14, 256), (3, 7, 512)), 2
    ):
        outputs = 4 * width
        for block in range(count):
            name = f"conv{stage}-{block + 1}"
            low = net.conv(
                f"{name}-main", size, (inputs, width), end, kernel=3,
                first=(width, 1),
            )  # fmt: skip
            high = net.conv(f"{name}-wide", size, (width, outputs), low)
            around = end
            if inputs != outputs:
                around = net.conv(f"{name}-around", size, (inputs, outputs), end)
            made = size * size * outputs
            net.add(Node(f"{name}-add", made, 0, 2 * made, made), high, around)
            end, inputs = (f"{name}-add", made), outputs
    net.dense("head", (2048, 1000), (end[0], 2048))
    return net


def unet() -> Network:
    """Ronneberger et al. 2015, arXiv 1505.04597, figure 1."""
    net = Network()
    end: list[tuple[str, int]] = []
    skips = []
    inputs = 1
    for level, size in enumerate((568, 280, 136, 64, 28)):
        width = 64 << level
        low = net.conv(f"down{level}-a", size + 2, (inputs, width), *end, kernel=3)
        high = net.conv(f"down{level}-b", size, (width, width), low, kernel=3)
        skips.append((high, width))
        end, inputs = [(high[0], high[1] // 4)], width
    (last, width), *_ = reversed(skips)
    entry = last
    for level, size in zip((3, 2, 1, 0), (52, 100, 196, 388), strict=True):
        wide, width = width, 64 << level
        up = net.conv(f"up{level}-up", size + 4, (wide, width), entry, kernel=2)
        # Of the way down the middle is taken.
        cut = (skips[level][0][0], (size + 4) ** 2 * width)
        low = net.conv(f"up{level}-a", size + 2, (wide, width), up, cut, kernel=3)
        entry = net.conv(f"up{level}-b", size, (width, width), low, kernel=3)
    net.conv("head", 388, (64, 2), entry)
    return net


def dlrm() -> Network:
    """Naumov et al. 2019, arXiv 1906.00091, on Criteo's Kaggle data.

    The two largest of 26 tables are layers of their own, by their rows.
    """
    net = Network()
    width = 16
    largest = (10131227, 8351593)
    others = (
        *(1460, 583, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 3194, 27),
        *(14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105),
        142572,
    )
    ends = []
    for number, rows in enumerate(largest):
        node = Node(f"table{number}", 0, rows * width, 1, width)
        ends.append((net.add(node), width))
    count = len(others)
    node = Node("tables", 0, sum(others) * width, count, count * width)
    ends.append((net.add(node), count * width))
    shapes = ((13, 512), (512, 256), (256, 64), (64, 16))
    bottom: tuple[tuple[str, int], ...] = ()
    for number, shape in enumerate(shapes):
        bottom = (net.dense(f"bottom{number}", shape, *bottom),)
    ends += bottom
    vectors = 1 + len(largest) + count
    pairs = vectors * (vectors - 1) // 2
    node = Node("interaction", 2 * pairs * width, 0, vectors * width, pairs + width)
    end = (net.add(node, *ends), pairs + width)
    for number, shape in enumerate(((pairs + width, 512), (512, 256), (256, 1))):
        end = net.dense(f"top{number}", shape, end)
    return net


#: Networks by the name of a recipe: how they are made, and where from.
NETWORKS: Mapping[str, tuple[Callable[[], Network], str]] = {
    "googlenet": (googlenet, "arXiv 1409.4842, table 1"),
    "squeezenet": (squeezenet, "arXiv 1602.07360, table 1"),
    "resnet50": (resnet50, "arXiv 1512.03385, table 1"),
    "unet": (unet, "arXiv 1505.04597, figure 1"),
    "dlrm": (dlrm, "arXiv 1906.00091; rows of Criteo's Kaggle data"),
}


def graph_of(
    network: Network,
    site: Machine,
    dtype: str,
    degrees: Sequence[int],
    samples: Sequence[int],
) -> Graph:
    """Return the graph of a network with its cost tables on a machine."""
    device = site.device
    flops = FRACTION * device.peak_flops[dtype]
    memory = device.hbm_bytes_per_s
    assert memory is not None
    kinds: dict[tuple[Any, ...], LayerKind] = {}
    layers = []
    for node in network.nodes:
        shape = (
            *(node.operations, node.weights),
            *(node.taken, node.made, node.inside),
        )
        if shape not in kinds:
            costs = tuple(
                _cost(node, tp, count, flops, memory)
                for tp in degrees
                for count in samples
            )
            kinds[shape] = LayerKind(name=node.id, costs=costs)
        layers.append(Layer(id=node.id, kind=kinds[shape].name))
    return Graph(
        kinds=tuple(kinds.values()),
        layers=tuple(layers),
        edges=tuple(
            Edge(source=source, target=target, bytes_per_sample=VALUE_BYTES * size)
            for source, target, size in network.links
        ),
    )


def _cost(node: Node, tp: int, samples: int, flops: float, memory: float) -> LayerCost:
    taken = VALUE_BYTES * samples * node.taken
    made = VALUE_BYTES * samples * node.made
    inside = VALUE_BYTES * samples * node.inside // tp
    # Rows of a table are looked up, weights of a product are read.
    weights = VALUE_BYTES * node.weights // tp if node.operations else 0
    forward_ns = 1e9 * max(
        samples * node.operations / tp / flops, (taken + made / tp + weights) / memory
    )
    collectives = []
    if tp > 1:
        collectives = [
            CollectiveCall(
                kind="all-gather", axis="tp", phase="forward", size_bytes=made
            ),
            CollectiveCall(
                kind="all-reduce", axis="tp", phase="backward", size_bytes=taken
            ),
        ]
    return LayerCost(
        tp=tp,
        samples=samples,
        forward_ns=forward_ns,
        backward_ns=2 * forward_ns,
        weight_bytes=-(-VALUE_BYTES * node.weights // tp),
        working_bytes=made,
        activations=(
            Activations(recompute="none", kept_bytes=taken + inside),
            Activations(recompute="full", kept_bytes=taken, working_bytes=inside),
        ),
        collectives=tuple(collectives),
    )
