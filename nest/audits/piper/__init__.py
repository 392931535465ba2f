"""Piper (NeurIPS 2021), as its code computes."""
