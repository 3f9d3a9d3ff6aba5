"""Pictures are read back from their artists and held against the problem: who stands where, and what is marked.

What an artist is follows from how it looks: a line has no fill, an arrow's head no outline, the shape and the ring of a
vertex have its id in their middle, and the number of a turn stands in a box.
"""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import oracles
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.transforms import Affine2D, Bbox

from pathmerge import oracle
from pathmerge.pictures import draw_problem, draw_problems, save
from pathmerge.problems.problem import Problem

BLACK = "#000000"
FINE = Affine2D().scale(1000)  # matplotlib compares curves as straight pieces about one unit long
SEEDS = range(3)
DRAWN: dict[str, Callable[[random.Random], oracles.Drawn]] = {
    "naive": lambda rng: oracles.naive(rng, 64),
    "large naive": lambda rng: oracles.naive(rng, 256),  # long edges that would run through vertices if drawn straight
    "balanced": lambda rng: oracles.balanced(rng, 64, rng.randint(1, 5)),
    "star": lambda rng: oracles.star(rng, 64, rng.randint(2, 6), rng.randint(1, 3)),
    "tall star": lambda rng: oracles.star(rng, 128, rng.randint(30, 40), 1),  # a column that is staggered
    "dfs": lambda rng: oracles.dfs_naive(rng, 64),
    "balanced dfs": lambda rng: oracles.dfs_balanced(rng, 64, rng.randint(0, 6), prefix=rng.random() < 0.5),
    "selection": lambda rng: oracles.selection_inference(rng, 64, rng.randint(1, 4), rng.randint(1, 4), "selection"),
    "inference": lambda rng: oracles.selection_inference(rng, 64, rng.randint(1, 4), rng.randint(1, 4), "inference"),
}
SMALLEST = (
    Problem("search", ((1, 2),), 1, 2),
    Problem("search", ((2, 1), (2, 3)), 2, 1),
    Problem("dfs", ((7, 104),), 7, 104, visited=(7,)),
    Problem("selection", ((1, 2),), 1, 2),
    Problem("inference", ((1, 2),), 1, 2, current=1),
)
KINDS = [*DRAWN, "smallest"]
MIXED = ["naive", "balanced dfs", "selection", "inference"]


@dataclass(frozen=True)
class Arrow:
    """An edge as drawn: its ends are the vertices nearest to where its line begins and to the tip of its head."""

    ends: tuple[int, int]
    line: Patch
    head: Patch
    black: bool


@dataclass(frozen=True)
class Picture:
    """What is in an axes; `shapes` has the outlines of a vertex from the outermost in, `boxes` where that one ends."""

    ids: list[int]
    at: dict[int, tuple[float, float]]
    shapes: dict[int, list[Patch]]
    boxes: dict[int, Bbox]
    arrows: list[Arrow]
    words: list[tuple[str, int]]
    turns: list[int]


def box(patch: Patch) -> Bbox:
    return patch.get_path().get_extents()


def read(axes: Axes) -> Picture:
    boxed = [text for text in axes.texts if text.get_bbox_patch() is not None]
    named = [text for text in axes.texts if text not in boxed and text.get_text().isdigit()]
    at = {int(text.get_text()): text.get_position() for text in named}

    def nearest(x: float, y: float) -> int:
        return min(at, key=lambda vertex: np.hypot(at[vertex][0] - x, at[vertex][1] - y))

    def above(x: float, y: float) -> int:
        return min((v for v in at if at[v][1] > y and abs(at[v][0] - x) < 1e-9), key=lambda v: at[v][1])

    lines = [patch for patch in axes.patches if not patch.get_fill()]
    heads = [patch for patch in axes.patches if not patch.get_linewidth()]
    arrows: list[Arrow] = []
    for line, head in zip(lines, heads, strict=True):
        begin, tip = np.array(line.get_path().vertices)[0], (box(head).x1, box(head).y0 / 2 + box(head).y1 / 2)
        arrows.append(Arrow((nearest(*begin), nearest(*tip)), line, head, to_hex(line.get_edgecolor()) == BLACK))
    shapes: dict[int, list[Patch]] = {vertex: [] for vertex in at}
    for patch in axes.patches:
        if patch not in lines and patch not in heads:
            middle = np.mean(box(patch).get_points(), axis=0)
            vertex = nearest(*middle)
            if np.abs(middle - at[vertex]).max() < 1e-9:
                shapes[vertex].append(patch)
    for found in shapes.values():
        found.sort(key=lambda patch: -box(patch).width)
    return Picture(
        ids=[int(text.get_text()) for text in named],
        at=at,
        shapes=shapes,
        boxes={vertex: box(found[0]) for vertex, found in shapes.items() if found},
        arrows=arrows,
        words=[(t.get_text(), above(*t.get_position())) for t in axes.texts if t not in boxed and t not in named],
        turns=[int(text.get_text()) for text in boxed],
    )


