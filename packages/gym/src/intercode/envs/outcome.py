"""The outcome of gold as data: for who exports tasks, never for an agent."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from intercode.envs.diffs import presence
from intercode.episode import ENDED, decode, encode
from intercode.errors import RewardError, TaskError
from intercode.rewards.answer import last_output
from intercode.rewards.gold import TROUBLES, differing_paths
from intercode.task import Task
from intercode_sandbox.base import Change, FileType, SandboxBackend
from intercode_sandbox.files import sha256

_TYPES: Mapping[int, FileType] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "dir",
    stat.S_IFLNK: "symlink",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
}


@dataclass(frozen=True, slots=True)
class GoldOutcome:
    """The effect of a task's first gold in a place of the task's. It tells the solution."""

    changes: tuple[Change, ...]
    """The paths that gold changed, sorted, each as compared with the place that an agent is given.
    Empty where a place is a database."""
    contents: Mapping[str, bytes] = field(repr=False)
    """By path, the content of each regular file and the target of each symlink among them."""
    output: str
    """The output of its last action, exactly; empty if there was none. Rewards compare it as they
    say: `intercode.rewards.answer.normalise` makes two outputs comparable."""
    answer: str | None = None
    """The answer that it submits, for instance a flag."""

    def sha256(self, path: str) -> str:
        """Return the hash that ``sha256sum`` prints for a file, or for a symlink's target.

        Raises:
            KeyError: Gold leaves no file and no symlink there.
        """
        return sha256(self.contents[path])

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types, with a ``sha256`` for each change in place of the contents."""
        rows = [
            {
                **{name: value for name, value in asdict(change).items() if name != "digest"},
                "sha256": self.sha256(change.path) if change.path in self.contents else "",
            }
            for change in self.changes
        ]
        return {"changes": rows, "output": self.output, "answer": self.answer}


def played(env: Any, task: Task) -> GoldOutcome:
    """Solve a task by its gold, and look at the outcome.

    Args:
        env: An `InterCodeEnv` for this alone, with this task alone.
        task: The task.

    Raises:
        TaskError: The task has no gold.
        RewardError: Gold ran into a limit, or ended its own place.
    """
    if not task.gold:
        raise TaskError(f"task {task.task_id!r} has no 'gold': what it asks for is not known")
    *actions, last = env.solution(task)
    env.max_turns = len(actions) + 1
    env.reset()
    place = env.place
    sandbox = place if isinstance(place, SandboxBackend) else None
    before = _changes(sandbox)
    for action in actions:
        env.step(action)
        _refuse_trouble(task, env.episode.turns[-1].info, action)
    place.kill()
    after = _changes(sandbox)
    made, contents = [], {}
    if sandbox is not None:
        paths = sorted(differing_paths(before, after))
        made = [_made(sandbox, path, before.get(path), after.get(path)) for path in paths]
        contents = {one.path: data for one in made if (data := _content(sandbox, one)) is not None}
    answer = last.partition(" ")[2] or None
    return GoldOutcome(tuple(made), contents, last_output(env.episode) or "", answer)


def _refuse_trouble(task: Task, info: Mapping[str, Any], action: str) -> None:
    known = {"timed_out": "ran into the time limit", ENDED: "ended its own sandbox", **TROUBLES}
    for name, what in known.items():
        if info.get(name):
            raise RewardError(f"task {task.task_id!r}: gold {what}: {action}")


def _changes(sandbox: SandboxBackend | None) -> dict[str, Change]:
    return {} if sandbox is None else {change.path: change for change in sandbox.changes()}


def _made(
    sandbox: SandboxBackend, path: str, before: Change | None, after: Change | None
) -> Change:
    """Compare a path with what it was before gold, where both are compared with the image."""
    known = before or after
    assert known is not None  # they differ
    was_there, is_there = presence(before, after)
    if not is_there:
        return Change(path, "deleted", known.type)
    now = after or _as_in_the_image(sandbox, path)
    new = now.content_changed if before is None else before.digest != now.digest
    return replace(now, kind="modified" if was_there else "added", content_changed=new)


def _as_in_the_image(sandbox: SandboxBackend, path: str) -> Change:
    """Describe a path that is again as in the image, which `changes` leaves out."""
    done = sandbox.exec(["stat", "-c", "%f %u %g %s", "--", encode(path)])
    if not done.ok:
        raise RewardError(f"{path} cannot be looked at: {decode(done.stderr).strip()}")
    mode, uid, gid, size = done.stdout.split()
    bits = int(mode, 16)
    kind = _TYPES.get(stat.S_IFMT(bits), "device")
    return Change(path, "modified", kind, stat.S_IMODE(bits), int(uid), int(gid), int(size))


def _content(sandbox: SandboxBackend, change: Change) -> bytes | None:
    if change.kind == "deleted":
        return None
    if change.type == "file":
        try:
            return sandbox.read_file(change.path)
        except PermissionError:  # a mode of gold's own making, which is known already
            sandbox.exec(["chmod", "u+r", "--", encode(change.path)])
            return sandbox.read_file(change.path)
    if change.type == "symlink":
        return sandbox.exec(["readlink", "-n", "--", encode(change.path)]).stdout
    return None
