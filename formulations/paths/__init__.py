"""Plans as paths: stages are arcs between the places where plans are cut."""
