"""Networks that are graphs of devices and switches with shared links."""

from nest.topology.graph.network import GraphNetwork, Prices

__all__ = ["GraphNetwork", "Prices"]
