"""Accelerators searched together with the placement on them."""
