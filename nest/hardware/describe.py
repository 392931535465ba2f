"""From the words of a report to a machine.

Reports name their hardware in free text: "8x200 Gb/s per node", "IB NDR 400
Gb/s per GPU", "4 Omni-Path 100 links per node". What a text leaves open is
taken from the device's default machine.
"""

from __future__ import annotations

import re

from msgspec.structs import replace

from nest.errors import InvalidOptionError
from nest.hardware.devices import device_spec
from nest.hardware.links import link_spec
from nest.hardware.machines import Machine, build_machine, machine_specs
from nest.ir.cluster import Level

#: Words of a text, and the link family they name; the first match wins.
FAMILIES = (
    (r"omni-?path", "Omni-Path 100"),
    (r"slingshot", "Slingshot"),
    (r"tcpxo", "GCP TCPXO"),
    (r"tcpx", "GCP TCPX"),
    (r"efa v1|p4de?\b", "AWS EFA v1"),
    (r"efa v3|p5en", "AWS EFA v3"),
    (r"efa v4|p6-", "AWS EFA v4"),
    (r"efa", "AWS EFA v2"),
    (r"\bxdr(800)?\b|connectx-8|\bcx-?8", "InfiniBand XDR"),
    (r"\bndr(400)?\b|quantum-2", "InfiniBand NDR"),
    (r"\bhdr(200)?\b", "InfiniBand HDR"),
    (r"\bedr(100)?\b", "InfiniBand EDR"),
    *((rf"\broce(v\d)?[- ]{rate}\b", f"RoCE {rate}") for rate in (100, 200, 400)),
    (r"\broce|\brdma\b", "RoCE"),
    (r"dgx[ -]?a100", "InfiniBand HDR"),
    (r"\bdcn\b", "TPU DCN"),
)

#: Families of which a text may name a rate that a node's devices share.
_BY_RATE = (None, "RoCE 100", "Ethernet 100")

#: Words for links inside a node or a rack, which the device has by itself.
_NODE_WORDS = r"nvlink|nvswitch|nvl\d|\bici\b|xgmi|infinity fabric|single node|pcie"

#: One link of NVLink 2 and 3 (2 and 3 have 6 and 12 per device), in one direction.
NVLINK_BYTES_PER_S = 25e9

#: Bits, not bytes: the b must be a small letter.
_RATE = (
    r"(\d{1,9}(?:\.\d{1,9})?)\s*([GTgt])"
    r"(?:b/(?:s|[Ss]ec)|bps|bit/s|b[Ee]\b|igabit\b)"
)
_UNIT = {"G": 1e9 / 8, "T": 1e12 / 8}
_PER_DEVICE = re.compile(
    _RATE + r"[^,;+()]{0,20}?\bper (?i:gpu|device|chip|accelerator)\b"
)
_PORTS = re.compile(r"\b(\d{1,6})\s*[x×]\s*(?:(?!GPU|[ABHLV]\d)[^,;:+]){0,40}?" + _RATE)
_PER_NODE = re.compile(
    _RATE + r"[^,;+()]{0,20}?\b(?i:per node|inter-?node|between nodes)\b"
)
_OMNI_PATH = re.compile(r"\b(\d{1,6}) omni-?path 100", re.IGNORECASE)
_PORT_COUNT = re.compile(
    r"\b(\d{1,6})\s*(?:[x×]|(?:nics?|links?|ports?|hcas?|rails?)\b)", re.IGNORECASE
)
#: All words, beside rates and counts, of a part of a text that is about one network.
_PLAIN_WORDS = {
    *("infiniband", "ib", "ethernet", "rdma", "roce", "rocev1", "rocev2", "v1", "v2"),
    *("tcp", "mellanox", "network", "fabric", "inter", "internode", "between"),
    *("nic", "nics", "hca", "hcas", "link", "links", "port", "ports", "rail", "rails"),
    *("node", "nodes", "server", "host", "machine"),
    *("a", "an", "and", "at", "by", "each", "of", "one", "per", "single", "with"),
}
#: Words of a rate of which it is not certain what has it.
_UNCERTAIN = r"(?i)\bdual\b|\broce(v\d)?[- ]\d{2,}"
_WHOSE = _PORT_COUNT.pattern + r"|(?i:\b(?:node|server|host|machine|nic|port|link)\b)"
_NOT_FOR_TRAINING = re.compile(r"(?i)(?:storage|management)[^:]*:[^:]*?(?=compute|,|$)")


def machine_for(
    hardware: str, interconnect: str | None = None, devices_per_node: int | None = None
) -> Machine:
    """Return the machine that a report describes.

    ``hardware`` is a name that :func:`~nest.hardware.devices.device_spec` knows. Of the
    free text ``interconnect`` is read what :func:`network_bytes_per_s` says, and
    "NVLink 4 inter-gpu connects" for a node with fewer links. The size of a node does
    not count where the device's own links join more devices than one box holds (NVL72,
    TPU pods).

    Raises ``UnknownNameError`` if the device is unknown, and ``InvalidOptionError`` if
    a link has no bandwidth.
    """
    device = device_spec(hardware)
    default = next(spec for spec in machine_specs() if spec.device == device.name)
    base = build_machine(default, device)
    text = interconnect or ""
    node, network = base.node, base.network
    size = node.fan_out
    if devices_per_node and not default.even:
        size = devices_per_node
    rate = network_bytes_per_s(text, devices_per_node or size)
    stored = network.bandwidth_bytes_per_s
    family = _family(text, rate or stored) or network.name
    if rate is None and family != network.name:
        rate = link_spec(family).bytes_per_s
    node_rate = node.bandwidth_bytes_per_s
    links = re.search(r"\bNVLink (\d{1,6}) inter-gpu connects", text)
    if links is not None:
        node_rate = min(node_rate, int(links.group(1)) * NVLINK_BYTES_PER_S)
    if rate == 0 or node_rate == 0:
        raise InvalidOptionError(
            f"interconnect: expected a bandwidth above 0, got {text!r}; correct it"
        )
    return replace(
        base,
        node=replace(node, fan_out=size, bandwidth_bytes_per_s=node_rate),
        network=Level(
            name=family,
            fan_out=1,
            bandwidth_bytes_per_s=stored if rate is None else rate,
            latency_ns=link_spec(family).latency_ns,
        ),
    )


