"""What ChainerMN's own tests ask of it, asked of mnpar more strictly: outputs and gradients equal
those of one process.

ChainerMN's tests mostly ask that nothing hangs. Their 24 groups of behaviour, and where each is
tested:

   1  send and recv in a ring, tuples           here; communicators/test_contract.py (tuples, lists
   and dicts … arrive) 2  dtypes, numbers without axes              communicators/test_contract.py
   (every dtype and shape …, reductions of numbers) 3  arrays that are not contiguous
   communicators/test_contract.py (every layout in memory …, goes through …) 4  bcast_data, with a
   lazy parameter         here (models get rank 0's values …) 5  mean gradients, some missing, mixed
   here (gradients become their means …, that are not there) 6  debug mode, NaN
   here (debug mode tells …) 7  objects with tags and status; options
   communicators/test_contract.py (objects are sent … with their status), here 8  large objects in
   pieces                   here: any size, and the pieces' length does not matter 9  ranks on their
   nodes                      communicators/test_contract.py (a communicator knows its place)
  10  collective functions                      here by their shapes; functions/test_derivatives.py
                                                (adjoint, first and second derivatives);
                                                functions/test_communication.py (some of the outputs
                                                only)
  11  a chain over all ranks                    functions/test_communication.py (a chain over all
  ranks …) 12  retained inputs, tuples, raw arrays       here (what goes round …) 13  pseudo_connect
  here, with the pattern that ChainerMN documents in all its 12 cases 14  chain lists
  parallel/test_multi_node_chain_list.py; here for many steps of training 15  n-step recurrent
  networks                 links/test_recurrent.py (eight kinds); here whole models that are trained
  16  multi-node batch normalization            links/test_multi_node_batch_normalization.py; here
  four ways to normalize 17  scattered data sets and indices           datasets/test_scatter.py 18
  empty data sets                           datasets/test_data_sets.py 19  multi-node and
  synchronized iterators     iterators/test_multi_node_iterator.py,
  iterators/test_synchronized_iterator.py 20  optimizers                                here;
  parallel/test_data_parallel.py, with double buffering and later links 21  evaluators
  extensions/test_multi_node_evaluator.py 22  persistents, observations, early stopping
  extensions/test_observations_of_ranks.py 23  snapshots, checkpointers
  extensions/test_multi_node_snapshots.py, checkpoint/test_checkpointer.py,
                                                checkpoint/test_trainer.py (goes on bit for bit),
                                                checkpoint/test_background.py
  24  a digit recognizer, data parallel         here
"""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L

EVERY = pytest.mark.ranks(1, 2, 3, 4)


def values(shape, *seed):
    return np.random.default_rng(seed).standard_normal(shape)


def same(found, expected, **kwargs):
    np.testing.assert_allclose(found, expected, **{"rtol": 1e-11, "atol": 1e-13, **kwargs})


# ---- point to point ----


@pytest.mark.grid
@EVERY
@pytest.mark.parametrize("shape", [(7,), (2, 3), (2, 3, 4), (2, 1, 3, 2)], ids=str)
@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_ring_of_arrays_and_tuples_hands_each_rank_its_neighbours_values_and_gradients(
    comm, shape, count
):
    """``count`` 0 is an array, otherwise a tuple of so many."""
    up = (comm.rank + 1) % comm.size
    down = (comm.rank - 1) % comm.size
    xs = [mnpar.Variable(np.full(shape, comm.rank + 10.0 * i)) for i in range(count or 1)]
    F.send(tuple(xs) if count else xs[0], comm, up)
    ys = F.recv(comm, down)
    ys = ys if count else (ys,)
    assert len(ys) == len(xs)
    for i, y in enumerate(ys):
        np.testing.assert_array_equal(y.array, np.full(shape, down + 10.0 * i))
    mnpar.backward([F.sum(y * y) * (comm.rank + 1) for y in ys])
    for x in xs:
        same(x.grad, 2 * x.array * (up + 1))


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("form", ["array", "tuple of one", "tuple of two", "raw array"])
def test_what_goes_round_through_all_ranks_comes_back_with_its_gradient(comm, form):
    """Rank 0 sends, every other rank works on it and hands it on, rank 0 has the loss and still its
    input.
    """
    weights = [values((5, 5), 1, rank) for rank in range(comm.size)]
    w = mnpar.Variable(weights[comm.rank])
    x = values((4, 5), 2)
    several = form.startswith("tuple")
    if comm.rank == 0:
        leaf = x if form == "raw array" else mnpar.Variable(x)
        h = leaf if form == "raw array" else F.tanh(leaf @ w)
        phi = F.send((h, h * 2)[: 1 + (form == "tuple of two")] if several else h, comm, 1)
        y = F.recv(comm, comm.size - 1, delegate_variable=phi, force_tuple=several)
        F.sum((y[0] if several else y) ** 2).backward()
    else:
        h = F.recv(comm, comm.rank - 1, force_tuple=several)
        y = F.tanh((h[0] + h[-1] if several else h) @ w)
        F.send((y,) if several else y, comm, (comm.rank + 1) % comm.size).backward()

    one = mnpar.Variable(x)
    ws = [mnpar.Variable(weight) for weight in weights]
    h = one if form == "raw array" else F.tanh(one @ ws[0])
    for rank in range(1, comm.size):
        twice = (
            {"tuple of two": 3.0, "tuple of one": 2.0}.get(form, 1.0)
            if rank == 1
            else 2.0
            if several
            else 1.0
        )
        h = F.tanh((h * twice) @ ws[rank])
    F.sum(h**2).backward()
    if form != "raw array" or comm.rank:
        same(w.grad, ws[comm.rank].grad)
    if comm.rank == 0 and form != "raw array":
        same(leaf.grad, one.grad)


