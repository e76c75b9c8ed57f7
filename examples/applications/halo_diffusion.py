"""An inverse problem, without a neural network: the conductivity of a plate, learnt from heat
diffusion, on a grid of ranks.

    mpiexec -n 4 python examples/applications/halo_diffusion.py
    python examples/applications/halo_diffusion.py
        starts four ranks itself
    python examples/applications/halo_diffusion.py --threads 6
        ranks that are threads: needs no MPI

The plate is divided into blocks. Each of 50 time steps of ∂u/∂t = ∇·(κ ∇u) reads one row of cells
from the neighbours by ``F.halo_exchange``; backward returns the gradients of those cells to their
ranks. Each rank learns its block of the field κ from u at a few times. First the gradient is
compared with that of the adjoint equation, solved on one rank in numpy.
"""

from pathlib import Path

import numpy as np

import mnpar
import mnpar.functions as F

DT = 0.1  # of a time step, with cells of width 1


def step(u, kx, ky, grid, shape):
    """u after one time step: what flows through the faces of each cell is κ there times the
    difference across it.
    """
    # (N, h, w) → (N, h + 2, w + 2); edges are insulated
    c = F.halo_exchange(u, grid, shape, ksize=3, pad=1, mode="edge")
    fx = kx * (c[:, 1:-1, 1:] - c[:, 1:-1, :-1])  # (N, h, w + 1)
    fy = ky * (c[:, 1:, 1:-1] - c[:, :-1, 1:-1])  # (N, h + 1, w)
    return u + DT * (fx[:, :, 1:] - fx[:, :, :-1] + fy[:, 1:] - fy[:, :-1])


def simulate(log_kappa, u, grid, shape, steps, every):
    """u at every so many steps; all arguments are this rank's blocks."""
    k = F.halo_exchange(F.exp(log_kappa), grid, shape, ksize=3, pad=1, mode="edge")
    # κ on the faces
    kx = (k[1:-1, 1:] + k[1:-1, :-1]) / 2
    ky = (k[1:, 1:-1] + k[:-1, 1:-1]) / 2
    seen = []
    for i in range(1, steps + 1):
        u = step(u, kx, ky, grid, shape)
        if i % every == 0:
            seen.append(u)
    return seen


def loss(seen, measured, cells):
    """This rank's part of the mean square: backward adds the parts of all ranks (law 1)."""
    return sum(F.sum((u - m) ** 2) for u, m in zip(seen, measured, strict=True)) / cells


