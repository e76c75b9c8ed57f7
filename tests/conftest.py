"""Options of these tests, what the processes that they start find, and what they print at the
end.
"""

import contextlib
import functools
import gc
import linecache
import os
import shutil
import signal
import sys
import sysconfig
import tempfile
from collections import Counter

import numpy as np
import pytest

import mnpar
from mnpar.backends import cuda
from mnpar.communicators import matching
from tests.harness import scripts
from tests.harness.cupy import stand_in
from tests.mutants.table import table


@pytest.fixture(autouse=True)
def _own_tape():
    """Give each test a tape of its own, on which nothing is that another has left."""
    with mnpar.Tape():
        yield


@pytest.fixture
def float64():
    """Links and functions make float64: a file asks by ``pytestmark =
    pytest.mark.usefixtures("float64")``.
    """
    with mnpar.using_config("dtype", np.dtype("f8")):
        yield


@pytest.fixture
def debug_off():
    """Run a test outside of debug mode, also where ``MNPAR_DEBUG=1`` is in the environment of the
    suite: a test of what is not looked at there, such as infinities and counts of messages.
    """
    with mnpar.using_config("debug", False):
        yield


@pytest.fixture(params=["blocks", "digests"])
def both_matches(request, monkeypatch):
    """Run a test twice: collectives begin with the blocks of all ranks, as among few, or with a
    comparison of digests, as among many.
    """
    if request.param == "digests":
        monkeypatch.setattr(matching, "MOST_GATHERED", 1)


@pytest.fixture
def device(monkeypatch):
    """CuPy's stand-in, which programs find when they import CuPy."""
    monkeypatch.setitem(sys.modules, "cupy", stand_in.cupy)
    monkeypatch.setitem(sys.modules, "cupyx", stand_in.cupyx)
    monkeypatch.setitem(sys.modules, "cupyx.scipy", stand_in.cupyx.scipy)
    cuda._look.cache_clear()
    with stand_in.Device(0):
        yield stand_in.cupy
    cuda._look.cache_clear()


def pytest_addoption(parser):
    parser.addoption(
        "--detection",
        action="store_true",
        help="print how many of the spoilt random programs were reported, by kind of mistake",
    )


def pytest_configure(config):
    # until the tests are collected, which leaves no garbage: to look for it takes a third as long
    # as to collect
    gc.disable()
    start_alike()
    np.testing.assert_allclose = close_at_once(np.testing.assert_allclose)
    if "PYTHONDONTWRITEBYTECODE" in os.environ and hasattr(config, "cache"):
        _share_bytecode(config.cache.mkdir("bytecode"))


def close_at_once(assert_allclose):
    """numpy's ``assert_allclose``, which is asked only where a glance does not show that arrays are
    close: it takes 50 µs.

    A glance is at arrays of floating-point numbers, of one shape, all finite. Whatever else there
    is, numpy judges.
    """

    @functools.wraps(assert_allclose)
    def close(actual, desired, rtol=1e-7, atol=0, **more):
        __tracebackhide__ = True
        alike = (
            type(actual) is type(desired) is np.ndarray
            and actual.shape == desired.shape
            and not more.get("strict")
        )
        if alike and actual.size and actual.dtype.kind == desired.dtype.kind == "f":
            with np.errstate(all="ignore"):
                # infinite, or not a number, where one of them is
                room = atol + rtol * abs(desired) - abs(actual - desired)
            if room.min() >= 0 and room.max() < np.inf:
                return
        assert_allclose(actual, desired, rtol, atol, **more)

    return close


def start_alike():
    """What tests start finds the same wherever they run: it prints whole lines, its idle threads
    sleep, its MPI looks for no network and watches no memory (which takes a rank a sixth of its
    start), and Ctrl-C ends it.
    """
    # print writes its arguments one by one then, and those of several ranks mix
    os.environ.pop("PYTHONUNBUFFERED", None)
    # 2 ** 20 cycles, and not 2 ** 28: to spin 0.1 s without work
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")
    os.environ.setdefault("UCX_TLS", "posix,self")
    os.environ.setdefault("UCX_MEM_EVENTS", "n")
    # as nohup and the shell's & leave it: programs inherit that
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _share_bytecode(folder):
    """Hundreds of processes would compile all of mnpar, a quarter of a second each: let them write
    and read it elsewhere.
    """
    # of programs that tests wrote, long gone
    shutil.rmtree(f"{folder}{tempfile.gettempdir()}", ignore_errors=True)
    for library in {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}:
        if not os.path.exists(f"{folder}{library}"):
            _link_bytecode(library, folder)
    del os.environ["PYTHONDONTWRITEBYTECODE"]
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(folder)
    sys.dont_write_bytecode = False


def _link_bytecode(library, folder):
    """What is compiled of Python and of packages shall be found there too: to compile it once more
    takes 4 s.
    """
    for place, folders, files in os.walk(library):
        folders[:] = [name for name in folders if name not in ("test", "tests", "site-packages")]
        if os.path.basename(place) == "__pycache__":
            beside = f"{folder}{os.path.dirname(place)}"
            os.makedirs(beside, exist_ok=True)
            for file in files:
                with contextlib.suppress(FileExistsError):
                    os.symlink(f"{place}/{file}", f"{beside}/{file}")


def pytest_terminal_summary(terminalreporter, config):
    """What became of the spoilt programs of tests/random_programs/test_random_programs.py, and of
    the mutants of tests/mutants/: none may be silent or hang.
    """
    reports = [
        one
        for ones in terminalreporter.stats.values()
        for one in ones
        if getattr(one, "when", "") == "call"
    ]
    rows = [
        row
        for one in reports
        for name, many in one.user_properties
        if name == "mutants"
        for row in many
    ]
    if rows and config.getoption("--sweep"):
        for line in table(rows):
            terminalreporter.write_line(line)
    said = [
        tuple(what)
        for one in reports
        for name, whats in one.user_properties
        if name == "spoilt"
        for what in whats
    ]
    outcomes = Counter([what for what in said if what[0] != "nothing"])
    if not outcomes:
        return
    n = Counter(what for what, _ in outcomes.elements())
    told = n["reported"] + n["late"]
    wrong = told + n["silent"] + n["hung"]
    terminalreporter.write_line(
        f"random programs with a deliberate mistake: {told} of {wrong} that go wrong were told "
        f"({n['reported']} before any wrong value, {n['late']} after one), {n['silent']} gave "
        f"wrong gradients silently, {n['hung']} hung; in {n['harmless']} more the mistake does no "
        "harm"
    )
    for how in sorted({how for _, how in outcomes}) if config.getoption("--detection") else ():
        became = ", ".join(
            [f"{n} {what}" for (what, one), n in sorted(outcomes.items()) if one == how]
        )
        terminalreporter.write_line(f"  {how}: {became}")


def pytest_collection_finish(session):
    gc.collect()
    # thousands of tests: collections of garbage in them need not look at all that was collected
    gc.freeze()
    # nor come after each 700 new objects: a tenth of the time
    gc.set_threshold(10_000, *gc.get_threshold()[1:])
    gc.enable()
    # each doctest looks whether any file in it has changed, and collection has read all of mnpar
    linecache.clearcache()
    if not session.config.option.collectonly:
        session.config.add_cleanup(scripts.share())
