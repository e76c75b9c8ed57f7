"""Causal attention over one long sequence that is cut among ranks: time, memory and bytes, beside
their least.

    mpiexec -n 4 python -m benchmarks.sequence_parallel
        (also with -n 2, and alone: then PyTorch beside it, if there is one)

A step is forward and backward, float32. Seconds are those of a barrier to a barrier, ``cpu`` the
sum over ranks of what they worked (``--cpu``: for a machine that has other things to do); memory is
the peak that numpy asks for beyond the arguments, on the rank with the most. ``least`` is what the
ranks need of each other: keys and values of all that their queries look at, the same again backward
and gradients for them; with heads, what of q, k, v and the means leaves the rank, each way.
"""

import argparse
import time
import tracemalloc

from benchmarks.timing import in_turn, one_thread, torch_or_none

one_thread()

import numpy as np  # noqa: E402

import mnpar  # noqa: E402
import mnpar.functions as F  # noqa: E402
from mnpar.plans import in_order, positions, zigzag  # noqa: E402


def step_of(function, parts):
    def step():
        xs = [mnpar.Variable(x) for x in parts]
        y = function(*xs)
        y.grad = y.array
        y.backward()

    return step


def peak(step):
    """MiB, after a first step has filled what is remembered."""
    step()
    tracemalloc.start()
    step()
    size = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return size / 2**20


def all_scores(q, k, v):
    """As the formula says, in arrays of queries times keys."""
    n = q.shape[-2]
    scores = F.matmul(q * q.shape[-1] ** -0.5, k, transb=True)
    seen = np.broadcast_to(np.tri(n, dtype=bool), scores.shape)
    return F.matmul(F.softmax(F.where(seen, scores, np.float32(-1e30)), axis=-1), v)


def torch_step(parts):
    """PyTorch's own, on one thread."""
    torch = torch_or_none()
    if torch is None:
        return {}

    def step():
        xs = [torch.from_numpy(x[None]).requires_grad_() for x in parts]
        y = torch.nn.functional.scaled_dot_product_attention(*xs, is_causal=True)
        y.backward(y.detach())

    return {"PyTorch": step}


def ways_of(comm, whole):
    """What is compared, and the cells of which each has to be sent."""
    if comm.size == 1:
        steps = {
            "all scores at once": step_of(all_scores, whole),
            "in blocks": step_of(
                lambda *xs: F.scaled_dot_product_attention(*xs, causal=True), whole
            ),
        }
        return {**steps, **torch_step(whole)}, {}
    H, n, D = whole[0].shape
    cuts = {
        "in order": in_order([len(part) for part in np.array_split(np.arange(n), comm.size)]),
        "zigzag": zigzag(n, comm.size),
    }
    steps, least = {}, {}
    for name, cut in cuts.items():
        rows = [positions(stretches) for stretches in cut]
        parts = [x[:, rows[comm.rank]].copy() for x in whole]
        ring = lambda *xs, cut=cut: F.ring_attention(comm, *xs, causal=True, cut=cut)
        steps[f"ring, {name}"] = step_of(ring, parts)
        seen = [
            int((rows[j] <= rows[i].max()).sum())
            for i in range(comm.size)
            for j in range(comm.size)
            if i != j
        ]
        least[f"ring, {name}"] = 3 * 2 * H * D * sum(seen)
    parts = [x[:, rows[comm.rank]].copy() for x in whole]
    steps["all to all"] = step_of(
        lambda *xs: F.all_to_all_attention(comm, *xs, causal=True, cut=cut), parts
    )
    heads = [len(part) for part in np.array_split(np.arange(H), comm.size)]
    least["all to all"] = (
        2 * 4 * D * sum([len(r) * (H - h) for r, h in zip(rows, heads, strict=True)])
    )
    return steps, least


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--size", type=int, default=64, help="features of a head")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cpu", action="store_true")
    args = parser.parse_args()
    comm = mnpar.create_communicator()
    rng = np.random.default_rng(0)
    whole = rng.standard_normal((3, args.heads, args.length, args.size), dtype="f4")
    steps, least = ways_of(comm, whole)
    clock = time.process_time if args.cpu else time.perf_counter
    seconds = in_turn(steps, 1, args.rounds, comm.barrier, clock)
    for name, step in steps.items():
        memory = peak(step)
        before = comm.traffic.bytes
        step()
        told = comm.gather_obj((seconds[name], memory, comm.traffic.bytes - before))
        if comm.rank == 0:
            times, memories, sent = zip(*told, strict=True)
            took = f"{sum(times):8.3f} s cpu" if args.cpu else f"{max(times):8.3f} s"
            moved = (
                f"{sum(sent) / 2**20:9.2f} MiB sent, least {4 * least[name] / 2**20:9.2f}"
                if name in least
                else ""
            )
            print(
                f"{comm.size} ranks  {name:16s}{took}{max(memories):9.1f} MiB at the peak {moved}",
                flush=True,
            )


if __name__ == "__main__":
    main()
