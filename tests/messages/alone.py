"""Mistakes that one process makes by itself: in calls, in models and in settings.

The line of the mistake is that of the traceback: each of these errors is raised inside the call,
and each of these warnings has the line of the call.
"""

import io

import numpy as np
from mnpar.optimizer_hooks import WeightDecay

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar import serializers, training
from mnpar.errors import CheckpointError
from mnpar.training import extensions
from tests.messages.message import Message

MANY = 3000
X = np.ones((2, 3), "f4")


def chain(*names):
    return mnpar.Chain(**{name: mnpar.Link(w=(1,)) for name in names})


def large(letter):
    return chain(*[f"{letter}{i}" for i in range(MANY)])


def load_another(save, load):
    file = io.BytesIO()
    save(file, large("a"))
    file.seek(0)
    load(file, large("b"))


def copyparams():
    large("a").copyparams(large("b"))


def addgrads():
    large("a").addgrads(large("b"))


def load_npz():
    load_another(serializers.save_npz, serializers.load_npz)


def load_safetensors():
    load_another(serializers.save_safetensors, serializers.load_safetensors)


def full_disk():
    serializers.save_npz("/dev/full", L.Linear(300, 300))


def child_named_like_a_method():
    mnpar.Chain(params=L.Linear(2, 2))


def child_named_like_a_method_later():
    model = mnpar.Chain()
    model.cleargrads = L.Linear(2, 2)


def link_in_itself():
    model = mnpar.Chain()
    model.inner = model


def link_in_its_child():
    model = mnpar.Chain(inner=mnpar.Chain())
    model.inner.outer = model


def hook_as_a_class():
    mnpar.optimizers.SGD().setup(L.Linear(2, 2)).add_hook(WeightDecay)


def link_hook_as_a_class():
    L.Linear(2, 2).add_hook(mnpar.link_hooks.TimerHook)


def function_hook_as_a_class():
    F.relu(mnpar.Variable(X)).creator.add_hook(mnpar.function_hooks.TimerHook)


def extension_as_a_class():
    updater = training.StandardUpdater(mnpar.iterators.SerialIterator([1], 1), trained())
    training.Trainer(updater).extend(extensions.LogReport)


def missing_hook():
    L.Linear(2, 2).delete_hook("timer")


def lr_as_text():
    mnpar.optimizers.SGD(lr="0.1").setup(L.Linear(2, 2))


def lr_as_text_later():
    trained().lr = "0.1"


def lr_below_0():
    mnpar.optimizers.SGD(lr=-1)


def lr_nan():
    mnpar.optimizers.SGD(lr=float("nan"))


def beta_of_2():
    mnpar.optimizers.Adam(beta1=2)


def momentum_of_15():
    mnpar.optimizers.MomentumSGD(momentum=1.5)


def unknown_attribute():
    trained().learning_rate = 0.1


def unknown_hyperparameter():
    trained().hyperparam.foo = 1


def unknown_setting():
    mnpar.config.trian = False


def unknown_axis():
    mnpar.Mesh(mnpar.create_communicator("self"), data=1, pip=1)


def trained(model=None):
    return mnpar.optimizers.SGD().setup(L.Linear(3, 2) if model is None else model)


def forgotten_return():
    optimizer = trained()
    optimizer.update(lambda: [F.sum(optimizer.target(X))][1:] or None)


def layers_in_a_list_of_lists():
    model = mnpar.Chain(head=L.Linear(3, 2))
    model.layers = [[L.Linear(3, 3)]]
    trained(model).update(lambda: F.sum(model.head(model.layers[0][0](X))))


def array_as_a_weight():
    model = mnpar.Chain(l1=L.Linear(3, 3), l2=L.Linear(3, 2))
    model.l1.W = np.ones((3, 3), "f4")
    trained(model).update(lambda: F.sum(model.l2(model.l1(X))))


def variable_as_a_weight():
    model = mnpar.Chain(l1=L.Linear(3, 3), l2=L.Linear(3, 2))
    model.l1.W = mnpar.Variable(np.ones((3, 3), "f4"))
    trained(model).update(lambda: F.sum(model.l2(model.l1(X))))


def no_gradient_at_all():
    optimizer = trained()
    optimizer.update(lambda: F.sum(mnpar.Variable(X)))


def flipped_bit():
    file = io.BytesIO()
    serializers.save_safetensors(file, L.Linear(2, 2))
    data = bytearray(file.getvalue())
    data[-1] ^= 4
    serializers.load_safetensors(io.BytesIO(data), L.Linear(2, 2))


