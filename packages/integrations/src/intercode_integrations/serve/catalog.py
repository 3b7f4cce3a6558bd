"""The environments that a server offers, with their tasks and metadata."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from intercode import __version__, datasets
from intercode.envs.base import InterCodeEnv
from intercode.envs.options import list_constructor_options
from intercode.episode import plain
from intercode.errors import TaskError, UsageError
from intercode.project import create, is_project, read as read_project
from intercode.rewards.gold import GoldCache
from intercode.task import Dataset
from intercode_sandbox.spelling_suggestions import hint_text
from intercode_sandbox.units import MIB

ALL_TASKS = "all"
"""Name of the only split if the tasks define none. OpenEnv's clients always name a split."""


class ServedEnvironment:
    """An environment that the server offers to clients.

    Args:
        address: The registered name of the environment, or the folder of a benchmark.
        max_message: The maximum bytes of a client's message; part of the metadata, from which
            clients learn the number.

    Raises:
        UsageError: The environment does not exist, or cannot be served.
        TaskError: The environment has no tasks.
    """

    def __init__(self, address: str, max_message: int = MIB) -> None:
        self._max_message = max_message
        self._address, self._data, env_name = address, address, address
        self._options: dict[str, Any] = {"observations": "utf-8", "errors": "value"}
        project_options: dict[str, Any] = {}
        if is_project(address):
            project_config = read_project(address)
            env_name, self._data, project_options = (
                project_config.name,
                project_config.tasks,
                dict(project_config.options),
            )
            self._split = project_config.split
        else:
            self._split = None
        self.name = re.sub(r"[^\w.:-]+", "-", env_name)
        """The environment's name in URLs."""
        self._sets: dict[str | None, Dataset] = {}
        env = create(address, **self._options).unwrapped
        if not isinstance(env, InterCodeEnv):
            raise UsageError(f"{address}: only environments of InterCode's own can be served")
        self._kind, self.env = type(env), env
        """An environment that never starts an episode, for facts such as traits and tools."""
        self._project_options = project_options
        if (
            "cache_gold" in list_constructor_options(self._kind)
            and project_options.get("cache_gold", True) is True
        ):
            self._options["cache_gold"] = GoldCache()  # one cache for all sessions
        self.tasks(None)

    def make(self, split: str | None) -> InterCodeEnv[Any]:
        """Make an environment for a client.

        Args:
            split: The split of the tasks; None: the default split.

        Raises:
            TaskError: The split does not exist.
        """
        env = create(self._address, data=self.tasks(split), **self._options).unwrapped
        assert isinstance(env, InterCodeEnv)  # the constructor has checked the type
        return env

    @cached_property
    def splits(self) -> list[str]:
        """The names of the tasks' splits."""
        return datasets.splits(self._data) or [ALL_TASKS]

    def tasks(self, split: str | None) -> Dataset:
        """Load the supported tasks of a split.

        Args:
            split: The split; None: the default split of the environment.

        Raises:
            TaskError: The split does not exist.
        """
        if split is not None and split not in self.splits:
            raise TaskError(f"there is no split {split!r}{hint_text(split, self.splits)}")
        if split is None or (split == ALL_TASKS and not datasets.splits(self._data)):
            split = self._split
        if split not in self._sets:
            dataset = datasets.load(self._data, split)
            self._sets[split], _ = self._kind.filter_tasks(dataset, self._project_options)
        return self._sets[split]

    def task_facts(
        self, split: str | None, start: int | None = None, stop: int | None = None
    ) -> list[dict[str, Any]]:
        """Return facts about tasks: only the facts that agents may see.

        Args:
            split: The split of the tasks; None: the default split.
            start: The index of the first task; None: 0.
            stop: The index after the last task; None: the number of tasks.
        """
        dataset = self.tasks(split)
        return [
            {
                "id": plain(dataset[index].task_id),
                "index": index,
                "tags": [],
                **plain(dataset[index].shown().to_dict()),
            }
            for index in range(len(dataset))[start:stop]
        ]

    def metadata(self) -> dict[str, Any]:
        """Return the metadata of the environment, for OpenEnv's and InterCode's clients."""
        env = self.env
        return {
            "name": self.name,
            "description": f"{env.traits.setting}: {len(self.tasks(None))} tasks",
            "version": __version__,
            "intercode": {
                "env": env.name,
                "language": env.language,
                "tools": env.tools,
                "max_turns": env.max_turns,
                "max_message": self._max_message,
                "splits": self.splits,
                "version": __version__,
            },
        }

    def schema(self) -> dict[str, Any]:
        """Return JSON schemas of actions, observations and states."""
        action_schema = {"type": "string", "description": self.env.traits.parameter_description}
        string_schema, integer_schema = {"type": "string"}, {"type": "integer"}
        return {
            # The framework verifiers takes the title "Action" for a request to list tools by MCP.
            "action": _object("TextAction", action=action_schema),
            "observation": _object(
                "Observation",
                text=string_schema,
                truncated={"type": "boolean"},
                info={"type": "object"},
            ),
            "state": _object(
                "State", episode_id=string_schema, step_count=integer_schema, task_id=string_schema
            ),
        }


def index_entries(entries: Iterable[ServedEnvironment]) -> dict[str, ServedEnvironment]:
    """Return a mapping from the name of each environment to its entry.

    Raises:
        UsageError: Two environments have the same name.
    """
    entries_by_name: dict[str, ServedEnvironment] = {}
    for entry in entries:
        if entries_by_name.setdefault(entry.name, entry) is not entry:
            raise UsageError(f"two of the environments have the name {entry.name!r}")
    return entries_by_name


def _object(title: str, **properties: Any) -> dict[str, Any]:
    return {
        "title": title,
        "type": "object",
        "properties": properties,
        "required": [*properties],
    }
