"""Stages of one strategy: closed sets, options, bounds and labels."""