# ---- collective functions, on the shapes of ChainerMN's tests ----

COLLECTIVES = {
    # what each rank puts in (None on the others), what it calls, and what each rank gets, by the
    # inputs of all
    "allgather": (
        lambda rank, size: [(10, rank + 1)],
        lambda comm, xs: F.allgather(comm, xs[0]),
        lambda all_xs, rank: [xs[0] for xs in all_xs],
    ),
    "alltoall, some of them empty": (
        lambda rank, size: [(rank, i) for i in range(size)],
        lambda comm, xs: F.alltoall(comm, xs),
        lambda all_xs, rank: [xs[rank] for xs in all_xs],
    ),
    "bcast": (
        lambda rank, size: [(100, 100)] if rank == 0 else [],
        lambda comm, xs: (F.bcast(comm, xs[0] if xs else None),),
        lambda all_xs, rank: [all_xs[0][0]],
    ),
    "gather": (
        lambda rank, size: [(rank + 1, rank + 1)],
        lambda comm, xs: F.gather(comm, xs[0], 0) if comm.rank == 0 else [F.gather(comm, xs[0], 0)],
        lambda all_xs, rank: [xs[0] for xs in all_xs] if rank == 0 else [],
    ),
    "scatter": (
        lambda rank, size: [(i + 1, i + 1) for i in range(size)] if rank == 0 else [],
        lambda comm, xs: (F.scatter(comm, xs if xs else None, 0),),
        lambda all_xs, rank: [all_xs[0][rank]],
    ),
}


@pytest.mark.grid
@EVERY
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_collective_function_has_the_values_and_gradients_of_one_process(comm, name, dtype):
    shapes, call, expected = COLLECTIVES[name]
    everybodys = [
        [values(s, rank, i).astype(dtype) for i, s in enumerate(shapes(rank, comm.size))]
        for rank in range(comm.size)
    ]
    mine = [mnpar.Variable(x) for x in everybodys[comm.rank]]
    ys = call(comm, mine)
    truth = [[mnpar.Variable(x) for x in xs] for xs in everybodys]
    wanted = [expected(truth, rank) for rank in range(comm.size)]
    for y, z in zip(ys, wanted[comm.rank], strict=False):
        np.testing.assert_array_equal(y.array, z.array)
        assert y.dtype == dtype
    if wanted[comm.rank]:
        mnpar.backward([F.sum(y * y) * (comm.rank + i + 1) for i, y in enumerate(ys)])
    else:
        ys[0].backward()  # the delegate variable of a rank that gets nothing
    mnpar.backward(
        [F.sum(z * z) * (rank + i + 1) for rank, zs in enumerate(wanted) for i, z in enumerate(zs)]
    )
    for x, z in zip(mine, truth[comm.rank], strict=True):
        same(x.grad, z.grad, **({} if dtype == "f8" else {"rtol": 1e-2 if dtype == "f2" else 1e-5}))


