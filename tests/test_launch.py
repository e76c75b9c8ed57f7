"""Starting ranks: a script that runs alone starts itself again, once, and says so where it
cannot.
"""

import argparse
import errno
import functools
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import mnpar
from mnpar.errors import LauncherError
from mnpar.launch import folder, parse_args, reading, tempfile
from mnpar.runtime import launcher, supervisor
from mnpar.runtime.mpiexec import (
    _AGAIN,
    _LAUNCHERS_MARKS,
    _SCHEDULERS,
    clean_environment,
    find_mpiexec,
    mpiexec_command,
)

MARKS = (
    "PMI_RANK",
    "PMI_SIZE",
    "PMIX_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "HYDI_CONTROL_FD",
    "MPI_LOCALNRANKS",
    "PRTE_X",
    "MPIEXEC_T",
)


@pytest.fixture(autouse=True)
def unmarked(monkeypatch):
    """No launcher, no scheduler, not started again."""
    for name in list(os.environ):
        if name.startswith(_LAUNCHERS_MARKS) or name in (
            *_SCHEDULERS,
            *launcher._WORLD_RANKS,
            *launcher._WORLD_SIZES,
            *launcher._LOCAL_SIZES,
            _AGAIN,
        ):
            monkeypatch.delenv(name)


@pytest.fixture
def started(monkeypatch):
    """What would replace this process."""
    calls = []
    monkeypatch.setattr(os, "execve", lambda *call: calls.append(call))
    monkeypatch.setattr(sys, "argv", ["train.py", "--epochs", "3"])
    return calls


def executable(path, text="exit 0"):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


# ---- files ----


@pytest.mark.ranks(1, 2, 3, on="threads")
@pytest.mark.parametrize(
    ("read", "told"),
    [
        (lambda: os.stat("/dev/null/nothing"), "[Errno 20] Not a directory: '/dev/null/nothing'"),
        (lambda: importlib.import_module("no_such_images"), "No module named 'no_such_images'"),
    ],
    ids=["file", "package"],
)
def test_what_one_rank_cannot_read_ends_all_of_them_in_one_line(comm, capfd, read, told):
    with pytest.raises(SystemExit) as error, reading(comm):
        read() if comm.rank == comm.size - 1 else None
    assert error.value.code == 1
    comm.barrier()
    if comm.rank == 0:
        assert capfd.readouterr().err.endswith(f": error: {told}\n")


# ---- relaunch ----


def test_a_script_alone_becomes_an_mpiexec_job_of_itself(started):
    mnpar.relaunch(4)
    ((program, arguments, environment),) = started
    mpiexec = [find_mpiexec(), "-n", "4", sys.executable, "train.py", "--epochs", "3"]
    assert program == arguments[0]
    assert arguments in (mpiexec, [sys.executable, "-I", "-S", supervisor.__file__, "4", *mpiexec])
    assert environment["MNPAR_RELAUNCHED"] == "1"
    assert environment["PATH"] == os.environ["PATH"]


STARTED = {
    "a script": (["-W", "error", "train.py", "--epochs", "3"], ["train.py", "--epochs", "3"]),
    "a command": (["-Ic", "-c", "import mnpar", "3"], ["-c", "3"]),
    "arguments that were changed since": (["-m", "pytest", "-q"], ["train.py", "3"]),
    "fewer words than arguments": ([], ["train.py", "3"]),
}


@pytest.mark.parametrize(("words", "argv"), STARTED.values(), ids=STARTED)
def test_ranks_start_as_the_program_was_started(started, monkeypatch, words, argv):
    monkeypatch.setattr(sys, "orig_argv", ["python", *words])
    monkeypatch.setattr(sys, "argv", argv)
    mnpar.relaunch(4)
    ((_, arguments, _),) = started
    as_started = words[-len(argv) :] == argv or argv[0] == "-c"
    assert arguments[arguments.index("-n") + 1 :] == [
        "4",
        sys.executable,
        *(words if as_started else argv),
    ]


