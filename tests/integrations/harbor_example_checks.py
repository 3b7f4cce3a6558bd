"""Tasks exported to Harbor, played by Harbor in our sandboxes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from harbor.models.task.task import Task
from harbor_export import export

import intercode

EVERY = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every fourth task of Bash."""
    folder = tmp_path_factory.mktemp("tasks")
    env = intercode.make("bash")
    for task in list(env.dataset)[::EVERY]:
        export(env, task, folder / task.task_id)
    env.close()
    return folder


def test_harbor_reads_them(folder: Path) -> None:
    tasks = [Task(path) for path in sorted(folder.iterdir())]
    assert len(tasks) >= 10
    assert all(task.name == f"intercode/{task.task_dir.name}" for task in tasks)


@pytest.mark.parametrize(("agent", "reward"), [("oracle", 1.0), ("nop", 0.0)])
def test_played(folder: Path, tmp_path: Path, agent: str, reward: float) -> None:
    options = ("-e", "harbor_environment:InterCode", "-n", "2", "--quiet", "-y")
    done = subprocess.run(
        ["harbor", "run", "-p", str(folder), "-a", agent, "-o", str(tmp_path), *options],
        env={**os.environ, "HARBOR_TELEMETRY": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    results = [json.loads(path.read_text()) for path in tmp_path.glob("*/*/result.json")]
    assert len(results) == len(list(folder.iterdir())), done.stdout + done.stderr
    for result in results:
        assert result["exception_info"] is None, result["exception_info"]
        assert result["verifier_result"]["rewards"] == {"reward": reward}, result["trial_name"]
