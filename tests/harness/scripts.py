"""``python script.py flags`` or ``python -m module flags``, alone or under mpiexec, without the
start of Python: a process that has imported mnpar forks.

What a script sees is what a start of its own gives it: arguments, environment, folder, files,
launcher, ``__main__``, exit code. Only mnpar, numpy, pytest and matplotlib are there already, which
take half a second each time, and the MPI library (``mnpar/testing/forks.py``). Tests of how a rank
starts, or is ended by others, start Python.

All processes of pytest share the one that forks. It begins when the first script is to run.
"""

import atexit
import contextlib
import ctypes
import importlib.util
import os
import pkgutil
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from mnpar.runtime.mpiexec import find_mpiexec
from mnpar.testing import fork_client, forks

# pytest's arguments: mnpar is imported before it here
QUIET = ("-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning")
_folder = None  # of the process that forks: its socket, and what scripts start instead of Python
_began = None  # the process that knows that it has begun


def run_script(script, flags, env, cwd, command=(), timeout=120):
    """Run a script; return the finished process, as ``subprocess.run([*command, python, script,
    *flags], capture_output=True, text=True)`` has it.

    Args:
        command: of the launcher.
    """
    if command:
        return subprocess.run(
            [*command, *client_for(script), *flags],
            capture_output=True,
            text=True,
            env=env,
            timeout=timeout,
            check=False,
            cwd=cwd,
        )
    with (
        tempfile.NamedTemporaryFile() as out,
        tempfile.NamedTemporaryFile() as err,
        open(os.devnull) as nothing,
    ):
        arguments = [str(script), *flags]
        line, _ = fork_client.hand_over(
            _socket(),
            arguments,
            dict(env),
            str(cwd),
            (nothing.fileno(), out.fileno(), err.fileno()),
        )
        with contextlib.closing(line):
            line.settimeout(timeout)
            try:
                code = fork_client.exit_code(line)
            except TimeoutError:
                code = None
        said, errors = [os.pread(file.fileno(), 1 << 26, 0).decode() for file in (out, err)]
    assert code is not None, f"{script} did not end within {timeout} s\n{errors}"
    return subprocess.CompletedProcess(arguments, code, said, errors)


def load_script(path):
    """Return the script as a module, which does not run as a program; it finds modules beside
    it.
    """
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    with beside(path):
        spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def beside(path):
    """Within it, modules beside a file are found first, as by ``python file``."""
    sys.path.insert(0, str(path.parent))
    try:
        yield
    finally:
        sys.path.remove(str(path.parent))


def client_for(*script):
    """Return what a launcher starts instead of ``[python, script]`` or ``[python, "-m",
    module]``.
    """
    return [sys.executable, "-IS", fork_client.__file__, _socket(), *map(str, script)]


def _socket():
    """Return the socket of the process that forks, which has begun."""
    global _began
    if _folder is None:  # nobody has shared one: this is no session of pytest
        atexit.register(share())
    if _began != os.getpid():
        line, _ = fork_client.hand_over(f"{_folder}/socket", [os.devnull], {}, "/")
        line.close()
        _began = os.getpid()
    return f"{_folder}/socket"


def share():
    """Be ready to run scripts, also in the processes that this one forks from now on; return a
    function that ends it.
    """
    global _folder
    folder = _folder = tempfile.mkdtemp(prefix="mnpar-scripts-")
    with forks.listening(f"{folder}/socket") as listener:
        pid = forks.fork()
        if pid == 0:
            try:
                forks.die_with_parent()
                select.select([listener], [], [])  # until somebody asks
                os.chdir(Path(__file__).parents[2])
                os.set_inheritable(listener.fileno(), True)
                os.execv(
                    sys.executable,
                    [sys.executable, "-m", "tests.harness.scripts", folder, str(listener.fileno())],
                )
            finally:
                os._exit(1)

    def end():
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        shutil.rmtree(folder)

    return end


def _load_mpi():
    """Load the MPI library, which takes each rank 20 ms, and do not start it."""
    # without mpi4py, or an MPI: what needs one says so
    with contextlib.suppress(ImportError, RuntimeError):
        ctypes.CDLL(importlib.util.find_spec("mpi4py.MPI").origin)
        # UCX has set its own, which is for those who use it
        signal.signal(signal.SIGHUP, signal.getsignal(signal.SIGHUP))


def _write_program(path, *lines):
    Path(path).write_text("\n".join(("#!/bin/sh", *lines, "")))
    os.chmod(path, 0o755)


def _main(folder, listener):
    """Serve; in the forks, run the script and end, without taking all modules apart: that takes
    longer than the fork.
    """
    forks.die_with_parent()
    _write_program(f"{folder}/mpiexec", f'exec {find_mpiexec()} "$@"')
    _write_program(
        f"{folder}/python",
        f'case "$1" in -m) ;; -*) exec {sys.executable} "$@";; esac',
        f'exec {sys.executable} -IS {fork_client.__file__} {folder}/socket "$@"',
    )
    with socket.socket(fileno=listener) as listener:
        arguments = forks.serve(listener)
    module = arguments[:1] == ["-m"]
    sys.argv[:] = arguments[module:]
    sys.path[0] = os.getcwd() if module else os.path.dirname(sys.argv[0])
    sys.executable = os.path.join(folder, "python")  # ranks that the script starts are forks too
    if "OMP_NUM_THREADS" in os.environ:  # what is read where BLAS is loaded
        threadpoolctl.threadpool_limits(int(os.environ["OMP_NUM_THREADS"]))
    try:
        if module:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
    forks.end(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    import matplotlib.pyplot  # noqa: F401 - for the scripts
    import pytest  # noqa: F401 - for the scripts

    # and so is what follows; not scikit-learn, whose multiprocessing would keep this __main__
    import threadpoolctl
    from _pytest.config import default_plugins

    for name in default_plugins:
        importlib.import_module(f"_pytest.{name}")
    import mnpar.testing.options

    for _, name, _ in pkgutil.walk_packages(mnpar.__path__, "mnpar."):
        # (forks of a process with PyTorch in it could not use a GPU)
        if name != "mnpar.__main__" and not name.startswith("mnpar.torch"):
            importlib.import_module(name)  # or each fork would, when it first asks for it
    _load_mpi()
    # it remembers where hundreds of libraries lie: 10 ms for each rank
    threadpoolctl.ThreadpoolController()

    _main(sys.argv[1], int(sys.argv[2]))
