"""An environment whose episodes cost nothing: what is left is the runner's own."""

from __future__ import annotations

from dataclasses import replace

from intercode.envs.remote import Elsewhere, Reply
from intercode.envs.traits import SHELL
from intercode.task import Task


class Free(Elsewhere):
    name = "free"
    traits = replace(SHELL, is_remote=True)

    def _begin(self, task: Task, seed: int | None) -> str:
        return task.query

    def _take(self, action: str) -> Reply:
        return Reply(action)

    def _submit(self, answer: str | None) -> Reply:
        return Reply("", 1.0)
