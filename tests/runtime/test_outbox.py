"""The outbox is used by the rank and by its own thread at the same time."""

from mnpar.runtime.outbox import Outbox


class Request:
    """A message that MPI has not taken yet."""

    def Test(self):
        return False


class MPI:
    """A library that allows one thread alone: the outbox starts none."""

    THREAD_MULTIPLE = 3
    Exception = RuntimeError

    @staticmethod
    def Query_thread():
        return 0


def test_the_queues_are_looked_through_while_the_other_thread_cannot_remove_one():
    outbox = Outbox(MPI)
    looks = []

    class Queues(dict):
        def __iter__(self):
            looks.append(outbox._lock.locked())
            return super().__iter__()

        def items(self):
            looks.append(outbox._lock.locked())
            return super().items()

    outbox._queues = Queues()
    outbox.keep("group", 1, Request(), None)
    assert not outbox.is_empty("group")
    assert outbox.is_empty("another group")
    assert looks
    assert all(looks)
