"""The shallow-water equations on a grid of ranks: a jet that breaks into vortices, and the gradient
of a misfit with respect to the state at the beginning.

    mpiexec -n 4 python examples/applications/shallow_water.py
    python examples/applications/shallow_water.py
        starts two ranks itself
    python examples/applications/shallow_water.py --local jax
        each time step is compiled by JAX (pip install 'mnpar[jax]')
    python examples/applications/shallow_water.py --local numba --threads 2
        each time step is compiled by numba (pip install 'mnpar[fast]'); ranks that are threads

The height h and the velocities u, v lie on an Arakawa C grid, u on the east face and v on the north
face of each cell. The channel is periodic in x, and has walls in y, along which u slips. A time
step is a function of a block and of two rows and columns of its neighbours on each side.
``F.halo_exchange`` brings these once a step; its backward returns their gradients. What a step also
reads, the derivatives in time at the step before, does not travel: each rank computes those of one
row and column of its neighbours, too. Only the local function is compiled.

The beginning, the scheme and its numbers are those of mpi4jax's demonstration
(github.com/mpi4jax/mpi4jax, examples/shallow_water.py): fluxes of potential vorticity, one Euler
step and then steps of Adams and Bashforth, lateral friction; the jet begins in geostrophic balance.
Without friction both compute the same, to rounding. With it, five things differ:

- friction of v is of differences of v; there it is of those between v and u;
- v is zero in both walls, after friction, too; there friction makes v in the northern wall other
  than zero, and takes no difference of v across the southern one;
- the next time step reads the neighbours' velocities after friction; there it reads them before
  friction, so that results depend a little on the number of ranks;
- viscosity is 500 m²/s; there it is 5 m²/s (``--viscosity 5``), with which the currents' folds
  become as thin as the cells, and the picture fills with noise;
- cells beyond the walls repeat the last row; there they keep values of the beginning, or zeros. No
  result reads them: they are multiplied by what flows through a wall, which is nothing.
"""

import functools
import importlib.util
import sys
import time
from pathlib import Path

import numpy as np

import mnpar
import mnpar.functions as F

GRAVITY, DEPTH, CORIOLIS, BETA = 9.81, 100.0, 2e-4, 2e-11  # m/s², m, 1/s, 1/(m s)
DX = 5e3  # m, of a cell, in both directions
DT = 0.125 * DX / (GRAVITY * DEPTH) ** 0.5  # s
FRAMES = 6  # of the film, which shows the second half
HALO = 2  # cells that a time step reads on each side


def constants(first, viscosity, dtype):
    """What the time steps multiply by, in the state's dtype; the first step is Euler's."""
    now, before = (1.0, 0.0) if first else (1.6, -0.6)
    return np.array(
        [1 / DX, GRAVITY / DX, DT * now, DT * before, DT * viscosity / DX**2, 0.5, 0.25], dtype
    )