def network_bytes_per_s(text: str, node_size: int) -> float | None:
    """Read the bandwidth between nodes, per device, from a text.

    Read are, in this order: so much "per GPU"; ``n`` ports of so much; so much "per
    node" or "inter-node"; ``n`` Omni-Path 100 links; so much of Ethernet, RoCE or
    InfiniBand of no stated generation, which all devices of a node share. Ports for
    storage and management are left out. Returns bytes/s in one direction, or ``None``
    if the text does not say it.
    """
    text = _spelled_out(_NOT_FOR_TRAINING.sub("", text))
    if match := _PER_DEVICE.search(text):
        return _rate(*match.groups())
    if ports := _PORTS.findall(text):
        rates = [int(count) * _rate(*rate) for count, *rate in ports]
        return max(rates) / node_size
    if match := _PER_NODE.search(text):
        return _rate(*match.groups()) / node_size
    if match := _OMNI_PATH.search(text):
        rate = link_spec("Omni-Path 100").bytes_per_s
        return int(match.group(1)) * rate / node_size
    plain = _plain_rate(text)
    return None if plain is None else plain / node_size


def _spelled_out(text: str) -> str:
    """Return a text with "dual 100G" as "2x 100 Gb/s"."""
    text = re.sub(r"(?i)\bdual(?:[- ]port)?(?= \d)", "2x", text)
    return re.sub(r"\b(\d{2,3})G\b", r"\1 Gb/s", text)


def reads(text: str, hardware: str = "") -> bool:
    """Return whether a text says for certain what joins devices of a name.

    Beside links inside a node no clause may state a rate that is not read. A rate of
    InfiniBand or RoCE alone may be that of a device or of a node; RDMA alone is no
    network; and a rack of NVLink (NVL72) is not of every device.
    """
    rack = re.search(r"\bNVL(36|72)", text, re.IGNORECASE)
    if rack and hardware and not re.match("GB[23]00", hardware):
        return False
    if re.search(_UNCERTAIN, text) or _is_of_device_or_node(text):
        return False
    if network_bytes_per_s(text, 1) is None:
        text = re.sub(r"(?i)\brdma\b", "", text)
    if network_bytes_per_s(text, 1) is not None or _family(text, 0.0) is not None:
        return True
    clauses = re.split(r"[,;]", _NOT_FOR_TRAINING.sub("", text))
    inside = [re.search(_NODE_WORDS, clause, re.IGNORECASE) for clause in clauses]
    return any(inside) and not any(
        re.search(_RATE, clause)
        for clause, links in zip(clauses, inside, strict=True)
        if links is None
    )


def _is_of_device_or_node(text: str) -> bool:
    """Return whether a text does not say whose rate it names.

    Ports of Ethernet are those of a node.
    """
    plain = ", ".join(_plain_clauses(text))
    return (
        re.search(r"(?i)\b(?:infiniband|ib|roce(?:v\d)?|rdma)\b", plain) is not None
        and not re.search(_WHOSE, plain)
        and not _PER_DEVICE.search(text)
        and not _PORTS.search(text)
        and not _PER_NODE.search(text)
        and _plain_rate(text) is not None
    )


def _rate(value: str, unit: str) -> float:
    return float(value) * _UNIT[unit.upper()]


def _plain_clauses(text: str) -> list[str]:
    """Return the clauses of a text with none but ordinary words of a network."""
    clauses = []
    for clause in re.split(r"[,;]", text):
        rest = _PORT_COUNT.sub(" ", re.sub(_RATE, " ", clause))
        tokens = re.findall(r"\w+", rest.lower())
        if clause.strip() and _PLAIN_WORDS.issuperset(tokens):
            clauses.append(clause)
    return clauses


def _plain_rate(text: str) -> float | None:
    """Return what all ports of a node reach together, where plain clauses say it.

    One port unless they say how many; ``None`` where they have no rate, or several,
    or the text names a generation of links, whose ports devices have each.
    """
    plain = ", ".join(_plain_clauses(text))
    rates = re.findall(_RATE, plain)
    counts = _PORT_COUNT.findall(plain) or ["1"]
    if len(rates) != 1 or len(counts) != 1 or _family(text, 0.0) not in _BY_RATE:
        return None
    return int(counts[0]) * _rate(*rates[0])


def _family(text: str, bytes_per_s: float) -> str | None:
    """Return the link family that a text names, by rate where it has many."""
    for pattern, family in FAMILIES:
        if re.search(pattern, text, re.IGNORECASE):
            if family != "RoCE":
                return family
            for name in ("RoCE 400", "RoCE 200"):
                if bytes_per_s >= link_spec(name).bytes_per_s:
                    return name
            return "RoCE 100"
    plain = " ".join(_plain_clauses(text))
    has_rate = re.search(_RATE, plain) is not None
    is_ethernet = re.search(r"\bethernet\b|gbe\b", plain, re.IGNORECASE)
    return "Ethernet 100" if has_rate and is_ethernet else None
