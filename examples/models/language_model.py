"""A language model: which letter comes next, after each letter of a text."""

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.initializers import Normal


class Embedding(mnpar.Chain):
    """Letters and places as vectors."""

    def __init__(self, letters, length, unit):
        super().__init__()
        self.letters = L.EmbedID(letters, unit, Normal(0.05))
        self.places = L.EmbedID(length, unit, Normal(0.05))

    def forward(self, x, places):
        return self.letters(x) + self.places(places)


class Block(mnpar.Chain):
    """Attention, and a network of one hidden layer; each adds to what comes."""

    def __init__(self, unit, heads):
        super().__init__()
        self.norm1 = L.LayerNormalization(unit)
        self.norm2 = L.LayerNormalization(unit)
        self.attention = L.MultiHeadAttention(heads, unit, causal=True)
        self.wide = L.Linear(unit, 4 * unit)
        self.out = L.Linear(4 * unit, unit)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.out(F.gelu(self.wide(self.norm2(x), 2)), 2)


class Head(mnpar.Chain):
    """How likely each letter is the next, by the embedding's table; with these given, the loss."""

    def __init__(self, letters):
        super().__init__()
        n, unit = letters.W.shape
        self.norm = L.LayerNormalization(unit)
        self.scores = L.Linear(unit, n, nobias=True)
        self.scores.W = letters.W

    def forward(self, x, t=None):
        y = self.scores(self.norm(x), 2)
        return y if t is None else F.softmax_cross_entropy(y.reshape((-1, y.shape[-1])), t.ravel())


class LanguageModel(mnpar.Chain):
    """A transformer (Vaswani et al., 2017) that reads letters, and says which come next.

    Args:
        letters, length: how many different ones there are, and how many a text has.
        unit, heads, blocks: width, heads of attention, which divide the width, and depth.
    """

    def __init__(self, letters, length, unit, heads, blocks):
        super().__init__()
        self.embed = Embedding(letters, length, unit)
        self.blocks = mnpar.ChainList(*[Block(unit, heads) for _ in range(blocks)])
        self.head = Head(self.embed.letters)

    def forward(self, x, places, t=None):
        """Map letters (N, T) and their places to scores (N, T, letters); or, with the letters t
        (N, T) that come next, to the loss.
        """
        h = self.embed(x, places)
        for block in self.blocks:
            h = block(h)
        return self.head(h, t)

    def write(self, x, n, rng, temperature=0.7):
        """Return a text (T,) with n letters more, each drawn by the scores after those before."""
        places = np.arange(len(self.embed.places.W))
        for _ in range(n):
            with mnpar.using_config("train", False), mnpar.no_backprop_mode():
                y = self(x[None, -len(places) :], places[None]).array[0, -1:]
            (p,) = F.softmax(y.astype("f8") / temperature).array
            x = np.append(x, rng.choice(len(p), p=p))
        return x
