"""What runs when: events of a plan's step, and traces of them."""
