"""`show`: the model's words beside its actions, the dialogue, and what a paid run took."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from intercode.cli.main import main
from intercode.records import EPISODES
from sources import ROOT

RECORDED = ROOT / "tests/golden/runs-0.1.0/bash-model"


def shown(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["show", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_words_stand_beside_the_actions(capsys: pytest.CaptureFixture[str]) -> None:
    told = shown(capsys, RECORDED, "--task", "archive-01")
    assert "  reply: Let me look around first.\n  $ ls /data\n    archive\n" in told
    # The code of a reply is the action, and is not told twice.
    assert "```" not in told and told.count("reply:") == 1


def test_thoughts_and_turns_without_an_action(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(RECORDED, tmp_path / "run"))
    first, *_ = (run / EPISODES).read_text().splitlines()
    episode = json.loads(first)
    talk = episode["metadata"]["model"]
    talk["calls"][0]["thought"] = "I should look."
    talk["calls"][2]["turn"] = 0  # a second call before the first action
    talk["messages"][talk["calls"][2]["reply"]]["content"] = "I als /data:\n```sh\nls /data\n```"
    episode["turns"][1] |= {"action": "", "observation": "[no code]", "info": {"invalid": True}}
    number = talk["calls"][1]["reply"]
    talk["messages"][number] = {"role": "assistant", "content": "I do not know\x1b[2J."}
    (run / EPISODES).write_text(json.dumps(episode) + "\n")
    told = shown(capsys, run)
    assert "  thought: I should look.\n  reply: I als /data:\n  $ ls /data\n" in told
    assert "  reply: I do not know\\x1b[2J.\n  (no action)\n    [no code]\n" in told
    # Without the messages (another agent's record), the turns are shown all the same.
    episode["metadata"]["model"] = "a name"
    (run / EPISODES).write_text(json.dumps(episode) + "\n")
    assert "  $ ls /data\n" in shown(capsys, run)
    assert "no messages are recorded" in shown(capsys, run, "--messages")


def test_messages_are_the_dialogue_as_the_model_saw_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = shown(capsys, RECORDED, "--task", "archive-01", "--messages", "--full")
    [line] = [x for x in (RECORDED / EPISODES).read_text().splitlines() if '"archive-01"' in x]
    talk = json.loads(line)["metadata"]["model"]
    assert told.count("\n  [") == len(talk["messages"])
    assert told.index("  [system]\n    You work in a shell") < told.index("  [user]\n    Task: ")
    assert "  [assistant] (156 tokens in, 9 out, " in told


def test_tool_calls_are_among_the_messages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(RECORDED, tmp_path / "run"))
    episode = json.loads((run / EPISODES).read_text().splitlines()[0])
    talk = episode["metadata"]["model"]
    call = {"call_id": "1", "name": "execute", "arguments": {"command": "ls /data"}}
    talk["messages"][talk["calls"][0]["reply"]] |= {"content": "", "tool_calls": [call]}
    talk["tools"] = [{"name": "execute", "description": "", "parameters": {}}]
    (run / EPISODES).write_text(json.dumps(episode) + "\n")
    told = shown(capsys, run, "--messages")
    assert "  tools: execute\n" in told and '    → execute {"command": "ls /data"}\n' in told


def test_a_run_without_episodes_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Path(shutil.copytree(RECORDED, tmp_path / "run"))
    (run / EPISODES).write_text("")
    assert main(["show", str(run)]) == 0
    assert capsys.readouterr().err == f"{run} has no episode yet\n"
    assert main(["show", str(run), "--failed"]) == 0
    assert "has no episode without success" in capsys.readouterr().err
    assert main(["show", str(run), "--json"]) == 0
    assert capsys.readouterr() == ("[]\n", "")


def test_a_folder_of_runs_lists_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("two", "one"):
        shutil.copytree(RECORDED, tmp_path / name)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged/run.json").write_text("{")
    (tmp_path / "other").mkdir()
    lines = shown(capsys, tmp_path).splitlines()
    assert [line.partition(": ")[0] for line in lines] == [
        str(tmp_path / name) for name in ("damaged", "one", "two")
    ]
    assert "agent try-again" in lines[1] and "cannot be read" not in lines[1]
    assert sorted(json.loads(shown(capsys, tmp_path, "--json"))) == [
        str(tmp_path / name) for name in ("damaged", "one", "two")
    ]
    shutil.rmtree(tmp_path / "damaged")
    assert main(["report", str(tmp_path), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 2
    assert main(["show", str(tmp_path / "other")]) == 2