@pytest.mark.parametrize("length", [0, 10, 1024, 355_678])
@pytest.mark.ranks(2, 3)
def test_an_object_of_any_size_is_broadcast_whatever_the_buffers_length(comm, length):
    thing = {"text": "x" * length, "numbers": list(range(length % 1000))}
    for max_buf_len in (1, 7, 2378, 2**31 - 2, 2**31 - 1):
        assert comm.bcast_obj(thing if comm.rank == 0 else None, max_buf_len) == thing


# ---- pseudo_connect ----


@pytest.mark.grid
@EVERY
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("shapes", [[(4, 5), (3, 2)], [(3, 2)], [()]], ids=str)
@pytest.mark.parametrize("delegate", ["of another shape", "without axes", "a send's", "none"])
def test_pseudo_connect_is_the_identity_of_its_actual_variables(comm, delegate, shapes, dtype):
    xs = [mnpar.Variable(values(shape, 3, i).astype(dtype)) for i, shape in enumerate(shapes)]
    w = mnpar.Variable(np.ones(()))
    if delegate == "a send's":
        F.send(w * 2, comm, (comm.rank + 1) % comm.size)
        phi = F.send(w * 3, comm, (comm.rank + 1) % comm.size)
        for _ in range(2):
            F.recv(comm, (comm.rank - 1) % comm.size)  # that nobody uses
    else:
        phi = {"of another shape": w * np.ones((3, 2)), "without axes": w * 2, "none": None}[
            delegate
        ]
    ys = F.pseudo_connect(phi, *xs)
    assert isinstance(ys, tuple)
    for x, y in zip(xs, ys, strict=True):
        np.testing.assert_array_equal(y.array, x.array)
        assert y.dtype == dtype
    mnpar.backward([F.sum(y * y) for y in ys])
    for x in xs:
        same(x.grad, 2 * x.array, rtol=1e-3 if dtype == "f2" else 1e-6)


SENDERS = {"the first is deeper": (3, 0), "the second is deeper": (0, 3)}
RECEIVERS = {
    "uses both alike": lambda a, b: a * b,
    "uses the first deeper": lambda a, b: F.tanh(F.tanh(F.tanh(a))) * b,
    "uses the second deeper": lambda a, b: a * F.tanh(F.tanh(F.tanh(b))),
}
PATTERNS = ("documented", "unpacked", "seeded", "threaded", "chained")


def deep(x, depth):
    for _ in range(depth):
        x = F.tanh(x * x)
    return x


@pytest.mark.ranks(2)
@pytest.mark.parametrize("tags", [(0, 0), (1, 2)], ids=["one tag", "two tags"])
@pytest.mark.parametrize("sender", SENDERS)
@pytest.mark.parametrize("receiver", RECEIVERS)
def test_two_sends_joined_by_pseudo_connect_have_the_gradients_of_one_process(
    comm, receiver, sender, tags
):
    """``psi = pseudo_connect(phi1, phi2)`` as ChainerMN documents it, where none of these 12 cases
    works; and its cures.
    """
    one1, one2 = (mnpar.Variable(values(4, seed)) for seed in (1, 2))
    F.sum(
        RECEIVERS[receiver](deep(one1, SENDERS[sender][0]), deep(one2, SENDERS[sender][1]))
    ).backward()
    for pattern in PATTERNS:
        x1, x2 = (mnpar.Variable(values(4, seed)) for seed in (1, 2))
        if comm.rank == 1:
            z1 = F.recv(comm, 0, tag=tags[0])
            z2 = F.recv(
                comm, 0, delegate_variable=z1 if pattern == "chained" else None, tag=tags[1]
            )
            F.sum(RECEIVERS[receiver](z1, z2)).backward()
            continue
        z1 = deep(x1, SENDERS[sender][0])
        z2 = deep(x2, SENDERS[sender][1])
        phi1 = F.send(z1, comm, 1, tags[0])
        if pattern == "threaded":
            (z2,) = F.pseudo_connect(phi1, z2)
        phi2 = psi = F.send(z2, comm, 1, tags[1])
        if pattern in ("documented", "unpacked", "seeded"):
            psi = F.pseudo_connect(phi1, phi2)  # a tuple: it has a backward all the same
        if pattern in ("unpacked", "seeded"):
            (psi,) = psi
        if pattern == "seeded":
            psi.grad = np.zeros_like(psi.array)
        psi.backward()
        same(x1.grad, one1.grad, err_msg=pattern)
        same(x2.grad, one2.grad, err_msg=pattern)


# ---- chain lists ----


def layer(name):
    link = L.Linear(4, 4)
    link.W.array[...] = values((4, 4), *name.encode())
    return link


