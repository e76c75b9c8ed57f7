"""Products by a CBLAS library: what it is told of matrices that lie in any order, and what is left
to numpy.
"""

import ctypes
import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
from mnpar.kernels import blas, compiler, tuning
from tests.harness.tables import together


def matrix(place, turned, rows, columns, stride, dtype):
    """What CBLAS would read there."""
    shape = (columns, rows) if turned == 112 else (rows, columns)
    size = np.dtype(dtype).itemsize
    raw = (ctypes.c_char * (((shape[0] - 1) * stride + shape[1]) * size)).from_address(place)
    found = np.ndarray(shape, dtype, raw, strides=(stride * size, size))
    return found.T if turned == 112 else found


@pytest.fixture
def calls(monkeypatch):
    """A library written with numpy, and the letters of the products that it was asked for."""
    asked = []

    def gemm(letter):
        def product(order, left, right, M, N, K, alpha, a, lda, b, ldb, beta, c, ldc):
            asked.append(letter)
            dtype = {"s": "f4", "d": "f8"}[letter]
            assert (order, alpha, beta, ldc) == (101, 1.0, 0.0, N)
            matrix(c, 111, M, N, N, dtype)[...] = matrix(a, left, M, K, lda, dtype) @ matrix(
                b, right, K, N, ldb, dtype
            )

        return product

    monkeypatch.setattr(blas, "library", lambda: {"s": gemm("s"), "d": gemm("d")})
    return asked


LAYOUTS = {
    "rows": lambda x: x,
    "turned": lambda x: np.asfortranarray(x),
    "part of rows": lambda x: np.repeat(x, 2, axis=1)[:, : x.shape[1]],
    "every other row": lambda x: np.repeat(x, 2, axis=0)[::2],
    "a block": lambda x: np.pad(x, 3)[3:-3, 3:-3],
    "a block, turned": lambda x: np.pad(x.T, 3)[3:-3, 3:-3].T,
}


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("right", LAYOUTS)
def test_matrices_in_any_order_are_multiplied_by_the_library(calls, left, right, dtype):
    rng = np.random.default_rng(0)
    a = LAYOUTS[left](rng.random((96, 128)).astype(dtype))
    b = LAYOUTS[right](rng.random((128, 100)).astype(dtype))
    out = np.empty((96, 100), dtype)
    assert blas.product(a, b, out) is out
    np.testing.assert_allclose(out, a @ b, rtol=1e-5)
    np.testing.assert_allclose(blas.product(a, b), a @ b, rtol=1e-5)
    assert calls == [{"f4": "s", "f8": "d"}[dtype]] * 2


big = np.ones((128, 128), "f4")
LEFT_TO_NUMPY = {
    "small": (big[:32], big[:, :32]),
    "a vector": (np.ones((1, 2**14), "f4"), np.ones((2**14, 128), "f4")),
    "two dtypes": (big, big.astype("f8")),
    "halves": (big.astype("f2"), big.astype("f2")),
    "integers": (big.astype("i4"), big.astype("i4")),
    "complex": (big.astype("c8"), big.astype("c8")),
    "the other byte order": (big.astype(">f4"), big.astype(">f4")),
    "stacks": (big[None], big[None]),
    "backwards": (big[::-1], big),
    "columns apart": (np.ones((128, 256), "f4")[:, ::2], big),
    "one row, many times": (np.broadcast_to(big[0], (128, 128)), big),
    "a subclass": (big.view(np.matrix), big),
}


@pytest.mark.filterwarnings("ignore:.*matrix:PendingDeprecationWarning")
@pytest.mark.parametrize("what", LEFT_TO_NUMPY)
def test_the_rest_is_left_to_numpy(calls, what):
    a, b = LEFT_TO_NUMPY[what]
    np.testing.assert_array_equal(blas.product(a, b), a @ b)
    assert calls == []


SMALL = {
    "one row": (1, 10, 100),
    "one column": (100, 1, 10),
    "one": (1, 1, 1),
    "rows": (5, 7, 3),
    "none": (0, 3, 2),
    "no terms": (2, 0, 3),
}


