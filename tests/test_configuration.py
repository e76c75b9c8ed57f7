"""The settings of a rank: read and written like attributes, different in every context."""

import contextvars
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import mnpar

DEFAULTS = {
    "train": True,
    "enable_backprop": True,
    "dtype": np.dtype(np.float32),
    "debug": os.environ.get("MNPAR_DEBUG") == "1",
    "keep_graph_on_report": False,
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_the_defaults_are_chainers(name):
    assert contextvars.Context().run(lambda: getattr(mnpar.config, name)) == DEFAULTS[name]


@pytest.mark.parametrize("name", ["train", "enable_backprop", "debug"])
def test_using_config_changes_inside_and_restores_after(name):
    before = getattr(mnpar.config, name)
    with mnpar.using_config(name, not before):
        assert getattr(mnpar.config, name) is not before
        with mnpar.using_config(name, before):
            assert getattr(mnpar.config, name) is before
        assert getattr(mnpar.config, name) is not before
    assert getattr(mnpar.config, name) is before


def test_using_config_restores_after_an_error():
    with pytest.raises(KeyError), mnpar.using_config("train", False):
        raise KeyError
    assert mnpar.config.train


def _set_in_block(name):
    with mnpar.using_config(name, 1):
        pass


@pytest.mark.parametrize(
    "how",
    [
        _set_in_block,
        lambda name: setattr(mnpar.config, name, 1),
        lambda name: setattr(mnpar.global_config, name, 1),
        lambda name: getattr(mnpar.config, name),
    ],
    ids=["using_config", "assignment", "global_config", "reading"],
)
def test_an_unknown_setting_is_told_with_the_one_that_is_meant(how):
    with pytest.raises(
        AttributeError,
        match=r"no setting 'trian': did you mean 'train'\? There are train, enable_backprop, .* … "
        r"and \d+ more$",
    ):
        how("trian")
    with pytest.raises(AttributeError, match="no setting 'qq'; there are train, enable_backprop"):
        how("qq")


def test_an_assignment_lasts_in_its_context_only():
    def assign():
        mnpar.config.train = False
        return mnpar.config.train

    assert contextvars.Context().run(assign) is False
    assert mnpar.config.train is True


def test_a_setting_that_is_deleted_has_its_default_again():
    def program():
        mnpar.config.train = False
        del mnpar.config.train
        return mnpar.config.train

    assert contextvars.Context().run(program) is True


def test_a_new_thread_starts_from_the_defaults():
    seen = []
    with mnpar.using_config("train", False):
        thread = threading.Thread(target=lambda: seen.append(mnpar.config.train))
        thread.start()
        thread.join()
    assert seen == [True]


def test_global_config_is_config():
    assert mnpar.global_config is mnpar.config


@pytest.mark.parametrize(
    ("modes", "recorded"),
    [
        ((), True),
        ((mnpar.no_backprop_mode,), False),
        ((mnpar.no_backprop_mode, mnpar.force_backprop_mode), True),
        ((mnpar.force_backprop_mode, mnpar.no_backprop_mode), False),
    ],
    ids=["none", "no", "no force", "force no"],
)
def test_the_innermost_mode_decides_whether_functions_are_recorded(modes, recorded):
    x = mnpar.Variable(np.ones(2))

    def run(rest):
        if rest:
            with rest[0]():
                return run(rest[1:])
        return x * x

    y = run(modes)
    assert (y.creator is not None) is recorded
    assert y.requires_grad is recorded


@pytest.mark.parametrize(
    ("value", "expected"), [("1", "True"), ("0", "False"), ("", "False")], ids=repr
)
def test_the_environment_switches_debug_on(value, expected):
    environment = {**os.environ, "MNPAR_DEBUG": value}
    command = [sys.executable, "-c", "import mnpar; print(mnpar.config.debug)"]
    assert (
        subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        ).stdout.strip()
        == expected
    )


def test_another_value_of_that_switch_is_an_error():
    command = [sys.executable, "-c", "import mnpar"]
    done = subprocess.run(
        command,
        env={**os.environ, "MNPAR_DEBUG": "off"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.endswith("ValueError: MNPAR_DEBUG is 0 or 1, not 'off'\n")


def test_chainers_settings_without_a_meaning_here_are_accepted():
    with mnpar.using_config("cudnn_deterministic", True), mnpar.using_config("use_ideep", "auto"):
        assert mnpar.config.use_ideep == "auto"


def test_a_function_can_be_put_under_a_mode_also_on_ranks_that_take_turns_in_it():
    @mnpar.no_backprop_mode()
    def quiet(comm, depth=2):
        assert not mnpar.config.enable_backprop
        comm.barrier()
        return quiet(comm, depth - 1) if depth else comm.rank

    assert mnpar.run(lambda comm: (quiet(comm), mnpar.config.enable_backprop), ranks=3) == [
        (r, True) for r in range(3)
    ]


@pytest.mark.parametrize("dtype", ["f3", None, "i4", object, "hello"])
def test_a_dtype_that_is_none_is_told_before_it_is_used(dtype):
    with pytest.raises(TypeError, match="is no dtype"), mnpar.using_config("dtype", dtype):
        pass
    with pytest.raises(TypeError, match="is no dtype"):
        mnpar.config.dtype = dtype
    assert mnpar.config.dtype == np.float32
