"""Stages whose layers each have their own strategy."""
