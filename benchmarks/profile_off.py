"""What ``mnpar.profile`` costs when it is off: a training step where nobody has ever profiled, and
after a profile has ended.

    python -m benchmarks.profile_off [--rounds 7] [--steps 2000]

Processes of the two kinds take turns; the figure is CPU time, and the step (a perceptron 10-100-1,
one sample) nearly all overhead of functions, which is where a profile would show. ``on`` is the
same step inside one.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.timing import one_thread

one_thread()
import numpy as np  # noqa: E402

import mnpar  # noqa: E402
import mnpar.functions as F  # noqa: E402
import mnpar.links as L  # noqa: E402


def measured(kind, steps):
    """Seconds of CPU time in a step."""
    model = mnpar.Sequential(L.Linear(10, 100), F.relu, L.Linear(100, 1))
    optimizer = mnpar.optimizers.MomentumSGD(1e-4).setup(model)
    x = np.ones((1, 10), "f4")
    t = np.ones((1, 1), "f4")

    def run(n):
        begin = time.process_time()
        for _ in range(n):
            optimizer.update(lambda x, t: F.mean_squared_error(model(x), t), x, t)
        return (time.process_time() - begin) / n

    run(200)
    if kind == "never":
        return run(steps)
    with tempfile.TemporaryDirectory() as folder:
        with mnpar.profile(Path(folder) / "trace.json"):
            on = run(200)
        return on if kind == "on" else run(steps)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--kind", choices=["never", "off", "on"], help="measure one, and print it")
    args = parser.parse_args()
    if args.kind:
        print(measured(args.kind, args.steps))
        return
    found = {"never": [], "off": [], "on": []}
    for _ in range(args.rounds):
        for kind, seconds in found.items():
            command = [
                sys.executable,
                "-m",
                "benchmarks.profile_off",
                "--kind",
                kind,
                "--steps",
                str(args.steps),
            ]
            seconds.append(
                float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            )
    middle = {kind: statistics.median(seconds) for kind, seconds in found.items()}
    for kind, seconds in found.items():
        print(
            f"{kind:6} {1e6 * middle[kind]:7.1f} µs a step   "
            f"{middle[kind] / middle['never']:.3f} of never   "
            f"({1e6 * min(seconds):.1f} to {1e6 * max(seconds):.1f})"
        )


if __name__ == "__main__":
    main()
