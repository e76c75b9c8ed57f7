"""The names, arguments, their order and their defaults are Chainer's and ChainerMN's, one by one,
but for the differences that are written down here and in docs/coming_from.md.
"""

import inspect
import re
from operator import attrgetter
from pathlib import Path

import pytest

import mnpar

RECORDED = dict(
    line.split(":", 1)
    for line in (Path(__file__).parent / "signatures.txt").read_text().splitlines()
    if not line.startswith("#")
)
PAGE = (Path(__file__).parents[2] / "docs" / "coming_from.md").read_text()

# Names that are not here: patterns, of which the page has the words in the second place.
ABSENT = {
    r"chainermn\.CommunicatorBase\.config_scope": "config_scope",
    r".*\.from_params": "from_params",
    r"chainer\.DebugMode": "DebugMode",
    r"chainer\.DeviceResident.*": "DeviceResident",
    r"chainer\.(Distribution.*|cross_entropy|kl_divergence|register_kl)": "distributions",
    r"chainer\.(Function|FunctionAdapter)(\..*)?": "old-style `Function`",
    r"chainer\.FunctionNode\.(backward_accumulate|unchain)": "backward_accumulate",
    r"chainer\.FunctionNode\.(check_type_forward|forward_cpu|forward_gpu)": "check_type_forward",
    r".*\.(call_hook|check_nan_in_grads|reallocate_cleared_grads|update_loss_scale)": (
        "check_nan_in_grads"
    ),
    r"chainer\.(Parameter|Variable)\.(retain_data|set_creator|set_creator_node)": "set_creator",
    r"chainer\.UpdateRule\.update_core_(cpu|gpu)": "update_core_cpu",
    r"chainer\.(get_array_types|get_cpu_array_types|is_arrays_compatible|get_compute_mode)": (
        "get_array_types"
    ),
    r"chainer\.should_use_cudnn(_tensor_core)?": "should_use_cudnn",
    r"chainer\.static_(code|graph)": "static_graph",
    r"chainer\.links\.(GoogLeNet|ResNet\d+Layers|VGG\d+Layers)": "VGG16Layers",
    r"chainer\.links\.TheanoFunction": "Theano",
    r"chainer\.iterators\.DaliIterator.*": "DaliIterator",
    r"chainer\.datasets\.get_svhn": "get_svhn",
    r"chainer\.dataset\.TabularDataset.*": "TabularDataset",
    r"chainer\.dataset\.(cache_or_load_file|cached_download|[gs]et_dataset_(root|directory))": (
        "cached_download"
    ),
    r"chainer\.training\.extensions\.VariableStatisticsPlot\.save_plot_using_module": (
        "save_plot_using_module"
    ),
    r"chainer\.training\.updaters\.MultiprocessParallelUpdater\.setup_workers": (
        "MultiprocessParallelUpdater"
    ),
    r"chainer\.function_hooks\.(CUDAProfileHook|CupyMemoryProfileHook)": "CUDAProfileHook",
    r"chainer\.gradient_check\.assert_allclose": "gradient_check.assert_allclose",
    r"chainer\.computational_graph\.DotNode": "DotNode",
    r"chainer\.backend\.(ChainerxDevice|Intel64Device)": "ChainerX",
}

# Arguments that are others: names, with what the page says in the second place.
OTHER = {
    "chainermn.CommunicatorBase": "create_communicator",
    "chainermn.communicators.CommunicatorBase": "create_communicator",
    "chainermn.create_communicator": "create_communicator(communicator_name",
    "chainermn.communicators.create_communicator": "create_communicator(communicator_name",
    "chainermn.CommunicatorBase.bcast_obj": "max_buf_len",
    "chainer.FunctionNode.backward": "`FunctionNode`: `forward(self, inputs)`",
    "chainer.FunctionNode.forward": "`FunctionNode`: `forward(self, inputs)`",
    "chainer.Parameter": "layouts",
    "chainer.functions.shift": "F.shift_channels",
    "chainer.functions.spatial_pyramid_pooling_2d": "F.spatial_pyramid_pooling_2d",
    "chainer.gradient_check.numerical_grad": "center_outputs",
    "chainer.optimizer_hooks.GradientNoise": "noise_func",
    "chainer.training.extensions.unchain_variables.initialize": "unchain_variables",
    "chainer.training.extensions.unchain_variables.trigger": "unchain_variables",
}


