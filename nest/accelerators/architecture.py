"""The accelerator that is searched: cores, buffers, memory, clock, links."""

from __future__ import annotations

from nest.ir.base import Count, Size, Struct

#: Bytes of a core's own buffer per element of its array, and at least:
#: Phaze's second-level buffer (w·d/64 KB, msr-fiddle/phaze @fed7cde,
#: Estimator/utils/estimator_wrapper.py).
_BUFFER_BYTES_PER_ELEMENT = 16
_LEAST_BUFFER_BYTES = 1024


class Architecture(Struct, frozen=True, kw_only=True, order=True):
    """One accelerator, and the network it sits in."""

    #: Tensor cores, and the systolic array of one. Phaze's depth and width.
    tensor_cores: Count
    rows: Count
    columns: Count
    #: Vector cores, and lanes of one. Phaze's lanes are its columns.
    vector_cores: Count
    lanes: Count
    #: The buffer that all cores share; Phaze's global one.
    sram_bytes: Count
    #: Memory, and its bandwidth.
    hbm_bytes: Count
    hbm_bytes_per_s: Count
    #: Clock of all cores.
    frequency_hz: Count
    #: Bandwidth per device in one direction inside a node, and between nodes.
    link_bytes_per_s: Count
    network_bytes_per_s: Count
    #: Devices that such links join.
    devices_per_node: Count = 1
    #: The own buffer of a tensor core; 0 for Phaze's rule, see :attr:`core_sram_bytes`.
    core_buffer_bytes: Size = 0

    @property
    def core_sram_bytes(self) -> int:
        """The own buffer of a tensor core.

        By default 16 bytes per element of the array, at least 1 KiB: 256 KiB
        for 128 × 128.
        """
        return self.core_buffer_bytes or buffer_bytes(self.rows * self.columns)

    @property
    def vector_sram_bytes(self) -> int:
        """The own buffer of a vector core, by the same rule of its lanes."""
        return buffer_bytes(self.lanes)

    @property
    def macs_per_cycle(self) -> int:
        """Multiply-accumulates that all arrays start in a cycle."""
        return self.tensor_cores * self.rows * self.columns

    @property
    def peak_flops(self) -> int:
        """FLOP/s of all arrays, two per multiply-accumulate."""
        return 2 * self.macs_per_cycle * self.frequency_hz


def buffer_bytes(elements: int) -> int:
    """Return Phaze's buffer of a core with so many elements."""
    return max(_LEAST_BUFFER_BYTES, _BUFFER_BYTES_PER_ELEMENT * elements)


#: Parameters in the order in which lists vary, the slowest first: what is
#: beside the die, then Phaze's order.
PARAMETERS = (
    "hbm_bytes",
    "hbm_bytes_per_s",
    "frequency_hz",
    "link_bytes_per_s",
    "network_bytes_per_s",
    "devices_per_node",
    "core_buffer_bytes",
    "tensor_cores",
    "vector_cores",
    "columns",
    "rows",
    "lanes",
    "sram_bytes",
)

#: Parameters whose values are categories: no dominance across them.
CATEGORIES = ("devices_per_node",)


def describe(architecture: Architecture) -> str:
    """Return what an architecture is, in a few words for people."""
    a = architecture
    return (
        f"{a.tensor_cores} x {a.rows}x{a.columns} tensor, {a.vector_cores} x {a.lanes} "
        f"vector, {size_text(a.sram_bytes)} SRAM, {size_text(a.hbm_bytes)} HBM"
    )


def size_text(size_bytes: int) -> str:
    """Return a size in the largest unit that it is a multiple of."""
    units = ((2**30, "GiB"), (10**9, "GB"), (2**20, "MiB"), (2**10, "KiB"))
    for unit, name in units:
        if size_bytes % unit == 0:
            return f"{size_bytes // unit} {name}"
    return f"{size_bytes} B"
