"""What parallelize refuses, what it leaves as it was, and what a plan's table and the whole model
show.
"""

import re

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.__main__ import main
from mnpar.errors import LayoutError, MismatchError
from mnpar.parallel import Division, register_division
from tests.parallel.plan_models import ConvNet, Experts, Transformer

pytestmark = pytest.mark.usefixtures("float64")


class Own(L.Linear):
    def forward(self, x, n_batch_axes=1):
        return 2 * super().forward(x, n_batch_axes)


def chain(**links):
    return lambda: mnpar.Chain(**links)


def tied():
    model = mnpar.Chain(a=L.Linear(4, 4), b=L.Linear(4, 4))
    model.b.W = model.a.W
    return model


def with_optimizer():
    model = mnpar.Chain(fc=L.Linear(4, 3))
    mnpar.optimizers.SGD().setup(model)
    return model


def made(comm):
    return mnpar.Chain(fc=L.RowParallelLinear(comm, 4, 3))


MODEL2 = {"model": 2}
REFUSED = {
    "no such word": (Transformer, MODEL2, {"up": "colums"}, "did you mean 'columns'?"),
    "no word": (Transformer, MODEL2, {"up": "gathered"}, "says not what is divided"),
    "no link": (
        Transformer,
        MODEL2,
        {"embd": "columns"},
        "fits no link of the model: did you mean",
    ),
    "another class": (
        Transformer,
        MODEL2,
        {"norm1": "columns"},
        "fits /blocks/0/norm1: 'columns' divides Linear, not a LayerNormalization",
    ),
    "a link that holds it": (
        Transformer,
        MODEL2,
        {"blocks/*": "columns"},
        "fits /blocks/0: 'columns' divides Linear, not a Block; inside are /blocks/0/up, "
        "/blocks/0/down",
    ),
    "another word of the class": (
        Transformer,
        MODEL2,
        {"attention": "columns"},
        "a MultiHeadAttention is divided by heads, sequence, not by 'columns'",
    ),
    "two rules": (
        Transformer,
        MODEL2,
        {"up": "columns", "1/up": "rows"},
        "two rules fit /blocks/1/up, a Linear: the rule 'up': 'columns', and the rule '1/up': "
        "'rows'",
    ),
    "a derived class": (chain(fc=Own(4, 3)), MODEL2, {"fc": "rows"}, "a Own is a Linear with"),
    "one weight, cut in two ways": (
        tied,
        MODEL2,
        {"a": "columns", "b": "rows"},
        "/b/W is the same parameter as /a/W, but 'rows' cuts it along axis 1",
    ),
    "an optimizer": (with_optimizer, MODEL2, {"fc": "rows"}, "call setup(model) after parallelize"),
    "no outputs in parts": (
        Transformer,
        MODEL2,
        {"down": "rows, gathered"},
        "leave out 'gathered'",
    ),
    "groups": (ConvNet, MODEL2, {"each": "channels"}, "its channels are in 3 groups: 'filters'"),
    "groups in other blocks": (
        chain(conv=L.Convolution2D(6, 9, 1, groups=3)),
        {"model": 4},
        {"conv": "filters"},
        "'filters, gathered' gives every rank all outputs",
    ),
    "cover_all": (
        chain(conv=L.Convolution2D(2, 2, 2, cover_all=True)),
        MODEL2,
        {"conv": "filters"},
        "with cover_all=True it is not divided",
    ),
    "some experts": (
        Experts,
        MODEL2,
        {"experts/0": "expert over model"},
        "not all experts of /mixture, which are divided together",
    ),
    "statistics": (ConvNet, {"data": 2}, {}, "/bn1, a BatchNormalization, would have"),
    "sequences": (
        Transformer,
        {"sequence": 2},
        {},
        "/blocks/0/attention, a MultiHeadAttention, would attend to this rank's part",
    ),
    "a loss without a pipeline": (Transformer, MODEL2, {}, "loss: for a pipeline"),
}