@together(
    size=SMALL, left=LAYOUTS, dtype=["f2", "f4", "f8", "i4"], out=["none", "contiguous", "a part"]
)
def test_small_products_are_those_of_numpy(calls, size, left, dtype, out):
    M, K, N = SMALL[size]
    rng = np.random.default_rng(0)
    a = LAYOUTS[left](rng.integers(-4, 5, (M, K)).astype(dtype))
    b = rng.integers(-4, 5, (N, K)).astype(dtype).T
    y = {
        "none": None,
        "contiguous": np.full((M, N), 9, dtype),
        "a part": np.full((M, N + 1), 9, dtype)[:, 1:],
    }[out]
    found = blas.product(a, b, y)
    assert found.dtype == dtype if y is None else found is y
    assert not calls
    # (of no terms numpy's einsum may make 0 · x, with an x that is not there)
    np.testing.assert_array_equal(found, np.einsum("mk,kn->mn", a, b) if K else np.zeros((M, N)))


@pytest.mark.parametrize(
    "out", [np.empty((128, 128), order="F"), np.empty((128, 256))[:, ::2]], ids=["turned", "apart"]
)
def test_a_result_that_is_not_contiguous_is_written_by_numpy(calls, out):
    a = np.random.default_rng(0).random((128, 128))
    np.testing.assert_allclose(blas.product(a, a, out), a @ a, rtol=1e-12)
    assert calls == []


def test_shapes_that_do_not_belong_together_are_numpys_error(calls):
    with pytest.raises(ValueError, match="mismatch"):
        blas.product(big, np.ones((130, 128), "f4"))


