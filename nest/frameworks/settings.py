"""Settings of exports that neither problems nor plans contain."""

from __future__ import annotations

from typing import NamedTuple

from nest.models.architectures import Architecture


class Settings(NamedTuple):
    """Settings that neither the problem nor the plan contains.

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
