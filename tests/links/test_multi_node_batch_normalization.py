"""Batch normalization over ranks is that of one process with all samples: outputs, running values,
gradients of two orders.
"""

import copy

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L

# name: samples of each rank (as many as there are ranks are taken), the rest of the shape, gamma's
# shape, axis
FORMS = {
    "equal batches": ((2, 2, 2, 2), (3,), (3,), None),
    "unequal images": ((1, 3, 2, 4), (3, 2, 2), (3,), None),
    "an empty batch": ((2, 0, 3, 1), (3, 4), (3,), None),
    "one batch alone": ((0, 4, 0, 0), (2,), (2,), None),
    "gamma of two axes": ((3, 1, 0, 2), (3, 2), (3, 2), None),
    "last axis": ((1, 2, 2, 1), (2, 3), (3,), (0, 1)),
    "axes apart": ((2, 1, 1, 3), (3, 2, 2), (3, 2), (0, 2)),
}
every_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def data(form, size, mean=0.0):
    counts, rest, gamma, _ = form
    rng = np.random.default_rng(size)
    xs = [mean + rng.standard_normal((n, *rest)) for n in counts[:size]]
    return (
        xs,
        [rng.standard_normal(x.shape) for x in xs],
        rng.standard_normal(gamma) + 2,
        rng.standard_normal(gamma),
    )


def link(form, gamma, beta, comm=None, **kwargs):
    options = {
        "dtype": "d",
        "initial_gamma": gamma,
        "initial_beta": beta,
        "axis": form[3],
        **kwargs,
    }
    return (
        L.BatchNormalization(form[2], **options)
        if comm is None
        else L.MultiNodeBatchNormalization(form[2], comm, **options)
    )


def work(bn, x, w):
    """Output, gradients of first order, and of second order: those of the sum of the squares of the
    first.
    """
    x = mnpar.Variable(x)
    y = bn(x)
    gs = mnpar.grad([F.sum(y * y * w)], [x, bn.gamma, bn.beta], enable_double_backprop=True)
    mnpar.backward([F.sum(gs[0] * gs[0] * (w + 1))])
    return [y.array, *[g.array for g in gs], x.grad, bn.gamma.grad, bn.avg_mean, bn.avg_var]


def check(comm, form, mean=0.0, rtol=1e-10, atol=1e-10):
    xs, ws, gamma, beta = data(form, comm.size, mean)
    mine = work(link(form, gamma, beta, comm), xs[comm.rank], ws[comm.rank])
    serial = work(link(form, gamma, beta), np.concatenate(xs), np.concatenate(ws))
    start = sum(len(x) for x in xs[: comm.rank])
    piece = slice(start, start + len(xs[comm.rank]))
    cut = [serial[0][piece], serial[1][piece], *serial[2:4], serial[4][piece], *serial[5:]]
    for i in (2, 3, 5):  # gradients of gamma and beta: the shares of all ranks
        mine[i] = comm.allreduce(mine[i])
    for i, (a, b) in enumerate(zip(mine, cut, strict=True)):
        np.testing.assert_allclose(a, b, rtol, atol, err_msg=str(i))


@every_form
def test_it_equals_one_process_with_all_samples(form):
    for ranks in (1, 2, 3, 4):
        mnpar.run(lambda comm: check(comm, form), ranks=ranks)


@pytest.mark.ranks(2, 3)
def test_it_equals_one_process_between_processes_too(comm):
    for form in FORMS.values():
        check(comm, form)


def test_running_values_change_once_where_ranks_forget_and_compute_again():
    def program(comm, forget):
        x = mnpar.Variable(np.array([[1.0], [5.0 * comm.rank]]))
        bn = L.MultiNodeBatchNormalization(1, comm, dtype="d")
        F.sum((F.forget(bn, x, comm=comm) if forget else bn(x)) ** 3).backward()
        return bn.avg_mean.item(), bn.avg_var.item(), x.grad.tolist(), bn.gamma.grad.item()

    assert mnpar.run(program, ranks=2, args=(True,)) == mnpar.run(program, ranks=2, args=(False,))


