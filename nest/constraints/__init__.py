"""Which plans a search may consider: pins, and the rules of frameworks."""
