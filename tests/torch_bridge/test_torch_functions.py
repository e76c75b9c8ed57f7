"""Each communication on tensors beside the same thing computed by PyTorch in one process: values,
first and second derivatives; and what happens where programs go wrong.
"""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import mnpar  # noqa: E402
import mnpar.functions as F  # noqa: E402
import mnpar.torch as mt  # noqa: E402
from mnpar.errors import MismatchError  # noqa: E402
from mnpar.plans import Box, Plan  # noqa: E402
from mnpar.torch.history import current_history  # noqa: E402

ROWS = 2  # of what each rank gives


def blocks(x, ranks):
    return x.reshape(ranks, -1, x.shape[-1]).unbind()


def swapped(xs):
    parts = [blocks(x, len(xs)) for x in xs]
    return [torch.stack([part[rank] for part in parts]) for rank in range(len(xs))]


def largest(xs):
    return torch.stack(xs).amax(0)


def sums(xs, own):
    return [sum(xs[: rank + own], torch.zeros_like(xs[0])) for rank in range(len(xs))]


PLAN = {  # every rank wants the first row of all, and gives its own
    ranks: Plan(
        [Box((ROWS * ranks * r,), (ROWS * ranks * (r + 1),)) for r in range(ranks)],
        [Box((0,), (1 + r,)) for r in range(ranks)],
    )
    for ranks in (1, 2, 3, 4)
}

# name: (what a rank does with its x, what all ranks get from all xs)
CASES = {
    "allreduce": (lambda c, x: mt.allreduce(c, x), lambda xs: [sum(xs)] * len(xs)),
    "allreduce mean": (
        lambda c, x: mt.allreduce(c, x, op="mean"),
        lambda xs: [sum(xs) / len(xs)] * len(xs),
    ),
    "allreduce max": (
        lambda c, x: mt.allreduce(c, x, op="max"),
        lambda xs: [largest(xs)] * len(xs),
    ),
    "allreduce prod": (
        lambda c, x: mt.allreduce(c, x, op="prod"),
        lambda xs: [torch.stack(xs).prod(0)] * len(xs),
    ),
    "allgather": (
        lambda c, x: torch.stack(mt.allgather(c, x)),
        lambda xs: [torch.stack(xs)] * len(xs),
    ),
    "bcast": (
        lambda c, x: mt.bcast(c, x if c.rank == c.size - 1 else None, c.size - 1),
        lambda xs: [xs[-1]] * len(xs),
    ),
    "reduce": (
        lambda c, x: mt.reduce(c, x) if c.rank == 0 else mt.reduce(c, x).sum() * 0,
        lambda xs: [sum(xs)] + [torch.zeros(())] * (len(xs) - 1),
    ),
    "gather": (
        lambda c, x: torch.stack(mt.gather(c, x)) if c.rank == 0 else 0 * mt.gather(c, x).sum(),
        lambda xs: [torch.stack(xs)] + [torch.zeros(())] * (len(xs) - 1),
    ),
    "scatter": (
        lambda c, x: mt.scatter(c, list(blocks(x, c.size)) if c.rank == 0 else None),
        lambda xs: list(blocks(xs[0], len(xs))),
    ),
    "reduce_scatter": (
        lambda c, x: mt.reduce_scatter(c, list(blocks(x, c.size))),
        lambda xs: list(blocks(sum(xs), len(xs))),
    ),
    "alltoall": (lambda c, x: torch.stack(mt.alltoall(c, blocks(x, c.size))), swapped),
    "scan": (lambda c, x: mt.scan(c, x), lambda xs: sums(xs, 1)),
    "exscan": (lambda c, x: mt.exscan(c, x), lambda xs: sums(xs, 0)),
    "shift": (lambda c, x: mt.shift(c, x), lambda xs: [xs[-1], *xs[:-1]]),
    "sendrecv": (
        lambda c, x: mt.sendrecv(x, c, (c.rank + 1) % c.size, (c.rank - 1) % c.size),
        lambda xs: [xs[-1], *xs[:-1]],
    ),
    "send and recv of a dict": (
        lambda c, x: _round(c, {"x": x, "twice": 2 * x}),
        lambda xs: [3 * x for x in (xs[-1], *xs[:-1])],
    ),
    "repartition": (
        lambda c, x: mt.repartition(c, x.T, PLAN[c.size].have, PLAN[c.size].want).T,
        lambda xs: [torch.cat(xs)[: 1 + r] for r in range(len(xs))],
    ),
    "exchange": (
        lambda c, x: mt.exchange(c, x.T, PLAN[c.size]).T,
        lambda xs: [torch.cat(xs)[: 1 + r] for r in range(len(xs))],
    ),
}


def _round(comm, x):
    mt.send(x, comm, (comm.rank + 1) % comm.size, tag=3)
    got = mt.recv(comm, (comm.rank - 1) % comm.size, tag=3)
    return got["x"] + got["twice"]


