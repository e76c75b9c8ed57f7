"""When to call an extension, and when to stop: functions of the trainer that return True or
False.
"""

from mnpar.training.triggers.best_value import (
    BestValueTrigger,
    EarlyStoppingTrigger,
    MaxValueTrigger,
    MinValueTrigger,
)
from mnpar.training.triggers.interval import (
    IntervalTrigger,
    ManualScheduleTrigger,
    OnceTrigger,
    TimeTrigger,
)

__all__ = [
    "BestValueTrigger",
    "EarlyStoppingTrigger",
    "IntervalTrigger",
    "ManualScheduleTrigger",
    "MaxValueTrigger",
    "MinValueTrigger",
    "OnceTrigger",
    "TimeTrigger",
]
