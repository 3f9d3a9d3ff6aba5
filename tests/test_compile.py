"""The cache of compiled kernels is keyed by every kernel source, and its place may be unwritable."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pathmerge

PACKAGE = Path(pathmerge.__file__).parent
ASK = """
from pathmerge.kernels import compile as c
print(c.CACHE_DIRECTORY, c.is_compiled("dfs", 1))
c.mark_compiled("dfs", 1)
"""
ASK_AFTER_CHANGES = """
from pathlib import Path
from pathmerge.kernels import compile as c
for file in sorted(Path(c.__file__).parent.glob("*.py")):
    file.write_text(file.read_text() + "\\n# changed\\n")
    print(c._cache_directory())
"""


def ask(package: Path, cache: Path, question: str = ASK) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": str(package.parent), "NUMBA_CACHE_DIR": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", question], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout.split()


def test_a_change_in_any_kernel_file_changes_the_cache(tmp_path: Path):
    copy = tmp_path / "copy" / "pathmerge"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    before, compiled = ask(copy, tmp_path / "cache")
    assert before.startswith(str(tmp_path / "cache"))
    assert compiled == "False"
    assert ask(copy, tmp_path / "cache") == [before, "True"]
    after = ask(copy, tmp_path / "cache", ASK_AFTER_CHANGES)
    assert len({before, *after}) == 1 + len(list((copy / "kernels").glob("*.py")))
    assert ask(copy, tmp_path / "cache") == [after[-1], "False"]


def test_an_impossible_cache_directory_is_passed_over(tmp_path: Path):
    file = tmp_path / "a file, not a directory"
    file.write_text("")
    place, _ = ask(PACKAGE, file)
    assert Path(place).is_dir()
    assert not place.startswith(str(tmp_path))
