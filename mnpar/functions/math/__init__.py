"""Arithmetic, elementary and special functions, reductions and products."""