def changed_before_backward():
    x = mnpar.Variable(np.array([1.0, 2.0]))
    with mnpar.using_config("debug", True):
        y = F.sum(x * x)
        x.array += 1
        y.backward()


def never_reported():
    data = mnpar.datasets.TupleDataset(X)
    iterator = mnpar.iterators.SerialIterator(data, 2)
    model = L.Linear(3, 1)
    updater = training.StandardUpdater(
        iterator, trained(model), loss_func=lambda x: F.sum(model(x))
    )
    trainer = training.Trainer(updater, (2, "iteration"))
    trainer.extend(extensions.LogReport(trigger=(1, "iteration"), filename=None))
    trainer.extend(extensions.PrintReport(["main/los"], out=io.StringIO()))
    trainer.run()


def pytorch(call):
    return lambda: call(np.ones((2, 3, 8, 8), "f4"))


KEYWORDS = {
    "sum dim": (lambda x: F.sum(x, dim=1), "no 'dim': mnpar has axis"),
    "sum keepdim": (lambda x: F.sum(x, axis=1, keepdim=True), "no 'keepdim': mnpar has keepdims"),
    "softmax dim": (lambda x: F.softmax(x, dim=1), "no 'dim': mnpar has axis"),
    "concat dim": (lambda x: F.concat((x, x), dim=1), "no 'dim': mnpar has axis"),
    "dropout p": (lambda x: F.dropout(x, p=0.1), "no 'p': mnpar has ratio"),
    "Linear bias": (lambda x: L.Linear(3, 4, bias=False), "no 'bias': mnpar has nobias"),
    "Linear in_features": (
        lambda x: L.Linear(in_features=3, out_features=4),
        "no 'in_features': mnpar has in_size",
    ),
    "Convolution2D kernel_size": (
        lambda x: L.Convolution2D(3, 4, kernel_size=3),
        "no 'kernel_size': mnpar has ksize",
    ),
    "Convolution2D padding": (
        lambda x: L.Convolution2D(3, 4, 3, padding=1),
        "no 'padding': mnpar has pad",
    ),
    "max_pooling_2d kernel_size": (
        lambda x: F.max_pooling_2d(x, kernel_size=2),
        "no 'kernel_size': mnpar has ksize",
    ),
    "EmbedID padding_idx": (
        lambda x: L.EmbedID(3, 4, padding_idx=0),
        "no 'padding_idx': mnpar has ignore_label",
    ),
}

OWN = "choose another name, {}_ for example"
ITSELF = "a link that only refers to another one keeps it in a tuple, self.other = (link,)"
TRAINED = "l1.W.array[...] = values changes its values, l1.W = mnpar.Parameter(values) replaces it"
STRICT = "with strict=False an object keeps what is not in the file"

