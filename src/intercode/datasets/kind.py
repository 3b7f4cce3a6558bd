"""Which environment tasks are for, from what they look like."""

from __future__ import annotations

import re
from collections.abc import Sequence

from intercode.task import Task

_SWE = {"base_commit", "FAIL_TO_PASS", "test_patch", "repository"}
_PYTHON = {"cases", "stdio", "entry_point"}
_CTF = {"service", "subtasks", "assets", "released_setup"}
_FLAG = re.compile(r"\w+\{[^{}\s]+\}")


def environment_of(tasks: Sequence[Task]) -> str:
    """The name of the environment that these tasks are for: ``bash`` if nothing says another."""
    fields = {name for task in tasks for name in task.metadata}
    if any(task.db for task in tasks):
        return "sql"
    if fields & _SWE:
        return "swe"
    if any(task.tests for task in tasks) or fields & _PYTHON:
        return "python"
    flags = all(_FLAG.fullmatch(gold) for task in tasks for gold in task.gold)
    if fields & _CTF or (flags and any(task.gold for task in tasks)):
        return "ctf"
    return "bash"