def time_step(s, old, f, inside, c):
    """The fields of a block after one time step, and their derivatives in time before it.

    Args:
        s: (3, H + 4, W + 4): h, u, v.
        old: three of (H + 2, W + 2), their derivatives in time at the step before.
        f: (H + 4, 1), the Coriolis parameter.
        inside: (H + 4, 1), 1 where the north face of a cell is no wall, and else 0.
        c: constants.

    Returns:
        Three of (H, W), and three as ``old``.
    """
    per_dx, g, now, before, friction, half, quarter = c[0], c[1], c[2], c[3], c[4], c[5], c[6]
    h, u, v = s[0], s[1], s[2] * inside
    fe = half * (h[:, :-1] + h[:, 1:]) * u[:, :-1]  # what flows through east faces
    fn = half * (h[:-1] + h[1:]) * v[:-1]  # and through north faces
    spin = (v[:-1, 1:] - v[:-1, :-1] - u[1:, :-1] + u[:-1, :-1]) * per_dx
    # a quarter of the potential vorticity, at the north-east corners
    q = (f[:-1] + spin) / (h[:-1, :-1] + h[:-1, 1:] + h[1:, :-1] + h[1:, 1:])
    qn = q * (fn[:, :-1] + fn[:, 1:])
    qe = q * (fe[:-1] + fe[1:])
    uu, vv = u * u, v * v
    ke = quarter * (uu[1:, 1:] + uu[1:, :-1] + vv[1:, 1:] + vv[:-1, 1:])  # kinetic energy
    dh = per_dx * (fe[1:-1, :-1] - fe[1:-1, 1:] + fn[:-1, 1:-1] - fn[1:, 1:-1])
    du = (
        g * (h[1:-1, 1:-1] - h[1:-1, 2:])
        + (qn[1:, 1:] + qn[:-1, 1:])
        + per_dx * (ke[:-1, :-1] - ke[:-1, 1:])
    )
    dv = (
        g * (h[1:-1, 1:-1] - h[2:, 1:-1])
        - (qe[1:, 1:] + qe[1:, :-1])
        + per_dx * (ke[:-1, :-1] - ke[1:, :-1])
    )
    h = h[1:-1, 1:-1] + now * dh + before * old[0]
    u = u[1:-1, 1:-1] + now * du + before * old[1]
    v = (v[1:-1, 1:-1] + now * dv + before * old[2]) * inside[1:-1]
    shear = (u[1:] - u[:-1]) * inside[1:-2]  # none at a wall: u slips
    mid = v[1:-1, 1:-1]
    spread_u = u[1:-1, 2:] - u[1:-1, 1:-1] - u[1:-1, 1:-1] + u[1:-1, :-2]
    spread_u = spread_u + shear[1:, 1:-1] - shear[:-1, 1:-1]
    spread_v = v[1:-1, 2:] + v[1:-1, :-2] + v[2:, 1:-1] + v[:-2, 1:-1] - mid - mid - mid - mid
    u, v = u[1:-1, 1:-1] + friction * spread_u, (mid + friction * spread_v) * inside[2:-2]
    return (h[1:-1, 1:-1], u, v), (dh, du, dv)


