"""Tasks of an environment as rows of a dataset, without gold and its outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from intercode.episode import Episode
from intercode.task import Task
from intercode_integrations import require_framework

if TYPE_CHECKING:
    import datasets

Style = Callable[[Any, Task], list[dict[str, Any]]]


def dialogues(env: Any, style: Style) -> Iterator[tuple[Task, list[dict[str, Any]]]]:
    """Yield each task with the messages before the first action, without starting an episode.

    Args:
        env: The environment.
        style: A function of `intercode.agents.transcripts` that returns the messages.
    """
    for task in env.dataset:
        episode = Episode(task.task_id, task.query, env.name)
        env_facts = {"name": env.name, "traits": env.traits, "max_turns": env.max_turns}
        yield task, style(SimpleNamespace(**env_facts, episode=episode), task)


def as_dataset(rows: list[dict[str, Any]]) -> datasets.Dataset:
    """Convert rows into a dataset of the package ``datasets``.

    Raises:
        UsageError: The package ``datasets`` is not installed.
    """
    with require_framework("datasets, a package of TRL's,", "intercode-gym[trl]"):
        from datasets import Dataset

    return Dataset.from_list(rows)
