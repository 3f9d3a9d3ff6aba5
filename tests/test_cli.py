"""The command line as users type it: what it prints, what it writes, how it says no."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pathmerge.cli import main
from pathmerge.files import read_problems

KINDS = ["balanced", "naive", "star", "dfs", "selection-inference", "language"]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)


def run(command: str) -> int:
    return main(command.split())


def test_the_contract_commands(capsys: pytest.CaptureFixture[str]):
    assert run("sample balanced --input-size 128 --lookahead 8 --count 400 --seed 1 --out problems.npz") == 0
    assert run("verify problems.npz") == 0
    out = capsys.readouterr().out
    assert "400 problems of balanced(input_size=128, lookahead=8)" in out
    assert "wrote 400 problems to problems.npz" in out
    assert out.rstrip().endswith("all right")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_drawn_shown_written_and_pictured(kind: str, capsys: pytest.CaptureFixture[str]):
    assert run(f"sample {kind} --input-size 64 --count 100 --out p.parquet --picture p.png --stats --show 2") == 0
    out = capsys.readouterr().out
    assert "the first 2" in out
    assert "vertices (examples)" in out
    assert "acceptance:" in out
    assert Path("p.png").read_bytes().startswith(b"\x89PNG")
    assert len(read_problems(Path("p.parquet"))) == 100
    assert run("verify p.parquet") == 0
    assert sorted(os.listdir()) == ["p.parquet", "p.png"]


def test_without_a_lookahead_balanced_draws_all_of_them():
    assert run("sample balanced --input-size 32 --count 300 --out p.npz") == 0
    assert set(read_problems(Path("p.npz")).columns["lookahead"]) == {1, 2, 3, 4}


def test_held_out_problems_are_redrawn_and_the_pair_is_proved_disjoint(capsys: pytest.CaptureFixture[str]):
    options = "--input-size 32 --lookahead 1 --count 300 --show 0"
    assert run(f"sample balanced {options} --split test --out test.npz") == 0
    assert run(f"sample balanced {options} --held-out test.npz --out train.npz") == 0
    assert "held-out problems met and redrawn" in capsys.readouterr().out
    assert run("verify train.npz --held-out test.npz") == 0
    assert run("verify test.npz --held-out test.npz") == 1
    assert "is the same problem as held-out row 0" in capsys.readouterr().out


def test_the_held_out_file_is_not_overwritten(capsys: pytest.CaptureFixture[str]):
    assert run("sample naive --input-size 32 --out a.npz --show 0") == 0
    before = Path("a.npz").read_bytes()
    assert run("sample naive --input-size 32 --held-out a.npz --out a.npz") == 2
    assert "must not be the held-out file itself" in capsys.readouterr().err
    assert Path("a.npz").read_bytes() == before


def test_names_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]):
    assert run("sample naive --input-size 32 --out [red]:smile:.npz --show 0") == 0
    assert run("verify [red]:smile:.npz") == 0
    assert capsys.readouterr().out.count("[red]:smile:.npz") == 2


def test_a_wrong_file_ends_with_1(capsys: pytest.CaptureFixture[str]):
    assert run("sample star --input-size 32 --lookahead 2 --count 5 --out p.jsonl") == 0
    header, row, *rest = Path("p.jsonl").read_text().splitlines(keepends=True)
    Path("p.jsonl").write_text("".join([header, row.replace('"lookahead": 2,', '"lookahead": 3,'), *rest]))
    assert run("verify p.jsonl") == 1
    assert "NOT all right" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("sample balanced --input-size 128 --lookahead 21", "lookahead=21: must be a whole number in 1..20"),
        ("sample balanced --input-size 12", "input_size=12: must be a whole number in 14..512"),
        ("sample balanced --input-size abc", "--input-size='abc': must be a whole number"),
        ("sample balanced", "--input-size"),
        ("sample balanced --input-size 64 --lookahead x", "--lookahead='x': must be a whole number, or None"),
        ("sample star --input-size 64 --spokes 9 --lookahead 9", "spokes=9: must be a whole number in 2..2"),
        (
            "sample selection-inference --input-size 64 --frontier 5 --branch 9",
            "branch=9: must be a whole number in 1..6",
        ),
        ("sample balancd --input-size 64", "command='balancd': must be one of balanced, tangled, naive"),
        (
            "smaple",
            "command='smaple': must be one of sample, train, evaluate, explain",
        ),
        ("sample naive --input-size 64 --label best", "best"),
        ("sample naive --input-size 64 --colour red", "--colour"),
        ("sample naive --input-size 64 --count 0", "count=0: must be a whole number in 1.."),
        ("sample naive --input-size 64 --seed -1", "seed=-1: must be a whole number in 0..18446744073709551615"),
        ("sample naive --input-size 64 --out p.txt", "out='p.txt': the name must end in one of .npz, .parquet, .jsonl"),
        ("sample naive --input-size 64 --picture p.gif", "picture='p.gif': the name must end in one of .png, .svg"),
        ("sample naive --input-size 64 --out nowhere/p.npz", "out: no such directory: 'nowhere'"),
        ("sample naive --input-size 64 --held-out none.npz --out p.npz", "held_out='none.npz': no such file"),
        ("verify none.npz", "file='none.npz': no such file"),
        ("verify", "The problem file"),
        ("gallery nowhere", "folder: no such directory: 'nowhere'"),
        ("", "sample"),
    ],
)
def test_bad_input_is_one_line_with_exit_code_2_and_nothing_written(
    command: str, message: str, capsys: pytest.CaptureFixture[str]
):
    assert run(command) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert os.listdir() == []


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not really", b'{"header": 3}\n', b"\x00" * 100])
@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".jsonl"])
def test_foreign_files_are_one_line(content: bytes, suffix: str, capsys: pytest.CaptureFixture[str]):
    Path(f"p{suffix}").write_bytes(content)
    assert run(f"verify p{suffix}") == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_an_unwritable_place_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Root may write anywhere, so the answer of the system is replaced."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert run("sample naive --input-size 64 --out p.npz") == 2
    assert "cannot be written to" in capsys.readouterr().err


def process(*arguments: str, code: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code] if code else [sys.executable, "-m", "pathmerge", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env={**os.environ, **environment}
    )


def test_a_terminal_without_the_signs_gets_question_marks():
    done = process("sample", "star", "--input-size", "32", "--stats", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "acceptance" in done.stdout
    done = process("sample", "star", "--input-size", "a", PYTHONIOENCODING="ascii")
    assert done.returncode == 2
    assert done.stderr.startswith("pathmerge sample: --input-size='a': must be a whole number;")


def test_a_stopped_command_leaves_no_half_file():
    """SIGTERM while it writes: the old file stays, and nothing else."""
    assert run("sample naive --input-size 32 --out p.jsonl --show 0") == 0
    before = Path("p.jsonl").read_bytes()
    command = "sample naive --input-size 32 --count 400000 --out p.jsonl --show 0".split()
    with subprocess.Popen([sys.executable, "-m", "pathmerge", *command], stderr=subprocess.PIPE) as running:
        deadline = time.monotonic() + 120
        while len(os.listdir()) == 1 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert len(os.listdir()) == 2
        running.terminate()
        assert running.wait(60) == 130
    assert os.listdir() == ["p.jsonl"]
    assert Path("p.jsonl").read_bytes() == before


def test_no_traceback_reaches_the_user():
    done = process("sample", "balanced", "--input-size", "128", "--lookahead", "99")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


def test_help_and_configs_import_nothing_heavy():
    code = (
        "import sys, pathmerge.cli\n"
        "import pathmerge\n"
        "pathmerge.Balanced(input_size=128, lookahead=8)\n"
        "pathmerge.cli.main(['--help'])\n"
        "heavy = {'torch', 'numba', 'numpy', 'matplotlib', 'networkx', 'pyarrow', 'jaxtyping'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = process(code=code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("[]")


def test_drawing_and_verifying_import_no_torch():
    code = (
        "import sys\nfrom pathmerge.cli import main\n"
        "main('sample dfs --input-size 32 --count 5 --out p.npz'.split())\nmain(['verify', 'p.npz'])\n"
        "print('torch' in sys.modules)"
    )
    assert process(code=code).stdout.rstrip().endswith("False")


def test_version_and_help():
    assert process("--version").stdout.startswith("pathmerge 0.")
    for arguments in (["--help"], ["sample", "--help"], ["sample", "dfs", "--help"], ["verify", "--help"]):
        done = process(*arguments)
        assert done.returncode == 0
        assert done.stdout.startswith("usage: pathmerge")
        assert done.stderr == ""
