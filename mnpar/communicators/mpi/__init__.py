"""Communicators that carry arrays by MPI: the only place that knows mpi4py."""
