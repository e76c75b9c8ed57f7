"""Chainer's ``configuration`` module: what programs take from there."""

from mnpar.config import config, global_config, using_config

__all__ = ["config", "global_config", "using_config"]
