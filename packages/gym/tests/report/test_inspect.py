"""Inspect's log: by the schema that its own reader has, and with nothing lost or made up.

The schema is what ``EvalLog.model_json_schema()`` of inspect-ai 0.3.285 says, without its prose and
without events, of which we write none: 110 packages need not be installed for it.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from intercode import records
from intercode.cli.main import main
from intercode.episode import Episode, Score, Turn

SCHEMA = json.loads(Path(__file__).with_name("inspect_ai-0.3.285.json").read_text())
TOOL_CALL = {"call_id": "c1", "name": "bash", "arguments": {"command": "ls"}}
BROKEN_CALL = {"call_id": "c2", "name": "bash", "arguments": {"_raw": "{no json"}}
USED = {"input_tokens": 30, "output_tokens": 7, "cached_tokens": 10, "cost": 0.25}
MESSAGES = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "count"},
    {"role": "assistant", "content": "", "tool_calls": [TOOL_CALL, BROKEN_CALL]},
    {"role": "tool", "content": "a\nb", "call_id": "c1"},
    {"role": "assistant", "content": "two"},
]
CALL = {"model": "m-0613", "seconds": 1.5, "retries": 0, "cached": False}
TALK = {
    "name": "openai/m",
    "messages": MESSAGES,
    "calls": [
        {"turn": 0, "sent": [0, 1], "reply": 2, "finish": "tool_calls", **CALL, **USED},
        {"turn": 1, "sent": [0, 1, 2, 3], "reply": 4, "finish": "length", **CALL, **USED},
        {"turn": 2, "sent": [0, 1, 2, 3, 4], "error": "ModelUnavailableError"},
    ],
    "input_tokens": 60,
    "output_tokens": 14,
    "cached_tokens": 20,
    "cost": 0.5,
}
SESSION = {
    "started": "2026-11-20T23:50:51Z",
    "finished": "2026-11-20T23:51:51Z",
    "settings": {"workers": 2, "limit": 3, "tasks": None, "epochs": 2},
    "versions": {"python": "3.11.9", "intercode": "0.1.0", "numpy": "2.0.0", "code": "ab"},
    "host": {},
}
MANIFEST = {
    "format": 1,
    "dataset": {"name": "mine", "source": "/d/mine.json", "digest": "00", "tasks": 9},
    "env": {"env": "bash", "max_turns": 2, "protocol": "default"},
    "agent": {
        "name": "tool-calling",
        "options": {},
        "digest": "",
        "language_model": {
            "model": "openai/m",
            "settings": {"temperature": 0.5, "top_p": None, "max_tokens": 99, "stop": []},
            "limits": {"seconds": None, "tokens": 50, "cost": None},
        },
    },
    "seed": 0,
    "excluded": {},
    "sessions": [SESSION],
}


def made(task: str, epoch: int, reward: float | None, **more: Any) -> Episode:
    turns = [Turn(f"echo {n} \udcff", f"{n}\n", exit_code=n, ok=not n) for n in range(2)]
    metadata = {"image": "ubuntu", "tags": ["easy"], **more.pop("metadata", {})}
    episode = Episode(
        task, f"do {task}", "bash", "tool-calling", 7, epoch, turns, metadata=metadata, **more
    )
    episode.started, episode.seconds = 1_763_682_651.25, 2.5
    if reward is not None:
        episode.score = Score(reward, {"files": reward}, {"missing": ["/a"]})
    return episode


def episodes() -> list[Episode]:
    error = {"error_type": "AgentError", "traceback": "Traceback: boom", "attempts": 2}
    return [
        made("b", 0, 1.0, status="submitted", answer="flag", metadata={"model": TALK}),
        made("a", 0, 0.5, status="truncated"),
        made("c", 0, 0.0, status="submitted", metadata={"model": TALK, "ended_by": "tokens"}),
        made("b", 1, 0.25, status="skipped", metadata={"model": "a name of its agent's own"}),
        made("a", 1, 1.0, status="submitted", metadata={"model": TALK, "earlier": [TALK]}),
        made("c", 1, None, status="error", error="boom", metadata=error),
    ]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("run"), episodes())


def write(folder: Path, found: list[Episode], **manifest: Any) -> Path:
    (folder / records.MANIFEST).write_text(json.dumps({**MANIFEST, **manifest}))
    (folder / records.EPISODES).write_text("".join(f"{e.to_json()}\n" for e in found))
    return folder


def export(run: Path) -> dict[str, Any]:
    folder = run / "logs"
    folder.mkdir()
    assert main(["export", str(run), "--to", "inspect", "--out", str(folder)]) == 0
    [path] = folder.iterdir()
    # Of other names in a folder Inspect takes no notice.
    assert re.match(r"^\d{4}-\d{2}-\d{2}T\d{2}[:-]\d{2}[:-]\d{2}.*\.json$", path.name)
    return dict(json.loads(path.read_bytes()))


@pytest.fixture(scope="module")
def told(run: Path) -> dict[str, Any]:
    return export(run)


def test_the_schema_of_inspect(told: dict[str, Any]) -> None:
    validator = jsonschema.Draft202012Validator(SCHEMA)
    assert [error.message for error in validator.iter_errors(told)] == []
    told["samples"][0]["scores"]["reward"]["valeu"] = 1  # it must be able to fail
    assert list(validator.iter_errors(told))
    del told["samples"][0]["scores"]["reward"]["valeu"]


def test_what_was_run(told: dict[str, Any]) -> None:
    spec = told["eval"]
    assert (told["version"], told["status"]) == (2, "success")
    assert spec["created"] == told["stats"]["started_at"] == "2026-11-20T23:50:51+00:00"
    assert spec["dataset"] == {
        "name": "mine",
        "location": "/d/mine.json",
        "samples": 9,
        "sample_ids": ["b", "a", "c"],
    }
    assert (spec["task"], spec["solver"]) == ("intercode/bash", "tool-calling")
    assert spec["model"] == "openai/m"
    assert spec["model_generate_config"] == {"temperature": 0.5, "max_tokens": 99}
    assert spec["config"] == {"epochs": 2, "limit": 3, "fail_on_error": False, "max_samples": 2}
    assert spec["packages"] == {"intercode-gym": "0.1.0", "numpy": "2.0.0"}
    assert spec["metadata"] == told["metadata"] == {"intercode": MANIFEST}


def test_samples_have_all_that_was_recorded(told: dict[str, Any]) -> None:
    for episode, sample in zip(episodes(), told["samples"], strict=True):
        assert (sample["id"], sample["epoch"]) == (episode.task_id, episode.epoch + 1)
        assert (sample["input"], sample["target"]) == (episode.query, "")
        own = sample["metadata"].pop("intercode")
        assert sample["metadata"] == json.loads(json.dumps(episode.metadata))
        assert own["turns"][0]["action"] == "echo 0 \\udcff"  # what is no UTF-8 as an escape
        assert own["turns"][1]["exit_code"] == 1
        assert (own["status"], own["env"], own["seed"]) == (episode.status, "bash", 7)
        assert sample["started_at"] == "2025-11-20T23:50:51.250000+00:00"
        assert sample["completed_at"] == "2025-11-20T23:50:53.750000+00:00"
        assert sample["total_time"] == 2.5
        assert ("error" in sample) == (episode.score is None) == ("scores" not in sample)
        if episode.score is not None:
            reward = sample["scores"]["reward"]
            assert reward["value"] == episode.score.value
            assert reward["metadata"]["parts"] == episode.score.parts
            assert reward["metadata"]["detail"] == episode.score.detail
            assert sample["scores"]["success"]["value"] == ("C" if episode.success else "I")
            assert reward.get("answer") == episode.answer
    assert len({sample["uuid"] for sample in told["samples"]}) == 6


def test_a_language_models_dialogue(told: dict[str, Any]) -> None:
    sample = told["samples"][0]
    assert sample["output"]["choices"][0]["message"] == sample["messages"][-1]
    ids = [message.pop("id") for message in sample["messages"]]
    assert len(set(ids)) == 5
    system, user, assistant, tool, last = sample["messages"]
    assert system == {"role": "system", "content": "be brief"}
    assert user == {"role": "user", "content": "count"}
    good, broken = assistant["tool_calls"]
    assert (good["id"], good["function"], good["arguments"]) == ("c1", "bash", {"command": "ls"})
    assert broken["arguments"] == {"_raw": "{no json"} and "not a JSON" in broken["parse_error"]
    assert tool == {"role": "tool", "content": "a\nb", "tool_call_id": "c1", "function": "bash"}
    assert last["content"] == sample["output"]["completion"] == "two"
    assert sample["output"]["choices"][0]["stop_reason"] == "max_tokens"
    assert (sample["output"]["model"], sample["output"]["time"]) == ("m-0613", 1.5)
    assert sample["turn_count"] == 2


def test_another_agents_dialogue(told: dict[str, Any]) -> None:
    said = [(m["role"], m["content"]) for m in told["samples"][3]["messages"]]
    assert said == [
        ("user", "do b"),
        ("assistant", "echo 0 \\udcff"),
        ("user", "0\n"),
        ("assistant", "echo 1 \\udcff"),
        ("user", "1\n"),
        ("assistant", "skip"),
    ]
    assert told["samples"][3]["model_usage"] == {}


def test_tokens_costs_errors_and_limits(told: dict[str, Any]) -> None:
    first, truncated, bounded, _, again, error = told["samples"]
    one = {
        "input_tokens": 40,
        "output_tokens": 14,
        "total_tokens": 74,
        "input_tokens_cache_read": 20,
        "total_cost": 0.5,
    }
    assert first["model_usage"] == {"openai/m": one}
    twice = {name: 2 * value for name, value in one.items()}
    assert again["model_usage"] == {"openai/m": twice}  # the attempt before was paid for, too
    assert told["stats"]["model_usage"] == {"openai/m": {n: 4 * v for n, v in one.items()}}
    assert error["error"] == {
        "message": "boom",
        "traceback": "Traceback: boom",
        "traceback_ansi": "Traceback: boom",
    }
    assert truncated["limit"] == {"type": "custom", "limit": 2.0, "reason": "max_turns"}
    assert bounded["limit"] == {"type": "token", "limit": 50.0}


def test_metrics_by_inspects_names_have_its_formulas(tmp_path: Path, told: dict[str, Any]) -> None:
    results = told["results"]
    assert (results["total_samples"], results["completed_samples"]) == (6, 5)
    success, reward = (score["metrics"] for score in results["scores"])
    # One task has fewer scored attempts: Inspect's mean of means would be another number.
    assert "accuracy" not in success and "mean" not in reward and "stderr" not in success
    assert success["success_rate"]["value"] == 0.4
    assert reward["mean_reward"]["value"] == pytest.approx(2.75 / 5)
    assert results["metadata"]["statistics"]["errors"] == 1

    both = [e for e in episodes() if e.task_id != "c"] + [
        made("d", n, 0.0, status="submitted") for n in (0, 1)
    ]
    success, reward = (s["metrics"] for s in export(write(tmp_path, both))["results"]["scores"])
    means = [0.75, 0.625, 0.0]  # a, b, d: of their two attempts
    assert reward["mean"]["value"] == pytest.approx(statistics.mean(means))
    error = statistics.stdev(means) / math.sqrt(3)
    assert reward["stderr"]["value"] == pytest.approx(error)
    assert success["accuracy"]["value"] == pytest.approx(1 / 3)
    assert success["stderr"]["value"] == pytest.approx(statistics.stdev([0.5, 0.5, 0]) / 3**0.5)


@pytest.mark.parametrize(
    ("change", "kept", "status"),
    [({"finished": None}, 6, "started"), ({}, 5, "cancelled"), ({}, 6, "success")],
)
def test_how_it_ended(tmp_path: Path, change: dict[str, Any], kept: int, status: str) -> None:
    sessions = [{**SESSION, **change}]
    assert export(write(tmp_path, episodes()[:kept], sessions=sessions))["status"] == status


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["--solved"], 2, "whole run: omit the options that select episodes"),
        (["--epoch", "0"], 2, "whole run: omit the options that select episodes"),
        (["--out", "log.eval"], 2, "inspect log convert"),
    ],
)
def test_refused(
    run: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, why: str
) -> None:
    assert main(["export", str(run), "--to", "inspect", *arguments]) == code
    assert why in capsys.readouterr().err


def test_a_record_without_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write(tmp_path, episodes(), sessions=[])
    assert main(["export", str(run), "--to", "inspect"]) == 2
    assert "has no start time, which an Inspect" in capsys.readouterr().err
