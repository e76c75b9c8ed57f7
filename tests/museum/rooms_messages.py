"""Messages that do not match, or have no gradient."""

import numpy as np

import mnpar
import mnpar.functions as F
from tests.museum.room import Hall

hall = Hall("Messages without a gradient, or with another's")


@hall.room(
    "A send whose gradient is culled",
    "mpi4jax/mpi4jax#77, mpi4jax/mpi4jax#79",
    "send has no output, so reverse mode drops it: only sendrecv and sums have gradients",
    value=[[12.0], [0.0]],
)
def send_without_a_result(comm):
    x = mnpar.Variable(np.array([2.0]))
    if comm.rank == 0:
        F.send(x * 3, comm, rank=1)
        mnpar.backward()
    else:
        F.sum(F.recv(comm, rank=0) * 4).backward()
    return np.zeros(1) if x.grad is None else x.grad


@hall.room(
    "Two sends of one tag",
    "ChainerMN 7.8 (measured with its functions; chainer/chainer#5512)",
    "with equal tags, the documented pattern of two sends gives wrong gradients without an error "
    "in half of the cases, as backward goes by depth",
    value=[[5.0, 7.0], [0.0, 0.0]],
)
def two_sends_of_one_tag(comm):
    a, b = mnpar.Variable(np.array([1.0])), mnpar.Variable(np.array([1.0]))
    if comm.rank == 0:
        F.send(a * 1, comm, rank=1)
        F.send(b * 1, comm, rank=1)
        mnpar.backward()
        return [a.grad.item(), b.grad.item()]
    first = F.recv(comm, rank=0)
    second = F.recv(comm, rank=0)
    F.sum(F.tanh(second * 0) + second * 7 + first * 5).backward()
    return [0.0, 0.0]


@hall.room(
    "A result that nobody uses",
    "mpi4torch (its documentation: JoinDummies), mpi4jax/mpi4jax#77",
    "a receive without a dummy that joins it to the loss: a wrong gradient, or a hang",
    value=[[2.0], [0.0]],
)
def receive_that_is_not_used(comm):
    x = mnpar.Variable(np.array([1.0]))
    if comm.rank == 0:
        F.send(x, comm, rank=1)
        F.sum(x * 2).backward()
        return x.grad
    F.recv(comm, rank=0)
    mnpar.backward()
    return np.zeros(1)


@hall.room(
    "A send of data that need no gradient",
    "chainer/chainermn#214",
    "backward never comes to the send, and the other rank waits for ever",
    value=[[0.0], [3.0]],
)
def send_of_plain_data(comm):
    w = mnpar.Variable(np.array([1.0]))
    if comm.rank == 0:
        F.send(np.array([3.0]), comm, rank=1)
        mnpar.backward()
    else:
        F.sum(w * F.recv(comm, rank=0)).backward()
    return np.zeros(1) if w.grad is None else w.grad


@hall.room(
    "Another shape, another dtype",
    "mpi4py (measured with MPICH and Open MPI): (2, 4) into (4, 2), float32 into float64",
    "the numbers arrive in the order of memory, or as garbage, without an error",
    value=[[8.0], [8.0]],
)
def shapes_and_dtypes_arrive_as_they_left(comm):
    if comm.rank == 0:
        F.send(np.arange(8, dtype="f4").reshape(2, 4), comm, rank=1)
        return np.array([8.0])
    x = F.recv(comm, rank=0)
    assert (x.shape, x.dtype) == ((2, 4), np.float32)
    return np.array([x.array[1, 3] + 1.0])


@hall.room(
    "A sum of different dtypes",
    "mpi4py (measured): Allreduce of float32 and int32",
    "each rank has another wrong sum",
    error="ranks reduce values of different dtype or shape",
)
def sum_of_different_dtypes(comm):
    comm.allreduce(np.ones(2, "f4" if comm.rank else "i4"))


@hall.room(
    "A sum here, a maximum there",
    "mpi4py (measured): Allreduce with SUM and MAX",
    "the result depends on the algorithm",
    error="ranks are in different collectives",
)
def sum_and_maximum(comm):
    comm.allreduce(np.ones(2), "sum" if comm.rank else "max")


@hall.room(
    "Broadcasts from different roots",
    "mpi4py (measured): Bcast with different roots",
    "MPICH and Open MPI give different results; large ones hang",
    error="ranks are in different collectives",
)
def broadcasts_from_different_roots(comm):
    F.bcast(comm, mnpar.Variable(np.ones(2)), root=comm.rank)