def given(rank, ranks):
    generator = torch.Generator().manual_seed(rank)
    x = torch.rand(ROWS * ranks, 3, generator=generator, dtype=torch.float64) + 0.5
    return x.requires_grad_()


def loss_of(y):
    return (y**2 * torch.arange(1.0, y.numel() + 1).reshape(y.shape)).sum()


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("name", CASES)
def test_values_and_derivatives_of_two_orders_equal_those_of_one_process(name, ranks):
    function, twin = CASES[name]

    def program(comm):
        x = given(comm.rank, ranks)
        y = function(comm, x)
        (g,) = mt.grad(loss_of(y) if y.requires_grad else [], x, create_graph=True)
        cubes = [] if g is None or not g.requires_grad else (g**3).sum()
        (gg,) = mt.grad(cubes, x)
        return y.detach(), g, gg

    found = mnpar.run(program, ranks=ranks)
    xs = [given(rank, ranks) for rank in range(ranks)]
    ys = twin(xs)
    loss = sum(map(loss_of, ys))
    gs = [None] * ranks
    if loss.requires_grad:
        gs = torch.autograd.grad(loss, xs, create_graph=True, allow_unused=True)
    cubes = [(g**3).sum() for g in gs if g is not None and g.requires_grad]
    ggs = torch.autograd.grad(sum(cubes), xs, allow_unused=True) if cubes else [None] * ranks
    for (y, g, gg), own_y, own_g, own_gg in zip(found, ys, gs, ggs, strict=True):
        torch.testing.assert_close(y, own_y.detach().to(y.dtype), rtol=1e-10, atol=1e-12)
        for one, wanted in ((g, own_g), (gg, own_gg)):
            one = torch.zeros(()) if one is None else one.detach()
            wanted = torch.zeros_like(one) if wanted is None else wanted.detach()
            torch.testing.assert_close(one, wanted, rtol=1e-9, atol=1e-9, check_dtype=False)


def test_every_communication_on_tensors_has_a_case():
    cases = " ".join(CASES)
    others = {"copy_to", "reduce_from", "halo_exchange"}  # in the tests below
    names = {name for name in mt.__all__ if name not in ("backward", "grad")}
    assert {name for name in names if name not in cases} == others


def test_layers_divided_by_columns_and_rows_equal_whole_ones():
    torch.manual_seed(0)
    x, up, down = torch.rand(5, 4), torch.rand(6, 4), torch.rand(4, 6)

    def program(comm):
        mine = slice(comm.rank * 3, comm.rank * 3 + 3)
        own = [w.clone().requires_grad_() for w in (x, up[mine], down[:, mine])]
        h = torch.tanh(mt.copy_to(comm, own[0]) @ own[1].T)
        y = mt.reduce_from(comm, h @ own[2].T)
        mt.backward((y**2).sum())
        return y.detach(), [w.grad for w in own]

    found = mnpar.run(program, ranks=2)
    whole = [w.clone().requires_grad_() for w in (x, up, down)]
    y = torch.tanh(whole[0] @ whole[1].T) @ whole[2].T
    (y**2).sum().backward()
    for rank, (own_y, gs) in enumerate(found):
        mine = slice(rank * 3, rank * 3 + 3)
        torch.testing.assert_close(own_y, y.detach())
        wanted = (whole[0].grad, whole[1].grad[mine], whole[2].grad[:, mine])
        for g, one in zip(gs, wanted, strict=True):
            torch.testing.assert_close(g, one)


def at(box):
    return (..., *[slice(*ends) for ends in zip(box.start, box.stop, strict=True)])


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_a_convolution_on_blocks_with_halos_equals_the_whole_one(ranks):
    torch.manual_seed(0)
    images, weight = torch.rand(2, 3, 7, 6).double(), torch.rand(4, 3, 3, 3).double()

    def program(comm):
        grid = mnpar.SpatialGrid(comm, (comm.size, 1))
        box = grid.block((7, 6))
        mine = images[at(box)].clone().requires_grad_()
        w = weight.clone().requires_grad_()
        wide = mt.halo_exchange(mine, grid, (7, 6), 3, pad=1)
        y = torch.nn.functional.conv2d(wide, w)
        mt.backward((y**2).sum())
        return box, y.detach(), mine.grad, mt.allreduce(comm, w.grad)

    found = mnpar.run(program, ranks=ranks)
    x, w = images.clone().requires_grad_(), weight.clone().requires_grad_()
    y = torch.nn.functional.conv2d(x, w, padding=1)
    (y**2).sum().backward()
    for box, own, g, gw in found:
        torch.testing.assert_close(own, y.detach()[at(box)])
        torch.testing.assert_close(g, x.grad[at(box)])
        torch.testing.assert_close(gw, w.grad)