@functools.cache
def loops():
    """The time step and its gradient as loops over cells, which numba compiles."""
    import numba

    @numba.njit(nogil=True)
    def fluxes(h, u, v, f, c):
        """What flows through the faces, potential vorticity, and the depth at the corners."""
        rows, columns = h.shape
        fe, fn = np.zeros_like(h), np.zeros_like(h)
        q, depth = np.zeros_like(h), np.ones_like(h)
        per_dx, half, quarter = c[0], c[5], c[6]
        for i in range(rows):
            for j in range(columns - 1):
                fe[i, j] = half * (h[i, j] + h[i, j + 1]) * u[i, j]
        for i in range(rows - 1):
            for j in range(columns):
                fn[i, j] = half * (h[i, j] + h[i + 1, j]) * v[i, j]
        for i in range(rows - 1):
            for j in range(columns - 1):
                spin = (v[i, j + 1] - v[i, j] - u[i + 1, j] + u[i, j]) * per_dx
                depth[i, j] = quarter * (h[i, j] + h[i, j + 1] + h[i + 1, j] + h[i + 1, j + 1])
                q[i, j] = (f[i, 0] + spin) / depth[i, j]
        return fe, fn, q, depth

    @numba.njit(nogil=True)
    def forward(s, old_h, old_u, old_v, f, inside, c):
        rows, columns = s.shape[1:]
        per_dx, g, now, before, friction, half, quarter = c[0], c[1], c[2], c[3], c[4], c[5], c[6]
        h, u, v = s[0], s[1], s[2] * inside
        fe, fn, q, _ = fluxes(h, u, v, f, c)
        ke = np.zeros_like(fe)
        for i in range(1, rows):
            for j in range(1, columns):
                east, west = u[i, j] * u[i, j], u[i, j - 1] * u[i, j - 1]
                north, south = v[i, j] * v[i, j], v[i - 1, j] * v[i - 1, j]
                ke[i, j] = quarter * (east + west + north + south)
        y = np.empty((3, rows - 4, columns - 4), s.dtype)
        dh, du, dv = np.empty_like(old_h), np.empty_like(old_u), np.empty_like(old_v)
        u1, v1 = np.zeros_like(fe), np.zeros_like(fe)  # before friction
        for i in range(1, rows - 1):
            for j in range(1, columns - 1):
                k, m = i - 1, j - 1  # where the derivatives in time of this cell are
                dh[k, m] = per_dx * (fe[i, j - 1] - fe[i, j] + fn[i - 1, j] - fn[i, j])
                north = half * q[i, j] * (fn[i, j] + fn[i, j + 1])
                south = half * q[i - 1, j] * (fn[i - 1, j] + fn[i - 1, j + 1])
                east = half * q[i, j] * (fe[i, j] + fe[i + 1, j])
                west = half * q[i, j - 1] * (fe[i, j - 1] + fe[i + 1, j - 1])
                slope = g * (h[i, j] - h[i, j + 1]) + per_dx * (ke[i, j] - ke[i, j + 1])
                du[k, m] = slope + half * (north + south)
                slope = g * (h[i, j] - h[i + 1, j]) + per_dx * (ke[i, j] - ke[i + 1, j])
                dv[k, m] = slope - half * (east + west)
                u1[i, j] = u[i, j] + now * du[k, m] + before * old_u[k, m]
                v1[i, j] = (v[i, j] + now * dv[k, m] + before * old_v[k, m]) * inside[i, 0]
        for i in range(2, rows - 2):
            for j in range(2, columns - 2):
                k, m = i - 1, j - 1
                y[0, i - 2, j - 2] = h[i, j] + now * dh[k, m] + before * old_h[k, m]
                spread = u1[i, j + 1] - u1[i, j] - u1[i, j] + u1[i, j - 1]
                spread += (u1[i + 1, j] - u1[i, j]) * inside[i, 0]  # none at a wall: u slips
                spread -= (u1[i, j] - u1[i - 1, j]) * inside[i - 1, 0]
                y[1, i - 2, j - 2] = u1[i, j] + friction * spread
                mid = v1[i, j]
                spread = v1[i, j + 1] + v1[i, j - 1] + v1[i + 1, j] + v1[i - 1, j]
                spread -= mid + mid + mid + mid
                y[2, i - 2, j - 2] = (mid + friction * spread) * inside[i, 0]
        return y, dh, du, dv

    @numba.njit(nogil=True)
    def backward(s, old_h, old_u, old_v, f, inside, c, gy, g_dh, g_du, g_dv):
        """The gradient of the state before the step: ``forward``, from its end to its beginning."""
        rows, columns = s.shape[1:]
        per_dx, g, now, before, friction, half, quarter = c[0], c[1], c[2], c[3], c[4], c[5], c[6]
        h, u, v = s[0], s[1], s[2] * inside
        fe, fn, q, depth = fluxes(h, u, v, f, c)
        g1 = np.zeros_like(s)
        for i in range(2, rows - 2):
            for j in range(2, columns - 2):
                g1[0, i, j] += gy[0, i - 2, j - 2]
                t = friction * gy[1, i - 2, j - 2]
                north, south = inside[i, 0] * t, inside[i - 1, 0] * t
                g1[1, i, j] += gy[1, i - 2, j - 2] - t - t - north - south
                g1[1, i, j + 1] += t
                g1[1, i, j - 1] += t
                g1[1, i + 1, j] += north
                g1[1, i - 1, j] += south
                masked = gy[2, i - 2, j - 2] * inside[i, 0]
                t = friction * masked
                g1[2, i, j] += masked - t - t - t - t
                g1[2, i, j + 1] += t
                g1[2, i, j - 1] += t
                g1[2, i + 1, j] += t
                g1[2, i - 1, j] += t
        gs = np.zeros_like(s)
        g_old_h, g_old_u, g_old_v = np.empty_like(old_h), np.empty_like(old_u), np.empty_like(old_v)
        gh, gu, gv = gs[0], gs[1], gs[2]
        gfe, gfn, gq, gke = (
            np.zeros_like(h),
            np.zeros_like(h),
            np.zeros_like(h),
            np.zeros_like(h),
        )
        for i in range(1, rows - 1):
            for j in range(1, columns - 1):
                g1[2, i, j] *= inside[i, 0]
                k, m = i - 1, j - 1
                gdh = g_dh[k, m] + now * g1[0, i, j]
                gdu = g_du[k, m] + now * g1[1, i, j]
                gdv = g_dv[k, m] + now * g1[2, i, j]
                g_old_h[k, m] = before * g1[0, i, j]
                g_old_u[k, m] = before * g1[1, i, j]
                g_old_v[k, m] = before * g1[2, i, j]
                gh[i, j] += g1[0, i, j]
                gu[i, j] += g1[1, i, j]
                gv[i, j] += g1[2, i, j]
                gfe[i, j - 1] += per_dx * gdh
                gfe[i, j] -= per_dx * gdh
                gfn[i - 1, j] += per_dx * gdh
                gfn[i, j] -= per_dx * gdh
                gh[i, j] += g * (gdu + gdv)
                gh[i, j + 1] -= g * gdu
                gh[i + 1, j] -= g * gdv
                gke[i, j] += per_dx * (gdu + gdv)
                gke[i, j + 1] -= per_dx * gdu
                gke[i + 1, j] -= per_dx * gdv
                for k in range(i - 1, i + 1):  # the corners south and north of u
                    t = half * half * gdu
                    gq[k, j] += t * (fn[k, j] + fn[k, j + 1])
                    gfn[k, j] += t * q[k, j]
                    gfn[k, j + 1] += t * q[k, j]
                for k in range(j - 1, j + 1):  # and west and east of v
                    t = half * half * gdv
                    gq[i, k] -= t * (fe[i, k] + fe[i + 1, k])
                    gfe[i, k] -= t * q[i, k]
                    gfe[i + 1, k] -= t * q[i, k]
        for i in range(1, rows):
            for j in range(1, columns):
                t = half * gke[i, j]
                gu[i, j] += u[i, j] * t
                gu[i, j - 1] += u[i, j - 1] * t
                gv[i, j] += v[i, j] * t
                gv[i - 1, j] += v[i - 1, j] * t
        for i in range(rows - 1):
            for j in range(columns - 1):
                t = gq[i, j] / depth[i, j]
                gdepth = -quarter * q[i, j] * t
                gh[i, j] += gdepth
                gh[i, j + 1] += gdepth
                gh[i + 1, j] += gdepth
                gh[i + 1, j + 1] += gdepth
                t *= per_dx
                gv[i, j + 1] += t
                gv[i, j] -= t
                gu[i + 1, j] -= t
                gu[i, j] += t
        for i in range(rows):
            for j in range(columns - 1):
                t = half * gfe[i, j]
                gh[i, j] += t * u[i, j]
                gh[i, j + 1] += t * u[i, j]
                gu[i, j] += t * (h[i, j] + h[i, j + 1])
        for i in range(rows - 1):
            for j in range(columns):
                t = half * gfn[i, j]
                gh[i, j] += t * v[i, j]
                gh[i + 1, j] += t * v[i, j]
                gv[i, j] += t * (h[i, j] + h[i + 1, j])
        gs[2] *= inside
        return gs, g_old_h, g_old_u, g_old_v, None, None, None

    return forward, backward


