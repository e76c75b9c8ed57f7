"""Names of Chainer and ChainerMN that programs use, each where they look for it; and what the thin
ones do.
"""

import importlib
import inspect
import pickle
import subprocess
import sys
from operator import attrgetter

import numpy as np
import pytest
from mnpar.utils import argument

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar import backend, optimizer, testing
from mnpar.backends import cuda

NAMES = """
: Chain ChainList CommunicatorBase DataSizeError Deserializer DictSummary FunctionHook FunctionNode
: GradientMethod Initializer
: Link LinkHook MultiNodeChainList Optimizer Parameter Reporter Sequential Serializer Summary
: UpdateRule Variable as_array
: as_variable backward config create_communicator create_multi_node_checkpointer
: create_multi_node_evaluator cuda
: create_multi_node_optimizer force_backprop_mode get_current_reporter get_device get_dtype
: get_function_hooks global_config
: grad is_debug mixed16 no_backprop_mode print_runtime_info report report_scope scatter_dataset
: scatter_index set_debug
: using_config using_device
backend: CpuDevice Device GpuDevice copyto get_array_module get_device get_device_from_array
backend: using_device
backends.cuda: Device DummyDevice Event GpuDevice Stream available check_cuda_available copy
backends.cuda: cudnn_enabled cupy elementwise
backends.cuda: get_array_module get_device get_device_from_array get_device_from_id ndarray reduce
backends.cuda: to_cpu to_gpu
communicators: CommunicatorBase create_communicator
configuration: config global_config using_config
cuda: available cupy get_array_module get_device_from_id to_cpu to_gpu
dataset: ConcatWithAsyncTransfer Converter DatasetMixin Iterator concat_examples converter to_device
dataset.convert: concat_examples converter to_device
datasets: SubDataset TransformDataset TupleDataset create_empty_dataset scatter_dataset
datasets: scatter_index split_dataset
datasets: ConcatenatedDataset DictDataset ImageDataset LabeledImageDataset TextDataset
datasets: get_cross_validation_datasets
datasets: split_dataset_n split_dataset_n_random get_cross_validation_datasets_random get_ptb_words
datasets: PickleDataset PickleDatasetWriter open_pickle_dataset open_pickle_dataset_writer
datasets: get_cifar10 get_cifar100 get_fashion_mnist get_mnist split_dataset_random DataSizeError
extensions: AllreducePersistent GenericMultiNodeEvaluator MultiNodeEarlyStoppingTrigger
extensions: ObservationAggregator
extensions: create_multi_node_checkpointer create_multi_node_evaluator multi_node_snapshot
function: FunctionHook force_backprop_mode no_backprop_mode
function_node: FunctionNode grad
functions: allgather alltoall bcast gather pseudo_connect recv scatter send identity
global_except_hook: add_hook
initializer: Initializer get_fans
iterators: MultiprocessIterator MultithreadIterator
iterators: SerialIterator ShuffleOrderSampler create_multi_node_iterator
iterators: create_synchronized_iterator
link: Chain ChainList Link Sequential
links: MultiNodeBatchNormalization MultiNodeChainList create_mnbn_model create_multi_node_n_step_rnn
optimizer: GradientClipping GradientHardClipping GradientLARS GradientMethod GradientNoise
optimizer: Hyperparameter Lasso Optimizer
optimizer: HyperparameterProxy UpdateRule WeightDecay
optimizers: SGD Adam create_multi_node_optimizer
testing: assert_allclose get_device product product_dict
training: Extension IntervalTrigger ParallelUpdater StandardUpdater Trainer Updater extension
training: extensions get_trigger
training: make_extension trigger triggers updater updaters
training.extension: Extension PRIORITY_EDITOR PRIORITY_READER PRIORITY_WRITER make_extension
training.trigger: IntervalTrigger get_trigger
training.updater: ParallelUpdater StandardUpdater Updater
utils: argument
utils.argument: assert_kwargs_empty check_unexpected_kwargs parse_kwargs
utils: force_array get_conv_outsize get_deconv_outsize size_of_shape
variable: Parameter Variable as_variable
"""
WANTED = [
    (line.split(":")[0], name)
    for line in NAMES.strip().splitlines()
    for name in line.split(":")[1].split()
]


