"""The MILP formulation, through PuLP."""
