"""An image as the 2023 containers were made of it: prepared once, then started and reset.

Preparing does what a container's first reset did, and brings the files' ages back: the tasks ask
for what was changed "in the last week", and the recordings are from May and June 2023.
"""

from __future__ import annotations

import shlex
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone

from intercode.errors import ImageError
from intercode.paper import git_status
from intercode.paper.bash import LIMITS, MALFORMED, OUTPUT_LIMIT, run, variables
from intercode.paper.git_status import IGNORED, Index, Pair
from intercode.sandbox.base import Completed, FileType, Provider, Sandbox, Snapshot

RECORDED = datetime(2023, 6, 1, tzinfo=timezone.utc).timestamp()
"""When the runs were recorded, for the ages of files. Files newer than that are as old as the
image: brand-new, as they were in 2023."""

_BASE_LOGS = ("bootstrap.log", "wtmp", "btmp")
"""Logs of the base image, which was weeks old; the others were as old as the image."""

_TYPES: Mapping[bytes, FileType] = {b"f": "file", b"l": "symlink"}


def _listing() -> list[str]:
    pruned = [word for name in sorted(IGNORED) for word in ("-o", "-path", f"/{name}")]
    tests = ["(", *pruned[1:], "-o", "-name", ".git", ")", "-prune"]
    form = "%y %m %T@ %p\\0"
    return ["find", "/", "-mindepth", "1", "-xdev", *tests, "-o", "-printf", form]


@dataclass(frozen=True, slots=True)
class _Entry:
    kind: bytes
    mode: int
    mtime: float
    path: str
    """Without the leading slash."""


class PaperImage:
    """Starts sandboxes as a 2023 reset left a container. Thread-safe.

    Args:
        provider: Where sandboxes come from.
        image: The image's name.
    """

    def __init__(self, provider: Provider, image: str) -> None:
        self.name = image
        self._provider = provider
        self._lock = threading.Lock()
        self._prepared: tuple[Snapshot, Index] | None = None

    def start(self) -> Sandbox:
        """A fresh sandbox.

        Raises:
            SandboxError, ImageError: As `Provider.start` does.
        """
        snapshot, _ = self._ready()
        return self._provider.start(snapshot, LIMITS)

    def status(self, sandbox: Sandbox) -> list[Pair]:
        """What the reward read of ``git status --short`` in a sandbox that `start` gave."""
        _, index = self._ready()
        lines = git_status.status(index, sandbox.changes())
        return git_status.pairs(git_status.short(lines))

    def close(self) -> None:
        """Free what preparing stored. Idempotent."""
        with self._lock:
            if self._prepared is not None:
                self._prepared[0].delete()
            self._prepared = None

    def _ready(self) -> tuple[Snapshot, Index]:
        with self._lock:
            if self._prepared is None:
                sandbox = self._provider.start(self.name, LIMITS)
                try:
                    index = prepare(sandbox, variables("", self.name).get("script"))
                    self._prepared = sandbox.snapshot(), index
                finally:
                    sandbox.close()
            return self._prepared


def prepare(sandbox: Sandbox, script: str | None = None) -> Index:
    """Make a started image what a container was after its first reset; its tracked files."""
    if script:
        _add_script(sandbox, script)
    entries = _entries(sandbox)
    index = Index(
        {
            entry.path: (kind, kind == "file" and bool(entry.mode & 0o100))
            for entry in entries
            if (kind := _TYPES.get(entry.kind)) is not None
        }
    )
    # `git clean -fd` takes what holds nothing tracked, even /tmp and /mnt. It is not said of a
    # mount point, which cannot be removed.
    empty = [e.path for e in entries if e.kind == b"d" and e.path not in index.directories]
    if empty:
        deepest_first = sorted(empty, key=lambda path: path.count("/"), reverse=True)
        sandbox.exec(["rmdir", "--", *(f"/{path}" for path in deepest_first)])
    _bring_ages_back(sandbox, entries, index)
    return index


def _add_script(sandbox: Sandbox, name: str) -> None:
    """The images held, in ``/``, the script that had made their file system.

    It is seen wherever a task's ``*.sh`` lost its quotes. What it says is never shown, its size
    sometimes: 60 bytes for the fourth, just below 4 KiB for the first.
    """
    size = 60 if name.endswith("_4.sh") else 4050
    head = "#!/bin/bash\n# stands for the script of the release\n"
    text = head + "#" * (size - len(head) - 1) + "\n"
    if not sandbox.exec(["test", "-e", f"/{name}"]).ok:
        sandbox.write_file(f"/{name}", text.encode(), 0o755)


def _entries(sandbox: Sandbox) -> list[_Entry]:
    done = sandbox.exec(_listing(), timeout=60, output_limit=OUTPUT_LIMIT)
    _must_succeed(done, "its files cannot be listed")
    entries = []
    for line in done.stdout.split(b"\0")[:-1]:
        kind, mode, mtime, name = line.split(b" ", 3)
        path = name.decode("utf-8", "surrogateescape").lstrip("/")
        if git_status.seen_by_git(path):
            entries.append(_Entry(kind, int(mode, 8), float(mtime), path))
    return entries


def _bring_ages_back(sandbox: Sandbox, entries: list[_Entry], index: Index) -> None:
    now = _plain_moment(time.time())
    paths: dict[int, list[str]] = defaultdict(list)
    for entry in entries:
        if entry.kind == b"f" or (entry.kind == b"d" and entry.path in index.directories):
            age = max(0.0, RECORDED - entry.mtime)
            paths[int(now - age)].append(f"/{entry.path}")
    for moment, names in sorted(paths.items()):
        done = sandbox.exec(["touch", "-h", "-d", f"@{moment}", "--", *names])
        _must_succeed(done, "the times of its files cannot be set")
    keep = [word for name in _BASE_LOGS for word in ("!", "-name", name)]
    old = [word for name in _BASE_LOGS for word in ("-o", "-name", name)][1:]
    # An image without logs is none of the tasks'.
    sandbox.exec(["find", "/var/log", *keep, "-exec", "touch", "-h", "{}", "+"])
    sandbox.exec(
        ["find", "/var/log", "(", *old, ")", "-exec", "touch", "-h", "-d", "40 days ago", "{}", "+"]
    )


def _plain_moment(now: float) -> float:
    """The last moment whose day, hour and minute are three different numbers of two digits.

    A date counts as words in the reward, and ``Nov 21 00:00`` has one fewer than any recorded.
    """
    for minutes in range(60):
        moment = now - 60 * minutes
        words = time.strftime("%d %H %M", time.gmtime(moment)).split()
        if len(set(words)) == 3 and words[0] >= "10":
            return moment
    return now


def _must_succeed(done: Completed, problem: str) -> None:
    if not done.ok:
        reason = done.stderr.decode("utf-8", "replace").strip()
        raise ImageError(f"the image cannot be used for the 2023 protocol: {problem}: {reason}")


def md5sum(sandbox: Sandbox, path: str) -> str:
    """The text of ``md5sum PATH`` in ``/``, with the path as git (and the reward) mangled it."""
    try:
        words = shlex.split(f"md5sum {path}")
    except ValueError:
        return MALFORMED
    argv = tuple(word.encode("utf-8", "surrogateescape") for word in words)
    return run(sandbox, argv, variables("", "")).text
