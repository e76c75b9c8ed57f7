"""Programs that go wrong, one a function: ``mpiexec -n 3 python tests/faults/programs.py NAME``
(see tests/faults/test_faults.py).

What a program raises says "boom": the tests look for it, for the name of the function and for the
rank.
"""

import atexit
import ctypes
import gc
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing import forkserver
from pathlib import Path

import numpy as np

if "MNPAR_TEST_GROUP" in os.environ:
    # this may be a fork of a process that is in another one
    os.setegid(int(os.environ["MNPAR_TEST_GROUP"]))
if (
    sys.argv[1] == "start_before_any_import"
    and os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "1"
):
    os._exit(0)
if (
    sys.argv[1] == "start_exit_0_early"
    and os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "1"
):
    # after what mnpar registers
    atexit.register(lambda: open(os.path.join(tempfile.gettempdir(), "left"), "w").close())
if sys.argv[1] == "start_imports":

    class Slow:
        """Says that the import has come to the first layer that needs much, and stays there."""

        @staticmethod
        def find_spec(name, *_):
            if name == "mnpar.backend":
                print("ready", flush=True)
                time.sleep(30)

    sys.meta_path.insert(0, Slow)

import mnpar
import mnpar.functions as F
from mnpar.runtime import cleanup, exit
from mnpar.runtime.launcher import launched_rank

if {
    "loads_in_processes",
    "forks_where_mpi4py_was_first",
    "alone_it_forks_where_mpi4py_was_first",
    "start_error_where_mpi4py_was_first",
    "start_exit_0_where_mpi4py_was_first",
} & set(sys.argv):
    from mpi4py import MPI  # noqa: F401  where many scripts have it


def error_while_others_receive(comm):
    if comm.rank == 1:
        raise ValueError("boom")
    comm.recv(1)


