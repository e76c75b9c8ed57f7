"""Every constant on which only speed depends, with the benchmark that it was chosen by.

A result is right whatever their values. The benchmarks named are those of the repository's
``benchmarks/``: whoever changes a constant runs the one that its group names, before and after. How
much of an array is worked on at a time is the backend's ``block_bytes``.

``python -m mnpar doctor --tune`` measures those in ``CHOSEN_HERE`` on a machine (tune.py) and keeps
what is faster in the user's cache folder, by kind of processor, from where it is read at the end of
this file.
"""

import contextlib
import hashlib
import json
import os
import platform
import sys
import warnings
from pathlib import Path

from mnpar.kernels.processor import has_registers_of_eight, has_wide_registers

# Compiled loops (compiler.py): benchmark "functions" (normalizations, softmax, gelu; relu), with
# MNPAR_KERNELS=numba and without, and ``doctor --tune`` for the first and the last. A call of a
# loop takes as long as some five of numpy's.
COMPILED_LEAST = 2**8  # elements: fewer are left to numpy, and do not import numba
CHEAP_LEAST = 2**13  # the same, where numpy makes but one or two passes
# the same, of eˣ and log x, and of log(1 + x): where registers are wide, numpy's own take half to
# three quarters of the time, whatever the size (benchmark "functions", exp, log, log1p)
EXPONENTIAL_LEAST = sys.maxsize if has_wide_registers() else CHEAP_LEAST
LOG1P_LEAST = sys.maxsize if has_wide_registers() else COMPILED_LEAST
COSTLY_LEAST = 2**3  # the same, where it makes ten and more, which take 20 to 80 µs of any array

# Sums as products with ones, and rows in blocks: benchmark "functions" (sums, softmax).
SUM_LEAST = 2**13  # elements: fewer are summed up by numpy, and computed at once
ONES_KEPT = 2**14  # the longest vector of ones that is kept

# Statistics of normalizations: benchmark "functions" (batch, group and layer normalization).
# elements of a block, 0.8 MB of float32: its input, output and gradient fit a core's second cache
MOMENTS_BLOCK = 200_000
# channels of a block, at least: shorter runs of memory cost more than they save
MOMENTS_CHANNELS = 8
MOMENTS_FEW = 8  # numbers of a channel: fewer are shifted without a look at their mean
# numbers of a channel that lie together, of compiled loops: fewer are left to numpy (one alone is a
# column, for which there are other loops). With 2 loops take 0.3 to 1.0 of numpy's time already.
CHANNEL_RUN = 2
LAYER_BLOCK = 2**16  # elements of a block of rows

# Windows as columns of a matrix: benchmark "steps".
# outputs of a sample that is a block by itself: its outputs are a matrix already
COLUMNS_LARGE = 500
COLUMNS_LEAST_BYTES = 2**16  # of the columns of such a sample
COLUMNS_SAME = 128  # outputs of a sample whose columns are the sample itself
COLUMNS_SHORT = 12  # outputs in a row of an image, at most, so that samples come last in memory
COLUMNS_LONGER = 4  # by how much this must lengthen what lies together

# Winograd's method: benchmark "steps", of 3 x 3 filters.
WINOGRAD_TOUCH = 20  # reading or writing a number costs as much as so many products,
WINOGRAD_CACHE = 2**19  # and three times that if there are more than so many numbers
WINOGRAD_PAYS = 0.65  # of the cost of the sum written out, at most
WINOGRAD_PAYS_GRADIENT = 0.58  # the same, for the gradient of filters
WINOGRAD_FEW_TILES = 4  # along the last axis, at most, and
WINOGRAD_MANY_SAMPLES = 8  # samples, at least, so that samples come last in memory

# Convolutions of images whose channels come last, by compiled loops: benchmark "steps", and
# ``doctor --tune`` for the bytes, pixels and calls.
COLUMN_LOOP_BYTES = 2**19  # of a block, and what is made of it: half a second cache
WINOGRAD_LOOP_BYTES = 2**20  # of a part of the tiles and what is made of them
WINOGRAD_LOOP_TOUCH = 10  # transforming a number takes as long as so many products,
WINOGRAD_LOOP_CALL = 2**20  # and its calls of numpy and of loops as long as so many
PLACES_KEPT = 2**12  # windows, or pixels, at most, whose tables are kept (32 kB each)
DIRECT_PIXELS = 512  # whose products are summed up in registers
# pixels of an image for each window and each pixel of a stride, at most: with more, zeros are
# multiplied that need not be
DIRECT_PIXELS_OF_WINDOW = 1.3