@pytest.mark.parametrize(("make", "axes", "rules", "text"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_told_on_all_ranks_and_changes_nothing(make, axes, rules, text):
    more = {"loss": F.mean_squared_error} if "loss" in text else {}

    def program(comm):
        mnpar.random.seed(0)
        model = make()
        before = {path: (type(link), id(link)) for path, link in model.namedlinks()}
        shapes = [p.shape for p in model.params(include_uninit=False)]
        with pytest.raises(ValueError, match=re.escape(text)):
            mnpar.parallelize(model, mnpar.Mesh(comm, **axes), rules, **more)
        assert before == {path: (type(link), id(link)) for path, link in model.namedlinks()}
        assert shapes == [p.shape for p in model.params(include_uninit=False)]

    mnpar.run(program, ranks=int(np.prod(list(axes.values()))))


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ((L.Linear(2, 2), None, {}), "a Mesh is needed"),
        ((L.Linear, "mesh", {}), "is a class"),
        ((3, "mesh", {}), "parallelize takes a link, not int"),
        ((L.Linear(2, 2), "mesh", ["up"]), "rules are a dict"),
        ((L.Linear(2, 2), "mesh", {"": "columns"}), "a rule is the pattern of a path and words"),
        ((L.Linear(2, 2), "mesh", {"up": 3}), "a rule is the pattern of a path and words"),
    ],
)
def test_what_is_no_model_no_mesh_or_no_rules_is_told(given, error):
    model, mesh, rules = given
    mesh = mnpar.Mesh(mnpar.create_communicator("self")) if mesh else mesh
    with pytest.raises(TypeError, match=error):
        mnpar.parallelize(model, mesh, rules)


@pytest.mark.ranks(2, on="threads")
def test_ranks_with_other_weights_or_rules_are_told_by_name(comm):
    mesh = mnpar.Mesh(comm, model=2)
    mnpar.random.seed(comm.rank)
    with pytest.raises(MismatchError, match=r"/fc/W is not the same on ranks \[0, 1\]"):
        mnpar.parallelize(mnpar.Chain(fc=L.Linear(4, 3)), mesh, {"fc": "rows"})
    mnpar.random.seed(0)
    word = "rows" if comm.rank else "columns"
    with pytest.raises(MismatchError, match="what parallelize was called with is not the same"):
        mnpar.parallelize(mnpar.Chain(fc=L.Linear(4, 3)), mesh, {"fc": word})


@pytest.mark.ranks(2, on="threads")
def test_a_model_is_divided_once(comm):
    mnpar.random.seed(0)
    mesh = mnpar.Mesh(comm, model=2)
    model = mnpar.parallelize(mnpar.Chain(fc=L.Linear(4, 3)), mesh, {"fc": "rows"})
    with pytest.raises(ValueError, match="the model is divided already"):
        mnpar.parallelize(model, mesh, {"fc": "rows"})
    with pytest.raises(ValueError, match="a RowParallelLinear is a Linear with"):
        mnpar.parallelize(made(comm), mesh, {"fc": "rows"})
    with pytest.raises(KeyError, match="no axis 'tensor'"):
        mnpar.parallelize(mnpar.Chain(fc=L.Linear(4, 3)), mesh, {"fc": "rows over tensor"})