MESSAGES = {
    "3,000 names: copyparams": Message(
        copyparams,
        KeyError,
        "the other link has no parameter /a0/w; it has /b0/w, … /b7/w … and 2992 more",
        "both must be made alike",
    ),
    "3,000 names: addgrads": Message(
        addgrads, KeyError, "no parameter /a0/w; it has /b0/w, … and 2992 more", "made alike"
    ),
    "3,000 names: load_npz": Message(
        load_npz, KeyError, "the file has no 'b0/w'; it has a0/w, … and 2992 more", STRICT
    ),
    "3,000 names: load_safetensors": Message(
        load_safetensors, KeyError, "the file has no 'b0/w'; it has a0/w, … and 2992 more", STRICT
    ),
    "a disk that is full": Message(full_disk, OSError, "No space left on device: '/dev/full'", ""),
    "a child named like a method": Message(
        child_named_like_a_method,
        AttributeError,
        "Chain cannot have a parameter or link called 'params', the name of what every link has",
        OWN.format("params"),
    ),
    "an attribute named like a method": Message(
        child_named_like_a_method_later,
        AttributeError,
        "Chain cannot have a parameter or link called 'cleargrads'",
        OWN.format("cleargrads"),
    ),
    "a link in itself": Message(
        link_in_itself,
        ValueError,
        "Chain cannot have the Chain 'inner', itself, as a child",
        ITSELF,
    ),
    "a link in its child": Message(
        link_in_its_child,
        ValueError,
        "Chain cannot have the Chain 'outer', in which the Chain is, as a child",
        ITSELF,
    ),
    "a hook as a class": Message(
        hook_as_a_class,
        TypeError,
        "WeightDecay is a class, and a hook is an object",
        "WeightDecay(…)",
    ),
    "a link hook as a class": Message(
        link_hook_as_a_class,
        TypeError,
        "TimerHook is a class, and a hook is an object",
        "TimerHook(…)",
    ),
    "a function hook as a class": Message(
        function_hook_as_a_class,
        TypeError,
        "TimerHook is a class, and a hook is an object",
        "TimerHook(…)",
    ),
    "an extension as a class": Message(
        extension_as_a_class,
        TypeError,
        "LogReport is a class, and an extension is an object",
        "LogReport(…)",
    ),
    "a hook that is not there": Message(
        missing_hook, KeyError, "Linear has no hook 'timer'", "it has none"
    ),
    "lr='0.1'": Message(
        lr_as_text,
        TypeError,
        "SGD: lr must be a number in [0, inf), not the text '0.1'",
        "lr=float('0.1')",
    ),
    "lr='0.1', set later": Message(
        lr_as_text_later, TypeError, "SGD: lr must be a number in [0, inf)", "lr=float('0.1')"
    ),
    "lr=-1": Message(lr_below_0, ValueError, "SGD: lr must be", "a number in [0, inf), not -1.0"),
    "lr=NaN": Message(lr_nan, ValueError, "SGD: lr must be", "a number in [0, inf), not nan"),
    "beta1=2": Message(beta_of_2, ValueError, "Adam: beta1 must be", "in [0, 1), not 2.0"),
    "momentum=1.5": Message(
        momentum_of_15, ValueError, "MomentumSGD: momentum must be", "in [0, 1], not 1.5"
    ),
    "an attribute that nothing reads": Message(
        unknown_attribute,
        AttributeError,
        "SGD has no attribute 'learning_rate', which nothing would read",
        "mnpar has lr",
    ),
    "a hyperparameter that nothing reads": Message(
        unknown_hyperparameter,
        AttributeError,
        "SGD.hyperparam has no attribute 'foo', which nothing would read",
        "the hyperparameters are lr",
    ),
    "a setting that nothing reads": Message(
        unknown_setting,
        AttributeError,
        "mnpar.config has no setting 'trian'",
        "did you mean 'train'?",
    ),
    "an axis that nobody knows": Message(
        unknown_axis,
        ValueError,
        "a mesh's axis 'pip'",
        "did you mean 'pipe', which every mesh has?",
    ),
    "a key that nothing reports": Message(
        never_reported,
        UserWarning,
        "PrintReport: nothing has reported 'main/los'",
        "reported were epoch, iteration, elapsed_time",
    ),
    "a loss function without return": Message(
        forgotten_return,
        TypeError,
        "the loss function returned None, so no parameter of the Linear is trained",
        "it must return the loss (does a path through it end without return?)",
    ),
    "layers in a list of lists": Message(
        layers_in_a_list_of_lists,
        UserWarning,
        "the parameters in /layers, a list of a Chain, have gradients, but no optimizer updates "
        "them",
        "a mnpar.Chain finds the links that are its attributes, and a mnpar.ChainList(*links) "
        "those "
        "in a row",
    ),
    "an array as a weight": Message(
        array_as_a_weight,
        TypeError,
        "W of Linear is a Parameter, and would not be trained with a ndarray (3, 3) in its place",
        TRAINED,
    ),
    "a Variable as a weight": Message(
        variable_as_a_weight,
        TypeError,
        "W of Linear is a Parameter, and would not be trained with a Variable (3, 3) in its place",
        TRAINED,
    ),
    "a model without a gradient": Message(
        no_gradient_at_all,
        UserWarning,
        "no parameter of the Linear has a gradient, of /W, /b",
        "the loss does not depend on the model that the optimizer was set up for",
    ),
    "a flipped bit in a file": Message(
        flipped_bit,
        CheckpointError,
        "the file is damaged: the 8 bytes of b, from byte … on, are not those that were written, "
        "says "
        "their checksum",
        "",
    ),
    "an array that is changed before backward": Message(
        changed_before_backward,
        RuntimeError,
        "input 0 of Mul at LINE, float64 (2,), was changed in place after the function ran and "
        "before "
        "the backward at LINE, which needs the earlier values",
        "make a new array (x.array = x.array + 1, and not x.array += 1), or change it after "
        "backward",
    ),
    **{
        f"PyTorch's keyword: {name}": Message(pytorch(call), TypeError, "takes …, and no '", said)
        for name, (call, said) in KEYWORDS.items()
    },
}
