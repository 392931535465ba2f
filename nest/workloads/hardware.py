"""Published machines, one record each: device, node, network, efficiencies.

Figures are data sheet values; a GB is 10**9 bytes. The latencies are what one
step of an NCCL ring costs, software included: a 32 KiB all-reduce inside a
DGX A100 (14 ring steps) was measured at 43.8 µs, which is 3 µs a step, and
over four nodes (6 more steps between nodes) at 68 µs, which is 4 µs for each
of these (stas00/ml-engineering, network/README.md and
network/benchmarks/README.md at 744d01e18b).
"""

from __future__ import annotations

from nest.errors import UnknownNameError
from nest.ir.base import Struct
from nest.ir.cluster import Cluster, Device, Hierarchy, Level
from nest.units import GB, ceil_div

#: Device memory that a plan cannot use: CUDA context, NCCL buffers and what
#: the allocator loses to fragmentation. BLOOM's published figures show 1 to
#: 3 GB between allocated and used memory.
RESERVE_BYTES = 3 * GB


class Efficiency(Struct, frozen=True, kw_only=True):
    """Fractions of the data sheet rates that operators reach.

    Attributes
    ----------
    matmul
        Matrix products, of peak FLOP/s. The best measured product reaches
        0.87 on A100 and 0.80 on H100 (stas00/ml-engineering,
        compute/accelerator/README.md); those of a training step are smaller.
    attention
        Fused attention, of peak FLOP/s. FlashAttention-2 measures 0.5 to
        0.73 forward and up to 0.63 backward on A100, its lower figures under
        a causal mask; on H100 the same kernel reaches 0.34 (Dao 2023, arXiv
        2307.08691).
    memory
        Everything bound by memory, of HBM bytes/s.
    """

    matmul: float = 0.7
    attention: float = 0.5
    memory: float = 0.8


class Machine(Struct, frozen=True, kw_only=True):
    """A node type with its network.

    Attributes
    ----------
    name, source
        Keyword, and where the figures come from.
    device
        The accelerator; its memory is what a plan may use.
    node, network
        The network inside a node (its fan-out is the node's size) and
        between nodes (its fan-out is replaced by the number of nodes).
    efficiency
        Fractions of the device's rates that operators reach.
    """

    name: str
    source: str
    device: Device
    node: Level
    network: Level
    efficiency: Efficiency = Efficiency()

    def cluster(self, num_devices: int) -> Cluster:
        """Return a cluster of whole nodes (the last may be cut)."""
        nodes = ceil_div(num_devices, self.node.fan_out)
        network = Level(
            name=self.network.name,
            fan_out=nodes,
            bandwidth_bytes_per_s=self.network.bandwidth_bytes_per_s,
            latency_ns=self.network.latency_ns,
        )
        return Cluster(
            name=f"{self.name}-{num_devices}",
            num_devices=num_devices,
            device=self.device,
            topology=Hierarchy(levels=(self.node, network)),
        )


MACHINES = (
    Machine(
        name="dgx-a100",
        source="NVIDIA A100 80GB SXM and DGX A100 data sheets: NVLink 3 "
        "600 GB/s both ways, one 200 Gb/s HDR InfiniBand port per device",
        device=Device(
            name="A100-80GB-SXM",
            memory_bytes=80 * GB - RESERVE_BYTES,
            hbm_bytes_per_s=2.039e12,
            peak_flops={"bf16": 312e12},
        ),
        node=Level(
            name="NVLink 3",
            fan_out=8,
            bandwidth_bytes_per_s=300e9,
            latency_ns=3000,
        ),
        network=Level(
            name="InfiniBand HDR",
            fan_out=1,
            bandwidth_bytes_per_s=25e9,
            latency_ns=4000,
        ),
    ),
    Machine(
        name="quad-a100-40gb",
        source="NVIDIA A100 40GB SXM data sheet; node as in NERSC "
        "Perlmutter: four devices, all pairs joined by four NVLink 3 links, "
        "one 200 Gb/s port per device",
        device=Device(
            name="A100-40GB-SXM",
            memory_bytes=40 * GB - RESERVE_BYTES,
            hbm_bytes_per_s=1.555e12,
            peak_flops={"bf16": 312e12},
        ),
        node=Level(
            name="NVLink 3",
            fan_out=4,
            bandwidth_bytes_per_s=300e9,
            latency_ns=3000,
        ),
        network=Level(
            name="200 Gb/s",
            fan_out=1,
            bandwidth_bytes_per_s=25e9,
            latency_ns=4000,
        ),
    ),
    Machine(
        name="dgx-h100",
        source="NVIDIA H100 80GB SXM and DGX H100 data sheets: NVLink 4 "
        "900 GB/s both ways, one 400 Gb/s NDR InfiniBand port per device; "
        "latencies as measured on A100",
        device=Device(
            name="H100-80GB-SXM",
            memory_bytes=80 * GB - RESERVE_BYTES,
            hbm_bytes_per_s=3.35e12,
            peak_flops={"bf16": 989e12},
        ),
        node=Level(
            name="NVLink 4",
            fan_out=8,
            bandwidth_bytes_per_s=450e9,
            latency_ns=3000,
        ),
        network=Level(
            name="InfiniBand NDR",
            fan_out=1,
            bandwidth_bytes_per_s=50e9,
            latency_ns=4000,
        ),
        efficiency=Efficiency(matmul=0.6, attention=0.4),
    ),
)


def machine(name: str) -> Machine:
    """Return the machine of that name.

    Raises
    ------
    UnknownNameError
        If there is none; the text lists all names.
    """
    known = {record.name: record for record in MACHINES}
    if name not in known:
        raise UnknownNameError("machine", name, known)
    return known[name]