class Sum(mnpar.Chain):
    """A layer on the sum of what comes."""

    def __init__(self, name):
        super().__init__()
        self.inner = layer(name)

    def forward(self, *xs):
        total = xs[0]
        for x in xs[1:]:
            total = total + x
        return F.tanh(self.inner(total))


@pytest.mark.ranks(2, 3)
def test_a_chain_list_that_is_trained_stays_the_composed_model(comm):
    """A cycle over all ranks, in which rank 0 also hands its first value to itself; ten steps of
    SGD.
    """
    names = [f"part {rank}" for rank in range(comm.size)]
    model = mnpar.MultiNodeChainList(comm)
    if comm.rank == 0:
        model.add_link(Sum(names[0]), None, [1, 0])
        model.add_link(Sum("last"), [comm.size - 1, 0], None)
    else:
        model.add_link(Sum(names[comm.rank]), comm.rank - 1, (comm.rank + 1) % comm.size)
    parts = [Sum(name) for name in [*names, "last"]]
    serial = mnpar.ChainList(*parts)
    ours = mnpar.optimizers.SGD(0.1).setup(model)
    theirs = mnpar.optimizers.SGD(0.1).setup(serial)
    for step in range(10):
        x = values((3, 4), 7, step).astype("f4")
        t = values((3, 4), 8, step).astype("f4")
        first = parts[0](x)
        h = first
        for part in parts[1:-1]:
            h = part(h)
        loss = F.mean_squared_error(parts[-1](h, first), t)
        serial.cleargrads()
        loss.backward()
        theirs.update()
        model.cleargrads()
        y = model(x) if comm.rank == 0 else model()
        if comm.rank == 0:
            mine = F.mean_squared_error(y, t)
            same(mine.array, loss.array, rtol=1e-4)
            mine.backward()
        else:
            mnpar.backward()
        ours.update()
    pairs = (
        [(model[0], parts[0]), (model[1], parts[-1])]
        if comm.rank == 0
        else [(model[0], parts[comm.rank])]
    )
    for found, wanted in pairs:
        same(found.inner.W.array, wanted.inner.W.array, rtol=1e-3, atol=1e-5)
        same(found.inner.b.array, wanted.inner.b.array, rtol=1e-3, atol=1e-5)


# ---- recurrent networks over ranks ----


class Tagger(mnpar.Chain):
    """Words, a recurrent layer, and a tag for each word."""

    def __init__(self, kind, words, width):
        super().__init__()
        self.embed = L.EmbedID(words, width)
        self.rnn = kind(1, width, 4, 0.0)
        self.tag = L.Linear(4, 3)

    def loss(self, results, sentences):
        return sum(
            F.softmax_cross_entropy(self.tag(y), words % 3)
            for y, words in zip(results, sentences, strict=True)
        )


@pytest.mark.grid
@pytest.mark.parametrize(
    "widths", [(3, 3, 3), (2, 5, 3)], ids=["all alike", "each rank its own words and width"]
)
@pytest.mark.parametrize("kind", [L.NStepLSTM, L.NStepGRU, L.NStepRNNTanh])
@pytest.mark.ranks(2, 3)
def test_recurrent_models_in_a_row_of_ranks_train_as_one_model(comm, kind, widths):
    """Each rank goes on with the states of the rank before it, and has a loss of its own; three
    steps of SGD.
    """
    with mnpar.using_config("dtype", np.dtype("d")):
        models = [Tagger(kind, 6 + width, width) for width in widths[: comm.size]]
    for path, p in mnpar.ChainList(*models).namedparams():
        p.array[...] = values(p.shape, *path.encode())
    rng = np.random.default_rng(3)
    sentences = [[rng.integers(0, 6, n) for n in (4, 2, 1)] for _ in models]
    serial = [model.copy(mode="copy") for model in models]
    mine, me = models[comm.rank], comm.rank
    ends = me - 1 if me else None, me + 1 if me + 1 < comm.size else None
    rnn = L.create_multi_node_n_step_rnn(mine.rnn, comm, *ends)
    whole = mnpar.ChainList(*serial)
    ours = mnpar.optimizers.SGD(0.1).setup(mine)
    theirs = mnpar.optimizers.SGD(0.1).setup(whole)
    for _ in range(3):
        states, losses = [None] * mine.rnn.n_cells, []
        for model, words in zip(serial, sentences, strict=True):
            *states, ys = model.rnn(*states, [model.embed(word) for word in words])
            losses.append(model.loss(ys, words))
        whole.cleargrads()
        mnpar.backward(losses)
        *_, ys, _ = rnn([mine.embed(word) for word in sentences[me]])
        loss = mine.loss(ys, sentences[me])
        same(loss.array, losses[me].array)
        mine.cleargrads()
        loss.backward()
        for p, q in zip(mine.params(), serial[me].params(), strict=True):
            same(p.grad, q.grad)
        ours.update()
        theirs.update()


