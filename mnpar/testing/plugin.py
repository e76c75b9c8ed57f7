"""Tests that take ``comm`` run on several ranks.

    def test_sum(comm): ...                # on 1, 2, 3 and 4 thread ranks
    @pytest.mark.ranks(2, 3)               # on 2 and 3 ranks, threads and processes of mpiexec
    @pytest.mark.ranks(2, on="threads")    # or on="mpi"

Fixtures, parameters and assertions work as in any other test, on every rank. The processes are
started once, as a pool, and run one test after another; a rank's failure is shown with that rank's
traceback. If a test leaves a rank that hangs or died, the pool is ended, and the next test starts a
new one. Where there is no MPI, tests on processes are skipped.

``pytest_mnpar.py``, which knows the fixture, registers this module when the first such test is
collected.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

import pytest

from mnpar.communicators.communicator import Communicator
from mnpar.errors import LauncherError
from mnpar.launch import run
from mnpar.runtime import callsite
from mnpar.testing import forks
from mnpar.testing.pool import LEAVING, WORKER, Pool
from mnpar.testing.worker import check_received, ranks_of

_POOL = pytest.StashKey["Pool | None"]()
_FORKS = pytest.StashKey[forks.Forks | None]()


class RankCase(NamedTuple):
    """The kind and the number of ranks on which a test runs."""

    on: str
    size: int


def pytest_configure(config: pytest.Config) -> None:
    """Note who calls tests."""
    # pluggy, which calls hooks such as this one, and tests by them
    callsite.add_caller(sys._getframe(1).f_code.co_filename)
    config.stash[_POOL] = config.stash[_FORKS] = None


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Give a test that takes ``comm`` a case for each number of ranks, on threads and on MPI."""
    mark = metafunc.definition.get_closest_marker("ranks")
    sizes, kinds = (
        ((1, 2, 3, 4), ("threads",))
        if mark is None
        else (mark.args, mark.kwargs.get("on", ("threads", "mpi")))
    )
    kinds = (kinds,) if isinstance(kinds, str) else kinds
    chosen = metafunc.config.getoption("ranks_on", "both")
    cases = [RankCase(on, size) for on in kinds for size in sizes if chosen in (on, "both")]
    metafunc.parametrize(
        "comm", cases, ids=[f"{case.on}-{case.size}" for case in cases], indirect=True
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Iterator[None]:
    """Fork a copy of the session before its first test: the ranks are forks of this copy."""
    config = session.config
    if not config.stash.get(WORKER, None) and not config.option.collectonly:
        folders = getattr(config, "_tmp_path_factory", None)
        if folders is not None:
            # now: each fork would empty a folder that was given by --basetemp once more
            folders.getbasetemp()
        if any(map(_mpi_size, session.items)):
            config.stash[_FORKS] = ranks_of(session) if forks.possible() else None
    try:
        return (yield)
    finally:
        close_pool(config)
        if copy := config.stash.get(_FORKS, None):
            copy.close()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that takes ``comm`` on its ranks."""
    __tracebackhide__ = True
    ranks = pyfuncitem.funcargs.get("comm")
    if not isinstance(ranks, RankCase):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    worker = pyfuncitem.config.stash.get(WORKER, None)
    if ranks.on == "threads":
        run(lambda comm: _on_thread(pyfuncitem.obj, arguments, comm), ranks=ranks.size)
    elif worker is not None:
        worker.call(pyfuncitem.obj, arguments)
    else:
        try:
            failure = _pool(pyfuncitem.session).run(pyfuncitem.nodeid, ranks.size)
        except LauncherError as error:
            raise LEAVING["Skipped"](f"no ranks on MPI: {error}") from None
        if failure:
            _fail(failure)
    return True


def _fail(text: str) -> NoReturn:
    """Fail with this text; pytest would say of a traceback whose frames are hidden that they
    are.
    """
    raise pytest.fail.Exception(text, pytrace=False)


def _on_thread(test: Any, arguments: dict[str, Any], comm: Communicator) -> None:
    __tracebackhide__ = True
    test(**{**arguments, "comm": comm})
    check_received(comm)


def _pool(session: pytest.Session) -> Pool:
    """The session's pool, as large as its largest test needs."""
    pool = session.config.stash[_POOL]
    if pool is None:
        mine = [item for item in session.items if _mpi_size(item)]
        files = list(dict.fromkeys(str(item.path) for item in mine))
        pool = Pool(max(map(_mpi_size, mine)), files, session.config, session.config.stash[_FORKS])
        session.config.stash[_POOL] = pool
    return pool


def _mpi_size(item: pytest.Item) -> int:
    callspec = getattr(item, "callspec", None)
    ranks = callspec.params.get("comm") if callspec is not None else None
    return ranks.size if isinstance(ranks, RankCase) and ranks.on == "mpi" else 0


def close_pool(config: pytest.Config, kill: bool = False) -> None:
    """End the ranks of the session's pool, if it has one."""
    pool = config.stash.get(_POOL, None)
    if pool is not None:
        pool.close(kill)
