"""The pairs of answer and gold that the viewer compares, and the tasks that it loads for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import intercode
from intercode import records
from intercode.cli.main import main
from intercode.episode import Episode, Score, Turn
from intercode.report.answer_pairs import AnswerPair, answer_pairs
from intercode.report.live_runs import ViewerRuns
from intercode.report.recorded_tasks import MAX_COUNT, RecordedTask, RecordedTasks
from intercode.report.viewer_episodes import make_body
from intercode.task import Task
from report.test_view import append, begun

TASK = {"task_id": "t", "query": "q", "gold": "echo 8", "setup": "touch /x", "files": {"/a": "b"}}


def pairs(
    env: str,
    *turns: Turn,
    detail: dict[str, Any] | None = None,
    gold: str | tuple[str, ...] = (),
    answer: str | None = None,
    parts: tuple[str, ...] = ("output",),
) -> list[AnswerPair]:
    score = Score(0.0, dict.fromkeys(parts, 0.0), detail or {})
    episode = Episode("t", "q", env, turns=[*turns], status="submitted", score=score, answer=answer)
    golds = (gold,) if isinstance(gold, str) else gold
    return answer_pairs(episode, Task("t", "q", gold=golds) if golds else None)


def test_outputs_come_before_the_commands() -> None:
    detail = {"output": "7\n", "gold_output": "8\n"}
    output, commands = pairs("bash", Turn("a", ""), Turn("b", ""), detail=detail, gold=("c", "d"))
    assert (output.title, output.answer, output.gold) == ("output", "7\n", "8\n")
    assert output.is_result and not commands.is_result
    assert (commands.answer, commands.gold, commands.language) == ("a\nb", "c", "bash")
    assert commands.note == "Gold has 1 more alternative."
    [output] = pairs("bash", detail={"output": None, "gold_output": "8"})
    assert output.answer is None and "no action" in output.note
    assert not pairs("bash", detail=detail, parts=("files",)), "only what the reward compares"


def test_rows_are_lines_in_which_only_differences_differ() -> None:
    detail = {
        "answer_rows": [["same", 1], ["north", 2], ["extra", 3]],
        "gold_rows": [["north", 20], [None, "1"], ["same", 1]],
    }
    [rows] = pairs("sql", detail=detail)
    assert rows.answer is not None
    assert rows.answer.splitlines() == ["same  │ 1", "north │ 2", "extra │ 3"]
    assert rows.gold.splitlines() == ["same  │ 1", "north │ 20", 'NULL  │ "1"']
    # A text and a number never look alike; a date is not in quotes.
    [rows] = pairs(
        "sql", detail={"answer_rows": [], "gold_rows": [["2024-01-31", "", "1e5", True]]}
    )
    assert (rows.answer, rows.gold) == ("", '2024-01-31 │ "" │ "1e5" │ true')
    # Only the order differs: it is what a reader must see.
    detail = {"answer_rows": [[1], [2]], "gold_rows": [[2], [1]]}
    [rows] = pairs("sql", detail=detail)
    assert (rows.answer, rows.gold) == ("1\n2", "2\n1")
    [rows] = pairs("sql", detail={"answer_rows": [[n] for n in range(20)], "gold_rows": [[7]]})
    assert "first 20 rows" in rows.note
    assert rows.answer is not None and rows.answer.startswith("0\n1\n")
    [rows] = pairs("sql", detail={"gold_rows": [[7]], "reason": "no action gave a result set"})
    assert rows.answer is None and rows.note


def test_the_solution_of_each_environment() -> None:
    turns = [Turn("def f():\n    return 1", ""), Turn("f()", "1")]
    [code] = pairs("python", *turns, gold="def f():\n    return 2")
    assert code.answer == turns[0].action and code.language == "python"
    [flag] = pairs("ctf", Turn("ls", ""), gold="flag{a}", answer="flag{b}")
    assert flag.answer == "flag{b}" and flag.is_result
    [statement] = pairs("sql", Turn("SELECT 1", ""), detail={"answer": "SELECT 2"}, gold="SELECT 3")
    assert statement.answer == "SELECT 2"
    printed = "diff --git a/x b/x\n+new\n"
    [patch] = pairs("swe", Turn("git diff", f"$\n{printed}"), Turn("ls", ""), gold="diff --git")
    assert patch.answer == printed
    [patch] = pairs("swe", Turn("ls", ""), gold="diff --git")
    assert patch.answer is None and "--keep-diffs" in patch.note
    assert not pairs("bash", Turn("ls", "")), "without the task, there is no gold"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of a task in a data file."""
    data = tmp_path / "tasks.json"
    data.write_text(json.dumps([TASK]))
    run = begun(tmp_path / "run")
    append(run, Episode("t", "q", "bash", turns=[Turn("ls", "")], score=Score(0.0)))
    name_tasks(run, str(data), intercode.load_dataset(data).digest)
    return run


