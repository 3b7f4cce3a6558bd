"""What the engine mounts in a container: files of the image's to who looks at them, and memory."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from intercode.sandbox.docker.inside.layer import remove
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
        self.contents: dict[str, bytes] = {}
        for path, text in contents.items():
            with suppress(OSError):
                if text is not None:
                    _rewrite(path, os.fsencode(text))
                with open(path, "rb") as file:
                    self.contents[path] = file.read()
        self.times = {path: os.stat(path).st_mtime_ns for path in self.contents}
        self.first = self.look()
        self.before = self.first
        """What changes are told from: the image, or the snapshot over it."""

    def look(self) -> dict[str, tuple[int, int, int, int, str]]:
        """As they are now."""
        return {path: self._look(path) for path in self.contents}

    def changes(self) -> list[diff.Entry]:
        """Those that were written to."""
        found: list[diff.Entry] = []
        for path, now in self.look().items():
            mode, uid, gid, size, digest = now
            if now != self.before[path]:
                content = now[3:] != self.before[path][3:]
                found.append((path, "modified", "file", mode, uid, gid, size, digest, content))
        return found

    def restore(self) -> None:
        """As they were in the image."""
        self.before = self.first
        for path, *_ in self.changes():
            _rewrite(path, self.contents[path])
            mode, uid, gid, *_ = self.first[path]
            os.chown(path, uid, gid)
            os.chmod(path, mode)
        for path, mtime in self.times.items():
            os.utime(path, ns=(mtime, mtime))

    @staticmethod
    def _look(path: str) -> tuple[int, int, int, int, str]:
        fd = os.open(path, diff._FILE)
        try:
            st = os.fstat(fd)
            digest = diff.content_digest(fd)
            return stat.S_IMODE(st.st_mode), st.st_uid, st.st_gid, st.st_size, digest
        finally:
            os.close(fd)


def _rewrite(path: str, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)


class InMemory:
    """The folders of a container that are in memory: ``/dev``, ``/dev/shm`` and the like."""

    def __init__(self) -> None:
        self.before = {
            path: self._look(path)
            for path, kind in mount_points().items()
            if kind in ("tmpfs", "mqueue") and not path.startswith(("/proc/", "/sys/"))
        }

    def changed(self) -> bool:
        """Whether anything in them, or they themselves, is not as at the start."""
        return any(self._look(path) != before for path, before in self.before.items())

    def empty(self) -> None:
        """Remove what was not there at the start."""
        for path, before in self.before.items():
            fd = os.open(path, diff._DIRECTORY)
            try:
                for name in set(os.listdir(fd)) - before.keys():
                    remove(fd, name)
            finally:
                os.close(fd)

    @staticmethod
    def _look(folder: str) -> dict[str, tuple[int, ...]]:
        found = {}
        for name in (".", *os.listdir(folder)):
            st = os.lstat(f"{folder}/{name}")
            same = () if stat.S_ISDIR(st.st_mode) else (st.st_ino, st.st_rdev, st.st_size)
            found[name] = (st.st_mode, st.st_uid, st.st_gid, *same)
        return found
