"""Thread ranks where Python has less: a process without the modules and functions that Windows, or
macOS, lacks imports mnpar, trains on thread ranks, and saves.

It stands in for these systems, which no test here has: what is left out are the names that typeshed
gives to Linux alone, and how ``os`` and ``ctypes`` behave on Windows.
"""

import os
import signal
import subprocess
import sys

import pytest

from mnpar.runtime import system

WINDOWS = {
    "os": """
        EX_OK O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK POSIX_SPAWN_CLOSE POSIX_SPAWN_DUP2
        POSIX_SPAWN_OPEN WNOHANG WNOWAIT WEXITED P_PID chown chroot copy_file_range eventfd fchdir
        fchmod fchown fdatasync fork forkpty fstatvfs getegid geteuid getgid getgroups getloadavg
        getpgid getpgrp getpriority getrandom getsid getuid getxattr killpg lchown listxattr lockf
        memfd_create mkfifo mknod nice openpty pathconf pidfd_open pipe2 posix_fadvise
        posix_fallocate posix_spawn posix_spawnp pread preadv pwrite pwritev readv
        register_at_fork sched_get_priority_max sched_getaffinity sched_getscheduler
        sched_setaffinity sched_yield sendfile set_blocking setgid setpgid setpriority setsid setuid
        setxattr splice statvfs sync sysconf tcgetpgrp ttyname uname wait wait3 wait4 waitid writev
    """,
    "signal": """
        ITIMER_REAL SIGALRM SIGBUS SIGCHLD SIGCONT SIGHUP SIGIO SIGKILL SIGPIPE SIGPROF SIGQUIT
        SIGSTOP SIGSYS SIGTRAP SIGTSTP SIGTTIN SIGTTOU SIGURG SIGUSR1 SIGUSR2 SIGVTALRM SIGWINCH
        SIGXCPU SIGXFSZ SIG_BLOCK SIG_SETMASK SIG_UNBLOCK alarm getitimer pause pthread_kill
        pthread_sigmask setitimer siginterrupt sigpending sigtimedwait sigwait sigwaitinfo
    """,
    "time": """
        CLOCK_BOOTTIME CLOCK_MONOTONIC CLOCK_PROCESS_CPUTIME_ID CLOCK_REALTIME
        CLOCK_THREAD_CPUTIME_ID clock_getres clock_gettime clock_gettime_ns tzset
    """,
    "socket": "AF_UNIX CMSG_LEN MSG_DONTWAIT MSG_NOSIGNAL SCM_RIGHTS SO_PEERCRED recv_fds send_fds",
    "select": "epoll poll EPOLLIN POLLIN PIPE_BUF",
}
MACOS = {
    "os": """
        copy_file_range eventfd fdatasync getrandom getxattr listxattr memfd_create pidfd_open pipe2
        posix_fadvise posix_fallocate sched_getaffinity sched_getparam sched_getscheduler
        sched_setaffinity setxattr splice waitid P_PIDFD
    """,
    "signal": "SIGPWR SIGRTMAX SIGRTMIN sigtimedwait sigwaitinfo pidfd_send_signal",
    "time": "CLOCK_BOOTTIME CLOCK_TAI pthread_getcpuclockid",
    "socket": "AF_NETLINK AF_PACKET SO_PEERCRED SOCK_CLOEXEC SOCK_NONBLOCK",
    "select": "epoll EPOLLIN",
}
NO_MODULES = {
    # threadpoolctl: it knows the system too
    "win32": (
        "threadpoolctl",
        "fcntl",
        "resource",
        "termios",
        "pwd",
        "grp",
        "pty",
        "tty",
        "readline",
        "syslog",
    ),
    "darwin": (),
}
# numpy and Python's own modules come first: they know the system that they are on
STAND_IN = """
import asyncio, builtins, concurrent.futures, ctypes, importlib, json, multiprocessing.connection
import os, pathlib, platform, pickle, selectors, shutil, signal, socket, sys, tempfile, threading
import numpy as np
import scipy.special
for name in {modules}:
    sys.modules[name] = None
for name, missing in {missing}.items():
    for one in missing.split():
        if hasattr(sys.modules[name], one):
            delattr(sys.modules[name], one)
real_open, real_files, real_cdll = os.open, builtins.open, ctypes.CDLL
def not_linux(path):
    if isinstance(path, str) and path.startswith(("/proc", "/dev/shm")):
        raise FileNotFoundError(2, "No such file or directory", path)
def os_open(path, *rest, **more):
    not_linux(path)
    if sys.platform == "win32" and os.path.isdir(path):
        raise PermissionError(13, "Permission denied", path)
    return real_open(path, *rest, **more)
def open_file(path, *rest, **more):
    not_linux(path)
    return real_files(path, *rest, **more)
class CDLL(real_cdll):
    def __init__(self, name, *rest, **more):
        if sys.platform == "win32" and name is None:
            raise TypeError("argument of type 'NoneType' is not iterable")
        super().__init__(name, *rest, **more)
def kill(pid, number):
    raise AssertionError("on Windows it ends the process, or sends Ctrl-C to all of a console")
os.open, builtins.open, ctypes.CDLL = os_open, open_file, CDLL
os.environ["MNPAR_KERNELS"] = "numpy"
sys.platform = {platform!r}
if sys.platform == "win32":
    os.kill = kill
    # of removing folders; newer Pythons have chosen already
    shutil._use_fd_functions, shutil._rmtree_impl = False, shutil._rmtree_unsafe
"""
PROGRAM = """
import mnpar
import mnpar.functions as F
import mnpar.links as L

class Net(mnpar.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.hidden, self.out = L.Linear(3, 8), L.Linear(8, 2)
    def forward(self, x):
        return self.out(F.tanh(self.hidden(x)))

def data():
    x = np.random.default_rng(0).normal(size=(24, 3)).astype("f4")
    return mnpar.datasets.TupleDataset(x, (x.sum(1) > 0).astype("i4"))

def train(comm, folder):
    mnpar.random.seed(0)
    model = L.Classifier(Net())
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(0.1), comm)
    optimizer.setup(model)
    part = mnpar.scatter_dataset(data() if comm.rank == 0 else None, comm)
    batches = mnpar.iterators.MultithreadIterator(part, 24 // comm.size, shuffle=False)
    trainer = mnpar.training.Trainer(
        mnpar.training.StandardUpdater(batches, optimizer), (4, "iteration"), out=folder
    )
    keep = mnpar.create_multi_node_checkpointer("run", comm, path=folder + "/kept")
    trainer.extend(keep, trigger=(2, "iteration"))
    if comm.rank == 0:
        trainer.extend(mnpar.training.extensions.snapshot(), trigger=(2, "iteration"))
        trainer.extend(mnpar.training.extensions.LogReport(trigger=(2, "iteration")))
    with mnpar.checkpoint.Notice(comm) as notice:
        trainer.run()
        assert not notice()
    halo = F.shift(comm, mnpar.Variable(np.full(2, comm.rank, "f8")), 1)
    return [p.array.copy() for p in model.params()], halo.array[0]

with tempfile.TemporaryDirectory() as folder:
    one = mnpar.run(lambda comm: train(comm, folder + "/one"), ranks=1)[0][0]
    both = mnpar.run(lambda comm: train(comm, folder + "/both"), ranks=2)
    again = mnpar.run(lambda comm: train(comm, folder + "/both"), ranks=2)
    net = Net()
    mnpar.serializers.save_npz(folder + "/net.npz", net)
    mnpar.serializers.load_npz(folder + "/net.npz", Net())
for values, _ in (*both, *again):
    for value, expected in zip(values, one):
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-7)
if sys.platform == "win32":
    numbers = mnpar.iterators.MultiprocessIterator([1, 2, 3], 2, n_processes=1)
    try:
        next(numbers)
    except NotImplementedError as error:
        print(error)
print("trained on", sys.platform)
"""


