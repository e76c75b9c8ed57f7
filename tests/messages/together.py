"""Mistakes of several ranks: the message names the ranks, their lines and the remedy.

A line that the text does not name is that of the traceback, in the rank's own program.
"""

import copy
import os
import signal
import sys
import threading
import time

import numpy as np
from mnpar.optimizer_hooks import GradientClipping, WeightDecay

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.errors import (
    CommunicatorError,
    DeadlockError,
    LayoutError,
    MismatchError,
    UnreceivedWarning,
)
from tests.messages.alone import chain, large
from tests.messages.message import Message

X = np.ones((2, 3), "f4")


# ---- messages and collectives ----


def another_communicator(comm):
    other = comm.split(0, comm.rank)
    if comm.rank == 0:
        other.send(np.ones(3), 1, 4)
        comm.recv(1)
    elif comm.rank == 1:
        comm.recv(0, 4)


def collectives_of_two_communicators(comm):
    other = comm.split(0, comm.rank)
    (comm if comm.rank else other).allreduce(np.ones(3))


def another_group(comm):
    pair = comm.split(min(comm.rank, 1), comm.rank)
    if comm.rank == 1:
        pair.send(np.ones(3), 1, 4)
        comm.recv(2, 5)
    elif comm.rank == 2:
        comm.recv(1, 4)


def other_tags(comm):
    if comm.rank == 0:
        comm.send(np.ones(3), 1, 3)
    elif comm.rank == 1:
        comm.recv(0, 4)


def collective_against_receive(comm):
    comm.allreduce(np.ones(3)) if comm.rank else comm.recv(1)


def other_shapes(comm):
    comm.allreduce(np.ones(3 + comm.rank))


def other_operations(comm):
    comm.allreduce(np.ones(3)) if comm.rank else comm.bcast(np.ones(3))


def skipped_collective(comm):
    if comm.rank == 0:
        comm.allreduce(np.ones(3))


def message_that_nobody_takes(comm):
    if comm.rank == 0:
        comm.send(np.ones(3), 1)


def ring_attention(comm):
    x = np.ones((1, 2, 3, 4 + comm.rank), "f4")
    F.ring_attention(comm, x, x, x)


# ---- divided arrays ----

IMAGES = np.ones((2, 2, 9, 13))
FILTERS = np.ones((1, 2, 3, 3))
ROWS = "(2, 2, 9, 13) cut (2, 1) along axes (2, 3)"
SAMPLES = "(2, 2, 9, 13) cut (2, 1) along axes (0, 3)"


def cut(comm, dims=(2, 1), axes=None, images=IMAGES):
    return mnpar.SpatialGrid(comm, dims).cut(images, axes)


def cut_over_two_communicators(comm):
    return cut(comm) + cut(comm.split(0, comm.rank))


def labels_of_another_communicator(comm):
    other = comm.split(0, comm.rank)
    F.softmax_cross_entropy(cut(comm), cut(other, images=np.zeros((2, 9, 13), int)))


def repartitioned_over_another_communicator(comm):
    cut(comm).repartition(mnpar.SpatialGrid(comm.split(0, comm.rank), (2, 1)))


def communicated_on_another_communicator(comm):
    F.allreduce(comm.split(0, comm.rank), cut(comm))


def convolved_over_two_grids(comm):
    parts = [cut(comm, dims) for dims in ((2, 1), (1, 2))]
    F.convolution_2d(parts[comm.rank], FILTERS, pad=1)


def convolved_along_two_axes(comm):
    parts = [cut(comm, axes=axes) for axes in ((0, 3), (2, 3))]
    F.convolution_2d(parts[comm.rank], FILTERS, pad=1)


def summed_along_two_axes(comm):
    parts = [cut(comm, axes=axes) for axes in ((0, 3), (2, 3))]
    F.sum(parts[comm.rank])


def gathered_along_two_axes(comm):
    parts = [cut(comm, axes=axes) for axes in ((0, 3), (2, 3))]
    parts[comm.rank].gather()


def send_divided(comm):
    x = cut(comm)
    F.send(x, comm, rank=1) if comm.rank == 0 else F.recv(comm, rank=0)


def send_divided_array(comm):
    x = cut(comm)
    comm.send(x, 1) if comm.rank == 0 else comm.recv(0)


