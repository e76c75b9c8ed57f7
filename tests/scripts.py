"""``python script.py flags`` without the start of Python: a process that has imported mnpar forks for each script.

What a script sees is what a start of its own gives it: arguments, environment, folder, files, ``__main__``, exit code. Only
mnpar, numpy and matplotlib are there already, which takes half a second each time.
"""

import atexit
import json
import os
import runpy
import subprocess
import sys
import tempfile

_server = None


def run_script(script, flags, env, cwd, timeout=120):
    """The finished process, as ``subprocess.run([python, script, *flags], capture_output=True, text=True, …)`` has it."""
    with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as err:
        order = {
            "argv": [str(script), *flags],
            "env": dict(env),
            "cwd": str(cwd),
            "files": [out.name, err.name],
            "limit": timeout,
        }
        server = _serving()
        server.stdin.write(json.dumps(order) + "\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        texts = [file.read().decode() for file in (out, err)]
    assert code != -14, f"{script} did not end within {timeout} s\n{texts[1]}"
    return subprocess.CompletedProcess(order["argv"], code, *texts)


def _serving():
    """The process that forks, one for each process of pytest."""
    global _server
    if _server is None or _server[0] != os.getpid():
        command = [sys.executable, "-m", "tests.scripts"]
        _server = os.getpid(), subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        atexit.register(_server[1].communicate)
    return _server[1]


def _serve():
    """Fork for each order; in the fork, return it."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            return json.loads(line)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(code, flush=True)
    sys.exit()


def _become(order):
    """Make this fork the process that the order describes."""
    os.chdir(order["cwd"])
    for name in set(os.environ) - set(order["env"]):
        del os.environ[name]
    os.environ.update(order["env"])
    for number, name, flags in zip(
        (0, 1, 2), ("/dev/null", *order["files"]), (os.O_RDONLY, os.O_WRONLY, os.O_WRONLY), strict=True
    ):
        file = os.open(name, flags)
        os.dup2(file, number)
        os.close(file)
    sys.argv[:] = order["argv"]
    sys.path[0] = os.path.dirname(sys.argv[0])
    signal.alarm(order["limit"])
    if "OMP_NUM_THREADS" in os.environ:  # what is read where BLAS is loaded
        threadpoolctl.threadpool_limits(int(os.environ["OMP_NUM_THREADS"]))
    return sys.argv[0]


if __name__ == "__main__":
    import signal

    import matplotlib.pyplot  # noqa: F401 - for the scripts
    import threadpoolctl

    import mnpar  # noqa: F401

    runpy.run_path(_become(_serve()), run_name="__main__")
