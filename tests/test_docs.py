"""The tutorial runs as written, and the README's Python does too."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from pathmerge.cli import main

ROOT = Path(__file__).parents[1]


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)


def test_the_tutorials_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    commands = [line for block in blocks(ROOT / "docs" / "tutorial.md", "console") for line in block.splitlines()]
    assert len(commands) >= 12
    for command in commands:
        assert command.startswith("$ pathmerge ")
        # The page says RUN for the directory that `train` has printed.
        words = [str(next(Path("runs").iterdir())) if word == "RUN" else word for word in shlex.split(command)]
        assert main(words[2:]) == 0, command


def test_the_commands_of_a_study_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    commands = "".join(blocks(ROOT / "docs" / "study_local.md", "console")).splitlines()
    assert len(commands) == 2
    for command in commands:
        assert main(shlex.split(command)[2:]) == 0, command
    for name in ("table.csv", "table.parquet", "figure.png", "figure.svg", "tasks", "logs"):
        assert (tmp_path / "results" / "lookahead-histogram" / "smoke-tuned" / name).exists()


@pytest.mark.parametrize(
    "page",
    ["docs/tutorial.md", "docs/models.md", "docs/circuits.md", "docs/own_model.md", "docs/probes.md", "README.md"],
)
def test_the_python_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    code = blocks(ROOT / page, "python")
    assert code
    exec(compile("\n".join(code), page, "exec"), {})


def test_links_lead_somewhere():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"
