"""Extensions of a trainer that work over ranks."""

from typing import TYPE_CHECKING

from mnpar import lazy

if TYPE_CHECKING:
    from mnpar.checkpoint import create_multi_node_checkpointer
    from mnpar.extensions.multi_node_evaluator import (
        GenericMultiNodeEvaluator,
        create_multi_node_evaluator,
    )
    from mnpar.extensions.multi_node_snapshots import multi_node_snapshot
    from mnpar.extensions.observation_aggregator import (
        AllreducePersistent,
        MultiNodeEarlyStoppingTrigger,
        ObservationAggregator,
    )
else:
    __getattr__, __dir__ = lazy.names(__name__)

__all__ = [
    "AllreducePersistent",
    "GenericMultiNodeEvaluator",
    "MultiNodeEarlyStoppingTrigger",
    "ObservationAggregator",
    "create_multi_node_checkpointer",
    "create_multi_node_evaluator",
    "multi_node_snapshot",
]
