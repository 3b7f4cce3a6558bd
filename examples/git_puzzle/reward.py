"""Rewards for branches and tags, read from git's own files: none of the agent's code is run."""

from intercode import Episode, OutputLimitError, Score, Task
from intercode_sandbox import SandboxBackend

GIT = "/srv/recipes/.git"


def score(task: Task, episode: Episode, sandbox: SandboxBackend) -> Score:
    """1.0 for the right commit, 0.5 for one next to it."""
    found = commit_of(sandbox, task.metadata["ref"])
    if found == task.metadata["commit"]:
        return Score(1.0)
    near = found in task.metadata.get("near", [])
    return Score(0.5 if near else 0.0, detail={"found": found})


def commit_of(sandbox: SandboxBackend, ref: str) -> str:
    """The hash that a ref has; empty if there is no such ref."""
    if loose := read(sandbox, f"{GIT}/{ref}").strip():
        return loose
    for line in read(sandbox, f"{GIT}/packed-refs").splitlines():
        commit, _, name = line.partition(" ")
        if name == ref:
            return commit
    return ""


def read(sandbox: SandboxBackend, path: str) -> str:
    """A text file; empty if the agent has left nothing that could be read."""
    try:
        return sandbox.read_file(path, limit=100_000).decode(errors="replace")
    except (OSError, OutputLimitError):
        return ""