@cache
def problems(kind: str) -> tuple[Problem, ...]:
    return SMALLEST if kind == "smallest" else tuple(DRAWN[kind](random.Random(seed)).problem for seed in SEEDS)


@cache
def pictures(kind: str) -> list[tuple[Problem, int, Picture]]:
    """Each problem with the label it was drawn with."""
    labels = [min(oracle.answers(problem)) for problem in problems(kind)]
    figure = draw_problems(problems(kind), labels=labels, titles=["two\nlines"] * len(labels))
    return [(p, label, read(axes)) for p, label, axes in zip(problems(kind), labels, figure.axes, strict=True)]


def words(problem: Problem, label: int | None) -> dict[str, int]:
    """The words that have to stand under vertices."""
    found = {"start": problem.start, "goal": problem.goal}
    if label is not None:
        found["label"] = label
    if problem.task == "dfs":
        found["current"] = problem.visited[-1]
        if backtrack := oracle.backtrack(problem):
            found["turns back"] = problem.visited[-1 - backtrack]
    elif problem.current is not None:
        found["current"] = problem.current
    return found


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for found in figure.legends for text in found.get_texts()]


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


@pytest.mark.parametrize("kind", KINDS)
def test_every_vertex_stands_there_once_with_its_id_inside(kind: str):
    for problem, _, picture in pictures(kind):
        assert sorted(picture.ids) == list(problem.vertices)
        assert all(picture.shapes.values())


@pytest.mark.parametrize("kind", KINDS)
def test_arrows_are_the_edges_and_none_points_left(kind: str):
    for problem, _, picture in pictures(kind):
        assert sorted(arrow.ends for arrow in picture.arrows) == sorted(problem.edges)
        for arrow in picture.arrows:
            source, target = arrow.ends
            assert picture.boxes[source].x1 < picture.boxes[target].x0
            assert (np.diff(np.array(arrow.line.get_path().vertices)[:, 0]) > -1e-9).all()
            back, also_back, tip = sorted(np.array(arrow.head.get_path().vertices)[:3, 0])
            assert back == also_back < tip


@pytest.mark.parametrize("kind", KINDS)
def test_no_vertex_overlaps_another_or_lies_under_an_edge(kind: str):
    for _, _, picture in pictures(kind):
        for one, other in combinations(picture.at, 2):
            assert not picture.boxes[one].overlaps(picture.boxes[other]), (one, other)
        outlines = {vertex: FINE.transform_path(found[0].get_path()) for vertex, found in picture.shapes.items()}
        for arrow in picture.arrows:
            line, around = FINE.transform_path(arrow.line.get_path()), box(arrow.line)
            for vertex in set(picture.at) - set(arrow.ends):
                if around.overlaps(picture.boxes[vertex]):
                    assert not line.intersects_path(outlines[vertex], filled=False), (arrow.ends, vertex)


