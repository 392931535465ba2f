"""How far predictions may be from measurements: intervals and headroom."""
