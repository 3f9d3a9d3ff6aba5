"""The gallery in docs/ is what the command writes today."""

from __future__ import annotations

from pathlib import Path

from pathmerge.cli import main
from pathmerge.gallery import EXAMPLES, stale

DOCS = Path(__file__).parents[1] / "docs"


def test_the_gallery_is_up_to_date():
    assert stale(DOCS) == [], "run `make gallery` and look at what changed"


def test_a_stale_gallery_is_noticed(tmp_path: Path):
    assert main(["gallery", str(tmp_path)]) == 0
    assert main(["gallery", str(tmp_path), "--check"]) == 0
    page = tmp_path / "gallery.md"
    page.write_text(page.read_text().replace("lookahead 4", "lookahead 5", 1))
    (tmp_path / "gallery" / "star.svg").unlink()
    assert stale(tmp_path) == ["gallery.md", "gallery/star.svg"]
    assert main(["gallery", str(tmp_path), "--check"]) == 1


def test_every_task_and_encoding_has_an_example():
    text = (DOCS / "gallery.md").read_text()
    tasks = {d.task if d.name != "selection-inference" else d.cells()[0][2] for d, _ in EXAMPLES.values()}
    assert tasks == {"search", "dfs", 0, 1}
    assert text.count("Symbolic tokens") == text.count("One token per edge") == len(EXAMPLES)
    assert "Language:" in text