@pytest.mark.parametrize("kind", KINDS)
def test_marks_are_those_of_the_problem(kind: str):
    for problem, label, picture in pictures(kind):
        assert sorted(picture.words) == sorted(words(problem, label).items())
        assert {v for v in picture.at if len(picture.shapes[v]) == 2} == oracle.answers(problem)
        assert sorted(picture.turns) == list(range(1, 1 + len(problem.visited or problem.visited_edges)))
        black = {v for v in picture.at if to_hex(picture.shapes[v][-1].get_edgecolor()) == BLACK}
        followed = sorted(arrow.ends for arrow in picture.arrows if arrow.black)
        if problem.task == "dfs":
            assert black == set(problem.visited)
            so_far = [replace(problem, visited=problem.visited[:turn]) for turn in range(1, len(problem.visited))]
            sources = [step.visited[-1 - oracle.backtrack(step)] for step in so_far]
            assert followed == sorted(zip(sources, problem.visited[1:], strict=True))
        else:
            start = set() if problem.task == "search" else {problem.start}
            assert black == start | {target for _, target in problem.visited_edges}
            assert followed == sorted(problem.visited_edges)


def test_the_legend_holds_what_occurs_and_nothing_else():
    always, ever = None, set[str]()
    for problem in [*(problems(kind)[0] for kind in DRAWN), *SMALLEST]:
        graph: Any = networkx.DiGraph(problem.edges)
        from_start = {problem.start} | networkx.descendants(graph, problem.start)
        to_goal = {problem.goal} | networkx.ancestors(graph, problem.goal)
        answers = oracle.answers(problem)
        for label in (None, max(answers)):
            marked = words(problem, label)
            occurs = {
                "start": True,
                "goal": True,
                "on a path from start to goal": True,
                "distractor: never leads to the goal": bool(from_start - to_goal),
                "not reachable from start": bool(set(problem.vertices) - from_start),
                "answer": bool(answers - {label}),
                "label, one of the answers": label is not None,
                "visited": problem.task != "search",
                "order of the visits": bool(problem.visited or problem.visited_edges),
                "current vertex": "current" in marked,
                "where the search turns back to": "turns back" in marked,
            }
            wanted = [text for text, shown in occurs.items() if shown]
            assert legend(draw_problems([problem], labels=[label])) == wanted
            always = set(wanted) if always is None else always & set(wanted)
            ever |= set(wanted)
    # Each entry has been there and, but for those of every search, not been there.
    assert (len(ever), always) == (11, {"start", "goal", "on a path from start to goal"})


def test_a_grid_has_one_legend_equal_sizes_and_cells_apart():
    mixed = [problems(kind)[0] for kind in MIXED]
    figure = draw_problems(mixed, titles=MIXED)
    assert len(figure.legends) == 1
    assert set(legend(figure)) == {text for problem in mixed for text in legend(draw_problems([problem]))}
    assert [axes.get_title() for axes in figure.axes] == MIXED
    for one, other in combinations([axes.get_position() for axes in figure.axes], 2):
        assert not one.overlaps(other)
    starts = [
        axes.transData.transform_bbox(read(axes).boxes[p.start]) for p, axes in zip(mixed, figure.axes, strict=True)
    ]
    plain = [start.width for p, start in zip(mixed, starts, strict=True) if p.start not in oracle.answers(p)]
    assert plain == pytest.approx([plain[0]] * len(plain))
    few = SMALLEST[:1] * 3
    rows = [[round(axes.get_position().x0, 6) for axes in draw_problems(few, columns=n).axes] for n in (1, 2, 100)]
    assert [len(set(row)) for row in rows] == [1, 2, 3]


@pytest.mark.parametrize("size", [(1.0, 4.0), (4.0, 1.0), (9.0, 9.0)])
def test_one_problem_fits_into_the_axes_it_is_given(size: tuple[float, float]):
    problem = problems("balanced dfs")[0]
    figure = Figure(figsize=size)
    axes = figure.add_axes((0, 0, 1, 1))
    draw_problem(problem, axes, label=min(oracle.answers(problem)), title="a $ is a dollar")
    picture = read(axes)
    view = Bbox([[axes.get_xlim()[0], axes.get_ylim()[0]], [axes.get_xlim()[1], axes.get_ylim()[1]]])
    for vertex in problem.vertices:
        assert Bbox.union([view, picture.boxes[vertex]]).bounds == view.bounds
    (x, _), (_, y) = axes.transData.transform([(1, 0), (0, 1)]) - axes.transData.transform((0, 0))
    assert x == pytest.approx(y)
    inches = x / figure.dpi
    (goal,) = [text for text in axes.texts if text.get_text() == "goal"]
    assert goal.get_fontsize() == pytest.approx(7.0 * inches)
    assert axes.get_title() == "a $ is a dollar"


