"""Agents by name and from recordings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from intercode.agents import registry
from intercode.agents.human import HumanAgent
from intercode.episode import Episode, Turn
from intercode.errors import RecordError, UsageError
from intercode.records import load_actions
from intercode.task import Task

TASK = Task("a", "do it", gold=("first", "second"))


def actions(name: str, task: Task = TASK, **options: Any) -> list[str]:
    agent = registry.get(name, **options)(task)
    return [agent.act("", []) for _ in range(3)]


def test_oracle_and_noop() -> None:
    assert actions("oracle") == ["first", "submit", "submit"]
    assert actions("oracle", Task("b", "q", verification="true")) == ["submit"] * 3
    assert actions("noop") == ["submit"] * 3


def test_human_leaves_by_skipping() -> None:
    shown: list[str] = []
    answers = iter(["ls", None])
    agent = HumanAgent(shown.append, lambda: next(answers))
    assert [agent.act("one", []), agent.act("two", [])] == ["ls", "skip"]
    assert shown == ["one", "two"]


def write(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value))
    return path


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": ["x", "y"]}, ["x", "y", "submit"]),
        ({"a": {"turn_history": {"actions": ["x", "blocked"]}}}, ["x", "submit", "submit"]),
        (
            {"a": {"trajectory": [{"action": "x", "observation": "o"}], "reward": 1.0}},
            ["x", "submit", "submit"],
        ),
        (
            {"meta": {}, "logs": {"a": {"turn_history": {"actions": ["execute[x]", "submit"]}}}},
            ["x", "submit", "submit"],
        ),
    ],
)
def test_replay_takes_many_shapes(tmp_path: Path, value: Any, expected: list[str]) -> None:
    recording = write(tmp_path / "recording.json", value)
    assert actions("replay", recording=recording) == expected


def test_replay_of_a_mapping() -> None:
    assert actions("replay", recording={"a": ["x"]}) == ["x", "submit", "submit"]
    with pytest.raises(UsageError, match="no actions for b"):
        actions("replay", Task("b", "q"), recording={"a": ["x"]})


def test_replay_of_a_run(tmp_path: Path) -> None:
    def episode(task: str, **fields: Any) -> str:
        return Episode(task, "q", "bash", turns=[Turn("x", "")], **fields).to_json() + "\n"

    lines = [
        episode("skipped", status="skipped"),
        episode("answered", status="submitted", answer="42"),
        episode("answered", status="submitted", answer="43", epoch=1),
        episode("broken", status="error"),
        '{"torn',
    ]
    (tmp_path / "episodes.jsonl").write_text("".join(lines))
    assert load_actions(tmp_path) == {"skipped": ["x", "skip"], "answered": ["x", "submit 42"]}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "not JSON"),
        ("[]", "expected a JSON object"),
        ('{"a": 3}', "task a: actions must be a list of strings"),
        ('{"a": {"trajectory": [3]}}', "task a: actions must be a list of strings"),
        ('{"a": {"x": 1}}', "neither a list of actions nor a recorded episode"),
    ],
)
def test_what_is_no_recording_is_refused(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "recording.json"
    path.write_text(text)
    with pytest.raises(RecordError, match=told):
        load_actions(path)


def test_a_recording_that_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(RecordError, match="cannot read"):
            load_actions(path)


def test_agents_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text("import dataclasses\n@dataclasses.dataclass\nclass A:\n    task: object\n")
    assert registry.get(f"{path}:A")(TASK).task is TASK  # type: ignore[attr-defined]
    assert registry.digest(f"{path}:A") and not registry.digest("oracle")
    with pytest.raises(UsageError, match="no function 'B'"):
        registry.get(f"{path}:B")
    with pytest.raises(UsageError, match="takes no option recording"):
        registry.get(f"{path}:A", recording="x")
    with pytest.raises(UsageError, match="there is no agent 'nobody'"):
        registry.get("nobody")
    with pytest.raises(UsageError, match="recording"):
        registry.get("replay")
