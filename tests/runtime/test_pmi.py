"""Ranks learn of each other from the launcher, before MPI starts: which waits there, and which has
ended.
"""

import contextlib
import os
import socket
import threading

import pytest

from mnpar.runtime import pmi
from mnpar.runtime.pmi import Notices


@pytest.fixture
def connect():
    """Makes a connection to a launcher, and a list of what it was told there; the launcher keeps
    names for all.
    """
    names, threads, connections = {}, [], []

    def serve(connection, told):
        with connection, connection.makefile("rw") as lines:
            for line in lines:
                command, *words = line.removeprefix("cmd=").split()
                about = dict(word.split("=") for word in words)
                told.append(command)
                answer = "rc=0 kvsname=kvs_7"
                if command == "publish_name":
                    answer = f"rc={int(about['service'] in names)}"
                    names.setdefault(about["service"], about["port"])
                if command == "lookup_name":
                    answer = (
                        f"rc=0 port={names[about['service']]}"
                        if about["service"] in names
                        else "rc=1"
                    )
                lines.write(f"cmd=answer {answer}\n")
                lines.flush()

    def connection():
        mine, other = socket.socketpair()
        told = []
        threads.append(threading.Thread(target=serve, args=(other, told)))
        threads[-1].start()
        connections.append(mine)
        return mine, told

    yield connection
    for mine in connections:
        with contextlib.suppress(OSError):
            mine.shutdown(socket.SHUT_RDWR)
        mine.close()
    for thread in threads:
        thread.join()


def test_whichever_of_two_comes_second_learns_of_the_other_and_only_who_leaves_alone_ends_well(
    connect,
):
    (one, told), (two, told_two), (three, told_three) = connect(), connect(), connect()
    assert Notices(one.fileno()).one_has_left(0) is None
    assert Notices(two.fileno()).one_waits(1) == 0
    assert Notices(three.fileno()).one_has_left(2) == 1
    assert "finalize" not in told + told_two + told_three


def test_ranks_that_all_leave_close_their_connections_and_are_told_nothing(connect):
    lines = [connect() for _ in range(3)]
    assert [Notices(mine.fileno()).one_waits(rank) for rank, (mine, _) in enumerate(lines)] == [
        None
    ] * 3
    assert [told[-1] for _, told in lines] == ["finalize"] * 3


def test_nothing_is_written_where_no_launcher_answers_or_another_file_has_the_number(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(pmi, "_LIMIT", 0.01)
    with (tmp_path / "file").open("w") as file, pytest.raises(OSError, match="is no connection"):
        Notices(file.fileno())
    mine, other = socket.socketpair()
    with mine, other:
        one = Notices(mine.fileno())
        assert one.one_waits(1) is None
        assert other.recv(1000) == b"cmd=init pmi_version=1 pmi_subversion=1\ncmd=finalize\n"
        ours, others = socket.socketpair()
        os.dup2(ours.fileno(), mine.fileno())
        assert one.one_waits(1) is None
        ours.shutdown(socket.SHUT_WR)
        assert one.one_has_left(0) is None
        assert others.recv(1000) == b""
        ours.close()
        others.close()
