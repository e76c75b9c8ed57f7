# Spack's package of mnpar, for Spack from 1.0 on and a repository of one's own: `spack repo
# create`, its packages/py_mnpar/package.py, and `spack develop --path CHECKOUT py-mnpar@0.1.0`. Not
# yet in Spack's own repository: a release gives `version` its archive's SHA-256
# (packaging/RELEASING.md).
from spack.package import *
from spack_repo.builtin.build_systems.python import PythonPackage


class PyMnpar(PythonPackage):
    """Deep learning spread over processes: Chainer's vocabulary on numpy and CuPy, with MPI
    communication as differentiable functions."""

    license("MIT")

    version("0.1.0")

    variant("mpi", default=True, description="Ranks that are processes of MPI")
    variant("fast", default=False, description="Compiled kernels")
    variant("torch", default=False, description="Communications on PyTorch's tensors")

    depends_on("python@3.11:", type=("build", "run"))
    depends_on("py-setuptools@77:", type="build")
    depends_on("py-numpy@2.0:", type=("build", "run"))
    depends_on("py-scipy", type=("build", "run"))
    depends_on("py-mpi4py@4.1:4", type=("build", "run"), when="+mpi")
    depends_on("py-threadpoolctl", type=("build", "run"), when="+mpi")
    depends_on("py-numba@0.61:", type=("build", "run"), when="+fast")
    depends_on("py-torch@2.4:", type=("build", "run"), when="+torch")

    import_modules = ["mnpar", "mnpar.functions", "mnpar.links"]

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def train_on_threads(self):
        """Run four ranks that are threads."""
        program = "import mnpar; mnpar.run(lambda comm: comm.allreduce_obj(comm.rank), ranks=4)"
        python("-c", program)
