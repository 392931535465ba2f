"""The structured dynamic program over (closed set, offset, stages left)."""
