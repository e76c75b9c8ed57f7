"""Functions of arrays that numba, PyTorch or JAX compute and differentiate, as functions of mnpar.

Local computing is theirs, the graph is mnpar's: each call is one node, whose backward asks the
library for its vector-Jacobian product. No communication can happen inside.
"""