def local_step(name, *constants):
    """A differentiable time step of one block, of Variables and arrays: the fields after it,
    (3, H, W), and their derivatives in time. ``constants`` are the last arguments of ``time_step``.
    """

    def stacked(stack, s, old):
        fields, derivatives = time_step(s, old, *constants)
        return stack(fields), derivatives

    if name == "jax":
        import jax

        if constants[0].dtype.itemsize == 8:
            jax.config.update("jax_enable_x64", True)
        return F.from_jax(functools.partial(stacked, jax.numpy.stack))
    if name == "numba":
        compiled = F.from_numba(*loops())

        def step(s, old):
            fields, *derivatives = compiled(s, *old, *constants)
            return fields, derivatives

        return step
    return functools.partial(stacked, F.stack)


def jet(rows, cells, dtype):
    """The fields at the beginning, (3, H, W), and the Coriolis parameter of all rows that a block
    of ``rows`` reads, (rows + 4, 1).
    """
    height, width = cells
    y = np.arange(-1, height + 1)[:, None] * DX  # with a cell on each side, as in mpi4jax
    x = np.arange(-1, width + 1)[None] * DX
    length_x, length_y = (width - 1) * DX, (height - 1) * DX
    u = 10 * np.exp(-(((y - 0.5 * length_y) / (0.02 * length_x)) ** 2)) + 0 * x
    h = np.cumsum(-DX * u * (CORIOLIS + BETA * y) / GRAVITY, axis=0)  # balances the Coriolis force
    waves = np.sin(10 * np.pi * x / length_x) * np.cos(8 * np.pi * y / length_y)
    fields = np.zeros((3, height, width))
    fields[0] = (DEPTH + h - h.mean() + 0.2 * waves)[1:-1, 1:-1]
    fields[1] = u[1:-1, 1:-1]
    y = np.arange(rows[0] - HALO, rows[1] + HALO)[:, None] * DX
    return fields.astype(dtype), (CORIOLIS + BETA * y).astype(dtype)


