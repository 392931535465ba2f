"""Models: shapes, the zoo, operator counts, graphs, configurations."""
