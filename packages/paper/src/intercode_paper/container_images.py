"""Sandboxes in place of the containers of 2023, and the ``git status`` of their files.

An image is prepared once, so its sandboxes start in the state of a 2023 container after its first
reset. The preparation also restores the ages of files, because tasks ask for files changed "in the
last week". The recordings are from May and June 2023.

The images of 2023 had a git repository in ``/`` that tracked all but the system directories. This
module computes the status from a sandbox's changes, without git. Like git, it ignores empty
directories, times, owners, modes except for the executable bit, sockets and pipes.
"""

from __future__ import annotations

import shlex
import stat
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from intercode.errors import ImageError
from intercode_paper.bash_interpreter import LIMITS, MALFORMED, OUTPUT_LIMIT, run, variables
from intercode_sandbox.base import Change, Completed, FileType, Provider, SandboxBackend, Snapshot

RECORDING_TIME = datetime(2023, 6, 1, tzinfo=UTC).timestamp()
"""The time of the recordings, from which the ages of files count. Newer files get the age 0. They
were created together with the image, as in 2023."""
_BASE_LOGS = ("bootstrap.log", "wtmp", "btmp")
"""Logs of the base image, which was weeks old. All other logs were as old as the image itself."""
_TYPES: Mapping[bytes, FileType] = {b"f": "file", b"l": "symlink"}


def _listing() -> list[str]:
    prune_tests = [word for name in sorted(IGNORED_NAMES) for word in ("-o", "-path", f"/{name}")]
    prune_expression = ["(", *prune_tests[1:], "-o", "-name", ".git", ")", "-prune"]
    output_format = "%y %m %T@ %p\\0"
    return [
        "find",
        "/",
        "-mindepth",
        "1",
        "-xdev",
        *prune_expression,
        "-o",
        "-printf",
        output_format,
    ]


@dataclass(frozen=True, slots=True)
class _FileEntry:
    kind: bytes
    mode: int
    mtime: float
    path: str
    """The path without the leading slash."""


class PaperImage:
    """An image whose sandboxes start in the state of a 2023 container after its first reset.

    Thread-safe.

    Args:
        provider: The provider of sandboxes.
        image: The image's name.
    """

    def __init__(self, provider: Provider, image: str) -> None:
        self.name = image
        self._provider = provider
        self._lock = threading.Lock()
        self._preparation: tuple[Snapshot, TrackedFileIndex] | None = None

    def start(self, network: bool = False) -> SandboxBackend:
        """Start a fresh sandbox.

        Args:
            network: Whether the sandbox has network access.

        Raises:
            SandboxError, ImageError: As for `Provider.start` and `prepare`.
        """
        snapshot, _ = self._prepare_once()
        return self._provider.start(snapshot, LIMITS, network)

    def status(self, sandbox: SandboxBackend) -> list[Pair]:
        """Return the ``git status`` of a sandbox that `start` has started.

        The status has the form in which the 2023 reward parsed it.
        """
        return parse_pairs(self.short_status(sandbox))

    def short_status(self, sandbox: SandboxBackend) -> str:
        """Return the output of ``git status --short`` for a sandbox that `start` has started."""
        _, index = self._prepare_once()
        return format_short(status(index, sandbox.changes()))

    def close(self) -> None:
        """Delete the snapshot of the prepared image. Idempotent."""
        with self._lock:
            if self._preparation is not None:
                self._preparation[0].delete()
            self._preparation = None

    def _prepare_once(self) -> tuple[Snapshot, TrackedFileIndex]:
        with self._lock:
            if self._preparation is None:
                sandbox = self._provider.start(self.name, LIMITS)
                try:
                    index = prepare(sandbox, variables("", self.name).get("script"))
                    self._preparation = sandbox.snapshot(), index
                finally:
                    sandbox.close()
            return self._preparation


def prepare(sandbox: SandboxBackend, script_name: str | None = None) -> TrackedFileIndex:
    """Bring a fresh sandbox into the state of a 2023 container after its first reset.

    Args:
        sandbox: The sandbox.
        script_name: The name of the script that created the image's file system; None without one.

    Returns:
        The tracked files.

    Raises:
        ImageError: The image's files cannot be listed, or their times cannot be set.
        SandboxError: The sandbox failed.
    """
    if script_name:
        _add_script(sandbox, script_name)
    entries = _entries(sandbox)
    index = TrackedFileIndex(
        {
            entry.path: (file_type, file_type == "file" and bool(entry.mode & 0o100))
            for entry in entries
            if (file_type := _TYPES.get(entry.kind)) is not None
        }
    )
    # The first reset called `git clean -fd`, which removes directories without tracked files, even
    # /tmp and /mnt, but not mount points.
    untracked_directories = [
        entry_item.path
        for entry_item in entries
        if entry_item.kind == b"d" and entry_item.path not in index.directories
    ]
    if untracked_directories:
        empty_directories = sorted(
            untracked_directories, key=lambda path: path.count("/"), reverse=True
        )
        sandbox.exec(["rmdir", "--", *(f"/{path}" for path in empty_directories)])
    _restore_ages(sandbox, entries, index)
    return index


