"""Half precision: losses that are scaled, steps that are left out, parameters that are updated in
32 bits.
"""

import copy
import pickle

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
import mnpar.optimizers as opt
from mnpar.optimizers.hooks import GradientClipping, GradientLARS
from tests.optimizers.test_optimizer import Reader, Writer


def model_of(dtype="f4", n=3):
    model = mnpar.Link()
    model.p = mnpar.Parameter(np.ones(n, dtype))
    return model


def test_a_scaled_loss_gives_the_same_step():
    plain = model_of()
    scaled = model_of()
    for model, scale in ((plain, None), (scaled, 128.0)):
        optimizer = opt.SGD(0.5).setup(model)
        if scale:
            optimizer.loss_scaling(scale=scale)
        optimizer.update(lambda model=model: F.sum(model.p * 3))
    np.testing.assert_array_equal(plain.p.array, scaled.p.array)


def test_the_scale_is_halved_at_each_overflow_and_doubled_after_each_interval():
    model = model_of("e")
    optimizer = opt.SGD(1.0).setup(model)
    optimizer.loss_scaling(interval=2)
    scales, taken = [optimizer._loss_scale], []
    for gradient in (1, 1, 1, np.inf, np.nan, 1, 1, 1, 1, -np.inf, 1, 1):
        model.p.grad, t = np.full(3, gradient, "e"), optimizer.t
        optimizer.update()
        scales.append(optimizer._loss_scale)
        taken.append(optimizer.t > t)
    assert scales == [1, 2, 4, 8, 4, 2, 2, 4, 4, 8, 4, 4, 8]
    assert taken == [True, True, True, False, False, True, True, True, True, False, True, True]
    np.testing.assert_array_equal(model.p.array, 1 - 9)
    assert model.p.update_rule.t == 9


@pytest.mark.parametrize("dtype", ["f2", "f4"])
def test_the_scale_grows_no_larger_than_a_float16_and_shrinks_no_smaller_than_one(dtype):
    model = model_of(dtype)
    optimizer = opt.SGD(0.0).setup(model)
    optimizer.loss_scaling(interval=1)
    for _ in range(20):
        optimizer.update(lambda: F.sum(model.p))  # never inf, though the loss may be of float16
    assert optimizer._loss_scale == 2.0**15
    assert optimizer.t == 20
    for _ in range(20):
        model.p.grad = np.full(3, np.nan, dtype)
        optimizer.update()
    assert optimizer._loss_scale == 1


def test_hooks_see_no_gradients_that_are_not_finite():
    model, seen = model_of(), []
    optimizer = opt.SGD(1.0).setup(model)
    optimizer.add_hook(lambda o: seen.append("pre"), "pre")
    optimizer.add_hook(lambda o: seen.append("post"), "post", "post")
    optimizer.loss_scaling()
    model.p.grad = np.full(3, np.inf, "f4")
    optimizer.update()
    assert not seen
    assert not optimizer.is_safe_to_update()


@pytest.mark.ranks(2, 3)
def test_ranks_that_step_together_leave_a_step_out_together(comm):
    model = model_of()
    optimizer = opt.SGD(1.0).setup(model)
    # would wait for a rank that left the step out alone
    optimizer.add_hook(GradientClipping(1.0, comm))
    optimizer.loss_scaling(interval=5, comm=comm)
    for bad, scale in ((None, 2), (1, 1)):
        model.p.grad = np.full(3, np.inf if comm.rank == bad else 0.0, "f4")
        assert optimizer.is_safe_to_update() is (comm.rank != bad)
        optimizer.update()
        assert optimizer._loss_scale == scale
    np.testing.assert_array_equal(model.p.array, 1)
    assert optimizer.t == 1


def test_small_steps_add_up_in_32_bits():
    results = {}
    for wide in (False, True):
        model = model_of("e")
        optimizer = opt.SGD(1e-4).setup(model)
        optimizer.use_fp32_update(wide)
        for _ in range(100):
            model.p.grad = np.ones(3, "e")
            optimizer.update()
        results[wide] = model.p.array
    np.testing.assert_array_equal(results[False], 1)  # each step is lost
    np.testing.assert_allclose(results[True], 0.99, rtol=1e-3)
    assert results[True].dtype == np.float16


def test_a_parameter_that_somebody_changed_is_taken_as_it_is():
    model = model_of("e")
    optimizer = opt.SGD(0.5).setup(model)
    optimizer.use_fp32_update()
    for start in (1, 7):
        model.p.array[...] = start
        model.p.grad = np.ones(3, "e")
        optimizer.update()
        np.testing.assert_array_equal(model.p.array, start - 0.5)