def send_divided_object(comm):
    x = cut(comm)
    comm.send_obj(x, 1) if comm.rank == 0 else comm.recv_obj(0)


def copied_divided(comm):
    copy.deepcopy(cut(comm))


def written_array(comm):
    cut(comm).array = IMAGES


def written_elements(comm):
    cut(comm)[:1] = 0


def gradient_of_the_whole(comm):
    cut(comm).grad = IMAGES


def grid_of_too_many_parts(comm):
    mnpar.SpatialGrid(comm, (2, 2))


def axes_that_an_array_has_not(comm):
    cut(comm, images=np.ones(5))


def part_of_another_shape(comm):
    mnpar.divided(IMAGES, mnpar.SpatialGrid(comm, (2, 1)), shape=(2, 2, 5, 13))


# ---- backward ----


def forgotten_backward(comm):
    for _ in range(5):
        x = mnpar.Variable(np.ones(3))
        if comm.rank == 0:
            F.send(x, comm, rank=1)
        else:
            F.sum(F.recv(comm, rank=0)).backward()


def another_pass(comm):
    x = mnpar.Variable(np.array([2.0]))
    y = F.sum(F.allreduce(comm, x) ** 2)
    if comm.rank == 1:
        mnpar.grad([y], [x], enable_double_backprop=True)
    y.backward()


def joint_loss(comm):
    member = L.Linear(1, 2)
    optimizer = mnpar.optimizers.SGD(0.1).setup(member)
    ys = F.allgather(comm, member(np.ones((3, 1), "f4")))
    optimizer.update(lambda: F.softmax_cross_entropy(sum(ys) / comm.size, np.array([0, 1, 1])))


def copied_twice(comm):
    w, part = mnpar.Variable(np.ones(2)), mnpar.Variable(np.ones(2) * comm.rank)
    h = F.copy_to(comm, F.tanh(F.copy_to(comm, w)))
    F.sum(F.reduce_from(comm, h * part)).backward()


def summed_twice(comm):
    w = mnpar.Variable(np.ones(2))
    h = F.tanh(F.reduce_from(comm, F.copy_to(comm, w) * (comm.rank + 1)))
    F.sum(F.reduce_from(comm, h * comm.rank)).backward()


# ---- copies of a model ----


def many_names(comm):
    comm.bcast_data(large("ab"[comm.rank]))


def another_order(comm):
    comm.bcast_data(chain("a", *"bc" if comm.rank else "cb"))


def multi_node(comm, model, **options):
    optimizer = mnpar.optimizers.SGD(0.1)
    return mnpar.create_multi_node_optimizer(optimizer, comm, **options).setup(model)


def update_twice(optimizer, x=X):
    for _ in range(2):
        optimizer.update(lambda: F.sum(optimizer.target(x) ** 2))


def narrow_wire(comm):
    update_twice(
        multi_node(comm, L.Linear(3, 2), wire_dtype=np.float16), np.full((2, 3), 1e5, "f4")
    )


def another_learning_rate(comm):
    optimizer = multi_node(comm, L.Linear(3, 2))
    optimizer.lr = 0.1 * (1 + comm.rank)
    update_twice(optimizer)


def another_hook(comm):
    optimizer = multi_node(comm, L.Linear(3, 2))
    if comm.rank:
        optimizer.add_hook(WeightDecay(0.1))
    update_twice(optimizer)


def frozen_on_one_rank(comm):
    optimizer = multi_node(comm, mnpar.ChainList(L.Linear(3, 2)))
    optimizer.target.forward = lambda x: optimizer.target[0](x)
    if comm.rank:
        optimizer.target[0].disable_update()
    update_twice(optimizer)


def ddp(comm, sizes=(3, 2)):
    return mnpar.DistributedDataParallel(L.Linear(*sizes), comm)


def ddp_with_another_learning_rate(comm):
    model = ddp(comm)
    optimizer = mnpar.optimizers.SGD(0.1 * (1 + comm.rank)).setup(model)
    update_twice(optimizer)


def ddp_that_one_rank_does_not_clear(comm):
    model = ddp(comm)
    optimizer = mnpar.optimizers.SGD(0.1).setup(model)
    for _ in range(3):
        if comm.rank != 1:
            model.cleargrads()
        F.sum(model(X)).backward()
        optimizer.update()


