"""Who asks for a word of another library is told mnpar's, which exists."""

import importlib
import inspect
import re

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar import hints

OBJECTS = [
    (mnpar.Variable(np.ones((2, 2))), hints.VARIABLE),
    (mnpar.FunctionNode(), hints.FUNCTION),
    (L.Linear(2, 2), hints.LINK),
    (mnpar.optimizers.SGD(), hints.OPTIMIZER),
    (mnpar.create_communicator("self"), hints.COMMUNICATOR),
]
OBJECTS += [(importlib.import_module(name), words) for name, words in hints.PACKAGES.items()]


@pytest.mark.parametrize(("thing", "words"), OBJECTS, ids=lambda one: type(one).__name__)
def test_a_word_that_is_not_here_names_the_one_that_is(thing, words):
    for word, here in words.items():
        assert not hasattr(thing, word)
        assert word not in dir(thing)
        with pytest.raises(
            AttributeError, match=f"has no attribute '{word}': mnpar has {re.escape(here)}"
        ):
            getattr(thing, word)


def test_what_is_named_exists():
    roots = {"F": F, "L": L, "mnpar": mnpar, "numpy": np}
    for thing, words in OBJECTS:
        for word, here in words.items():
            for path in re.findall(r"\b(?:F|L|mnpar|numpy)(?:\.\w+)+", here):
                first, *names = path.split(".")
                found = roots[first]
                for name in names:
                    found = getattr(found, name)
            for name in re.findall(r"(?:^|and |or )\.?([a-z_]+)\(", here):
                assert hasattr(thing, name) or name in ("abs", "backward"), (word, name)
            if "of this name" in here:
                assert hasattr(F, word)


def test_a_class_of_ones_own_may_have_such_a_word():
    class Model(mnpar.Chain):
        def train(self):
            return "mine"

    model = Model()
    model.eval = 3
    assert (model.train(), model.eval) == ("mine", 3)
    assert {"train", "eval"} <= set(dir(model))


def test_so_may_a_base_class_that_comes_later():
    class Mixin:
        eval = 3

        def train(self):
            return "mixed in"

        @property
        def parameters(self):
            return self.train()

        @classmethod
        def modules(cls):
            return cls.__name__

    class Model(mnpar.Chain, Mixin):
        pass

    class Loud(Model):
        def train(self):
            return super().train().upper()

    model = Model()
    assert Loud().train() == "MIXED IN"
    assert (model.train(), model.eval, Model.eval, model.parameters, Model.modules()) == (
        "mixed in",
        3,
        3,
        "mixed in",
        "Model",
    )
    assert {"train", "eval", "parameters", "modules"} <= set(dir(model))
    with pytest.raises(
        AttributeError, match="'Model' object has no attribute 'zero_grad': mnpar has cleargrads"
    ):
        model.zero_grad()


def test_an_optimizer_is_not_made_of_parameters():
    params = list(L.Linear(2, 2).params())
    for given in (params, iter(params)):
        with pytest.raises(
            TypeError,
            match=r"alpha is a number, not list(_iterator)?: an optimizer gets .* by "
            r"setup\(model\)",
        ):
            mnpar.optimizers.Adam(given)


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        ("Adam", "lr", r"Adam takes alpha, beta1, .*, and no 'lr': mnpar has alpha$"),
        ("SGD", "learning_rate", "SGD takes lr, and no 'learning_rate': mnpar has lr$"),
        ("SGD", "momentum", "MomentumSGD"),
        ("RMSprop", "rho", "RMSprop takes lr, alpha, .* and no 'rho'$"),
    ],
)
def test_an_optimizer_tells_its_arguments(name, given, told):
    with pytest.raises(TypeError, match=told):
        getattr(mnpar.optimizers, name)(**{given: 0.1})


def test_adams_lr_is_computed():
    optimizer = mnpar.optimizers.Adam(alpha=0.5)
    with pytest.raises(AttributeError, match="set alpha"):
        optimizer.lr = 0.1


@pytest.mark.parametrize("kind", [mnpar.ChainList, mnpar.Sequential])
def test_a_list_of_links_is_to_be_taken_apart(kind):
    with pytest.raises(
        TypeError, match=r"list.*: take it apart with a star, as in ChainList\(\*links\)"
    ):
        kind([L.Linear(2, 2)])


def test_parameters_are_left_as_they_are_by_disable_update():
    with pytest.raises(
        AttributeError, match=r"link\.disable_update\(\) leaves parameters as they are"
    ):
        L.Linear(2, 2).W.requires_grad = False


