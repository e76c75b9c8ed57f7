"""GPUs under Chainer's names: ``mnpar.backends.cuda``."""

from mnpar.backends import cuda

__all__ = ["cuda"]
