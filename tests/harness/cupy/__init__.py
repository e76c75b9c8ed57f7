"""The device path without a GPU: a stand-in for CuPy that is as strict as CuPy is, and what is
tried on it.
"""
