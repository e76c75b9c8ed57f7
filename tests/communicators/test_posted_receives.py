"""Receives that are posted ahead: which message each gets, and that ten thousand of them are no
slower, each, than ten.
"""

import numpy as np
import pytest

from mnpar import ANY_SOURCE, ANY_TAG

MANY = 3_000


def matched(tags, receives):
    """What MPI's rules say: each receive gets the oldest message that it matches, and none before
    it has got; the number of the message.
    """
    left = list(enumerate(tags))
    found = []
    for _, tag in receives:
        message = next(one for one in left if tag in (ANY_TAG, one[1]))
        left.remove(message)
        found.append(message[0])
    return found


def receives_of(rng, tags):
    """Receives for all of these messages, some of them of any source or tag."""
    receives = []
    left = list(tags)
    while left:
        tag = left[0] if rng.random() < 0.4 else ANY_TAG
        if tag != ANY_TAG:
            tag = left[rng.integers(len(left))]
        left.remove(left[0] if tag == ANY_TAG else tag)
        receives.append((ANY_SOURCE if rng.random() < 0.3 else 1, tag))
    return receives


@pytest.mark.ranks(2)
@pytest.mark.parametrize("posted", ["before", "after"])
@pytest.mark.parametrize("seed", range(12))
def test_each_gets_the_oldest_message_that_none_before_it_has_got(comm, seed, posted):
    rng = np.random.default_rng(seed)
    tags = [int(tag) for tag in rng.integers(0, 3, 9)]
    receives = receives_of(rng, tags)
    if comm.rank == 1:
        if posted == "before":
            comm.barrier()
        for number, tag in enumerate(tags):
            comm.send(np.array(number), 0, tag)
        if posted == "after":
            comm.barrier()
        return
    if posted == "after":
        comm.barrier()
    operations = [comm.irecv(source, tag) for source, tag in receives]
    if posted == "before":
        comm.barrier()
    order = rng.permutation(len(operations))
    found = {int(i): int(operations[i].wait()) for i in order}
    assert [found[i] for i in range(len(tags))] == matched(tags, receives)


WAYS = {
    "in order": lambda operations: operations,
    "the last one first": lambda operations: operations[::-1],
}


@pytest.mark.ranks(2)
@pytest.mark.parametrize("tags", ["one tag", "a tag each", "any tag"])
@pytest.mark.parametrize("way", WAYS)
def test_looks_for_messages_are_as_many_as_receives(comm, tags, way, monkeypatch):
    """One as a receive is posted, and one once its message has come, but for the first."""
    looks = []
    probe = comm.transport.probe

    def counted(*where):
        looks.append(where)
        return probe(*where)

    if comm.rank == 1:
        comm.barrier()
        for number in range(MANY):
            comm.send(np.array(number), 0, number if tags == "a tag each" else 0)
        comm.barrier()
        return
    monkeypatch.setattr(comm.transport, "probe", counted)
    tag_of = {"one tag": lambda i: 0, "a tag each": lambda i: i, "any tag": lambda i: ANY_TAG}[tags]
    operations = [comm.irecv(1, tag_of(number)) for number in range(MANY)]
    assert len(looks) <= MANY + 1
    monkeypatch.undo()
    comm.barrier()  # meanwhile some of them go on
    comm.barrier()
    monkeypatch.setattr(comm.transport, "probe", counted)
    looks.clear()
    found = {id(one): int(one.wait()) for one in WAYS[way](operations)}
    assert [found[id(one)] for one in operations] == list(range(MANY))
    assert len(looks) <= MANY


@pytest.mark.ranks(2)
def test_a_receive_that_is_given_up_leaves_its_message_to_the_next(comm, monkeypatch):
    if comm.rank == 1:
        comm.barrier()
        comm.send(np.array(5), 0)
        return
    posted = comm.channel(0).recv(lambda: comm._call("recv"), 1, 0, later=True)
    next(posted)  # it waits
    comm.barrier()
    posted.close()
    assert int(comm.recv(1)) == 5


@pytest.mark.ranks(2)
def test_operations_go_on_while_another_is_waited_for(comm):
    """More of them than are looked at between two looks for what is awaited: rank 0 gets what it
    waits for when its peer's sums are done, to which it contributes meanwhile.
    """
    sums = [comm.iallreduce(np.full(20_000, i + comm.rank)) for i in range(40)]
    if comm.rank == 0:
        assert int(comm.recv(1)) == 7
    totals = [one.wait() for one in sums]
    if comm.rank == 1:
        comm.send(np.array(7), 0)
    for i, total in enumerate(totals):
        np.testing.assert_array_equal(total, np.full(20_000, 2 * i + 1))