def error_while_the_launcher_sleeps(comm):
    """On a busy machine a launcher may come late to what a rank wrote, and learn at the same time
    that it has ended the job.
    """
    if comm.rank == 1:
        launcher = os.getppid()
        os.kill(launcher, signal.SIGSTOP)
        subprocess.Popen(
            ["sh", "-c", f"sleep 1.2; kill -CONT {launcher}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        raise ValueError("boom")
    comm.recv(1)


def error_while_others_reduce(comm):
    if comm.rank == 1:
        raise ValueError("boom")
    comm.allreduce(np.ones(1000))


def error_while_others_compute(comm):
    if comm.rank == 1:
        raise ValueError("boom")
    end = time.monotonic() + 30
    while time.monotonic() < end:
        pass


def error_without_streams(comm):
    if comm.rank == 1:
        sys.stdout.close()
        sys.stderr = None
        raise ValueError("boom")
    comm.recv(1)


def error_that_nobody_reads(comm):
    if comm.rank == 1:
        exit.LAST_WORDS = 1.0
        sys.stderr = os.fdopen(os.pipe()[1], "w")
        raise ValueError("boom" * 2**16)
    comm.recv(1)


def error_on_all(comm):
    raise ValueError("boom")


def error_in_backward(comm):
    class Bad(mnpar.FunctionNode):
        def forward(self, x):
            return x * 1.0

        def backward(self, gy):
            raise ValueError("boom")

    x = F.allreduce(comm, mnpar.Variable(np.ones(3)))
    h = Bad().apply((x,))[0] if comm.rank == 1 else x
    F.sum(F.allreduce(comm, h)).backward()
    comm.barrier()


def error_in_a_group(comm):
    group = comm.split(comm.rank // 2, comm.rank)
    if comm.rank == 1:
        raise ValueError("boom")
    group.barrier()
    comm.barrier()


def error_in_a_thread(comm):
    if comm.rank == 1:
        threading.Thread(target=lambda: (_ for _ in ()).throw(ValueError("boom"))).start()
    comm.recv((comm.rank + 1) % comm.size)


class Unreadable:
    """A data set with an example that cannot be read."""

    def __len__(self):
        return 20

    def __getitem__(self, i):
        if i == 13:
            raise ValueError("boom")
        return np.ones(3)


def error_in_an_iterator(comm, iterator):
    if comm.rank == 1:
        for _ in iterator(Unreadable(), 5, shuffle=False):
            pass
    comm.recv((comm.rank + 1) % comm.size)


def error_in_a_worker_thread(comm):
    error_in_an_iterator(comm, mnpar.iterators.MultithreadIterator)


def error_in_a_worker_process(comm):
    error_in_an_iterator(comm, mnpar.iterators.MultiprocessIterator)


def exit_3(comm):
    if comm.rank == 1:
        sys.exit(3)
    comm.recv(1)


def exit_3_on_all(comm):
    sys.exit(3)


def exit_0(comm):
    if comm.rank == 1:
        sys.exit(0)
    comm.allreduce(np.ones(3))


def early_end(comm):
    if comm.rank == 0:
        comm.recv(1, tag=7)


def finalize_early(comm):
    if comm.rank == 1:
        comm.transport.process.MPI.Finalize()
    comm.recv(1)


def error_after_finalize(comm):
    comm.transport.process.MPI.Finalize()
    if comm.rank == 1:
        raise ValueError("boom")


def one_batch_more(comm):
    for batch in range(3 + (comm.rank == 0)):
        comm.allreduce(np.full(3, batch))


def one_barrier_too_many(comm):
    comm.barrier()
    if comm.rank == 0:
        comm.barrier()


def kill(comm):
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.recv(1)


def segmentation_fault(comm):
    if comm.rank == 1:
        ctypes.string_at(0)
    comm.allreduce(np.ones(3))


def out_of_memory(comm):
    if comm.rank == 1:
        np.ones((2**20, 2**30))
    comm.allreduce(np.ones(3))


def os_exit_4(comm):
    if comm.rank == 1:
        os._exit(4)
    comm.recv(1)


def execs(comm):
    comm.barrier()
    if comm.rank == 1:
        os.execvp(sys.executable, [sys.executable, "-c", "pass"])
    comm.barrier()


def os_exit_0(comm):
    if comm.rank == 1:
        os._exit(0)
    comm.recv(1)


def silent_death(comm):
    """A library ends the process behind Python's back."""
    if comm.rank == 1:
        time.sleep(0.3)
        ctypes.CDLL(None)._exit(0)
    comm.recv(1)


def silent_death_when_all_is_done(comm):
    if comm.rank == 1:
        ctypes.CDLL(None)._exit(0)


def stopped(comm):
    if comm.rank == 1:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGSTOP)
    comm.allreduce(np.ones(3))


def stopped_in_a_split(comm):
    """Just before the call of MPI, which waits for all."""
    if comm.rank == 1:
        process = comm.transport.process
        process.blocking = lambda *args: (
            os.kill(os.getpid(), signal.SIGSTOP) or type(process).blocking(process, *args)
        )
    comm.split(0, comm.rank)


def ring_of_receives(comm):
    comm.recv((comm.rank + 1) % comm.size)


def receive_from_itself(comm):
    if comm.rank == 1:
        comm.recv(1)
    comm.barrier()


def other_tag(comm):
    if comm.rank == 0:
        comm.send(np.ones(2), 1, tag=5)
    if comm.rank == 1:
        comm.recv(0, tag=6)
    comm.barrier()


def no_backward_on_rank_1(comm):
    y = F.allreduce(comm, mnpar.Variable(np.ones(3)))
    if comm.rank != 1:
        F.sum(y).backward()
    comm.barrier()


def forgotten_backward(comm):
    x = mnpar.Variable(np.ones(3))
    if comm.rank == 1:
        F.sum(F.recv(comm, rank=0)).backward()
    else:
        F.send(x, comm, rank=1)


def forgotten_backward_without_a_gradient(comm):
    x = mnpar.Variable(np.ones(3))
    if comm.rank == 1:
        F.recv(comm, rank=0)
        mnpar.backward()
    else:
        F.send(x, comm, rank=1)


def other_collectives(comm):
    if comm.rank == 1:
        comm.bcast(np.ones(3))
    else:
        comm.allreduce(np.ones(3))


def other_time(comm):
    F.sum(F.iallreduce(comm, np.ones(3)) if comm.rank else F.allreduce(comm, np.ones(3)))


def unused_result(comm):
    with mnpar.no_backprop_mode():
        y = F.iallreduce(comm, np.full(100_000, 2.0))
    if comm.rank == 1:
        assert y.array.sum() == 400_000
    print("is done")


def other_dtype(comm):
    comm.allreduce(np.ones(3, np.float64 if comm.rank else np.float32))


def other_shape(comm):
    comm.allreduce(np.ones(1000 + comm.rank))


def other_reduction(comm):
    comm.allreduce(np.ones(3), "max" if comm.rank else "sum")


def other_root(comm):
    comm.bcast(np.ones(3), root=comm.rank)


def other_order(comm):
    w = np.ones((2, 3))
    b = np.ones(2)
    for gradient in (w, b) if comm.rank == 0 else (b, w):
        comm.allreduce(gradient)


def skipped_collective(comm):
    if comm.rank != 1:
        comm.allreduce(np.ones(3))
    print(comm.bcast(np.ones(3)), flush=True)


def object_for_an_array(comm):
    if comm.rank == 0:
        comm.send_obj("text", 1)
    if comm.rank == 1:
        comm.recv(0)
    comm.barrier()


def slow_rank(comm):
    if comm.rank == 0:
        time.sleep(2.5)
    comm.barrier()
    print(f"rank {comm.rank} is done", flush=True)


def slow_ranks_in_turn(comm):
    """Longer than the patience in all, but always somebody works."""
    for turn in range(comm.size):
        if comm.rank == turn:
            time.sleep(2.5)
        comm.bcast(np.ones(2), turn)
    print(f"rank {comm.rank} is done", flush=True)


def slow_rank_after_an_uneven_split(comm):
    """Ranks that have made different communicators before still know that they meet in this one."""
    comm.split(None if comm.rank == 2 else 0, comm.rank)
    again = comm.split(0, comm.rank)
    if comm.rank == 0:
        time.sleep(2.5)
    again.barrier()
    print(f"rank {comm.rank} is done", flush=True)


def forgotten_communicator(comm):
    """What a communicator has sent stays in memory until it has arrived, even when nobody refers to
    it any more.
    """
    if comm.rank == 0:
        comm.split(0, 0).send(np.arange(500_000.0), 1)
        del comm
        gc.collect()
        for _ in range(20):
            np.full(500_000, -1.0)
    else:
        group = comm.split(0, 1)
        time.sleep(0.3)
        np.testing.assert_array_equal(group.recv(0), np.arange(500_000.0))
    print("done", flush=True)


def unreceived(comm):
    if comm.rank == 0:
        comm.send(np.ones((2, 3), np.float32), 1, tag=5)
    comm.barrier()


def unreceived_from_itself(comm):
    comm.send(np.ones(3), comm.rank)


def waits(comm):
    """For Ctrl-C and SIGTERM: one rank receives, one computes, one sleeps."""
    comm.barrier()
    print("ready", flush=True)
    if comm.rank == 0:
        comm.recv(1)
    elif comm.rank == 1:
        while True:
            pass
    time.sleep(60)


def waits_in_collectives(comm):
    """For Ctrl-C: in an allreduce, in the gradient of one, in numpy."""
    groups = comm.split(min(comm.rank, 1), comm.rank)
    y = F.allreduce(groups, mnpar.Variable(np.ones(3)))
    print("ready", flush=True)
    if comm.rank == 0:
        comm.allreduce(np.ones(3))
    elif comm.rank == 1:
        F.sum(y).backward()
    while True:
        np.ones((500, 500)) @ np.ones((500, 500))


def head_on_sends(comm):
    """1 B to 64 MB each way, both sending first."""
    for size in (1, 2**13, 2**20, 2**26):
        comm.send(np.full(size, comm.rank, np.uint8), 1 - comm.rank)
        assert (comm.recv(1 - comm.rank) == 1 - comm.rank).sum() == size
    print("done", flush=True)


def refuses(error, function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except error:
        return
    raise AssertionError(f"{function} took {args} {kwargs}")


def calls_without_meaning(comm):
    x = np.ones(3)
    for rank in (2, -2, 1.5, None):
        refuses(ValueError, comm.send, x, rank)
        refuses(ValueError, comm.recv, rank)
        refuses(ValueError, comm.bcast, x, rank)
        refuses(ValueError, F.send, x, comm, rank)
    for tag in (-2, 2**40, "5"):
        refuses(ValueError, comm.send, x, 0, tag)
        refuses(ValueError, comm.recv, 0, tag)
    refuses(ValueError, comm.allreduce, x, "median")
    comm.barrier()
    print("done", flush=True)


def splits_without_meaning(comm):
    for color in (-1, 0.5, "red", 2**40):
        refuses(ValueError, comm.split, color, 0)
    refuses(ValueError, comm.split, 0, None)
    assert comm.split(None, 0) is None
    mine = comm.split(comm.rank, 0)
    assert (mine.rank, mine.size) == (0, 1)
    some = comm.split(0 if comm.rank else None, 0)
    assert (some is None) is (comm.rank == 0)
    mine.finalize()
    refuses(ValueError, mine.barrier)
    refuses(ValueError, mine.split, 0, 0)
    comm.barrier()
    print("done", flush=True)


def all_sorts_of_arrays(comm):
    base = np.arange(24.0).reshape(2, 3, 4)
    read_only = base.copy()
    read_only.setflags(write=False)
    arrays = [
        base[:, 1, :],
        np.asfortranarray(base),
        base[::-1],
        np.ones((0, 3)),
        np.array(2.5),
        base.astype(">f4"),
        read_only,
        base > 3,
        base.astype(np.float16),
        base.astype(np.int8),
        base * 1j,
    ]
    for x in arrays:
        comm.send(x, 1 - comm.rank)
        y = comm.recv(1 - comm.rank)
        assert (y.dtype, y.shape) == (x.dtype, x.shape)
        np.testing.assert_array_equal(y, x)
        np.testing.assert_array_equal(comm.allgather(x)[1], x)
        if x.dtype != bool:
            assert comm.allreduce(x).shape == x.shape
    refuses(TypeError, comm.send, np.array([object()]), 0)
    refuses(Exception, comm.allreduce, np.array([object()]))  # TypeError, and on all ranks
    comm.barrier()
    print("done", flush=True)


def changed_after_send(comm):
    x = mnpar.Variable(np.full(100_000, 1.0))
    F.send(x, comm, 1 - comm.rank)
    x.array[...] = -1
    np.testing.assert_array_equal(F.recv(comm, 1 - comm.rank).array, np.ones(100_000))
    print("done", flush=True)


def dropped_delegate(comm):
    """A sender that has no loss and forgets its delegate variable."""
    x = mnpar.Variable(np.ones(3))
    if comm.rank == 0:
        F.send(x, comm, 1)
        mnpar.backward()
        np.testing.assert_array_equal(x.grad, np.full(3, 2.0))
    else:
        F.sum(F.recv(comm, 0) * 2).backward()
    print("done", flush=True)


def slow_steps(comm):
    """500 steps in which one rank takes 50 ms and the others nothing."""
    for _ in range(500):
        if comm.rank == 1:
            time.sleep(0.05)
        comm.allreduce(np.ones(3))
    print("done", flush=True)


def loads_in_processes(comm):
    """This script has mpi4py loaded when it is imported; its children must not take themselves for
    ranks.
    """
    with tempfile.TemporaryDirectory() as folder:
        # Open MPI leaves folders of those who are no ranks, and files
        os.environ["TMPDIR"] = folder
        for method in ("fork", "forkserver", "spawn"):
            with multiprocessing.get_context(method).Pool(1) as pool:
                assert pool.map(abs, range(-3, 3)) == [3, 2, 1, 0, 1, 2]
                began = [pool._pool[0].pid, forkserver._forkserver._forkserver_pid or 0]
                files = [file for pid in began for file in cleanup.segments(pid)]
            cleanup.remove(
                files
                # of processes that load mpi4py and end, as multiprocessing's do, without
                # MPI_Finalize
            )
            comm.barrier()
        child = (
            "from mpi4py import MPI; print(MPI.COMM_WORLD.Get_size(), "
            "open('/proc/self/maps').read())"
        )
        done = subprocess.run(
            [sys.executable, "-c", child], capture_output=True, text=True, check=True
        )
        size, *words = done.stdout.split()
        assert size == "1"
        cleanup.remove([word for word in set(words) if word.startswith("/dev/shm/sm_segment.")])
    print("done", flush=True)


def forks(comm):
    """A child is no rank: neither its exit, nor its error, nor its os._exit is the rank's."""
    for end in (lambda: sys.exit(3), lambda: os._exit(4), lambda: 1 / 0):
        if os.fork() == 0:
            end()
        assert os.waitstatus_to_exitcode(os.wait()[1]) in (3, 4, 1)
    comm.barrier()
    print("done", flush=True)


def refusal(call):
    """The text of the error with which a call is refused."""
    try:
        call()
    except mnpar.errors.CommunicatorError as error:
        return str(error)
    raise AssertionError(f"{call} was not refused")


def forks_that_communicate(comm):
    """A child is told that it is no rank, whatever it calls, and the rank goes on."""
    y = F.sum(F.allreduce(comm, mnpar.Variable(np.ones(3))))
    calls = (
        lambda: comm.send(np.ones(3), 0),
        lambda: comm.recv(0),
        comm.barrier,
        lambda: comm.split(0, 0),
        lambda: F.allreduce(comm, mnpar.Variable(np.ones(3))),
        y.backward,
        mnpar.create_communicator,
    )
    for call in calls:
        if os.fork() == 0:
            text = refusal(call)
            assert "multiprocessing.get_context('spawn')" in text, text
            assert "faults/programs.py:" in text, text
            os._exit(3)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 3
    y.backward()
    comm.barrier()
    print("done", flush=True)


def two_threads(comm):
    """A call while another thread waits is refused, and what that waits for still comes."""
    if comm.rank == 1:
        comm.send(comm.recv(0), 0)
    else:
        received = []
        thread = threading.Thread(target=lambda: received.append(comm.recv(1)))
        thread.start()
        while not comm.transport.in_use:
            time.sleep(0.001)
        for call in (comm.barrier, lambda: comm.allreduce(np.ones(3)), lambda: comm.recv(1)):
            text = refusal(call)
            assert len(set(re.findall(r"faults/programs\.py:\d+", text))) == 2, text
            assert "queue.Queue" in text, text
        comm.send(np.ones(3), 1)
        thread.join()
        assert received[0].sum() == 3
    comm.barrier()
    print("done", flush=True)


def two_threads_wait_for_operations(comm):
    """As two calls, two waits of operations are, and a wait and a call."""
    if comm.rank == 1:
        comm.recv(0)
        comm.send(np.ones(3), 0)
        comm.send(np.ones(3), 0, 1)
    else:
        operations, received = [comm.irecv(1), comm.irecv(1, 1)], []
        thread = threading.Thread(target=lambda: received.append(operations[0].wait()))
        thread.start()
        while not comm.transport.in_use:
            time.sleep(0.001)
        for call in (operations[1].wait, operations[1].test, comm.barrier):
            text = refusal(call)
            assert len(set(re.findall(r"faults/programs\.py:\d+", text))) == 2, text
            assert "queue.Queue" in text, text
        comm.send(np.ones(3), 1)
        thread.join()
        assert received[0].sum() == operations[1].wait().sum() == 3
    comm.barrier()
    print("done", flush=True)


def file_by_the_receiver(comm):
    """Messages whose sends have returned arrive while their sender does not communicate: more of
    them than MPI has room for.
    """
    for size in (1, 4096, 16_384):
        path = Path(tempfile.gettempdir(), f"received-{size}")
        if comm.rank == 0:
            for number in range(300):
                comm.send(np.full(size, number, np.float32), 1)
            while not path.exists():
                sum(range(1000))
            comm.barrier()
            path.unlink()
        else:
            for number in range(300):
                assert (comm.recv(0) == number).all()
            path.touch()
            comm.barrier()
    print("done", flush=True)


def error_on_two(comm):
    comm.barrier()
    if comm.rank:
        raise ValueError("boom")
    comm.barrier()


def late_error_on_two(comm):
    """As on a busy machine, the lower rank fails when the higher has spoken already."""
    comm.barrier()
    if comm.rank:
        time.sleep(0.85 if comm.rank == 1 else 0)
        raise ValueError("boom")
    comm.barrier()


def another_communicator(comm):
    other = comm.split(0, comm.rank)
    if comm.rank == 0:
        other.send(np.ones(3), 1, 4)
        comm.recv(1)
    else:
        comm.recv(0, 4)


def forks_where_mpi4py_was_first(comm):
    """This script has mpi4py loaded when it is imported, which would end MPI in each child, too."""
    forks(comm)


def alone_it_forks_where_mpi4py_was_first(comm):
    """A rank alone has none of the hooks by which the others tell how they end."""
    alone, codes = mnpar.create_communicator("mpi"), []

    def as_its_child():
        if os.fork() == 0:
            try:
                sys.exit(6)
            except SystemExit:  # and nothing else
                sys.exit(5)
        sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))

    ends = (
        lambda: sys.exit(3),
        lambda: os._exit(4),
        lambda: 1 / 0,
        lambda: sys.exit("no number"),
        sys.exit,
        as_its_child,
    )
    for end in ends:
        if os.fork() == 0:
            end()
        codes.append(os.waitstatus_to_exitcode(os.wait()[1]))
    assert codes == [3, 4, 1, 1, 0, 5], codes
    alone.barrier()
    print("done", flush=True)


def trainer_of(comm, extension, **kwargs):
    """A data-parallel trainer that goes on for ever, with an extension and an evaluator."""
    model = mnpar.links.Classifier(mnpar.links.Linear(4, 2))
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(), comm).setup(model)
    data = [(np.ones(4, "f"), 0)] * 8
    updater = mnpar.training.StandardUpdater(mnpar.iterators.SerialIterator(data, 4), optimizer)
    # nothing is written there
    trainer = mnpar.training.Trainer(updater, None, os.path.dirname(__file__))
    batches = mnpar.iterators.SerialIterator(data, 4, repeat=False)
    evaluator = mnpar.training.extensions.Evaluator(batches, model)
    trainer.extend(mnpar.create_multi_node_evaluator(evaluator, comm))
    trainer.extend(extension, **kwargs)
    return trainer


