"""Extensions of a trainer that work over ranks."""

from typing import TYPE_CHECKING

from mnpar import lazy

if TYPE_CHECKING:
    from mnpar.checkpoint import create_multi_node_checkpointer as create_multi_node_checkpointer
    from mnpar.extensions.multi_node_evaluator import (
        GenericMultiNodeEvaluator as GenericMultiNodeEvaluator,
        create_multi_node_evaluator as create_multi_node_evaluator,
    )
    from mnpar.extensions.multi_node_snapshots import multi_node_snapshot as multi_node_snapshot
    from mnpar.extensions.observation_aggregator import (
        AllreducePersistent as AllreducePersistent,
        MultiNodeEarlyStoppingTrigger as MultiNodeEarlyStoppingTrigger,
        ObservationAggregator as ObservationAggregator,
    )
else:
    __getattr__, __dir__, __all__ = lazy.names(__name__)
