"""Data sets that the tests of reading ahead send to other processes."""

import collections
import os
import random
import signal

import numpy as np

import mnpar.random

Pair = collections.namedtuple("Pair", "a b")


class Kinds:
    """One of each kind of example."""

    def __len__(self):
        return 4

    def __getitem__(self, i):
        return {
            "f4": np.full((i, 2), i, np.float32),  # of several shapes, empty ones too
            "f2": np.arange(3, dtype=np.float16) * i,
            "big": np.array([i], ">i8"),
            "0-d": np.array(i, np.int8),
            "numpy": np.int32(i),
            "python": (i, float(i), bool(i), 2**70, complex(i)),
            "text": "é" * i,
            "nothing": None,
            "list": [i] * i,
            "named": Pair(i, np.ones(2)),
            "object": {i},
            "no examples": np.zeros((0, 3)),
        }


class Drawing:
    def __len__(self):
        return 6

    def __getitem__(self, i):
        return i, mnpar.random.generator().random(), np.random.rand(), random.random()


class Pids:
    def __len__(self):
        return 2

    def __getitem__(self, i):
        return os.getpid()


class Arrays:
    """Gives views of an array, and where it may, changes it."""

    def __init__(self):
        self.rows = np.arange(12.0).reshape(4, 3)

    def __len__(self):
        return 4

    def __getitem__(self, i):
        self.rows[i] *= 2
        return self.rows[i]


class OwnError(Exception):
    def __init__(self, a, b):  # cannot be pickled
        super().__init__(f"{a} and {b}")


class Failing:
    """Fails at example 2 as long as a file is there."""

    def __init__(self, path, how):
        self.path = path
        self.how = how

    def __len__(self):
        return 4

    def __getitem__(self, i):
        if i == 2 and os.path.exists(self.path):
            if self.how == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == "exit":
                raise SystemExit(3)
            raise {
                "value": ValueError("spoilt"),
                "own": OwnError(1, 2),
                "stop": StopIteration("early"),
            }[self.how]
        return i


class Unready:
    def __len__(self):
        return 2

    def __getitem__(self, i):
        return i

    def __setstate__(self, state):
        raise OSError("the disk is not mounted there")

    def __getstate__(self):
        return {"a": 1}


class Noisy:
    """Pairs (row, label), each row with noise that is drawn when it is read."""

    def __init__(self, n):
        self.rows = np.random.default_rng(1).standard_normal((n, 4))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        noise = mnpar.random.generator().standard_normal(4)
        return (self.rows[i] + 0.1 * noise).astype(np.float32), np.int32(self.rows[i, 0] > 0)
