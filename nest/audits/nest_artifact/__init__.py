"""NEST (MLSys 2026), as its artifact computes."""
