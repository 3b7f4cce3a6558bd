"""Views in notebooks: they show what hostile texts say, and let none of them be markup."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import intercode
from intercode.episode import Episode, Score, Turn
from intercode.evaluate import RunResult, evaluate
from intercode.evaluate.manifest import describe, session
from intercode.evaluate.progress import Progress, default_progress
from intercode.records import Outcome, RunRecordWriter
from intercode.report.notebook import MAX_ENTRIES, MAX_ROWS, MAX_TEXT_LENGTH, NotebookProgress
from intercode.report.runs import compare, read_runs
from intercode.report.verdict import compare_with_baselines
from intercode.task import Dataset, Task

EVIL = (
    "</pre></style></script><script>alert(1)</script><img src=x onerror=alert(1)>"
    "\" onmouseover=alert(1) x=\"' onfocus='alert(1) &quot; {{ 7 * 7 }} "
    "\x1b[31mred\x1b[0m \x1b[2J\x00 \u202e \udcff $\\href{javascript:alert(1)}{x}$"
)
VISIBLE = (
    "<script>alert(1)</script>",
    '" onmouseover=alert(1)',
    "{{ 7 * 7 }} red \\x1b[2J\\x00 \\u202e \\udcff $",
)
"""Parts of `EVIL` as a reader sees them."""
ELEMENTS = {
    *("b", "br", "div", "figcaption", "figure", "p", "pre", "progress", "span", "style"),
    *("caption", "table", "tbody", "td", "th", "thead", "tr", "path", "svg", "text"),
}
ATTRIBUTES = {
    *("class", "d", "height", "max", "role", "text-anchor", "value", "viewbox", "width", "x", "y"),
    *("aria-hidden", "aria-label"),
}


class View(HTMLParser):
    """The text of a view; its elements and attributes are checked."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text = ""
        self._open: list[str] = []
        html.encode("utf-8")  # lone surrogates are refused by a notebook's JSON
        self.feed(html)
        self.close()
        assert not self._open, "elements are not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ELEMENTS
        assert {name for name, _ in attrs} <= ATTRIBUTES, attrs
        if tag not in ("br", "path"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag != "path":
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self._open:
            assert "url(" not in data and "@import" not in data
        else:
            self.text += data


def view(shown: Any) -> str:
    """The text of a view that has only harmless markup."""
    return View(shown._repr_html_()).text


def episode(number: int, *, success: bool, text: str = EVIL) -> Episode:
    turn = Turn(text, text, ok=success, exit_code=1, seconds=0.5, info={"timed_out": True})
    score = Score(float(success), {text: 0.5}, {"note": text, text: text})
    made = Episode(f"t{number}{text}", text, "bash", text, turns=[turn, turn], score=score)
    made.status, made.answer, made.started = "submitted", text, 1.0
    made.metadata = {
        "image": text,
        "tags": [text, "easy" if number % 2 else "hard"],
        "model": {
            "input_tokens": 10,
            "output_tokens": 2,
            "cost": 0.25,
            "messages": [],
            "calls": [{"turn": 0, "thought": f"a thought {text}"}],
        },
    }
    return made


def run_result(count: int, solved: Callable[[int], bool], **facts: Any) -> RunResult:
    episodes = [episode(number, success=solved(number)) for number in range(count)]
    failed = Episode(f"lost{EVIL}", "q", "bash", status="error", error=f"SandboxError: {EVIL}")
    kept = [*episodes, failed]
    outcomes = [*map(Outcome.from_episode, kept)]
    return RunResult(outcomes, count + 2, count + 1, 1.0, kept=kept, **facts)


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[list[Path]]:
    """Two folders of runs with hostile texts."""
    folders = []
    for name, divisor in (("first", 3), ("second", 1)):
        with RunRecordWriter(tmp_path / name) as writer:
            dataset = {"name": EVIL, "digest": "0", "source": None, "tasks": 12}
            manifest = describe(
                dataset=dataset,
                env={"env": "bash"},
                agent={
                    "name": f"{name}{EVIL}",
                    "options": {},
                    "digest": "0",
                    "language_model": {"model": EVIL},
                },
                needs_gold=False,
                seed=0,
                excluded_tasks={},
            )
            writer.write_manifest({**manifest, "sessions": [session(None)]})
            for number in range(12):
                writer.append(episode(number, success=number % divisor == 0))
        folders.append(tmp_path / name)
    yield folders


def test_an_episode_shows_its_turns_its_reward_and_the_reasons() -> None:
    text = view(episode(0, success=False))
    assert all(text.count(part) >= 9 for part in VISIBLE)
    for part in ("not-solved", "turn 2 of 2 · 0.500 s · exit 1 · timeout · reward 0"):
        assert part in text
    assert "a thought </pre>" in text and "The reward is 0 " in text and "note: </pre>" in text


def test_an_unfinished_and_a_failed_episode_show_themselves() -> None:
    assert "running" in view(Episode("t", EVIL, "bash"))
    failed = Episode("t", "q", "bash", status="error", error=EVIL)
    assert VISIBLE[0] in view(failed) and "The reward" not in view(failed)


def test_a_long_text_is_cut() -> None:
    text = view(episode(0, success=False, text="<" * 100 * MAX_TEXT_LENGTH))
    assert f"… {99 * MAX_TEXT_LENGTH:,} characters …" in text
    assert len(text) < 15 * MAX_TEXT_LENGTH


def test_of_many_reasons_and_parts_the_first_remain() -> None:
    many = episode(0, success=False)
    numbers = range(MAX_ENTRIES + 1_000)
    many.score = Score(
        0.0, {f"part{n}": 0.5 for n in numbers}, {f"reason{n}": "x" for n in numbers}
    )
    text = view(many)
    for name in ("part", "reason"):
        assert f"{name}{MAX_ENTRIES - 1}" in text and f"{name}{MAX_ENTRIES}" not in text
    assert "0.5 … 1,000 more)." in text and "… 1,000 more reasons" in text
    assert "more" not in view(episode(0, success=False, text=""))


def test_an_object_cannot_state_that_it_is_markup() -> None:
    class Markup(str):
        def __html__(self) -> str:
            return "<script>"

    assert "harmless" in view(episode(0, success=False, text=Markup("harmless")))


def test_a_dataset_shows_its_first_tasks_without_gold() -> None:
    tasks = [Task(f"{n}{EVIL[:80]}", EVIL.replace("\0", ""), gold=("a secret",)) for n in range(12)]
    tasks = [Task(t.task_id, t.query.replace("\udcff", ""), t.gold) for t in tasks]
    text = view(Dataset(tasks, EVIL))
    assert VISIBLE[0] in text and f"{12 - MAX_ROWS} more" in text and "a secret" not in text


def test_a_dataset_formats_only_the_tasks_that_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    formatted: list[str] = []

    def line(text: str) -> str:
        formatted.append(text)
        return text

    monkeypatch.setattr("intercode.report.notebook._line", line)
    assert "90 more" in view(Dataset([Task(str(number), "?") for number in range(100)]))
    assert len(formatted) == MAX_ROWS


def test_an_environment_shows_its_episode() -> None:
    with closing(intercode.make("bash")) as env:
        text = view(env)
        assert "bash (57 tasks) · 10 turns" in text and "call reset()" in text
        env.reset(seed=0)
        env.step("printf '<script>alert(1)</script>'; exit 3")
        text = view(env)
        assert "printf '<script>alert(1)</script>'; exit 3" in text and "exit 3" in text


def test_results_show_a_table_a_chart_and_the_failures() -> None:
    shown = run_result(18, lambda number: number % 3 == 0, interrupted=True)
    text = view(shown)
    assert shown._repr_html_().count("<svg") > 3
    for part in ("19 of 20 episodes", "33.3 %", "success within", "not-solved", "3 more"):
        assert part in text, part
    assert VISIBLE[0] in view(run_result(0, bool))


def test_tags_have_a_table_beside_the_total() -> None:
    names = ["all", *(f"tag{number}" for number in range(MAX_ROWS + 1))]
    episodes = [episode(number, success=True, text="") for number in range(3)]
    for tagged_episode in episodes:
        tagged_episode.metadata["tags"] = names
    episodes.append(episode(3, success=False, text=""))
    episodes[-1].metadata["tags"] = []
    text = " ".join(view(RunResult([*map(Outcome.from_episode, episodes)], 4, 4, 1.0)).split())
    assert "all 4 75.0 %" in text and "By tag" in text and "all 3 100.0 %" in text
    assert "… 2 more" in text


@pytest.mark.parametrize("has_folder", [False, True])
def test_a_run_says_that_its_agent_was_shown_gold(tmp_path: Path, has_folder: bool) -> None:
    tasks = intercode.load_dataset("bash-starter")
    folder = tmp_path / "run" if has_folder else None
    run = evaluate(tasks, "oracle", lambda: intercode.make("bash", data=tasks), limit=1, out=folder)
    assert "Shown gold: the agent." in view(run)
    if folder is not None:
        assert "Shown gold: oracle." in view(read_runs([folder])[0])
    assert "Shown gold" not in view(run_result(1, bool))


@pytest.mark.parametrize(
    ("field", "values"), [("version", ("1.0", "2.0")), ("digest", ("0" * 64, "1" * 64))]
)
def test_a_comparison_warns_of_another_dataset(
    folders: list[Path], field: str, values: tuple[str, str]
) -> None:
    runs = read_runs(folders)
    for run, value in zip(runs, values, strict=True):
        run.manifest["dataset"][field] = value
    (comparison,) = compare_with_baselines(runs)
    text = view(comparison)
    assert "differ in their conditions" in text and f"dataset.{field}: {values[0][:12]}" in text
    assert ("better" in text) is (field == "digest")


def test_runs_of_folders_show_themselves_and_their_comparison(folders: list[Path]) -> None:
    runs = read_runs(folders)
    assert "33.3 %" in view(runs[0]) and VISIBLE[0] in view(runs[0])
    (comparison,) = compare_with_baselines(runs)
    assert "+66.7" in view(comparison) and VISIBLE[0] in view(comparison)
    pair = compare(runs[0].outcomes, runs[1].outcomes)
    assert "The second run is better by 66.7 points" in view(pair)
    assert "Consumption per task" in view(pair) and VISIBLE[0] in view(pair)
    assert "No difference is detected" in view(compare(runs[0].outcomes, runs[0].outcomes))


TYPES = {
    "string": ["task_id", "env", "agent", "status", "outcome", "parts", "place", "tags", "error"],
    "Int64": ["epoch", "seed", "turns", "solved_at", "invalid", "tokens_in", "tokens_out"],
    "float64": ["reward", "started", "seconds", "model_seconds", "cost"],
    "boolean": ["success"],
}


def test_the_texts_beside_the_views_are_short(folders: list[Path]) -> None:
    """A notebook stores them, too."""
    from IPython.lib.pretty import pretty

    long_episode = episode(1, success=True, text="x" * MAX_TEXT_LENGTH)
    run = RunResult([Outcome.from_episode(long_episode)], 2, 1, 1.0, kept=[long_episode])
    assert repr(run) == "RunResult(1 of 2 episodes, 1 solved)"
    assert "status='submitted', reward=1.0)" in pretty(episode(1, success=True, text=""))
    runs = read_runs(folders)
    assert all("12 episodes)" in repr(recorded) for recorded in runs)
    pair = compare(runs[0].outcomes, runs[1].outcomes)
    assert repr(pair) == "PairedRunComparison(12 tasks, +66.7 points)"


def test_results_become_a_data_frame() -> None:
    frame = run_result(12, lambda number: number % 3 == 0).to_pandas()
    assert len(frame) == 13
    for kind, names in TYPES.items():
        assert {str(frame[name].dtype) for name in names} == {kind}
    assert frame["success"].mean() == pytest.approx(1 / 3)  # the failed episode has no result
    assert pd.isna(frame["reward"].iloc[-1]) and frame["cost"].sum() == 3.0
    assert frame["query"].iloc[0].startswith("</pre>")
    empty = RunResult([], 0, 0, 0.0).to_pandas()
    assert list(empty.columns) == list(frame.columns) and str(empty["turns"].dtype) == "Int64"


def test_a_recorded_run_becomes_a_data_frame_with_its_name_and_model(folders: list[Path]) -> None:
    frames = [run.to_pandas() for run in read_runs(folders)]
    frame = pd.concat(frames)
    assert list(frame.columns[:3]) == ["run", "model", "task_id"]
    assert frame.groupby("run")["success"].sum().to_dict() == {"first": 4, "second": 12}


def test_without_pandas_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(intercode.UsageError, match=r"pip install 'intercode-gym\[notebook\]'"):
        run_result(1, bool).to_pandas()


def test_importing_intercode_imports_nothing_of_notebooks() -> None:
    code = "import sys, intercode; intercode.Episode, intercode.Dataset, intercode.make\n"
    code += "print({'IPython', 'jinja2', 'pandas', 'intercode.report'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


class Display:
    """The display of a notebook: the outputs so far, of which an update replaces the last."""

    def __init__(self) -> None:
        self.outputs: list[dict[str, str]] = []

    def __call__(self, output: dict[str, str], *, raw: bool, display_id: bool) -> Display:
        assert raw and display_id and not self.outputs, "an update draws no second bar"
        self.outputs.append(output)
        return self

    def update(self, output: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.outputs.append(output)


def test_a_notebook_draws_the_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    display = Display()
    monkeypatch.setattr("intercode.report.notebook.import_name", lambda source: display)
    progress = NotebookProgress()
    progress.announce(f"building {EVIL}")
    assert VISIBLE[0] in View(display.outputs[-1]["text/html"]).text
    tasks = intercode.load_dataset("bash-starter")
    evaluate(
        tasks, "oracle", lambda: intercode.make("bash", data=tasks), limit=3, progress=progress
    )
    assert display.outputs[-1]["text/plain"] == "3/3 · 3 solved"
    assert 'value="3" max="3"' in display.outputs[-1]["text/html"]


def test_the_bar_is_for_notebooks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    import IPython

    assert type(default_progress()) is Progress
    monkeypatch.setattr(IPython, "get_ipython", lambda: type("Shell", (), {"kernel": None})())
    assert type(default_progress()) is NotebookProgress