def test_what_mpi4py_has_made_is_no_communicator_yet():
    cart = type("Cartcomm", (), {"Get_rank": lambda self: 0})()
    with pytest.raises(
        TypeError, match=r"where a Cartcomm was given \(mnpar\.create_communicator\(mpi_comm=…\)"
    ):
        F.allreduce(cart, np.ones(2))


def test_a_received_array_is_returned_and_has_no_buffer():
    with pytest.raises(
        TypeError, match=r"where an array was given: .* array = comm\.recv\(source\)"
    ):
        mnpar.create_communicator("self").recv(np.empty(3), 0)


def test_labels_that_are_floats_are_told_from_soft_targets():
    with pytest.raises(
        ValueError,
        match=r"labels are integers of shape \(2,\), not float64 .* t\.astype\(numpy\.int32\)",
    ):
        F.softmax_cross_entropy(np.ones((2, 3)), np.array([0.0, 1.0]))
    with pytest.raises(
        ValueError, match=r"soft targets of shape \(2, 2\) must have .*; labels are integers"
    ):
        F.softmax_cross_entropy(np.ones((2, 3)), np.ones((2, 2)))
    with pytest.raises(ValueError, match=r"they are integers: t\.astype\(numpy\.int32\)"):
        F.sigmoid_cross_entropy(np.ones(2), np.ones(2))


def test_labels_of_another_shape_are_told_how_to_get_it():
    with pytest.raises(
        ValueError,
        match=r"here \(2,\): t\.argmax\(axis=1\) makes labels of one-hot vectors, .* soft targets",
    ):
        F.softmax_cross_entropy(np.ones((2, 3)), np.eye(2, 3, dtype=int))
    with pytest.raises(ValueError, match=r"here \(2,\); t\.reshape\(\(2,\)\)"):
        F.softmax_cross_entropy(np.ones((2, 3)), np.zeros((2, 1), int))


@pytest.mark.parametrize("join", [F.concat, F.stack])
def test_arrays_that_are_joined_come_in_a_tuple(join):
    with pytest.raises(
        TypeError, match=r"the arrays come in one tuple, as in F\.(concat|stack)\(\(a, b\)\)"
    ):
        join(np.ones((2, 2)), np.ones((2, 2)))


def test_two_axes_are_exchanged_by_swapaxes():
    with pytest.raises(ValueError, match="swapaxes"):
        mnpar.Variable(np.ones((2, 3, 4))).transpose(0, 1)


@pytest.mark.parametrize(
    ("add", "kind"),
    [
        (lambda hook: mnpar.optimizers.SGD().add_hook(hook), mnpar.optimizer_hooks.WeightDecay),
        (lambda hook: L.Linear(2, 2).add_hook(hook), mnpar.link_hooks.TimerHook),
        (lambda hook: mnpar.FunctionNode().add_hook(hook), mnpar.function_hooks.TimerHook),
        (lambda hook: trainer_of_nothing().extend(hook), mnpar.training.extensions.LogReport),
    ],
    ids=["optimizer", "link", "function", "trainer"],
)
def test_a_class_in_place_of_a_hook_is_to_be_made_one(add, kind):
    name = kind.__name__
    with pytest.raises(TypeError, match=rf"^{name} is a class, and an? .* an object: {name}\(…\)$"):
        add(kind)


def trainer_of_nothing():
    optimizer = mnpar.optimizers.SGD().setup(L.Linear(2, 2))
    iterator = mnpar.iterators.SerialIterator([1], 1)
    updater = mnpar.training.StandardUpdater(iterator, optimizer)
    return mnpar.training.Trainer(updater, (1, "iteration"))


