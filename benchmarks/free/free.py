"""An environment whose episodes cost nothing: what is left is the runner's own."""

from __future__ import annotations

from dataclasses import replace

from intercode.envs.remote import RemoteEnvironment, RemoteStepReply
from intercode.envs.traits import SHELL
from intercode.task import Task


class Free(RemoteEnvironment):
    name = "free"
    traits = replace(SHELL, is_remote=True)

    def _begin(self, task: Task, seed: int | None) -> str:
        return task.query

    def _take(self, action: str) -> RemoteStepReply:
        return RemoteStepReply(action)

    def _submit(self, answer: str | None) -> RemoteStepReply:
        return RemoteStepReply("", 1.0)
