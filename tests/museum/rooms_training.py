"""Training that changes nothing, or something else than was meant."""

import copy
import io
import tempfile
from pathlib import Path

import numpy as np
from mnpar.optimizer_hooks import GradientClipping

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.training.extensions import LogReport, PrintReport
from tests.museum.room import Hall

hall = Hall("Training that does something else")

LIST = "a mistake of programs on any system"


@hall.room(
    "Loss scaling that one rank decides",
    "mnpar, an earlier version",
    "one rank overflows alone, scales part, and gradients that cross ranks are wrong by 16 to 64 "
    "times",
)
def overflow_on_one_rank(comm):
    layers = {
        "one": lambda: L.Linear(2, 3, initialW=np.ones((3, 2))),
        "two": lambda: L.Classifier(
            L.Linear(3, 2, initialW=np.arange(6.0).reshape(2, 3))
        ),
    }
    model = mnpar.Pipeline.of(comm, layers, micro_batches=2)
    optimizer = mnpar.optimizers.SGD(0.1).setup(model)
    optimizer.loss_scaling()
    for i in range(4):
        x = np.array([[1.0, 2.0], [3.0, 4.0]]) * (np.inf if i == 1 else 1)
        with np.errstate(all="ignore"):
            optimizer.update(model, x, np.array([0, 1]))
    own = sum([float((p.array**3).sum()) for p in model.params()])
    return round(float(comm.allreduce(np.array(own))), 9)


@hall.room(
    "Clipping by the norm of a stage",
    "pytorch/torchtitan#596, NVIDIA-NeMo/Automodel#3817",
    "each rank clips by the norm of what it has, if nobody tells it of the others",
)
def clipping_without_a_communicator(comm):
    layers = {
        "one": lambda: L.Linear(2, 3, initialW=np.ones((3, 2))),
        "two": lambda: L.Classifier(
            L.Linear(3, 2, initialW=np.arange(6.0).reshape(2, 3))
        ),
    }
    model = mnpar.Pipeline.of(comm, layers, micro_batches=2)
    optimizer = mnpar.optimizers.SGD(1.0).setup(model)
    optimizer.add_hook(GradientClipping(0.1))
    optimizer.update(model, np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([0, 1]))
    own = sum([float((p.grad**2).sum()) for p in model.params()])
    return round(np.sqrt(float(comm.allreduce(np.array(own)))), 6)


@hall.room(
    "Layers in a list of lists",
    LIST,
    "layers that are not registered are never trained",
    error="have gradients, but no optimizer updates them",
)
def layers_in_a_list_of_lists(comm):
    model = mnpar.Chain(head=L.Linear(1, 1))
    model.layers = [[L.Linear(1, 1)]]
    optimizer = mnpar.optimizers.SGD(0.1).setup(model)
    optimizer.update(
        lambda: F.sum(model.head(model.layers[0][0](np.ones((1, 1), "f4"))))
    )


@hall.room(
    "A layer in a closure",
    "chainer/chainer (by reading: a Chain finds attributes alone)",
    "a layer that only a function knows is never trained",
    ranks=1,
    error="in no link of the Linear that is trained, but in a closure",
)
def layer_in_a_closure(comm):
    model, hidden = L.Linear(3, 1), L.Linear(1, 3)
    optimizer = mnpar.optimizers.SGD(0.1).setup(model)
    optimizer.update(lambda x: F.sum(model(F.relu(hidden(x)))), np.ones((1, 1), "f4"))


@hall.room(
    "A weight that is an array",
    LIST,
    "the layer has an array for a weight, and learns nothing",
    error="W of Linear is a Parameter, and would not be trained",
)
def weight_that_is_an_array(comm):
    model = mnpar.Chain(l1=L.Linear(1, 1), l2=L.Linear(1, 1))
    model.l1.W = np.ones((1, 1), "f4")
    optimizer = mnpar.optimizers.SGD(0.1).setup(model)
    optimizer.update(lambda: F.sum(model.l2(model.l1(np.ones((1, 1), "f4")))))


