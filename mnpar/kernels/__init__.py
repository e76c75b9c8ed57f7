"""Fast computations on arrays, without Variables: arrays in, arrays out.

A computation is written twice, side by side in one file. In numpy it runs everywhere, on CuPy's
arrays too; that is the *twin*, which says what is right. As loops in plain Python, one number at a
time, it is compiled by numba where the extra ``fast`` is installed, and passes over memory once
where numpy passes over it for each operation. A function in ``functions/`` calls one name and does
not know which of the two runs; nothing outside this package knows numba.

* :func:`compiler.suits` decides: numpy arrays of float32 or float64, of one dtype, contiguous,
  writable and not small. The decision depends on nothing else, so it is the same in each step and
  on each rank of like machines.
* ``@fused(twin)`` (fused.py) makes an elementwise computation of a formula for one number.
* ``@update(twin)`` (updates.py) makes a step of an optimizer of one.
* ``@compiled`` (compiler.py) marks loops over whole arrays. The annotations of their arguments are
  the signature that is compiled, once for float32 and once for float64.
* ``@divided`` marks loops of which parts run on the threads of a rank (side_by_side.py, pool.py).
* scalar.py has the formulas that several loops share: eˣ, tanh, erf …, without branches, so that
  the compiler computes many numbers at once.

A loop is compiled when it is first needed, by translation.py, and kept as machine code in the
user's cache folder (machine_code.py); processes that start together compile each once, and later
ones do not import numba. So loops allocate no memory: where one needs room, it is an argument.
``MNPAR_KERNELS=numpy`` switches compiled loops off. ``MNPAR_KERNELS=numba`` uses them for arrays of
any size, and raises an error where numba is missing: so tests run all of them.
"""
