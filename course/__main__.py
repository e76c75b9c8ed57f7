"""``python course`` opens the lessons in JupyterLab; a click on one opens it as a notebook.

Further arguments are options of ``jupyter lab``.
"""

import importlib.util
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main():
    missing = [name for name in ("jupyterlab", "jupytext") if not importlib.util.find_spec(name)]
    if missing:
        sys.exit(f"course: error: {' and '.join(missing)} missing: pip install -e '.[course]'")
    # settings of this start only: nothing of the user's is changed
    paths = [str(HERE / "jupyter"), *filter(None, [os.environ.get("JUPYTER_CONFIG_PATH")])]
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(paths)
    command = [sys.executable, "-m", "jupyterlab", str(HERE), *sys.argv[1:]]
    os.execv(sys.executable, command)


if __name__ == "__main__":
    main()
