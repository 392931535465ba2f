"""Settings of exports that neither problems nor plans contain."""

from __future__ import annotations

from typing import NamedTuple

from nest.models.architectures import Architecture


class Settings(NamedTuple):
    """The model and the devices of a node, where the problem does not say them.

    ``flavor`` is what torchtitan calls the model, such as ``llama3/8B``.
    """

    model: Architecture | None = None
    gpus_per_node: int | None = None
    flavor: str | None = None
