"""What summing the gradients of a model costs, from 1 to 8 ranks and 10⁴ to 10⁸ parameters, beside
the α–β model.

    python -m benchmarks.scaling
        (--most 1e7 for smaller models, --ranks 1 2 4)

A message of n bytes takes α + β n. A sum in parts (mnpar's, up to 16 ranks) is 2 (P − 1) messages
and 2 (P − 1) / P of the vector; a library's (more ranks) 2 log₂ P messages and as many bytes. α and
β are fitted to the times of 2 ranks, on this machine; the last line is what they say of 1,024
ranks, if each had a core and the network were as fast.
"""

import argparse
import json
import math
import os
import subprocess
import sys

from benchmarks.timing import in_turn, one_thread

one_thread()
import numpy as np  # noqa: E402

import mnpar  # noqa: E402

DIRECT = 16  # ranks


def inside(sizes):
    """One job: the times of all sizes, from rank 0."""
    comm = mnpar.create_communicator()
    found = {}
    for size in sizes:
        x = np.zeros(size, np.float32)
        times = max(1, min(200, 2 * 10**7 // size))
        found[size] = in_turn(
            {"sum": lambda x=x: comm.allreduce(x, out=x)}, times, 5, comm.barrier
        )["sum"]
    if comm.is_root:
        print(json.dumps(found))


def model(P, nbytes, alpha, beta):
    messages = 0 if P == 1 else 2 * (P - 1) if P <= DIRECT else 2 * math.ceil(math.log2(P))
    return messages * alpha + 2 * (P - 1) / P * nbytes * beta


def fitted(found):
    """α and β by least squares of the relative error, from the times of 2 ranks."""
    rows = [(2 / t, 4 * size / t) for size, t in found[2].items()]
    alpha, beta = np.linalg.lstsq(np.array(rows), np.ones(len(rows)), rcond=None)[0]
    return max(alpha, 0.0), max(beta, 0.0)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--most", type=float, default=1e8, help="parameters of the largest model")
    parser.add_argument(
        "--ranks",
        type=int,
        nargs="+",
        default=[1, 2, 4, 8],
        help="numbers of ranks; 2 is needed for the model",
    )
    parser.add_argument("--inside", type=int, nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        inside(args.inside)
        return
    sizes = [10**k for k in range(4, 9) if 10**k <= args.most]
    found = {}
    for P in sorted({2, *args.ranks}):
        mpiexec = os.path.join(os.path.dirname(sys.executable), "mpiexec")
        command = [
            mpiexec,
            "-n",
            str(P),
            sys.executable,
            "-m",
            "benchmarks.scaling",
            "--inside",
            *map(str, sizes),
        ]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found[P] = {int(size): t for size, t in json.loads(done.stdout.splitlines()[-1]).items()}
    alpha, beta = fitted(found)
    print(
        f"{os.cpu_count()} cores; α = {1e6 * alpha:.1f} µs, 1/β = {1e-9 / beta:.2f} GB/s; measured "
        "/ model, in ms"
    )
    print("ranks  " + "".join(f"{size:>22,}" for size in sizes))
    for P, times in found.items():
        print(
            f"{P:5}  "
            + "".join(
                f"{1e3 * t:11.3f} /{1e3 * model(P, 4 * size, alpha, beta):9.3f}"
                for size, t in times.items()
            )
        )
    print(
        " 1024  "
        + "".join(f"{'-':>11} /{1e3 * model(1024, 4 * size, alpha, beta):9.3f}" for size in sizes)
    )


if __name__ == "__main__":
    main()
