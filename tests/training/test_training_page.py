"""The program of docs/training.md, as it stands there."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "training.md"


def test_the_program_of_the_page_runs_and_one_rank_speaks(capsys):
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    exec(compile(program, str(PAGE), "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["epoch", "1", "2", "3", "4", "5"]
