"""What the engine mounts in a container: files of the image's to who looks at them, and memory."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from intercode.sandbox.native import diff


def mount_points() -> dict[str, str]:
    """Mount point → type of its file system."""
    found = {}
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            left, _, right = line.partition(" - ")
            found[_unescape(left.split(" ")[4])] = right.split(" ")[0]
    return found


def _unescape(path: str) -> str:
    for escaped, plain in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(escaped, plain)
    return path


class MountedFiles:
    """The files that the engine mounts (``/etc/hosts`` …): part of the image to who looks at them.

    Args:
        contents: Path → what the image has there; None: what the engine put there.
    """

    def __init__(self, contents: dict[str, str | None]) -> None:
        self.paths: list[str] = []
        for path, text in contents.items():
            with suppress(OSError):
                if text is not None:
                    Path(path).write_bytes(os.fsencode(text))
                self._look(path)
                self.paths.append(path)
        self.before = self.look()
        """What changes are told from: the image, or the snapshot over it."""

    def look(self) -> dict[str, tuple[int, int, int, int, str]]:
        """As they are now."""
        return {path: self._look(path) for path in self.paths}

    def changes(self) -> list[diff.Entry]:
        """Those that were written to."""
        found: list[diff.Entry] = []
        for path, now in self.look().items():
            mode, uid, gid, size, digest = now
            if now != self.before[path]:
                content = now[3:] != self.before[path][3:]
                found.append((path, "modified", "file", mode, uid, gid, size, digest, content))
        return found

    @staticmethod
    def _look(path: str) -> tuple[int, int, int, int, str]:
        fd = os.open(path, diff.FILE)
        try:
            st = os.fstat(fd)
            digest = diff.content_digest(fd)
            return stat.S_IMODE(st.st_mode), st.st_uid, st.st_gid, st.st_size, digest
        finally:
            os.close(fd)