def test_a_program_from_standard_input_stays_alone_and_is_told(started, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["-"])
    assert mnpar.relaunch(4) is False
    assert not started
    assert (
        capsys.readouterr().out
        == "mnpar: running alone, because this program is not in a file: save it, and start that\n"
    )


def test_a_module_in_a_package_stays_one_on_the_ranks_and_nobody_needs_a_terminal(tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("word = 'inside'")
    (tmp_path / "pkg" / "train.py").write_text(
        "import os, sys, warnings, mnpar\nfrom . import word\nmnpar.relaunch(2)\ncomm = "
        "mnpar.create_communicator()\n"
        "words = comm.allgather_obj((word, sys.warnoptions, sys.argv[1:]))\n"
        "if comm.is_root:\n    open('said', 'w').write(repr(words))\n"
    )
    command = f"{sys.executable} -W ignore::FutureWarning -m pkg.train a 'b c' >&-"
    done = subprocess.run(
        command,
        shell=True,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "said").read_text() == repr(
        [("inside", ["ignore::FutureWarning"], ["a", "b c"])] * 2
    )


def test_what_a_launcher_of_one_rank_left_is_hidden_from_the_next(started, monkeypatch):
    """``mpiexec python script.py`` with MPICH starts one rank."""
    for name in MARKS:
        monkeypatch.setenv(name, "1")
    mnpar.relaunch(4)
    assert not set(MARKS) & set(started[0][2])


@pytest.mark.parametrize("ranks", [1, 0], ids=str)
def test_one_rank_needs_no_launcher(started, ranks):
    assert mnpar.relaunch(ranks) is True
    assert not started


@pytest.mark.parametrize(
    "name",
    ["PMI_SIZE", "PMIX_SIZE", "OMPI_COMM_WORLD_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_NUM_TASKS"],
)
def test_under_a_launcher_with_several_ranks_nothing_is_started(started, monkeypatch, name):
    monkeypatch.setenv(name, "3")
    assert mnpar.relaunch(4) is True
    assert not started


def test_a_script_that_was_started_again_does_not_start_itself_a_third_time(started, monkeypatch):
    monkeypatch.setenv("MNPAR_RELAUNCHED", "1")
    assert mnpar.relaunch(4) is True
    assert not started


@pytest.mark.parametrize(
    "name", ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "COBALT_JOBID", "FLUX_JOB_ID"]
)
def test_in_a_batch_job_it_prints_what_to_type_and_stays_alone(started, monkeypatch, capsys, name):
    monkeypatch.setenv(name, "12345")
    assert mnpar.relaunch(4) is False
    assert not started
    assert "srun -n 4 python train.py --epochs 3" in capsys.readouterr().out


