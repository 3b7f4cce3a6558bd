"""Checks of exported tasks that are scored by files and output, against a stored list of hashes.

Two kinds of paths count for the score. The first are the folders and files that the task's image
and setup have created, with all later additions. The second are the paths that gold touches. Other
system files do not count, because Harbor's agents install themselves there.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

from intercode.envs.base import InterCodeEnv
from intercode.envs.gold_outcome import GoldOutcome
from intercode.episode import decode, encode
from intercode.errors import SandboxError, TaskError
from intercode.rewards.answer_types import AnswerType, normalise
from intercode.task import Task
from intercode_integrations.harbor.writer import ANSWER, TESTS, TaskCheckFiles, read_check
from intercode_sandbox.base import Change, SandboxBackend
from intercode_sandbox.host_files import sha256
from intercode_sandbox.images.base import parse
from intercode_sandbox.units import MIB

_SCRATCH = ("/tmp", "/var/tmp", "/dev/shm")
_LIST_COMMAND = "find / -xdev ( -path /proc -o -path /sys -o -path /dev ) -prune -o -printf %y%p\\0"
_MAX_LISTING_BYTES = 256 * MIB
_LINE = re.compile(r"(?:[0-9a-f]+ \d+ \d+ |[0-9a-f]{64}  |.* <- )(?P<path>/.*)")
_TYPES = {
    "file": stat.S_IFREG,
    "dir": stat.S_IFDIR,
    "symlink": stat.S_IFLNK,
    "fifo": stat.S_IFIFO,
    "socket": stat.S_IFSOCK,
}


class FileCheckFactory:
    """A factory of file checks for the tasks of an environment.

    Args:
        env: An environment whose tasks run in sandboxes.
    """

    def __init__(self, env: InterCodeEnv[Any]) -> None:
        self._env = env
        self._added_paths: dict[str, dict[str, bool]] = {}

    def make_checks(self, task: Task) -> TaskCheckFiles:
        """Run gold, and return the check that compares files and output with gold's result.

        Raises:
            TaskError: A file name cannot be written as a line of the list.
            RewardError: Gold could not be run.
        """
        outcomes = [self._env.outcome(replace(task, gold=(gold,))) for gold in task.gold]
        output_flags = [_is_output_counted(task, outcome) for outcome in outcomes]
        test_files = {"test.sh": read_check("files.sh"), "list.sh": read_check("list.sh")}
        with closing(self._env.stage.open(task)) as workspace:
            setup_paths = {
                change.path: change.type == "dir"
                for change in workspace.changes()
                if change.kind == "added"
            }
            scope_files = _scope(task, {**self._image_paths(task), **setup_paths}, outcomes)
            workspace.write_file(f"{TESTS}/list.sh", test_files["list.sh"])
            initial_listing = _list_files(task, workspace, scope_files)
        for gold_index, (outcome, is_counted) in enumerate(
            zip(outcomes, output_flags, strict=True)
        ):
            test_files[f"gold-{gold_index}/files"] = _gold_listing(task, initial_listing, outcome)
            if is_counted:
                test_files[f"gold-{gold_index}/answer"] = sha256(
                    encode(normalise(outcome.output))
                ).encode()
        test_files |= scope_files
        *actions, _ = self._env.solution(task)
        solution_script, prompt = "\n".join(actions), ""
        if any(output_flags):
            prompt = (
                "Write the answer, exactly as a command that finds it prints it, and nothing else, "
                f"to {ANSWER}."
            )
        if output_flags[0]:
            solution_script = f"{{\n{solution_script}\n}} 2>&1 | tee {ANSWER}"
        return TaskCheckFiles(test_files, solution_script, prompt)

    def _image_paths(self, task: Task) -> dict[str, bool]:
        """Return the paths that an image's additions created; the value is True for a folder."""
        stage: Any = self._env.stage
        image = stage.image(task)
        if not (spec := parse(image)).additions:
            return {}
        if image not in self._added_paths:
            base_image = str(replace(spec, additions=()))
            with closing(stage.provider.start(base_image)) as base_sandbox:
                base_paths = _list_paths(base_sandbox)
            with closing(stage.provider.start(image)) as full_sandbox:
                paths = _list_paths(full_sandbox)
            self._added_paths[image] = {
                added_path: paths[added_path] for added_path in paths.keys() - base_paths
            }
        return self._added_paths[image]


def _list_paths(sandbox: SandboxBackend) -> dict[str, bool]:
    result = sandbox.exec(_LIST_COMMAND.split(), output_limit=_MAX_LISTING_BYTES, timeout=120)
    if result.timed_out or result.truncated or not result.stdout:
        raise SandboxError(
            f"the files of a sandbox cannot be listed: {decode(result.stderr[:500])}"
        )
    rows = decode(result.stdout).split("\0")[:-1]
    return {row[1:]: row[0] == "d" for row in rows}


