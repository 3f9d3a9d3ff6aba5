"""The parts of a report, before there is a page: escaping, sections, tables, problems with answers."""

from __future__ import annotations

import html
import re

import pytest
from conftest import every_distribution
from html_reader import HOSTILE, Reader

import pathmerge as pm
from pathmerge.pictures import draw_problems
from pathmerge.viewer.examples import MOST_DRAWN, answered_problems, example_problems, spread
from pathmerge.viewer.markup import Html, element, facts, join
from pathmerge.viewer.page import Page
from pathmerge.viewer.table import Shown, number, table


def test_everything_that_is_not_html_is_escaped():
    assert element("p", HOSTILE, class_='"><b>', title=None) == Html(
        '<p class="&quot;&gt;&lt;b&gt;">&lt;script&gt;document.title=&quot;owned&quot;&lt;/script&gt;'
        "&lt;img src=http://evil.example/x&gt;&quot;&#x27;&amp;</p>"
    )
    assert join("<", element("b", 1), None) == "&lt;<b>1</b>"
    assert "<script" not in facts({HOSTILE: HOSTILE})
    assert element("meta", charset="utf-8") == '<meta charset="utf-8">'


def test_sections_have_anchors_of_their_own_and_empty_ones_are_left_out():
    page = Page(title="t", kind="k")
    for heading in ("One thing", "One thing", "…", "Nothing"):
        page.add(heading, "" if heading == "Nothing" else "text")
    assert [anchor for anchor, _, _ in page.sections] == ["one-thing", "one-thing--2", "section"]


def test_the_numbers_of_a_column_are_written_alike():
    drawn = table([{"n": 12, "share": 1.0, "loss": 0.0004}, {"n": 12_345, "share": 0.25, "loss": 2.5}])
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", drawn)
    assert cells == ["12", "1.000", "0.0004", "12,345", "0.250", "2.5000"]
    assert drawn.count('class="number"') == 9
    assert 'data-value="12345"' in drawn
    assert [number(value) for value in (3, 4.6e12, float("nan"), 0.99825)] == ["3", "4.6e12", "–", "0.998"]


def test_words_are_not_taken_for_numbers():
    drawn = table(
        [{"a": "x", "b": True, "c": None, "d": Shown(0.5, "half")}, {"a": 3, "b": False, "c": None, "d": None}]
    )
    assert re.findall(r"<td[^>]*>([^<]*)</td>", drawn) == ["x", "yes", "", "half", "3", "no", "", ""]
    assert '<td class="number" data-value="0.5">half</td>' in drawn
    assert table([]) == ""


def test_a_long_table_is_folded_and_a_very_long_one_says_where_the_rest_is():
    assert "<details>" not in table([{"a": 1}] * 20)
    drawn = table([{"a": i} for i in range(1000)], whole="table.csv")
    assert drawn.startswith("<details><summary>table (1,000 rows)</summary>")
    assert "The first 200 of 1,000 rows; all of them are in table.csv." in drawn
    assert drawn.count("<tr>") == 201


def test_what_a_model_answers_stands_in_the_picture():
    problem = pm.Problem("search", ((1, 2), (1, 3), (3, 4)), 1, 4)
    figures = [draw_problems([problem], labels=[3], predictions=[answer]) for answer in (None, 2, 3)]
    texts = [[text.get_text() for text in figure.axes[0].texts] for figure in figures]
    assert [text.count("model") for text in texts] == [0, 1, 1]
    with pytest.raises(ValueError, match="predictions: 2 given; must be one for each of the 1 problems"):
        draw_problems([problem], predictions=[2, 3])


def test_a_spread_has_both_ends():
    assert spread(range(10), 3) == [0, 4, 9]
    assert spread([1, 2], 3) == [1, 2]


@pytest.mark.parametrize("problem", every_distribution(32), ids=lambda problem: problem.describe())
def test_problems_of_every_kind_are_shown_with_answers(problem: pm.Distribution):
    model = pm.OneHot(input_size=32, layers=2, text=problem.name == "language").build(1)
    shown = Reader(answered_problems(model, problem, pm.Holding()))
    assert shown.elements.count("figure") == 1
    assert "wrong" in shown.text  # it was not trained
    # All in one figure, or each in its own where one would be too wide for a page.
    assert Reader(example_problems([problem])).elements.count("figure") in (1, MOST_DRAWN)


def test_problems_told_in_sentences_can_be_read():
    """Each sentence stands beside the vertices it is about, the same atom always beside the same vertex."""
    problem = pm.Language(input_size=32, lookahead=3)
    page = example_problems([problem])
    texts = [html.unescape(text) for text in re.findall(r"<pre><code>(.*?)</code></pre>", page, re.DOTALL)]
    assert len(texts) == MOST_DRAWN
    for i, text in enumerate(texts):
        batch = problem.symbolic.sample(1, seed=1, first=i)
        *edges, (start, _, goal, *query), (label, *answer) = (line.split() for line in text.splitlines())
        pairs = [tuple(map(int, edge)) for edge in batch.edges[0].tolist() if edge[0]]
        assert [(int(source), int(target)) for source, _, target, *_ in edges] == pairs
        assert (int(start), int(goal), int(label)) == (batch.start[0], batch.goal[0], batch.label[0])
        atoms = {(label, *answer)}
        for (source, _, target, *words), (opening, joint) in [
            *((edge, ("If", "then")) for edge in edges),
            ((start, "…", goal, *query), ("Given", "prove")),
        ]:
            assert [words[0], *words[5:7], words[11:]] == [opening, ",", joint, ["."]]
            atoms |= {(source, *words[1:5]), (target, *words[7:11])}
        assert len(atoms) == len({vertex for vertex, *_ in atoms}) == len({tuple(atom) for _, *atom in atoms})