IMAGE = np.ones((1, 1, 4, 4), "f4")
KEYWORDS = {
    "F.dropout p": (lambda: F.dropout(IMAGE, p=0.5), "no 'p': mnpar has ratio"),
    "F.sum dim": (lambda: F.sum(IMAGE, dim=1), "no 'dim': mnpar has axis"),
    "x.sum dim": (lambda: mnpar.Variable(IMAGE).sum(dim=1), "no 'dim': mnpar has axis"),
    "F.sum keepdim": (lambda: F.sum(IMAGE, 1, keepdim=True), "no 'keepdim': mnpar has keepdims"),
    "F.softmax dim": (
        lambda: F.softmax(IMAGE, dim=1),
        "softmax takes x, axis, and no 'dim': .* axis",
    ),
    "F.concat dim": (lambda: F.concat((IMAGE,), dim=1), "mnpar has axis"),
    "F.transpose dims": (lambda: F.transpose(IMAGE, dims=(0, 1)), "mnpar has axes"),
    "F.swapaxes dim0": (
        lambda: F.swapaxes(IMAGE, dim0=0, dim1=1),
        "no 'dim0': mnpar has axis1",
    ),
    "F.relu input": (lambda: F.relu(input=IMAGE), "^relu takes x, and no 'input': mnpar has x$"),
    "F.convolution_2d weight": (
        lambda: F.convolution_2d(IMAGE, weight=IMAGE),
        "no 'weight': mnpar has W$",
    ),
    "F.relu inplace": (lambda: F.relu(IMAGE, inplace=True), "no 'inplace': .* leave it out"),
    "F.leaky_relu": (lambda: F.leaky_relu(IMAGE, negative_slope=0.1), "mnpar has slope"),
    "F.convolution_2d": (lambda: F.convolution_2d(IMAGE, IMAGE, padding=1), "mnpar has pad$"),
    "F.max_pooling_2d": (lambda: F.max_pooling_2d(IMAGE, kernel_size=2), "mnpar has ksize"),
    "F.softmax_cross_entropy": (
        lambda: F.softmax_cross_entropy(IMAGE, IMAGE, ignore_index=0),
        "no 'ignore_index': mnpar has ignore_label",
    ),
    "F.clip": (lambda: F.clip(IMAGE, min=0, max=1), "no 'min': mnpar has x_min"),
    "a misspelt one": (lambda: F.softmax(IMAGE, axsi=1), "no 'axsi': mnpar has axis"),
    "an unknown one": (lambda: F.softmax(IMAGE, zzz=1), "softmax takes x, axis, and no 'zzz'$"),
    "backward": (lambda: F.sum(IMAGE).backward(retain_graph=True), "mnpar has retain_tape=True"),
    "grad": (lambda: mnpar.grad([], [], create_graph=True), "mnpar has enable_double_backprop"),
    "Linear in_features": (
        lambda: L.Linear(in_features=2, out_features=3),
        "^Linear takes in_size, out_size, .* no 'in_features': mnpar has in_size",
    ),
    "Linear bias": (lambda: L.Linear(2, 3, bias=False), "mnpar has nobias=True for bias=False"),
    "Convolution2D": (
        lambda: L.Convolution2D(2, 3, kernel_size=3),
        "^Convolution2D takes .* and no 'kernel_size': mnpar has ksize",
    ),
    "Convolution2D padding": (lambda: L.Convolution2D(2, 3, 3, padding=1), "mnpar has pad$"),
    "BatchNormalization": (
        lambda: L.BatchNormalization(3, momentum=0.1),
        "no 'momentum': mnpar has decay, which is 1 - momentum",
    ),
    "BatchNormalization affine": (
        lambda: L.BatchNormalization(3, affine=False),
        "mnpar has use_gamma and use_beta",
    ),
    "EmbedID": (lambda: L.EmbedID(num_embeddings=3, embedding_dim=2), "mnpar has in_size"),
    "EmbedID padding_idx": (lambda: L.EmbedID(3, 2, padding_idx=0), "mnpar has ignore_label"),
    "NStepLSTM": (
        lambda: L.NStepLSTM(1, 2, 3, 0.0, batch_first=True),
        "^NStepLSTM takes .* no 'batch_first': mnpar has lists of sequences",
    ),
    "LSTM": (lambda: L.LSTM(input_size=2, hidden_size=3), "^LSTM takes .* mnpar has in_size"),
    "SerialIterator": (
        lambda: mnpar.iterators.SerialIterator([1], batchsize=1),
        "no 'batchsize': mnpar has batch_size",
    ),
    "MultiprocessIterator": (
        lambda: mnpar.iterators.MultiprocessIterator([1], 1, num_workers=2),
        "no 'num_workers': mnpar has n_processes",
    ),
    "StandardUpdater": (
        lambda: mnpar.training.StandardUpdater(None, None, collate_fn=len),
        "no 'collate_fn': mnpar has converter",
    ),
    "Adam": (lambda: mnpar.optimizers.Adam(betas=(0.9, 0.99)), "mnpar has beta1 and beta2"),
    "Adam weight_decay": (
        lambda: mnpar.optimizers.Adam(weight_decay=0.1),
        "mnpar has weight_decay_rate",
    ),
    "SGD weight_decay": (
        lambda: mnpar.optimizers.SGD(weight_decay=0.1),
        r"mnpar has optimizer\.add_hook\(mnpar\.optimizer_hooks\.WeightDecay\(rate\)\) after",
    ),
    "Linear '3'": (lambda: L.Linear("3", 4), "^Linear: in_size must be an integer, not str '3'$"),
    "Linear 3.0": (lambda: L.Linear(3, 4.0), "^Linear: out_size must be an integer, not float 4"),
    "LSTM '3'": (lambda: L.LSTM(2, "3"), "^LSTM: out_size must be an integer, not str '3'$"),
    "a program without arguments": (
        lambda: mnpar.run(lambda: 3),
        r"^run calls program\(comm\) on each rank, and a function takes \(\): too many",
    ),
}


