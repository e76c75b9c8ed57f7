"""Chainer's ``initializer`` module: what initializers of your own are made of."""

from mnpar.initializers import Initializer, get_fans

__all__ = ["Initializer", "get_fans"]
