"""Arguments of optimizers under names that other libraries have: TypeErrors tell Chainer's.

What is set by an argument elsewhere, momentum or a weight decay, is here another optimizer or a
hook.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import Any

RATES = ("alpha", "lr")  # Chainer's optimizers have one of them
SETTINGS = {  # of other libraries' optimizers, or of others of Chainer's
    **dict.fromkeys(("betas", "beta_1", "beta_2"), "beta1 and beta2"),
    **dict.fromkeys(
        ("weight_decay", "l2", "decay"),
        "optimizer.add_hook(mnpar.optimizers.hooks.WeightDecay(rate)) after setup",
    ),
    **dict.fromkeys(
        ("clipnorm", "max_grad_norm"),
        "optimizer.add_hook(mnpar.optimizers.hooks.GradientClipping(norm)) after setup",
    ),
    "epsilon": "eps",
    "momentum": "mnpar.optimizers.MomentumSGD",
    "mu": "momentum, in mnpar.optimizers.MomentumSGD",
    "nesterov": "mnpar.optimizers.NesterovAG",
    "params": "setup(model), which gives an optimizer its parameters",
}


def check_settings(cls: type[Any], given: Collection[str]) -> None:
    """Raise TypeError if a class of optimizers takes no argument of one of these names; it tells
    those that there are.
    """
    code = getattr(cls.__init__, "__code__", None)
    if not given or code is None or code.co_flags & inspect.CO_VARKEYWORDS:
        return
    taken = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    for name in given:
        if name in taken:
            continue
        rate = next((one for one in RATES if one in taken), "")
        here = rate if name in (*RATES, "learning_rate", "eta") else SETTINGS.get(name, "")
        told = f": mnpar has {here}" if here else ""
        raise TypeError(
            f"{cls.__name__} takes {', '.join(taken) or 'no arguments'}, and no {name!r}{told}"
        )
