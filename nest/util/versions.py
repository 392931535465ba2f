"""What a report must say about where it was made: versions and machine."""

from __future__ import annotations

import functools
import os
import platform
from typing import Any

#: Name of the distribution; the import name is ``nest``.
DISTRIBUTION = "nest-planner"

#: Packages whose version can change a result or its running time.
PACKAGES = (
    "click",
    "highspy",
    "msgspec",
    "networkx",
    "numpy",
    "ortools",
    "pulp",
    "pyyaml",
    "rich",
)


def package_version(name: str) -> str | None:
    """Return the version of an installed distribution, or ``None``.

    Reads its metadata and imports nothing of it.
    """
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def nest_version() -> str:
    """Return the version of this project; ``unknown`` in a bare checkout."""
    return package_version(DISTRIBUTION) or "unknown"


def versions() -> dict[str, str | None]:
    """Return the versions of nest, Python and the packages it may use."""
    return {
        "nest": nest_version(),
        "python": platform.python_version(),
        **{name: package_version(name) for name in PACKAGES},
    }


def num_cpus() -> int:
    """Return how many CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@functools.cache
def machine() -> dict[str, str | int]:
    """Return the machine: times of different machines do not compare."""
    return {
        "cpu": _cpu_model(),
        "cpus": num_cpus(),
        "system": platform.system(),
        "release": platform.release(),
        "architecture": platform.machine(),
    }


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key.strip() == "model name":
                    return value.strip()
    except OSError:
        pass
    return platform.machine() or "unknown"


def provenance() -> dict[str, Any]:
    """Return what every document says about where it was made."""
    return {"versions": versions(), "machine": machine()}
