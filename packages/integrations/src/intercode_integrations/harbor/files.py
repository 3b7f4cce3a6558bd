"""Tasks that are judged by files and an output: what a solution leaves, as a list of hashes.

What the task's image and setup made counts whole, with whatever is added to it, and so does each
path that gold touches. The rest of the system does not: Harbor's agents install themselves there.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

from intercode.envs.base import InterCodeEnv
from intercode.envs.outcome import GoldOutcome
from intercode.episode import decode, encode
from intercode.errors import SandboxError, TaskError
from intercode.rewards.answer import Answer, normalise
from intercode.task import Task
from intercode_integrations.harbor.writer import ANSWER, TESTS, Judged, check
from intercode_sandbox.base import Change, SandboxBackend
from intercode_sandbox.files import sha256
from intercode_sandbox.images.base import parse
from intercode_sandbox.units import MIB

_SCRATCH = ("/tmp", "/var/tmp", "/dev/shm")
_ALL = "find / -xdev ( -path /proc -o -path /sys -o -path /dev ) -prune -o -printf %y%p\\0"
_MOST = 256 * MIB
_LINE = re.compile(r"(?:[0-9a-f]+ \d+ \d+ |[0-9a-f]{64}  |.* <- )(?P<path>/.*)")
_TYPES = {
    "file": stat.S_IFREG,
    "dir": stat.S_IFDIR,
    "symlink": stat.S_IFLNK,
    "fifo": stat.S_IFIFO,
    "socket": stat.S_IFSOCK,
}


class Files:
    """Makes the checks of files.

    Args:
        env: An environment whose tasks are tried in sandboxes.
    """

    def __init__(self, env: InterCodeEnv[Any]) -> None:
        self._env = env
        self._made: dict[str, dict[str, bool]] = {}

    def judged(self, task: Task) -> Judged:
        """Return the check of a task.

        Raises:
            TaskError: A name of a file cannot be listed.
            RewardError: Gold could not be run.
        """
        outcomes = [self._env.outcome(replace(task, gold=(gold,))) for gold in task.gold]
        counts = [_counts(task, outcome) for outcome in outcomes]
        tests = {"test.sh": check("files.sh"), "list.sh": check("list.sh")}
        with closing(self._env.stage.open(task)) as place:
            own = {c.path: c.type == "dir" for c in place.changes() if c.kind == "added"}
            scope = _scope(task, {**self._of_image(task), **own}, outcomes)
            place.write_file(f"{TESTS}/list.sh", tests["list.sh"])
            listed = _listed(task, place, scope)
        for number, (outcome, answer) in enumerate(zip(outcomes, counts, strict=True)):
            tests[f"gold-{number}/files"] = _left(task, listed, outcome)
            if answer:
                tests[f"gold-{number}/answer"] = sha256(encode(normalise(outcome.output))).encode()
        tests |= scope
        *actions, _ = self._env.solution(task)
        solve, ask = "\n".join(actions), ""
        if any(counts):
            ask = (
                "Write the answer, exactly as a command that finds it prints it, and nothing else, "
                f"to {ANSWER}."
            )
        if counts[0]:
            solve = f"{{\n{solve}\n}} 2>&1 | tee {ANSWER}"
        return Judged(tests, solve, ask)

    def _of_image(self, task: Task) -> dict[str, bool]:
        """Find the paths that were laid over the image's base, and whether each is a folder."""
        stage: Any = self._env.stage
        image = stage.image(task)
        if not (spec := parse(image)).additions:
            return {}
        if image not in self._made:
            base = str(replace(spec, additions=()))
            with closing(stage.provider.start(base)) as below:
                there = _paths(below)
            with closing(stage.provider.start(image)) as whole:
                paths = _paths(whole)
            self._made[image] = {path: paths[path] for path in paths.keys() - there}
        return self._made[image]


def _paths(sandbox: SandboxBackend) -> dict[str, bool]:
    done = sandbox.exec(_ALL.split(), output_limit=_MOST, timeout=120)
    if done.timed_out or done.truncated or not done.stdout:
        raise SandboxError(f"the files of a sandbox cannot be listed: {decode(done.stderr[:500])}")
    rows = decode(done.stdout).split("\0")[:-1]
    return {row[1:]: row[0] == "d" for row in rows}


