"""The U-Nets and the field on grids: the same costs and pictures on every grid as on one
process.
"""

import re
import sys

import numpy as np
import pytest
import threadpoolctl

import mnpar
from tests.examples.running import PNG, load, output

unet, diffusion = load("applications/unet"), load("applications/halo_diffusion")


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
    """What rank 0 prints, without the first line, which says how many ranks there are."""
    monkeypatch.setattr(
        sys, "argv", ["example", *flags, *(["--threads", str(ranks)] if ranks > 1 else [])]
    )
    args = module.flags().read()
    mnpar.run(main, ranks=ranks, args=(args,))
    return capsys.readouterr().out.split("\n")[1:]


# ---- U-Net ----


def test_a_u_net_prints_the_same_costs_on_every_grid(tmp_path, capsys, monkeypatch):
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
    monkeypatch.setattr(unet, "draw", lambda *args: print(f"plot: {tmp_path / 'unet.png'}"))
    for dims, ranks in (("2x2", 4), ("3x1", 3)):
        assert (
            printed(unet, unet.main, [*flags, "--halopar", dims], ranks, capsys, monkeypatch) == one
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


def test_without_matplotlib_the_pipelined_u_net_is_trained_all_the_same(tmp_path, monkeypatch):
    pipelined = load("applications/pipeline_unet")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    missing = "no picture: matplotlib is missing (pip install 'mnpar[examples]')"
    assert pipelined.draw(tmp_path / "a.png", {}) == missing
    assert not list(tmp_path.iterdir())