def test_no_samples_on_any_rank_give_no_outputs_and_change_nothing():
    def program(comm):
        bn = L.MultiNodeBatchNormalization(3, comm)
        x = mnpar.Variable(np.zeros((0, 3), "f4"))
        y = bn(x)
        F.sum(y).backward()
        return y.shape, bn.gamma.grad.tolist(), bn.avg_mean.tolist(), bn.avg_var.tolist()

    assert mnpar.run(program, ranks=2) == [((0, 3), [0, 0, 0], [0, 0, 0], [1, 1, 1])] * 2


def test_one_sample_in_all_is_normalized_to_beta():
    def program(comm):
        bn = L.MultiNodeBatchNormalization(2, comm, initial_beta=5)
        return bn(np.ones((int(comm.rank == 1), 2), "f4")).array.tolist(), bn.avg_var.tolist()

    assert mnpar.run(program, ranks=2) == [
        ([], pytest.approx([0.9, 0.9])),
        ([[5, 5]], pytest.approx([0.9, 0.9])),
    ]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_a_mean_of_a_million_costs_no_digits(dtype):
    rng = np.random.default_rng(0)
    xs = [(1e6 + rng.standard_normal((n, 2, 50)) + n).astype(dtype) for n in (30, 7)]
    whole = np.concatenate(xs).astype("d") - 1e6
    centred = whole - whole.mean(axis=(0, 2), keepdims=True)
    normal = centred / np.sqrt((centred**2).mean(axis=(0, 2), keepdims=True) + 2e-5)
    ys = mnpar.run(
        lambda comm: L.MultiNodeBatchNormalization(2, comm)(xs[comm.rank]).array, ranks=2
    )
    assert ys[0].dtype == dtype
    np.testing.assert_allclose(np.concatenate(ys), normal, rtol=2e-6, atol=2e-6)


def test_halves_are_computed_in_float32():
    rng = np.random.default_rng(0)
    xs = [(100 + rng.standard_normal((40, 3))).astype("f2") for _ in range(2)]
    whole = np.concatenate(xs).astype("d")
    ys = mnpar.run(
        lambda comm: L.MultiNodeBatchNormalization(3, comm)(xs[comm.rank]).array, ranks=2
    )
    assert ys[1].dtype == np.float16
    normal = (whole - whole.mean(axis=0)) / np.sqrt(whole.var(axis=0) + 2e-5)
    np.testing.assert_allclose(np.concatenate(ys), normal, rtol=1e-3, atol=1e-3)


def test_evaluation_uses_the_running_values_and_speaks_to_nobody():
    def program(comm):
        bn = L.MultiNodeBatchNormalization(2, comm, initial_avg_mean=1.0)
        if comm.rank == 0:
            with mnpar.using_config("train", False):
                return bn(np.ones((1, 2), "f4")).array.tolist()
        return None

    assert mnpar.run(program, ranks=2) == [[[0, 0]], None]


def test_finetuning_averages_over_batches_without_gamma_and_beta():
    def program(comm):
        bn = L.MultiNodeBatchNormalization(1, comm, dtype="d", use_gamma=False, use_beta=False)
        bn.start_finetuning()
        for value in (0.0, 6.0):
            bn(np.full((1, 1), value + comm.rank), finetune=True)
        return bn.N, float(bn.avg_mean[0]), float(bn.avg_var[0]), list(bn.params())

    assert mnpar.run(program, ranks=2) == [(2, 3.5, 0.5, [])] * 2


def test_the_backend_must_exist():
    comm = mnpar.create_communicator("self")
    for make in (L.MultiNodeBatchNormalization, L.create_mnbn_model):
        first = 3 if make is L.MultiNodeBatchNormalization else L.Linear(1)
        with pytest.raises(ValueError, match="'auto', 'mpi' or 'nccl', not 'gloo'"):
            make(first, comm, communication_backend="gloo")
        with pytest.raises(ValueError, match="needs a communicator of NCCL"):
            make(first, comm, communication_backend="nccl")