def _add_script(sandbox: SandboxBackend, name: str) -> None:
    """Write a substitute for the script that created the image's file system in 2023, if missing.

    The script is in ``/``. The name of the script appears in results of tasks in which ``*.sh`` has
    lost its quotes. No result shows the script's text, but some results show its size. The size was
    60 bytes for the fourth file system, and just below 4 KiB for the first.
    """
    size = 60 if name.endswith("_4.sh") else 4050
    header = "#!/bin/bash\n# stands for the script of the release\n"
    script_text = header + "#" * (size - len(header) - 1) + "\n"
    if not sandbox.exec(["test", "-e", f"/{name}"]).ok:
        sandbox.write_file(f"/{name}", script_text.encode(), 0o755)


def _entries(sandbox: SandboxBackend) -> list[_FileEntry]:
    listing_result = sandbox.exec(_listing(), timeout=60, output_limit=OUTPUT_LIMIT)
    _check_success(listing_result, "its files cannot be listed")
    entries = []
    for line in listing_result.stdout.split(b"\0")[:-1]:
        kind, mode, mtime, raw_path = line.split(b" ", 3)
        path = raw_path.decode("utf-8", "surrogateescape").lstrip("/")
        if is_visible_to_git(path):
            entries.append(_FileEntry(kind, int(mode, 8), float(mtime), path))
    return entries


def _restore_ages(
    sandbox: SandboxBackend, entries: list[_FileEntry], index: TrackedFileIndex
) -> None:
    now = _listing_time(time.time())
    paths_by_time: dict[int, list[str]] = defaultdict(list)
    for entry in entries:
        if entry.kind == b"f" or (entry.kind == b"d" and entry.path in index.directories):
            age = max(0.0, RECORDING_TIME - entry.mtime)
            paths_by_time[int(now - age)].append(f"/{entry.path}")
    for timestamp, paths in sorted(paths_by_time.items()):
        result = sandbox.exec(["touch", "-h", "-d", f"@{timestamp}", "--", *paths])
        _check_success(result, "the times of its files cannot be set")
    other_log_tests = [word for name in _BASE_LOGS for word in ("!", "-name", name)]
    base_log_tests = [word for name in _BASE_LOGS for word in ("-o", "-name", name)][1:]
    # The exit codes are ignored, because images other than those of 2023 may have no logs.
    sandbox.exec(["find", "/var/log", *other_log_tests, "-exec", "touch", "-h", "{}", "+"])
    sandbox.exec(
        [
            "find",
            "/var/log",
            "(",
            *base_log_tests,
            ")",
            "-exec",
            "touch",
            "-h",
            "-d",
            "40 days ago",
            "{}",
            "+",
        ]
    )


def _listing_time(now: float) -> float:
    """Return the last time whose day, hour and minute are three different two-digit words.

    The reward counts the words of a date. ``Nov 21 00:00`` has one word fewer than every
    recorded date. The function searches the last 60 minutes, and otherwise returns `now`, as on
    the days 1 to 9 of a month.
    """
    for minutes in range(60):
        moment = now - 60 * minutes
        date_parts = time.strftime("%d %H %M", time.gmtime(moment)).split()
        if len(set(date_parts)) == 3 and date_parts[0] >= "10":
            return moment
    return now


def _check_success(result: Completed, problem: str) -> None:
    if not result.ok:
        reason = result.stderr.decode("utf-8", "replace").strip()
        raise ImageError(f"the image cannot be used for the 2023 protocol: {problem}: {reason}")


def md5sum(sandbox: SandboxBackend, path: str) -> str:
    """Return the output of ``md5sum PATH`` in ``/``, with the path split as in the 2023 reward."""
    try:
        words = shlex.split(f"md5sum {path}")
    except ValueError:
        return MALFORMED
    argv = tuple(word.encode("utf-8", "surrogateescape") for word in words)
    return run(sandbox, argv, variables("", "")).text


_SYSTEM = """
bin boot dev etc home lib media opt proc root run sbin srv sys usr var .dockerenv
"""
IGNORED_NAMES = frozenset(_SYSTEM.split())
"""Names in ``/`` that the ``.gitignore`` in the images of 2023 listed."""
Pair = tuple[str, str]
"""Type: a path and its status code, in the order that the 2023 reward used."""