@pytest.mark.parametrize("module", list(dict.fromkeys(module for module, _ in WANTED)))
def test_a_module_has_the_names_that_programs_take_from_it(module):
    found = importlib.import_module(f"mnpar.{module}" if module else "mnpar")
    missing = [name for where, name in WANTED if where == module and not hasattr(found, name)]
    assert not missing


def test_one_import_gives_all_of_them():
    """In a program of its own: here others have imported modules already."""
    paths = sorted({".".join(filter(None, ["mnpar", module, name])) for module, name in WANTED})
    code = f"import mnpar\nfor path in {paths}: eval(path)"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        ).stderr
        == ""
    )


@pytest.mark.parametrize("module", ["nccl", "backends", "cuda"])
def test_modules_can_be_taken_from_the_package(module):
    assert hasattr(mnpar, module)


# ---- devices ----


@pytest.mark.parametrize(
    "spoken", ["@numpy", -1, "-1", np.int64(-1), cuda.DummyDevice, backend.CpuDevice()], ids=repr
)
def test_the_host_is_spoken_of_in_many_ways(spoken):
    device = mnpar.get_device(spoken)
    assert isinstance(device, backend.CpuDevice)
    assert (device.name, device.id, device.xp) == ("@numpy", -1, np)


@pytest.mark.parametrize(
    "spoken", ["@cupy:2", 2, "2", backend.GpuDevice.from_device_id(2)], ids=repr
)
def test_a_gpu_is_spoken_of_in_many_ways(spoken):
    device = mnpar.get_device(spoken)
    assert isinstance(device, backend.GpuDevice)
    assert (device, device.id) == ("@cupy:2", 2)
    assert pickle.loads(pickle.dumps(device)) == device


@pytest.mark.parametrize(
    "spoken", ["native", "@numpy:0", "@cupy:x", "", "cuda:0", None, 0.5], ids=repr
)
def test_no_device_is_guessed(spoken):
    with pytest.raises(ValueError, match="unknown device"):
        mnpar.get_device(spoken)


def test_a_device_sends_what_is_in_tuples_lists_and_dicts():
    x = np.ones(2)
    sent = mnpar.get_device("@numpy").send((x, [x, None], {"a": x}))
    assert sent[0] is x
    assert sent[1][0] is x
    assert sent[1][1] is None
    assert sent[2]["a"] is x


@pytest.mark.parametrize("device", [mnpar.get_device(-1), "@numpy", -1], ids=repr)
def test_links_variables_and_updaters_take_a_device_object(device):
    model = L.Classifier(L.Linear(2, 2)).to_device(device)
    assert model.device == "@numpy"
    assert mnpar.Variable(np.ones(2)).device.xp is np
    iterator = mnpar.iterators.SerialIterator([(np.ones(2, "f"), 0)], 1)
    mnpar.training.StandardUpdater(
        iterator, mnpar.optimizers.SGD().setup(model), device=device
    ).update()


@pytest.fixture
def no_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)  # importing it fails
    cuda._look.cache_clear()
    yield
    cuda._look.cache_clear()


@pytest.mark.usefixtures("no_cupy")
def test_without_cupy_one_is_told_so():
    assert cuda.cupy is mnpar.cuda.cupy is None
    assert cuda.available is mnpar.cuda.available is False
    assert not isinstance(np.ones(1), cuda.ndarray)
    for call in (cuda.check_cuda_available, lambda: cuda.to_gpu(np.ones(1)), L.Linear(1, 1).to_gpu):
        with pytest.raises(RuntimeError, match="mnpar\\[gpu\\]"):
            call()
    with pytest.raises(AttributeError, match="no 'nothing'"):
        cuda.nothing  # noqa: B018