def name_tasks(run: Path, data: str, digest: str, **options: Any) -> None:
    manifest = json.loads((run / records.MANIFEST).read_text())
    manifest["dataset"]["digest"] = digest
    manifest["sessions"][0]["options"] = {"env": "bash", "data": data, **options}
    (run / records.MANIFEST).write_text(json.dumps(manifest))


def find(run: Path, task_id: str = "t", *, trust: bool = False) -> RecordedTask:
    return RecordedTasks(trust=trust).find(run, records.read_manifest(run), task_id)


def test_a_data_file_is_read_only_if_the_record_is_trusted(run: Path, tmp_path: Path) -> None:
    refused = find(run)
    assert refused.task is None and refused.command == f"intercode view {run} --trust"
    task = find(run, trust=True).task
    assert task is not None and task.gold == ("echo 8",)
    assert "no task has the id 'u'" in find(run, "u", trust=True).reason
    (tmp_path / "tasks.json").write_text(json.dumps([{**TASK, "gold": "echo 9"}]))
    assert "have changed since" in find(run, trust=True).reason
    (tmp_path / "tasks.json").unlink()
    assert "cannot be read" in find(run, trust=True).reason


def test_no_code_of_a_record_is_executed(run: Path, tmp_path: Path) -> None:
    code = tmp_path / "tasks.py"
    code.write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\nload = None\n")
    for data in (f"{code}:load", f"harbor:{tmp_path}", f"generated-bash:count={MAX_COUNT + 1}"):
        name_tasks(run, data, "d")
        for trust in (False, True):
            found = find(run, trust=trust)
            assert found.task is None and found.reason, data
    assert not (tmp_path / "executed").exists()


def test_bundled_tasks_need_no_trust(run: Path) -> None:
    dataset = intercode.load_dataset("sql")
    name_tasks(run, "sql", dataset.digest)
    assert find(run, "transit-08").task == dataset["transit-08"]
    # The record of `evaluate` has no options: the dataset's name is enough.
    manifest = json.loads((run / records.MANIFEST).read_text())
    del manifest["sessions"][0]["options"]
    manifest["dataset"]["name"] = "sql"
    (run / records.MANIFEST).write_text(json.dumps(manifest))
    assert find(run, "transit-08").task == dataset["transit-08"]


def test_the_page_and_the_server_have_the_task_unless_gold_is_hidden(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    viewer = ViewerRuns([run], trust=True)
    viewer.refresh()
    body = viewer.body(0)
    assert body["task"]["fields"]["setup"] == "touch /x" and body["pairs"][0]["gold"] == "echo 8"
    assert [*viewer.search("touch /x")] == [(0, False)], "the text is not the episode's"
    hidden = ViewerRuns([run], trust=True, hide_gold=True)
    hidden.refresh()
    assert "echo 8" not in json.dumps(hidden.body(0)) and "touch" not in json.dumps(hidden.body(0))
    episode = Episode("t", "q", "bash", score=Score(0.0))
    shown = make_body(episode, RecordedTask(None, "reason", "command"))
    assert shown["task"] == {"reason": "reason", "command": "command", "fields": {}}
    assert main(["report", str(run), "--trust"]) == 2
    assert "--trust needs --html FILE" in capsys.readouterr().err
    assert main(["report", str(run), "--trust", "--html", str(tmp_path / "x.html"), "--json"]) == 0
