"""Files that decide how any program runs, as they were before an agent came.

Tests run in the place that an agent has left, and it may have installed programs there. So these
stay. But programs and libraries of the image are put back, and new ones that would be found in
their place are removed: else an agent's own ``bash`` could say that all tests pass. Programs are in
the system's folders, and in those of the image's ``PATH``. Paths that the task's own solution
changes are left as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from contextlib import closing, suppress
from posixpath import normpath

from intercode.rewards.command import SYSTEM_PATHS, restore_paths
from intercode.rewards.leftovers import variables
from intercode_sandbox.base import Change, SandboxBackend

_FOLDERS = frozenset(
    f"{above}/{name}".rstrip("/")
    for above in ("", "/usr", "/usr/local")
    for name in ("", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc")
)
_PROGRAM = re.compile(r"/(usr/)?(local/)?s?bin/[^/]+")
_LIBRARY = re.compile(r"/(usr/)?(local/)?lib[^/]*/.*\.so[^/]*")
_LOADER = re.compile(r"/etc/ld(-musl-[^/]*|\.so\.(conf|conf\.d/.*|preload|cache))")
_CACHE = "/etc/ld.so.cache"
_NAMES = (
    'ls -A /bin /sbin /usr/bin /usr/sbin /usr/local/bin /usr/local/sbin "$@" 2>/dev/null; '
    "ls -A /lib* /usr/lib* /usr/local/lib /usr/lib/*-linux-* /lib/*-linux-* 2>/dev/null"
)
_SHOWN = 20
_NAMES_BYTES = 1 << 24


class TamperedError(Exception):
    """The files cannot be put back: nothing that runs there could be believed.

    Attributes:
        paths: The first few of them.
    """

    def __init__(self, paths: Collection[str]) -> None:
        super().__init__("these files decide how any program runs, and cannot be put back")
        self.paths = sorted(paths)[:_SHOWN]


def as_before(
    place: SandboxBackend,
    changes: Sequence[Change],
    start: Callable[[], SandboxBackend],
    expected: Callable[[], Collection[str]],
) -> None:
    """Put back what an agent has changed in the files that decide how programs run.

    Args:
        place: The place that it has left, in which nothing runs.
        changes: All that differs from the image there.
        start: Starts a place as the agent got it.
        expected: Tells which paths an honest solution changes.

    Raises:
        TamperedError: They cannot be put back.
    """
    folders = _searched(place)
    suspects = [change for change in changes if _decides(change, folders)]
    if not suspects:
        return
    env = variables(place)
    with closing(start()) as original:
        is_new = any(one.kind == "added" for one in suspects)
        known = _names(original, folders) if is_new else frozenset()
        found = {
            one.path: one
            for one in suspects
            if one.kind != "added" or _hides(one, known) or _replaces(one, folders)
        }
        if found.keys() - {_CACHE}:
            found = {path: found[path] for path in found.keys() - set(expected())}
        whole = (*_FOLDERS, *(one.path for one in suspects if _replaces(one, folders)))
        if any(path in whole or one.type == "dir" for path, one in found.items()):
            raise TamperedError(found)
        # First without any program: those that put back the rest may be among them.
        for path, one in found.items():
            if one.kind != "added" or _LOADER.fullmatch(path):
                data = b""
                with suppress(FileNotFoundError, IsADirectoryError):
                    data = original.read_file(path)
                _write(place, path, data, found)
        if found and not restore_paths(place, original, sorted(found), found, {}, env):
            raise TamperedError(found)
    if any(map(_LOADER.fullmatch, found)):
        place.exec(["ldconfig"], cwd="/", env=env)  # new libraries stay known


def _searched(place: SandboxBackend) -> frozenset[str]:
    """Return the folders in which programs are looked for."""
    named = place.env.get("PATH", "").split(":")
    return frozenset(normpath(folder) for folder in named if folder.startswith("/"))


def _decides(change: Change, folders: Collection[str]) -> bool:
    """Return whether a change may decide how programs run that the agent did not make."""
    path = change.path
    if _LOADER.fullmatch(path):
        return change.type != "dir"
    if _replaces(change, folders):
        return True
    is_program = path.rpartition("/")[0] in folders
    if change.kind == "added":
        return change.type != "dir" and bool(
            is_program or _PROGRAM.fullmatch(path) or _LIBRARY.fullmatch(path)
        )
    return change.content_changed and (is_program or bool(SYSTEM_PATHS.match(path)))


def _names(original: SandboxBackend, folders: Collection[str]) -> frozenset[str]:
    """Return the names of the image's programs and libraries."""
    argv = ["/bin/sh", "-c", _NAMES, "sh", *sorted(folders)]
    env = variables(original)
    listed = original.exec(argv, cwd="/", env=env, output_limit=_NAMES_BYTES)
    return frozenset(listed.stdout.decode("utf-8", "surrogateescape").split("\n"))


def _hides(change: Change, names: Collection[str]) -> bool:
    """Return whether a new file would be found in the place of one of the image's."""
    return _name(change.path) in names or bool(_LOADER.fullmatch(change.path))


def _replaces(change: Change, folders: Collection[str]) -> bool:
    """Return whether a link stands for a folder of programs, and so brings others."""
    path = f"{change.path}/"
    return change.type == "symlink" and any(f"{folder}/".startswith(path) for folder in folders)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _write(place: SandboxBackend, path: str, data: bytes, found: Collection[str]) -> None:
    try:
        place.write_file(path, data, 0o755)
    except OSError as error:
        raise TamperedError(found) from error
