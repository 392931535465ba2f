"""Orders of passes: chunks, interleaved plans, zero bubble and list orders."""
