"""Names of other libraries, PyTorch above all, for things that have other names in mnpar: AttributeErrors tell mnpar's.
Of Chainer's own names there are a few that mnpar has not.

A class gets a descriptor for each of these names, which raises AttributeError; a ``__getattr__`` would make all attributes of
the class several times slower. Packages have one already (lazy.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

__all__: list[str] = []

Class = TypeVar("Class")

_DEVICE = "to_device('@cupy:0') or to_device('@numpy')"
_SAVING = "mnpar.serializers.save_npz and load_npz"
_MODE = "the block \"with mnpar.using_config('train', False):\" for what evaluates"
_AXES = "F.expand_dims(x, axis)"
_CHAIN = "mnpar.Chain, mnpar.ChainList and mnpar.Sequential"
_FUNCTIONS = "argmax argmin clip cumsum exp flatten log matmul prod relu repeat sigmoid softmax sqrt squeeze swapaxes tanh"
_LAYERS = "ReLU Tanh Sigmoid Softmax Dropout Flatten LeakyReLU GELU ELU Softplus MaxPool1d MaxPool2d MaxPool3d AvgPool2d"

_NETWORKS = "VGG16Layers VGG19Layers GoogLeNet ResNet50Layers ResNet101Layers ResNet152Layers"
_DENSITIES = "F.gaussian, F.gaussian_kl_divergence, F.gaussian_nll and F.bernoulli_nll"

_ARRAYS = "Allgather Allreduce Bcast Exscan Gather Reduce Scan Iallgather Iallreduce Ibcast Igather Ireduce"

VARIABLE = {
    **dict.fromkeys(_FUNCTIONS.split(), "a function of this name in mnpar.functions"),
    **dict.fromkeys(("detach", "numpy", "cpu", "tolist"), ".array, without a graph"),
    **dict.fromkeys(("clone", "copy"), "F.identity(x), or x.array.copy() without a graph"),
    **dict.fromkeys(("to", "cuda"), _DEVICE),
    **dict.fromkeys(("float", "double", "half", "long"), "astype(dtype)"),
    **dict.fromkeys(("dot", "mm", "bmm"), "the operator @"),
    "abs": "abs(x)",
    "clamp": "F.clip(x, low, high)",
    "creator_node": ".creator",
    "dim": ".ndim",
    "grad_fn": ".creator",
    "is_leaf": ".creator, which is None for a leaf",
    "numel": ".size",
    "permute": "transpose(*axes)",
    "pow": "the operator **",
    "requires_grad_": "mnpar.Variable(array, requires_grad=…)",
    "retain_grad": "backward(retain_grad=True)",
    "std": "F.sqrt(F.mean((x - F.mean(x)) ** 2))",
    "t": ".T",
    "unsqueeze": _AXES,
    "var": "F.mean((x - F.mean(x)) ** 2)",
    "view": "reshape(*shape)",
    "zero_grad": "cleargrad()",
}
LINK = {
    "bias": ".b in most links",
    "weight": ".W in most links",
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
    **dict.fromkeys(("Create_cart", "Sub", "Get_coords"), "mnpar.SpatialGrid(comm, dims), and mnpar.Mesh"),
    **dict.fromkeys(("Dup", "Clone"), "mnpar.create_communicator(mpi_comm=…): all of its messages are its own"),
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
    "broadcast": "bcast(x)",
}
PACKAGES = {
    "mnpar": {
        **dict.fromkeys(("Tensor", "tensor"), "mnpar.Variable(numpy.array(…))"),
        **dict.fromkeys(("cat", "stack", "exp", "matmul", "relu"), "a function of this sort in mnpar.functions"),
        **dict.fromkeys(("zeros", "ones", "randn", "arange", "from_numpy"), "numpy's arrays, in a mnpar.Variable"),
        **dict.fromkeys(("save", "load"), _SAVING),
        **dict.fromkeys(("Distribution", "distributions", "kl_divergence"), _DENSITIES),
        "DataLoader": "mnpar.iterators.SerialIterator",
        "DebugMode": "mnpar.using_config('debug', True)",
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
    "mnpar.iterators": {"DataLoader": "mnpar.iterators.SerialIterator, MultithreadIterator and MultiprocessIterator"},
    "mnpar.optimizers": {
        "lr_scheduler": "mnpar.training.extensions.ExponentialShift and its like; or change optimizer.lr, optimizer.alpha",
    },
    "mnpar.links": {
        **dict.fromkeys(_LAYERS.split(), "functions for it, such as F.relu: a mnpar.Sequential takes them as layers"),
        **dict.fromkeys(("Module", "ModuleList", "Sequential"), _CHAIN),
        **dict.fromkeys(
            _NETWORKS.split(), "L.Convolution2D and so on to build it, and mnpar.serializers.load_npz for its weights"
        ),
        **dict.fromkeys(("BatchNorm1d", "BatchNorm2d", "BatchNorm3d"), "L.BatchNormalization"),
        **dict.fromkeys(("CrossEntropyLoss", "MSELoss", "L1Loss"), "F.softmax_cross_entropy, F.mean_squared_error …"),
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


def hint(words: dict[str, str], name: str) -> str:
    """The end of an error's first sentence, which tells mnpar's name; empty for a name that is not in ``words``."""
    return f": mnpar has {words[name]}" if name in words else ""


class Elsewhere:
    """A descriptor that raises AttributeError with a hint, unless the object or a later base class has the attribute."""

    def __init__(self, name: str, words: dict[str, str]) -> None:
        self.name, self.words = name, words

    def __repr__(self) -> str:
        return f"<not here{hint(self.words, self.name)}>"

    def __get__(self, obj: Any, owner: type) -> Any:
        there = [cls.__dict__[self.name] for cls in owner.__mro__ if self.name in cls.__dict__]
        for found in there[there.index(self) + 1 :]:  # of a base class that comes later
            return found.__get__(obj, owner) if hasattr(found, "__get__") else found
        what = f"type object {owner.__name__!r}" if obj is None else f"{owner.__name__!r} object"
        raise AttributeError(f"{what} has no attribute {self.name!r}{hint(self.words, self.name)}", name=self.name, obj=obj)


def knows(words: dict[str, str]) -> Callable[[type[Class]], type[Class]]:
    """A class decorator: AttributeErrors for one of these names tell mnpar's name."""

    def listed(self: Any) -> list[str]:
        return [name for name in object.__dir__(self) if name not in words or hasattr(self, name)]

    def decorated(cls: type[Class]) -> type[Class]:
        for name in words:
            setattr(cls, name, Elsewhere(name, words))
        cls.__dir__ = listed  # type: ignore[method-assign]
        return cls

    return decorated


def one_protocol(cls: type[Class]) -> type[Class]:
    """A class decorator for FunctionNode: a function that is written for Chainer's is refused when it is defined.

    Its ``forward(self, inputs)`` would take the array of one input for the tuple of all, and the first row for the first input.
    """

    def refuse(function: type[Any], /, **options: Any) -> None:
        super(cls, function).__init_subclass__(**options)  # of classes beside it, such as Generic
        code = getattr(function.__dict__.get("backward"), "__code__", None)
        first = code.co_varnames[1] if code is not None and code.co_argcount > 1 else ""
        if first.endswith(("indexes", "indices")):
            raise TypeError(
                f"{function.__qualname__}.backward takes {first}, as Chainer's functions do: here forward(self, *xs) takes the "
                "inputs' arrays one by one, and backward(self, *gys) the outputs' gradients; it returns, for each input, its "
                "gradient or a function that computes it"
            )

    cls.__init_subclass__ = classmethod(refuse)  # type: ignore[assignment]
    return cls
