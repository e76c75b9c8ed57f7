"""``python -m mnpar check``: scripts as they are, exit codes, and command lines that are wrong."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mnpar.__main__ import main
from mnpar.runtime.mpiexec import clean_environment

TRAINING = """
import sys
import numpy as np, mnpar, mnpar.functions as F, mnpar.links as L

mnpar.relaunch(4)
comm = mnpar.create_communicator()
print("a line of rank", comm.rank)
model = L.Linear(3, 1, initialW=0.5)
optimizer = mnpar.optimizers.SGD().setup(model)
if "--right" in sys.argv[1:]:
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(), comm).setup(model)
x = np.arange(18.0).reshape(6, 3)[comm.rank :: comm.size]
while True:  # until the check has seen enough
    optimizer.update(lambda: F.mean(model(x) ** 2))
"""

WITH_FLAGS = """
import numpy as np, mnpar, mnpar.functions as F


def main(comm, args):
    x = mnpar.Variable(np.array([comm.rank + 1.0]))
    F.sum(F.shift(comm, x) ** args.power).backward()


if __name__ == "__main__":
    parser = mnpar.launch.Parser(__doc__, ranks=4)
    parser.flag("--power", 2, "exponent")
    mnpar.launch.script(main, parser)
"""

SCRIPTS = {
    "training.py": TRAINING,
    "flags.py": WITH_FLAGS,
    "never.py": "import mnpar\nmnpar.create_communicator().barrier()\n",
    "hangs.py": "import mnpar\ncomm = mnpar.create_communicator()\ncomm.recv_obj(comm.size - 1)\n",
    "loops.py": "while True:\n    pass\n",
    "ends.py": "import sys\nsys.exit('no data')\n",
    "broken.py": "def (:\n",
}


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """What ``python -m mnpar check`` returns and prints."""
    for name, text in SCRIPTS.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["mnpar", "check", *arguments])
        try:
            code = main()
        except SystemExit as end:
            code = end.code
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


CASES = {
    "right": (0, "training.py -n 3 -- --right", ["right:", "3 ranks and one", "weights after 3"]),
    "wrong": (1, "training.py -n 3", ["wrong:", "their mean is one rank's", "training.py:14"]),
    "several": (1, "training.py", ["2 ranks and one", "3 ranks and one"]),
    "flags": (0, "flags.py -n 2,3 -- --power 3", ["finite differences of the sum over ranks"]),
    "reference": (0, "training.py -n 3 --reference training.py -- --right", ["3 ranks and one"]),
    "one pass": (0, "training.py -n 2 --passes 1 -- --right", ["1 backwards"]),
    "float32": (0, "training.py -n 2 --dtype float32 -- --right", ["float32"]),
    "no backward": (2, "never.py", ["not checked:", "never calls backward"]),
    "a deadlock": (2, "hangs.py -n 2,3", ["DeadlockError", "waits in recv_obj"]),
    "an exit": (2, "ends.py", ["SystemExit: no data"]),
}


@pytest.mark.parametrize(("code", "arguments", "said"), CASES.values(), ids=CASES)
def test_a_script_is_checked_as_it_is(command, code, arguments, said):
    found, out, _ = command(*arguments.split())
    assert [part for part in said if part not in out] == [], out
    assert found == code
    assert "a line of rank" not in out


EXAMPLES = {
    "ring": "-n 2,3",
    "transformer_lm": (
        "-n 2 -- --mesh data=-1 --batchsize 6 --length 8 --unit 16 --letters 2 --dtype f8"
    ),
    "ensemble_mnist": "-n 2,",
    "pipeline_mlp": "-n 2 -- --batches 2 --epoch 1 --unit 12",
    "parallel_convolution": "-n 2 -- --epoch 1 --train 40 --filters 3 --unit 5 --batchsize 20",
    "mixture_of_experts": "-n 2 --passes 2 -- --epoch 1 --batchsize 100",
    "seeds/gb_autoencoder": "-n 2",
    "applications/halo_diffusion": "-n 2 -- --size 12 --steps 20 --iterations 4",
}


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_are_right(command, example):
    script = Path(__file__).parents[2] / "examples" / f"{example}.py"
    code, out, _ = command(str(script), *EXAMPLES[example].split())
    assert code == 0, out
    assert out.startswith("right:")


WRONG = {
    "no file": ("missing.py", "missing.py: "),
    "no Python": ("broken.py", "broken.py: "),
    "no number": ("training.py -n three", "-n is a number of ranks"),
    "no ranks": ("training.py -n 0", "-n is a number of ranks"),
    "no passes": ("training.py --passes 0", "--passes is more than 0"),
    "flags of the script": (
        "training.py --right",
        "unrecognized arguments: --right; flags of the script follow --: check training.py -- "
        "--right",
    ),
}


@pytest.mark.parametrize(("arguments", "said"), WRONG.values(), ids=WRONG)
def test_a_wrong_command_line_is_told(command, arguments, said):
    code, _, err = command(*arguments.split())
    assert code == 2
    assert said in err


def test_a_script_that_does_not_end_is_told_with_the_line_it_is_at(tmp_path):
    (tmp_path / "loops.py").write_text(SCRIPTS["loops.py"])
    done = subprocess.run(
        [sys.executable, "-m", "mnpar", "check", "loops.py", "--timeout", "0.5"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
        env=clean_environment(os.environ),
    )
    assert done.returncode == 2
    assert "not finished after 0.5 s" in done.stderr
    assert "rank 0 is at" in done.stderr
    assert "loops.py:" in done.stderr
