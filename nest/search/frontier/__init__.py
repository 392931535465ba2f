"""The frontier of step time against memory, and the least memory of a plan."""
