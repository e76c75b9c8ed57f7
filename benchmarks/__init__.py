"""Measurements of mnpar, most of them beside PyTorch or Chainer: ``python -m benchmarks`` lists
them.
"""
