"""Differentiable communication: every operation beside its adjoint."""
