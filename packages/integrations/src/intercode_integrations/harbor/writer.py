"""The writer of Harbor's task folders: their files, and the facts in their ``task.toml``.

Gold is only in the folders ``solution`` and ``tests``. Harbor copies these folders into the sandbox
only after the agent has ended, or for its oracle.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from intercode.envs.dockerfile_export import WorkspaceRecipe
from intercode.errors import TaskError, UsageError
from intercode.task import Task
from intercode_sandbox.host_files import sha256
from intercode_sandbox.units import MIB

ANSWER = "/logs/agent/answer.txt"
"""Path in the sandbox of the answer, for a task that requires an answer."""
HARBOR_FOLDERS = ("/tests", "/solution")
"""Folders of a sandbox that Harbor's runner uses."""
TESTS, SOLUTION = HARBOR_FOLDERS
_ORGANISATION = "intercode"
_CHECKS = Path(__file__).parent / "checks"
_AGENT_SECONDS, _VERIFIER_SECONDS = 900.0, 600.0


@dataclass(frozen=True, slots=True)
class TaskCheckFiles:
    """The files of a task folder that depend on the environment's reward."""

    tests: Mapping[str, bytes]
    """File name in the folder ``tests`` → content, including ``test.sh``."""
    solution_script: str
    """Shell commands of the oracle, without the line ``#!/bin/bash``."""
    prompt: str = ""
    """Sentence that asks for an answer; empty if the task requires none."""


def read_check(name: str) -> bytes:
    """Return the content of a script of the folder ``checks``, which scores in the sandbox."""
    return (_CHECKS / name).read_bytes()


def folder_name(task: Task) -> str:
    """Return a name for a task's folder that is valid in Harbor and differs for each task."""
    slug = re.sub(r"[^A-Za-z0-9_-]+", "-", task.task_id).strip("-_")
    return slug if slug == task.task_id else f"{slug or 'task'}-{sha256(task.task_id)[:8]}"


def task_id(metadata: Mapping[str, Any], file: Path) -> tuple[str, str]:
    """Return the names of the environment and the task from which a folder was exported.

    Args:
        metadata: The metadata in the folder's ``task.toml``.
        file: The path of the ``task.toml``, for messages.

    Raises:
        UsageError: The folder was not exported from a task. Another reason is an environment name
            that could load code, because the folder may come from a stranger.
    """
    origin = metadata.get(_ORGANISATION)
    if not isinstance(origin, Mapping) or not {"environment", "task_id"} <= origin.keys():
        raise UsageError(
            f"{file} does not name an InterCode task: export it with 'intercode datasets export', "
            "or omit --ek tasks=…"
        )
    # A path could name a file or a folder with code.
    if not re.fullmatch(r"[\w-]+", env_name := str(origin["environment"])):
        raise UsageError(f"{file} must name an environment, not {env_name!r}")
    return env_name, str(origin["task_id"])


def write(
    folder: Path, environment: str, task: Task, recipe: WorkspaceRecipe, checks: TaskCheckFiles
) -> None:
    """Write the folder of a task.

    Raises:
        UsageError: The folder already exists.
        TaskError: The task has a property that a task folder cannot express.
    """
    if recipe.service is not None:
        raise TaskError(
            f"task {task.task_id!r} has a service with a secret beside the agent: a Harbor folder "
            "with a Dockerfile cannot contain it"
        )
    if folder.exists():
        raise UsageError(f"{folder} exists already: export to another folder, or remove it")
    files = {
        "instruction.md": f"{task.query}\n{checks.prompt and f'{chr(10)}{checks.prompt}{chr(10)}'}",
        "task.toml": _toml(environment, task, recipe),
        "solution/solve.sh": f"#!/bin/bash\n{checks.solution_script}\n",
    }
    contents = {name: text.encode("utf-8", "surrogateescape") for name, text in files.items()}
    contents |= {f"tests/{name}": data for name, data in checks.tests.items()}
    for name, data in contents.items():
        file_path = folder / name
        file_path.parent.mkdir(parents=True, exist_ok=True)
        file_path.write_bytes(data)
        file_path.chmod(0o755 if name.endswith(".sh") else 0o644)
    recipe.write(folder / "environment")


def _toml(environment: str, task: Task, recipe: WorkspaceRecipe) -> str:
    """Return the text of ``task.toml``; JSON strings, numbers and lists are valid TOML."""
    sections: dict[str, dict[str, Any]] = {
        "task": {"name": f"{_ORGANISATION}/{folder_name(task)}", "keywords": list(task.tags)},
        f"metadata.{_ORGANISATION}": {"environment": environment, "task_id": task.task_id},
        "agent": {"timeout_sec": _AGENT_SECONDS},
        "verifier": {"timeout_sec": _VERIFIER_SECONDS},
        "environment": {
            "network_mode": "public" if recipe.network else "no-network",
            "memory_mb": recipe.limits.memory // MIB,
            "storage_mb": recipe.limits.disk // MIB,
        },
    }
    lines = ['schema_version = "1.4"']
    for section_name, section_values in sections.items():
        lines += ["", f"[{section_name}]"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in section_values.items()]
    return "\n".join([*lines, ""])