@hall.room(
    "A loss function without return",
    LIST,
    "58 updates, and nothing changed",
    error="the loss function returned None, so no parameter of the Linear is trained",
)
def loss_function_without_return(comm):
    model = L.Linear(1, 1)
    optimizer = mnpar.optimizers.SGD(0.1).setup(model)

    def loss():
        F.sum(model(np.ones((1, 1), "f4")))

    for _ in range(3):
        optimizer.update(loss)


@hall.room(
    "A loss of another model",
    LIST,
    "the optimizer has a copy of the model that is trained: no parameter gets a gradient",
    ranks=1,
    error="the loss does not depend on the model that the optimizer was set up for",
)
def loss_of_another_model(comm):
    model = L.Linear(1, 1)
    optimizer = mnpar.optimizers.SGD(0.1).setup(model.copy())
    optimizer.update(lambda: F.sum(model(np.ones((1, 1), "f4"))))


@hall.room(
    "A setting of another name",
    LIST,
    "the setting is made, and nobody reads it",
    ranks=1,
    error="mnpar.config has no setting 'trian': did you mean 'train'?",
)
def setting_of_another_name(comm):
    config = mnpar.config
    config.trian = False


@hall.room(
    "A column that nothing reports",
    "Chainer 7.8 (PrintReport)",
    "the column stays empty",
    ranks=1,
    error="PrintReport: nothing has reported 'main/los'",
)
def column_that_nothing_reports(comm):
    model = L.Linear(1, 1)
    optimizer = mnpar.optimizers.SGD(0.1).setup(model)
    data = mnpar.datasets.TupleDataset(np.ones((4, 1), "f4"))
    iterator = mnpar.iterators.SerialIterator(data, 2)
    updater = mnpar.training.StandardUpdater(
        iterator, optimizer, loss_func=lambda x: F.sum(model(x))
    )
    trainer = mnpar.training.Trainer(updater, (2, "iteration"))
    trainer.extend(LogReport(trigger=(1, "iteration"), filename=None))
    trainer.extend(PrintReport(["main/los"], out=io.StringIO()))
    trainer.run()


@hall.room(
    "NaN that spreads",
    "a mistake of programs on any system",
    "one rank's samples make all parameters NaN on all ranks, and nothing says whose they were",
    error="the losses of ranks [1] are NaN or infinite, those of ranks [0] are not",
)
def nan_on_one_rank(comm):
    model = L.Linear(1, 1, initialW=np.ones((1, 1)))
    optimizer = mnpar.create_multi_node_optimizer(
        mnpar.optimizers.SGD(0.1), comm
    ).setup(model)
    x = np.full((1, 1), np.nan if comm.rank == 1 else 1.0)
    optimizer.update(lambda x: F.mean(model(x) ** 2), x)


@hall.room(
    "A part of the loss in the report",
    "mnpar, an earlier version",
    "a Trainer shows the loss of one block of the image as the loss: 0.000513 for 0.001933",
    error="is on each of 2 ranks that of the rank's part",
)
def part_of_the_loss_in_the_report(comm):
    mnpar.random.seed(0)
    grid = mnpar.SpatialGrid(comm, (comm.size, 1))
    model = mnpar.Chain(layer=L.Convolution2D(1, 1, 3, pad=1))
    x = grid.cut(np.arange(16.0).reshape(1, 1, 4, 4))
    with mnpar.Reporter():
        mnpar.report({"loss": F.mean(model.layer(x).part ** 2)})


@hall.room(
    "A learning rate of another name",
    LIST,
    "the attribute is set, and nobody reads it",
    error="has no attribute 'learning_rate', which nothing would read",
)
def learning_rate_of_another_name(comm):
    optimizer = mnpar.optimizers.SGD().setup(L.Linear(1, 1))
    optimizer.learning_rate = 0.3


@hall.room(
    "A learning rate that is no number",
    LIST,
    "weights become NaN at the first step",
    error="lr must be a number in [0, inf), not nan",
)
def learning_rate_that_is_no_number(comm):
    mnpar.optimizers.SGD(lr=float("nan")).setup(L.Linear(1, 1))


