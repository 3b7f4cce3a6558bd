"""Environments of any OpenEnv server, played by our runner: ``intercode run openenv:URL``.

A task is a split's name and a place in it, by which OpenEnv's `reset` chooses. An action is the
text of the only field of its schema, or a JSON object with all of them. The sum of the rewards is
the episode's score.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import msgspec

from intercode.envs.elsewhere import Elsewhere, Reply
from intercode.envs.traits import Traits, language_traits
from intercode.errors import ActionError, UsageError
from intercode.task import Dataset, Task
from intercode_integrations.serve.client import Server, Session, refuse_failure, sandbox_end

_QUERIES = ("query", "question", "prompt", "instruction", "description")
"""Names under which a task may tell its request; the first observation tells it in any case."""
_OURS = ("metadata", "truncated", "info")
"""Fields of an observation that an agent is not shown; the last two are our servers'."""


class OpenEnvEnv(Elsewhere):
    """An environment of an OpenEnv server.

    Args:
        data: Its address as ``openenv:URL``, or its tasks.
        changes: The options.

    Raises:
        UsageError, SandboxError: The server refuses, or cannot be reached.
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
    def tasks(cls, rest: str) -> Dataset:
        """List the tasks of an environment, of all its splits; one, if it names none."""
        server = Server(rest)
        found = []
        try:
            splits = [one["name"] for one in server.fetch(f"{server.name}/splits")]
            for split in splits:
                above = f"{split}/" if splits[1:] else ""
                for index, told in enumerate(server.tasks(split)):
                    told = told if isinstance(told, dict) else {}
                    found.append(_task(above, told, {"split": split, "index": index}))
        except UsageError:  # no routes of tasks: each reset gives one
            found = [Task(server.name, "What the first observation says.")]
        return Dataset(found, f"openenv:{rest}", source=rest)

    def __init__(self, data: str | Dataset, **changes: Any) -> None:
        super().__init__(data, **changes)
        server = Server(str(self.dataset.source))
        about = server.metadata.get("intercode")
        self._is_ours = about is not None
        if about is not None:
            self.traits = replace(language_traits(about["language"]), is_remote=True)
        schema = server.fetch("schema")["action"]
        fields = {name for name in schema.get("properties", {}) if name != "metadata"}
        wanted = set(schema.get("required", ())) or fields
        self._field = min(wanted) if len(wanted) == 1 else None
        self._schema = schema
        self._session = Session(server)
        self._total: float | None = None

    def _begin(self, task: Task, seed: int | None) -> str:
        self._total = None
        chosen = {name: task.metadata.get(name) for name in ("split", "index")}
        seen = self._session.reset(seed=seed, **chosen)["observation"]
        if self._is_ours:
            refuse_failure(seen["info"])
        return _shown(seen) or task.query

    def _take(self, action: str) -> Reply:
        try:
            told = self._session.ask("step", self._read(action))
        except ActionError as error:
            return Reply(f"[not executed: {error}]", ok=False, info={"executed": False})
        seen, info = told["observation"], told["observation"].get("info") or {}
        if self._is_ours:
            refuse_failure(info)
        if (reward := told["reward"]) is not None:
            self._total = reward + (0.0 if self._is_ours else self._total or 0.0)
        truncated = bool(seen.get("truncated"))
        return Reply(
            _shown(seen),
            self._total if told["done"] else None,
            ended=told["done"] and not truncated,
            truncated=told["done"] and truncated,
            ok=info.get("ok", True),
            exit_code=info.get("exit_code"),
            parts=info.get("parts", {}),
            info=sandbox_end(info) if self._is_ours else {},
        )

    def _read(self, action: str) -> dict[str, Any]:
        if self._field is not None:
            return {self._field: action}
        try:
            return msgspec.json.decode(action, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            wanted = msgspec.json.encode(self._schema).decode()
            raise ActionError(f"an action is a JSON object by {wanted}: {error}") from None

    def _submit(self, answer: str | None) -> Reply:
        if self._is_ours:
            return self._take("submit" if answer is None else f"submit {answer}")
        return Reply("", self._total or 0.0)  # the agent has had enough

    def close(self) -> None:
        """End the episode and the session. Idempotent."""
        if not self._calls.forked:
            self._calls.cut()
            self._session.close()


def _task(above: str, told: dict[str, Any], place: dict[str, Any]) -> Task:
    name = f"{above}{told.get('id', told.get('task_id', place['index']))}"
    texts = (told[one] for one in _QUERIES if isinstance(told.get(one), str) and told[one].strip())
    return Task(name, next(texts, name), metadata=place)


def _shown(seen: dict[str, Any]) -> str:
    """Return the text of an observation: of its only field, if that is one, else its JSON."""
    fields = {name: one for name, one in seen.items() if name not in _OURS and one is not None}
    first = next(iter(fields.values()), "")
    is_text = isinstance(first, str) and len(fields) < 2
    return first if is_text else msgspec.json.encode(fields).decode()
