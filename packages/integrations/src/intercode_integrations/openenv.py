"""Environments of any OpenEnv server, played by InterCode's runner: ``intercode run openenv:URL``.

OpenEnv's `reset` selects a task by the name of a split and an index. If the schema of actions has a
single field, or a single required field, an action is the text of that field. Otherwise, an action
is a JSON object of the fields. The score of an episode is the sum of the rewards. InterCode's own
servers send the score itself as the last reward.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import msgspec

from intercode.envs.remote import RemoteEnvironment, RemoteStepReply
from intercode.envs.traits import Traits, language_traits
from intercode.errors import ActionError, UsageError
from intercode.task import Dataset, Task
from intercode_integrations.serve.client import (
    ClientSession,
    RemoteEnvironmentServer,
    refuse_failure,
    sandbox_end,
)

_QUERIES = ("query", "question", "prompt", "instruction", "description")
"""Fields of a task that may contain the request. The agent reads the request in the first
observation, if the observation is not empty."""
_INTERNAL_FIELDS = ("metadata", "truncated", "info")
"""Fields of an observation that agents do not see. InterCode's servers send the last two."""


class OpenEnvEnv(RemoteEnvironment):
    """An environment of an OpenEnv server; InterCode is the client.

    Args:
        data: The address ``openenv:URL``, or the dataset that `tasks` returns for it.
        changes: The options of the environment.

    Raises:
        UsageError, SandboxError: The server refuses the client, or cannot be reached.
    """

    name: ClassVar[str] = "openenv"
    traits: Traits = Traits(
        language="act",
        setting="an environment",
        parameter="action",
        parameter_description="The action.",
        does="Take an action.",
        shows="What is observed then.",
        wrong=("42",),
        is_remote=True,
    )

    @classmethod
    def tasks(cls, address: str) -> Dataset:
        """List the tasks of all splits of an environment.

        A server without a list of tasks has a single task, and chooses the task itself.
        """
        server = RemoteEnvironmentServer(address)
        tasks = []
        try:
            splits = [entry["name"] for entry in server.fetch(f"{server.name}/splits")]
            for split in splits:
                id_prefix = f"{split}/" if splits[1:] else ""
                for index, record in enumerate(server.tasks(split)):
                    record = record if isinstance(record, dict) else {}
                    tasks.append(_task(id_prefix, record, {"split": split, "index": index}))
        except UsageError:  # the server has no routes for tasks, and chooses a task at each reset
            tasks = [Task(server.name, "What the first observation says.")]
        return Dataset(tasks, f"openenv:{address}", source=address)

    def __init__(self, data: str | Dataset, **changes: Any) -> None:
        super().__init__(data, **changes)
        server = RemoteEnvironmentServer(str(self.dataset.source))
        env_facts = server.metadata.get("intercode")
        self._is_ours = env_facts is not None
        if env_facts is not None:
            self.traits = replace(language_traits(env_facts["language"]), is_remote=True)
        schema = server.fetch("schema")["action"]
        fields = {
            field_name for field_name in schema.get("properties", {}) if field_name != "metadata"
        }
        action_fields = set(schema.get("required", ())) or fields
        self._field = min(action_fields) if len(action_fields) == 1 else None
        self._schema = schema
        self._session = ClientSession(server)
        self._total: float | None = None

    def _begin(self, task: Task, seed: int | None) -> str:
        self._total = None
        task_choice = {key: task.metadata.get(key) for key in ("split", "index")}
        observation = self._session.reset(seed=seed, **task_choice)["observation"]
        if self._is_ours:
            refuse_failure(observation["info"])
        return _observation_text(observation) or task.query

    def _take(self, action: str) -> RemoteStepReply:
        try:
            reply_data = self._session.ask("step", self._parse_action(action))
        except ActionError as error:
            return RemoteStepReply(f"[not executed: {error}]", ok=False, info={"executed": False})
        observation, info = reply_data["observation"], reply_data["observation"].get("info") or {}
        if self._is_ours:
            refuse_failure(info)
        if (reward := reply_data["reward"]) is not None:
            self._total = reward + (0.0 if self._is_ours else self._total or 0.0)
        truncated = bool(observation.get("truncated"))
        return RemoteStepReply(
            _observation_text(observation),
            self._total if reply_data["done"] else None,
            ended=reply_data["done"] and not truncated,
            truncated=reply_data["done"] and truncated,
            ok=info.get("ok", True),
            exit_code=info.get("exit_code"),
            parts=info.get("parts", {}),
            info=sandbox_end(info) if self._is_ours else {},
        )

    def _parse_action(self, action: str) -> dict[str, Any]:
        if self._field is not None:
            return {self._field: action}
        try:
            return msgspec.json.decode(action, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            schema_text = msgspec.json.encode(self._schema).decode()
            raise ActionError(f"an action is a JSON object by {schema_text}: {error}") from None

    def _submit(self, answer: str | None) -> RemoteStepReply:
        if self._is_ours:
            return self._take("submit" if answer is None else f"submit {answer}")
        return RemoteStepReply("", self._total or 0.0)  # OpenEnv's own servers have no submission

    def close(self) -> None:
        """End the episode and the session with the server. Idempotent."""
        if not self._calls.forked:
            self._calls.cut()
            self._session.close()


def _task(prefix: str, record: dict[str, Any], position: dict[str, Any]) -> Task:
    task_id = f"{prefix}{record.get('id', record.get('task_id', position['index']))}"
    query_texts = (
        record[field]
        for field in _QUERIES
        if isinstance(record.get(field), str) and record[field].strip()
    )
    return Task(task_id, next(query_texts, task_id), metadata=position)


def _observation_text(observation: dict[str, Any]) -> str:
    """Return the text of an observation.

    The text is that of the only field. Several fields, or a value of another type, give JSON.
    """
    shown_fields = {
        name: value
        for name, value in observation.items()
        if name not in _INTERNAL_FIELDS and value is not None
    }
    first_value = next(iter(shown_fields.values()), "")
    is_text = isinstance(first_value, str) and len(shown_fields) < 2
    return first_value if is_text else msgspec.json.encode(shown_fields).decode()