def test_to_gpu_means_the_gpu_that_the_rank_has_chosen(device):
    """ChainerMN's programs choose it by ``get_device_from_id(comm.intra_rank).use()``."""
    cuda.get_device_from_id(3).use()
    model = L.Linear(2, 2)
    model.to_gpu()
    assert model.device == model.W.device == "@cupy:3"
    mnpar.get_device("@cupy:2").use()
    v = mnpar.Variable(np.ones(2))
    v.to_gpu()
    assert v.device == "@cupy:2"
    assert [x.device.id for x in cuda.to_gpu([np.ones(1)] * 2)] == [2, 2]
    assert cuda.to_gpu(np.ones(1), device=0).device.id == 0
    assert device.cuda.Device().id == 2
    model.to_cpu()
    assert model.device == "@numpy"


def test_a_device_is_current_inside_its_block(device):
    with mnpar.using_device("@cupy:3") as third:
        assert device.cuda.Device().id == third.id == 3
    x = cuda.to_gpu(np.ones(2), device=2)
    assert device.cuda.Device().id == 0
    with cuda.get_device_from_array(None, np.ones(1), x) as second:
        assert device.cuda.Device().id == second.id == 2
    assert cuda.get_device(x).id == cuda.get_device(2).id == 2
    assert backend.get_device_from_array(np.ones(1), mnpar.Variable(x)) == "@cupy:2"
    assert mnpar.get_device("@cupy") == "@cupy:0"


def test_copies_on_the_host_are_copies():
    x = np.arange(3.0)
    out = np.zeros(3)
    assert cuda.copy(x) is not x
    assert cuda.copy(x, out=out) is out
    backend.copyto(out, x + 1)
    np.testing.assert_array_equal(out, [1, 2, 3])
    assert cuda.to_cpu([x, None])[0] is x


# ---- settings ----


def test_settings_are_printed(capsys):
    mnpar.config.show()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines if line.startswith("train ")] == [["train", "True"]]
    with mnpar.using_config("use_cudnn_tensor_core", "never"):
        assert mnpar.config.use_cudnn_tensor_core == "never"


def test_a_communicator_keeps_its_own_settings():
    comm = mnpar.create_communicator("pure_nccl", allreduce_grad_dtype="float16")
    other = mnpar.create_communicator()
    assert comm.get_config() == {"batched_copy": True, "allreduce_grad_dtype": "float16"}
    comm.set_config("batched_copy", False)
    assert comm.get_config("batched_copy") is False
    assert not comm.batched_copy
    comm.set_config("batched_copy")
    assert comm.batched_copy
    assert not mnpar.create_communicator("naive", batched_copy=False).batched_copy
    assert other.get_config("batched_copy") is other.batched_copy is True
    with pytest.raises(ValueError, match="no option 'nothing'"):
        comm.set_config("nothing", 1)
    with pytest.raises(AttributeError, match="no MPI is behind it"):
        comm.mpi_comm.Barrier()


@pytest.mark.ranks(2, on="mpi")
def test_the_communicator_of_mpi_is_behind_its_own(comm):
    assert comm.mpi_comm.allreduce(comm.rank) == 1
    assert comm.split(comm.rank, 0).mpi_comm.Get_size() == 1


# ---- models over ranks ----


class Two(mnpar.Chain):
    def __init__(self, rank):
        super().__init__()
        self.a = L.Linear(2, 3, initialW=rank + 1.0, nobias=True)
        self.b = L.Linear(None, 2, initialW=rank + 2.0)
        self.n = L.BatchNormalization(2)
        self.n.avg_mean[:] = rank


@pytest.mark.ranks(1, 3, on="threads")
def test_bcast_data_gives_rank_0s_parameters_and_statistics(comm):
    model = Two(comm.rank)
    comm.bcast_data(model)
    assert (model.a.W.array == 1).all()
    assert model.b.W.array is None
    assert (model.n.avg_mean == 0).all()


