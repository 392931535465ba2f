"""Networks made from a few numbers: graphs of devices and switches.

:func:`generate` reads a compact name such as ``fat-tree:k=8``;
:data:`GENERATORS` lists them all, with units and defaults. What comes out is a
:class:`networkx.Graph` like one that is read from a file.
"""

from nest.topology.generators.table import GENERATORS
from nest.topology.generators.text import build, generate

__all__ = ["GENERATORS", "build", "generate"]