def _counts(task: Task, outcome: GoldOutcome) -> bool:
    """Tell whether the output counts, as `intercode.rewards.bash` has it."""
    if (answer := Answer.parse(task)) is not None:
        return answer.is_printed
    return bool(normalise(outcome.output)) or not outcome.changes


def _scope(
    task: Task, made: Mapping[str, bool], outcomes: Iterable[GoldOutcome]
) -> dict[str, bytes]:
    """Return the lists for ``list.sh``: of the places that count, and of what does not there."""
    known = {path: folder for path, folder in made.items() if not _scratch(path)}
    changes = [c for outcome in outcomes for c in outcome.changes if _is_asked_for(task, c.path)]
    known |= {c.path: c.type == "dir" for c in changes if c.kind == "added"}
    trees = _tops(path for path, folder in known.items() if folder)
    every = known.keys() | {change.path for change in changes}
    paths = sorted(path for path in every if not _below(path, trees))
    for path in (*trees, *paths):
        if "\n" in path or "\\" in path:
            raise TaskError(f"task {task.task_id!r}: the name {path!r} cannot be written as a line")
    lists = {"trees": sorted(trees), "paths": paths, "free": task.may_change}
    return {name: encode("".join(f"{row}\n" for row in rows)) for name, rows in lists.items()}


def _listed(task: Task, place: SandboxBackend, scope: Mapping[str, bytes]) -> dict[str, set[str]]:
    """List what an agent is given: path → its lines."""
    for name, rows in scope.items():
        place.write_file(f"{TESTS}/{name}", rows)
    argv = ["/bin/bash", f"{TESTS}/list.sh", TESTS]
    done = place.exec(argv, output_limit=_MOST, timeout=120)
    if not done.ok or done.truncated:
        raise SandboxError(f"the files of a task cannot be listed: {decode(done.stderr)}")
    found: dict[str, set[str]] = {}
    for line in decode(done.stdout).split("\n")[:-1]:
        if (match := _LINE.fullmatch(line)) is None:
            raise TaskError(f"task {task.task_id!r}: a name cannot be written as a line: {line!r}")
        found.setdefault(match["path"], set()).add(line)
    return found


def _left(task: Task, listed: Mapping[str, set[str]], outcome: GoldOutcome) -> bytes:
    """Return the list as it is when gold has run."""
    lines = dict(listed)
    for change in outcome.changes:
        if _is_asked_for(task, change.path) and not task.expects(change.path):
            lines[change.path] = set(_lines(task, change, outcome))
    return b"".join(sorted(encode(f"{line}\n") for rows in lines.values() for line in rows))


def _lines(task: Task, change: Change, outcome: GoldOutcome) -> list[str]:
    """Write a path as ``list.sh`` does."""
    if change.kind == "deleted":
        return []
    if change.type not in _TYPES or "\n" in change.path or "\\" in change.path:
        raise TaskError(f"task {task.task_id!r}: {change.path!r} ({change.type}) has no such line")
    mode = _TYPES[change.type] | change.mode
    lines = [f"{mode:x} {change.uid} {change.gid} {change.path}"]
    if change.type == "file":
        lines.append(f"{outcome.sha256(change.path)}  {change.path}")
    if change.type == "symlink":
        lines.append(f"{decode(outcome.contents[change.path])} <- {change.path}")
    return lines


def _is_asked_for(task: Task, path: str) -> bool:
    """Tell whether a path counts that gold changed: scratch does if the task speaks of it."""
    if not (top := _scratch(path)):
        return True
    return "/".join(path.split("/")[: top.count("/") + 2]) in task.query


def _scratch(path: str) -> str:
    return next((top for top in _SCRATCH if path.startswith(f"{top}/")), "")


def _tops(paths: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for path in sorted(paths):
        if not _below(path, found):
            found.add(path)
    return found


def _below(path: str, trees: Iterable[str]) -> bool:
    parts = path.split("/")
    return any("/".join(parts[:depth]) in trees for depth in range(2, len(parts) + 1))
