"""The U-Nets and the fields on grids: the same costs and pictures on every grid as on one
process.
"""

import re
import sys

import numpy as np
import pytest
import threadpoolctl

import mnpar
import mnpar.functions as F
from tests.examples.running import PNG, load, output

unet, diffusion = load("unet"), load("applications/halo_diffusion")
water = load("applications/shallow_water")


@pytest.fixture(scope="module", autouse=True)
def _one_core():
    """Ranks that are threads take turns, and small products on all cores wait for each other."""
    with threadpoolctl.threadpool_limits(1):
        yield


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    monkeypatch.delenv("MNPAR_DATA", raising=False)
    with mnpar.using_config("dtype", mnpar.config.dtype):
        yield


def printed(module, main, flags, ranks, capsys, monkeypatch):
    """What rank 0 prints."""
    monkeypatch.setattr(
        sys, "argv", ["example", *flags, *(["--threads", str(ranks)] if ranks > 1 else [])]
    )
    args = module.flags().read()
    mnpar.run(main, ranks=ranks, args=(args,))
    return capsys.readouterr().out


# ---- U-Net ----


def test_a_u_net_prints_the_same_costs_on_every_mesh(tmp_path, capsys, monkeypatch):
    """Images of 21 × 21 on three scales: at the smallest one some ranks have nothing."""
    flags = [
        "--size",
        "21",
        "--train",
        "3",
        "--test",
        "1",
        "-b",
        "2",
        "--filters",
        "2",
        "-e",
        "1",
        "-o",
        str(tmp_path),
    ]
    one = printed(unet, unet.main, flags, 1, capsys, monkeypatch)
    assert (tmp_path / "unet.png").read_bytes().startswith(PNG)
    monkeypatch.setattr(unet, "draw", lambda *args: f"plot: {tmp_path / 'unet.png'}")
    for axes, ranks in (("space=2x2", 4), ("space=3x1", 3), ("data=2,space=1x2", 4)):
        assert (
            printed(unet, unet.main, [*flags, "--divide", axes], ranks, capsys, monkeypatch) == one
        )


# ---- a field ----


PLATE = ["--size", "8", "--steps", "10", "--iterations", "3"]


def test_a_field_is_learnt_on_several_processes_with_the_gradient_of_the_adjoint_equation(tmp_path):
    text = output(2, "applications/halo_diffusion", [*PLATE, "--out", str(tmp_path)])
    assert float(re.search(r"on one: difference (\S+)", text)[1]) < 1e-12
    now, before = re.search(r"wrong by (\S+) \(root mean square\), at first (\S+)", text).groups()
    assert float(now) < float(before)
    assert (tmp_path / "halo_diffusion.png").read_bytes().startswith(PNG)


GRIDS = {
    "2 x 3": ["--grid", "2x3", "--size", "7"],
    "one rank has nothing": ["--grid", "4x1", "--size", "3"],
}


@pytest.mark.parametrize("flags", GRIDS.values(), ids=GRIDS)
def test_on_any_grid_the_field_is_that_of_one_process(flags, monkeypatch):
    monkeypatch.setattr(diffusion, "draw", lambda *args: None)
    found = []
    for grid, ranks in (([], 1), (flags[:2], int(np.prod(mnpar.launch.dims(flags[1]))))):
        monkeypatch.setattr(
            sys,
            "argv",
            ["applications/halo_diffusion", *PLATE, *flags[2:], *grid, "--threads", str(ranks)],
        )
        found.append(mnpar.run(diffusion.main, ranks=ranks, args=(diffusion.flags().read(),))[0])
    (difference, *losses), (one, *serial) = found
    assert max(difference, one) < 1e-12
    np.testing.assert_allclose(losses, serial, rtol=1e-9)


# ---- shallow water ----


def after_steps(local, ranks, cells=(11, 17), steps=6, dtype="f8"):
    """The channel after some steps, the misfit, and its gradient, (3, H, W) whole."""

    def program(comm):
        channel = water.Channel(water.grid_of(comm), cells, local, np.dtype(dtype))
        noise = 0.1 * np.random.default_rng(0).standard_normal((3, *cells))
        start = mnpar.Variable((channel.start + noise[channel.own]).astype(dtype))
        fields, _ = channel.run(start, steps)
        loss = channel.misfit(start, channel.start[0], steps)
        loss.backward()
        blocks = channel.grid.blocks(cells)
        whole = [mnpar.plans.Box.whole(cells)] * comm.size
        fields, gradient = (
            F.repartition(comm, x, blocks, whole).array for x in (fields.array, start.grad)
        )
        return fields, comm.allreduce(loss.array), gradient

    return mnpar.run(program, ranks=ranks)[0]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_on_any_grid_the_channel_and_its_gradient_are_those_of_one_process(ranks):
    one = after_steps("numpy", 1)
    assert abs(one[0][2]).max() > 1e-3  # water flows north
    assert abs(one[2]).min(axis=0).max() > 0
    for there, here in zip(after_steps("numpy", ranks), one, strict=True):
        np.testing.assert_allclose(there, here, rtol=1e-11, atol=1e-11 * abs(here).max())


@pytest.mark.parametrize("local", ["jax", "numba"])
def test_a_compiled_time_step_of_shallow_water_is_numpys(local, request):
    library = pytest.importorskip(local)
    if local == "jax":
        before = library.config.jax_enable_x64
        request.addfinalizer(lambda: library.config.update("jax_enable_x64", before))
    one = after_steps("numpy", 1)
    for ranks in (1, 2):
        for there, here in zip(after_steps(local, ranks), one, strict=True):
            np.testing.assert_allclose(there, here, rtol=1e-10, atol=1e-10 * abs(here).max())


def test_the_channel_keeps_its_water_and_its_walls():
    fields, _, _ = after_steps("numpy", 2, steps=20)
    start, _ = water.jet((0, 11), (11, 17), "f8")
    noise = 0.1 * np.random.default_rng(0).standard_normal((3, 11, 17))
    assert fields[0].sum() == pytest.approx((start + noise)[0].sum(), rel=1e-12)
    assert (fields[2, -1] == 0).all()


def test_the_shallow_water_is_run_differentiated_and_drawn(tmp_path):
    flags = ["--cells", "20x12", "--steps", "18", "--out", str(tmp_path)]
    text = output(2, "applications/shallow_water", flags)
    found = re.search(r"differs by (\S+) from numpy's in float64, and that one by (\S+) from", text)
    assert float(found[1]) < 1e-3
    assert float(found[2]) < 1e-7
    assert (tmp_path / "shallow_water.png").read_bytes().startswith(PNG)


def test_shallow_water_without_its_library_names_a_command_that_runs(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["water.py", "--local", "numba"])
    monkeypatch.setattr(water.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        water.flags().read()
    said = capsys.readouterr().err
    assert "pip install 'mnpar[fast]'; without it: python water.py --local numpy" in said


def test_without_matplotlib_the_pipelined_u_net_is_trained_all_the_same(tmp_path, monkeypatch):
    pipelined = load("applications/pipeline_unet")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    missing = "no picture: matplotlib is missing (pip install 'mnpar[examples]')"
    assert pipelined.draw(tmp_path / "a.png", {}) == missing
    assert not list(tmp_path.iterdir())
