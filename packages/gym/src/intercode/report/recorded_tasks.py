"""The tasks of recorded runs, which the viewer shows beside the episodes.

A run folder identifies its tasks, but does not contain them. `RecordedTasks` loads them again. A
run folder may come from a stranger, so only InterCode's own datasets are loaded unconditionally. A
data file is read only if the caller trusts the record, and a loader of the user is never called.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from intercode import datasets
from intercode.datasets.files import load_cached_file
from intercode.errors import InterCodeError, TaskNotFoundError
from intercode.records import read_manifest
from intercode.registry import parse_scheme
from intercode.spec import recorded_options
from intercode.task import Dataset, Task
from intercode.trust import effects
from intercode_sandbox.units import MIB
from intercode_sandbox.user_code import is_reference

MAX_COUNT = 10_000
"""The maximum number of generated tasks of all runs together. A record names the number of its
tasks, and the records of a stranger could occupy this machine for hours."""
_MAX_FILE_BYTES = 64 * MIB
_GENERATED = re.compile(r"generated-\w+(?::|$)")
_MIN_CHARGE = 500
"""The minimum number of tasks that a generated dataset counts for: the default `count`. The minimum
bounds the number of databases that are written for the tasks."""
_COUNT = re.compile(r"\bcount=([0-9]+)")
_DIFFERENT = "The tasks of {} are not those of the run: they have changed since."
_UNTRUSTED = (
    "The run names {} as its tasks. By itself, the page reads only InterCode's own datasets, "
    "because a run folder may come from a stranger. This command also shows files, setup and gold:"
)
_CODE = "The tasks of the run come from {}, which is code. The viewer never runs the code of a run."


@dataclass(frozen=True, slots=True)
class RecordedTask:
    """A task of a recorded run, or the reason why the viewer does not have the task."""

    task: Task | None
    reason: str = ""
    command: str = ""
    """A command that shows the missing task; empty if there is none."""
    needs_trust: bool = False
    """Whether the task is missing because the caller does not trust the record."""


class RecordedTasks:
    """The tasks of recorded runs. Each dataset is loaded at most once.

    Args:
        trust: Whether to read the data files that the records name.
    """

    def __init__(self, *, trust: bool = False) -> None:
        self._trust = trust
        self._datasets: dict[str, Dataset | RecordedTask] = {}
        self._generated_count = 0

    def find(self, folder: Path, manifest: Mapping[str, Any], task_id: str) -> RecordedTask:
        """Return a task of a run.

        Args:
            folder: The run's folder, for messages.
            manifest: The run's ``run.json``.
            task_id: The task's id.
        """
        options = recorded_options(manifest)
        facts = manifest.get("dataset") or {}
        data = options.get("data") or options.get("env") or facts.get("name")
        names = ("split", "reviewed", "secret")
        source = {"data": data, **{name: options.get(name) for name in names}}
        key = repr((source, manifest.get("seed"), facts.get("digest")))
        if key not in self._datasets:
            self._datasets[key] = self._load(manifest, source)
        dataset = self._datasets[key]
        if isinstance(dataset, RecordedTask):
            command = shlex.join(["intercode", "view", str(folder), "--trust"])
            return replace(dataset, command=command) if dataset.needs_trust else dataset
        try:
            return RecordedTask(dataset.by_id(task_id))
        except (TaskNotFoundError, ValueError) as error:
            return RecordedTask(None, f"{error}.")

    def _load(
        self, manifest: Mapping[str, Any], source: Mapping[str, Any]
    ) -> Dataset | RecordedTask:
        """Return the dataset of a run, or the reason why it is not loaded."""
        data, split = source["data"], source["split"]
        if not isinstance(data, str):
            return RecordedTask(None, "The record of the run does not name its tasks.")
        if _GENERATED.match(data):
            count = _COUNT.search(data)
            digits = count[1].lstrip("0")[:6] if count else ""
            charge = max(int(digits or "0"), _MIN_CHARGE)
            if self._generated_count + charge > MAX_COUNT:
                return RecordedTask(
                    None,
                    f"The page generates at most {MAX_COUNT:,} tasks, without those of {data}.",
                )
            self._generated_count += charge
        is_own_dataset = not effects({name: source[name] for name in ("data", "split")})
        if not is_own_dataset and (is_reference(data) or parse_scheme(data) is not None):
            return RecordedTask(None, _CODE.format(data))
        if not is_own_dataset and not self._trust:
            return RecordedTask(None, _UNTRUSTED.format(data), needs_trust=True)
        try:
            if not is_own_dataset:
                # A pipe would block, and a device has no end.
                if not Path(data).is_file() or Path(data).stat().st_size > _MAX_FILE_BYTES:
                    raise ValueError(
                        f"{data} is not a file of at most {_MAX_FILE_BYTES // MIB} MiB"
                    )
                dataset = load_cached_file(data)
                dataset = dataset if split is None else dataset.split(split)
            elif source["reviewed"]:
                dataset = datasets.load(data, split, reviewed=True)
            else:
                secret = str(source["secret"] or "")
                dataset = datasets.load_seeded(data, int(manifest.get("seed") or 0), secret, split)
        except (InterCodeError, ValueError, TypeError, OSError) as error:
            return RecordedTask(None, f"The tasks of the run cannot be read: {error}")
        digest = (manifest.get("dataset") or {}).get("digest")
        if dataset.digest != digest:
            return RecordedTask(None, _DIFFERENT.format(data))
        return dataset


def task_finder(
    folders: Sequence[Path], *, trust: bool = False
) -> Callable[[int, str], RecordedTask]:
    """Return a function that finds the task of an episode in some runs.

    Args:
        folders: The folders of the runs.
        trust: As for `RecordedTasks`.

    Returns:
        A function of a run's number and a task's id.
    """
    tasks, manifests = RecordedTasks(trust=trust), [read_manifest(folder) for folder in folders]
    return lambda run, task_id: tasks.find(folders[run], manifests[run], task_id)
