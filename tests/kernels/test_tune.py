"""Constants that are chosen for a machine: by measurement, kept, found again, and left alone if the
file is not what was written.
"""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from mnpar import doctor
from mnpar.kernels import compiler, tune, tuning

needs_numba = pytest.mark.skipif(
    not compiler.is_installed(), reason="numba is not installed: a second run in .ci/run has it"
)


@pytest.fixture
def works(monkeypatch, tmp_path):
    """Replaces the work by one that takes as long as the constants say, and the clock by one that
    knows nothing else.
    """
    now = [0.0]
    monkeypatch.setattr(tune, "time", SimpleNamespace(process_time=lambda: now[0]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiler, "mode", lambda: "")
    for name in tuning.CHOSEN_HERE:
        monkeypatch.setattr(tuning, name, getattr(tuning, name))

    def set_works(**values):
        def make(name):
            def work():
                now[0] += 1e-6 * getattr(tuning, name)

            return lambda: work

        rows = [(name, tried, make(name)) for name, tried in values.items()]
        monkeypatch.setattr(tune, "_WORKS", rows)

    yield set_works
    compiler.least.cache_clear()


@needs_numba
def test_the_fastest_value_is_chosen_and_the_gain_told(works, monkeypatch):
    monkeypatch.setattr(tuning, "COMPILED_LEAST", 2**13)
    works(COMPILED_LEAST=[2000, 4000, 2**15], DIRECT_PIXELS=[5120, 51200])
    least, pixels = tune.tune()
    assert least[:3] == ("COMPILED_LEAST", 2**13, 2000)
    assert least.gain == pytest.approx(1 - 2000 / 2**13)
    assert pixels == ("DIRECT_PIXELS", 512, 512, 0.0)
    assert (tuning.COMPILED_LEAST, tuning.DIRECT_PIXELS) == (2000, 512)
    assert compiler.least() == 2000


@needs_numba
def test_work_that_fails_leaves_its_constant_as_it_was(works, monkeypatch):
    def fail():
        if tuning.DIRECT_PIXELS != 512:
            raise MemoryError

    monkeypatch.setattr(tune, "_WORKS", [("DIRECT_PIXELS", [256], lambda: fail)])
    with pytest.raises(MemoryError):
        list(tune.tune())
    assert tuning.DIRECT_PIXELS == 512


def test_all_work_is_for_constants_that_are_kept():
    assert tuple(name for name, _, _ in tune._WORKS) == tuning.CHOSEN_HERE


def constant(name, tmp_path):
    code = f"from mnpar.kernels import tuning; print(tuning.{name})"
    return subprocess.run(
        [sys.executable, "-c", code],
        env={"XDG_CACHE_HOME": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )


@needs_numba
def test_later_starts_have_what_the_doctor_has_chosen(works, tmp_path, capsys):
    tuning.keep({"COLUMN_LOOP_BYTES": 2**17})
    works(DIRECT_PIXELS=[51])
    assert doctor.tune_kernels() == 0
    told = capsys.readouterr().out
    assert "DIRECT_PIXELS 512 -> 51: " in told
    assert f"kept in {tmp_path}" in told
    assert json.loads(tuning.kept_file().read_text()) == {
        "COLUMN_LOOP_BYTES": 2**17,
        "DIRECT_PIXELS": 51,
    }
    assert constant("DIRECT_PIXELS", tmp_path).stdout == "51\n"
    assert constant("WINOGRAD_LOOP_BYTES", tmp_path).stdout == f"{2**20}\n"


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"DIRECT_PIXELS": "51"}', '{"DIRECT_PIXELS": 0}', '{"SYMBOL": 1}', "\0\xff"],
)
def test_a_damaged_file_costs_one_warning(text, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = tuning.keep({})
    file.write_bytes(text.encode("latin-1"))
    with pytest.warns(UserWarning, match="are left alone") as told:
        assert tuning.read(file) == {}
    assert len(told) == 1
    assert str(file) in str(told[0].message)


@needs_numba
def test_a_folder_that_cannot_be_written_is_told(works, tmp_path, capsys):
    (tmp_path / "mnpar").write_text("a file")
    works()
    assert doctor.tune_kernels() == 1
    assert "FAIL  tuning         nothing is kept: " in capsys.readouterr().out
    assert constant("DIRECT_PIXELS", tmp_path).stdout == "512\n"
