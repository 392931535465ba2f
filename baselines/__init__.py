"""Re-implementations of published planners, one module each."""
