"""One rank of a spoilt random program in PyTorch's words: ``python -m tests.torch_bridge.spoilt
SEED`` under mpiexec.
"""

import sys

from tests.random_programs import spoiling
from tests.torch_bridge.torch_words import TorchWords

if __name__ == "__main__":
    spoiling.main(int(sys.argv[1]), TorchWords)
