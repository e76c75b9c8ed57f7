"""Evaluation over ranks: each rank evaluates its shard, and all get the result of the whole."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any

from mnpar.communicators.communicator import require_communicator
from mnpar.configuration import no_backprop_mode, using_config
from mnpar.dataset import concat_examples
from mnpar.dataset.convert import converted
from mnpar.iterators.repeats import exclude_repeats, read_span, without_repeats
from mnpar.reporter import DictSummary, Sums
from mnpar.training.extension import PRIORITY_WRITER, Extension
from mnpar.training.extensions.evaluator import Evaluator
from mnpar.training.updaters.standard_updater import Converter, call

if TYPE_CHECKING:
    from mnpar.communicators import Communicator
    from mnpar.training.trainer import Trainer


def create_multi_node_evaluator(actual_evaluator: Any, communicator: Communicator) -> Any:
    """Let an evaluator report means over the examples of all ranks, the same on each; all ranks
    call the evaluator together.

    Shards may be of any length, empty ones included, and ranks may report different values (a rank
    in the middle of a model-parallel network none at all): each mean is over the examples of the
    ranks that report the value, and equals the mean that one process would report. This holds for
    ``scatter_dataset(data, comm)`` too, which by default gives some examples to two ranks: each
    counts once, while all ranks make equally many batches, through multi-node and synchronized
    iterators and mnpar's data sets, too. (Where the iterator shuffles, is wrapped by a class of
    your own, or the Evaluator has an ``evaluate`` of its own, the iterator gets a data set without
    the repeated examples, and some ranks may make a batch less.)

    Args:
        actual_evaluator: an :class:`Evaluator`. One with an ``evaluate`` of its own, which returns
            means, counts by the length of its data set.
        communicator: of the ranks that evaluate together.

    Returns:
        ``actual_evaluator``, with another ``evaluate``.

    Raises:
        TypeError: the evaluator has no ``evaluate``.
        ValueError: examples repeat, and which ones is not known: behind an iterator or in a data
            set of a class that mnpar does not know.

    Example:
        >>> import numpy as np, mnpar, mnpar.links as L
        >>> from mnpar.training import extensions
        >>> def program(comm):
        ...     data = [(np.zeros(3, "f4"), 0)] * 3 if comm.rank == 0 else [(np.zeros(3, "f4"), 1)]
        ...     batches = mnpar.iterators.SerialIterator(data, 2, repeat=False)
        ...     evaluator = extensions.Evaluator(batches, L.Classifier(L.Linear(3, 2)))
        ...     return mnpar.create_multi_node_evaluator(evaluator, comm)()["main/accuracy"]
        >>> mnpar.run(program, ranks=2)
        [0.75, 0.75]
    """
    require_communicator(
        communicator, "create_multi_node_evaluator(actual_evaluator, communicator)"
    )
    if not hasattr(actual_evaluator, "evaluate"):
        given = "None" if actual_evaluator is None else f"a {type(actual_evaluator).__name__}"
        raise TypeError(
            f"rank {communicator.rank}: create_multi_node_evaluator needs an Evaluator, not {given}"
        )
    own = actual_evaluator.evaluate
    span = None
    if isinstance(actual_evaluator, Evaluator):
        iterator = actual_evaluator.get_all_iterators().get("main")
        span = read_span(iterator)
        in_order = getattr(own, "__func__", None) is Evaluator.evaluate
        actual_evaluator._repeated = exclude_repeats(iterator, in_order)

    def evaluate() -> dict[str, float]:
        actual_evaluator._summary = None
        means = own()
        sums = _sums(means, actual_evaluator._summary, _length(actual_evaluator))
        ranks = communicator.allgather_obj((sums, span))
        if communicator.rank == 0:
            _warn_of_unread([span for sums, span in ranks if sums])
        total = DictSummary()  # added up in rank order: the same digits everywhere
        total.merge([sums for sums, _ in ranks])
        return total.compute_mean()

    actual_evaluator.evaluate = evaluate
    return actual_evaluator


def _warn_of_unread(spans: list[tuple[int, int, int] | None]) -> None:
    """Warn if some of a scattered data set is read by none of the ranks that report something."""
    known = sorted([span for span in spans if span is not None])
    if len(known) < len(spans) or len(dict.fromkeys([total for _, _, total in known])) != 1:
        return
    read = reached = 0
    for begin, end, _ in known:
        read += max(0, end - max(begin, reached))
        reached = max(reached, end)
    total = known[0][2]
    if read < total:
        warnings.warn(
            f"this evaluation counts {read} of the {total} examples that scatter_dataset spread: "
            "the ranks that evaluate together do not read the others. Scatter over the ranks "
            "that evaluate, or give the whole data set to the master of a multi-node iterator",
            stacklevel=2,
        )


def _sums(means: dict[str, Any], known: DictSummary | None, n: int) -> dict[str, Sums]:
    """Return the sums behind the means: those of the Evaluator's summary, or, for other means, n
    times the mean.
    """
    kept = {} if known is None else known.sums()
    of = {} if known is None else known.compute_mean()
    sums: dict[str, Sums] = {}
    for name, mean in means.items():
        own = DictSummary()
        if n:
            own.add({name: mean}, weight=n)
        same = isinstance(mean, float) and name in of and (mean == of[name] or mean != mean)
        sums.update({name: kept[name]} if same else own.sums())
    return sums


def _length(evaluator: Any) -> int:
    """Return the number of examples of the main iterator; 1 where it is not known."""
    iterators = evaluator.get_all_iterators() if isinstance(evaluator, Evaluator) else {}
    dataset = getattr(iterators.get("main"), "dataset", None)
    return 1 if dataset is None else len(dataset)


class GenericMultiNodeEvaluator(Extension):
    """An evaluation whose results are no means: each rank computes results of its batches, and one
    rank aggregates them.

    A subclass defines ``calc_local`` (and ``aggregate``). Shards may be of any length; examples
    that ``scatter_dataset`` repeats count once, as with :func:`mnpar.create_multi_node_evaluator`.
    Collective.

    Args:
        comm: of the ranks that evaluate together; None: this rank alone.
        iterator: of this rank's examples; one that ends.
        target: the model; ``calc_local`` calls it unless a subclass overrides that.
        device: where batches go; None leaves them where they are.
        converter: makes arrays of a batch, ``converter(batch, device)``.
        root: the rank that aggregates the results.
        progress_hook: called on the root with each of its batches.

    Raises:
        ValueError: there is no such root.

    Example:
        >>> import mnpar
        >>> from mnpar.extensions import GenericMultiNodeEvaluator
        >>> class Longest(GenericMultiNodeEvaluator):
        ...     def calc_local(self, *words):
        ...         return max(words, key=len)
        ...
        ...     def aggregate(self, results):
        ...         return max(results, key=len)
        >>> def program(comm):
        ...     words = [["a", "bcd"], ["efghi"]][comm.rank]
        ...     batches = mnpar.iterators.SerialIterator(words, 1, repeat=False)
        ...     return Longest(comm, batches, None, converter=lambda batch, device: tuple(batch))(
        ...         None
        ...     )
        >>> mnpar.run(program, ranks=2)
        ['efghi', None]
    """

    trigger = (1, "epoch")
    default_name = "validation"
    priority = PRIORITY_WRITER

    def __init__(
        self,
        comm: Communicator | None,
        iterator: Any,
        target: Callable[..., Any],
        device: int | str | None = None,
        converter: Converter = concat_examples,
        root: int = 0,
        *,
        progress_hook: Callable[[Any], None] | None = None,
    ) -> None:
        if not 0 <= root < (1 if comm is None else comm.size):
            raise ValueError(f"root = {root} is no rank of {comm}")
        self.comm, self.iterator, self.root = comm, iterator, root
        self._repeated = [] if comm is None else exclude_repeats(iterator)
        self._targets = {"main": target}
        self.device = device
        self.converter = converter
        self._progress_hook = progress_hook

    def __call__(self, trainer: Trainer) -> Any:
        """Evaluate; return the result of ``aggregate`` on the root, and None on other ranks."""
        if hasattr(self.iterator, "reset"):
            self.iterator.reset()
            iterator = self.iterator
        else:
            iterator = copy.copy(self.iterator)
        results = list(self._results(iterator))
        if self.comm is None:
            return self.aggregate(results)
        ranks = self.comm.gather_obj(results, root=self.root)
        if ranks is None:
            return None
        nothing = object()
        # the first batch of each rank, then the second ones
        in_turn = chain.from_iterable(zip_longest(*ranks, fillvalue=nothing))
        return self.aggregate([result for result in in_turn if result is not nothing])

    def _results(self, batches: Any) -> Iterator[Any]:
        is_root = self.comm is None or self.comm.rank == self.root
        for batch, counts in without_repeats(batches, self._repeated):
            with using_config("train", False), no_backprop_mode():
                result = call(self.calc_local, converted(self.converter, batch, self.device))
            if result is None:
                raise TypeError(
                    f"{type(self).__name__}.calc_local returned None: it returns the result of "
                    "a batch"
                )
            if is_root and self._progress_hook:
                self._progress_hook(batch)
            if counts:
                yield result

    def calc_local(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result of a batch, on each rank: by default what the target returns."""
        return self._targets["main"](*args, **kwargs)

    def aggregate(self, results: list[Any]) -> Any:
        """Return the result of all batches, on the root: by default the list. It may report, too.

        Args:
            results: one for each batch, the first ones of all ranks, then the second ones, and so
                on.
        """
        return results
