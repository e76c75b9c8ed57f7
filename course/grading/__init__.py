"""The graders of all exercises: each says in plain words what an answer does, and what it should.

``verdict(name, answer)`` is what the lessons' ``grade`` prints; ``fault`` is what ``pytest course``
asserts to be empty. Each lesson has a file here, whose functions have the names of its exercises.
"""

from grading import (
    adjoint as adjoint,
    deadlock as deadlock,
    divided_layer as divided_layer,
    pipeline as pipeline,
    ranks as ranks,
    ring as ring,
    sharded_states as sharded_states,
)
from grading.exercise import by_number as by_number, fault as fault, verdict as verdict
