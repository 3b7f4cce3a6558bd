"""Pristine database files in sealed memory: made once, and read by all workers, changed by none."""

from __future__ import annotations

import fcntl
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from intercode.errors import DatabaseError

_LARGE = 512 << 20
_CHUNK = 1 << 26
_F_ADD_SEALS = 1033
_ALL_SEALS = 0b1111  # of its own seals, shrinking, growing, writing


class PristineFile:
    """A file that nobody can write to; closed when nobody holds it any more."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.size = os.fstat(fd).st_size
        weakref.finalize(self, os.close, fd)

    @staticmethod
    def of(path: Path) -> PristineFile:
        """The content of a file.

        A large one is taken as it is if a sandbox's user has no way to write to it: where that is
        another user than the file's owner.
        """
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        status = os.fstat(fd)
        if status.st_size > _LARGE and os.geteuid() == 0 and status.st_mode & 0o006 == 0o004:
            return PristineFile(fd)
        try:
            return PristineFile(_sealed(fd, status.st_size))
        finally:
            os.close(fd)


def _sealed(source: int, size: int) -> int:
    memfd = os.memfd_create("database", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        offset = 0
        while offset < size and (sent := os.sendfile(memfd, source, offset, _CHUNK)):
            offset += sent
        os.fchmod(memfd, 0o444)
        fcntl.fcntl(memfd, _F_ADD_SEALS, _ALL_SEALS)
    except BaseException:
        os.close(memfd)
        raise
    return memfd


class PristineFiles:
    """Pristine files by key, the most recently used ones. Thread-safe.

    Args:
        size: Bytes to keep in memory; the last one asked for is kept in any case.
    """

    def __init__(self, size: int = 1 << 30) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._making: dict[str, threading.Lock] = {}
        self._files: OrderedDict[str, PristineFile] = OrderedDict()

    def get(self, key: str, make: Callable[[], Path]) -> PristineFile:
        """The file of that key, made from the file that `make` gives if it is not at hand.

        Raises:
            DatabaseError: It cannot be read, or there is no memory for it.
        """
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        with making:
            with self._lock:
                if (file := self._files.get(key)) is not None:
                    self._files.move_to_end(key)
                    return file
            path = make()
            try:
                file = PristineFile.of(path)
            except OSError as error:
                raise DatabaseError(f"{path} cannot be taken into memory: {error}") from error
            with self._lock:
                self._files[key] = file
                while len(self._files) > 1 and self._total() > self._size:
                    key, _ = self._files.popitem(last=False)
                    self._making.pop(key, None)
            return file

    def _total(self) -> int:
        return sum(file.size for file in self._files.values())

    def clear(self) -> None:
        """Forget them all; what a session holds stays until it ends."""
        with self._lock:
            self._files.clear()
            self._making.clear()