@pytest.mark.parametrize(("platform", "missing"), [("win32", WINDOWS), ("darwin", MACOS)])
def test_thread_ranks_train_and_save_where_python_has_less(platform, missing, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        STAND_IN.format(modules=NO_MODULES[platform], missing=missing, platform=platform) + PROGRAM
    )
    done = subprocess.run(
        [sys.executable, program],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == f"trained on {platform}"
    assert platform != "win32" or "MultithreadIterator" in lines[-2]


def test_a_process_that_has_ended_is_not_there(monkeypatch):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    assert system.exists(ended.pid)
    ended.wait()
    assert not system.exists(ended.pid)
    assert system.exists(os.getpid())
    # signal 0 is Ctrl-C there: nobody may be asked by it
    monkeypatch.setattr(os, "name", "nt")
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("sent a signal"))
    assert system.exists(ended.pid)


def test_where_the_system_does_not_tell_a_pipe_seems_read(monkeypatch):
    read, write = os.pipe()
    os.write(write, b"four")
    assert system.unread(read) == 4
    monkeypatch.setattr(system, "fcntl", None)
    assert system.unread(read) == 0
    for end in (read, write):
        os.close(end)


def test_schedulers_announce_by_the_signals_that_the_system_has():
    assert system.ANNOUNCEMENTS == (signal.SIGTERM, signal.SIGUSR1)
