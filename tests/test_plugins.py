"""Plug-ins: files of someone's own, and distributions written in Python."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from scipy import stats

import pathmerge as pm
from pathmerge import oracle, plugins
from pathmerge.cli import main
from pathmerge.distributions import DISTRIBUTIONS, distribution_from_dict
from pathmerge.encodings import symbolic
from pathmerge.evaluation.accuracy import converged, name_cell, row_of
from pathmerge.evaluation.suite import test_suite as suite_of
from pathmerge.evaluation.suite import validation_problem
from pathmerge.models.config import MODELS
from pathmerge.models.sequence_transformer import SequenceTransformer
from pathmerge.models.sites import Sites
from pathmerge.models.transformer import Block
from pathmerge.parallel import Workers
from pathmerge.problems.identity import identity
from pathmerge.problems.problem import Problem
from pathmerge.problems.python_fill import lookahead, read
from pathmerge.rng import Key, KeyedRandom
from pathmerge.studies.study import Study
from pathmerge.training.gradients import add_gradients, make_task

GRID = '''
from dataclasses import dataclass
from typing import ClassVar
from pathmerge import PythonDistribution, register

@register
@dataclass(frozen=True, kw_only=True)
class Grid(PythonDistribution):
    """One-way streets to the east and to the south."""

    closed: int = 2
    """How many streets in ten are closed."""
    name: ClassVar[str] = "grid"

    def propose(self, random, lookahead):
        height = random.randint(2, self.most_vertices // 2)
        width = random.randint(2, self.most_vertices // height)
        corners = [(row, column) for row in range(height) for column in range(width)]
        streets = [
            (corner, after)
            for corner in corners
            for after in ((corner[0], corner[1] + 1), (corner[0] + 1, corner[1]))
            if after in corners and random.randrange(10) >= self.closed
        ]
        return streets, *random.sample(corners, 2)
'''


@dataclass(frozen=True, kw_only=True)
class Chains(pm.PythonDistribution):
    """Two to four chains from start, most of them as long as asked; words as vertices, several paths."""

    name: ClassVar[str] = "chains"

    @property
    def largest_lookahead(self) -> int:
        return (self.most_vertices - 1) // 2

    def propose(self, random: Random, lookahead: int | None) -> Any:
        assert lookahead is not None
        edges: list[tuple[str, str]] = []
        for chain in range(random.randint(2, 4)):
            line = ["start", *(f"{chain}:{i}" for i in range(lookahead + random.choice([0, 0, -1])))]
            edges += pairwise(line)
        if random.random() < 0.5:
            edges.append(("1:0", "0:0"))
        return edges, "start", f"0:{lookahead - 1}"


@dataclass(frozen=True, kw_only=True)
class Nothing(pm.PythonDistribution):
    name: ClassVar[str] = "python"


def same(a: pm.Batch, b: pm.Batch) -> bool:
    names = ("tokens", "label", "answers", "difficulty", "start", "goal", "identity", "attempts", "redraws")
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in names)


# The generator.


@pytest.mark.parametrize(("seed", "stream", "index", "attempt"), [(0, 0, 0, 0), (2**64 - 1, 2**24 - 1, 2**63 - 1, 9)])
def test_the_generator_is_that_of_the_kernels(seed: int, stream: int, index: int, attempt: int):
    from test_rng import philox

    random = KeyedRandom(Key(seed=seed, split="test", stream=stream), index, attempt)
    low = 2**32 - 1
    for block in range(3):
        counter = [attempt << 16 | block, index & low, index >> 32, 2 << 24 | stream]
        words = philox(counter, [seed & low, seed >> 32])
        assert [random.getrandbits(32) for _ in range(4)] == words


def test_the_generator_is_uniform_and_whole():
    random = KeyedRandom(Key(seed=3), 0, 0)
    counts = Counter(random.randrange(7) for _ in range(7000))
    assert stats.chisquare(list(counts.values())).pvalue > 1e-4
    assert len(counts) == 7
    assert 0.4 < np.mean([random.random() for _ in range(2000)]) < 0.6
    assert abs(random.gauss(0.0, 1.0)) < 10
    assert sorted(random.sample(range(9), 9)) == list(range(9))
    random._block = 2**16 - 1  # pyright: ignore[reportPrivateUsage]
    random.getrandbits(128)
    with pytest.raises(ValueError, match="more than 8 million bits"):
        random.getrandbits(128)


# Distributions in Python.


def test_an_example_is_a_function_of_its_key():
    problem = Chains(input_size=32)
    whole = problem.sample(300, seed=5, stream=3)
    assert same(whole, problem.sample(300, seed=5, stream=3, threads=3))
    parts = [problem.sample(1, seed=5, stream=3, first=i) for i in range(0, 300, 37)]
    for part in parts:
        assert same(whole[part.first], part)
    assert not np.array_equal(whole.tokens, problem.sample(300, seed=6, stream=3).tokens)
    assert not np.array_equal(whole.tokens, problem.sample(300, seed=5, stream=4).tokens)
    assert not np.array_equal(whole.tokens, problem.sample(300, seed=5, stream=3, split="test").tokens)


def test_several_chunks_are_one_stream():
    problem = Chains(input_size=20)
    assert same(problem.sample(1100, threads=4).take(slice(1000, 1100)), problem.sample(100, first=1000))


def test_it_is_the_same_in_another_process(tmp_path: Path, catalogues: None):
    plugin = tmp_path / "words.py"
    words = "return [(str(a), str(b)) for a, b in streets], *map(str, random.sample(corners, 2))"
    plugin.write_text(GRID.replace("return streets, *random.sample(corners, 2)", words))
    assert words in plugin.read_text()
    plugins.use([str(plugin)])
    plugins.load_plugins()
    program = (
        "from pathmerge import plugins; from pathmerge.distributions import DISTRIBUTIONS; plugins.load_plugins();"
        "print(DISTRIBUTIONS['grid'](input_size=26).sample(50).tokens.tolist())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.stdout == f"{DISTRIBUTIONS['grid'](input_size=26).sample(50).tokens.tolist()}\n", done.stderr


@pytest.mark.parametrize("label", ["path", "vertex", "soft"])
def test_every_row_is_what_the_oracle_says(label: Any):
    batch = Chains(input_size=32, label=label).sample(400, seed=2)
    assert set(batch.lookahead.tolist()) == {1, 2, 3, 4}
    for i in range(len(batch)):
        problem = symbolic.parse(batch.tokens[i].tolist(), batch.distribution.layout)
        assert symbolic.render(problem, batch.distribution.layout) == batch.tokens[i].tolist()
        assert np.flatnonzero(batch.answers[i]).tolist() == sorted(oracle.answers(problem))
        assert batch.answers[i, batch.label[i]]
        assert batch.lookahead[i] == oracle.lookahead(problem)
        assert batch.identity[i] == identity(problem)
        assert (problem.start, problem.goal) == (batch.start[i], batch.goal[i])


def test_lookahead_and_paths_as_the_kernels_have_them():
    batch = pm.Naive(input_size=64).sample(500, seed=1)
    for i in range(len(batch)):
        edges = [(int(u), int(v)) for u, v in batch.edges[i] if u]
        start, goal = int(batch.start[i]), int(batch.goal[i])
        graph = read((edges, start, goal))
        assert graph is not None
        assert lookahead(graph) == batch.lookahead[i]
        numbers = list(dict.fromkeys(v for edge in edges for v in edge))
        counted = {numbers[child]: graph.paths[child] for child in graph.useful}
        assert counted == oracle.path_counts(Problem("search", tuple(edges), start, goal))


def test_labels_are_drawn_by_paths():
    class Fork(Chains):
        def propose(self, random: Random, lookahead: int | None) -> Any:
            return [("s", "a"), ("s", "b"), ("s", "c"), ("a", "g"), ("b", "g"), ("a", "d"), ("d", "g")], "s", "g"

    batch = Fork(input_size=32, lookahead=1).sample(1500, seed=1)
    often = 0
    for i in range(len(batch)):
        edges = [(int(u), int(v)) for u, v in batch.edges[i] if u]
        often += sum(u == batch.label[i] for u, _ in edges) == 2  # the vertex with two ways on
    assert stats.binomtest(often, 1500, 2 / 3).pvalue > 1e-4
    assert stats.chisquare(np.bincount(batch.start, minlength=10)[1:]).pvalue > 1e-4


def test_held_out_problems_are_redrawn():
    problem = Chains(input_size=20)
    held = pm.HeldOut.of(problem.sample(30, seed=4).identity)
    free = problem.sample(30, seed=4)
    batch = problem.sample(30, seed=4, held_out=held)
    assert (batch.redraws > 0).all()
    assert not held.has(batch.identity).any()
    assert np.array_equal(batch.difficulty, free.difficulty)
    for i in (0, 17):
        assert same(batch[i], problem.sample(1, seed=4, first=i, held_out=held))


def test_cells_are_held_out_like_others():
    held = pm.hold_out([Chains(input_size=32, max_lookahead=2)], 20, split="test")
    assert [cell.batch.lookahead.tolist() for cell in held.cells] == [[1] * 20, [2] * 20]
    assert not held.too_small


def test_chance_and_rejection(tmp_path: Path, catalogues: None):
    Path(tmp_path, "grid.py").write_text(GRID)
    plugins.use([str(tmp_path / "grid.py")])
    plugins.load_plugins()
    grid: Any = DISTRIBUTIONS["grid"]
    assert grid(input_size=32).cells() == [(0, 0, 0)]
    assert len(set(grid(input_size=32).sample(200).lookahead.tolist())) > 1
    assert set(grid(input_size=32, lookahead=1).sample(50).lookahead.tolist()) == {1}
    assert name_cell(grid(input_size=32)) == ("grid", "all")
    assert distribution_from_dict(grid(input_size=32, closed=3).to_dict()) == grid(input_size=32, closed=3)
    with pytest.raises(ValueError, match=r"curriculum.over='lookahead': needs"):
        pm.Curriculum(over="lookahead").stages(grid(input_size=32))


def test_what_it_is_tested_and_validated_on():
    problem = Chains(input_size=32, max_lookahead=2, vertices=7, label="vertex")
    assert [d.name for d in suite_of(problem)] == ["chains", "naive", "star", "balanced"]
    assert suite_of(problem)[0] == Chains(input_size=32)
    assert validation_problem(problem) == Chains(input_size=32, max_lookahead=2)
    assert converged([row_of(("chains", "lookahead=1"), 10, 10, 0.0)]).converged


def test_a_curriculum_grows_it():
    problem = Chains(input_size=32)
    assert [d.cells()[-1][0] for d in pm.Curriculum(over="lookahead").stages(problem)] == [1, 2, 3, 4]
    sizes = pm.Curriculum(over="size", step=2).stages(problem)
    assert [d.cells()[-1][0] for d in sizes] == [2, 3, 4]
    few = sizes[0].sample(50)
    assert (few.edges[:, :, 0] > 0).sum(1).max() <= 5


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (([("a", "b"), ("b", "a")], "a", "b"), "chains.propose: gave a graph with a cycle"),
        (([("a", "a")], "a", "b"), "chains.propose: gave a graph with a cycle"),
        (([("a", "b"), ("a", "b")], "a", "b"), r"chains.propose: gave the edge \('a', 'b'\) twice"),
        (({("a", "b")}, "a", "b"), "chains.propose: gave edges as set, must be a list"),
        (([("a", "b", "c")], "a", "b"), "must be a pair of vertices"),
        (([([], "b")], "a", "b"), "chains.propose: unhashable"),
        ([("a", "b")], "chains.propose: gave list, must give edges, start, goal, or None"),
        (ZeroDivisionError("by nothing"), "chains.propose: ZeroDivisionError: by nothing"),
    ],
)
def test_mistakes_of_a_proposal_are_named(given: Any, says: str):
    class Wrong(Chains):
        def propose(self, random: Random, lookahead: int | None) -> Any:
            if isinstance(given, Exception):
                raise given
            return given

    with pytest.raises(ValueError, match=says):
        Wrong(input_size=32).sample(1)


def test_what_never_fits_ends(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pathmerge.problems.python_fill.MAX_ATTEMPTS", 50)
    large = [(number, number + 1) for number in range(10)]
    for proposal, why in (
        (None, "proposed nothing"),
        (([("a", "b")], "a", "c"), "proposed nothing, or no edge at start or goal"),
        (([("a", "b")], "b", "a"), "had no path from start to goal"),
        (([("a", "b")], "a", "a"), "had no path from start to goal"),
        ((large, 0, 10), "had more than 9 vertices or edges"),
        ((large[:4], 0, 4), "had another lookahead than 2"),
    ):

        class Never(Chains):
            def propose(self, random: Random, lookahead: int | None, given: Any = proposal) -> Any:
                return given

        with pytest.raises(pm.DrawError, match=f"was not found in 50 attempts: 50 {why}"):
            Never(input_size=32, lookahead=2).sample(1)
    with pytest.raises(ValueError, match=r"lookahead=5: must be a whole number in 1..4"):
        Chains(input_size=32, lookahead=5)
    with pytest.raises(ValueError, match="must be left out when lookahead"):
        Chains(input_size=32, lookahead=1, max_lookahead=2)
    with pytest.raises(ValueError, match="python: must have a method propose"):
        Nothing(input_size=32).sample(1)


# The command.


def test_sample_and_verify_know_it(tmp_path: Path, catalogues: None, capsys: pytest.CaptureFixture[str]):
    plugin, held, out = tmp_path / "grid.py", tmp_path / "held.jsonl", tmp_path / "grid.npz"
    plugin.write_text(GRID)
    common = ["--input-size", "32", "--closed", "1", "--count"]
    assert main(["sample", "grid", *common, "40", "--split", "test", "--out", str(held), f"--use={plugin}"]) == 0
    assert (
        main(["--use", str(plugin), "sample", "grid", *common, "200", "--held-out", str(held), "--out", str(out)]) == 0
    )
    assert main(["verify", str(out), "--held-out", str(held), "--use", str(plugin)]) == 0
    assert "all right" in capsys.readouterr().out
    assert os.environ[plugins.VARIABLE] == str(plugin)


def test_without_its_file_a_name_is_unknown(tmp_path: Path, catalogues: None, capsys: pytest.CaptureFixture[str]):
    for words in (["sample", "grid"], ["train", "--input-size", "32", "--problem", "grid"], ["study", "gates"]):
        assert main(words) == 2
        said = capsys.readouterr().err
        assert "must be one of" in said
        assert said.endswith("a name of your own needs --use FILE.py\n")
        assert said.count("\n") == 1
    config = tmp_path / "config.toml"
    config.write_text('input_size = 32\n[model]\nname = "gated"\n')
    assert main(["train", str(config)]) == 2
    assert "model.name='gated': must be one of onehot, rotary, edges; a name of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("missing.py", None, "missing.py': no such file"),
        ("notes.txt", "hello", "must be a Python file, .py"),
        ("wrong.py", "def f(:\n", "SyntaxError: invalid syntax"),
        ("binary.py", "\0\0", "null bytes"),
        ("raises.py", "x = 1\ny = x / 0\n", "line 2: ZeroDivisionError: division by zero"),
        ("leaves.py", "raise SystemExit(3)\n", "line 1: SystemExit: 3"),
        ("lines.py", "raise RuntimeError('one\\ntwo')\n", "RuntimeError: one two"),
        (
            "taken.py",
            "import pathmerge as pm\nclass Mine(pm.Balanced):\n    name = 'balanced'\npm.register(Mine)\n",
            "Mine: must be a dataclass",
        ),
        (
            "twice.py",
            "from dataclasses import dataclass\nimport pathmerge as pm\n@pm.register\n"
            "@dataclass(frozen=True, kw_only=True)\nclass Mine(pm.Balanced):\n    name = 'balanced'\n",
            "Mine.name='balanced': is the name of pathmerge.problems.balanced.Balanced",
        ),
    ],
)
def test_bad_files_are_one_line(
    name: str, text: str | None, says: str, tmp_path: Path, catalogues: None, capsys: pytest.CaptureFixture[str]
):
    if text is not None:
        Path(tmp_path, name).write_text(text)
    assert main(["--use", str(tmp_path / name), "models"]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert main(["models", "--use"]) == 2
    assert capsys.readouterr().err.startswith("pathmerge: --use: a value is missing")


def test_a_file_that_was_mended_is_run_again(tmp_path: Path, catalogues: None, capsys: pytest.CaptureFixture[str]):
    plugin = tmp_path / "grid.py"
    plugin.write_text(GRID + "\nraise ValueError('not yet')\n")
    assert main(["sample", "grid", "--input-size", "32", "--use", str(plugin)]) == 2
    plugin.write_text(GRID + "\n# mended\n")
    assert main(["sample", "grid", "--input-size", "32", "--use", str(plugin)]) == 0


def test_two_files_of_one_name(tmp_path: Path, catalogues: None):
    for folder in ("a", "b"):
        Path(tmp_path, folder).mkdir()
        text = GRID.replace('"grid"', f'"grid-{folder}"')
        Path(tmp_path, folder, "grid.py").write_text(text)
    plugins.use([str(tmp_path / "a" / "grid.py"), str(tmp_path / "b" / "grid.py")])
    plugins.load_plugins()
    assert {"grid-a", "grid-b"} <= set(DISTRIBUTIONS)
    assert DISTRIBUTIONS["grid-a"].__module__ != DISTRIBUTIONS["grid-b"].__module__


def test_register_judges(catalogues: None):
    with pytest.raises(ValueError, match="register: int must be a Distribution, a ModelConfig or a Study"):
        pm.register(int)

    @dataclass(frozen=True, kw_only=True)
    class Loud(pm.OneHot):
        name: ClassVar[str] = "Loud!"

    with pytest.raises(ValueError, match=r"Loud.name='Loud!': must be given, in small letters"):
        pm.register(Loud)

    class Half(Study):
        name = "half"
        figure = "none"

        def says(self, setting: Any) -> str:
            return ""

    with pytest.raises(ValueError, match="Half: must have draw, measure, question, tasks"):
        pm.register(Half)


def test_a_process_of_a_study_says_what_is_wrong(tmp_path: Path):
    plugin = tmp_path / "bad.py"
    plugin.write_text("1 / 0\n")
    environment = {**os.environ, plugins.VARIABLE: str(plugin), "PYTHONPATH": os.pathsep.join(sys.path)}
    program = [sys.executable, "-m", "pathmerge.studies.perform", "{}"]
    done = subprocess.run(program, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == f"perform: use={str(plugin)!r}: line 1: ZeroDivisionError: division by zero\n"


# Models.


class PlainTransformer(SequenceTransformer):
    """ReLU once more, but by a gate of its own: everything must come out as for the built-in model."""

    def gate(self, block: Block, before: torch.Tensor, h: torch.Tensor, /) -> torch.Tensor:
        return super().gate(block, before, h)


class SiluTransformer(SequenceTransformer):
    def gate(self, block: Block, before: torch.Tensor, h: torch.Tensor, /) -> torch.Tensor:
        return before.sigmoid()


class ParallelTransformer(SequenceTransformer):
    """Attention and feed-forward side by side."""

    def apply_block(self, layer: int, x: torch.Tensor, bias: torch.Tensor, sites: Sites, /) -> torch.Tensor:
        block: Any = self.blocks[layer]
        scores = block.q(x) @ block.k(x).transpose(1, 2) + bias
        return x + block.o(torch.softmax(scores, -1) @ block.v(x)) + block.ff2(block.ff1(x).tanh())


def gradients(model: Any, batch: pm.Batch, threads: int) -> dict[str, torch.Tensor]:
    model.zero_grad()
    with Workers(threads) as workers:
        add_gradients(model, make_task(model, [batch]), workers, kind="label", total=len(batch), limit=400)
    return {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}


CONFIGS = {
    "onehot": pm.OneHot(input_size=26, layers=3),
    "heads": pm.OneHot(input_size=26, layers=2, loops=2, embedding="learned", positions="learned", heads=2, hidden=4),
    "rotary": pm.Rotary(input_size=26, layers=2, heads=2, hidden=18),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_plain_steps_give_what_the_fast_ones_give(name: str):
    batch = pm.Balanced(input_size=26).sample(40, seed=3)
    built_in, own = CONFIGS[name].build(7), PlainTransformer(CONFIGS[name], 7)
    tokens = own.inputs(batch).tokens
    assert own.own_gate
    assert not built_in.own_gate
    # float32, sums in another order: logits of about 1 agree to some 1e-6
    torch.testing.assert_close(own(tokens), built_in(tokens), atol=1e-5, rtol=1e-5)
    one, two = gradients(own, batch, 1), gradients(own, batch, 2)
    assert all(torch.equal(one[key], two[key]) for key in one)
    fast = gradients(built_in, batch, 1)
    assert one.keys() == dict(own.named_parameters()).keys()
    for key, value in fast.items():
        torch.testing.assert_close(one[key], value, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", [PlainTransformer, SiluTransformer])
@pytest.mark.parametrize("name", CONFIGS)
def test_circuits_follow_the_gate(kind: type[SequenceTransformer], name: str):
    report = pm.check_model(kind(CONFIGS[name], 7), pm.Balanced(input_size=26).sample(2, seed=3))
    assert report.passed, str(report)


def test_sites_follow_the_gate():
    model = SiluTransformer(CONFIGS["onehot"], 7)
    tokens = model.inputs(pm.Balanced(input_size=26).sample(3)).tokens
    record = model.run(tokens, record=["blocks.1.mlp.hook_pre", "blocks.1.mlp.hook_post"]).record
    before, after = (record[f"blocks.1.mlp.{name}"] for name in ("hook_pre", "hook_post"))
    torch.testing.assert_close(after, torch.nn.functional.silu(before))


def test_whole_layers_of_ones_own_train_but_are_not_explained():
    model = ParallelTransformer(CONFIGS["onehot"], 7)
    batch = pm.Balanced(input_size=26).sample(30, seed=3)
    found = gradients(model, batch, 2)
    model.zero_grad()
    logits = model.run(model.inputs(batch).tokens).logits
    assert logits is not None
    torch.nn.functional.cross_entropy(logits, torch.from_numpy(batch.label)).backward()
    for name, value in model.named_parameters():
        if value.grad is not None:
            torch.testing.assert_close(found[name], value.grad, atol=1e-5, rtol=1e-4)
    with pytest.raises(ValueError, match="model=ParallelTransformer: computes its layers in its own way"):
        pm.explain(model, batch[0])


def test_a_model_of_ones_own_reads_text_where_its_parent_does(catalogues: None):
    @pm.register
    @dataclass(frozen=True, kw_only=True)
    class Deep(pm.OneHot):
        layers: int = 9
        name: ClassVar[str] = "deep"

    from pathmerge.training.config import config_from_dict

    config = config_from_dict({"input_size": 20, "problem": {"name": "language"}, "model": {"name": "deep"}})
    assert config.model == Deep(input_size=20, text=True)
    assert config_from_dict(config.to_dict()).digest == config.digest
    assert MODELS["deep"] is Deep