@dataclass(frozen=True, slots=True)
class TrackedFileIndex:
    """The tracked files of a prepared image, and their directories."""

    files: Mapping[str, tuple[FileType, bool]]
    """Path without the leading slash → the file's type, and whether its owner may execute it."""
    directories: frozenset[str] = field(init=False)
    """All directories that contain a tracked file, directly or in a subdirectory."""

    def __post_init__(self) -> None:
        ancestors = {directory for path in self.files for directory in parents(path)}
        object.__setattr__(self, "directories", frozenset(ancestors))


def parents(path: str) -> list[str]:
    """Return the parent directories of a relative path, from the highest to the lowest.

    >>> parents("a/b/c")
    ['a', 'a/b']
    """
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


def is_visible_to_git(path: str) -> bool:
    """Return whether git considers a relative path: it is not ignored, and not within ``.git``."""
    parts = path.split("/")
    return parts[0] not in IGNORED_NAMES and ".git" not in parts


def status(index: TrackedFileIndex, changes: Iterable[Change]) -> list[tuple[str, str]]:
    """Return the lines of ``git status --short`` as pairs of code and path.

    The paths are not quoted, and untracked directories end with ``/``.

    Args:
        index: The tracked files.
        changes: All differences of the sandbox from the image of `index`.
    """
    tracked_lines: list[tuple[str, str]] = []
    untracked_paths: set[str] = set()
    for change in changes:
        path = change.path.lstrip("/")
        if not is_visible_to_git(path):
            continue
        tracked_file = index.files.get(path)
        if tracked_file is None:
            display_path = _untracked_path(index, path)
            if display_path and change.kind != "deleted" and change.type in ("file", "symlink"):
                untracked_paths.add(display_path)
        elif change.kind == "deleted" or change.type == "dir":
            tracked_lines.append((" D", path))
        elif change.type in ("file", "symlink") and change.type != tracked_file[0]:
            tracked_lines.append((" T", path))
        elif (
            change.type != tracked_file[0]
            or change.content_changed
            or _is_executable(change) != tracked_file[1]
        ):
            tracked_lines.append((" M", path))
    return sorted(tracked_lines, key=_by_path) + [
        ("??", path) for path in sorted(untracked_paths, key=_bytes)
    ]


def _is_executable(change: Change) -> bool:
    """Return whether git takes a file for executable. Git ignores the modes of symbolic links."""
    return change.type == "file" and bool(change.mode & stat.S_IXUSR)


def _untracked_path(index: TrackedFileIndex, untracked_path: str) -> str | None:
    """Return the path that git shows for an untracked path.

    Git shows the highest directory without tracked files, if there is one. For a path below a
    tracked file that has become a directory, git shows nothing: None.
    """
    for directory in parents(untracked_path):
        if directory in index.files:
            return None
        if directory not in index.directories:
            return directory + "/"
    return untracked_path


def _bytes(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


def _by_path(line: tuple[str, str]) -> bytes:
    return _bytes(line[1])


_ESCAPES = {7: "a", 8: "b", 9: "t", 10: "n", 11: "v", 12: "f", 13: "r", 34: '"', 92: "\\"}


def quote_path(path: str) -> str:
    r"""Return a path as git's short format shows it: quoted as in C if necessary.

    >>> quote_path("Icon\r"), quote_path("a b"), quote_path("é"), quote_path("a-b")
    ('"Icon\\r"', '"a b"', '"\\303\\251"', 'a-b')
    """
    escaped_path = "".join(
        f"\\{_ESCAPES[byte]}"
        if byte in _ESCAPES
        else chr(byte)
        if 32 <= byte < 127
        else f"\\{byte:03o}"
        for byte in _bytes(path)
    )
    return f'"{escaped_path}"' if escaped_path != path or " " in path else path


def format_short(lines: Iterable[tuple[str, str]]) -> str:
    """Return the lines of a status as the text that git would print."""
    return "".join(f"{status_code} {quote_path(path)}\n" for status_code, path in lines)


def parse_pairs(text: str) -> list[Pair]:
    r"""Parse the text of a status like the 2023 reward: split at whitespace, into pairs of words.

    A path with a space therefore misaligns all following pairs.

    >>> parse_pairs(' M a.txt\n?? "b c"\n?? d\n')
    [('a.txt', 'M'), ('"b', '??'), ('??', 'c"')]
    """
    words = text.split()
    return [(path, status_code) for status_code, path in zip(words[::2], words[1::2], strict=False)]
