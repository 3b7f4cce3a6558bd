"""The outcome of gold (the reference solution) as data, for operators who export tasks.

An outcome contains the solution, so an agent must never read it.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from intercode.envs.file_changes import presence
from intercode.episode import ENDED, decode, encode
from intercode.errors import RewardError, TaskError
from intercode.rewards.answer_types import last_output
from intercode.rewards.gold import TROUBLES, differing_paths
from intercode.task import Task
from intercode_sandbox.base import Change, FileType, SandboxBackend
from intercode_sandbox.host_files import sha256

_TYPES: Mapping[int, FileType] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "dir",
    stat.S_IFLNK: "symlink",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
}


@dataclass(frozen=True, slots=True)
class GoldOutcome:
    """The effect of a task's first gold on a workspace of the task.

    The outcome reveals the solution.
    """

    changes: tuple[Change, ...]
    """The paths that gold changed, sorted, each compared with the workspace that an agent receives.
    Empty if the workspace is a database."""
    contents: Mapping[str, bytes] = field(repr=False)
    """Path → content of each changed regular file, or target of each changed symlink."""
    output: str
    """The exact output of gold's last action; empty if no action ran. Each reward defines its own
    comparison: `intercode.rewards.answer_types.normalise` makes two outputs comparable."""
    answer: str | None = None
    """The answer that gold submits, for instance a flag."""

    def sha256(self, path: str) -> str:
        """Return the hash that ``sha256sum`` prints for a file, or for a symlink's target.

        Raises:
            KeyError: Gold changed no file and no symlink at that path.
        """
        return sha256(self.contents[path])

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types, without contents: each change has a ``sha256`` of its content.

        The ``sha256`` replaces `Change.digest`, and is empty for a path without content.
        """
        rows = [
            {
                **{name: value for name, value in asdict(change).items() if name != "digest"},
                "sha256": self.sha256(change.path) if change.path in self.contents else "",
            }
            for change in self.changes
        ]
        return {"changes": rows, "output": self.output, "answer": self.answer}


def play_gold(env: Any, task: Task) -> GoldOutcome:
    """Run a task's gold, and return the outcome.

    Args:
        env: An `InterCodeEnv` for this purpose, whose only task is `task`.
        task: The task.

    Raises:
        TaskError: The task has no gold.
        RewardError: Gold exceeded a limit, or ended its own workspace.
    """
    if not task.gold:
        raise TaskError(f"task {task.task_id!r} has no 'gold', so its expected outcome is unknown")
    *actions, submission = env.solution(task)
    env.max_turns = len(actions) + 1
    env.reset()
    workspace = env.workspace
    sandbox = workspace if isinstance(workspace, SandboxBackend) else None
    initial_changes = _changes(sandbox)
    for action in actions:
        env.step(action)
        _refuse_trouble(task, env.episode.turns[-1].info, action)
    workspace.kill()
    final_changes = _changes(sandbox)
    changes, contents = [], {}
    if sandbox is not None:
        paths = sorted(differing_paths(initial_changes, final_changes))
        changes = [
            _compare_change(sandbox, path, initial_changes.get(path), final_changes.get(path))
            for path in paths
        ]
        contents = {
            change.path: content
            for change in changes
            if (content := _content(sandbox, change)) is not None
        }
    answer = submission.partition(" ")[2] or None
    return GoldOutcome(tuple(changes), contents, last_output(env.episode) or "", answer)


def _refuse_trouble(task: Task, info: Mapping[str, Any], action: str) -> None:
    descriptions = {
        "timed_out": "ran into the time limit",
        ENDED: "ended its own sandbox",
        **TROUBLES,
    }
    for name, description in descriptions.items():
        if info.get(name):
            raise RewardError(f"task {task.task_id!r}: gold {description}: {action}")


def _changes(sandbox: SandboxBackend | None) -> dict[str, Change]:
    return {} if sandbox is None else {change.path: change for change in sandbox.changes()}


def _compare_change(
    sandbox: SandboxBackend, path: str, initial_change: Change | None, final_change: Change | None
) -> Change:
    """Return the change that gold made to a path.

    Args:
        sandbox: The sandbox in which gold ran.
        path: The path.
        initial_change: The path's difference from the image before gold ran; None: no difference.
        final_change: The path's difference from the image after gold ran; None: no difference.
    """
    change = initial_change or final_change
    assert change is not None  # the caller compares only different states
    was_there, is_there = presence(initial_change, final_change)
    if not is_there:
        return Change(path, "deleted", change.type)
    current_change = final_change or _describe_image_path(sandbox, path)
    has_new_content = (
        current_change.content_changed
        if initial_change is None
        else initial_change.digest != current_change.digest
    )
    return replace(
        current_change, kind="modified" if was_there else "added", content_changed=has_new_content
    )


def _describe_image_path(sandbox: SandboxBackend, path: str) -> Change:
    """Describe a path that the setup changed, and gold restored to the image's state.

    The sandbox's `changes` omits such a path, because the path equals the image's.

    Raises:
        RewardError: The path cannot be read.
    """
    result = sandbox.exec(["stat", "-c", "%f %u %g %s", "--", encode(path)])
    if not result.ok:
        raise RewardError(f"{path} cannot be inspected: {decode(result.stderr).strip()}")
    mode, uid, gid, size = result.stdout.split()
    bits = int(mode, 16)
    kind = _TYPES.get(stat.S_IFMT(bits), "device")
    return Change(path, "modified", kind, stat.S_IMODE(bits), int(uid), int(gid), int(size))


def _content(sandbox: SandboxBackend, change: Change) -> bytes | None:
    if change.kind == "deleted":
        return None
    if change.type == "file":
        try:
            return sandbox.read_file(change.path)
        except PermissionError:  # gold made the file unreadable; `change` already records the mode
            sandbox.exec(["chmod", "u+r", "--", encode(change.path)])
            return sandbox.read_file(change.path)
    if change.type == "symlink":
        return sandbox.exec(["readlink", "-n", "--", encode(change.path)]).stdout
    return None
