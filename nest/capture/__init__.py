"""A user's PyTorch module: what it computes, its layers, and its problem."""
