"""Brute force and the layer-level formulations; see README.md."""