@hall.room(
    "An axis that nobody knows",
    LIST,
    "a mesh has the axis `pip`, and the pipeline runs along `pipe`, which has one rank",
    error="did you mean 'pipe'",
)
def axis_that_nobody_knows(comm):
    mnpar.Mesh(comm, data=1, pip=2)


@hall.room(
    "An evaluation that counts samples twice",
    "ChainerMN (scattered data sets repeat samples to be of one length)",
    "the mean counts what is repeated: 2.0 for 1.2",
)
def evaluation_over_repeated_samples(comm):
    data = mnpar.scatter_dataset([(np.float32(i),) for i in range(5)], comm)
    iterator = mnpar.iterators.SerialIterator(data, 2, repeat=False, shuffle=False)
    model = mnpar.Chain()
    model.forward = lambda x: mnpar.report({"loss": F.mean(x).array}, model)
    evaluator = mnpar.training.extensions.Evaluator(iterator, model)
    evaluator = mnpar.create_multi_node_evaluator(evaluator, comm)
    return evaluator()["main/loss"]


@hall.room(
    "A batch in a list",
    "mnpar, an earlier version",
    "a list of arrays counts as so many samples as it has arrays, on every rank",
    error="say so: samples=",
)
def batch_in_a_list(comm):
    x = np.arange(1.0, 6.0)[comm.rank :: comm.size, None]
    model = L.Linear(1, 1, nobias=True, initialW=np.ones((1, 1)))
    optimizer = mnpar.create_multi_node_optimizer(
        mnpar.optimizers.SGD(0.1), comm
    ).setup(model)
    optimizer.update(lambda batch: F.mean(model(batch[0]) ** 2), [x, x])


@hall.room(
    "A forward around the wrapper",
    "jingyaogong/minimind#853",
    "the loss goes through `.module`: gradients are never reduced, and only rank 0 is saved",
    error="call the DistributedDataParallel, and not its module",
)
def forward_around_the_wrapper(comm):
    model = mnpar.DistributedDataParallel(
        L.Linear(1, 1, initialW=np.ones((1, 1))), comm
    )
    optimizer = mnpar.optimizers.SGD(0.1).setup(model)
    model(np.ones((1, 1)))
    for _ in range(3):
        model.cleargrads()
        F.mean(model.module(np.full((1, 1), comm.rank + 1.0)) ** 2).backward()
        optimizer.update()


@hall.room(
    "Two models in another order",
    "mnpar, an earlier version",
    "values and gradients of two models are swapped",
    error="the ranks call different models, each in a DistributedDataParallel",
)
def two_models_in_another_order(comm):
    a = mnpar.DistributedDataParallel(L.Linear(1, 2), comm)
    b = mnpar.DistributedDataParallel(L.Linear(1, 2), comm)
    x = np.ones((1, 1))
    for model in (a, b) if comm.rank else (b, a):
        F.sum(model(x)).backward()


@hall.room(
    "Two copies of a model in another order",
    "mnpar, an earlier version",
    "values of two models of one form are swapped: nothing says when a copy was made",
    error="made after 1 of those named before",
)
def two_copies_in_another_order(comm):
    a = L.Linear(1, 2)
    b = copy.deepcopy(a)
    for model in (a, b) if comm.rank else (b, a):
        mnpar.parallel.broadcast_model(model, comm)


@hall.room(
    "An array that changes between forward and backward",
    "Chainer 7.8 (measured with its functions, in debug mode, too)",
    "functions keep references to arrays: the gradient is that at the changed values, [4, 6] for "
    "[2, 4]",
    ranks=1,
    error="input 0 of",
)
def array_that_changes_before_backward(comm):
    x = mnpar.Variable(np.array([1.0, 2.0]))
    with mnpar.using_config("debug", True):
        y = F.sum(x * x)
        x.array += 1
        y.backward()
    return x.grad


