"""Solvers: protocol, options, results, registry and the runner."""