USES = {
    "a penalty": lambda model: F.sum(model.fc.W**2),
    "a product": lambda model: F.matmul(model.fc.W, np.ones((4, 2))),
    "another layer": lambda model: F.linear(np.ones((1, 3)), model.fc.W.T),
    "a communication": lambda model: F.copy_to(model.fc.comm, model.fc.W),
    "a bias that is whole": lambda model: F.linear(np.ones((1, 4)), model.fc.W, np.ones(4)),
    "labels": lambda model: F.softmax_cross_entropy(np.ones((4, 4)), model.fc.W),
    "a running sum of outputs": lambda model: F.cumsum(model.fc(np.ones((1, 4))), axis=1),
    "an array of outputs": lambda model: model.fc(np.ones((1, 4))).array,
    "an input in parts": lambda model: model.fc(model.fc(np.ones((1, 4)))),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_part_that_would_be_taken_for_the_whole_is_an_error_on_all_ranks(use):
    def program(comm):
        mnpar.random.seed(0)
        model = mnpar.Chain(fc=L.Linear(4, 4))
        mnpar.parallelize(model, mnpar.Mesh(comm, model=2), {"fc": "columns"})
        with pytest.raises((LayoutError, ValueError)) as caught:
            use(model)
        return str(caught.value)

    assert all(mnpar.run(program, ranks=2))


@pytest.mark.ranks(2, on="threads")
def test_the_error_names_the_rule_and_the_remedy(comm):
    mnpar.random.seed(0)
    model = mnpar.Chain(fc=L.Linear(4, 4))
    mnpar.parallelize(model, mnpar.Mesh(comm, model=2), {"fc": "columns"})
    text = (
        r"The rule 'fc': 'columns' divides /fc; 'columns, gathered' gives every rank all of its "
        "outputs"
    )
    with pytest.raises(LayoutError, match=text):
        F.cumsum(F.relu(model.fc(np.ones((1, 4)))), axis=1)
    with pytest.raises(LayoutError, match=r"the parameter W \(4, 4\), of which rank \d has \(2, 4"):
        F.sum(model.fc.W)


def test_references_to_links_and_weights_stay_valid():
    """A model that keeps its layers in a list of its own, and a closure on a weight."""

    class Listed(mnpar.Chain):
        def __init__(self):
            super().__init__()
            self.up, self.down = L.Linear(4, 6), L.Linear(6, 3)
            self.layers = [self.up, F.relu, self.down]

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    def program(comm):
        mnpar.config.dtype = np.dtype("f8")
        mnpar.random.seed(0)
        model = Listed()
        up, W = model.up, model.up.W
        rules = {"up": "columns", "down": "rows"}
        mnpar.parallelize(model, mnpar.Mesh(comm, model=comm.size), rules)
        assert model.up is up
        assert model.up.W is W
        whole = mnpar.gathered(model)
        assert type(whole.layers[0]) is L.Linear
        assert whole.layers[0] is whole.up
        x = np.arange(8.0).reshape(2, 4)
        np.testing.assert_allclose(whole(x).array, model(x).array)
        return model(x).array

    one = mnpar.run(program, ranks=1)[0]
    for y in mnpar.run(program, ranks=4):
        np.testing.assert_allclose(y, one)


def test_files_have_the_whole_weights_and_any_plan_loads_them(tmp_path):
    file = str(tmp_path / "model.npz")

    def program(comm, rules, load):
        mnpar.config.dtype = np.dtype("f8")
        mnpar.random.seed(1 if load else 0)
        model = Transformer()
        mesh = mnpar.Mesh(comm, model=comm.size)
        if load == "before":
            mnpar.serializers.load_npz(file, model)
        mnpar.parallelize(model, mesh, rules)
        if load == "after":
            mnpar.serializers.load_npz(file, model)
        if not load:
            mnpar.serializers.save_npz(file if comm.is_root else file + str(comm.rank), model)
        return [param.array for param in mnpar.gathered(model).params()]

    rules = {"attention": "heads", "up": "columns", "down": "rows", "words": "vocabulary"}
    saved = mnpar.run(program, ranks=3, args=(rules, ""))[0]
    for ranks, load in ((1, "after"), (2, "before"), (4, "after")):
        for found in mnpar.run(program, ranks=ranks, args=(rules, load)):
            for one, other in zip(found, saved, strict=True):
                np.testing.assert_array_equal(one, other)


def test_a_plan_shows_places_copies_and_messages():
    def program(comm):
        mnpar.random.seed(0)
        mesh = mnpar.Mesh(comm, data=2, model=2)
        model = mnpar.Chain(up=L.Linear(3, 5), down=L.Linear(None, 2), norm=L.LayerNormalization(2))
        mnpar.parallelize(model, mesh, {"up": "columns, gathered", "down": "rows"})
        rows = mnpar.plan_of(model)
        return {row.path: row for row in rows}, str(rows)

    for rank, (rows, text) in enumerate(mnpar.run(program, ranks=4)):
        W = rows["/up/W"]
        assert (W.whole, W.ranks) == ((5, 3), (rank % 2, rank % 2 + 2))
        assert (W.box.start[0], W.box.stop[0]) == ((0, 3), (3, 5))[rank % 2]
        assert W.forward == "its outputs to all"
        assert W.backward == "the sum of the inputs' gradients; the sum of gradients over data"
        assert rows["/down/W"].whole is None  # its first batch has not come
        assert rows["/down/b"].ranks == rows["/norm/gamma"].ranks == (0, 1, 2, 3)
        assert rows["/norm/gamma"].backward == "the sum of gradients over data"
        assert text.startswith(f"data=2,model=2: rank {rank}\nparameter")
        assert re.search(r"/down/W +\? +\? +", text)


def test_a_plan_of_another_model_needs_its_mesh():
    model = mnpar.Chain(fc=L.Linear(3, 5))
    with pytest.raises(ValueError, match=r"plan_of\(model, mesh\)"):
        mnpar.plan_of(model)
    with pytest.raises(TypeError, match="a Mesh is needed"):
        mnpar.plan_of(model, 3)
    mesh = mnpar.Mesh(mnpar.create_communicator("self"))
    assert [row.ranks for row in mnpar.plan_of(model, mesh)] == [(0,), (0,)]


@pytest.mark.ranks(2, on="threads")
def test_a_plan_of_layers_that_were_written_for_ranks_shows_their_parts(comm):
    mesh = mnpar.Mesh(comm, model=2)
    W, b = mnpar.plan_of(made(mesh.model), mesh)
    assert (W.whole, W.box.shape, W.ranks) == ((3, 4), (3, 2), (comm.rank,))
    assert b.ranks == (0, 1)


def test_a_class_has_one_division_of_a_word():
    with pytest.raises(ValueError, match="Linear has a division 'rows' already"):
        register_division(L.Linear, Division("rows", L.RowParallelLinear))
    with pytest.raises(TypeError, match="a class of links"):
        register_division(3, Division("rows", L.RowParallelLinear))


def test_the_command_prints_the_plan_of_each_rank(tmp_path, capsys, monkeypatch):
    file = tmp_path / "model.py"
    file.write_text(
        "import mnpar, mnpar.links as L\n"
        "def alone(): pass\n"
        "def make(mesh):\n"
        "    model = mnpar.Chain(fc=L.Linear(4, 3))\n"
        "    return mnpar.parallelize(model, mesh, {'fc': 'rows'})\n"
    )

    def command(*flags):
        monkeypatch.setattr("sys.argv", ["mnpar", "plan-of", *flags])
        return main()

    assert command(f"{file}:make", "--divide", "model=2") == 0
    text = capsys.readouterr().out
    assert text.count("/fc/W      (3, 4)") == 2
    assert text.startswith("model=2: rank 0\nparameter")
    assert command(f"{file}:make", "--divide", "model=2", "--rank", "1") == 0
    assert capsys.readouterr().out.startswith("model=2: rank 1\n")
    for wrong, said in {
        (f"{file}:mak",): "has no function 'mak'",
        (f"{file}:alone",): "alone takes the mesh and returns the model: def alone(mesh)",
        ("nowhere.py:make",): "there is no file 'nowhere.py'",
        (f"{file}:make", "--divide", "model=-1"): "say each size",
        (f"{file}:make", "--rank", "3"): "--rank is 0 to 0, not 3",
    }.items():
        with pytest.raises(SystemExit):
            command(*wrong)
        assert said in capsys.readouterr().err
