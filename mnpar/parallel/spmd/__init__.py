"""Functions that run on all ranks and are called on one: parallel_function and its data."""