def copies_that_drift_before_divided_work(comm):
    mnpar.random.seed(0)
    layer = L.Linear(X.shape[1], 2)
    optimizer = mnpar.optimizers.SGD(0.1).setup(layer)
    for _ in range(2):
        layer.cleargrads()
        part = F.copy_to(comm, F.tanh(layer(X))) * (comm.rank + 1)
        F.sum(F.reduce_from(comm, part)).backward()
        for _ in range(1 + comm.rank):
            optimizer.update()


def copies_that_drift_on_a_grid(comm):
    mnpar.random.seed(0)
    layer = L.Convolution2D(1, 2, ksize=3)
    optimizer = mnpar.optimizers.SGD(0.1).setup(layer)
    grid = mnpar.SpatialGrid(comm, (comm.size, 1))
    for _ in range(2):
        layer.cleargrads()
        F.sum(layer(grid.cut(np.ones((1, 1, 6, 5), "f4")))).backward()
        if comm.rank == 0:
            optimizer.update()


def around_the_wrapper(comm):
    model = ddp(comm)
    optimizer = mnpar.optimizers.SGD(0.1).setup(model)
    model(X)
    for _ in range(3):
        model.cleargrads()
        F.sum(model.module(X * (comm.rank + 1))).backward()
        optimizer.update()


def only_the_module(comm):
    model = ddp(comm)
    optimizer = mnpar.optimizers.SGD(0.1).setup(model)
    optimizer.update(lambda: F.sum(model.module(X * (comm.rank + 1))))


def two_models_in_another_order(comm):
    a, b = ddp(comm), ddp(comm)
    for model in (a, b) if comm.rank else (b, a):
        F.sum(model(X)).backward()


def list_of_arrays(comm):
    model = L.Linear(3, 2)
    x = np.ones((3 + comm.rank, 3), "f4")
    multi_node(comm, model).update(lambda batch: F.mean(model(batch[0]) ** 2), [x, x])


def not_a_number(comm):
    model = L.Linear(3, 2)
    x = X * (np.nan if comm.rank == 1 else 1)
    update_twice(multi_node(comm, model), x)


def update_stages(comm, prepare):
    model = L.Linear(3, 3)
    optimizer = mnpar.optimizers.SGD(0.1).setup(model)
    prepare(optimizer)
    x = X if comm.rank == 0 else F.recv(comm, rank=0)
    y = model(x)
    optimizer.update(lambda: F.sum(y) if comm.rank else F.send(y, comm, rank=1))


def clipping_by_the_norm_of_a_stage(comm):
    update_stages(comm, lambda optimizer: optimizer.add_hook(GradientClipping(0.1)))


def clipping_to_other_norms(comm):
    hook = GradientClipping(0.1 * (1 + comm.rank), comm=comm)
    update_stages(comm, lambda optimizer: optimizer.add_hook(hook))


def loss_scale_of_one_stage(comm):
    update_stages(comm, lambda optimizer: optimizer.set_loss_scale(64 if comm.rank else None))


def records_on_one_rank(comm):
    with mnpar.using_config("enable_backprop", comm.rank == 0):
        F.allreduce(comm, mnpar.Variable(np.ones(3)))


def backward_cut_by_a_receive(comm):
    for _ in range(2):
        if comm.rank == 0:
            F.send(mnpar.Variable(np.ones(3)), comm, rank=1)
            mnpar.backward()
        else:
            F.recv(comm, rank=0)


# ---- processes and threads ----


def fork(call):
    """Return a program in which a fork of rank 1 makes a call, and tells the rank the error."""

    def program(comm):
        if comm.rank != 1:
            return
        end, mine = os.pipe()
        if os.fork() == 0:
            try:
                call(comm)
            except CommunicatorError as error:
                os.write(mine, str(error).encode())
            os._exit(0)
        os.wait()
        os.close(mine)
        with open(end, encoding="utf-8") as file:
            raise CommunicatorError(file.read())

    return program


def two_threads(comm):
    if comm.rank == 0:
        threading.Thread(target=lambda: comm.recv(1), daemon=True).start()
        while not comm.transport.in_use:
            time.sleep(0.001)
        comm.recv(1)
    comm.recv(0)