@pytest.mark.parametrize("first", [True, False], ids=["before setup", "after setup"])
def test_what_is_added_later_is_updated_in_32_bits_too(first):
    model = model_of("e")
    optimizer = opt.SGD(1e-4)
    if first:
        optimizer.use_fp32_update()
    optimizer.setup(model)
    optimizer.use_fp32_update()
    model.q = mnpar.Parameter(np.ones(3, "e"))
    for _ in range(20):
        model.p.grad = np.ones(3, "e")
        model.q.grad = np.ones(3, "e")
        optimizer.update()
    for p in model.params():
        np.testing.assert_array_equal(p.array, np.full(3, 1 - 20e-4, "e"))
        np.testing.assert_allclose(p.update_rule.state["fp32"], 1 - 20e-4, rtol=1e-6)
    optimizer.use_fp32_update(False)
    assert not model.p.update_rule.state


def test_gradients_that_float16_holds_only_by_the_loss_scale_count_in_32_bits():
    model = model_of("e")
    optimizer = opt.SGD(2.0**25).setup(model)
    optimizer.use_fp32_update()
    optimizer.set_loss_scale(2.0**12)
    small = np.float16(2**-14)
    optimizer.update(lambda: F.sum(model.p * small * small))  # 2⁻²⁸ is 0 in float16
    np.testing.assert_array_equal(model.p.array, 1 - 2**-3)
    assert (model.p.array.dtype, model.p.grad.dtype) == (np.float16, np.float16)


def test_the_float32_copy_is_what_hooks_see_and_float16_comes_back_in_its_place():
    model, seen = model_of("e"), []
    model.p.grad = np.full(3, 2.0, "e")
    optimizer = opt.SGD(0.5).setup(model)
    array = model.p.array
    grad = model.p.grad
    optimizer.use_fp32_update()

    def look(rule, param):
        seen.append((param.dtype, param.array.dtype, param.grad.dtype))
        param.grad *= 2

    look.call_for_each_param = True
    optimizer.add_hook(look)
    model.p.update_rule.add_hook(look)
    optimizer.update()
    assert seen == [(np.float32,) * 3] * 2
    assert model.p.array is array
    assert model.p.grad is grad
    np.testing.assert_array_equal(array, 1 - 0.5 * 8)
    np.testing.assert_array_equal(grad, 8)


@pytest.mark.parametrize("by", ["optimizer", "parameter"])
def test_a_hook_that_raises_leaves_float16_behind(by):
    model = model_of("e")
    optimizer = opt.SGD(0.5).setup(model)
    optimizer.use_fp32_update()
    model.p.update_rule.add_hook(lambda rule, param: 1 / 0, "raises")
    model.p.grad = np.ones(3, "e")
    with pytest.raises(ZeroDivisionError):
        (optimizer if by == "optimizer" else model.p).update()
    assert (model.p.dtype, model.p.array.dtype, model.p.grad.dtype) == (np.float16,) * 3


def test_parameters_of_32_bits_have_no_copy():
    model = model_of("f")
    optimizer = opt.MomentumSGD(0.5).setup(model)
    optimizer.use_fp32_update()
    model.p.grad = np.ones(3, "f")
    optimizer.update()
    assert set(model.p.update_rule.state) == {"v"}


@pytest.mark.parametrize(
    "make", [lambda: opt.SGD(1e-4), lambda: opt.Adam(1e-4)], ids=["SGD", "Adam"]
)
def test_training_in_32_bits_goes_on_from_what_was_saved(make):
    def learner():
        optimizer = make().setup(model_of("e"))
        optimizer.use_fp32_update()
        return optimizer

    def step(optimizer, n):
        for i in range(n):
            optimizer.target.p.grad = np.array([1, 2, 3 + i], "e")
            optimizer.update()

    pages = {}
    going = learner()
    loaded = learner()
    step(going, 3)
    Writer(pages).save(going)
    Reader(pages).load(loaded)
    loaded.target.p.array[...] = going.target.p.array
    step(going, 3)
    step(loaded, 3)
    np.testing.assert_array_equal(
        loaded.target.p.update_rule.state["fp32"], going.target.p.update_rule.state["fp32"]
    )
    assert (going.target.p.update_rule.state["fp32"] != going.target.p.array).any()


