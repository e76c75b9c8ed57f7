"""Names that other libraries, PyTorch above all, have for things with other names in mnpar:
AttributeErrors and TypeErrors tell mnpar's. A few of them are Chainer's own, for what mnpar does
not have.

A class gets a descriptor for each of these names, which raises AttributeError; a ``__getattr__``
would make all attributes of the class several times slower. Packages have one already (lazy.py).

Functions are wrapped where a package hands them out (lazy.py), so that mnpar's own calls are not,
and so are the constructors of classes with the base :class:`KeywordHints`: an unknown keyword is
looked up there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from typing import Any, NoReturn, TypeVar

from mnpar.errors import closest, listed

__all__: list[str] = []
F = TypeVar("F", bound=Callable[..., Any])
Class = TypeVar("Class")
_DEVICE = "to_device('@cupy:0') or to_device('@numpy')"
_SAVING = "mnpar.serializers.save_npz and load_npz"
_MODE = "the block \"with mnpar.using_config('train', False):\" for what evaluates"
_AXES = "F.expand_dims(x, axis)"
_CHAIN = "mnpar.Chain, mnpar.ChainList and mnpar.Sequential"

_FUNCTIONS = (
    "argmax argmin clip cumsum exp flatten log matmul prod relu repeat sigmoid softmax sqrt "
    "squeeze swapaxes tanh"
)

_LAYERS = (
    "ReLU Tanh Sigmoid Softmax Dropout Flatten LeakyReLU GELU ELU Softplus MaxPool1d MaxPool2d "
    "MaxPool3d AvgPool2d"
)

_NETWORKS = "VGG16Layers VGG19Layers GoogLeNet ResNet50Layers ResNet101Layers ResNet152Layers"
_DENSITIES = "F.gaussian, F.gaussian_kl_divergence, F.gaussian_nll and F.bernoulli_nll"
_NO_LAYOUT = "arrays in C order: there is one layout"
_NUMPY_AND_CUPY = "numpy's and CuPy's arrays only"
_ONE_FORWARD = "one forward(self, *xs), with xp = mnpar.backend.get_array_module(*xs)"

_ARRAYS = (
    "Allgather Allreduce Bcast Exscan Gather Reduce Scan Iallgather Iallreduce Ibcast Igather "
    "Ireduce"
)

VARIABLE = {
    **dict.fromkeys(_FUNCTIONS.split(), "a function of this name in mnpar.functions"),
    **dict.fromkeys(("detach", "numpy", "cpu", "tolist"), ".array, without a graph"),
    **dict.fromkeys(("clone", "copy"), "F.identity(x), or x.array.copy() without a graph"),
    **dict.fromkeys(("to", "cuda"), _DEVICE),
    **dict.fromkeys(("float", "double", "half", "long"), "astype(dtype)"),
    **dict.fromkeys(("dot", "mm", "bmm"), "the operator @"),
    "abs": "abs(x)",
    "clamp": "F.clip(x, low, high)",
    "as_layout": _NO_LAYOUT,
    **dict.fromkeys(("chx_array", "from_chx", "to_chx", "to_intel64"), _NUMPY_AND_CUPY),
    **dict.fromkeys(
        ("retain_data", "set_creator", "set_creator_node"),
        "mnpar.FunctionNode, whose apply() does that",
    ),
    "creator_node": ".creator",
    "dim": ".ndim",
    "grad_fn": ".creator",
    "is_leaf": ".creator, which is None for a leaf",
    "numel": ".size",
    "permute": "transpose(*axes)",
    "pow": "the operator **",
    "rank": ".creator, whose number is its place in time: backward goes by that, not by depth",
    "raw_array": ".array",
    "requires_grad_": "mnpar.Variable(array, requires_grad=…)",
    "retain_grad": "backward(retain_grad=True)",
    "std": "F.sqrt(F.mean((x - F.mean(x)) ** 2))",
    "t": ".T",
    "unsqueeze": _AXES,
    "var": "F.mean((x - F.mean(x)) ** 2)",
    "view": "reshape(*shape)",
    "zero_grad": "cleargrad()",
}

FUNCTION = {  # Chainer's
    **dict.fromkeys(("forward_cpu", "forward_gpu"), _ONE_FORWARD),
    **dict.fromkeys(("forward_chainerx", "chainerx_device"), _NUMPY_AND_CUPY),
    **dict.fromkeys(("input_layouts", "output_layouts", "check_layout_forward"), _NO_LAYOUT),
    "backward_accumulate": "backward(): what it returns is added up",
    "check_type_forward": "forward(), where to raise an error of bad inputs",
    "lazy_grad_sum": "one way to add gradients up: in place",
    "output_data": "get_retained_outputs()",
    "rank": ".number, its place in time: backward goes by that, not by depth",
    "stack": "the user's lines in errors of communications, and tracebacks",
    "unchain": "its outputs, which have unchain()",
}

LINK = {
    "bias": ".b in most links",
    "weight": ".W in most links",
    "from_params": "the arguments initialW and initial_bias, which may be arrays",
    **dict.fromkeys(("from_chx", "to_chx", "to_intel64"), _NUMPY_AND_CUPY),
    **dict.fromkeys(("train", "eval"), _MODE),
    **dict.fromkeys(("to", "cuda"), _DEVICE),
    **dict.fromkeys(("state_dict", "load_state_dict"), _SAVING),
    "modules": "links()",
    "named_modules": "namedlinks()",
    "named_parameters": "namedparams()",
    "parameters": "params()",
    "register_buffer": "add_persistent(name, value)",
    "register_parameter": "add_param(name, shape)",
    "requires_grad_": "disable_update() and enable_update()",
    "zero_grad": "cleargrads()",
}

OPTIMIZER = {
    "call_hook": "call_hooks(timing)",
    "check_nan_in_grads": "is_safe_to_update(), which looks at them itself",
    "reallocate_cleared_grads": "gradients that stay None until backward makes one",
    "update_loss_scale": "loss_scaling(), after which update() does that",
    "use_auto_new_epoch": "new_epoch(), which StandardUpdater calls if auto_new_epoch=True",
    "param_groups": ".hyperparam, and param.update_rule.hyperparam for each parameter",
    "state_dict": _SAVING,
    "load_state_dict": _SAVING,
    "zero_grad": "model.cleargrads()",
}

COMMUNICATOR = {  # mpi4py's and torch.distributed's
    **{word: f"{word.lower()}(array), which gives what arrives" for word in _ARRAYS.split()},
    **{word: f"{word.lower()}()" for word in ("Barrier", "Ibarrier")},
    **dict.fromkeys(("Alltoall", "Alltoallv"), "alltoall(arrays), of any shapes"),
    **dict.fromkeys(("Scatter", "Scatterv"), "scatter(arrays), of any shapes"),
    **dict.fromkeys(("Get_rank", "Get_size"), ".rank and .size"),
    **dict.fromkeys(("Abort", "abort"), "raise: an error of one rank ends all of them"),
    **dict.fromkeys(
        ("Create_cart", "Sub", "Get_coords"), "mnpar.SpatialGrid(comm, dims), and mnpar.Mesh"
    ),
    **dict.fromkeys(
        ("Dup", "Clone"), "mnpar.create_communicator(mpi_comm=…): all of its messages are its own"
    ),
    "Allgatherv": "allgather(x), of arrays of any shapes",
    "Free": "finalize()",
    "Gatherv": "gather(x), of arrays of any shapes",
    "Irecv": "irecv(source), an Operation whose wait() gives the array",
    "Isend": "isend(array, dest)",
    "Recv": "array = comm.recv(source), whose shape and dtype come with the message",
    "Send": "send(array, dest)",
    "Sendrecv": "sendrecv(array, dest, source)",
    "Split": "split(color, key)",
    "all_gather": "allgather(x)",
    "all_reduce": "allreduce(x)",
    "all_to_all": "alltoall(xs)",
    **dict.fromkeys(("config_scope", "within_config_scope"), "set_config(name, value)"),
    "broadcast": "bcast(x)",
}

PACKAGES = {
    "mnpar": {
        **dict.fromkeys(("Tensor", "tensor"), "mnpar.Variable(numpy.array(…))"),
        **dict.fromkeys(
            ("cat", "stack", "exp", "matmul", "relu"), "a function of this sort in mnpar.functions"
        ),
        **dict.fromkeys(
            ("zeros", "ones", "randn", "arange", "from_numpy"),
            "numpy's arrays, in a mnpar.Variable",
        ),
        **dict.fromkeys(("save", "load"), _SAVING),
        **dict.fromkeys(("Distribution", "distributions", "kl_divergence"), _DENSITIES),
        "DataLoader": "mnpar.iterators.SerialIterator",
        "DebugMode": "mnpar.using_config('debug', True)",
        **dict.fromkeys(("cross_entropy", "register_kl"), _DENSITIES),
        **dict.fromkeys(
            ("static_graph", "static_code"),
            "functions that cost little to record again in each step",
        ),
        **dict.fromkeys(
            ("should_use_cudnn", "should_use_cudnn_tensor_core", "get_compute_mode"),
            "CuPy's arrays, without cuDNN",
        ),
        **dict.fromkeys(
            ("get_array_types", "get_cpu_array_types"), "numpy.ndarray and cupy.ndarray"
        ),
        "Function": "mnpar.FunctionNode, with forward(self, *xs) and backward(self, *gys)",
        "Module": _CHAIN,
        "amp": "mnpar.mixed16 for mnpar.config.dtype, and optimizer.loss_scaling()",
        "distributed": "mnpar.create_communicator()",
        "manual_seed": "mnpar.random.seed",
        "nn": "mnpar.links, mnpar.functions and mnpar.Chain",
        "no_grad": "mnpar.no_backprop_mode",
        "optim": "mnpar.optimizers",
    },
    "mnpar.functions": {
        "abs": "F.absolute",
        "adaptive_avg_pool2d": "F.average over the axes (2, 3)",
        "all_gather": "F.allgather",
        "all_reduce": "F.allreduce",
        "all_to_all": "F.alltoall",
        "avg_pool2d": "F.average_pooling_2d",
        "batch_norm": "F.batch_normalization",
        "binary_cross_entropy": "F.bernoulli_nll, and F.sigmoid_cross_entropy",
        "binary_cross_entropy_with_logits": "F.sigmoid_cross_entropy",
        "clamp": "F.clip",
        "conv1d": "F.convolution_1d",
        "conv2d": "F.convolution_2d",
        "conv3d": "F.convolution_3d",
        "conv_transpose2d": "F.deconvolution_2d",
        "cross_entropy": "F.softmax_cross_entropy",
        "embedding": "F.embed_id",
        "group_norm": "F.group_normalization",
        "interpolate": "F.resize_images",
        "kl_div": "F.gaussian_kl_divergence, for normal distributions",
        "l1_loss": "F.mean_absolute_error",
        "layer_norm": "F.layer_normalization",
        "max_pool2d": "F.max_pooling_2d",
        "mse": "F.mean_squared_error",
        "mse_loss": "F.mean_squared_error",
        "nll_loss": "F.softmax_cross_entropy, of the scores before log_softmax",
        "one_hot": "numpy.eye(classes)[t]",
        "permute": "F.transpose",
        "pow": "the operator **",
        "smooth_l1_loss": "F.huber_loss",
        "unsqueeze": "F.expand_dims",
        "view": "F.reshape",
        **dict.fromkeys(("cat", "concatenate"), "F.concat"),
        **dict.fromkeys(("dot", "mm", "bmm"), "F.matmul"),
    },
    "mnpar.datasets": {
        "get_svhn": "get_cifar10, get_mnist and so on, and TupleDataset for arrays of one's own",
    },
    "mnpar.iterators": {
        "DaliIterator": "mnpar.iterators.MultiprocessIterator",
        "DataLoader": (
            "mnpar.iterators.SerialIterator, MultithreadIterator and MultiprocessIterator"
        ),
    },
    "mnpar.optimizers": {
        "lr_scheduler": (
            "mnpar.training.extensions.ExponentialShift and its like; or change optimizer.lr, "
            "optimizer.alpha"
        ),
    },
    "mnpar.links": {
        **dict.fromkeys(_FUNCTIONS.split(), "a function of this name in mnpar.functions"),
        **dict.fromkeys(
            ("Conv1D", "Conv2D", "Conv3D"), "L.Convolution1D, L.Convolution2D and L.Convolution3D"
        ),
        "Dense": "L.Linear",
        **dict.fromkeys(
            _LAYERS.split(),
            "functions for it, such as F.relu: a mnpar.Sequential takes them as layers",
        ),
        **dict.fromkeys(("Module", "ModuleList", "Sequential"), _CHAIN),
        **dict.fromkeys(
            _NETWORKS.split(),
            "L.Convolution2D and so on to build it, and mnpar.serializers.load_npz for its weights",
        ),
        **dict.fromkeys(("BatchNorm1d", "BatchNorm2d", "BatchNorm3d"), "L.BatchNormalization"),
        **dict.fromkeys(
            ("CrossEntropyLoss", "MSELoss", "L1Loss"),
            "F.softmax_cross_entropy, F.mean_squared_error …",
        ),
        "Conv1d": "L.Convolution1D",
        "Conv2d": "L.Convolution2D",
        "Conv3d": "L.Convolution3D",
        "ConvTranspose2d": "L.Deconvolution2D",
        "Embedding": "L.EmbedID",
        "GroupNorm": "L.GroupNormalization",
        "LayerNorm": "L.LayerNormalization",
        "MultiheadAttention": "L.MultiHeadAttention",
    },
}


# Arguments, and what stands for each of them here: phrases that begin with the name of an argument,
# the first whose argument the callee takes is told.
KEYWORDS: dict[str, tuple[str, ...]] = {
    # functions and links
    "affine": ("use_gamma and use_beta",),
    "bias": ("nobias=True for bias=False", "initial_bias", "b", "beta"),
    "ceil_mode": ("cover_all",),
    "create_graph": ("enable_double_backprop",),
    "dilation": ("dilate",),
    "dim": ("axis", "axes"),
    "dim0": ("axis1",),
    "dim1": ("axis2",),
    "dims": ("axes", "axis"),
    "dst": ("dest",),
    "elementwise_affine": ("use_gamma and use_beta",),
    "embed_dim": ("size",),
    "embedding_dim": ("out_size",),
    "group": ("comm", "communicator"),
    "hidden_size": ("out_size",),
    "ignore_index": ("ignore_label",),
    "in_features": ("in_size",),
    "input": ("x", "x0", "xs"),
    "input_dim": ("in_size",),
    "input_size": ("in_size",),
    "keepdim": ("keepdims",),
    "kernel_size": ("ksize",),
    "labels": ("t",),
    "logits": ("x",),
    "max": ("x_max",),
    "min": ("x_min",),
    "momentum": ("decay, which is 1 - momentum",),
    "negative_slope": ("slope",),
    "nonlinearity": ("activation",),
    "normalized_shape": ("size",),
    "num_embeddings": ("in_size",),
    "num_features": ("size",),
    "num_groups": ("groups",),
    "num_heads": ("n_heads",),
    "num_layers": ("n_layers",),
    "out_features": ("out_size",),
    "output_padding": ("outsize",),
    "output_size": ("outsize", "output_shape"),
    "p": ("ratio", "dropout_ratio", "dropout"),
    "padding": ("pad", "pad_width"),
    "padding_mode": ("mode='wrap' for 'circular', 'edge' for 'replicate'",),
    "padding_idx": ("ignore_label",),
    "rate": ("ratio",),
    "reduction": ("reduce",),
    "retain_graph": ("retain_tape=True where ranks communicate; a graph is as lasting as y",),
    "running_mean": ("initial_avg_mean",),
    "running_var": ("initial_avg_var",),
    "size_average": ("reduce", "normalize"),
    "split_size_or_sections": ("indices_or_sections",),
    "src": ("source", "root"),
    "std": ("scale",),
    "strides": ("stride",),
    "target": ("t",),
    "tensors": ("xs",),
    "units": ("out_size",),
    "use_bias": ("nobias=True for use_bias=False",),
    "weight": ("class_weight", "W", "initialW", "gamma"),
    "weight_init": ("initialW",),
    # iterators and data sets
    "batchsize": ("batch_size",),
    "collate_fn": ("converter",),
    "interval": ("trigger",),
    "num_workers": ("n_processes", "n_threads"),
    "prefetch_factor": ("n_prefetch",),
    "sampler": ("order_sampler",),
    "batch_sampler": ("order_sampler",),
    # optimizers: each of Chainer's has the rate alpha or the rate lr
    "alpha": ("lr",),
    "beta_1": ("beta1",),
    "beta_2": ("beta2",),
    "betas": ("beta1 and beta2",),
    "epsilon": ("eps",),
    "eta": ("alpha", "lr"),
    "learning_rate": ("alpha", "lr"),
    "lr": ("alpha",),
    "mu": ("momentum",),
    "weight_decay": ("weight_decay_rate",),
}

_DECAY = "optimizer.add_hook(mnpar.optimizer_hooks.WeightDecay(rate)) after setup"
_CLIPPING = "optimizer.add_hook(mnpar.optimizer_hooks.GradientClipping(norm)) after setup"
# Arguments that none here stands for, and what does.
ELSEWHERE: dict[str, str] = {
    **dict.fromkeys(("weight_decay", "l2", "decay"), _DECAY),
    **dict.fromkeys(("clipnorm", "max_grad_norm"), _CLIPPING),
    **dict.fromkeys(("momentum", "mu"), "mnpar.optimizers.MomentumSGD"),
    "device": "to_device('@cupy:0') of Variables and links",
    "dtype": "F.cast(x, dtype), and mnpar.using_config('dtype', …) for parameters",
    "batch_first": "lists of sequences, each of shape (T, D), of any lengths",
    "bidirectional": "L.NStepBiLSTM, L.NStepBiGRU and L.NStepBiRNNTanh",
    "collate_fn": "the updater's argument converter, mnpar.dataset.concat_examples by default",
    "drop_last": "repeat=True, whose last batch goes on with the first examples",
    "inplace": "functions that leave their inputs as they are: leave it out",
    "label_smoothing": "soft targets: t of shape (N, classes) in F.softmax_cross_entropy",
    "nesterov": "mnpar.optimizers.NesterovAG",
    "params": "setup(model), which gives an optimizer its parameters",
    "pin_memory": "the updater's argument device, to which batches are copied",
    "track_running_stats": "mnpar.using_config('train', False), under which averages are used",
}


def keyword_hint(word: str, known: Collection[str]) -> str:
    """Return the end of a message about an unknown argument: what stands for it here, empty if that
    is not known.

    Args:
        word: the argument's name.
        known: the names of the arguments that there are.
    """
    for phrase in KEYWORDS.get(word, ()):
        if phrase.partition(" ")[0].partition("=")[0].rstrip(",") in known:
            return f": mnpar has {phrase}"
    here = ELSEWHERE.get(word) or closest(word, known)
    return f": mnpar has {here}" if here else ""


def check_keywords(name: str, signature: inspect.Signature, given: Collection[str]) -> None:
    """Raise TypeError for the first argument that a callee does not take; it tells mnpar's word and
    the arguments that there are.

    Args:
        name: of the callee.
        signature: its arguments.
        given: the names of arguments.
    """
    params = signature.parameters
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    known = [word for word, param in params.items() if param.kind not in several]
    if any([param.kind is inspect.Parameter.VAR_KEYWORD for param in params.values()]):
        given = [word for word in given if _stands_for_a_missing_one(word, params, given)]
    for word in given:
        if word not in params:
            raise TypeError(
                f"{name} takes {listed(known, 16, 'no arguments')}, and no "
                f"{word!r}{keyword_hint(word, params)}"
            ) from None


def refuse_call(name: str, signature: inspect.Signature, words: Collection[str]) -> NoReturn:
    """Raise TypeError for a call of a function of one argument, which it was not given, or with
    others.
    """
    check_keywords(name, signature, words)
    (only,) = signature.parameters
    raise TypeError(f"{name}() missing 1 required positional argument: {only!r}")


def _stands_for_a_missing_one(
    word: str, params: Mapping[str, inspect.Parameter], given: Collection[str]
) -> bool:
    """Return whether an argument that a callee may hand on stands for one that the callee needs."""
    here = [phrase.partition(" ")[0] for phrase in KEYWORDS.get(word, ())]
    missing = [one for one in here if one in params and one not in given and word not in params]
    return any([params[one].default is inspect.Parameter.empty for one in missing])


class _Missing:
    """The value of an argument that a function needs and was not given."""

    def __repr__(self) -> str:
        return "…"


MISSING = _Missing()


def explain_keywords(function: F) -> F:
    """Return a function that does the same, and tells mnpar's word for a keyword that it does not
    take, also where that stands for an argument which the function needs.

    It has the function's own arguments, and a place for other words; so it costs a call of 70 ns,
    where one that hands ``*args`` and ``**kwargs`` on costs three times as much.

    Args:
        function: a function or a method.

    Example:
        >>> from mnpar.hints import explain_keywords
        >>> def total(x, axis=None): ...
        >>> explain_keywords(total)(1, dim=0)
        Traceback (most recent call last):
        TypeError: total takes x, axis, and no 'dim': mnpar has axis
    """
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    if any([parameter.kind is parameter.VAR_KEYWORD for parameter in parameters]):
        return function
    taken, given = _arguments(parameters)
    needed = [one.name for one in parameters if _is_needed(one)]
    scope: dict[str, Any] = {"_function": function, "_refuse": _refuse, "MISSING": MISSING}
    wrong = " or ".join(["_words", *[f"{name} is MISSING" for name in needed]])
    source = (
        f"def call({', '.join([*taken, '**_words'])}):\n"
        f"    if {wrong}:\n        _refuse(_function, _words, locals())\n"
        f"    return _function({', '.join(given)})"
    )
    code = compile(source, function.__code__.co_filename, "exec")
    exec(code, scope)
    call: Any = wraps(function)(scope["call"])
    call.__code__ = call.__code__.replace(co_firstlineno=function.__code__.co_firstlineno)
    defaults = [one for one in parameters if _is_needed(one) or one.default is not one.empty]
    keywords = [one for one in defaults if one.kind is one.KEYWORD_ONLY]
    call.__defaults__ = tuple([_default(one) for one in defaults if one not in keywords])
    call.__kwdefaults__ = {one.name: _default(one) for one in keywords}
    return call  # type: ignore[no-any-return]


def _is_needed(parameter: inspect.Parameter) -> bool:
    """Return whether a parameter, but a method's ``self``, has no default."""
    several = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and parameter.name != "self" and not several


