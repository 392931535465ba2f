"""The exact searches: label setting over closed sets and offsets."""
