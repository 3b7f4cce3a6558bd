"""Files that decide how any program runs, as they were before an agent came.

Tests run in the place that an agent has left, and it may have installed programs there. So these
stay. But programs and libraries of the image are put back, and new ones that would be found in
their place are removed: else an agent's own ``bash`` could say that all tests pass. Paths that the
task's own solution changes are left as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from contextlib import closing, suppress

from intercode.rewards.command import ENVIRONMENT, SYSTEM_PATHS, put_back
from intercode.sandbox.base import Change, Sandbox

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
    "ls -A /bin /sbin /usr/bin /usr/sbin /usr/local/bin /usr/local/sbin /lib* /usr/lib* "
    "/usr/local/lib /usr/lib/*-linux-* /lib/*-linux-* 2>/dev/null"
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
    place: Sandbox,
    changes: Sequence[Change],
    start: Callable[[], Sandbox],
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
    suspects = [change for change in changes if _decides(change)]
    if not suspects:
        return
    with closing(start()) as original:
        known = _names(original) if any(one.kind == "added" for one in suspects) else frozenset()
        found = {one.path: one for one in suspects if one.kind != "added" or _hides(one, known)}
        if found.keys() - {_CACHE}:
            found = {path: found[path] for path in found.keys() - set(expected())}
        if any(path in _FOLDERS or one.type == "dir" for path, one in found.items()):
            raise TamperedError(found)
        # First without any program: those that put back the rest may be among them.
        for path, one in found.items():
            if one.kind != "added" or _LOADER.fullmatch(path):
                data = b""
                with suppress(FileNotFoundError, IsADirectoryError):
                    data = original.read_file(path)
                _write(place, path, data, found)
        if found and not put_back(place, original, sorted(found), found, {}, ENVIRONMENT):
            raise TamperedError(found)
    if any(map(_LOADER.fullmatch, found)):
        place.exec(["ldconfig"], cwd="/", env=ENVIRONMENT)  # new libraries stay known


def _decides(change: Change) -> bool:
    """Return whether a change may decide how programs run that the agent did not make."""
    if _LOADER.fullmatch(change.path):
        return change.type != "dir"
    if change.kind == "added":
        return change.type != "dir" and bool(
            _PROGRAM.fullmatch(change.path) or _LIBRARY.fullmatch(change.path)
        )
    return change.content_changed and bool(SYSTEM_PATHS.match(change.path))


def _names(original: Sandbox) -> frozenset[str]:
    """Return the names of the image's programs and libraries."""
    argv = ["/bin/sh", "-c", _NAMES]
    listed = original.exec(argv, cwd="/", env=ENVIRONMENT, output_limit=_NAMES_BYTES)
    return frozenset(listed.stdout.decode("utf-8", "surrogateescape").split("\n"))


def _hides(change: Change, names: Collection[str]) -> bool:
    """Return whether a new file would be found in the place of one of the image's."""
    return change.path.rpartition("/")[2] in names or bool(_LOADER.fullmatch(change.path))


def _write(place: Sandbox, path: str, data: bytes, found: Collection[str]) -> None:
    try:
        place.write_file(path, data, 0o755)
    except OSError as error:
        raise TamperedError(found) from error