def one_cause_on_two_ranks(comm):
    raise ValueError("no data in /tmp")


def kill_9(comm):
    comm.barrier()
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.barrier()


def stopped(comm):
    comm.barrier()
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    comm.recv(1 - comm.rank)


def execs(comm):
    comm.barrier()
    if comm.rank == 1:
        os.execv(sys.executable, [sys.executable, "-c", "pass"])
    comm.barrier()


def overflow(comm):
    if comm.rank == 1:
        F.matmul(np.full((3, 3), 3e38, "f4"), np.full((3, 3), 10, "f4"))


FORKED = {
    "send": lambda comm: comm.send(np.ones(3), 0),
    "recv": lambda comm: comm.recv(0),
    "barrier": lambda comm: comm.barrier(),
    "F.allreduce": lambda comm: F.allreduce(comm, mnpar.Variable(np.ones(3))),
}

MESSAGES = {
    "another communicator": Message(
        another_communicator,
        DeadlockError,
        "rank 0: waits in recv from rank 1, tag 0 at LINE, on communicator …\n"
        "  rank 1: waits in recv from rank 0, tag 4 at LINE, on communicator …; a message with "
        "tag 4 "
        "from rank 0 has come, on communicator …, which nobody has received",
        "ranks wait on different communicators: only calls of one and the same meet each other",
        ranks=3,
        on="both",
    ),
    "collectives of two communicators": Message(
        collectives_of_two_communicators,
        DeadlockError,
        "rank 0: waits in allreduce … at LINE, on communicator 1\n  rank 1: waits in allreduce … "
        "at "
        "LINE, on communicator 0",
        "ranks wait on different communicators",
        ranks=3,
    ),
    "another group": Message(
        another_group,
        DeadlockError,
        "rank 2: waits in recv from rank 1, tag 4 at LINE; a message with tag 4 from rank 1 has "
        "come, on the communicator of ranks 1, 2, which nobody has received: send of float64",
        "a receive takes only messages of its own tag, from its own source and on its own "
        "communicator",
        ranks=3,
    ),
    "other tags": Message(
        other_tags,
        DeadlockError,
        "rank 1: waits in recv from rank 0, tag 4 at LINE; a message with tag 3 from rank 0 has "
        "come, which nobody has received",
        "both calls must name the same",
        ranks=2,
        on="both",
    ),
    "other shapes": Message(
        other_shapes,
        MismatchError,
        "ranks reduce values of different dtype or shape:\n"
        "  rank 0: collective …, allreduce (sum) of float64 (3,), at LINE\n"
        "  rank 1: collective …, allreduce (sum) of float64 (4,), at LINE",
        "all ranks give arrays of one dtype and shape",
        ranks=2,
        on="both",
    ),
    "other collectives": Message(
        other_operations,
        MismatchError,
        "ranks are in different collectives:\n  rank 0: collective 0, bcast, root 0 of float64 "
        "(3,), "
        "at LINE\n  rank 1: collective 0, allreduce (sum) of float64 (3,), at LINE",
        "all ranks of a communicator make the same calls in the same order",
        ranks=2,
    ),
    "a collective that one rank skips": Message(
        skipped_collective,
        DeadlockError,
        "rank 0: waits in allreduce (sum) of float64 (3,) at LINE\n  rank 1: has finished",
        "all ranks of a communicator call its collectives: none stands under an if",
        ranks=2,
    ),
    "a collective while another rank receives": Message(
        collective_against_receive,
        DeadlockError,
        "rank 0: waits in recv from rank 1, tag 0 at LINE\n"
        "  rank 1: waits in allreduce (sum) of float64 (3,) at LINE",
        "all ranks of a communicator call its collectives: none stands under an if",
        ranks=2,
        on="both",
    ),
    "a message that nobody takes": Message(
        message_that_nobody_takes,
        UnreceivedWarning,
        "rank 1 never received a message from rank 0, tag 0: send of float64 (3,) at LINE",
        "every send needs a recv on rank 1",
        ranks=2,
        on="both",
    ),
    "ring attention of other widths": Message(
        ring_attention,
        MismatchError,
        "ring_attention at LINE (rank 1): rank 1 has causal=False, no cut, D=5, E=5, … rank 0 "
        "causal=False, no cut, D=4, E=4",
        "all ranks call it with the same, and only T and S may differ",
        ranks=2,
    ),
    "divided arrays of two communicators": Message(
        cut_over_two_communicators,
        LayoutError,
        f"LINE: Add of a divided array, of shape {ROWS}: another input, of shape {ROWS}, is cut "
        "over another communicator (of the same ranks 0, 1)",
        "Make the grids of both on one communicator; x.gather() gives every rank the whole array",
        ranks=2,
        on="both",
    ),
    "labels of another communicator": Message(
        labels_of_another_communicator,
        LayoutError,
        f"LINE: softmax_cross_entropy of a divided array, … another input, of shape {ROWS}, is cut "
        "over another communicator (of the same ranks 0, 1)",
        "Make the grids of both on one communicator",
        ranks=2,
    ),
    "a grid of another communicator": Message(
        repartitioned_over_another_communicator,
        ValueError,
        "LINE: repartition: SpatialGrid((2, 1), … is on another communicator (of the same ranks "
        f"0, 1) than x, of shape {ROWS}, is cut over",
        "Make both grids on one communicator; x.gather() gives every rank the whole array",
        ranks=2,
    ),
    "a divided array in a communication": Message(
        communicated_on_another_communicator,
        LayoutError,
        f"LINE: allreduce of a divided array, of shape {ROWS}: a communication takes the ranks' "
        "own arrays, such as x.part, and it is called on another communicator (of the same ranks "
        "0, 1) than x is cut over",
        "x.gather() gives every rank the whole array",
        ranks=2,
        on="both",
    ),
    "a convolution over two grids": Message(
        convolved_over_two_grids,
        MismatchError,
        "at LINE for an array (2, 2, 9, 13) cut … along axes (2, 3) from rank … for an array "
        "(2, 2, 9, 13) cut … along axes (2, 3) sent float64 … the two ranks have different plans",
        "All ranks of a grid call the same functions, in the same order, of arrays that are cut "
        "alike",
        ranks=2,
        on="both",
    ),
    "a convolution along other axes": Message(
        convolved_along_two_axes,
        DeadlockError,
        f"rank 1: waits in exchange for an array {ROWS} from rank 0 at LINE",
        "All ranks of a grid call the same functions, in the same order, of arrays that are cut "
        "alike",
        ranks=2,
        on="both",
    ),
    "a sum along other axes": Message(
        summed_along_two_axes,
        MismatchError,
        "ranks work on arrays that are cut in different ways:\n  rank 0: collective …, reduce_from "
        f"(sum) of float64 () for an array {SAMPLES}, at LINE\n  rank 1: collective …, reduce_from "
        f"(sum) of float64 () for an array {ROWS}, at LINE",
        "All ranks of a grid call the same functions, in the same order, of arrays that are cut "
        "alike",
        ranks=2,
        on="both",
    ),
    "arrays that are gathered along other axes": Message(
        gathered_along_two_axes,
        MismatchError,
        "ranks work on arrays that are cut in different ways:\n  rank 0: collective …, gather_from "
        f"of float64 (234,) for an array {SAMPLES}, at LINE",
        "All ranks of a grid call the same functions, in the same order, of arrays that are cut "
        "alike",
        ranks=2,
    ),
    "a divided array that is sent": Message(
        send_divided,
        LayoutError,
        f"rank 0, LINE: send of a divided array, of shape {ROWS}: a communication takes the ranks' "
        "own arrays, such as x.part",
        "x.gather() gives every rank the whole array",
        ranks=2,
        on="both",
    ),
    "a divided array that a communicator sends": Message(
        send_divided_array,
        TypeError,
        "a numpy or cupy array is sent here, not DividedVariable",
        "x.part.array is this rank's part, x.gather().array the whole array",
        ranks=2,
    ),
    "a divided array that is sent as an object": Message(
        send_divided_object,
        TypeError,
        f"rank 0, LINE: a divided Variable of shape {ROWS} is not pickled, copied or sent as an "
        "object: other ranks have parts of it",
        "x.gather() is a Variable of the whole array, x.part.array an array",
        ranks=2,
        on="both",
    ),
    "a copy of a divided array": Message(
        copied_divided,
        TypeError,
        f"LINE: a divided Variable of shape {ROWS} is not pickled, copied or sent as an object",
        "x.gather() is a Variable of the whole array, x.part.array an array",
        ranks=2,
    ),
    **{
        name: Message(
            program,
            LayoutError,
            f"LINE: changing the elements of a divided array, of shape {ROWS}: this rank has a "
            "part of them",
            "Functions make new arrays, such as x * mask and F.where(mask, 0, x)",
            ranks=2,
            on=on,
        )
        for name, program, on in (
            ("another array in a divided array", written_array, "both"),
            ("elements of a divided array", written_elements, "threads"),
        )
    },
    "a gradient of the whole of a divided array": Message(
        gradient_of_the_whole,
        ValueError,
        "LINE: an array of shape (2, 2, 9, 13) cannot be the gradient of this rank's part (2, 2, "
        f"…, 13) of an array of shape {ROWS}",
        "give the part's cells, g[x.box.index]",
        ranks=2,
    ),
    "a grid of too many parts": Message(
        grid_of_too_many_parts,
        ValueError,
        "LINE: a SpatialGrid of (2, 2) parts has … one rank for each of its 4 parts: the "
        "communicator has 2",
        "Let the product of dims be at most 2, or start as many ranks as there are parts",
        ranks=2,
        on="both",
    ),
    "a grid of more axes than an array has": Message(
        axes_that_an_array_has_not,
        ValueError,
        "LINE: a grid of (2, 1) parts cuts 2 different axes of an array, in rising order, not the "
        "axes (-1, 0) of an array of shape (5,)",
        "make a grid of as many axes as are cut",
        ranks=2,
    ),
    "a part that is not this rank's": Message(
        part_of_another_shape,
        ValueError,
        "LINE: a part of shape (2, 2, 9, 13) is not its box (2, 2, …, 13) of an array of shape "
        "(2, 2, 5, 13) cut (2, 1) along axes (2, 3)",
        "GridLayout(grid, shape, axes).box says which cells a rank has",
        ranks=2,
    ),
    "a forgotten backward in a loop": Message(
        forgotten_backward,
        UnreceivedWarning,
        "rank 0 never took a gradient from rank 1: gradient of send of float64 (3,) at LINE",
        "every rank that has communicated runs backward: mnpar.backward(), if it has no loss",
        ranks=2,
        on="both",
    ),
    "another pass of backward": Message(
        another_pass,
        MismatchError,
        "rank 0: … not recording, at LINE, in mnpar.backward() at LINE\n  rank 1: … in "
        "mnpar.grad(enable_double_backprop=True) at LINE",
        "a rank without outputs joins by mnpar.grad([], [], enable_double_backprop=True)",
        ranks=2,
        on="both",
    ),
    "backward of a joint loss on each rank": Message(
        joint_loss,
        UserWarning,
        "allgather at LINE: each of 2 ranks starts backward from a loss that is computed from its "
        "result, … so a loss that they have in common counts 2 times",
        "Take gather_from, or divide the loss by comm.size before backward",
        ranks=2,
    ),
    "a value that is copied twice": Message(
        copied_twice,
        MismatchError,
        "copy_to at LINE … computed from what copy_to at LINE gave",
        "let a value pass copy_to once",
        ranks=2,
    ),
    "a value that is summed twice": Message(
        summed_twice,
        MismatchError,
        "reduce_from at LINE … computed from what reduce_from at LINE gave",
        "leave out reduce_from; … let it pass copy_to before",
        ranks=2,
    ),
    "models of 3,000 other names": Message(
        many_names,
        MismatchError,
        "the parameters of ranks 0 and 1 differ: only rank 1 has /b0/w, … and 2992 more, only "
        "rank 0 "
        "has /a0/w, … and 2992 more",
        "All ranks make the same model",
        ranks=2,
    ),
    "parameters in another order": Message(
        another_order,
        MismatchError,
        "the parameters of ranks 0 and 1 differ: number 1 is /b/w on rank 1, /c/w on rank 0",
        "All ranks make the same model, whose attributes are defined in one order",
        ranks=2,
        on="both",
    ),
    "gradients that are too large for the wire": Message(
        narrow_wire,
        OverflowError,
        "gradients of up to … cannot travel as float16, which ends at 6.55e+04",
        "let them travel as float32 or bfloat16, or use optimizer.loss_scaling()",
        ranks=2,
    ),
    "another learning rate": Message(
        another_learning_rate,
        MismatchError,
        "hyperparameters are not the same on all ranks (rank 0's, rank 1's, ...):\n  lr: 0.1, 0.2",
        "set them on all ranks, by what is the same there",
        ranks=2,
    ),
    "a hook on one rank": Message(
        another_hook,
        MismatchError,
        "hyperparameters are not the same on all ranks (rank 0's, rank 1's, ...):\n  hooks: none, "
        "WeightDecay",
        "set them on all ranks",
        ranks=2,
    ),
    "a frozen parameter on one rank": Message(
        frozen_on_one_rank,
        MismatchError,
        "(rank 0's, rank 1's, ...):\n  parameter 0's update: not set, disabled",
        "set them on all ranks",
        ranks=2,
    ),
    "copies that drift": Message(
        ddp_with_another_learning_rate,
        MismatchError,
        "update 2: the values of /W are not the same on ranks [0, 1], copies of each other: … "
        "Rank 0 "
        "changes it by SGDRule (lr 0.1), and rank 1 by SGDRule (lr 0.2)",
        "something is different on these ranks that should not be, such as random numbers, "
        "hyperparameters, hooks",
        ranks=2,
        on="both",
    ),
    "gradients that one copy does not clear": Message(
        ddp_that_one_rank_does_not_clear,
        MismatchError,
        "in the last backward of this DistributedDataParallel, ranks [1] added gradients to those "
        "of the backward before, and ranks [0] had cleared theirs",
        "All ranks call model.cleargrads() equally often, before backward",
        ranks=2,
        on="both",
    ),
    "copies that drift before divided work": Message(
        copies_that_drift_before_divided_work,
        MismatchError,
        "copy_to at LINE: its input, which depends on … is … numbers, … in all, on rank 0 and … on "
        "rank 1 of",
        "let all ranks call cleargrads, backward and update equally often, in one order, with the "
        "same hooks and hyperparameters",
        ranks=2,
        on="both",
    ),
    "copies that drift on a grid": Message(
        copies_that_drift_on_a_grid,
        MismatchError,
        "copy_to at LINE: its input, which depends on W (2, 1, 3, 3), is … numbers, … in all, on "
        "rank 0 and … on rank 1 of",
        "let all ranks call cleargrads, backward and update equally often, in one order, with the "
        "same hooks and hyperparameters",
        ranks=2,
        on="both",
    ),
    "a forward around the wrapper": Message(
        around_the_wrapper,
        UserWarning,
        "rank 0: /b was changed after a backward that found its gradient without a forward of its "
        "DistributedDataParallel, so by this rank's gradient alone",
        "call the DistributedDataParallel, and not its module",
        ranks=2,
    ),
    "a wrapper that is never called": Message(
        only_the_module,
        UserWarning,
        "the parameters in a DistributedDataParallel have gradients, but the "
        "DistributedDataParallel was never called: they are changed by this rank's gradients alone",
        "Call it, and not its module",
        ranks=2,
    ),
    "two models in another order": Message(
        two_models_in_another_order,
        MismatchError,
        "the ranks call different models, each in a DistributedDataParallel:\n  rank 0: "
        "DistributedDataParallel 2, of a Linear with /W (2, 3), /b (2,)\n  rank 1: "
        "DistributedDataParallel 1",
        "call the models, in the same order on all ranks",
        ranks=2,
    ),
    "a batch in a list": Message(
        list_of_arrays,
        ValueError,
        "a loss is weighted by its samples, but this list of 2, the first of shape (4, 3), can be "
        "2 "
        "samples, or 4, with a part of each in each array",
        "give the arrays one by one, update(lossfun, x, t), or in a tuple; if they are 2, say so: "
        "samples=lambda xs: len(xs)",
        ranks=2,
    ),
    "NaN on one rank": Message(
        not_a_number,
        UserWarning,
        "update 1: the losses of ranks [1] are NaN or infinite, those of ranks [0] are not",
        "look at these samples",
        ranks=2,
    ),
    "numbers that overflow": Message(
        overflow,
        RuntimeWarning,
        "LINE: RuntimeWarning: overflow encountered in … on rank 1",
        "by MatMul on rank 1. mnpar.set_debug(True) makes the first NaN or infinity an error",
        ranks=2,
        on="processes",
    ),
    "clipping by the norm of a part": Message(
        clipping_by_the_norm_of_a_stage,
        RuntimeError,
        "GradientClipping does not know which ranks hold the model together: … at LINE",
        "Give it comm=, a communicator of all ranks that have a part of the model",
        ranks=2,
    ),
    "clipping to other norms": Message(
        clipping_to_other_norms,
        MismatchError,
        "call different sums over it (rank 0's, rank 1's, ...): GradientClipping 0.1, "
        "GradientClipping 0.2",
        "All of them have the same hooks, with the same numbers, in the same order",
        ranks=2,
    ),
    "a loss scale of one stage": Message(
        loss_scale_of_one_stage,
        MismatchError,
        "ranks multiply their losses by different scales:\n"
        "  rank 0: waits for the gradient of send at LINE, in mnpar.backward() at LINE\n"
        "  rank 1: has sent it at LINE, in mnpar.backward(loss_scale=64) at LINE",
        "call set_loss_scale() or loss_scaling() alike on all of them",
        ranks=2,
        on="both",
    ),
    "a rank that cuts its graph": Message(
        records_on_one_rank,
        MismatchError,
        "some ranks record for backward and others do not (no_backprop_mode):\n"
        "  rank 0: collective …, allreduce (sum) of float64 (3,), at LINE\n"
        "  rank 1: collective …, allreduce (sum) of float64 (3,), not recording, at LINE",
        "all ranks of a communicator record what they call together, or none does",
        ranks=2,
        on="both",
    ),
    "a backward that one rank leaves out before it receives": Message(
        backward_cut_by_a_receive,
        DeadlockError,
        "rank 0: waits in gradient of send to rank 1 at LINE\n"
        "  rank 1: waits in recv from rank 0, tag 0 at LINE",
        "every rank that has communicated runs backward: mnpar.backward(), if it has no loss",
        ranks=2,
        on="both",
    ),
    "a rank that is stopped": Message(
        stopped,
        DeadlockError,
        "rank 0 waits for ever in recv from rank 1, tag 0 at LINE:\n"
        "  rank 0: waits in recv from rank 1, tag 0 at LINE\n"
        "  rank 1: is stopped at LINE, … s ago, by a signal",
        "to stop one for longer, start the job with more seconds in MNPAR_STALL",
        ranks=2,
        on="processes",
    ),
    **{
        f"a fork that calls {name}": Message(
            fork(call),
            CommunicatorError,
            "rank 1, LINE: this process is a fork of the rank's",
            "processes that multiprocessing.get_context('spawn') starts have nothing of the rank",
            ranks=2,
        )
        for name, call in FORKED.items()
    },
    "a fork that makes a communicator": Message(
        fork(lambda comm: mnpar.create_communicator()),
        CommunicatorError,
        "LINE: this process is a fork of the rank's",
        "processes that multiprocessing.get_context('spawn') starts",
        ranks=2,
    ),
    "two threads on one communicator": Message(
        two_threads,
        CommunicatorError,
        "rank 0 calls recv at LINE while another thread waits at LINE, on one communicator",
        "Let one thread make all calls of communicators; others hand it what to send",
        ranks=2,
        on="processes",
    ),
    "two ranks that fail for one cause": Message(
        one_cause_on_two_ranks,
        ValueError,
        "mnpar: rank 0 of 2 failed, the job ends\nTraceback … line … in one_cause_on_two_ranks…"
        "ValueError: no data in /tmp\nrank 1 failed alike",
        "",
        ranks=2,
        on="processes",
    ),
    "a rank that kill -9 took": Message(
        kill_9,
        SystemExit,
        "mnpar: of 2 ranks, 0, 1 never came to an end: one of them left without a word, … or "
        "was killed, … names the process of that one above (PID): rank 0 was … rank 1 was",
        "",
        ranks=2,
        on="run",
    ),
    "a rank that becomes another program": Message(
        execs,
        SystemExit,
        "mnpar: rank 1 of 2 calls os.exec of … at LINE, which makes it another program",
        "subprocess.run starts one beside the rank",
        ranks=2,
        on="processes",
    ),
}


if __name__ == "__main__":
    MESSAGES[sys.argv[1]].program(mnpar.create_communicator())