@pytest.mark.ranks(1, 3, on="threads")
@pytest.mark.parametrize("zero_fill", [False, True])
def test_mean_gradients_count_missing_ones_as_zeros(comm, zero_fill):
    model = Two(comm.rank)
    if comm.rank == comm.size - 1:
        model.a.W.grad = np.full((3, 2), 6.0, "f")
    for _ in range(2):  # the second time all have the same
        comm.multi_node_mean_grad(model, zero_fill)
        np.testing.assert_allclose(model.a.W.grad, 6 / comm.size)
    assert (model.b.b.grad is None) is not zero_fill
    assert model.b.W.array is None


def test_with_debug_a_diverged_gradient_is_an_error():
    def program(comm):
        model = L.Linear(2, 2)
        model.W.grad = np.full((2, 2), np.nan, "f")
        mnpar.set_debug(True)
        comm.allreduce_grad(model)

    with pytest.raises(ValueError, match=r"diverged: the mean gradient of /W"):
        mnpar.run(program, ranks=2)


# ---- small things ----


def test_a_converters_device_is_an_object():
    seen = []

    @mnpar.dataset.converter()
    def convert(batch, device, more=0):
        seen.append(device)
        return batch, more

    assert convert([1], "@numpy", more=2) == ([1], 2)
    convert([1])
    assert seen == ["@numpy", None]
    assert isinstance(seen[0], backend.Device)


@pytest.mark.parametrize("device", ["@numpy", -1, backend.CpuDevice()], ids=repr)
def test_converters_in_training_get_chainers_kind_of_device(device):
    """Functions of programs for Chainer ask for ``device >= 0``."""
    model, seen = L.Classifier(L.Linear(2, 2)), []

    def convert(batch, device):
        seen.append(device)
        return mnpar.dataset.concat_examples(batch, device)

    class Kept(mnpar.dataset.Converter):
        def __call__(self, batch, device=None):
            return convert(batch, device)

    for one in (convert, Kept()):
        updater = mnpar.training.StandardUpdater(
            mnpar.iterators.SerialIterator([(np.ones(2, "f"), 0)], 1),
            mnpar.optimizers.SGD().setup(model),
            one,
            device,
        )
        updater.update()
        batches = mnpar.iterators.SerialIterator([(np.ones(2, "f"), 0)], 1, repeat=False)
        mnpar.training.extensions.Evaluator(batches, model, one, device)()
    assert seen == [-1, -1, backend.CpuDevice(), backend.CpuDevice()]
    assert [type(one) for one in seen] == [int, int, backend.CpuDevice, backend.CpuDevice]


def test_names_of_upper_modules_are_the_same_objects():
    assert L.MultiNodeChainList is mnpar.MultiNodeChainList
    assert mnpar.optimizers.create_multi_node_optimizer is mnpar.create_multi_node_optimizer
    assert mnpar.link.Chain is mnpar.Chain
    assert mnpar.variable.Parameter is mnpar.Parameter
    assert optimizer.WeightDecay is mnpar.optimizer_hooks.WeightDecay


def test_a_proxy_is_a_hyperparameter():
    class Own(optimizer.GradientMethod):
        rate = optimizer.HyperparameterProxy("rate")

    own = Own()
    own.rate = 0.5
    assert own.hyperparam.rate == 0.5


def test_assert_allclose_compares_shapes_too():
    testing.assert_allclose(mnpar.Variable(np.ones(2)), np.ones(2))
    testing.assert_allclose(np.ones(2), 1)
    with pytest.raises(AssertionError):
        testing.assert_allclose(np.ones(2), np.ones(1))
    with pytest.raises(AssertionError):
        testing.assert_allclose(np.ones(2), np.full(2, 1.1))
    assert testing.product([[1, 2], "a"]) == [(1, "a"), (2, "a")]