def _default(parameter: inspect.Parameter) -> Any:
    return MISSING if _is_needed(parameter) else parameter.default


def _arguments(parameters: list[inspect.Parameter]) -> tuple[list[str], list[str]]:
    """Return the source of a function's arguments, and of a call that hands them on."""
    taken: list[str] = []
    given: list[str] = []
    for parameter in parameters:
        name = parameter.name
        if parameter.kind is parameter.VAR_POSITIONAL:
            name = f"*{name}"
        elif parameter.kind is parameter.KEYWORD_ONLY:
            if not any([one.startswith("*") for one in taken]):
                taken.append("*")
            given.append(f"{name}={name}")
        if parameter.kind is not parameter.KEYWORD_ONLY:
            given.append(name)
        has_default = _is_needed(parameter) or parameter.default is not parameter.empty
        taken.append(f"{name}=None" if has_default else name)
        if parameter.kind is parameter.POSITIONAL_ONLY:
            taken = [one for one in taken if one != "/"] + ["/"]
    return taken, given


def _refuse(function: Callable[..., Any], words: dict[str, Any], arguments: dict[str, Any]) -> None:
    """Raise TypeError for keywords that a function does not take, or Python's own for what it needs
    and was not given.
    """
    name = function.__name__.lstrip("_")  # of a method too: _mean
    signature = inspect.signature(function)
    check_keywords(name, _without_self(signature), words)
    known = [one for one in signature.parameters.values() if one.name in arguments]
    given = [one for one in known if arguments[one.name] is not MISSING]
    first = [one for one in given if one.kind is one.POSITIONAL_ONLY]
    named = [one for one in given if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    function(
        *[arguments[one.name] for one in first], **{one.name: arguments[one.name] for one in named}
    )


def _without_self(signature: inspect.Signature) -> inspect.Signature:
    parameters = list(signature.parameters.values())
    first = 1 if parameters and parameters[0].name == "self" else 0
    return signature.replace(parameters=parameters[first:])


def _explain_constructor(init: F) -> F:
    """Return an ``__init__`` that does the same, and tells mnpar's word for a keyword that it does
    not take, and what is no integer where Python's error may come from that.
    """

    @wraps(init)
    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            init(self, *args, **kwargs)
        except TypeError as error:
            name = next(cls.__name__ for cls in type(self).__mro__ if _is_own(cls))
            signature = _without_self(inspect.signature(init))
            check_keywords(name, signature, kwargs)
            if any([words in str(error) for words in _NO_INTEGER]):
                _check_integers(name, signature, args, kwargs)
            raise

    return call  # type: ignore[return-value]


def _check_integers(
    name: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Raise TypeError for the first argument that must be an integer and is none."""
    for word, value in signature.bind(*args, **kwargs).arguments.items():
        if signature.parameters[word].annotation in _INTEGERS and not _is_integer(value):
            shown = f" {value!r}" if isinstance(value, str | float) else ""
            raise TypeError(
                f"{name}: {word} must be an integer, not {type(value).__name__}{shown:.40}"
            ) from None


_INTEGERS = ("int", "int | None")  # annotations
_NO_INTEGER = ("not supported between instances of", "as an integer", "integer is required")


def _is_integer(value: Any) -> bool:
    return value is None or hasattr(value, "__index__")


def _is_own(cls: type) -> bool:
    """Return whether a class is mnpar's, not a user's."""
    return cls.__module__.startswith("mnpar.")


class KeywordHints:
    """The base of mnpar's classes whose constructors tell mnpar's word for an argument that they do
    not take. Users' classes have words of their own.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        init = vars(cls).get("__init__")
        if init is not None and _is_own(cls):
            cls.__init__ = _explain_constructor(init)  # type: ignore[method-assign]


def hint(words: dict[str, str], name: str) -> str:
    """Return the end of an error's first sentence, which tells mnpar's name; empty for a name that
    is not in ``words``.
    """
    return f": mnpar has {words[name]}" if name in words else ""


class ForeignName:
    """A descriptor that raises AttributeError with a hint, unless the object or a later base class
    has the attribute.
    """

    def __init__(self, name: str, words: dict[str, str]) -> None:
        self.name, self.words = name, words

    def __repr__(self) -> str:
        return f"<not here{hint(self.words, self.name)}>"

    def __get__(self, obj: Any, owner: type) -> Any:
        there = [cls.__dict__[self.name] for cls in owner.__mro__ if self.name in cls.__dict__]
        for found in there[there.index(self) + 1 :]:  # of a base class that comes later
            return found.__get__(obj, owner) if hasattr(found, "__get__") else found
        what = f"type object {owner.__name__!r}" if obj is None else f"{owner.__name__!r} object"
        raise AttributeError(
            f"{what} has no attribute {self.name!r}{hint(self.words, self.name)}",
            name=self.name,
            obj=obj,
        )


def with_hints(words: dict[str, str]) -> Callable[[type[Class]], type[Class]]:
    """Return a class decorator: AttributeErrors for one of these names tell mnpar's name."""

    def listed(self: Any) -> list[str]:
        return [name for name in object.__dir__(self) if name not in words or hasattr(self, name)]

    def decorated(cls: type[Class]) -> type[Class]:
        for name in words:
            setattr(cls, name, ForeignName(name, words))
        cls.__dir__ = listed  # type: ignore[method-assign]
        return cls

    return decorated


def refuse_chainers_backward(function: type[Any]) -> None:
    """Raise TypeError if a subclass of FunctionNode is written for Chainer.

    Its ``forward(self, inputs)`` would take the array of one input for the tuple of all, and the
    first row for the first input.
    """
    code = getattr(function.__dict__.get("backward"), "__code__", None)
    first = code.co_varnames[1] if code is not None and code.co_argcount > 1 else ""
    if first.endswith(("indexes", "indices")):
        raise TypeError(
            f"{function.__qualname__}.backward takes {first}, as Chainer's functions do: "
            "here forward(self, *xs) takes the "
            "inputs' arrays one by one, and backward(self, *gys) the outputs' gradients; "
            "it returns, for each input, its "
            "gradient or a function that computes it"
        )


def apply_error(function: Any, inputs: Any) -> Exception:
    """Return what ``apply`` raises if the function was applied before, or if it got an array in
    place of the tuple of inputs.
    """
    if function.number:
        return RuntimeError(f"{function.label} was applied before: make a new one for each use")
    return TypeError(
        f"{function.label}: apply takes the tuple of all inputs, not a "
        f"{type(inputs).__name__}, and returns the tuple of all "
        f"outputs: (y,) = {function.label}().apply((x,))"
    )


def retain_hint(function: Any, error: Exception) -> str:
    """Return what the note of a failed backward adds if it asked for retained arrays and there are
    none.
    """
    if function._kept_input_indexes or function._kept_output_indexes:
        return ""
    empty = isinstance(error, IndexError) or "values to unpack" in str(error)
    return ", whose forward has called neither retain_inputs nor retain_outputs" if empty else ""