class Channel:
    """The simulation of one rank's block.

    Args:
        grid: of ranks.
        cells: (H, W) of the whole channel.
        local: how a time step of a block is computed: ``"numpy"``, ``"jax"`` or ``"numba"``.
        dtype: of all fields.
        viscosity: of the lateral friction, in m²/s.
    """

    def __init__(self, grid, cells, local, dtype, viscosity=500.0):
        self.grid = grid
        self.cells = cells
        box = grid.block(cells)
        self.own = (slice(None), *map(slice, box.start, box.stop))
        whole, f = jet((box.start[0], box.stop[0]), cells, dtype)
        self.start = whole[self.own].copy()
        row = np.arange(box.start[0] - HALO, box.stop[0] + HALO)[:, None]
        inside = ((row >= 0) & (row < cells[0] - 1)).astype(dtype)
        self.first, self.later = (
            local_step(local, f, inside, constants(first, viscosity, dtype))
            for first in (True, False)
        )
        height, width = box.shape
        self.still = [np.zeros((height + 2, width + 2), dtype)] * 3

    def run(self, fields, steps, old=None):
        """The fields so many time steps later, and what the next step reads beside them.

        Args:
            fields: (3, H, W), this rank's block.
            steps: how many.
            old: the derivatives in time at the step before; None: there was none.
        """
        for _ in range(steps):
            wide = F.halo_exchange(
                fields, self.grid, self.cells, 2 * HALO + 1, pad=HALO, mode=("edge", "wrap")
            )
            step, old = (self.first, self.still) if old is None else (self.later, old)
            fields, old = step(wide, old)
        return fields, old

    def misfit(self, start, measured, steps):
        """This rank's part of the mean square difference from measured heights."""
        fields, _ = self.run(start, steps)
        return F.sum((fields[0] - measured) ** 2) / (self.cells[0] * self.cells[1])