def test_one_problem_has_the_same_bytes_always(tmp_path: Path):
    mixed = [problems(kind)[0] for kind in ("naive", "balanced dfs")]
    shuffled = [replace(p, edges=tuple(random.Random(1).sample(p.edges, len(p.edges)))) for p in mixed]
    labels = [min(oracle.answers(problem)) for problem in mixed]
    drawn = draw_problems(mixed, labels=labels)
    figures = {"drawn": drawn, "again": drawn, "shuffled": draw_problems(shuffled, labels=labels)}
    for name, figure in figures.items():
        save(figure, tmp_path / f"{name}.png")
        save(figure, tmp_path / f"{name}.svg")
    program = (
        "from pathlib import Path; from pathmerge import Problem; from pathmerge.pictures import draw_problems, save; "
        f"figure = draw_problems({mixed!r}, labels={labels!r}); folder = Path({str(tmp_path)!r}); "
        "save(figure, folder / 'elsewhere.png'); save(figure, folder / 'elsewhere.svg')"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONHASHSEED": "1"})
    assert len(files(tmp_path)) == 8
    for suffix, magic in (("png", b"\x89PNG\r\n"), ("svg", b"<?xml")):
        first, *others = [path.read_bytes() for path in files(tmp_path) if path.suffix == f".{suffix}"]
        assert [other == first for other in others] == [True] * 3, suffix
        assert first.startswith(magic)
        assert b"matplotlib" not in first.lower()  # nor the version that drew it


@pytest.mark.parametrize(
    ("edges", "settings", "says"),
    [
        (((1, 2), (1, 3)), {"labels": [3]}, "label=3"),
        (((1, 2), (1, 3)), {"labels": []}, "labels"),
        (((1, 2), (1, 3)), {"titles": ["a", "b"]}, "titles"),
        (((1, 2), (1, 3)), {"columns": 0}, "columns=0"),
        (((1, 2), (2, 3), (3, 2)), {}, "edges"),
    ],
)
def test_bad_input_is_refused_in_one_line(edges: tuple[tuple[int, int], ...], settings: dict[str, Any], says: str):
    with pytest.raises(ValueError, match=rf"\A{says}: .+\Z"):
        draw_problems([Problem("search", edges, 1, 2)], **settings)


def test_no_problems_are_refused_in_one_line():
    with pytest.raises(ValueError, match=r"\Aproblems=\[\]: .+\Z"):
        draw_problems([])


def test_a_wrong_label_draws_nothing():
    axes = Figure().add_axes((0, 0, 1, 1))
    with pytest.raises(ValueError, match=r"\Alabel=1: .+ \[2\]\Z"):
        draw_problem(SMALLEST[0], axes, label=1)
    assert not axes.patches
    assert not axes.texts


@pytest.mark.parametrize("place", ["a.pdf", "a", "missing/a.png", "file/a.svg", "folder.png"])
def test_a_bad_place_is_refused_in_one_line_and_left_as_it_was(place: str, tmp_path: Path):
    (tmp_path / "file").touch()
    (tmp_path / "folder.png").mkdir()
    before = files(tmp_path)
    with pytest.raises(ValueError, match=r"\A(suffix|picture)='.*': .+\Z"):
        save(draw_problems(SMALLEST[:1]), tmp_path / place)
    assert files(tmp_path) == before


def test_a_failed_save_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    figure, path = draw_problems(SMALLEST[:1]), tmp_path / "a.png"
    path.write_bytes(b"old")

    def fill_disk(file: Path, **_: Any) -> None:
        file.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(figure, "savefig", fill_disk)
    with pytest.raises(ValueError, match=r"\Apicture='.*': No space left on device\Z"):
        save(figure, path)
    assert files(tmp_path) == [path]
    assert path.read_bytes() == b"old"