# ---- batch normalization over ranks ----


class Net(mnpar.Chain):
    def __init__(self):
        super().__init__()
        self.l1 = L.Linear(3, 4)
        self.bn1 = L.BatchNormalization(4)
        self.l2 = L.Linear(4, 2)
        self.bn2 = L.BatchNormalization(2)

    def forward(self, x):
        return self.bn2(self.l2(F.relu(self.bn1(self.l1(x)))))


class Listed(mnpar.ChainList):
    def forward(self, x):
        return self[3](self[2](F.relu(self[1](self[0](x)))))


NETS = {
    "chain": Net,
    "chain list": lambda: Listed(
        L.Linear(3, 4), L.BatchNormalization(4), L.Linear(4, 2), L.BatchNormalization(2)
    ),
    "sequential": lambda: mnpar.Sequential(
        L.Linear(3, 4), L.BatchNormalization(4), F.relu, L.Linear(4, 2), L.BatchNormalization(2)
    ),
}


def gradients_of(model, x, t, samples):
    """Of this rank's share in the mean squared error of all samples."""
    model.cleargrads()
    y = model(x)
    (F.sum((y - t) ** 2) / samples).backward()
    return [np.zeros_like(p.array) if p.grad is None else p.grad for p in model.params()]


@pytest.mark.grid
@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "mixed16"])
@pytest.mark.parametrize(
    "counts", [(6, 6, 6, 6), (7, 1, 0, 5)], ids=["equal batches", "unequal batches"]
)
@pytest.mark.parametrize("name", NETS)
@pytest.mark.ranks(2, 3, 4, on="threads")
def test_only_normalization_over_all_ranks_has_the_gradients_of_one_process(
    comm, name, counts, dtype
):
    """One process; each rank for itself (ghost batches); one process with the multi-node link; the
    ranks together.
    """
    kept = mnpar.mixed16 if dtype == "mixed16" else np.dtype(dtype)
    halves = np.dtype("f2") if dtype == "mixed16" else kept
    with mnpar.using_config("dtype", kept):
        net = NETS[name]()
        for i, p in enumerate(net.params()):
            p.array[...] = values(p.shape, i)
        samples = sum(counts[: comm.size])
        x = values((samples, 3), 1).astype(halves)
        t = values((samples, 2), 2).astype(halves)
        start = sum(counts[: comm.rank])
        piece = slice(start, start + counts[comm.rank])
        one = gradients_of(net.copy(mode="copy"), x, t, samples)
        ghost = gradients_of(net.copy(mode="copy"), x[piece], t[piece], samples)
        alone = gradients_of(
            L.create_mnbn_model(net, mnpar.create_communicator("self")), x, t, samples
        )
        together = gradients_of(
            L.create_mnbn_model(net, comm).copy(mode="copy"), x[piece], t[piece], samples
        )
    # in f2 gamma and beta are rounded to halves, too, and so are their gradients
    tolerance = {"f8": 1e-9, "f4": 1e-4, "f2": 0.06, "mixed16": 0.03}[dtype]
    for i, g in enumerate(one):
        scale = np.abs(g).max() + 0.1
        np.testing.assert_allclose(alone[i], g, atol=tolerance * scale, rtol=0)
        np.testing.assert_allclose(comm.allreduce(together[i]), g, atol=tolerance * scale, rtol=0)
    assert any(np.abs(comm.allreduce(a) - g).max() > 0.1 for a, g in zip(ghost, one, strict=True))


# ---- models: broadcast, mean gradients, options ----


class Lazy(mnpar.Chain):
    def __init__(self, value, dtypes="ddd"):
        super().__init__()
        for i, (name, dtype) in enumerate(zip("abc", dtypes, strict=True)):
            setattr(self, name, mnpar.Parameter(np.full((2, 3), value + i, dtype)))
        self.lazy = L.Linear(None, 4)


