"""What the tests of files save and load."""

import mnpar
import mnpar.links as L


class Net(mnpar.Chain):
    """A layer, a normalization with persistent values, and a layer that has no size yet."""

    def __init__(self):
        super().__init__()
        self.l1 = L.Linear(2, 3)
        self.bn = L.BatchNormalization(3)
        self.unused = L.Linear(None, 1)


class Bag:
    """Whatever it holds, serialized under its names."""

    def __init__(self, **values):
        self.values = values

    def serialize(self, serializer):
        for key, value in self.values.items():
            self.values[key] = serializer(key, value)
