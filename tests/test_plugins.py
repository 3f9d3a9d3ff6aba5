"""Plug-ins: files of someone's own are known to every command and process, and bad ones are one line."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

import pathmerge as pm
from pathmerge import plugins
from pathmerge.cli import main
from pathmerge.distributions import DISTRIBUTIONS, distribution_from_dict
from pathmerge.evaluation.accuracy import name_cell
from pathmerge.studies.study import Study

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
