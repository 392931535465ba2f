"""Simulation of a step: events of a plan, and traces of them."""
