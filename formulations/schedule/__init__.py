"""Schedules of operators on cores, as CP-SAT and as mixed-integer model."""