def test_what_no_loss_depends_on_still_sends_its_answer():
    def program(comm):
        x = torch.ones(2, requires_grad=True)
        if comm.rank == 0:
            mt.send(x, comm, 1)
            mt.backward()
            return x.grad
        mt.recv(comm, 0)
        mt.backward(torch.ones((), requires_grad=True))
        return None

    assert mnpar.run(program, ranks=2)[0] is None


def test_a_torch_rank_and_an_mnpar_rank_work_together():
    def program(comm):
        if comm.rank == 0:
            x = torch.tensor([1.0, 2.0], requires_grad=True)
            mt.send(x, comm, 1)
            mt.backward()
            return x.grad.tolist()
        y = F.recv(comm, 0)
        F.sum(y * y).backward()
        return None

    assert mnpar.run(program, ranks=2)[0] == [2.0, 4.0]


def test_a_kept_graph_is_differentiated_twice():
    def program(comm):
        x = torch.tensor(3.0, requires_grad=True)
        loss = mt.allreduce(comm, x) ** 2
        mt.backward(loss, retain_graph=True)
        mt.backward(loss)
        return x.grad.item()

    assert mnpar.run(program, ranks=2) == [48.0, 48.0]


def test_memory_belongs_to_one_tensor():
    def program(comm):
        x = torch.ones(3)
        everywhere = [mt.bcast(comm, x), mt.allreduce(comm, x), *mt.allgather(comm, x)]
        everywhere += [mt.copy_to(comm, x), mt.shift(comm, x)]
        comm.barrier()
        for y in everywhere:
            y += comm.rank + 1
        comm.barrier()
        return x.tolist(), [y.tolist() for y in everywhere]

    for rank, (x, ys) in enumerate(mnpar.run(program, ranks=2)):
        assert x == [1.0] * 3
        totals = [1, 2, 1, 1, 1, 1]
        assert ys == [[total + rank + 1.0] * 3 for total in totals]


def test_nothing_is_recorded_where_torch_records_nothing():
    def program(comm):
        with torch.no_grad():
            y = mt.allreduce(comm, torch.ones(1, requires_grad=True))
        mt.backward()
        return y.requires_grad, len(mnpar.autograd.tape.current_tape().records)

    assert mnpar.run(program, ranks=2) == [(False, 0)] * 2


def wrong(program, error, match, ranks=2):
    with pytest.raises(error, match=match):
        mnpar.run(program, ranks=ranks)


def test_torchs_own_backward_that_passes_a_communication_over_is_told():
    def program(comm):
        x = torch.ones(2, requires_grad=True)
        y = mt.allreduce(comm, x)
        mt.allgather(comm, x)
        y.sum().backward()

    wrong(program, RuntimeError, r"passed over allgather at .*mnpar.torch.backward\(loss\)")


def test_torchs_own_backward_is_enough_where_it_reaches_all():
    def program(comm):
        x = torch.ones(2, requires_grad=True)
        mt.allreduce(comm, mt.allreduce(comm, x)).sum().backward()
        return x.grad.tolist()

    assert mnpar.run(program, ranks=2) == [[4.0, 4.0]] * 2


def test_a_graph_that_was_not_kept_is_told():
    def program(comm):
        y = mt.allreduce(comm, torch.ones(1, requires_grad=True)).sum()
        y.backward(retain_graph=True)
        y.backward()

    wrong(program, RuntimeError, r"the backward at .*test_torch_functions.py.*retain_graph=True")


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])
def test_a_communication_that_a_checkpoint_would_repeat_is_told(reentrant):
    def program(comm):
        x = torch.ones(2, requires_grad=True)
        y = torch.utils.checkpoint.checkpoint(
            lambda x: mt.allreduce(comm, x * x) ** 2,
            mt.allreduce(comm, x),
            use_reentrant=reentrant,
        )
        mt.backward(y.sum())

    wrong(program, RuntimeError, r"allreduce at .* while backward ran.*checkpoint.*outside")


def test_passes_of_two_kinds_are_told():
    def program(comm):
        x = torch.ones(1, requires_grad=True)
        if comm.rank == 0:
            mt.send(x, comm, 1)
            mt.backward(create_graph=True)
        else:
            mt.backward(mt.recv(comm, 0).sum())

    wrong(program, MismatchError, "backward")


def test_an_input_that_was_changed_in_place_is_told():
    def program(comm):
        x = torch.ones(1, requires_grad=True)
        h = 2 * x
        y = mt.allreduce(comm, h, op="prod")
        h += 1
        mt.backward(y.sum())

    wrong(program, RuntimeError, "inplace")


@pytest.mark.parametrize(
    "x", [torch.ones(2, dtype=torch.bfloat16), torch.eye(2).to_sparse()], ids=["bfloat16", "sparse"]
)
def test_a_tensor_that_is_no_array_is_told(x):
    wrong(lambda comm: mt.allreduce(comm, x), TypeError, "is no array of numpy's.*x.float")


