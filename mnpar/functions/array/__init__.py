"""Functions that move, join and cut arrays, and compute nothing."""
