"""The commands that are run: each with `--json`, and one for each way in which a command ends.

They run in one folder, in this order: later ones look at what earlier ones have left.
"""

from __future__ import annotations

import json
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

TYPED = "echo hello\nsubmit\n"
"""What is typed into each command that asks."""

WITH_JSON = (
    "new mine --json",
    "run bash --limit 1 --quiet --out plain --json",
    "sweep bash sql python ctf swe --agent oracle random --limit 2 --quiet --out sweep --json",
    "run bash --data tasks.json --agent agent.py:make --exclude exclude.txt --retries 0 --quiet"
    " --out run --json",
    "resume run --trust --quiet --json",
    "run bash --data tasks.json --agent try-again --model scripted/rules.jsonl"
    " --prices prices.json --max-cost 5 --quiet --out model --json",
    "run bash --data tasks.json --locked run --trust --seed 1 --max-turns 3 --out other --json",
    "rescore run --trust --reward reward.py:score --quiet --out rescored --json",
    "rescore run --trust --data bad.json --quiet --out other --json",
    "score predictions.jsonl bash --data tasks.json --quiet --out predicted --json",
    "play bash --data tasks.json --task hello --json",
    "report model --json",
    "report run model sweep/bash-random --json",
    "report --paper paper --json",
    "show run --json",
    "export run --to jsonl --out run.jsonl --json",
    "validate bad.json --env bash --quiet --json",
    "replay --env bash --image host --data tasks.json --results results.json --quiet --json",
    "replay --env sql --engine sqlite --data bird/tasks.json --databases bird/dev_databases"
    " --results sql.json --quiet --json",
    "replay --env python --data python.json --results results.json --quiet --json",
    "replay --env ctf --data ctf.json --results results.json --quiet --json",
    "datasets list --json",
    "datasets info sql --json",
    "datasets fetch bird --from bird --quiet --json",
    "datasets validate sql --limit 1 --quiet --json",
    "images list --json",
    "images build host+./files.tar --quiet --json",
    "images inspect host+./files.tar --json",
    "images prune --all --dry-run --json",
    "demo --limit 1 --quiet --out demo --json",
    "doctor --json",
    "clean --dry-run --json",
    "clean --all --dry-run --json",
)
"""At least one of every command that has the option."""

ENDINGS = (
    "",
    "--version",
    "--help",
    "run --help",
    "unknown",
    "--unknown",
    "run",
    "run unknown",
    "run bash --unknown",
    "run bash --limit 0",
    "run bash --task unknown",
    "run bash --data malformed.json",
    "run bash --data missing.json",
    "run bash --agent unknown",
    "run bash --agent try-again",
    "run bash --agent try-again --model unknown/model",
    "run bash --image unknown:image",
    "run bash --engine sqlite",
    "run bash --accept host",
    "run bash --locked missing",
    "run bash --data tasks.json --out sweep/sql-oracle",
    "run bash --data tasks.json --agent agent.py:unable --task hello --quiet --out unable",
    "run bash --data tasks.json --agent interrupting.py:make --quiet --out interrupted",
    "run bash --data tasks.json --agent agent.py:interrupting --epochs 20 --quiet --out cut-short",
    "sweep bash",
    "sweep bash=tasks.json --agent agent.py:unable --quiet --out unable-sweep",
    "resume missing",
    "resume unable --trust --quiet",
    "resume unable --epochs 0",
    "rescore missing",
    "rescore run --trust --reward unknown",
    "rescore run --trust --reward reward.py:failing --quiet --out failing",
    "score missing.jsonl bash",
    "play unknown",
    "report",
    "report missing",
    "show missing",
    "show run --task unknown",
    "export run",
    "export missing --to csv",
    "export run --to csv --json",
    "validate tasks.json --env bash --task hello --quiet",
    "validate unknown",
    "replay --env bash --results results.json",
    "replay --env bash --data tasks.json --results missing.json",
    "datasets",
    "datasets info unknown",
    "datasets fetch bird --force --from missing",
    "datasets fetch sql",
    "images",
    "images build unknown:image",
    "images inspect host+./missing.tar",
    "new mine",
    "new other --env unknown",
    "doctor --unknown",
    "clean --unknown",
    "clean --all",
    "demo --limit 0",
)
"""Ways to end, well and otherwise."""

