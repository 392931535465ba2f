"""What neither a problem nor a plan says, and an export needs."""

from __future__ import annotations

from typing import NamedTuple

from nest.models.architectures import Architecture


class Settings(NamedTuple):
    """What neither problem nor plan says.

    Attributes
    ----------
    model
        The model, where the problem does not name it.
    gpus_per_node
        Devices of a node, where the network does not say.
    flavor
        What torchtitan calls the model, such as ``llama3/8B``.
    """

    model: Architecture | None = None
    gpus_per_node: int | None = None
    flavor: str | None = None