@pytest.mark.parametrize(
    "make",
    [
        lambda: opt.LossScaling(-1, 1.0),
        lambda: opt.LossScaling(1, 0.0),
        lambda: opt.SGD().loss_scaling(0),
        lambda: opt.SGD().loss_scaling(scale=0),
        lambda: opt.SGD().set_loss_scale(-1),
    ],
    ids=["interval", "scale", "no interval", "scale of nothing", "negative scale"],
)
def test_impossible_scales_are_refused(make):
    with pytest.raises(ValueError, match="loss scal"):
        make()


def test_mixed16_makes_halves_but_for_statistics():
    with mnpar.using_config("dtype", mnpar.mixed16):
        assert L.Linear(2, 3).W.dtype == np.float16
        assert L.BatchNormalization(3).gamma.dtype == np.float32
        assert repr(mnpar.config.dtype) == "dtype('mixed16')"
    assert mnpar.get_dtype("d") == np.float64
    assert mnpar.get_dtype(mnpar.mixed16, "f4") == np.float32
    assert mnpar.get_dtype(map_mixed16="f8") == np.float32  # of mixed16 alone
    assert np.dtype(mnpar.mixed16) == np.float16
    assert (
        pickle.loads(pickle.dumps(mnpar.mixed16)) is copy.deepcopy(mnpar.mixed16) is mnpar.mixed16
    )


@pytest.mark.ranks(1, 2, 3)
def test_parts_of_a_model_on_several_ranks_are_clipped_by_their_common_norm(comm):
    gs = [np.arange(r + 1, r + 4, dtype="f4") for r in range(comm.size)]
    model = model_of()
    model.p.grad = gs[comm.rank].copy()
    optimizer = opt.SGD(1.0).setup(model)
    optimizer.add_hook(GradientClipping(2.0, comm))
    optimizer.update()
    whole = np.concatenate(gs)  # the gradient of one process that has all parts
    np.testing.assert_allclose(
        model.p.array, 1 - gs[comm.rank] * 2 / np.linalg.norm(whole), rtol=1e-6
    )


def clipped(net, optimizer, comm):
    optimizer.setup(net).add_hook(GradientClipping(0.5, comm))
    for _ in range(3):
        optimizer.update(
            lambda x: F.mean(F.sin(net(x))), np.random.default_rng(0).standard_normal((4, 3))
        )
    return net