def test_without_mpiexec_it_says_so_and_stays_alone(started, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert mnpar.relaunch(4) is False
    assert not started
    out = capsys.readouterr().out
    assert out.startswith("mnpar: running alone, because no mpiexec beside this Python or on PATH")
    assert "pip install 'mnpar[mpi]'" in out


def test_without_mpi4py_it_says_so_and_stays_alone(started, monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "mpi4py" else find(name)
    )
    assert mnpar.relaunch(4) is False
    assert not started
    assert (
        capsys.readouterr().out
        == "mnpar: running alone, because mpi4py is missing: pip install 'mnpar[mpi]'\n"
    )


SCRIPT = """
import sys, mnpar
alone = mnpar.relaunch(2)
comm = mnpar.create_communicator()
total = comm.allreduce_obj(comm.rank + 1)
sys.stdout.write(f"[{alone} {comm.rank} {comm.size} {total} {sys.argv[1:]}]\\n")
sys.exit(7)
"""


@pytest.mark.parametrize("how", ["python", "mpiexec of one rank"])
def test_a_real_script_runs_on_the_ranks_it_asked_for_and_gives_their_exit_code(tmp_path, how):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command, environment = mpiexec_command(1)
    command = command if how != "python" else []
    done = subprocess.run(
        [*command, sys.executable, str(script), "a b"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 7, done.stderr
    assert sorted(done.stdout.replace("][", "]\n[").split("\n")) == [
        "",
        "[True 0 2 3 ['a b']]",
        "[True 1 2 3 ['a b']]",
    ]


# ---- mpiexec ----


def test_the_mpiexec_beside_python_is_preferred_to_the_path(monkeypatch, tmp_path):
    (tmp_path / "beside").mkdir()
    (tmp_path / "path").mkdir()
    on_path = executable(tmp_path / "path" / "mpiexec")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "beside" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert find_mpiexec() == on_path
    beside = executable(tmp_path / "beside" / "mpiexec")
    assert find_mpiexec() == beside
    Path(beside).chmod(0o644)  # not executable
    assert find_mpiexec() == on_path


def test_no_mpiexec_is_an_error_with_the_remedy(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LauncherError, match=r"pip install 'mnpar\[mpi\]'"):
        find_mpiexec()


@pytest.mark.parametrize(
    ("version", "root", "names"),
    [
        ("HYDRA build details:", True, set()),
        ("mpiexec (Open MPI) 5.0.8", False, {"PRTE_MCA_rmaps_default_mapping_policy"}),
        (
            "mpiexec (OpenRTE) 4.1.6",
            True,
            {
                "PRTE_MCA_rmaps_default_mapping_policy",
                "OMPI_ALLOW_RUN_AS_ROOT",
                "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
                "PRTE_ALLOW_RUN_AS_ROOT",
                "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM",
            },
        ),
    ],
    ids=["MPICH", "Open MPI", "Open MPI as root"],
)
def test_open_mpi_alone_is_told_to_allow_more_ranks_than_cores_and_root(
    monkeypatch, tmp_path, version, root, names
):
    mpiexec = executable(tmp_path / "mpiexec", f"echo '{version}'")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(os, "getuid", lambda: 0 if root else 1000)
    for name in ("PRTE_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT"):
        monkeypatch.delenv(name, raising=False)
    command, environment = mpiexec_command(3)
    assert command == [mpiexec, "-n", "3"]
    assert set(environment) - set(os.environ) == names


def test_only_a_launchers_marks_are_cleaned_away():
    environment = dict.fromkeys(MARKS, "1") | {
        "PATH": "/bin",
        "OMP_NUM_THREADS": "2",
        "MPI4PY_LIBMPI": "/lib",
        "MNPAR_STALL": "3",
    }
    assert clean_environment(environment) == {
        name: environment[name] for name in list(environment)[len(MARKS) :]
    }


def test_an_environment_may_change_while_it_is_read():
    class Changing(dict):
        def __getitem__(self, name):
            raise KeyError(name)  # as os.environ, when another thread has just taken a name away

        def get(self, name, default=None):
            return default if name == "GONE" else super().get(name, default)

        def items(self):
            return [(name, self[name]) for name in self]

    assert clean_environment(Changing(GONE="1", HOME="/home")) == {"HOME": "/home"}


# ---- the command line ----


@pytest.fixture
def parser():
    parser = argparse.ArgumentParser(prog="train.py")
    parser.add_argument("--epochs", type=int, default=1)
    return parser


def test_the_command_line_is_parsed_as_ever(parser, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "--epochs", "3"])
    for rank in ("0", "1"):
        monkeypatch.setenv("PMI_RANK", rank)
        assert parse_args(parser).epochs == 3


@pytest.mark.parametrize(
    "arguments", [["--epochs", "three"], ["--nonsense"], ["--help"]], ids=" ".join
)
@pytest.mark.parametrize("name", ["PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"])
def test_one_rank_speaks_of_a_bad_command_line_and_all_end_alike(
    parser, monkeypatch, capsys, arguments, name
):
    monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
    for rank, speaks in (("0", True), ("1", False)):
        monkeypatch.setenv(name, rank)
        with pytest.raises(SystemExit) as caught:
            parse_args(parser)
        assert caught.value.code == (0 if arguments == ["--help"] else 2)
        said = capsys.readouterr()
        assert bool(said.out or said.err) is speaks


def test_a_later_error_is_spoken_of_once_too(parser, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train.py"])
    for rank, speaks in (("0", True), ("1", False)):
        monkeypatch.setenv("PMI_RANK", rank)
        with pytest.raises(SystemExit):
            parse_args(parser) and parser.error("no such file")
        assert ("no such file" in capsys.readouterr().err) is speaks


def test_a_folder_is_looked_at_and_not_made(tmp_path):
    new = tmp_path / "new" / "result"
    assert folder(str(new)) == str(new)
    assert folder("") == ""
    assert list(tmp_path.iterdir()) == []


def file_in(dir, closed):
    """A temporary file, where nobody is root, who may write everywhere."""
    if Path(dir) == closed:
        raise PermissionError(errno.EACCES, "shut")
    return open(os.devnull)


@pytest.mark.parametrize("below", ["", "/new"], ids=["it", "one below it"])
@pytest.mark.parametrize(
    ("name", "why"),
    [("file", "Not a directory"), ("shut", "Permission denied")],
    ids=["file", "shut"],
)
def test_a_folder_that_cannot_be_written_to_is_told_before_the_work(
    tmp_path, monkeypatch, name, why, below
):
    (tmp_path / "file").write_text("")
    (tmp_path / "shut").mkdir()
    monkeypatch.setattr(
        tempfile, "TemporaryFile", functools.partial(file_in, closed=tmp_path / "shut")
    )
    with pytest.raises(
        argparse.ArgumentTypeError,
        match=f"nothing can be written to {tmp_path / name}{below}: {why}",
    ):
        folder(f"{tmp_path / name}{below}")


def test_letters_that_the_output_has_not_end_no_program(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        '"""κ, at 8 × 8 places."""\nimport argparse\nfrom mnpar import launch\n'
        'launch.parse_args(argparse.ArgumentParser(description=__doc__))\nprint("8 × 8 → κ")\n'
    )
    ascii = {
        "PYTHONIOENCODING": "ascii",
        "LC_ALL": "C",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONUTF8": "0",
    }
    for flags, rank, line in (
        ((), "0", "8 ? 8 ? ?\n"),
        (["--help"], "0", "?, at 8 ? 8 places.\n"),
        (["--help"], "1", ""),
    ):
        environment = {**os.environ, **ascii, "PMI_RANK": rank}
        done = subprocess.run(
            [sys.executable, program, *flags],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert line in done.stdout


# ---- script ----


def script_parser(**more):
    parser = mnpar.launch.Parser("Train.", **more)
    parser.flag("--epoch -e", 3, "epochs")
    parser.flag("--lr", 0.1, "learning rate")
    parser.flag("--size", mnpar.launch.dims, "of the grid", default=(1, 1))
    parser.flag("--joint", False, "together")
    parser.flag("--offset", 0, "may be anything", least=None)
    parser.flag("--how", "pairs", "who", choices=["pairs", "lots"])
    return parser


def read(flags, monkeypatch, **more):
    monkeypatch.setattr(sys, "argv", ["train.py", *flags])
    return script_parser(**more).read()


def test_flags_have_the_type_of_their_default(monkeypatch):
    args = read([], monkeypatch)
    assert vars(args) == {
        "ranks": 2,
        "threads": None,
        "epoch": 3,
        "lr": 0.1,
        "size": (1, 1),
        "joint": False,
        "offset": 0,
        "how": "pairs",
    }
    flags = ["-e", "5", "--lr", "1", "--size", "2x3", "--joint", "--offset", "-2", "--how", "lots"]
    args = read([*flags, "--ranks", "6"], monkeypatch)
    assert (args.epoch, args.lr, args.size, args.joint) == (5, 1.0, (2, 3), True)
    assert (args.offset, args.how, args.ranks) == (-2, "lots", 6)


def test_help_tells_defaults_and_where_ranks_come_from():
    text = " ".join(script_parser(ranks=4).format_help().split())
    for words in (
        "epochs (3)",
        "learning rate (0.1)",
        "--size RxC",
        "--joint together",
        "started several (4)",
        "[--ranks N | --threads [N]]",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--epoch", "0"], "--epoch is at least 1, not 0"),
        (["--threads", "0"], "--threads is at least 1, not 0"),
        (["--ranks", "0"], "--ranks is at least 1, not 0"),
        (["--ranks", "4", "--threads", "3"], "not allowed with argument --ranks"),
        (["--size", "2x"], "a grid is numbers from 1 on"),
    ],
)
def test_wrong_flags_of_a_script_are_usage_errors(flags, message, monkeypatch, capsys):
    with pytest.raises(SystemExit) as end:
        read(flags, monkeypatch)
    assert end.value.code == 2
    assert message in capsys.readouterr().err


def test_threads_without_a_number_are_as_many_as_would_be_started(monkeypatch):
    assert read(["--threads"], monkeypatch, ranks=4).threads == 4
    args = read(["--workers", "3"], monkeypatch, ranks=4, flag="--workers")
    assert (args.workers, args.ranks) == (3, 3)


SWITCHES = {"--blocks RxC": "space={}", "--both RxC": "data=-1,space={}", "--batches": "data=-1"}


def divided(flags, monkeypatch, default="", **more):
    """What a script with --divide reads: the axes, and the ranks."""
    monkeypatch.setattr(sys, "argv", ["train.py", *flags.split()])
    parser = mnpar.launch.Parser("Train.", **more)
    parser.divide("--divide --mesh -m", default, switches=SWITCHES, data=1, model=1, space=2)
    args = parser.read()
    assert args.threads in (None, args.ranks)
    return args.divide, args.ranks


DIVISIONS = {
    "nothing": ("", {}, 1),
    "sizes": ("--divide data=2,space=2x3", {"data": 2, "space": (2, 3)}, 12),
    "a short name": ("-m model=3 --threads", {"model": 3}, 3),
    "as many as are asked for": ("--mesh data=-1,model=2 --ranks 6", {"data": 3, "model": 2}, 6),
    "as many as there are": ("--mesh data=-1 --threads 5", {"data": 5}, 5),
    "as many as are started": ("--mesh data=-1,model=3", {"data": 1, "model": 3}, 3),
    "more than are started": ("--mesh data=-1,model=9", {"data": 1, "model": 9}, 9),
    "ranks, and no flag": ("--threads 3", {"data": 3}, 3),
    "a switch": ("--batches", {"data": 4}, 4),
    "a switch with a value": ("--blocks 2x1", {"space": (2, 1)}, 2),
    "a switch that leaves ranks": ("--both 2x1", {"data": 2, "space": (2, 1)}, 4),
}


@pytest.mark.parametrize(("flags", "axes", "ranks"), DIVISIONS.values(), ids=DIVISIONS)
def test_a_flag_says_how_ranks_divide_the_work(flags, axes, ranks, monkeypatch):
    assert divided(flags, monkeypatch, ranks=4) == (axes, ranks)


def test_a_division_holds_where_the_ranks_suit_it(monkeypatch):
    both = {"data": 2, "model": 2}
    for flags, axes, ranks in (("", both, 4), ("--threads 4", both, 4), ("-m model=2", None, 2)):
        found = divided(flags, monkeypatch, "data=2,model=2", ranks=4)
        assert found == (axes or {"model": 2}, ranks)
    assert divided("--threads 3", monkeypatch, "data=2,model=2", ranks=4) == ({"data": 3}, 3)


@pytest.mark.parametrize(
    ("ranks", "grid"), {1: (1, 1), 2: (1, 2), 6: (2, 3), 7: (1, 7), 12: (3, 4)}.items()
)
def test_without_a_flag_all_ranks_make_a_grid_as_square_as_can_be(ranks, grid, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "--threads", str(ranks)])
    parser = mnpar.launch.Parser("Train.", ranks=4)
    parser.divide(default="space=2x2", space=2)
    args = parser.read()
    assert (args.divide, args.ranks) == ({"space": grid}, ranks)


MISFITS = {
    "--divide dtaa=2": "--divide: no axis 'dtaa': did you mean 'data'? There are data, model",
    "--divide space=2": "--divide space=2: the axis space is given as space=2x2",
    "-m data=2x2": "--divide data=2x2: the axis data is given as data=2",
    "--divide data": "a mesh is names and sizes",
    "--blocks 2y2": "argument --blocks: a mesh is names and sizes",
    "--divide data=2 --batches": "not allowed with argument",
    "--divide data=2 --threads 3": "data=2 is for 2 ranks, not 3: python train.py --divide data=2 "
    "--threads 2",
    "--divide model=1 --ranks 3": "--divide model=1 is for 1 rank, not 3: mpiexec -n 1 python",
    "--both 2x2 --threads 7": "data=-1,space=2x2 is for a multiple of 4 ranks, not 7: python "
    "train.py --both 2x2 --threads 4",
}


@pytest.mark.parametrize(("flags", "message"), MISFITS.items(), ids=MISFITS)
def test_a_division_that_does_not_fit_is_a_usage_error(flags, message, monkeypatch, capsys):
    with pytest.raises(SystemExit) as end:
        divided(flags, monkeypatch, ranks=4)
    assert end.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_variable_has_the_value_of_a_flag_that_is_not_given(monkeypatch):
    def data(*flags):
        monkeypatch.setattr(sys, "argv", ["train.py", *flags])
        parser = mnpar.launch.Parser("Train.")
        parser.flag("--data", mnpar.launch.existing_folder, "files", variable="MNPAR_TEST_FOLDER")
        return parser.read().data

    assert data() is None
    monkeypatch.setenv("MNPAR_TEST_FOLDER", "/")
    assert data() == "/"
    assert data("--data", "/dev") == "/dev"
    monkeypatch.setenv("MNPAR_TEST_FOLDER", "/dev/null")
    with pytest.raises(SystemExit):
        data()


def test_a_script_runs_its_program_on_thread_ranks(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "--threads", "3", "--epoch", "7"])
    seen = []
    mnpar.launch.script(
        lambda comm, args: seen.append((comm.rank, comm.size, args.epoch)), script_parser()
    )
    assert seen == [(0, 3, 7), (1, 3, 7), (2, 3, 7)]


def test_a_script_starts_ranks_as_many_as_its_check_wants(started, monkeypatch):
    def check(parser, args):
        args.ranks = 2 * args.epoch

    monkeypatch.setattr(sys, "argv", ["train.py"])
    monkeypatch.setattr(mnpar.launch, "create_communicator", lambda: "world")
    seen = []
    mnpar.launch.script(lambda comm, args: seen.append(comm), script_parser(check=check))
    ((_, arguments, _),) = started
    assert arguments[arguments.index("-n") + 1] == "6"
    assert seen == ["world"]  # the fixture's exec returns


def test_a_script_for_exactly_so_many_ranks_says_so(started, monkeypatch, capsys):
    monkeypatch.setenv("SLURM_JOB_ID", "1")  # here nobody starts ranks
    monkeypatch.setattr(sys, "argv", ["train.py"])
    with pytest.raises(SystemExit):
        mnpar.launch.script(print, script_parser(exactly=True))
    message = "not 1; as threads of one process: python train.py --threads 2\n"
    assert capsys.readouterr().err.endswith(message)
    with pytest.raises(SystemExit):
        read(["--threads", "3"], monkeypatch, exactly=True)
    assert capsys.readouterr().err.endswith("not 3: python train.py --threads 2\n")
    assert read(["--threads"], monkeypatch, exactly=True).threads == 2
    with pytest.raises(SystemExit):
        read(["--ranks", "3"], monkeypatch, exactly=True)
    message = "unrecognized arguments: --ranks 3; this program has 2 ranks, always\n"
    assert capsys.readouterr().err.endswith(message)


def test_a_script_that_thread_ranks_run_has_so_many_ranks():
    args = argparse.Namespace(threads=None)
    assert mnpar.run(lambda comm: mnpar.launch.started_ranks(args, 4), ranks=3) == [3, 3, 3]
    assert mnpar.launch.started_ranks(args, 4) == 4


# The variables of rank 5 of 8 ranks, 4 on each of two machines, as each launcher documents them.
LAUNCHERS = {
    "MPICH": {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALNRANKS": "4", "MPI_LOCALRANKID": "1"},
    "Intel MPI": {
        "PMI_RANK": "5",
        "PMI_SIZE": "8",
        "MPI_LOCALNRANKS": "4",
        "I_MPI_HYDRA_TOPOLIB": "hwloc",
    },
    "Open MPI": {
        "OMPI_COMM_WORLD_RANK": "5",
        "OMPI_COMM_WORLD_SIZE": "8",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
        "PMIX_RANK": "5",
    },
    "PALS": {
        "PALS_RANKID": "5",
        "PALS_LOCAL_RANKID": "1",
        "PALS_LOCAL_SIZE": "4",
        "PMI_RANK": "5",
        "PMI_SIZE": "8",
        "PMI_LOCAL_SIZE": "4",
        "PBS_JOBID": "7.server",
    },
    "jsrun": {
        "JSM_NAMESPACE_RANK": "5",
        "JSM_NAMESPACE_SIZE": "8",
        "JSM_NAMESPACE_LOCAL_SIZE": "4",
        "LSB_JOBID": "7",
    },
    "Flux": {"FLUX_TASK_RANK": "5", "FLUX_JOB_SIZE": "8", "FLUX_JOB_ID": "f7"},
    "Slurm": {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_JOB_ID": "7"},
}


@pytest.mark.parametrize("name", LAUNCHERS)
def test_the_variables_of_a_launcher_tell_rank_and_size(started, monkeypatch, name):
    for variable, value in LAUNCHERS[name].items():
        monkeypatch.setenv(variable, value)
    assert launcher.launched_ranks() == 8
    assert launcher.launched_rank() == 5
    assert launcher.launched_after_first()
    # Flux and Slurm do not say it in a number
    assert launcher.launched_ranks_here() == (0 if name in ("Flux", "Slurm") else 4)
    assert mnpar.relaunch(3) is True
    assert not started


@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_launcher_inside_sees_nothing_of_the_one_around_it(name):
    kept = clean_environment(LAUNCHERS[name])
    # a scheduler's own: Hydra and PRRTE read the machines from them
    assert all(variable.startswith(("SLURM_", "PBS_", "LSB_", "FLUX_JOB_ID")) for variable in kept)


@pytest.mark.parametrize(("name", "whose"), [("Flux", "Flux"), ("jsrun", "jsrun")])
def test_processes_without_mpi_know_rank_and_size_by_the_scheduler(monkeypatch, name, whose):
    for variable in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in LAUNCHERS[name].items():
        monkeypatch.setenv(variable, value)
    rank, size, said = launcher.told_by_environment()
    assert (rank, size) == (5, 8)
    assert said.startswith(f"{whose}'s ")
