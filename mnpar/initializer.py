"""Chainer's ``initializer`` module: what an initializer of one's own is made of."""

from mnpar.initializers import Initializer, get_fans

__all__ = ["Initializer", "get_fans"]