@hall.room(
    "Backward of a joint loss on each rank",
    "ChainerMN 7.8 (by reading: its tutorial of averaging ensembles)",
    "each rank calls backward on the one loss of the averaged output, and all gradients are P "
    "times too large",
    error="counts 2 times",
)
def backward_of_a_joint_loss_on_each_rank(comm):
    member = L.Linear(1, 2, initialW=np.full((2, 1), comm.rank + 1.0))
    optimizer = mnpar.optimizers.SGD(0.1).setup(member)
    x, t = np.ones((3, 1)), np.array([0, 1, 1])
    ys = F.allgather(comm, member(x))
    optimizer.update(lambda: F.softmax_cross_entropy(sum(ys) / comm.size, t))


@hall.room(
    "A joint loss that is half of a square",
    "mnpar, whose warning of a joint loss it escapes on two ranks",
    "as above: gradients are twice too large",
    checked="a loss that all ranks hold counts P times",
    impossible="0.5 may be the half of a square, or the division by comm.size of the remedy: one "
    "program text with one meaning on two ranks. On three it is told.",
)
def joint_loss_that_is_half_of_a_square(comm):
    model = mnpar.Link()
    model.w = mnpar.Parameter(np.array([1.1, 2.3]))
    optimizer = mnpar.optimizers.SGD(0.1).setup(model)
    mine = np.arange(2) % comm.size == comm.rank  # each rank's part of a common weight
    for _ in range(2):
        y = F.allreduce(comm, F.sum((model.w * np.array([0.7, 0.9]))[mine]))
        model.cleargrads()
        (0.5 * (y - 0.3) ** 2).backward()
        model.w.grad = comm.allreduce(model.w.grad)
        optimizer.update()


@hall.room(
    "A joint loss of absolute errors",
    "mnpar, whose warning of a joint loss it escapes",
    "as above: gradients are P times too large",
    checked="a loss that all ranks hold counts P times",
    impossible="The gradient of each rank's result is 1 or -1. So it is where each rank has labels "
    "of its own, and one gradient for each of them is right: equal signs may be chance.",
)
def joint_loss_of_absolute_errors(comm):
    model = mnpar.Link()
    model.w = mnpar.Parameter(np.array([1.1, 2.3]))
    optimizer = mnpar.optimizers.SGD(0.1).setup(model)
    mine = np.arange(2) % comm.size == comm.rank
    for _ in range(2):
        y = F.allreduce(comm, F.sum((model.w * np.array([0.7, 0.9]))[mine]))
        model.cleargrads()
        abs(y - 0.3).backward()
        model.w.grad = comm.allreduce(model.w.grad)
        optimizer.update()


@hall.room(
    "A joint loss of what went around a ring",
    "mnpar, whose warning of a joint loss it escapes (so it does by alltoall, send and recv)",
    "as above: gradients are P times too large",
    checked="a loss that all ranks hold counts P times",
    impossible="A shift gives each rank another value. A rank whose loss is its own, and takes its "
    "neighbour's value into it, has the same lines, graph and messages, with equal labels the same "
    "numbers too, and its losses add up rightly. allgather says that all have the same; shifts "
    "do not.",
)
def joint_loss_around_a_ring(comm):
    model = mnpar.Link()
    model.w = mnpar.Parameter(np.array([1.1, 2.3]))
    optimizer = mnpar.optimizers.SGD(0.1).setup(model)
    mine = np.arange(2) % comm.size == comm.rank
    for _ in range(2):
        parts = [F.sum((model.w * np.array([0.7, 0.9]))[mine])]
        for _ in range(comm.size - 1):
            parts.append(F.shift(comm, parts[-1]))
        model.cleargrads()
        ((sum(parts) - 0.3) ** 2).backward()
        model.w.grad = comm.allreduce(model.w.grad)
        optimizer.update()


@hall.room(
    "A flipped bit in a file of weights",
    "safetensors 0.8 (measured: 299 of 400 flips load other weights)",
    "the format has no checksum: other weights are loaded",
    ranks=1,
    error="checksum",
)
def flipped_bit_in_a_file(comm):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.safetensors")
        mnpar.serializers.save_safetensors(path, L.Linear(2, 2))
        data = bytearray(path.read_bytes())
        data[-1] ^= 4
        path.write_bytes(data)
        mnpar.serializers.load_safetensors(path, L.Linear(2, 2))