@pytest.mark.parametrize(
    "sharded", [None, False, True], ids=["alone", "with data parallelism", "in shards"]
)
@pytest.mark.ranks(1, 2, 4, on="threads")
def test_what_several_ranks_hold_of_a_divided_model_counts_once_in_the_common_norm(
    comm, sharded, float64
):
    """Two weights and a bias are divided, the other bias is whole on every rank."""
    rng = np.random.default_rng(1)
    optimizer = opt.MomentumSGD(1.0)
    model = comm
    W = rng.standard_normal((5, 3))
    V = rng.standard_normal((2, 5))
    if sharded is not None:
        model = comm.split(comm.rank // 2, comm.rank)
        data = comm.split(comm.rank % 2, comm.rank)
        optimizer = mnpar.create_multi_node_optimizer(optimizer, data, sharded=sharded)
    wide = L.ColumnParallelLinear(model, 3, 5, gather_output=False, initialW=W)
    out = L.RowParallelLinear(model, 5, 2, input_is_parallel=True, initialW=V)
    mine = clipped(mnpar.Sequential(wide, F.tanh, out), optimizer, comm)
    twin = mnpar.Sequential(L.Linear(3, 5, initialW=W), F.tanh, L.Linear(5, 2, initialW=V))
    twin = clipped(twin, opt.MomentumSGD(1.0), None)
    for param, whole in zip(mine.params(), twin.params(), strict=True):
        np.testing.assert_allclose(
            param.array,
            whole.array if param.box is None else whole.array[param.box.index],
            rtol=1e-9,
        )


@pytest.mark.ranks(2, 3, on="threads")
def test_other_last_digits_do_not_make_another_parameter_in_the_common_norm(comm):
    """Ranks with processors that add up in other orders have them, of what they compute alike."""
    model = divided(comm)
    model.whole = mnpar.Parameter(np.ones(2, "f4"))
    model.W.grad = np.zeros_like(model.W.array)
    model.whole.grad = np.full(2, 3 * (1 + comm.rank * 2**-22), "f4")
    optimizer = opt.SGD(1.0).setup(model)
    optimizer.add_hook(GradientClipping(1.0, comm))
    optimizer.update()
    np.testing.assert_allclose(1 - model.whole.array, 0.5**0.5, rtol=1e-5)


@pytest.mark.parametrize(
    "make",
    [lambda comm: L.Linear(2, 1, initialW=1), lambda comm: divided(comm)],
    ids=["stage", "divided"],
)
@pytest.mark.ranks(2, 3, on="threads")
def test_parameters_that_look_alike_on_several_ranks_count_each(comm, make):
    """Of stages, and of parts: both have the same path on all ranks, here the same values and
    gradients, too.
    """
    model = make(comm)
    model.W.grad = np.full_like(model.W.array, 3.0)
    before = model.W.array.copy()
    optimizer = opt.SGD(1.0).setup(model)
    optimizer.add_hook(GradientClipping(1.0, comm))
    optimizer.update()
    np.testing.assert_allclose(
        before - model.W.array, 1 / np.sqrt(comm.size * model.W.size), rtol=1e-6
    )


def divided(comm):
    return L.ColumnParallelLinear(comm, 2, comm.size, gather_output=False, initialW=1, nobias=True)


@pytest.mark.ranks(2, 3)
def test_a_rank_without_gradients_takes_part_in_the_common_norm(comm):
    model = model_of(n=comm.rank)  # uneven parts, and an empty one
    model.without_gradient = mnpar.Parameter(np.ones(2, "f4"))
    model.p.grad = np.full(comm.rank, 4.0, "f4") if comm.rank else None
    optimizer = opt.SGD(1.0).setup(model)
    optimizer.add_hook(GradientClipping(1.0, comm))
    optimizer.update()
    norm = 4 * np.sqrt(sum(range(comm.size)))
    np.testing.assert_allclose(model.p.array, np.full(comm.rank, 1 - 4 / norm), rtol=1e-6)
    np.testing.assert_array_equal(model.without_gradient.array, [1, 1])


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("p", [2.0, 1e-3], ids=["long", "short"])
def test_lars_makes_gradients_as_long_as_the_parameter_if_that_is_longer_than_the_threshold(
    p, dtype
):
    model = model_of(dtype)
    g = np.array([1.0, 2.0, 2.0])
    model.p.array[...], model.p.grad = p, g.astype(dtype)
    GradientLARS(0.01, weight_decay=0.1)(None, model.p)
    norm = p * np.sqrt(3)
    rate = norm / (1e-9 + 3 + 0.1 * norm) if norm > 0.01 else 1
    np.testing.assert_allclose(
        model.p.grad, rate * (g + 0.1 * p), rtol=5e-3 if dtype == "f2" else 1e-6
    )
    assert (GradientLARS().threshold, GradientLARS().weight_decay, GradientLARS().eps) == (
        1e-2,
        0.0,
        1e-9,
    )


def test_a_scale_that_changes_goes_on_where_it_was_saved():
    def optimizer():
        made = mnpar.optimizers.SGD().setup(mnpar.links.Linear(2, 1))
        made.loss_scaling(interval=3)
        return made

    first = optimizer()
    second = optimizer()
    target = {}
    first._scaling.accept([np.array([np.inf])])
    for _ in range(2):
        first._scaling.accept([np.ones(1)])
    first.serialize(mnpar.serializers.DictionarySerializer(target))
    second.serialize(mnpar.serializers.NpzDeserializer(target))
    assert vars(second._scaling) == vars(first._scaling)
    del target["loss_scaling/scale"]
    optimizer().serialize(mnpar.serializers.NpzDeserializer(target))  # as Chainer writes it


@pytest.mark.parametrize("steps", [0, 1])
def test_a_snapshot_without_float32_copies_is_read_as_chainers_are(steps):
    def trained(steps):
        link = mnpar.Link()
        optimizer = mnpar.optimizers.Adam(0.1)
        link.p = mnpar.Parameter(np.ones(2, "f2"))
        optimizer.use_fp32_update()
        optimizer.setup(link)
        for _ in range(steps):
            link.p.grad = np.full(2, 0.5, "f2")
            optimizer.update()
        return link, optimizer

    link, optimizer = trained(3)
    saved = mnpar.serializers.DictionarySerializer()
    values = mnpar.serializers.DictionarySerializer()
    saved.save(optimizer)
    values.save(link)
    other, resumed = trained(steps)
    mnpar.serializers.NpzDeserializer(
        {name: x for name, x in saved.target.items() if "fp32" not in name}
    ).load(resumed)
    mnpar.serializers.NpzDeserializer(values.target).load(other)
    for model, each in ((link, optimizer), (other, resumed)):
        model.p.grad = np.full(2, 0.5, "f2")
        each.update()
    assert resumed.t == 4
    np.testing.assert_allclose(other.p.array, link.p.array, rtol=1e-3)
