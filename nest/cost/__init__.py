"""The shared cost model: rules, terms, the plan space, and the score."""
