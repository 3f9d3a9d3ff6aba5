"""Reports: what stands in them, that nothing in them can run or ask anyone for anything, and what a browser makes of
them."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from html_reader import HOSTILE, read
from matplotlib.figure import Figure

import pathmerge as pm
from pathmerge.circuits.options import Options
from pathmerge.circuits.results import Inputs, explain_into
from pathmerge.cli import main
from pathmerge.recipes import command_of
from pathmerge.studies.catalogue import STUDIES
from pathmerge.studies.claims import Verdict
from pathmerge.studies.perform import Order, perform
from pathmerge.studies.results import Folder
from pathmerge.studies.runner import Event, run_study
from pathmerge.studies.study import Place, Row, Setting, Study, Task
from pathmerge.training.config import to_toml
from pathmerge.viewer.markup import element
from pathmerge.viewer.page import Page
from pathmerge.viewer.report import write_study_report

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
in_a_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium or chrome on this machine")


class Tiny(Study):
    """One short training with circuits of known weights, a task with hostile words, one that fails."""

    name: ClassVar[str] = "tiny"
    figure: ClassVar[str] = "Figure 0"
    question: ClassVar[str] = f"Is this {HOSTILE} escaped?"

    def says(self, setting: Setting) -> str:
        return "three small tasks"

    def tasks(self, setting: Setting) -> list[Task]:
        return [
            Task(labels={"model": "small", "seed": 1}, config=tiny_config()),
            Task(labels={"model": HOSTILE}),
            Task(labels={"model": "fails"}),
        ]

    def measure(self, task: Task, run: Any, setting: Setting, place: Place) -> list[Row]:
        if task.labels["model"] == "fails":
            raise ValueError(f"no way: {HOSTILE}")
        if run is None:
            return [{"accuracy": i / 250, "examples": i, "words": HOSTILE} for i in range(250)]
        inputs = Inputs(problems=(pm.Balanced(input_size=20, lookahead=2),), count=1)
        explain_into(place.folder / "circuits", pm.compiled(20), inputs, Options(), threads=1)
        return [{"accuracy": 0.5, "examples": run.examples, "words": "fine"}]

    def draw(self, rows: Sequence[Row], setting: Setting) -> Figure:
        figure = Figure(figsize=(3, 2))
        figure.subplots().plot([1, 2])
        return figure


def tiny_config() -> pm.RunConfig:
    base = pm.recipe("matched", 20, seed=1)
    training = replace(base.training, examples=256, batch_size=64, validate_every=128, log_every=64, threads=1)
    return replace(base, training=training, curriculum=pm.Curriculum(), held_out=pm.Holding(test=60, validation=20))


class InThisProcess:
    """Performs orders one after the other, so that a study of the tests is known."""

    def run(self, orders: Sequence[Order], cores: Sequence[int], folder: Folder) -> Iterator[Event]:
        for order in orders:
            perform(order)
            yield Event(task=order.task, kind="ended")


@dataclass(frozen=True)
class Results:
    """The results of the study above, and its only run."""

    study: Path
    run: Path


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Results]:
    root = tmp_path_factory.mktemp("results")
    patch = pytest.MonkeyPatch()
    patch.setitem(STUDIES, "tiny", Tiny())
    folder = Folder(root=root, study=STUDIES["tiny"], setting=Setting(scale="smoke", recipe="matched"))
    rows, _ = run_study(folder.study, folder.setting, root, InThisProcess())
    write_study_report(folder, rows)
    run = root / "runs" / tiny_config().run_name
    assert main(["evaluate", str(run), "--count", "40"]) == 0
    command = "explain RUN --lookahead 1 2 --count 1 --pictures 1 --no-trust --out RUN/circuits"
    assert main([word.replace("RUN", str(run)) for word in command.split()]) == 0
    assert main(["report", str(run)]) == 0
    yield Results(folder.path, run)
    patch.undo()


def test_the_report_of_a_study(results: Results):
    found = read(results.study / "report.html")
    for words in (
        "Study tiny, Figure 0",
        "Three small tasks.",
        "2 of 3 done, 1 failed",
        "Smoke scale shows",
        "The first 200 of 251 rows; all of them are in table.csv",
        "pathmerge study tiny --scale smoke --recipe matched --out",
        "all examples seen",
        'recipe = "matched"',
        "torch",
        "Problems of balanced(input_size=20).",
        "One input on its way through",
    ):
        assert words in found.text, words
    assert found.elements.count("figure") == 3  # the figure, the problems, a circuit
    assert "of the paper" not in found.text  # a user's study has figures of its own
    headings = "What was run Figure Table Runs Example problems Circuits Do it again"
    assert headings in found.text


def test_hostile_words_are_only_words(results: Results):
    found = read(results.study / "report.html")
    assert found.text.count(" ".join(HOSTILE.split())) > 200
    assert "no way: <script>" in found.text


def test_claims_stand_in_the_report_of_a_study(results: Results, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    verdict = Verdict(
        claim="C1",
        says=f"all is well {HOSTILE}",
        verdict="holds",
        evidence="0.999 at every lookahead",
        rule="at least 0.99",
        scale="laptop",
        recipe="tuned (track T1)",
        remark="one seed only",
    )
    asked: list[tuple[Path, str]] = []

    def touched(root: Path, study_name: str) -> list[Verdict]:
        asked.append((root, study_name))
        return [verdict]

    monkeypatch.setattr("pathmerge.viewer.study.touched", touched)
    out = tmp_path / "page.html"
    assert main(["report", str(results.study), "--out", str(out)]) == 0
    found = read(out)
    for words in ("0.999 at every lookahead", "laptop, tuned (track T1)", "at least 0.99 (one seed only)"):
        assert words in found.text, words
    assert '<span class="good">holds</span>' in out.read_text()
    assert asked == [(results.study.parent.parent, "tiny")]


def test_a_study_with_nothing_done_has_a_report_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(STUDIES, "tiny", Tiny())
    study = STUDIES["tiny"]
    folder = Folder(root=tmp_path, study=study, setting=Setting(scale="smoke", recipe="matched"))
    folder.open(study.tasks(folder.setting))
    assert main(["report", str(folder.path)]) == 0
    assert capsys.readouterr().out == f"wrote {folder.path / 'report.html'}\n"
    found = read(folder.path / "report.html")
    assert "0 of 3 done" in found.text
    assert "not begun" in found.text


def test_a_study_writes_its_report_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["study", "lookahead-histogram", "--scale", "smoke", "--out", str(tmp_path), "--quiet"]) == 0
    path = tmp_path / "lookahead-histogram" / "smoke-tuned" / "report.html"
    assert f"wrote {path}" in capsys.readouterr().out
    found = read(path)
    assert "How rare are long lookaheads in naive graphs?" in found.text
    assert "Study lookahead-histogram, Figure 8 of the paper" in found.text
    assert "20,000 naive graphs of up to 41 vertices" in found.text
    assert "Problems of naive(input_size=128)." in found.text


def test_the_report_of_a_run(results: Results):
    found = read(results.run / "report.html")
    for words in (
        tiny_config().run_name,
        "A onehot model of",
        "matched (track T1m)",
        "all examples seen",
        "lookahead 2",
        "highest degree",
        "The word “model” stands under the vertex",
        "Circuits are those of the lenient rules",
        'optimizer = "adamw"',
        f"{command_of(tiny_config())} --out {results.run.parent}",
        f"pathmerge explain {results.run} --lookahead 1 2 --count 1 --no-trust --out {results.run}/circuits",
    ):
        assert words in found.text, words
    assert found.elements.count("figure") == 5  # curves, heat map, problems, all circuits, one circuit


def test_the_config_in_a_report_makes_the_same_run(results: Results, tmp_path: Path):
    text = (results.run / "report.html").read_text()
    config = re.search(r"<pre><code>(seed = .*?)</code></pre>", text, re.DOTALL)
    assert config is not None
    (tmp_path / "config.toml").write_text(html.unescape(config[1]))
    assert pm.load_config(tmp_path / "config.toml").run_name == results.run.name


@pytest.mark.parametrize(
    ("config", "command"),
    [
        (pm.recipe("tuned", 20, seed=3), "pathmerge train --recipe tuned --input-size 20 --seed 3 --out {} "),
        (replace(pm.recipe("tuned", 20), recipe=None), "pathmerge train config.toml --out {} # the config above"),
    ],
)
def test_a_run_is_redone_by_its_recipe_or_else_by_its_config(config: pm.RunConfig, command: str, tmp_path: Path):
    run = tmp_path / config.run_name
    run.mkdir()
    (run / "config.toml").write_text(to_toml(config))
    assert main(["report", str(run)]) == 0
    assert command.format(tmp_path) in read(run / "report.html").text


def test_a_run_without_a_model_has_a_report_too(results: Results, tmp_path: Path):
    run = tmp_path / results.run.name
    run.mkdir()
    shutil.copy(results.run / "config.toml", run)
    assert main(["report", str(run)]) == 0
    found = read(run / "report.html")
    assert "not finished" in found.text
    assert "Not evaluated yet" in found.text
    assert found.elements.count("figure") == 1


@pytest.mark.parametrize(
    ("line", "lacks"),
    [
        ('{"loss": 1}', "kind"),
        ('{"kind": "tea"}', "a kind other than 'tea'"),
        ('{"kind": "stage", "examples": 3}', "stage"),
    ],
)
def test_metrics_that_are_not_of_a_run_are_one_line(
    line: str, lacks: str, results: Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = tmp_path / results.run.name
    shutil.copytree(results.run, run)
    with (run / "metrics.jsonl").open("a") as file:
        file.write(f"{line}\n")
    (run / "report.html").unlink(missing_ok=True)
    assert main(["report", str(run)]) == 2
    error = capsys.readouterr().err
    assert error.endswith(f"is not of a run, it lacks {lacks}\n")
    assert error.count("\n") == 1
    assert not (run / "report.html").exists()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("report nowhere", "path='nowhere': no such directory"),
        (
            "report empty",
            "path='empty': neither a run (it has no config.toml) nor a study's results (it has no study.json)",
        ),
        ("report empty --out page.txt", "out='page.txt': the name must end in one of .html"),
        ("report moved", "must end in lookahead-histogram/smoke-tuned"),
        ("report broken", "is damaged"),
        ("report", "A run's directory"),
    ],
)
def test_bad_input_is_one_line(
    command: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    for name in ("empty", "moved", "broken"):
        Path(name).mkdir()
    about = {"format": "pathmerge study", "version": 1, "study": "lookahead-histogram", "scale": "smoke"}
    Path("moved/study.json").write_text(json.dumps({**about, "recipe": "tuned"}))
    Path("broken/study.json").write_text("{")
    assert main(command.split()) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert not list(tmp_path.glob("**/*.html"))


def test_the_report_of_the_demonstration(results: Results, tmp_path: Path):
    """The folder is made of the small run; `make demo` makes a real one."""
    runs = tmp_path / "runs"
    runs.mkdir()
    shutil.copytree(results.run, runs / results.run.name)
    shutil.copytree(results.run / "circuits", runs / results.run.name / "circuits-initial")
    shutil.copytree(results.run / "circuits", tmp_path / "circuits-compiled")
    shutil.copy(results.run / "evaluation.png", tmp_path / "accuracy.png")
    assert main(["report", str(tmp_path)]) == 0
    found = read(tmp_path / "report.html")
    for words in (
        "the trained model",
        "its initial weights",
        "hand-written path-merging",
        "lowest test accuracy at any lookahead",
    ):
        assert words in found.text, words


def browse(page: Path, profile: Path, *options: str) -> subprocess.CompletedProcess[str]:
    assert BROWSER is not None
    quiet = "--disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update"
    command = [BROWSER, "--headless", "--no-sandbox", *quiet.split(), "--disable-sync", f"--user-data-dir={profile}"]
    # No name leads anywhere: neither the page nor the browser itself can reach anyone.
    command += ["--host-resolver-rules=MAP * ~NOTFOUND", *options, page.resolve().as_uri()]
    environment = {name: value for name, value in os.environ.items() if name != "DISPLAY"}
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=True, env=environment)


def dom(page: Path, script: str, place: Path) -> str:
    """The page as a browser has it after this script; what the script returns stands in the attribute `data-told`."""
    copy = place / "copy.html"
    more = f"<script>document.body.dataset.told = JSON.stringify((() => {{ {script} }})());</script></body>"
    copy.write_text(page.read_text(encoding="utf-8").replace("</body>", more), encoding="utf-8")
    return browse(copy, place / "profile", "--dump-dom").stdout


def told(text: str) -> Any:
    found = re.search(r'data-told="([^"]*)"', text)
    assert found is not None, text[-2000:]
    return json.loads(html.unescape(found[1]))


@in_a_browser
def test_a_browser_sorts_and_filters(results: Results, tmp_path: Path):
    script = """
        const table = [...document.querySelectorAll("table")].find(t => t.tBodies[0].rows.length > 100);
        const heads = [...table.tHead.rows[0].cells], names = heads.map(h => h.textContent);
        const column = names.indexOf("examples"), body = table.tBodies[0];
        const first = () => body.rows[0].cells[column].textContent;
        const seen = [first()];
        heads[column].click(); seen.push(first(), heads[column].getAttribute("aria-sort"));
        heads[column].click(); seen.push(first(), heads[column].getAttribute("aria-sort"));
        const input = document.querySelector(".filter input");
        input.value = "small FINE";
        input.dispatchEvent(new Event("input"));
        seen.push([...body.rows].filter(row => !row.hidden).length, document.querySelector(".filter span").textContent);
        return seen;
    """
    text = dom(results.study / "report.html", script, tmp_path)
    assert told(text) == ["256", "0", "ascending", "256", "descending", 1, "1 of 200 rows"]


@in_a_browser
@pytest.mark.parametrize("kind", ["study", "run"])
def test_a_browser_shows_it_all_and_asks_nobody(kind: str, results: Results, tmp_path: Path):
    page = (results.study if kind == "study" else results.run) / "report.html"
    script = """
        const pictures = [...document.images];
        return {
            asked: performance.getEntriesByType("resource").map(e => e.name).filter(name => !name.startsWith("data:")),
            broken: pictures.filter(image => !image.complete || !image.naturalWidth).length,
            pictures: pictures.length,
            title: document.title,
            sideways: document.documentElement.scrollWidth > document.documentElement.clientWidth,
        };
    """
    seen = told(dom(page, script, tmp_path))
    assert seen["asked"] == []
    assert seen["broken"] == 0
    assert seen["pictures"] >= 3
    assert "owned" not in seen["title"].split()
    assert not seen["sideways"]
    assert hosts_asked(page, tmp_path) == set()


@in_a_browser
def test_a_request_would_be_seen(tmp_path: Path):
    """What the test above looks at does show requests, and the policy of a page does stop them."""
    page = Page(title="t", kind="k")
    page.add("Section", element("img", src="http://evil.example/x.png", alt=""))
    path = tmp_path / "page.html"
    path.write_text(page.html())
    assert hosts_asked(path, tmp_path) == set()
    path.write_text(re.sub("<meta http-equiv[^>]*>", "", page.html()))
    assert hosts_asked(path, tmp_path) == {"evil.example"}


def hosts_asked(page: Path, place: Path) -> set[str]:
    """Whom the browser asks for anything on behalf of a page; what it asks its maker for by itself does not count."""
    log = place / "net.json"
    browse(page, place / "second", f"--log-net-log={log}", "--dump-dom")
    hosts = set(re.findall(r'"url":"(?:https?|wss?)://([^/"]+)', log.read_text(errors="replace")))
    return {host for host in hosts if not host.endswith((".google.com", ".googleapis.com", ".gstatic.com"))}


@in_a_browser
@pytest.mark.parametrize("width", [390, 1300])
def test_a_browser_draws_it(width: int, results: Results, tmp_path: Path):
    """The pictures are kept with the test's files, to be looked at."""
    shot = tmp_path / f"report-{width}.png"
    page = results.study / "report.html"
    browse(page, tmp_path / "profile", f"--window-size={width},2400", "--hide-scrollbars", f"--screenshot={shot}")
    import matplotlib.image

    pixels = matplotlib.image.imread(shot)
    assert pixels.shape[:2] == (2400, width)
    assert len({tuple(pixel) for pixel in pixels[::7, ::7].reshape(-1, pixels.shape[2]).tolist()}) > 20
