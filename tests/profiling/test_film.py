"""The film of a profile has every event and message in it, and a browser plays it."""

import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
from mnpar.errors import DatasetError
from mnpar.profiling.film import make_film, write_film
from mnpar.profiling.timeline import Timeline

EVENT, MESSAGE = 9, 8  # numbers of each in the page


def ring(comm, out):
    with mnpar.profile(out, comm, picture=False):
        x = mnpar.Variable(np.ones(3))
        F.send(F.tanh(x), comm, (comm.rank + 1) % comm.size)
        y = F.recv(comm, (comm.rank - 1) % comm.size)
        F.sum(y * x).backward()


def data_of(page):
    """Return the numbers and texts that a page draws."""
    [text] = re.findall(r'<script id="data" type="application/json">(.*?)</script>', page)
    return json.loads(text)


def rows(flat, width):
    return [flat[i : i + width] for i in range(0, len(flat), width)]


@pytest.fixture
def page(tmp_path):
    mnpar.run(ring, 3, (tmp_path,))
    write_film(tmp_path / "timeline.json", tmp_path / "film.html")
    return (tmp_path / "film.html").read_text()


def test_functions_have_their_line_their_bytes_and_what_they_ran_as(page):
    film = data_of(page)
    assert film["ranks"] == ["rank 0", "rank 1", "rank 2"]
    for flat in film["events"]:
        found = [
            (film["kinds"][kind], film["names"][name], film["details"][detail], nbytes)
            for kind, name, _, _, _, detail, _, nbytes, _ in rows(flat, EVENT)
        ]
        assert ("forward", "Tanh", "(3,)", 24) in found
        assert ("backward", "Tanh", "", 0) in found
        sites = {film["sites"][row[6]] for row in rows(flat, EVENT)}
        assert any(re.search(r"test_film\.py:\d+", site) for site in sites)
        starts = [row[2] for row in rows(flat, EVENT)]
        assert starts == sorted(starts)


def test_each_message_is_there_forward_and_back(page):
    film = data_of(page)
    messages = rows(film["messages"], MESSAGE)
    pairs = sorted([(source, dest, back) for source, _, dest, _, _, back, _, _ in messages])
    assert pairs == sorted(
        [(r, (r + 1) % 3, 0) for r in range(3)] + [(r, (r - 1) % 3, 1) for r in range(3)]
    )
    for _, sent, _, taken, name, back, nbytes, _ in messages:
        assert 0 <= sent <= taken <= film["duration"]
        assert film["names"][name] == ("gradient of send" if back else "send")
        assert nbytes == 24


def test_the_page_needs_nothing_else(page):
    assert not re.search(r"https?://|\bsrc=|<link|@import|\bfetch\(|\bimport\(", page)


def one(name="Sum", **more):
    timeline = Timeline()
    timeline.take([(0, [("forward", name, 0.0, 1e-3)])])
    return make_film(timeline.trace(), **more)


def test_names_cannot_end_the_page():
    film = data_of(one("</script><script>alert(1)</script>"))
    assert film["names"] == ["</script><script>alert(1)</script>"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no json", "is no timeline of mnpar.profile: Expecting value"),
        ("[1, 2]", "no timeline of mnpar.profile: TypeError"),
        ("{}", "no timeline of mnpar.profile: KeyError: 'traceEvents'"),
        ('{"traceEvents": []}', "it names no ranks"),
        ('{"traceEvents": [{"ph": "X"}]}', "no timeline of mnpar.profile"),
    ],
)
def test_what_is_no_profile_is_refused(text, message, tmp_path):
    (tmp_path / "trace.json").write_text(text)
    with pytest.raises(DatasetError, match=re.escape(message)) as error:
        write_film(tmp_path / "trace.json", tmp_path / "film.html")
    assert "trace.json" in str(error.value)
    assert not (tmp_path / "film.html").exists()


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "mnpar", "film", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_command_takes_a_file_or_its_folder(tmp_path):
    mnpar.run(ring, 2, (tmp_path,))
    for trace in (tmp_path, tmp_path / "timeline.json"):
        done = command(str(trace), "-o", str(tmp_path / "a.html"))
        assert (done.returncode, done.stdout) == (0, f"film: {tmp_path / 'a.html'}\n"), done.stderr
        assert len(data_of((tmp_path / "a.html").read_text())["ranks"]) == 2
    done = command(str(tmp_path / "nothing.json"))
    assert done.returncode == 2
    assert "nothing.json" in done.stderr
    assert "Traceback" not in done.stderr


# ---- in a browser ----

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
in_browser = pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed")
# keys are pressed, and the title says what is seen afterwards
PRESS = """<script>
onerror = (text) => { document.title = "error: " + text; };
addEventListener("load", () => setTimeout(() => {
  for (const key of %s) dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  const search = document.getElementById("search");
  search.value = %s; search.dispatchEvent(new Event("input"));
  document.title = [document.getElementById("time").textContent,
    document.getElementById("found").textContent, document.getElementById("tip").innerText,
    document.documentElement.dataset.theme].join("|");
}, 100));
</script></body>"""


def seen(page, folder, keys=(), search=""):
    """Return what a browser shows: the time, what was found, the hint, the theme."""
    script = PRESS % (json.dumps(keys), json.dumps(search))
    (folder / "pressed.html").write_text(page.replace("</body>", script))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000"]
    done = subprocess.run(
        [CHROMIUM, *flags, "--dump-dom", f"file://{folder / 'pressed.html'}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    [title] = re.findall(r"<title>(.*?)</title>", done.stdout, re.S)
    return title.split("|")


@in_browser
def test_a_browser_steps_searches_and_changes_its_light(page, tmp_path):
    time, found, hint, theme = seen(page, tmp_path, [], "tanh")
    assert time.startswith("0.0 µs of ")
    assert found == "6 found"  # forward and back on three ranks
    assert (hint, theme) == ("", "light")
    time, _, hint, theme = seen(page, tmp_path, ["t", "ArrowDown", "ArrowRight", "ArrowRight"])
    assert not time.startswith("0.0 µs of")
    assert "on\nrank 0" in hint
    assert theme == "dark"
    time, _, _, _ = seen(page, tmp_path, ["+", "+", "End"])
    assert time.split(" of ")[0] == time.split(" of ")[1]


@in_browser
def test_a_film_of_a_thousand_ranks_opens(tmp_path):
    timeline = Timeline()
    timeline.take(
        (
            rank,
            [("forward", f"Function{i % 7}", i * 1e-4, i * 1e-4 + 8e-5) for i in range(100)],
        )
        for rank in range(1000)
    )
    time, found, _, _ = seen(make_film(timeline.trace()), tmp_path, ["PageDown"], "function6")
    assert time.endswith("of 9.980 ms")
    assert found == "14000 found"
