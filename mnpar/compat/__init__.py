"""Chainer's and ChainerMN's small modules. This folder is on mnpar's own path, so that programs
import them under their names: ``mnpar.cuda`` is ``compat/cuda.py``.
"""
