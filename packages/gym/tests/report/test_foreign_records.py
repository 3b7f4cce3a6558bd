"""Records that a stranger wrote: the viewer shows them, whatever they hold, in little memory."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

import intercode
from intercode.episode import Episode, Score, Turn
from intercode.records import Outcome, read_manifest
from intercode.report import recorded_tasks
from intercode.report.answer_pairs import answer_pairs
from intercode.report.live_runs import ViewerRuns
from intercode.report.recorded_tasks import MAX_COUNT, RecordedTasks
from intercode.report.reward_reasons import explain_reward
from intercode.report.runs import make_run
from intercode.report.viewer_episodes import make_row
from intercode.report.viewer_page import CompressedEpisodes, write_page
from intercode.task import Task
from intercode_sandbox.units import MIB
from report.test_answer_pairs import name_tasks, pairs, run
from report.test_notebook import view
from report.test_view import append, begun

__all__ = ["run"]  # a fixture


def scored_episode(detail: dict[str, Any] | None = None, **parts: float) -> Episode:
    score = Score(0.0, parts or {"output": 0.0}, detail or {})
    return Episode("t", "q", "bash", turns=[Turn("ls", "")], status="submitted", score=score)


@pytest.mark.timeout(120)
def test_an_action_of_many_empty_lines_takes_linear_time() -> None:
    """By a quadratic search, this would take hours."""
    episode = Episode("t", "q", "python", turns=[Turn("x" + "\n" * 1_000_000 + "y", "")])
    [code] = answer_pairs(episode, Task("t", "q", gold=("def f(): pass",)))
    assert code.title == "code"


def test_rows_are_padded_to_a_bounded_width() -> None:
    rows = [["x" * 100_000, "b"], *[["a", "b"]] * 2000]
    [pair] = pairs("sql", detail={"answer_rows": rows, "gold_rows": rows[::-1]})
    assert pair.answer is not None and len(pair.answer) + len(pair.gold) < 50_000


def test_texts_that_look_alike_have_quotes() -> None:
    cells = ["Rome ", "Rome", '"1"', "1", 1, " x"]
    [pair] = pairs("sql", detail={"answer_rows": [], "gold_rows": [[cell] for cell in cells]})
    assert pair.gold.splitlines() == ['"Rome "', "Rome", '"\\"1\\""', '"1"', "1", '" x"']


@pytest.mark.parametrize(
    "detail",
    [
        {"judge": {"golds": 5}},
        {"judge": ["x"]},
        {"judge": {"golds": [{"votes": 5}]}},
        {"gold_rows": [[1]], "answer_rows": 5},
        {"subtasks": ["a"]},
    ],
)
def test_a_detail_of_any_form_has_a_reason(detail: dict[str, Any]) -> None:
    for parts in ({"output": 0.0}, {"flag": 0.0, "subtasks": 1e-320}):
        reasons = explain_reward(scored_episode(detail, **parts))
        assert all(isinstance(reason.sentence, str) for reason in reasons)
    assert reasons, "a part without a detail of a known form"


def test_a_row_has_only_numbers_that_json_permits() -> None:
    episode = scored_episode()
    episode.started = math.inf
    episode.turns = [Turn("ls", "", seconds=math.nan)]
    episode.metadata["error_type"] = 5
    episode.status = "error"
    row = make_row(0, episode, Outcome.from_episode(episode))
    assert (row.seconds, row.started) == (0.0, 0.0) and "5" in row.kinds
    json.dumps(row._asdict(), allow_nan=False)


def test_one_strange_record_hides_no_other_run(tmp_path: Path) -> None:
    strange = scored_episode()
    strange.status, strange.error, strange.metadata["error_type"] = "error", "e", [1]
    append(begun(tmp_path / "a"), strange, scored_episode())
    append(begun(tmp_path / "b"), scored_episode())
    runs = ViewerRuns([tmp_path])
    runs.refresh()
    assert len(runs.rows) == 3


@pytest.mark.timeout(120)
def test_an_id_or_a_number_of_any_length_is_refused(run: Path) -> None:
    tasks = RecordedTasks()
    name_tasks(run, f"generated-bash:count={'9' * 5000}", "d")
    assert f"at most {MAX_COUNT:,}" in tasks.find(run, read_manifest(run), "t").reason
    name_tasks(run, "bash", intercode.load_dataset("bash").digest)
    reason = tasks.find(run, read_manifest(run), "x" * 1_000_000).reason
    assert "no task has the id 'xxx" in reason and len(reason) < 200


def test_the_generated_tasks_of_all_runs_have_one_limit(run: Path) -> None:
    tasks = RecordedTasks()
    reasons = []
    for seed in range(MAX_COUNT // 500 + 1):
        name_tasks(run, f"generated-bash:count=1,seed={seed}", "d")
        reasons.append(tasks.find(run, read_manifest(run), "t").reason)
    assert "have changed since" in reasons[0] and "at most" in reasons[-1]


def test_a_refused_dataset_leaves_the_others_their_share(run: Path) -> None:
    tasks = RecordedTasks()
    name_tasks(run, "generated-bash:count=999999", "d")
    assert "at most" in tasks.find(run, read_manifest(run), "t").reason
    name_tasks(run, "generated-bash:count=1", "d")
    assert "have changed since" in tasks.find(run, read_manifest(run), "t").reason


def test_a_file_that_is_too_large_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_tasks, "_MAX_FILE_BYTES", 2 * MIB)
    os.truncate(run.parent / "tasks.json", 2 * MIB + 1)
    task = RecordedTasks(trust=True).find(run, read_manifest(run), "t")
    assert "is not a file of at most 2 MiB" in task.reason


def test_an_overview_has_only_numbers_that_json_permits(tmp_path: Path) -> None:
    score = Score(math.nan, {"output": math.nan}, {})
    strange = Episode("t", "q", "bash", turns=[Turn("ls", "")], status="submitted", score=score)
    strange.seconds = math.inf
    append(begun(tmp_path / "run"), strange)
    runs = ViewerRuns([tmp_path])
    runs.refresh()
    report = json.loads(runs.overview()[1], parse_constant=pytest.fail)
    assert report["runs"][0]["seconds"] is report["runs"][0]["reward"] is None
    manifest = read_manifest(tmp_path / "run")
    recorded_run = make_run(tmp_path / "run", manifest, [Outcome.from_episode(strange)])
    write_page(tmp_path / "page.html", [recorded_run], CompressedEpisodes())
    text = (tmp_path / "page.html").read_text()
    report_text = text.partition('id="report">')[2].partition("</script>")[0]
    assert json.loads(report_text, parse_constant=pytest.fail)["runs"][0]["seconds"] is None


@pytest.mark.timeout(120)
def test_a_trusted_record_names_no_pipe(run: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    name_tasks(run, str(tmp_path / "pipe.json"), "d")
    found = RecordedTasks(trust=True).find(run, read_manifest(run), "t")
    assert "is not a file" in found.reason


def test_a_command_names_the_folder_of_its_own_run(run: Path, tmp_path: Path) -> None:
    tasks, other = RecordedTasks(), tmp_path / "other"
    manifest = read_manifest(run)
    assert tasks.find(run, manifest, "t").needs_trust
    assert tasks.find(run, manifest, "t").command == f"intercode view {run} --trust"
    assert tasks.find(other, manifest, "t").command == f"intercode view {other} --trust"


def test_a_view_of_many_turns_has_the_first_and_the_last() -> None:
    turns = [Turn(f"echo {number}.", "") for number in range(150)]
    text = view(Episode("t", "q", "bash", turns=turns))
    assert "echo 49." in text and "echo 100." in text and "… 50 turns more" in text
    assert "echo 50." not in text and "echo 99." not in text