def parameters(found):
    """Without self."""
    return list(inspect.signature(found).parameters.values())


def is_method(path):
    parent = attrgetter(path.rpartition(".")[0])(mnpar) if "." in path else None
    own = inspect.getattr_static(parent, path.rpartition(".")[2], None)
    return inspect.isclass(parent) and not isinstance(own, classmethod | staticmethod)


def shown(default):
    if isinstance(default, int | float | str | bool | tuple | None):
        return repr(default)
    return getattr(default, "__name__", "?")


def differences(recorded, own):
    """What a call that is right there would find wrong here."""
    by_name = {p.name: p for p in own}
    kinds = [p.kind for p in own]
    order = [p.name for p in own if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    place, wrong = 0, []
    by_keyword = False
    for part in filter(None, recorded.strip().split(" | ")):
        name, _, default = part.partition("=")
        if name.startswith("*"):
            by_keyword = by_keyword or not name.startswith("**")
            continue
        p = by_name.get(name)
        if p is None:
            if inspect.Parameter.VAR_KEYWORD not in kinds:
                wrong.append(f"no {name}")
        else:
            if not by_keyword and order[place : place + 1] != [name]:
                wrong.append(f"{name} is not argument {place}")
            if default not in ("", "?") and not default.startswith("?"):
                same = p.default is not p.empty and shown(p.default) == default
                if not same and not _equal(p.default, default):
                    wrong.append(f"{name}={shown(p.default)}, not {default}")
        place += not by_keyword
    more = [] if by_keyword else own[place:]
    more = [p.name for p in more if p.default is p.empty and p.name in order]
    return wrong + [f"{name} must be given" for name in more]


def _equal(own, recorded):
    try:
        return own == float(recorded)
    except ValueError:
        return False


def local(path):
    return path.partition(".")[2]


def is_absent(path):
    return any(re.fullmatch(pattern, path) for pattern in ABSENT)


GROUPS = sorted({path.rpartition(".")[0] for path in RECORDED})


@pytest.mark.parametrize("group", GROUPS)
def test_names_arguments_and_defaults_are_chainers(group):
    wrong = {}
    for path, recorded in RECORDED.items():
        if path.rpartition(".")[0] != group or is_absent(path) or path in OTHER:
            continue
        try:
            found = attrgetter(local(path))(mnpar)
        except AttributeError as error:
            wrong[path] = str(error)
            continue
        try:
            own = parameters(found)
        except (TypeError, ValueError):  # a constant, or a class of Python's kind of string
            continue
        if is_method(local(path)):
            own = own[1:] if not inspect.isclass(found) else own
        if faults := differences(recorded, own):
            wrong[path] = faults
    assert not wrong


def test_what_is_said_to_be_absent_is_absent():
    there = []
    for path in filter(is_absent, RECORDED):
        try:
            attrgetter(local(path))(mnpar)
        except AttributeError:
            continue
        there.append(path)
    assert not there


@pytest.mark.parametrize("words", sorted({*ABSENT.values(), *OTHER.values()}))
def test_the_page_tells_of_each_difference(words):
    assert words in PAGE


def test_a_difference_is_found():
    own = parameters(lambda a, b=1, *, c=2: None)
    assert not differences("a | b=1 | * | c=2", own)
    assert differences("b | a", own) == ["b is not argument 0", "a is not argument 1"]
    assert differences("a | b=2", own) == ["b=1, not 2"]
    assert differences("a | d=3", own) == ["no d"]
    assert differences("", own) == ["a must be given"]