def _is_output_counted(task: Task, outcome: GoldOutcome) -> bool:
    """Return whether the output counts for the score, by the rule of `intercode.rewards.bash`."""
    if (answer_type := AnswerType.parse(task)) is not None:
        return answer_type.is_printed
    return bool(normalise(outcome.output)) or not outcome.changes


def _scope(
    task: Task, created_paths: Mapping[str, bool], outcomes: Iterable[GoldOutcome]
) -> dict[str, bytes]:
    """Return the input files of ``list.sh``: trees and paths that count, and patterns that do not.

    Args:
        task: The task.
        created_paths: The paths of image and setup; the value is True for a folder.
        outcomes: The outcomes of all golds.

    Raises:
        TaskError: A path cannot be written as a line.
    """
    counted_paths = {
        path: is_folder for path, is_folder in created_paths.items() if not _scratch_folder(path)
    }
    changes = [
        gold_change
        for outcome in outcomes
        for gold_change in outcome.changes
        if _is_requested(task, gold_change.path)
    ]
    counted_paths |= {
        gold_change.path: gold_change.type == "dir"
        for gold_change in changes
        if gold_change.kind == "added"
    }
    trees = _top_folders(path for path, is_folder in counted_paths.items() if is_folder)
    all_paths = counted_paths.keys() | {change.path for change in changes}
    paths = sorted(path for path in all_paths if not _is_below(path, trees))
    for path in (*trees, *paths):
        if "\n" in path or "\\" in path:
            raise TaskError(f"task {task.task_id!r}: the name {path!r} cannot be written as a line")
    path_lists = {"trees": sorted(trees), "paths": paths, "free": task.may_change}
    return {
        list_name: encode("".join(f"{row}\n" for row in rows))
        for list_name, rows in path_lists.items()
    }


def _list_files(
    task: Task, workspace: SandboxBackend, scope_files: Mapping[str, bytes]
) -> dict[str, set[str]]:
    """Return the output of ``list.sh`` in the workspace before any action: path → its lines."""
    for file_name, content in scope_files.items():
        workspace.write_file(f"{TESTS}/{file_name}", content)
    argv = ["/bin/bash", f"{TESTS}/list.sh", TESTS]
    result = workspace.exec(argv, output_limit=_MAX_LISTING_BYTES, timeout=120)
    if not result.ok or result.truncated:
        raise SandboxError(f"the files of a task cannot be listed: {decode(result.stderr)}")
    lines_by_path: dict[str, set[str]] = {}
    for line in decode(result.stdout).split("\n")[:-1]:
        if (match := _LINE.fullmatch(line)) is None:
            raise TaskError(f"task {task.task_id!r}: a name cannot be written as a line: {line!r}")
        lines_by_path.setdefault(match["path"], set()).add(line)
    return lines_by_path


def _gold_listing(task: Task, listing: Mapping[str, set[str]], outcome: GoldOutcome) -> bytes:
    """Return the output that ``list.sh`` would have after gold, as bytes."""
    lines_by_path = dict(listing)
    for change in outcome.changes:
        if _is_requested(task, change.path) and not task.expects(change.path):
            lines_by_path[change.path] = set(_lines(task, change, outcome))
    return b"".join(
        sorted(encode(f"{line}\n") for path_lines in lines_by_path.values() for line in path_lines)
    )


def _lines(task: Task, change: Change, outcome: GoldOutcome) -> list[str]:
    """Return the lines that ``list.sh`` would print for a path that gold has changed."""
    if change.kind == "deleted":
        return []
    if change.type not in _TYPES or "\n" in change.path or "\\" in change.path:
        raise TaskError(
            f"task {task.task_id!r}: {change.path!r} ({change.type}) cannot be written as a line"
        )
    mode = _TYPES[change.type] | change.mode
    lines = [f"{mode:x} {change.uid} {change.gid} {change.path}"]
    if change.type == "file":
        lines.append(f"{outcome.sha256(change.path)}  {change.path}")
    if change.type == "symlink":
        lines.append(f"{decode(outcome.contents[change.path])} <- {change.path}")
    return lines


def _is_requested(task: Task, path: str) -> bool:
    """Return whether gold's change of a path counts.

    A path in a folder for temporary files counts only if the query names it.
    """
    if not (scratch_folder := _scratch_folder(path)):
        return True
    return "/".join(path.split("/")[: scratch_folder.count("/") + 2]) in task.query


def _scratch_folder(path: str) -> str:
    return next(
        (scratch_folder for scratch_folder in _SCRATCH if path.startswith(f"{scratch_folder}/")), ""
    )


def _top_folders(paths: Iterable[str]) -> set[str]:
    top_paths: set[str] = set()
    for path in sorted(paths):
        if not _is_below(path, top_paths):
            top_paths.add(path)
    return top_paths


def _is_below(path: str, trees: Iterable[str]) -> bool:
    parts = path.split("/")
    return any("/".join(parts[:depth]) in trees for depth in range(2, len(parts) + 1))