def error_in_training(comm):
    @mnpar.training.make_extension(
        trigger=(5, "iteration"), finalizer=lambda: print("finalized", flush=True)
    )
    def fail(trainer):
        if comm.rank == 1:
            raise ValueError("boom")

    trainer_of(comm, fail).run()


def trains(comm):
    """For Ctrl-C: in updates and evaluations."""

    @mnpar.training.make_extension(trigger=(5, "iteration"))
    def say(trainer):
        if trainer.updater.iteration == 5:
            print("ready", flush=True)

    trainer_of(comm, say).run()


def alone(comm):
    """Open MPI would leave the file of a rank alone."""
    mnpar.create_communicator("mpi").barrier()
    print(cleanup.segments(), flush=True)


def fine(comm):
    y = F.allreduce(comm, mnpar.Variable(np.ones(3)))
    F.sum(y).backward()
    print(f"rank {comm.rank} is done", flush=True)


def boom():
    raise ValueError("boom")


def error_in_a_thread_that_nobody_reads():
    exit.LAST_WORDS = 1.0
    sys.stderr = os.fdopen(os.pipe()[1], "w")
    threading.Thread(target=lambda: (_ for _ in ()).throw(ValueError("boom" * 2**16))).start()
    time.sleep(30)


AT_THE_START = {  # what rank 1 does when the others make a communicator already
    "start_error": boom,
    "start_error_where_mpi4py_was_first": boom,
    "start_error_in_a_thread_that_nobody_reads": error_in_a_thread_that_nobody_reads,
    "start_exit_0_where_mpi4py_was_first": lambda: sys.exit(0),
    "start_exit_0": lambda: sys.exit(0),
    "start_exit_0_early": lambda: sys.exit(0),
    "start_exit_3": lambda: sys.exit(3),
    "start_os_exit_0": lambda: os._exit(0),
    "start_waits": lambda: time.sleep(30),
}


def start(name):
    print("ready", flush=True)
    if name == "start_nowhere":
        return
    if name == "start_late":
        time.sleep(1)
    elif launched_rank() == 1:
        AT_THE_START[name]()
    if name == "start_exit_0_early":
        left = Path(tempfile.gettempdir(), "left")
        while not left.exists():
            time.sleep(0.01)
        left.unlink()
    mnpar.create_communicator().barrier()


if __name__ == "__main__":
    # where the tests run in the background it is ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.argv[1].startswith("start_"):
        start(sys.argv[1])
        sys.exit()
    globals()[sys.argv[1]](mnpar.create_communicator())
