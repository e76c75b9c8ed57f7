"""Rows of special functions. The truth is the C library's, the standard library's, or a sum written
out.
"""

import math
import statistics

import numpy as np

import mnpar.functions as F
from mnpar.functions.math import linear_algebra, special
from tests.functions.cases.case import Case, N

ERFC, LGAMMA, QUANTILE = (
    np.vectorize(f, otypes=["d"]) for f in (math.erfc, math.lgamma, statistics.NormalDist().inv_cdf)
)
ROOT = math.sqrt(0.5)
MANY = 2000


def below(x):
    return ERFC(-ROOT * x) / 2


def hurwitz(x, q):
    """Many terms, and an integral for the rest, from half a step before the next one on, corrected
    once.
    """
    x, q = np.broadcast_arrays(x, q)
    terms = (q[..., None] + np.arange(MANY)) ** -x[..., None]
    z = q + MANY - 0.5
    return terms.sum(axis=-1) + z ** (1 - x) / (x - 1) - x / 24 * z ** (-x - 1)


def harmonic(x):
    """ψ(x) by log Γ's product: log z of the end, less the terms before it."""
    z = x + MANY
    return (
        np.log(z) - 0.5 / z - 1 / (12 * z * z) - (1 / (x[..., None] + np.arange(MANY))).sum(axis=-1)
    )


def positive(x):
    """A positive definite matrix of a square one."""
    return x @ x.T + np.eye(3, dtype=getattr(x, "dtype", None))


CASES = [
    Case("erfc", (), F.erfc, ERFC),
    Case("erfc: far out", (), F.erfc, ERFC, low=-5, high=5),
    Case("erfcx", (), F.erfcx, lambda x: np.exp(x * x) * ERFC(x)),
    Case("erfcx: far out", (), F.erfcx, lambda x: np.exp(x * x) * ERFC(x), low=0.1, high=6),
    Case("ndtr", (), F.ndtr, below),
    Case(
        "log_ndtr",
        (special._inverse_mills_ratio.node,),
        F.log_ndtr,
        lambda x: np.log(below(x)),
    ),
    Case("log_ndtr: far out", (), F.log_ndtr, lambda x: np.log(below(x)), low=-8, high=3),
    Case(
        "erfinv",
        (),
        F.erfinv,
        lambda x: ROOT * QUANTILE((x + 1) / 2),
        low=-0.9,
        high=0.9,
    ),
    Case(
        "erfcinv",
        (),
        F.erfcinv,
        lambda x: -ROOT * QUANTILE(x / 2),
        low=0.1,
        high=1.9,
        halves=2e-2,
    ),
    Case("ndtri", (), F.ndtri, QUANTILE, low=0.05, high=0.95, halves=2e-2),
    Case("lgamma", (), F.lgamma, LGAMMA, low=0.3, high=4),
    Case("lgamma: of large numbers", (), F.lgamma, LGAMMA, low=8, high=30),
    Case("lgamma: of negative numbers", (), F.lgamma, LGAMMA, low=-0.9, high=-0.1),
    Case("digamma", (), F.digamma, harmonic, low=0.4, high=4),
    Case("digamma: of negative numbers", (), F.digamma, harmonic, low=-0.9, high=-0.2),
    Case(
        "polygamma",
        (special.PolyGamma,),
        lambda x: F.polygamma(np.array([0.0, 1.0, 2.0]), x),
        lambda x: np.stack(
            [harmonic(x[:, 0]), hurwitz(2.0, x[:, 1]), -2 * hurwitz(3.0, x[:, 2])], axis=1
        ),
        low=0.5,
        high=3,
        halves=2e-2,
    ),
    Case(
        "cholesky",
        (linear_algebra.Cholesky,),
        lambda x: F.cholesky(positive(x)),
        lambda x: np.linalg.cholesky(positive(x)),
        ((3, 3),),
        halves=2e-2,
    ),
    Case(
        "zeta",
        (special.Zeta,),
        lambda q: F.zeta(np.array([1.5, 2.0, 4.0]), q),
        lambda q: hurwitz(np.array([1.5, 2.0, 4.0]), q),
        ((N, 3),),
        low=0.5,
        high=3,
        halves=2e-2,
    ),
]
