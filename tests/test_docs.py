"""The tutorial runs as written, and the README's Python does too; links lead somewhere, tables are whole."""

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


def shown_files(page: Path) -> dict[str, str]:
    """The files of a page: a name on a line by itself, then a block."""
    found = re.findall(r"^`(\S+)`\n\n```\w+\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    return dict(found)


def test_the_page_on_extending_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, catalogues: None):
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "extending.md"
    files = shown_files(page)
    assert list(files) == ["layered.py", "gated.py", "quick.toml", "gates.py"]
    for name, text in files.items():
        assert len(text.splitlines()) <= 45, name
        Path(name).write_text(text)
    commands = [line for block in blocks(page, "console") for line in block.splitlines()]
    assert len(commands) == 6
    for command in commands:
        assert command.startswith("$ pathmerge ")
        words = [str(next(Path("runs").iterdir())) if word == "RUN" else word for word in shlex.split(command)]
        assert main(words[2:]) == 0, command
    assert Path("layered.png").is_file()
    results = Path("results/gates/smoke-tuned")
    rows = (results / "table.csv").read_text().splitlines()
    assert [row.split(",")[:2] for row in rows[1:]] == [
        [model, str(lookahead)] for model in ("onehot", "gated") for lookahead in (1, 2, 3, 4)
    ]
    assert (results / "figure.png").is_file()
    page = (results / "report.html").read_text()
    assert f"pathmerge --use {Path('layered.py').resolve()} --use " in page  # its commands know the files, too
    assert "Transformers Struggle" not in page
    run = next(Path("runs").iterdir())
    assert run.name.startswith("layered-gated-32-")
    assert "layered,lookahead=4," in (run / "evaluation.csv").read_text()


def pages() -> list[Path]:
    return [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]


def test_tables_are_whole():
    """A blank line in a table cuts off the rows below it: they would be text without a head."""
    for page in pages():
        for table in re.findall(r"(?:^\|.*\n)+", page.read_text(), re.MULTILINE):
            rows = table.splitlines()
            assert re.fullmatch(r"\|[-:| ]+\|", "".join(rows[1:2])), f"{page.name}: {rows[0]}"
            columns = {len(re.findall(r"(?<!\\)\|", re.sub(r"`[^`]*`", "", row))) for row in rows}
            assert len(columns) == 1, f"{page.name}: {rows[0]}"


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """What can stand behind # in a link to a page: its headings, as code hosts write them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere():
    for page in pages():
        for target in re.findall(r"\]\(([^)]+)\)", prose(page)):
            if target.startswith("http"):
                continue
            name, _, anchor = target.partition("#")
            there = page.parent / name if name else page
            assert there.exists(), f"{page.name}: {target}"
            assert not anchor or anchor in anchors(there), f"{page.name}: {target}"
