"""``python -m tests.mutants [program …]``: run all mutants of these programs, or of all; print
those that are silent or hang, and how many there are of each kind.

``MNPAR_MUTANTS_OUT`` names a file, which gets a line of JSON for each mutant.
"""

import json
import os
import sys
import time

from tests.mutants.operators import mutants
from tests.mutants.outcomes import outcome
from tests.mutants.programs import PROGRAMS
from tests.mutants.table import table

start, outcomes = time.monotonic(), []
for name in sys.argv[1:] or PROGRAMS:
    for mutant in mutants(PROGRAMS[name]):
        outcomes.append(outcome(mutant))
        if outcomes[-1].kind in ("silent", "hung"):
            print(outcomes[-1], flush=True)
print(*table([one.row for one in outcomes]), sep="\n")
print(f"{len(outcomes)} mutants in {time.monotonic() - start:.0f} s")
if where := os.environ.get("MNPAR_MUTANTS_OUT"):
    with open(where, "w", encoding="utf-8") as file:
        for one in outcomes:
            told = {"kind": one.kind, "error": one.error, "text": one.text}
            json.dump({"mutant": str(one.mutant), **told, "source": one.mutant.source}, file)
            file.write("\n")