def test_a_variable_in_place_of_a_tensor_is_told():
    x = mnpar.from_dlpack(torch.ones(2))
    tensors = "mnpar.torch takes tensors, not a Variable.*mnpar.functions.allreduce takes"
    wrong(lambda comm: mt.allreduce(comm, x), TypeError, tensors)
    wrong(lambda comm: mt.backward(x), TypeError, "differentiates tensors, not Variable: mnpar.ba")
    wrong(lambda comm: mt.grad([1.0], []), TypeError, "differentiates tensors, not float")


def test_a_communicator_that_is_given_a_tensor_names_the_function_that_takes_it():
    wrong(
        lambda comm: comm.allreduce(torch.ones(2)),
        TypeError,
        "not Tensor: mnpar.torch has the same",
    )


@pytest.mark.filterwarnings("ignore:.torch.jit.trace. is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    "look",
    [
        lambda f, x: torch.jit.trace(f, x),
        lambda f, x: torch.func.vmap(f)(x),
        lambda f, x: torch.func.grad(lambda x: f(x).sum())(x),
    ],
    ids=["trace", "vmap", "grad"],
)
def test_a_communication_that_pytorch_would_not_repeat_is_told(look):
    wrong(
        lambda comm: look(lambda x: mt.allreduce(comm, x), torch.ones(2)),
        RuntimeError,
        r"allreduce at .* does not see through communications.*Communicate outside",
    )


def test_the_history_is_forgotten_after_an_error():
    def program(comm):
        x = torch.ones(2, requires_grad=True)
        y = mt.allreduce(comm, x)
        y.register_hook(lambda g: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            mt.backward(y.sum())
        mt.backward(mt.allreduce(comm, 2 * x).sum())
        return x.grad.tolist()

    assert mnpar.run(program, ranks=1) == [[2.0, 2.0]]


def test_networks_of_torch_train_alike_on_copies():
    torch.manual_seed(0)
    x, t = torch.rand(8, 3).double(), torch.rand(8, 1).double()

    def network():
        torch.manual_seed(1)
        return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))

    def train(mine, mean, steps=5):
        model = network().double()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(steps):
            optimizer.zero_grad()
            mt.backward(mean(((model(x[mine]) - t[mine]) ** 2).mean()))
            optimizer.step()
        return [w.detach() for w in model.parameters()]

    def program(comm):
        with mnpar.using_config("debug", False):
            mine = slice(4 * comm.rank, 4 * comm.rank + 4)
            model = network().double()
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            for _ in range(5):
                optimizer.zero_grad()
                weights = [mt.copy_to(comm, w) for w in model.parameters()]
                names = [name for name, _ in model.named_parameters()]
                y = torch.func.functional_call(
                    model, dict(zip(names, weights, strict=True)), x[mine]
                )
                mt.backward(((y - t[mine]) ** 2).sum() / 8)
                optimizer.step()
            return [w.detach() for w in model.parameters()]

    wanted = train(slice(None), lambda loss: loss)
    for weights in mnpar.run(program, ranks=2):
        for w, one in zip(weights, wanted, strict=True):
            torch.testing.assert_close(w, one)


CHECKED = {name: function for name, (function, _) in CASES.items()}
CHECKED["halo_exchange"] = lambda c, x: mt.halo_exchange(
    x, mnpar.SpatialGrid(c, (c.size, 1)), (c.size * len(x), 1), 3, pad=1
)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", CHECKED)
def test_pytorchs_own_checks_of_two_orders_pass_over_ranks(name, ranks):
    """Every rank hands ``gradcheck`` the same function: from the inputs of all ranks to the results
    of all. So the ranks change the same number at the same time, and each sees the whole Jacobian.
    """
    xs = torch.stack([given(rank, ranks).detach()[:, :1] for rank in range(ranks)])

    def program(comm):
        def whole(inputs):
            history = current_history()
            history.clear()
            history.keeps = True  # gradcheck differentiates one graph again and again
            y = (
                CHECKED[name](comm, mt.copy_to(comm, inputs)[comm.rank])
                .to(torch.float64)
                .reshape(-1)
            )
            sizes = comm.allgather_obj(y.numel())
            parts = [torch.zeros(size, dtype=y.dtype) for size in sizes]
            return mt.reduce_from(
                comm, torch.cat([*parts[: comm.rank], y, *parts[comm.rank + 1 :]])
            )

        own = xs.clone().requires_grad_()
        assert torch.autograd.gradcheck(whole, own)
        return torch.autograd.gradgradcheck(lambda inputs: whole(inputs) ** 2, own)

    assert mnpar.run(program, ranks=ranks) == [True] * ranks
