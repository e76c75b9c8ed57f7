"""When to call an extension, and when to stop: functions of the trainer that return True or
False.
"""

from typing import TYPE_CHECKING

from mnpar import lazy

if TYPE_CHECKING:
    from mnpar.training.triggers.best_value import (
        BestValueTrigger as BestValueTrigger,
        EarlyStoppingTrigger as EarlyStoppingTrigger,
        MaxValueTrigger as MaxValueTrigger,
        MinValueTrigger as MinValueTrigger,
    )
    from mnpar.training.triggers.interval import (
        IntervalTrigger as IntervalTrigger,
        ManualScheduleTrigger as ManualScheduleTrigger,
        OnceTrigger as OnceTrigger,
        TimeTrigger as TimeTrigger,
    )
else:
    __getattr__, __dir__, __all__ = lazy.names(__name__)
