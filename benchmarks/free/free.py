"""An environment whose episodes cost nothing: what is left is the runner's own."""

from __future__ import annotations

from dataclasses import replace

from intercode.envs.remote import RemoteEnvironment, RemoteReply
from intercode.envs.traits import SHELL
from intercode.task import Task


class Free(RemoteEnvironment):
    name = "free"
    traits = replace(SHELL, is_remote=True)

    def _begin(self, task: Task, seed: int | None) -> str:
        return task.query

    def _take(self, action: str) -> RemoteReply:
        return RemoteReply(action)

    def _submit(self, answer: str | None) -> RemoteReply:
        return RemoteReply("", 1.0)
