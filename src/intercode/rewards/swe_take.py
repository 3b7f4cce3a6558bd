"""Taking an agent's work over into a sandbox where it has never been.

Only what lies in the repository, and counts there (`Plan.takes`), is carried: files, links, their
modes. It is read and written through the sandboxes' own interfaces; nothing that the agent left is
run for it but ``readlink``, once, which can but lie about the agent's own links.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from intercode.errors import OutputLimitError, SandboxTimeoutError
from intercode.rewards.swe_plan import Plan
from intercode.sandbox.base import MIB, Change, Completed, Sandbox

MOST_FILES = 20_000
LARGEST = 64 * MIB
MOST_BYTES = 256 * MIB
_SUSPECT = re.compile(rb"\b(_?pytest|unittest|_getframe|gc\.get_\w+|settrace|setprofile)\b")
_SHOWN = 20
_SECONDS = 120.0
_SHELL = ("/bin/bash", "--norc", "--noprofile", "-c")
_LINK = """
while IFS= read -rd '' target && IFS= read -rd '' path; do
    ln -sT -- "$target" "$path" && printf '%s\\0' "$path"
done
"""


@dataclass(slots=True)
class Taken:
    """What was carried over, and what was not."""

    left_out: list[str] = field(default_factory=list)
    """Of the paths that do not count, or could not be carried, the first few."""
    too_much: bool = False
    """More was changed than is carried: nothing was."""
    suspect: list[str] = field(default_factory=list)
    """Modules in which something is named that runs tests; few fixes have a reason to."""

    def leave(self, path: str) -> None:
        """Remember a path that was not carried."""
        if len(self.left_out) < _SHOWN:
            self.left_out.append(path)


def take_over(agent: Sandbox, fresh: Sandbox, plan: Plan) -> Taken:
    """Make the changes of one sandbox's repository in another's.

    Raises:
        SandboxError: One of them failed.
    """
    taken = Taken()
    changes = list(_counted(agent.changes(), plan, taken))
    size = sum(change.size for change in changes if change.size <= LARGEST)
    if len(changes) > MOST_FILES or size > MOST_BYTES:
        taken.too_much = True
        return taken
    folders = [change for change in changes if change.type == "dir" and change.kind != "deleted"]
    others = [change for change in changes if change.type != "dir" or change.kind == "deleted"]
    # What has another type now must go first. A folder goes only if nothing is left in it: what
    # does not count stays, and so do the folders that it is in.
    _each(fresh, ["rm", "-f", "--"], [c.path for c in changes if c.content_changed])
    _each(fresh, ["rmdir", "--"], [c.path for c in reversed(others) if c.content_changed])
    _each(fresh, ["mkdir", "-p", "--"], [c.path for c in folders])
    for change in others:
        if change.kind != "deleted" and change.type == "file" and change.content_changed:
            _carry(agent, fresh, change, taken)
    modes = [change for change in others if not change.content_changed]
    for mode in sorted({change.mode for change in modes if change.type == "file"}):
        paths = [change.path for change in modes if change.mode == mode]
        _each(fresh, ["chmod", f"{mode & 0o777:o}", "--"], paths)
    # Links last: no file is written through one.
    links = [c for c in others if c.type == "symlink" and c.kind != "deleted" and c.content_changed]
    _link(agent, fresh, [change.path for change in links], taken)
    return taken


def _counted(changes: Iterable[Change], plan: Plan, taken: Taken) -> Iterable[Change]:
    prefix = f"{plan.directory}/"
    for change in changes:
        if change.path.startswith(prefix):
            if plan.takes(change.path[len(prefix) :]):
                yield change
            elif change.type != "dir" and "/.git/" not in change.path:
                taken.leave(change.path)


def _carry(agent: Sandbox, fresh: Sandbox, change: Change, taken: Taken) -> None:
    try:
        data = agent.read_file(change.path, LARGEST)
        if change.path.endswith(".py") and _SUSPECT.search(data) and len(taken.suspect) < _SHOWN:
            taken.suspect.append(change.path)
        fresh.write_file(change.path, data, change.mode & 0o777)
    except (OSError, OutputLimitError) as error:  # or where there is a folder that stays
        if isinstance(error, SandboxTimeoutError):
            raise
        taken.leave(change.path)


def _link(agent: Sandbox, fresh: Sandbox, paths: Sequence[str], taken: Taken) -> None:
    if not paths:
        return
    read = _on_all(agent, ["readlink", "-z", "--"], paths, output_limit=MOST_BYTES)
    targets = read.stdout.split(b"\0")[:-1]
    pairs = b""
    if read.ok and len(targets) == len(paths):
        known = zip(targets, map(os.fsencode, paths), strict=True)
        pairs = b"".join(target + b"\0" + path + b"\0" for target, path in known)
    argv = [*_SHELL, _LINK]
    made = fresh.exec(argv, stdin=pairs, cwd="/", timeout=_SECONDS, output_limit=MOST_BYTES)
    done = {os.fsdecode(path) for path in made.stdout.split(b"\0")}
    for path in paths:
        if path not in done:
            taken.leave(path)


def _each(sandbox: Sandbox, command: Sequence[str], paths: Sequence[str]) -> None:
    """Run a command on paths; where it does not apply to one, it does nothing."""
    if paths:
        _on_all(sandbox, command, paths)


def _on_all(
    sandbox: Sandbox,
    command: Sequence[str],
    paths: Sequence[str],
    output_limit: int | None = None,
) -> Completed:
    listed = b"".join(os.fsencode(path) + b"\0" for path in paths)
    # In the root: an agent may have removed the folder in which programs start otherwise.
    return sandbox.exec(
        ["xargs", "-0", *command],
        stdin=listed,
        cwd="/",
        timeout=_SECONDS,
        output_limit=output_limit,
    )
