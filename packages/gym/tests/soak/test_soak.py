"""Many episodes in one run leave nothing and grow nothing.

The full figure (10,000) is run by hand before a release::

    INTERCODE_SOAK_EPISODES=10000 pytest packages/gym/tests/soak/test_soak.py -s --timeout 3600
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import intercode
from envs import swe_tasks
from intercode.agents.base import AgentFactory
from intercode.envs.swe import apply_patch
from intercode.episode import Turn
from intercode.evaluate import evaluate
from intercode.interpreters import python_start
from intercode.task import Dataset, Task
from intercode_sandbox import Provider, get_provider
from open_resources import AHEAD, held, held_once

EPISODES = int(os.environ.get("INTERCODE_SOAK_EPISODES", "30"))
WARM = max(40, EPISODES // 10)

Soaked = tuple[Task, tuple[str, ...], Callable[[], Provider]]
SOAKED: dict[str, Soaked] = {
    "bash": (
        Task("t", "Say hello.", gold=("echo hello",)),
        (
            "echo hello > /root/f; mkdir -p /data/d; (sleep 60 &) ; setsid sleep 60 &",
            "rm -rf /root/f; exec true",
            "head -c 100000 /dev/urandom | base64 -w 0",
            "exit 3",
            "submit",
        ),
        get_provider,
    ),
    "python": (
        Task("t", "Write f.", tests=("assert f(1) == 2", "assert f('a')")),
        (
            "import os, threading\nopen('f', 'w').write('x' * 100_000)\nos.fork()",
            "threading.Thread(target=threading.Event().wait, daemon=True).start()",
            "def f(x):\n    held = bytearray(1 << 20); os.spawnlp(0, 'sleep', 'sleep', '60')\n"
            "    return x + 1",
            "import os; os._exit(3)",
            "submit",
        ),
        python_start.provider,
    ),
    "ctf": (
        Task(
            "t",
            "Find it.",
            ("flag{it}",),
            files={"note.txt": "nothing\n"},
            metadata={"service": "cat; sleep 60", "service_input": "x" * 100_000},
        ),
        (
            "echo mine >> note.txt; (sleep 60 &) ; setsid sleep 60 &",
            "submit wrong",
            "exit 3",
            "head -c 100000 /dev/urandom | base64 -w 0",
            "submit flag{it}",
        ),
        get_provider,
    ),
    "swe": (
        swe_tasks.task(runner="unittest", repository="calc"),
        (
            apply_patch(swe_tasks.GOLD),
            "git commit -aqm Fix; (sleep 60 &) ; setsid sleep 60 &",
            "head -c 100000 /dev/urandom > noise; python3 -c 'import calc'",
            "exit 3",
            "submit",
        ),
        get_provider,
    ),
}


class Busy:
    """Writes, forks, floods, and makes what runs its actions restart."""

    def __init__(self, actions: tuple[str, ...]) -> None:
        self._actions = actions

    def act(self, observation: str, history: list[Turn]) -> str:
        return self._actions[len(history)]


@pytest.mark.timeout(1800 + EPISODES)
@pytest.mark.parametrize("name", SOAKED)
def test_nothing_grows(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    task, actions, provider = SOAKED[name]
    if name == "swe":
        swe_tasks.make_repository(tmp_path / "calc")
    tasks = (replace(task, task_id=f"t{n}", folder=tmp_path) for n in range(20))
    dataset = Dataset(tasks, "soak")
    busy: AgentFactory = lambda task: Busy(actions)  # noqa: E731

    def make() -> Any:
        return intercode.make(name, data=dataset).unwrapped

    def run(episodes: int, folder: str) -> None:
        result = evaluate(
            dataset,
            busy,
            make,
            workers=8,
            out=tmp_path / folder,
            epochs=max(1, episodes // len(dataset)),
        )
        failed = [episode.error for episode in result.episodes() if episode.error]
        assert result.complete, (len(failed), failed[:3])
        print(f"{name}: {result.ran} episodes in {result.seconds:.0f} s")

    run(WARM, "warm")
    before = held(provider())
    run(EPISODES, "run")
    if "memory" in grown(before, now := held(provider())):
        before["memory"] = now["memory"]  # a heap may reach its size late, once; a leak goes on
        run(EPISODES, "again")
    after = held_once(lambda found: not grown(before, found), provider())
    print(before, after, sep="\n")
    assert not grown(before, after), (before, after)


def grown(before: dict[str, int], after: dict[str, int]) -> list[str]:
    """What there is too much of."""
    # In KiB. Interpreters' heaps breathe; a leak of 1 KiB an episode would show. What else leaks,
    # leaks in every episode; what is made ahead may be one more or less.
    return [
        what
        for what in before
        if after[what] - before[what] >= (4096 + EPISODES // 2 if "memory" in what else AHEAD)
    ]
