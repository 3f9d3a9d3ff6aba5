"""The cache of compiled kernels is keyed by every kernel source, and its place may be unwritable."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pathmerge
from pathmerge.circuits.explain import warm_up
from pathmerge.cli import main
from pathmerge.cli.progress import announce_circuits, announce_compilation
from pathmerge.kernels import compile as kernels
from pathmerge.prepare import parts

PACKAGE = Path(pathmerge.__file__).parent
ASK = """
from pathmerge.kernels import compile as c
print(c.CACHE_DIRECTORY, c.is_compiled("dfs-1-words"))
c.mark_compiled("dfs-1-words")
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


def test_what_will_be_compiled_is_said_beforehand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(kernels, "CACHE_DIRECTORY", str(tmp_path))
    announce_circuits()
    announce_compilation(pathmerge.Balanced(input_size=32))
    assert capsys.readouterr().err.splitlines() == [
        "compiling what finds circuits, once for this machine: about a minute",
        "compiling the generators for input sizes up to 199, once for this machine: a quarter of a minute",
    ]
    for name in (kernels.CIRCUITS, kernels.generators("search", 1)):
        (tmp_path / name).touch()
    announce_circuits()
    announce_compilation(pathmerge.Balanced(input_size=32))
    assert not capsys.readouterr().err


def test_all_can_be_compiled_beforehand(capsys: pytest.CaptureFixture[str]):
    assert main(["compile", "--threads", "1"]) == 0
    assert all(part.done for part in parts())
    capsys.readouterr()
    assert main(["compile"]) == 0
    assert capsys.readouterr().out == f"the kernels are compiled, in {kernels.CACHE_DIRECTORY}\n"
    assert main(["compile", "--threads", "0"]) == 2
    assert "threads=0: must be" in capsys.readouterr().err


@pytest.mark.parametrize("at", range(len(parts())))
def test_what_marks_a_part_is_left_by_its_compilation(at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    part = parts()[at]
    part.compile()
    monkeypatch.setattr(kernels, "CACHE_DIRECTORY", str(tmp_path))
    assert not part.done
    kernels.mark_compiled.cache_clear()
    warm_up.cache_clear()
    part.compile()
    assert part.done


COMPILED_LATER = """
import pathmerge as pm
from pathlib import Path
from pathmerge.circuits.explain import explain_all, warm_up
from pathmerge.kernels.compile import CACHE_DIRECTORY

def there():
    return {path.name for path in Path(CACHE_DIRECTORY).rglob("*.nbc")}

batch = pm.Balanced(input_size=64, lookahead=3).sample(1)
small = pm.Balanced(input_size=20, lookahead=2).sample(2)
models = [(pm.load("balanced-64"), batch), (pm.load("edges-64-plain"), batch), (pm.compiled(20), small)]
models += [(pm.OneHot(input_size=20, layers=3, heads=2, causal=True).build(), small)]
models += [(pm.Rotary(input_size=20, layers=3).build(), small)]
warm_up()
before = there()
for model, problems in models:
    for mode in ("screened", "exact") if problems is small else ("screened",):
        for circuit in explain_all(model, problems, mode=mode, threads=1):
            circuit.operations
print(len(before), *(there() - before))
"""


@pytest.mark.long
def test_all_kernels_of_circuits_are_compiled_before_the_first(tmp_path: Path):
    """Otherwise the first circuit would take their time with it, and `--plan` and `seconds_per_input` would say so."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", COMPILED_LATER], env=environment, capture_output=True, text=True, check=True, timeout=900
    )
    known, *later = done.stdout.split()
    assert int(known) > 10
    assert later == []