@pytest.mark.parametrize(("call", "told"), KEYWORDS.values(), ids=KEYWORDS)
def test_a_call_in_the_words_of_another_library_tells_those_that_are_here(call, told):
    with pytest.raises(TypeError, match=told) as caught:
        call()
    assert len(str(caught.value)) < 400


def test_each_argument_that_is_told_exists():
    taken = {
        parameter
        for package in (mnpar, F, L, mnpar.iterators, mnpar.optimizers, mnpar.training.extensions)
        for name in package.__all__
        if callable(found := getattr(package, name)) and not name.startswith("_")
        for parameter in parameters(found)
    }
    for word, phrases in hints.KEYWORDS.items():
        assert word
        for phrase in phrases:
            assert re.match(r"\w+", phrase)[0] in taken, (word, phrase)


PUBLIC = (
    mnpar,
    F,
    L,
    mnpar.datasets,
    mnpar.iterators,
    mnpar.optimizers,
    mnpar.training.extensions,
)


def takes(callee):
    """Return whether the hints are for a callee: a function, or a class with KeywordHints."""
    return not isinstance(callee, type) or issubclass(callee, hints.KeywordHints)


@pytest.mark.parametrize("package", PUBLIC, ids=lambda package: package.__name__)
def test_each_callee_tells_its_own_word_for_each_that_stands_for_it(package):
    """Also where it is one that the callee needs; no other argument is missing."""
    number = 0
    for name in package.__all__:
        callee = getattr(package, name)
        taken = parameters(callee) if callable(callee) and takes(callee) else {}
        if any(one.kind is one.VAR_KEYWORD for one in taken.values()):
            continue  # it hands them on to one that is told
        for word, phrases in hints.KEYWORDS.items():
            stands_for = [re.match(r"\w+", phrase)[0] for phrase in phrases]
            meant = next((one for one in stands_for if one in taken), None)
            if word in taken or meant is None:
                continue
            others = [one.name for one in taken.values() if one.name != meant and needed(one)]
            told = f"and no '{word}': mnpar has {meant}"
            with pytest.raises(TypeError, match=told) as caught:
                callee(**dict.fromkeys(others), **{word: 1})
            assert f"{callee.__name__} takes " in str(caught.value)
            number += 1
    assert number > 1


def needed(parameter):
    kinds = (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    return parameter.default is parameter.empty and parameter.kind in kinds


def test_a_link_that_hands_arguments_on_tells_what_stands_for_them():
    grid = mnpar.SpatialGrid(mnpar.create_communicator("self"), (1, 1))
    with pytest.raises(TypeError, match="no 'kernel_size': mnpar has ksize"):
        L.SpatialLocalConvolution2D(grid, 3, 4, kernel_size=3)
    with pytest.raises(
        TypeError, match=r"^StatefulZoneoutLSTM takes in_size, .* mnpar has in_size"
    ):
        L.StatefulZoneoutLSTM(input_size=3, hidden_size=4)


def test_what_a_function_needs_is_missed_in_pythons_words():
    def scaled(x, /, factor, *, shift):
        return x * factor + shift

    scaled = hints.explain_keywords(scaled)
    assert scaled(2, 3, shift=1) == scaled(2, factor=3, shift=1) == 7
    for call, missing in [
        (lambda: scaled(), r"missing 2 required positional arguments: 'x' and 'factor'"),
        (lambda: scaled(2, shift=1), r"missing 1 required positional argument: 'factor'"),
        (lambda: scaled(2, 3), r"missing 1 required keyword-only argument: 'shift'"),
        (lambda: F.exp(), r"^exp\(\) missing 1 required positional argument: 'x'$"),
        (lambda: F.linear(1), r"^linear\(\) missing 1 required positional argument: 'W'$"),
    ]:
        with pytest.raises(TypeError, match=missing):
            call()


def parameters(found):
    try:
        return inspect.signature(found).parameters
    except ValueError:  # a class of C, or an exception
        return ()


def test_an_error_inside_a_call_is_its_own():
    def broken(array):
        raise TypeError("mine")

    with pytest.raises(TypeError, match=r"^mine$"):
        L.Linear(2, 3, initialW=broken)
    with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'x'"):
        F.dropout(ratio=0.5)


def test_links_of_ones_own_have_keywords_of_their_own():
    class Mine(L.Linear):
        def __init__(self, in_features, bias=True):
            super().__init__(in_features, 2, nobias=not bias)

    assert Mine(in_features=3, bias=False).b is None
    with pytest.raises(TypeError, match="unexpected keyword argument 'dim'"):
        Mine(3, dim=1)
