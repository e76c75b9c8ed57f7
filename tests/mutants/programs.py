"""All right programs."""

from tests.mutants import programs_data, programs_model, programs_parts  # noqa: F401
from tests.mutants.program import PROGRAMS as PROGRAMS
