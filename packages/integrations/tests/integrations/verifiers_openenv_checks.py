"""verifiers' own taskset `openenv` against our server, without our adapter for verifiers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from recorded import played

import intercode
from intercode.models.base import Message
from intercode_integrations.testing import Line, ScriptedServer

PLAYED = played("bash")[:6]


def recorded(messages: Sequence[Message]) -> Line:
    """Say what was recorded of the task, and submit."""
    first = next(message.content for message in messages if message.role == "user")
    asked = json.loads(first)["observation"]["text"]
    tasks = {task.query: task.task_id for task in intercode.load_dataset("bash")}
    [actions] = (one.actions for one in PLAYED if one.task_id == tasks[asked])
    said = sum(message.role == "assistant" for message in messages)
    return Line(json.dumps({"action": [*actions, "submit"][said]}))


def test_episodes_of_our_server(tmp_path: Path) -> None:
    programs = Path(sys.executable).parent
    served = [programs / "intercode", "serve", "bash", "--port", "0"]
    with (
        subprocess.Popen(served, stdout=subprocess.PIPE, text=True) as server,
        ScriptedServer(recorded) as model,
    ):
        assert server.stdout is not None
        url = server.stdout.readline().split()[-1]
        player = {"harness": {"id": "chat_in_process"}, "runtime": {"type": "subprocess"}}
        resets = [{"task_id": one.task_id} for one in PLAYED]
        settings = {
            "model": "any",
            "push": False,
            "rich": None,
            "output_dir": str(tmp_path),
            "client": {"base_url": model.url, "api_key_var": "NONE"},
            "env": {
                "taskset": {"id": "openenv", "base_url": url, "resets": resets},
                "player": player,
            },
        }
        (tmp_path / "eval.json").write_text(json.dumps(settings))
        here = str(Path(__file__).parent)
        paths = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])
        subprocess.run(
            [programs / "vf-eval", "@", "eval.json"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": paths},
            check=True,
            stdout=subprocess.DEVNULL,
        )
        server.terminate()
    assert server.returncode == 0
    [file] = tmp_path.rglob("traces.jsonl")
    episodes = [json.loads(line) for line in file.read_text().splitlines()]
    earned = {
        episode["traces"][0]["task"]["data"]["reset"]["task_id"]: (
            episode["ok"],
            episode["traces"][0]["rewards"]["openenv_reward"]["score"],
        )
        for episode in episodes
    }
    assert earned == {one.task_id: (True, one.reward) for one in PLAYED}
    assert 0 < sum(one.reward for one in PLAYED) < len(PLAYED)
