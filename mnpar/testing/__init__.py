"""Testing programs that run on several ranks: a pytest plugin, and checks of gradients over ranks."""

from mnpar.testing.adjoint import check_adjoint

__all__ = ["check_adjoint"]
