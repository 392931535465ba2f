"""Profiles: measured times of layers, preferred over the analytic cost."""

from nest.profiles.apply import apply_profile
from nest.profiles.format import (
    Entry,
    InvalidProfileError,
    Profile,
    encode_profile,
    load_profile,
    write_profile,
)

__all__ = [
    "Entry",
    "InvalidProfileError",
    "Profile",
    "apply_profile",
    "encode_profile",
    "load_profile",
    "write_profile",
]
