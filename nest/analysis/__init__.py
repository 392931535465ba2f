"""The questions about plans: each module answers one of them."""
