"""The shared cost model: presets, terms, the plan space, and the score."""