NOT_READ = "datasets list"
"""Is also run with nobody to read its output."""

_AGENT = """
import os, signal
from pathlib import Path

class Agent:
    needs_gold = True

    def __init__(self, task):
        self.task = task

    def act(self, observation, history):
        tried = Path(f"tried-{self.task.task_id}")
        if not tried.exists():
            tried.touch()
            if self.task.task_id == "again":
                raise ConnectionError("the first time fails")
        return "submit" if history else self.task.gold[0]

class Unable(Agent):
    def act(self, observation, history):
        raise ConnectionError("always fails")

class Interrupting(Agent):
    def act(self, observation, history):
        os.kill(os.getpid(), signal.SIGINT)
        return "submit" if history else self.task.gold[0]

make, unable, interrupting = Agent, Unable, Interrupting
"""
_REWARDS = """
def score(task, episode, sandbox):
    return 0.5

def failing(task, episode, sandbox):
    raise ValueError("no score")
"""
_TASKS = [
    {"task_id": "hello", "query": "Say hello.", "gold": "echo hello", "tags": ["easy"]},
    {"task_id": "again", "query": "Make a file.", "gold": "touch made"},
    {"task_id": "left-out", "query": "Do nothing.", "gold": "true"},
]
_BAD = [
    {"task_id": "free", "query": "q", "verification": "true", "gold": "true"},
    {"task_id": "wrong", "query": "q", "verification": "false", "gold": "true"},
    {"task_id": "told", "query": "q", "gold": "echo so-secret-7261", "setup": "echo x > /srv/x"},
]
_FUNCTION = "def f():\n    return 1"
_SQL = {"query": "Say hello.", "gold": "SELECT count(*) FROM item", "db": "shop"}
_BIRD = {
    **{"question_id": 0, "db_id": "shop", "question": "How many?", "evidence": ""},
    **{"SQL": "SELECT count(*) FROM item", "difficulty": "simple"},
}


def lay_out(folder: Path) -> None:
    """Write the files that the commands take."""
    files: dict[str, Any] = {
        "agent.py": _AGENT,
        "interrupting.py": "import signal\nsignal.raise_signal(signal.SIGINT)\n",
        "reward.py": _REWARDS,
        "tasks.json": _TASKS,
        "bad.json": _BAD,
        "malformed.json": "[",
        "exclude.txt": "left-out no reason\n",
        "rules.jsonl": '{"turn": 0, "say": "```bash\\necho bye\\n```"}\n{"say": "submit"}\n',
        "prices.json": {"models": {"scripted/rules.jsonl": {"input": 1.0, "output": 2.0}}},
        "predictions.jsonl": '{"task_id": "hello", "prediction": "echo hello"}\n'
        '{"task_id": "again", "prediction": "ls"}\n{"task_id": "left-out", "prediction": ""}\n',
        "results.json": {"0": _recorded("echo bye", "submit")},
        "sql.json": {"0": {**_recorded("SELECT 1", _SQL["gold"]), "hardness": "easy"}},
        "python.json": [{"query": "Say hello.", "gold": _FUNCTION, "tests": ["assert f() == 1"]}],
        "ctf.json": [{"query": "Say hello.", "gold": "intercode{flag}"}],
        "paper/bash/m/ic_bash_multiturn_m_10_turns_fs_1.json": {"0": _recorded("ls", "submit")},
        "bird/dev.json": [_BIRD],
        "bird/dev_tables.json": [],
        "bird/tasks.json": [_SQL],
    }
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    with tarfile.open(folder / "files.tar", "w") as archive:
        archive.add(folder / "tasks.json", "srv/tasks.json")
    database = folder / "bird/dev_databases/shop/shop.sqlite"
    database.parent.mkdir(parents=True)
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript("CREATE TABLE item (id INTEGER); INSERT INTO item VALUES (1)")


def _recorded(*actions: str) -> dict[str, Any]:
    """An episode of 2023."""
    return {
        "task_id": 0,
        "query": "Say hello.",
        "turn_history": {
            "actions": list(actions),
            "observations": ["seen" for _ in actions],
            "rewards": [0.5 for _ in actions],
            "valid_action": [True for _ in actions],
        },
        "summary": {"max_reward": 0.5, "max_reward_idx": 0},
    }
