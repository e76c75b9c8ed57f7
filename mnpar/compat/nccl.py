"""ChainerMN's module of NCCL's functions, empty: programs import it to find out whether NCCL is
there.
"""

__all__: list[str] = []
