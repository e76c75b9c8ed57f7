"""A matrix product C = A B on many ranks in two ways, and its gradients: communication is
differentiated like the product.

    mpiexec -n 4 python examples/seeds/parallel_matmul.py
    python examples/seeds/parallel_matmul.py --threads 5 --shape 1000x777x513

Rank 0 has A (M, K) and B (K, N). *By row*: all get B and some rows of A, and rank 0 gathers their
rows of C. *By reduction*: each gets some columns of A and the same rows of B, and C is the sum of
their products. Nobody writes a backward: that of a broadcast is a sum (dB = Σ Aᵣᵀ dCᵣ), that of a
sum a broadcast (dAᵣ = dC Bᵣᵀ). Any number of ranks, any shape.
"""

import time

import numpy as np

import mnpar
import mnpar.functions as F
from mnpar.plans import block


def by_row(comm, A, B):
    """C on rank 0, None on the others."""
    rows = None if A is None else [A[slice(*block(len(A), comm.size, r))] for r in range(comm.size)]
    mine = F.scatter(comm, rows) @ F.bcast(comm, B)
    parts = F.gather(comm, mine)
    return F.concat(parts, axis=0) if comm.is_root else None


def by_reduction(comm, A, B):
    """C on rank 0, None on the others."""
    cuts = None if A is None else [slice(*block(len(B), comm.size, r)) for r in range(comm.size)]
    columns = F.scatter(comm, None if A is None else [A[:, cut] for cut in cuts])
    rows = F.scatter(comm, None if B is None else [B[cut] for cut in cuts])
    return F.reduce(comm, columns @ rows)


def main(comm, args):
    """Compare both ways with one process: on rank 0 the largest differences of C, dA and dB,
    relative to the largest value.
    """
    print(f"My rank is {comm.rank}, of {comm.size}")
    M, K, N = args.shape
    rng = np.random.default_rng(args.seed)
    a, b, gC = (rng.standard_normal(shape).astype(args.dtype) for shape in ((M, K), (K, N), (M, N)))
    truth = (a @ b, gC @ b.T, a.T @ gC)
    found = {}
    for name, product in (("by row", by_row), ("by reduction", by_reduction)):
        A, B = (mnpar.Variable(a), mnpar.Variable(b)) if comm.is_root else (None, None)
        comm.barrier()
        start = time.perf_counter()
        C = product(comm, A, B)
        if comm.is_root:
            F.sum(C * gC).backward()
        else:
            mnpar.backward()  # no loss here, and part in that of rank 0
        seconds = time.perf_counter() - start
        if comm.is_root:
            got = (C.array, A.grad, B.grad)
            found[name] = [
                float(abs(x - y).max(initial=0) / abs(y).max(initial=1))
                for x, y in zip(got, truth, strict=True)
            ]
            text = ", ".join(
                f"{what} {x:.1e}" for what, x in zip(("C", "dA", "dB"), found[name], strict=True)
            )
            print(f"{name:12}   {1e3 * seconds:8.1f} ms   differs from one process by: {text}")
    wrong = [
        name
        for name, values in found.items()
        if max(values) > (1e-4 if args.dtype == "f4" else 1e-10)
    ]
    if wrong:
        raise SystemExit(f"{' and '.join(wrong)}: not the product")
    if comm.is_root:
        print("Both products, and their gradients, are those of one process up to rounding.")
    return found


def check(parser, args):
    """Refuse what does not go together."""
    if len(args.shape) != 3:
        parser.error(
            "--shape is rows of A x columns of A x columns of B, not "
            f"{'x'.join(map(str, args.shape))}"
        )


if __name__ == "__main__":
    parser = mnpar.launch.Parser(__doc__, check=check)
    parser.flag("--shape", mnpar.launch.dims, "sizes", default=(1024,) * 3, metavar="MxKxN")
    parser.flag("--dtype", "f4", "float32 or float64", choices=["f4", "f8"])
    parser.flag("--seed -s", mnpar.launch.seed, "of the matrices", default=0)
    mnpar.launch.script(main, parser)