def grid_of(comm):
    """As square a grid as the ranks allow, with more columns than rows."""
    rows = max(r for r in range(1, comm.size + 1) if comm.size % r == 0 and r * r <= comm.size)
    return mnpar.SpatialGrid(comm, (rows, comm.size // rows))


def gradient(comm, cells, local, dtype, steps):
    """This rank's part of the gradient of a misfit, and the misfit of any state, on a small
    channel.
    """
    channel = Channel(grid_of(comm), cells, local, np.dtype(dtype))
    noise = 0.1 * np.random.default_rng(0).standard_normal(cells)[channel.own[1:]]
    measured = channel.start[0] + noise.astype(dtype)
    start = mnpar.Variable(channel.start)
    channel.misfit(start, measured, steps).backward()
    return start, lambda fields: channel.misfit(fields, measured, steps).array


def compare_gradients(comm, local, dtype, cells=(40, 60), steps=8):
    """Return by how much the gradient of the local step, in its dtype, differs from that of numpy
    in float64, and by how much that one differs from a difference of two runs; both relative.
    """
    start, misfit = gradient(comm, cells, "numpy", "f8", steps)
    other = start if (local, dtype) == ("numpy", "f8") else None
    if other is None:
        other, _ = gradient(comm, cells, local, dtype, steps)

    def total(number, op="sum"):
        return comm.allreduce(np.asarray(number), op=op).item()

    largest = total(abs(start.grad).max(initial=0), "max")
    differs = total(abs(other.grad - start.grad).max(initial=0), "max") / largest
    direction = np.random.default_rng(1 + comm.rank).standard_normal(start.shape)
    slope = total(np.sum(start.grad * direction))
    eps = 1e-4
    with mnpar.no_backprop_mode():
        there, back = [misfit(start.array + sign * eps * direction) for sign in (1, -1)]
    return differs, abs(slope * 2 * eps / total(there - back) - 1)


def mean_height(comm, fields, cells):
    """Return the mean over the whole channel, in m."""
    return comm.allreduce(np.asarray(np.sum(fields[0], dtype="f8"))).item() / (cells[0] * cells[1])


def main(comm, args):
    """Run, differentiate, draw; return the whole channel's (3, H, W) at the end."""
    width, height = args.cells
    cells = (height, width)
    grid = grid_of(comm)
    channel = Channel(grid, cells, args.local, np.dtype(args.dtype), args.viscosity)
    say = print if comm.is_root else lambda *_: None
    whole = [mnpar.plans.Box.whole(cells)] * comm.size
    film, forward, done = [], 0.0, 2
    with mnpar.no_backprop_mode():
        fields, old = channel.run(channel.start, done)  # compiles Euler's step and the others
        for frame in range(1, FRAMES + 1):
            steps = args.steps * (FRAMES + frame) // (2 * FRAMES) + 1 - done
            comm.barrier()
            began = time.perf_counter()
            fields, old = channel.run(fields, steps, old)
            forward += time.perf_counter() - began
            done += steps
            film.append((done, F.repartition(comm, fields, grid.blocks(cells), whole).array))
    window = min(args.steps, 10)
    measured = film[0][1][channel.own][0]
    for _ in range(2):  # the first compiles
        start = mnpar.Variable(channel.start)
        comm.barrier()
        began = time.perf_counter()
        channel.misfit(start, measured, window).backward()
        both = time.perf_counter() - began
    say(
        f"{width} x {height} cells in {grid.dims[0]} x {grid.dims[1]} blocks, {args.dtype}, "
        f"{args.local}: {1e3 * forward / (done - 2):.2f} ms a step, with its gradient "
        f"{1e3 * both / window:.2f} ms"
    )
    before, after = (mean_height(comm, one, cells) for one in (channel.start, fields.array))
    say(f"mean height {before:.4f} m, after {done} steps {after:.4f} m")
    if comm.is_root:
        draw(film, args.cells, Path(args.out) / "shallow_water.png")
    differs, wrong = compare_gradients(comm, args.local, args.dtype)
    limit = 1e-2 if args.dtype == "f4" else 1e-9
    if not (wrong < 1e-6 and differs < limit and abs(after / before - 1) < 1e-4):
        raise SystemExit(
            f"wrong: the gradient by {differs:.1e}, that of numpy by {wrong:.1e}, or the height"
        )
    say(
        f"The gradient through 8 time steps and their halo exchanges on {comm.size} rank(s) "
        f"differs by {differs:.0e} from numpy's in float64, and that one by {wrong:.0e} from a "
        "difference of two runs. The mean height has stayed as it was."
    )
    return film[-1][1]


def draw(film, cells, path):
    """Draw the vorticity, relative to the Coriolis parameter, at each moment."""
    try:
        import matplotlib as mpl
    except ImportError:
        print("no plot: matplotlib is missing (pip install 'mnpar[examples]')")
        return
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, FRAMES // 2, figsize=(10, 4), layout="constrained")
    extent = np.array([0, cells[0], 0, cells[1]]) * DX / 1e3
    for ax, (steps, fields) in zip(axes.flat, film, strict=True):
        u, v = fields[1:3]
        spin = (np.roll(v, -1, axis=1) - v)[:-1] - np.diff(u, axis=0)
        image = ax.imshow(
            spin / DX / CORIOLIS, origin="lower", extent=extent, cmap="RdBu_r", vmin=-1, vmax=1
        )
        ax.set(title=f"after {steps * DT / 86400:.2g} days", xlabel="km", ylabel="km")
        ax.label_outer()
    figure.colorbar(image, ax=axes, label="vorticity / Coriolis parameter", shrink=0.8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    print(f"plot: {path}")


LIBRARIES = {"numpy": "", "jax": "jax", "numba": "fast"}  # and the extra that brings each


def check(parser, args):
    """Refuse what does not go together, and a library that is missing."""
    if len(args.cells) != 2 or min(args.cells) < 8:
        parser.error("--cells is columns x rows, 8x8 at least")
    most = DX**2 / (4 * DT)
    if not 0 <= args.viscosity <= most:
        parser.error(f"--viscosity is at least 0, and at most {most:.0f} m²/s, where steps diverge")
    if importlib.util.find_spec(args.local) is None:
        parser.error(
            f"--local {args.local} needs a library that is missing: pip install "
            f"'mnpar[{LIBRARIES[args.local]}]'; without it: python {sys.argv[0]} --local numpy"
        )


def flags():
    """Return the parser of the command line."""
    parser = mnpar.launch.Parser(__doc__, ranks=2, check=check)
    parser.flag("--cells", mnpar.launch.dims, "columns x rows", default=(180, 90), metavar="CxR")
    parser.flag("--steps", 8000, "time steps after the first", least=2 * FRAMES)
    parser.flag("--viscosity", 500.0, "of the lateral friction, in m²/s")
    parser.flag("--local", "numpy", "what computes a time step", choices=[*LIBRARIES])
    parser.flag("--dtype", "f4", "of the fields", choices=["f4", "f8"])
    parser.flag("--out -o", mnpar.launch.folder, "for the plot", default="result")
    return parser


if __name__ == "__main__":
    mnpar.launch.script(main, flags())
