"""A module of PyTorch's as a link, whose parameters optimizers, checkpoints and hooks see."""

from __future__ import annotations

from typing import Any

from mnpar.functions.bridges.from_torch import (
    array_of,
    call_torch,
    import_torch,
    in_mode,
    tensor_of,
)
from mnpar.functions.bridges.nesting import check_on_host
from mnpar.link import Link
from mnpar.parameter import Parameter


class TensorParameter(Parameter):
    """A Parameter that shares its memory with a tensor, also when the array is moved into another
    buffer.

    Args:
        tensor: on the processor.
    """

    def __init__(self, tensor: Any) -> None:
        super().__init__(array_of(tensor))
        self.tensor = tensor

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        tensor = self.__dict__.get("tensor")
        if tensor is not None and name in ("array", "tensor"):
            check_on_host("TorchModule", [self.array])
            tensor.data = tensor_of(self.array)


class TorchModule(Link):
    """A module of PyTorch's as a link: PyTorch computes and differentiates, all else is mnpar's.

    Each parameter of the module is a :class:`mnpar.Parameter` with the same memory, under the
    module's own name for it (``link.namedparams()`` has ``'/0.weight'``), so optimizers, hooks,
    checkpoints, data parallelism and model parallelism treat the link as any other, and
    ``module.state_dict()`` has the values that they leave. Parameters with ``requires_grad=False``
    and buffers (running means) are persistent values of the link. The mode follows
    ``mnpar.config.train``. About derivatives, random numbers and errors see
    :func:`mnpar.functions.from_torch`.

    Args:
        module: its parameters are on the processor. They have their initial values already: a copy
            of the link by ``mode='init'`` has the same ones.

    Attributes:
        module: the module.

    Raises:
        ImportError: PyTorch is missing. TypeError: this is no module, or a parameter is on another
            device, or has a dtype that numpy does not have. ValueError: a parameter has no shape
            yet.

    Example:
        >>> import numpy as np, torch, mnpar
        >>> import mnpar.functions as F, mnpar.links as L
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh())
        >>> model = L.TorchModule(net)
        >>> [name for name, _ in model.namedparams()]
        ['/0.weight', '/0.bias']
        >>> optimizer = mnpar.optimizers.SGD(lr=0.1).setup(model)
        >>> before = net[0].weight.detach().clone()
        >>> optimizer.update(lambda: F.sum(model(np.ones((2, 3), "f4"))))
        >>> bool((net[0].weight == before).any())
        False
    """

    def __init__(self, module: Any) -> None:
        torch = import_torch("TorchModule")
        super().__init__()
        if not isinstance(module, torch.nn.Module):
            raise TypeError(f"TorchModule takes a torch.nn.Module, not a {type(module).__name__}")
        self.module = module
        self._attributes: dict[str, str] = {}  # of learnt parameters, by the module's names
        self._tensors: dict[str, Any] = {}  # of persistent values, by attributes
        kept = module.state_dict(keep_vars=True)
        tensors = dict(module.named_parameters())
        tensors |= {name: one for name, one in module.named_buffers() if name in kept}
        for name, tensor in tensors.items():
            if torch.nn.parameter.is_lazy(tensor):
                raise ValueError(
                    f"TorchModule: parameter {name} has no shape yet: call the module once, with a "
                    "batch of its inputs, before the link is made"
                )
            attribute = name
            while hasattr(self, attribute):  # what every link has
                attribute += "_"
            if tensor.requires_grad:
                setattr(self, attribute, TensorParameter(tensor))
                self._attributes[name] = attribute
            else:
                self._tensors[attribute] = tensor
                self.add_persistent(attribute, array_of(tensor))

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; what is assigned to a persistent value goes into the module's
        tensor.
        """
        tensor = self.__dict__.get("_tensors", {}).get(name)
        if tensor is not None and name in self.__dict__:
            array = array_of(tensor)
            array[...] = value
            value = array
        super().__setattr__(name, value)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for name, tensor in self._tensors.items():  # a copy's arrays lie in its module's tensors
            self.__dict__[name] = array_of(tensor)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module.

        Args:
            args, kwargs: Variables and arrays in place of tensors, also in tuples, lists and dicts,
                and other values.

        Returns:
            What the module returns, with Variables in place of tensors.

        Raises:
            ValueError: a parameter was frozen or set free since the link was made.
        """
        torch = import_torch("TorchModule")
        module = self.module
        learnt = [name for name, one in module.named_parameters() if one.requires_grad]
        if learnt != list(self._attributes):
            raise ValueError(
                f"TorchModule: the link was made with {len(self._attributes)} parameters that "
                f"require a gradient, and now {len(learnt)} do: make the link after that is "
                "decided, or freeze by link.disable_update()"
            )

        def run(tensors: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
            return torch.func.functional_call(module, tensors, args, kwargs)

        parameters = {name: getattr(self, own) for name, own in self._attributes.items()}
        with in_mode(module):
            return call_torch(run, type(module).__name__, parameters, args, kwargs)