def adjoint(log_kappa, u0, measured, steps, every, cells):
    """The gradient on one rank, without mnpar: λ(t) = λ(t + 1) + dt ∇·(κ ∇λ) + ∂loss/∂u, the same
    equation backward in time.
    """
    kappa = np.pad(np.exp(log_kappa), 1, mode="edge")
    kx = (kappa[1:-1, 1:] + kappa[1:-1, :-1]) / 2
    ky = (kappa[1:, 1:-1] + kappa[:-1, 1:-1]) / 2

    def across(u):
        c = np.pad(u, [(0, 0), (1, 1), (1, 1)], mode="edge")
        return np.diff(c[:, 1:-1], axis=2), np.diff(c[:, :, 1:-1], axis=1)

    def spread(u):
        dx, dy = across(u)
        return u + DT * (np.diff(kx * dx, axis=2) + np.diff(ky * dy, axis=1))

    us = [u0]
    for _ in range(steps):
        us.append(spread(us[-1]))
    lam = np.zeros_like(u0)
    gx = np.zeros_like(kx)
    gy = np.zeros_like(ky)
    for t in range(steps, 0, -1):
        if t % every == 0:
            lam = lam + 2 * (us[t] - measured[t // every - 1]) / cells
        (lx, ly), (ux, uy) = across(lam), across(us[t - 1])
        gx = gx - DT * (lx * ux).sum(axis=0)
        gy = gy - DT * (ly * uy).sum(axis=0)
        lam = spread(lam)
    return np.exp(log_kappa) * (gx[:, 1:] + gx[:, :-1] + gy[1:] + gy[:-1]) / 2


def plate(n):
    """The true log κ, (n, n): a channel that conducts well and a lump that conducts badly; and hot
    spots to begin with.
    """
    y, x = np.mgrid[:n, :n] / n
    channel = np.exp(-(((y - 0.3 - 0.25 * np.sin(5 * x)) / 0.09) ** 2))
    lump = np.exp(-((x - 0.65) ** 2 + (y - 0.7) ** 2) / 0.03)
    spots = [(i, j) for i in (0.2, 0.5, 0.8) for j in (0.2, 0.5, 0.8)]
    start = [np.exp(-((x - j) ** 2 + (y - i) ** 2) / 0.02) for i, j in spots]
    return 0.9 * channel - 1.2 * lump - 0.2, 10 * np.stack(start)  # (9, n, n)


def main(comm, args):
    """Learn κ; returns the difference of the two gradients, and the first and the last loss."""
    grid = mnpar.Mesh(comm, **args.divide).grid()
    shape = (args.size, args.size)
    # the whole is only there to make measurements, and for the comparison
    truth, start = plate(args.size)
    mine = tuple(
        slice(a, b) for a, b in zip(grid.block(shape).start, grid.block(shape).stop, strict=True)
    )
    u0 = start[(..., *mine)].copy()
    every = max(1, args.steps // 5)
    with mnpar.no_backprop_mode():
        measured = [u.array for u in simulate(truth[mine], u0, grid, shape, args.steps, every)]
    cells = start.size * len(measured)

    def whole(x):
        return F.repartition(
            comm, x, grid.blocks(shape), [mnpar.plans.Box.whole(shape)] * comm.size
        ).array

    field = mnpar.Link()
    field.log_kappa = mnpar.Parameter(np.zeros(grid.block(shape).shape))
    optimizer = mnpar.optimizers.Adam(alpha=0.1).setup(field)
    history = []
    difference = None
    for i in range(args.iterations):
        value = loss(simulate(field.log_kappa, u0, grid, shape, args.steps, every), measured, cells)
        field.cleargrads()
        value.backward()
        history.append(comm.allreduce(value.array).item())
        if difference is None:
            gradient = whole(field.log_kappa.grad)
            all_measured = [whole(m) for m in measured]
            expected = adjoint(np.zeros(shape), start, all_measured, args.steps, every, cells)
            difference = abs(gradient - expected).max() / abs(expected).max()
            if comm.is_root:
                print(
                    f"{args.size} × {args.size} cells in {grid.dims[0]} × {grid.dims[1]} "
                    f"blocks, {args.steps} time steps"
                )
                print(
                    f"gradients by {comm.size} rank(s) and by the adjoint equation on one: "
                    f"difference {difference:.1e}"
                )
        optimizer.update()
        if comm.is_root and (i + 1) % 20 == 0:
            print(f"iteration {i + 1:4d}   mean square {history[-1]:.3e}")
    found = whole(field.log_kappa.array)
    if comm.is_root:
        print(
            f"log κ is wrong by {np.sqrt(np.mean((found - truth) ** 2)):.3f} (root mean "
            f"square), at first {truth.std():.3f}"
        )
        draw(
            truth,
            found,
            all_measured,
            history,
            grid.blocks(shape),
            Path(args.out) / "halo_diffusion.png",
        )
    if not difference < 1e-10:
        raise SystemExit("the two gradients do not agree")
    return difference, history[0], history[-1]


def draw(truth, found, measured, history, blocks, path):
    """The fields, what was measured, and the loss; white lines are the blocks' edges."""
    try:
        import matplotlib as mpl
    except ImportError:
        print("no plot: matplotlib is missing (pip install 'mnpar[examples]')")
        return
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(10, 6.2), layout="constrained")
    limit = abs(truth).max()
    fields = {"log κ: the truth": truth, "learnt": found, "the difference": found - truth}
    for ax, (title, field) in zip(axes[0], fields.items(), strict=True):
        image = ax.imshow(field, cmap="RdBu_r", vmin=-limit, vmax=limit)
        ax.set_title(title)
    figure.colorbar(image, ax=axes[0], shrink=0.8)
    for ax, u, title in zip(
        axes[1], (measured[0], measured[-1]), ("measured u, early", "and at the end"), strict=False
    ):
        figure.colorbar(ax.imshow(u[4], cmap="inferno"), ax=ax, shrink=0.8)
        ax.set_title(f"{title} (one of {len(u)})")
    for ax in axes.flat[:5]:
        ax.set(xticks=[], yticks=[])
        for a in {box.start[0] for box in blocks} - {0}:
            ax.axhline(a - 0.5, color="white", linewidth=0.8)
        for b in {box.start[1] for box in blocks} - {0}:
            ax.axvline(b - 0.5, color="white", linewidth=0.8)
    axes[1, 2].semilogy(np.arange(1, len(history) + 1), history)
    axes[1, 2].set(title="mean square of u − measured", xlabel="iteration")
    axes[1, 2].grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    print(f"plot: {path}")


def flags():
    """Return the parser of the command line."""
    parser = mnpar.launch.Parser(__doc__, ranks=4)
    parser.divide(default="space=2x2", switches={"--grid RxC": "space={}"}, space=2)
    parser.flag("--size", 48, "cells on each side of the plate", least=2)
    parser.flag("--steps", 50, "time steps of the simulation", least=5)
    parser.flag("--iterations", 50, "steps of learning")
    parser.flag("--out -o", mnpar.launch.folder, "for the plot", default="result")
    return parser


if __name__ == "__main__":
    mnpar.launch.script(main, flags())