def test_a_layer_and_its_gradients_are_made_by_the_library_and_the_same(calls, monkeypatch):
    rng = np.random.default_rng(0)
    arrays = rng.random((128, 96)), rng.random((112, 96)), rng.random(112)

    def run():
        x, W, b = [mnpar.Variable(a) for a in arrays]
        F.sum(F.linear(x, W, b) ** 2).backward()
        return x.grad, W.grad, b.grad

    found = run()
    assert calls == ["d"] * 3
    monkeypatch.setattr(blas, "library", lambda: None)
    for one, other in zip(found, run(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_a_library_that_is_named_and_not_there_is_an_error(monkeypatch):
    monkeypatch.setenv("MNPAR_BLAS", "/nowhere/libmkl_rt.so")
    with pytest.raises(OSError, match=r"MNPAR_BLAS=/nowhere/libmkl_rt.so cannot be loaded"):
        blas.library.__wrapped__()


def test_numpys_library_can_be_insisted_on(monkeypatch):
    monkeypatch.setenv("MNPAR_BLAS", "numpy")
    assert blas.library.__wrapped__() is None


def test_ranks_with_several_threads_have_numpys(monkeypatch, tmp_path):
    """The threads of two libraries get in each other's way."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libmkl_rt.so").symlink_to("/nowhere")
    looked = []
    monkeypatch.setattr(blas.sys, "prefix", str(tmp_path))
    monkeypatch.setattr(
        blas.ctypes, "CDLL", lambda path: looked.append(path) or (_ for _ in ()).throw(OSError)
    )
    for threads in (2, 1):
        monkeypatch.setattr(blas, "threads", lambda threads=threads: threads)
        assert blas.library.__wrapped__() is None
    assert looked == [str(tmp_path / "lib" / "libmkl_rt.so")]


class _AnyLibrary:
    """A library that has every function."""

    def __getattr__(self, name):
        return lambda *args: 0

    def __getitem__(self, name):
        return SimpleNamespace(name=name)


@pytest.mark.parametrize(
    ("vendor", "named", "by_mkl"),
    [("Intel", False, True), ("AMD", False, False), ("AMD", True, True)],
)
def test_mkls_products_are_for_intels_processors_or_who_names_it(
    vendor, named, by_mkl, monkeypatch, tmp_path
):
    """On AMD's, MKL's products take twice as long as OpenBLAS'."""
    (tmp_path / "lib").mkdir()
    (path := tmp_path / "lib" / "libmkl_rt.so").touch()
    monkeypatch.setattr(blas.sys, "prefix", str(tmp_path))
    monkeypatch.setattr(blas.ctypes, "CDLL", lambda path: _AnyLibrary())
    monkeypatch.setattr(blas, "is_intel", lambda: vendor == "Intel")
    monkeypatch.setattr(blas, "threads", lambda: 1)
    monkeypatch.setenv("MNPAR_BLAS", str(path) if named else "")
    found = blas.library.__wrapped__()
    assert ("s" in found, "d" in found, "sErf" in found) == (by_mkl, by_mkl, True)
    monkeypatch.setattr(blas, "library", lambda: found)
    assert blas.uses_mkl(np.ones(3, "f4"), tuning.MKL_LEAST) == by_mkl


@pytest.mark.parametrize("rows", [1, 8, 32, 64, 100, 131])
@pytest.mark.parametrize("lead", [(), (3,), (2, 3)], ids=str)
@pytest.mark.parametrize("turned", [False, True])
def test_stacks_are_multiplied_some_rows_at_a_time(rows, lead, turned):
    """32 of 100 rows with 64 terms and 300 columns are below a million multiplications; 4 are left
    over.
    """
    rng = np.random.default_rng(0)
    a = (
        np.swapaxes(rng.random((*lead, 64, rows)), -1, -2)
        if turned
        else rng.random((*lead, rows, 64))
    )
    b = rng.random((*lead, 64, 300))
    out = np.empty((*lead, rows, 400))[..., :300]
    assert blas.batched_matmul(a, b, out) is out
    for found in (out, blas.batched_matmul(a, b)):
        np.testing.assert_allclose(found, a @ b, rtol=1e-12)


def test_stacks_are_broadcast():
    a = np.random.default_rng(0).random((2, 1, 100, 64))
    b = np.random.default_rng(1).random((3, 64, 300))
    np.testing.assert_allclose(blas.batched_matmul(a, b), a @ b, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(("name", "function"), {"Erf": F.erf, "CdfNorm": F.gelu}.items())
def test_the_error_function_is_the_librarys_where_it_is_worth_a_call(
    monkeypatch, name, function, dtype
):
    monkeypatch.setattr(compiler, "least", lambda *_: sys.maxsize)  # loops ask no library
    asked = []

    def vector(size, x, y):
        asked.append(size)
        given, result = [
            np.ndarray(
                size, dtype, (ctypes.c_char * (size * np.dtype(dtype).itemsize)).from_address(a)
            )
            for a in (x, y)
        ]
        result[...] = [
            math.erf(v) if name == "Erf" else (1 + math.erf(v / math.sqrt(2))) / 2
            for v in given.astype("f8")
        ]

    x = np.random.default_rng(0).standard_normal((40, 60)).astype(dtype)
    few = np.ones(1000, dtype)
    expected, slope = (
        function(x).array,
        mnpar.grad([F.sum(function(given := mnpar.Variable(x)))], [given])[0].array,
    )
    monkeypatch.setattr(blas, "library", lambda: {{"f4": "s", "f8": "d"}[dtype] + name: vector})
    given = mnpar.Variable(x)
    (found,) = mnpar.grad([F.sum(function(given))], [given])
    np.testing.assert_allclose(function(x).array, expected, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(found.array, slope, rtol=1e-4, atol=1e-6)
    # gelu's backward finds Φ once more, instead of keeping a slope
    times = 2 if name == "Erf" else 3
    assert sum(asked) == times * x.size
    function(few)
    assert sum(asked) == times * x.size


def test_the_exponential_in_the_slope_of_gelu_is_the_librarys_too(monkeypatch):
    monkeypatch.setattr(compiler, "least", lambda *_: sys.maxsize)  # loops ask no library

    def vector(function):
        def fill(size, x, y):
            given, result = [
                np.ndarray(size, "f8", (ctypes.c_char * (size * 8)).from_address(a)) for a in (x, y)
            ]
            result[...] = [function(v) for v in given]
            asked.append(size)

        return fill

    asked, x = [], np.random.default_rng(0).standard_normal((40, 60))
    slope = mnpar.grad([F.sum(F.gelu(given := mnpar.Variable(x)))], [given])[0].array
    normal = vector(lambda v: (1 + math.erf(v / math.sqrt(2))) / 2)
    monkeypatch.setattr(blas, "library", lambda: {"dCdfNorm": normal, "dExp": vector(math.exp)})
    (found,) = mnpar.grad([F.sum(F.gelu(given))], [given])
    np.testing.assert_allclose(found.array, slope, rtol=1e-12, atol=1e-15)
    assert sum(asked) == 3 * x.size  # Φ twice


@pytest.mark.parametrize(
    "dtype", ["g", np.dtype("f8").newbyteorder()], ids=["longdouble", "other byte order"]
)
@pytest.mark.parametrize("function", [F.erf, F.gelu])
def test_the_error_function_of_other_dtypes_is_left_to_numpy(monkeypatch, function, dtype):
    x = np.linspace(-3, 3, 2000)
    expected = function(x).array
    monkeypatch.setattr(blas, "library", lambda: {"dErf": pytest.fail, "dCdfNorm": pytest.fail})
    np.testing.assert_allclose(
        function(x.astype(dtype)).array.astype("f8"), expected, rtol=1e-12, atol=1e-15
    )
