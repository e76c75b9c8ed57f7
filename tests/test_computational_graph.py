"""Pictures show each variable and each function once, and with whom a rank speaks."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
from mnpar.computational_graph import build_computational_graph


def variable(name=None):
    return mnpar.Variable(np.ones(2, "f4"), name=name)


def drawn(text):
    """Labels by id, and edges as pairs of labels."""
    labels = dict(re.findall(r'^(n\d+) \[label="((?:[^"\\]|\\.)*)"', text, re.M))
    return labels, [
        (labels[a], labels[b]) for a, b in re.findall(r"^(n\d+) -> (n\d+);", text, re.M)
    ]


def test_every_node_and_edge_is_there_once():
    x = variable("x")
    y = x * x
    z = y + y * 2
    labels, edges = drawn(build_computational_graph([z, z]).dump())
    form = "(2,), float32"
    assert sorted(labels.values()) == sorted(
        [f"x: {form}", "Mul", form, "MulConstant", form, "Add", form]
    )
    assert edges.count((f"x: {form}", "Mul")) == 1
    assert edges.count(("Mul", form)) == 1
    assert edges.count((form, "Add")) == 2
    assert len(edges) == 7


def test_functions_alone():
    x = variable()
    labels, edges = drawn(
        build_computational_graph([F.exp(x * 2) + x], remove_variable=True).dump()
    )
    assert sorted(labels.values()) == ["Add", "Exp", "MulConstant"]
    assert edges == [("MulConstant", "Exp"), ("Exp", "Add")]


def test_names_can_be_left_out_and_are_escaped():
    x = variable('the "x"')
    assert '\\"x\\"' in build_computational_graph([x * 2]).dump()
    assert "the" not in build_computational_graph([x * 2], show_name=False).dump()


def test_style_and_direction_are_the_users():
    y = variable() * 2
    text = build_computational_graph([y], True, {"shape": "circle"}, {"color": "red"}, "LR").dump()
    assert "rankdir=LR;" in text
    assert 'shape="circle"' in text
    assert '[label="MulConstant", color="red"]' in text


def test_none_is_no_style():
    assert (
        '[label="MulConstant"]'
        in build_computational_graph([variable() * 2], function_style=None).dump()
    )


def test_the_same_graph_has_the_same_text():
    first, second = [build_computational_graph([F.sum(variable() * 2)]).dump() for _ in range(2)]
    assert first == second


def test_what_does_not_exist_is_told():
    y = variable() * 2
    with pytest.raises(ValueError, match="remove_split"):
        build_computational_graph([y], remove_split=False)
    with pytest.raises(ValueError, match="'pink'"):
        build_computational_graph([y], function_style="pink")
    with pytest.raises(ValueError, match="'up'"):
        build_computational_graph([y], rankdir="up")
    with pytest.raises(NotImplementedError, match="'svg'"):
        build_computational_graph([y]).dump("svg")


def test_communications_are_coloured_and_name_their_peers():
    def program(comm):
        x = variable("x")
        F.send(x, comm, 1 - comm.rank, tag=comm.rank)
        y = F.recv(comm, 1 - comm.rank, tag=1 - comm.rank) * 2
        texts = [build_computational_graph([y], communications=on).dump() for on in (True, False)]
        mnpar.backward([F.sum(y)])
        return texts

    for rank, (whole, connected) in enumerate(mnpar.run(program, ranks=2)):
        labels, _ = drawn(whole)
        assert any(
            label.startswith("send at") and f"to {1 - rank}, tag {rank}" in label
            for label in labels.values()
        )
        assert any(
            label.startswith("recv at") and f"from {1 - rank}, tag {1 - rank}" in label
            for label in labels.values()
        )
        assert whole.count("#FFA54F") == 2
        assert connected.count("#FFA54F") == 1


def test_a_notebook_shows_a_picture_in_which_each_node_stands_below_what_it_was_computed_from():
    x, y = variable("<x>"), variable()
    graph = build_computational_graph([F.exp(x * y) + x])
    picture = ElementTree.fromstring(graph._repr_svg_())
    parts = [part.tag.partition("}")[2] for part in picture]
    assert parts.count("rect") == len(graph.nodes)
    assert parts.count("path") == len(graph.edges)
    texts = [(part.text, float(part.get("y"))) for part in picture if part.tag.endswith("text")]
    assert texts[0][0] == "<x>: (2,), float32"
    high = dict(texts)
    assert high["<x>: (2,), float32"] < high["Mul"] < high["Exp"] < high["Add"]
    boxes = [
        [float(part.get(n)) for n in ("x", "y", "width")] for part in picture if part.get("rx")
    ]
    rows = {}
    for left, top, width in sorted(boxes):
        assert left >= rows.get(top, 0)  # none lies on another
        rows[top] = left + width
    assert max(rows.values()) <= float(picture.get("width"))


def test_a_graph_of_hundreds_of_nodes_is_no_picture():
    y = variable()
    for _ in range(200):
        y = -y
    assert build_computational_graph([y])._repr_svg_() is None
