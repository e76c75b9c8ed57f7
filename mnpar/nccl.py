"""ChainerMN's module of NCCL's functions, which programs import to see whether it is there: here nothing is in it."""

__all__: list[str] = []