@EVERY
def test_models_get_rank_0s_values_with_a_parameter_that_has_none_yet_among_them(comm):
    model = Lazy(10 * comm.rank)
    comm.bcast_data(model)
    assert [float(p.array[0, 0]) for p in (model.a, model.b, model.c)] == [0, 1, 2]
    assert model.lazy.W.array is None


@EVERY
@pytest.mark.parametrize("dtypes", ["ddd", "eee", "fff", "efd"])
def test_gradients_become_their_means_as_often_as_wanted(comm, dtypes):
    model = Lazy(0, dtypes)
    for _ in range(2):
        for k, param in enumerate((model.a, model.b, model.c)):
            param.grad = np.full(param.shape, comm.rank + k, param.dtype)
        comm.multi_node_mean_grad(model)
        for k, (param, dtype) in enumerate(zip((model.a, model.b, model.c), dtypes, strict=True)):
            assert param.grad.dtype == dtype
            np.testing.assert_allclose(param.grad, (comm.size - 1) / 2 + k, rtol=1e-3)


@EVERY
@pytest.mark.parametrize("zero_fill", [False, True])
def test_gradients_that_are_not_there(comm, zero_fill):
    model = Lazy(0)
    if comm.rank % 2 == 0:
        model.a.grad = np.full((2, 3), comm.rank + 2.0)
    comm.allreduce_grad(model, zero_fill)
    np.testing.assert_allclose(model.a.grad, sum(r + 2 for r in range(0, comm.size, 2)) / comm.size)
    if zero_fill:
        np.testing.assert_array_equal(model.b.grad, 0)
    else:
        assert model.b.grad is None


@EVERY
def test_debug_mode_tells_that_training_has_diverged(comm):
    model = Lazy(0)
    model.b.grad = np.full((2, 3), np.nan if comm.rank == comm.size - 1 else 1.0)
    with (
        mnpar.using_config("debug", True),
        pytest.raises(ValueError, match="training has diverged: the mean gradient of /b"),
    ):
        comm.multi_node_mean_grad(model)


@EVERY
def test_functions_over_a_part_of_the_ranks_say_its_size(comm):
    part = comm.split(comm.rank % 2, comm.rank)
    xs = [np.ones(1, "f4")] * (part.size + 1)
    said = rf"one array for each of the {part.size} ranks, not {part.size + 1}"
    with pytest.raises(ValueError, match=said):
        F.alltoall(part, xs)


@EVERY
def test_options_belong_to_a_communicator(comm):
    other = comm.split(0, comm.rank)
    comm.set_config("batched_copy", False)
    other.set_config("batched_copy")
    assert (comm.get_config("batched_copy"), other.get_config("batched_copy")) == (False, True)
    assert comm.get_config() == {"batched_copy": False, "allreduce_grad_dtype": None}
    for method in (comm.set_config, comm.get_config):
        with pytest.raises(ValueError, match="no option 'batched'"):
            method("batched")


# ---- training ----


@EVERY
def test_an_optimizer_steps_at_its_first_update_and_makes_links_equal_that_come_later(comm):
    model = mnpar.Chain(a=L.Linear(2, 2, initialW=comm.rank + 1))
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(1.0), comm).setup(model)
    x = np.full((1, 2), comm.rank, "f4")
    optimizer.update(lambda x: F.sum(model.a(x)), x)
    assert optimizer.t == 1
    np.testing.assert_allclose(model.a.W.array, 1 - (comm.size - 1) / 2)
    model.b = L.Linear(2, 1, initialW=comm.rank + 5, nobias=True)
    optimizer.update(lambda x: F.sum(model.b(model.a(x))) * 0, x)
    np.testing.assert_allclose(model.b.W.array, 5)


@pytest.mark.ranks(1, 2)
def test_digits_are_learnt_data_parallel(comm):
    train, test = mnpar.datasets.get_digits()
    model = L.Classifier(mnpar.Sequential(L.Linear(64, 100), F.relu, L.Linear(100, 10)))
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.Adam(0.005), comm).setup(model)
    mine = mnpar.scatter_dataset(train, comm, shuffle=True, seed=0)
    iterator = mnpar.iterators.SerialIterator(mine, 100 // comm.size)
    while iterator.epoch < 10:
        optimizer.update(model, *mnpar.dataset.concat_examples(iterator.next()))
    with mnpar.using_config("train", False), mnpar.no_backprop_mode():
        model(*mnpar.dataset.concat_examples([test[i] for i in range(len(test))]))
    assert float(model.accuracy.array) > 0.95