class Net(mnpar.Chain):
    def __init__(self):
        super().__init__()
        self.l1 = L.Linear(3, 4)
        self.bn = L.BatchNormalization(
            4, decay=0.5, eps=0.1, use_beta=False, initial_avg_mean=np.arange(4.0)
        )
        self.rest = mnpar.Sequential(
            F.relu, mnpar.ChainList(L.BatchNormalization(axis=(0,)), self.bn), lambda x: x
        )
        self.same = self.bn

    def forward(self, x):
        return self.bn(self.l1(x))


def kinds(model):
    return [type(link).__name__ for link in model.links()]


def test_a_whole_model_gets_the_twins_and_stays_as_it_was():
    comm = mnpar.create_communicator("self")
    model = Net()
    before = kinds(model)
    other = L.create_mnbn_model(model, comm)
    assert kinds(model) == before
    assert kinds(other) == [name.replace("BatchN", "MultiNodeBatchN") for name in before]
    assert [path for path, _ in other.namedparams()] == [path for path, _ in model.namedparams()]
    assert other.bn is other.same is other.rest[1][1]
    assert (other.bn.decay, other.bn.eps, other.bn.axis, other.bn.beta, other.bn.comm) == (
        0.5,
        0.1,
        None,
        None,
        comm,
    )
    assert (other.bn.name, other.rest[1][0].axis, other.rest[0]) == ("bn", (0,), F.relu)
    np.testing.assert_array_equal(other.bn.avg_mean, model.bn.avg_mean)
    for p, q in zip(model.params(), other.params(), strict=True):
        assert p is not q
        assert p.array is None or not np.shares_memory(p.array, q.array)
    again = L.create_mnbn_model(other, comm)
    assert again.bn.comm is comm
    assert again.bn is not other.bn


@pytest.mark.parametrize(
    "make",
    [
        lambda: L.BatchNormalization(3),
        lambda: mnpar.Sequential(F.relu, L.BatchNormalization(3), F.tanh),
        lambda: mnpar.ChainList(L.BatchNormalization(3)),
        lambda: L.Linear(3, 3),
    ],
    ids=["link", "Sequential", "ChainList", "without"],
)
def test_containers_keep_their_form(make):
    model = make()
    other = L.create_mnbn_model(model, mnpar.create_communicator("self"), "mpi")
    assert kinds(other) == [name.replace("BatchN", "MultiNodeBatchN") for name in kinds(model)]
    if isinstance(model, mnpar.Sequential):
        assert [other[0], other[2]] == [F.relu, F.tanh]


def test_a_model_of_twins_learns_as_one_process_does():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((6, 3))
    w = rng.standard_normal((6, 4))
    with mnpar.using_config("dtype", np.dtype("d")):
        model = Net()
    F.sum(model(mnpar.Variable(x)) * w).backward()
    pieces = [slice(0, 1), slice(1, 6)]

    def program(comm):
        other = L.create_mnbn_model(mnpar.Sequential(model).copy("copy"), comm)[0]
        other.cleargrads()
        piece = pieces[comm.rank]
        F.sum(other(mnpar.Variable(x[piece])) * w[piece]).backward()
        return [comm.allreduce(p.grad) for p in (other.l1.W, other.l1.b, other.bn.gamma)]

    for results in mnpar.run(program, ranks=2):
        for g, p in zip(results, (model.l1.W, model.l1.b, model.bn.gamma), strict=True):
            np.testing.assert_allclose(g, p.grad, rtol=1e-10, atol=1e-10)


def test_copies_share_the_communicator():
    comm = mnpar.create_communicator("self")
    bn = L.MultiNodeBatchNormalization(2, comm)
    for other in (copy.deepcopy(bn), bn.copy("copy"), bn.copy("share"), bn.copy("init")):
        assert other.comm is comm
        assert other.gamma is not bn.gamma
    assert copy.deepcopy(bn).avg_mean is not bn.avg_mean
