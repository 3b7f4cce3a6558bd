"""Recorded Python episodes under the default protocol, to see what the reward of 2023 is worth."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from intercode.envs.python import PythonEnv
from intercode.paper.python_session import defined, submitted
from intercode.paper.results import RecordedEpisode
from intercode.sandbox.base import Provider
from intercode.task import Dataset, Task


def default_rewards(
    jobs: Sequence[tuple[RecordedEpisode, Task]], provider: Provider, image: str | None = None
) -> list[float]:
    """The default reward of each episode's actions and of the function that it submitted last.

    Args:
        jobs: The episodes with their tasks.
        provider: Where sandboxes come from.
        image: As for `PythonEnv`.

    Raises:
        TaskError: A task's tests are no Python.
        SandboxError: A sandbox failed.
    """
    if not jobs:
        return []
    tasks = Dataset({task.task_id: task for _, task in jobs}.values(), "replay")
    turns = max(len(episode.turns) for episode, _ in jobs) + 1
    with closing(PythonEnv(tasks, image=image, sandbox=provider, max_turns=turns)) as env:
        return [_reward(env, episode, task) for episode, task in jobs]


def _reward(env: PythonEnv, episode: RecordedEpisode, task: Task) -> float:
    env.reset(options={"task_id": task.task_id})
    name = ""
    for turn in episode.turns:
        if turn.command is None or turn.command == "skip":
            continue
        if turn.command.startswith("submit"):
            name = submitted(turn.command)
        else:
            env.step(turn.command)
            name = defined(turn.command) or name
    _, reward, *_ = env.step(f"submit {name}".strip())
    return reward
