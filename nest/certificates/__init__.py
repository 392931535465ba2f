"""Certificates: proofs of step times and bounds that others can check.

``certify`` writes them; ``check`` is a program of its own, which imports
nothing of nest. What they are: docs/certificates.md.
"""