STACK_BYTES = 2**22  # of slices that are channels of images: half a third cache; not measured yet

# Sum pooling of images whose channels come last: benchmark "functions" (average pooling).
# windows that see a pixel, at most: 49 take 0.4 of numpy's time, 225 take 1.7 of it, because numpy
# adds up along one axis after the other
POOLED_VISITS = 64

# Products of matrices, and functions, of BLAS libraries: benchmark "steps".
DOT_MOST = 2**16  # multiplications: up to here ``dot`` is faster than ``matmul``
UNPACKED = 10**6  # multiplications of a product that OpenBLAS computes without packing
UNPACKED_ROWS = 16  # rows, at least, that are worth a product of their own
MKL_LEAST = 2**20  # multiplications: fewer are left to numpy, because a call costs 4 µs more
THREADED_LEAST = 2**24  # multiplications: from here on a process alone takes all cores
# rows, at most, of products with a matrix that has been packed: of 2 to 64 they take 0.2 to 0.85 of
# OpenBLAS's time where registers are wide, of 128 still 0.8 to 0.95; with AVX2 0.5 to 0.9 up to 32
PACKED_ROWS = 128 if has_wide_registers() else 32 if has_registers_of_eight() else 0
MKL_NARROW = 32  # rows, columns or terms: less is left to numpy, too
MKL_LEAST_NUMBERS = 2**10  # of a function: fewer are left to numpy

# Attention in blocks: benchmark "functions" (attention), and ``doctor --tune`` for the loop.
ATTENTION_WEIGHTS = 2**22  # that forward keeps for backward; more are computed again
ATTENTION_WEIGHTS_OF_HEAD = 2**18  # the same, of one head
ATTENTION_QUERIES = 64  # of a block of causal attention; of others twice as many
ATTENTION_LEAST_QUERIES = 32  # of any block, however many the keys
ATTENTION_LOOP_MOST = 2**19  # multiplications of both products: more are faster by BLAS

# Loops on several threads (side_by_side.py, pool.py): benchmark "steps" with --threads 2.
# numbers for each thread, at least, which take some 5 µs: one that spins begins after 1
LOOP_THREAD_LEAST = 2**14
POOL_SPIN = 100  # µs for which a thread spins before it sleeps: Python takes as long between loops
PARTS_OF_THREAD = 3  # parts of a loop for each thread: one that comes late takes fewer

# The LSTM's cell: benchmark "functions" (LSTM).
LSTM_BLOCKED_BYTES = 2**15  # of the gates: fewer are computed at once

CHOSEN_HERE = (
    "COMPILED_LEAST",
    "WINOGRAD_LOOP_BYTES",
    "DIRECT_PIXELS",
    "COLUMN_LOOP_BYTES",
    "COSTLY_LEAST",
    "ATTENTION_LOOP_MOST",
    "WINOGRAD_LOOP_CALL",
)


def kept_file() -> Path:
    """Return the file with the constants that were chosen for this kind of processor."""
    named = platform.machine()
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        named += next((line for line in file if line.startswith("model name")), "")
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "mnpar", "tuning")
    return folder / f"{hashlib.sha256(named.encode()).hexdigest()[:12]}.json"


def keep(chosen: dict[str, int]) -> Path:
    """Write the constants that were chosen here, beside those chosen before.

    Raises:
        OSError: the file cannot be written.
    """
    file = kept_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}-{os.getpid()}")
    part.write_text(json.dumps({**read(file), **chosen}, indent=1) + "\n", encoding="utf-8")
    part.replace(file)
    return file


def read(file: Path) -> dict[str, int]:
    """Return the constants in a file, none if there is no file; a damaged one costs a warning."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("it is not an object")
        for name, value in found.items():
            if name not in CHOSEN_HERE or type(value) is not int or not 0 < value < 2**40:
                raise ValueError(f"{name} = {value!r}")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        warnings.warn(
            f"mnpar: the constants in {file} are left alone: {error}. Remove it, or run "
            "python -m mnpar doctor --tune",
            stacklevel=2,
        )
        return {}
    return found


globals().update(read(kept_file()))
