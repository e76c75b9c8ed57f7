"""The drawings of the kinds of parallelism: ``python docs/make_drawings.py`` writes them.

Ranks are boxes with a blue edge, messages forward are dark arrows, gradients back are red and
dashed. Each drawing is a function that fills a sheet. Other files of drawings/ are made by hand;
they get the same style sheet, which changes the colours where the reader prefers dark pages.
"""

import re
from pathlib import Path

FOLDER = Path(__file__).parent / "drawings"
BLUE, GREEN, SAND, ROSE, WHITE = "#e8eefc", "#e6f3e6", "#f4f0e0", "#fbe9e9", "#fff"
# attributes stand in the light colours; the style sheet replaces them on dark pages
STYLE = """<style>@media (prefers-color-scheme: dark) {
rect[fill="#fff"] {fill: #1c1f24} rect[fill="#e8eefc"] {fill: #26375c}
rect[fill="#e6f3e6"] {fill: #24442b} rect[fill="#f4f0e0"] {fill: #4a4226}
rect[fill="#fbe9e9"] {fill: #562a2e} rect[stroke="#557"] {stroke: #99a6cc}
rect[stroke="#bbc"] {stroke: #556} text {fill: #e4e6ea} text[fill="#666"] {fill: #a9afba}
text[fill="#333"] {fill: #d5d8de} text[fill="#c33"] {fill: #ff8a80}
path[stroke="#333"] {stroke: #d5d8de}
path[stroke="#c33"] {stroke: #ff8a80} path[fill="#333"] {fill: #d5d8de}
path[fill="#c33"] {fill: #ff8a80} path[stroke="#999"], path[stroke="#bbb"] {stroke: #5b616c}
}</style>"""
MARKERS = "".join(
    f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
    f'orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" fill="{colour}"/></marker>\n'
    for name, colour in (("a", "#333"), ("b", "#c33"))
)