def test_arrays_are_forced():
    assert mnpar.utils.force_array(np.float32(2)).shape == ()
    assert mnpar.utils.force_array(np.ones(2), "f4").dtype == np.float32
    assert mnpar.as_array(F.identity(np.ones(2))).tolist() == [1, 1]


def test_keyword_arguments_are_taken_by_name():
    def program(**kwargs):
        return argument.parse_kwargs(kwargs, ("a", 1), ("b", 2), train="use using_config")

    assert program(b=3) == (1, 3)
    with pytest.raises(ValueError, match="use using_config"):
        program(train=True)
    with pytest.raises(
        TypeError, match=r"program\(\) got unexpected keyword argument\(s\) 'c', 'd'"
    ):
        program(d=1, a=2, c=1)
    with pytest.raises(TypeError, match=r"arguments_are_taken_by_name\(\) got unexpected .* 'x'"):
        argument.assert_kwargs_empty({"x": 1})


# ---- names of arguments, where programs might give them by name ----

ARGUMENTS = """
Variable.addgrad: var
Variable.copydata: var
Parameter.copydata: var
as_variable: obj
get_device: device_spec
using_device: device_spec
functions.maximum: x1 x2
functions.minimum: x1 x2
ChainList.insert: index link
ChainList.append: link
Sequential.insert: i layer
Sequential.append: layer
Sequential.extend: sequential
Sequential.pop: i
Sequential.remove: layer
Sequential.index: layer start end
Sequential.count: layer
Sequential.count_by_layer_type: type_name
Sequential.remove_by_layer_type: type_name
optimizer.HyperparameterProxy: attr_name
optimizer_hooks.GradientClipping.__call__: opt
datasets.TextDataset.get_example: idx
datasets.ZippedImageDataset.get_example: i_or_filename
"""


@pytest.mark.parametrize("line", ARGUMENTS.strip().splitlines())
def test_arguments_have_chainers_names_and_order(line):
    path, names = line.split(": ")
    found = attrgetter(path)(mnpar)
    own = [name for name in inspect.signature(found).parameters if name != "self"]
    assert own[: len(names.split())] == names.split()


def test_a_sequential_is_changed_by_methods_with_chainers_arguments():
    model = mnpar.Sequential(F.relu)
    model.append(layer=F.tanh)
    model.insert(i=0, layer=F.sigmoid)
    model.extend(sequential=mnpar.Sequential(F.relu))
    assert list(model) == [F.sigmoid, F.relu, F.tanh, F.relu]
    assert (model.index(layer=F.relu, start=2), model.count(layer=F.relu)) == (3, 2)
    with pytest.raises(ValueError, match="not in list"):
        model.index(layer=F.tanh, start=0, end=2)
    assert model.pop(i=0) is F.sigmoid
    model.remove(layer=F.relu)
    assert list(model) == [F.tanh, F.relu]


def test_a_variable_describes_itself():
    x = mnpar.Variable(np.array([[1.0, 3.0]], "f4"), name="x")
    assert (x.label, mnpar.Variable(np.array(1.0)).label) == ("(1, 2), float32", "float64")
    assert x.summary() == "<variable x>"
    x.grad = np.array([[1.0, -1.0]], "f4")
    lines = [
        "<variable x>",
        "- device: @numpy",
        "- array: (1, 2), float32: mean=2.00000000, std=1.00000000",
        "- grad: (1, 2), float32: mean=0.00000000, std=1.00000000",
    ]
    assert x.debug_print().split("\n") == lines
    assert mnpar.Parameter().debug_print().split("\n")[1:] == [
        "- device: None",
        "- array: None",
        "- grad: None",
    ]
    assert mnpar.Parameter().label == "None"
    assert (
        mnpar.Variable(np.full(3, 6e4, "e"))
        .debug_print()
        .endswith("(3), float16: mean=60000.00000000, std=0.00000000\n- grad: None")
    )
    assert (
        mnpar.Variable(np.empty((0, 2))).debug_print().split("\n")[2] == "- array: (0, 2), float64"
    )