@hall.room(
    "A collective that one rank skips",
    "mpi4py (measured): one rank skips an Allreduce",
    "its next call is paired with the old one of the others: sums of other things",
    error="ranks reduce values of different dtype or shape",
)
def collective_that_one_rank_skips(comm):
    if comm.rank:
        comm.allreduce(np.ones(2))  # a count
    comm.allreduce(np.zeros(3))  # a gradient


@hall.room(
    "Two sums in another order",
    "mpi4py (measured): two Allreduces in different order on ranks",
    "sums of A with B",
    error="ranks reduce values of different dtype or shape",
)
def sums_in_another_order(comm):
    a, b = np.ones(2), np.ones(3)
    for x in (a, b) if comm.rank else (b, a):
        comm.allreduce(x)


@hall.room(
    "Two sums of one shape in another order",
    "mpi4py (measured): two Allreduces in different order on ranks",
    "sums of A with B",
    checked="the gradient of /b that the step uses in pass 1 is wrong",
    impossible="The two messages are alike in everything that a rank can know of another: "
    "operation, shape, dtype and source line. Ranks may sum the k-th of their own things, whatever "
    "these are.",
)
def sums_of_one_shape_in_another_order(comm):
    model = mnpar.Link()
    model.a, model.b = mnpar.Parameter(np.ones(2)), mnpar.Parameter(np.full(2, 3.0))
    optimizer = mnpar.optimizers.SGD(0.1).setup(model)
    share = (comm.rank + 1) / (comm.size * (comm.size + 1) / 2)
    model.cleargrads()
    F.sum((model.a**3 + model.b**2) * share).backward()
    params = [model.a, model.b]
    for param in params[::-1] if comm.rank else params:
        param.grad = comm.allreduce(param.grad)
    optimizer.update()


@hall.room(
    "A message that nobody takes",
    "MPI (measured): Isend, and the end of the program",
    "the program ends with 0",
    error="rank 1 never received a message from rank 0",
)
def message_that_nobody_takes(comm):
    if comm.rank == 0:
        comm.send(np.ones(2), 1)


@hall.room(
    "A halo without a gradient",
    "ChainerMNX (by reading: its halo exchange drops the gradients of halos)",
    "gradients of cells at the borders of blocks lack their neighbours' part",
    ranks=3,
    value=[[2.0, 3.0], [3.0, 3.0], [3.0, 2.0]],
)
def gradient_of_a_halo(comm):
    x = mnpar.Variable(np.ones((1, 1, 2, 1)))
    grid = mnpar.SpatialGrid(comm, (comm.size, 1))
    block = F.halo_exchange(x, grid, (2 * comm.size, 1), (3, 1), 1, (1, 0))
    F.sum(block[:, :, :-2] + block[:, :, 1:-1] + block[:, :, 2:]).backward()
    return x.grad.ravel()


@hall.room(
    "Passes of backward that do not match",
    "mnpar, an earlier version",
    "rank 0 got 13.5 where -27 is right, as it did not take part in the second derivative",
    error="some ranks record this backward and others do not",
)
def second_derivatives_on_one_rank(comm):
    x = mnpar.Variable(np.array([3.0]))
    y = F.allreduce(comm, x**2) ** 2
    if comm.rank == 1:
        (g,) = mnpar.grad([y], [x], enable_double_backprop=True)
        F.sum(g).backward()
    else:
        F.sum(y).backward()


@hall.room(
    "A backward that one rank forgets",
    "mpi4torch (its documentation: JoinDummies), ChainerMN 7.8",
    "the rank that sent goes on without a gradient, and the job ends with 0",
    error="every rank that has communicated runs backward",
)
def backward_that_one_rank_forgets(comm):
    x = mnpar.Variable(np.ones(1))
    if comm.rank == 0:
        F.send(x, comm, rank=1)
    else:
        F.sum(F.recv(comm, rank=0)).backward()


@hall.room(
    "Messages that nobody counts",
    "mnpar, an earlier version",
    "the traffic of sends and receives is 0, so a program looks as if it sent nothing",
    value=[[1, 32], [1, 16]],
)
def messages_that_are_counted(comm):
    comm.send(np.ones(4 if comm.rank == 0 else 2), 1 - comm.rank)
    comm.recv(1 - comm.rank)
    return [comm.traffic.messages, comm.traffic.bytes]