class Sheet:
    """A drawing: boxes, texts and arrows, in the order in which they are added."""

    def __init__(self, title, width, height):
        self.title, self.width, self.height = title, width, height
        self.parts = []

    def box(self, x, y, width, height, text="", fill=BLUE, stroke="#557"):
        """A box, with a text in its middle."""
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="4" '
            f'fill="{fill}" stroke="{stroke}"/>'
        )
        if text:
            self.text(x + width / 2, y + height / 2 + 5, text)

    def rank(self, number, x, y, width, height):
        """The frame of a rank, with its name above."""
        self.box(x, y, width, height, fill=WHITE, stroke="#bbc")
        self.text(x + 4, y - 6, f"rank {number}", fill="#666", anchor="start")

    def text(self, x, y, text, fill="", anchor="", bold=False, size=14):
        """A text; it is centred at x unless ``anchor`` says otherwise."""
        more = f' fill="{fill}"' if fill else ""
        more += f' text-anchor="{anchor}"' if anchor else ""
        more += ' font-weight="bold"' if bold else ""
        more += f' font-size="{size}"' if size != 14 else ""
        self.parts.append(f'<text x="{x:g}" y="{y:g}"{more}>{text}</text>')

    def arrow(self, *points, back=False, both=False):
        """A message along points, forward or, in red, a gradient back."""
        path = "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
        colour, marker = ("#c33", "b") if back else ("#333", "a")
        more = ' stroke-dasharray="4 3"' if back else ""
        more += f' marker-start="url(#{marker})"' if both else ""
        self.parts.append(
            f'<path d="{path}" stroke="{colour}" fill="none"{more} marker-end="url(#{marker})"/>'
        )

    def svg(self):
        """The file."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" font-family="sans-serif" '
            f'font-size="14" text-anchor="middle">\n<title>{self.title}</title>\n{STYLE}\n'
            f'<defs>\n{MARKERS}</defs>\n<rect width="{self.width}" height="{self.height}" '
            f'fill="#fff"/>\n' + "\n".join(self.parts) + "\n</svg>\n"
        )


def data():
    """Copies of a model, each with a part of the batch."""
    s = Sheet("Data parallelism: copies of a model, parts of the batch", 680, 240)
    for r in range(3):
        y = 30 + 68 * r
        s.rank(r, 20, y, 400, 44)
        s.box(30, y + 6, 100, 32, f"images {'abc'[r]}", SAND)
        s.arrow((131, y + 22), (168, y + 22))
        s.box(170, y + 6, 100, 32, "same model")
        s.arrow((271, y + 22), (308, y + 22))
        s.box(310, y + 6, 100, 32, f"gradient {'abc'[r]}", ROSE)
        s.arrow((412, y + 22), (478, 120 + 8 * (r - 1)), back=True)
    s.box(480, 94, 70, 52, "sum", ROSE)
    s.arrow((551, 120), (588, 120), back=True)
    s.box(590, 94, 80, 52, "", GREEN)
    s.text(630, 116, "same step")
    s.text(630, 134, "on all", size=12)
    return s


def pipeline():
    """Stages of a network on ranks, and micro-batches that follow each other."""
    s = Sheet("Pipeline: stages on ranks, micro-batches one after the other", 680, 250)
    for r in range(3):
        x = 20 + 225 * r
        s.rank(r, x, 30, 150, 60)
        s.box(x + 12, 42, 126, 36, ["layers 1–2", "layers 3–4", "layers 5–6, loss"][r])
        if r:
            s.arrow((x - 73, 50), (x - 2, 50))
            s.arrow((x - 2, 72), (x - 73, 72), back=True)
    s.text(207, 44, "activations", size=11)
    s.text(207, 88, "gradients", fill="#c33", size=11)
    s.text(20, 130, "time", fill="#666", anchor="start")
    s.arrow((52, 126), (660, 126))
    order = [
        "F0 F1 F2 .. .. B0 .. B1 .. B2",
        ".. F0 F1 .. B0 F2 B1 .. B2 ..",
        ".. .. F0 B0 F1 B1 F2 B2 .. ..",
    ]
    for r, row in enumerate(order):
        s.text(20, 160 + 32 * r, f"rank {r}", fill="#666", anchor="start")
        for i, action in enumerate(row.split()):
            if action != "..":
                s.box(
                    75 + 58 * i,
                    143 + 32 * r,
                    54,
                    26,
                    action,
                    BLUE if action[0] == "F" else ROSE,
                )
    return s


def tensor():
    """Two linear layers, divided by outputs and by inputs."""
    s = Sheet("Tensor parallelism: each layer is divided", 680, 220)
    for r in range(2):
        y = 40 + 84 * r
        s.rank(r, 110, y, 400, 56)
        s.box(120, y + 10, 170, 36, f"outputs {['1 … 4', '5 … 8'][r]} of layer 1")
        s.arrow((291, y + 28), (328, y + 28))
        s.box(330, y + 10, 170, 36, f"inputs {['1 … 4', '5 … 8'][r]} of layer 2")
        s.arrow((63, 110 + 6 * (2 * r - 1)), (118, y + 28))
        s.arrow((501, y + 28), (558, 110 + 6 * (2 * r - 1)))
    s.box(10, 90, 52, 40, "x", SAND)
    s.box(560, 90, 50, 40, "sum", SAND)
    s.arrow((611, 110), (638, 110))
    s.text(655, 115, "y")
    s.text(36, 150, "the same", size=11, fill="#666")
    s.text(36, 164, "on both", size=11, fill="#666")
    s.text(585, 150, "one message", size=11, fill="#666")
    s.text(
        310,
        206,
        "backward: the gradients of x are added up in the same way",
        fill="#c33",
        size=12,
    )
    return s


def sequence():
    """Ring attention: queries stay, keys and values go round."""
    s = Sheet("Sequence parallelism: keys and values go round a ring", 680, 230)
    for r in range(4):
        x = 20 + 165 * r
        s.rank(r, x, 50, 130, 112)
        s.text(x + 65, 70, f"words {64 * r} … {64 * r + 63}", size=12)
        s.box(x + 12, 80, 106, 32, "queries", GREEN)
        s.box(x + 12, 120, 106, 32, "keys, values", SAND)
        if r:
            s.arrow((x - 46, 136), (x + 10, 136))
    s.arrow((634, 136), (668, 136), (668, 200), (8, 200), (8, 136), (30, 136))
    s.text(340, 194, "after 3 rounds each rank has seen all keys and values")
    s.text(
        340,
        220,
        "backward: their gradients go round the other way",
        fill="#c33",
        size=12,
    )
    s.text(340, 22, "queries stay, keys and values go round", bold=True)
    return s


def halo():
    """Blocks of an image, and the cells of the neighbours next to them."""
    s = Sheet("Halo exchange: blocks of an image, and the cells next to them", 680, 270)
    s.text(160, 24, "each rank has a block", bold=True)
    s.text(510, 24, "rank 0 with its halo", bold=True)
    fills = (BLUE, GREEN, SAND, ROSE)
    for r in range(4):
        x, y = 50 + 112 * (r % 2), 40 + 112 * (r // 2)
        for i in range(4):
            for j in range(4):
                s.box(x + 27 * j, y + 27 * i, 25, 25, "", fills[r], "#bbc")
        s.text(x + 53, y + 58, f"rank {r}")
    s.arrow((280, 146), (380, 146))
    s.text(330, 136, "messages", size=12)
    s.arrow((380, 172), (280, 172), back=True)
    s.text(330, 192, "gradients", fill="#c33", size=12)
    for i in range(5):
        for j in range(5):
            owner = 2 * (i == 4) + (j == 4)
            s.box(430 + 33 * j, 50 + 33 * i, 31, 31, "", fills[owner], "#bbc")
    s.box(428, 48, 134, 134, "", "none")
    s.text(495, 120, "block")
    s.text(628, 118, "from 1", size=12, fill="#666")
    s.text(495, 238, "from 2", size=12, fill="#666")
    s.text(628, 202, "from 3", size=12, fill="#666")
    return s


def expert():
    """A mixture of experts: tokens go to the ranks of their experts, and come back."""
    s = Sheet(
        "Mixture of experts: tokens travel to the ranks of their experts", 680, 240
    )
    for r in range(3):
        y = 44 + 64 * r
        s.text(14, y + 26, f"rank {r}", fill="#666", anchor="start")
        s.box(70, y, 90, 40, f"tokens {'abc'[r]}", SAND)
        s.box(190, y, 60, 40, "gate")
        s.arrow((161, y + 20), (188, y + 20))
        s.box(370, y, 110, 40, f"experts {2 * r}, {2 * r + 1}", GREEN)
        s.box(590, y, 80, 40, f"results {'abc'[r]}", SAND)
    for a in range(3):
        for b in range(3):
            s.arrow((251, 64 + 64 * a), (368, 64 + 64 * b + 6 * (a - 1)))
            s.arrow((481, 64 + 64 * b), (588, 64 + 64 * a + 6 * (b - 1)))
    s.text(310, 26, "alltoall", bold=True)
    s.text(535, 26, "alltoall", bold=True)
    s.text(
        340,
        232,
        "backward: the same two exchanges, the other way",
        fill="#c33",
        size=12,
    )
    return s


def ensemble():
    """A member on each rank, and the mean of their outputs."""
    s = Sheet(
        "Ensemble: a member on each rank, and the mean of their outputs", 680, 230
    )
    for r in range(3):
        y = 36 + 62 * r
        s.rank(r, 90, y, 270, 42)
        s.box(100, y + 5, 110, 32, f"member {r}")
        s.arrow((211, y + 21), (258, y + 21))
        s.box(260, y + 5, 90, 32, f"output {r}", GREEN)
        s.arrow((43, 118 + 6 * (r - 1)), (98, y + 21))
        s.arrow((361, y + 15), (418, 112 + 8 * (r - 1)))
        s.arrow((418, 126 + 8 * (r - 1)), (363, y + 29), back=True)
    s.box(10, 98, 32, 40, "x", SAND)
    s.box(420, 88, 90, 64, "", SAND)
    s.text(465, 115, "allgather")
    s.text(465, 135, "mean")
    s.arrow((511, 112), (568, 112))
    s.arrow((568, 130), (513, 130), back=True)
    s.box(570, 98, 90, 44, "loss", GREEN)
    return s


def mesh():
    """A mesh of ranks: data parallelism along one axis, tensor parallelism along the other."""
    s = Sheet("Device mesh: one kind of parallelism along each axis", 680, 250)
    for i in range(2):
        for j in range(4):
            x, y = 130 + 130 * j, 70 + 82 * i
            s.box(x, y, 96, 52, "", (BLUE, GREEN)[i])
            s.text(x + 48, y + 23, f"rank {4 * i + j}")
            s.text(x + 48, y + 41, f"data {i}, model {j}", size=11, fill="#666")
            if j:
                s.arrow((x - 31, y + 26), (x - 3, y + 26), both=True)
        s.text(14, 92 + 82 * i, f"images {'ab'[i]}", anchor="start")
    for j in range(4):
        s.arrow((178 + 130 * j, 124), (178 + 130 * j, 150), back=True, both=True)
        s.text(178 + 130 * j, 56, f"quarter {j}", size=12)
    s.text(373, 30, "axis model: quarters of each layer, sums within a row", bold=True)
    s.text(
        373,
        236,
        "axis data: gradients are added up within a column",
        fill="#c33",
        bold=True,
    )
    return s


DRAWINGS = (data, pipeline, tensor, sequence, halo, expert, ensemble, mesh)

if __name__ == "__main__":
    for drawing in DRAWINGS:
        (FOLDER / f"{drawing.__name__}.svg").write_text(drawing().svg())
    for path in FOLDER.glob("*.svg"):
        bare = re.sub(r"<style>.*</style>\n", "", path.read_text(), flags=re.S)
        path.write_text(bare.replace("</title>\n", f"</title>\n{STYLE}\n", 1))
