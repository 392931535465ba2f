"""Files that describe networks: those that people have, and those to hand on.

One module per format; :data:`FORMATS` lists them. A new one is a module and a
line there.
"""

from __future__ import annotations

from nest.topology.files.door import FORMATS, read_topology, recognise
from nest.topology.files.graphs import write_node_link
from nest.topology.files.ranks import read_rankfile, write_hostfile, write_rankfile
from nest.topology.files.supplement import MEANING, FileSupplement

__all__ = [
    "FORMATS",
    "MEANING",
    "FileSupplement",
    "read_rankfile",
    "read_topology",
    "recognise",
    "write_hostfile",
    "write_node_link",
    "write_rankfile",
]
