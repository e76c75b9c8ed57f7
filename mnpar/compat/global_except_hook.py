"""ChainerMN's hook that ends the job when one rank fails: every communicator of MPI installs it
(runtime/process.py).
"""

__all__ = ["add_hook"]


def add_hook() -> None:
    """Nothing: an uncaught error of one rank ends the job anyway, with that rank's traceback.

    Example:
        >>> import mnpar
        >>> mnpar.global_except_hook.add_hook()
    """
