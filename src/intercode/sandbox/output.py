"""What is kept of a stream that may be longer than its limit."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class OutputBuffer:
    """Keeps the head and the tail of a stream, within a limit, and counts the rest."""

    limit: int
    total: int = 0
    _head: bytearray = field(default_factory=bytearray)
    _tail: bytearray = field(default_factory=bytearray)

    def add(self, data: bytes) -> None:
        """Append what was read."""
        self.total += len(data)
        room = self.limit // 2 + self.limit % 2 - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tail += data
            # Trimmed only at twice its size, so that a long stream costs O(1) a byte.
            if len(self._tail) > 2 * (self.limit // 2) + 65536:
                self._trim()

    def _trim(self) -> None:
        keep = self.limit // 2
        del self._tail[: len(self._tail) - keep]

    @property
    def truncated(self) -> bool:
        """Whether bytes are missing from the middle."""
        return self.total > self.limit

    def getvalue(self) -> bytes:
        """The stream, or its head and tail around a line that says how much was cut."""
        if not self.truncated:
            return bytes(self._head + self._tail)
        self._trim()
        cut = self.total - len(self._head) - len(self._tail)
        return bytes(self._head) + b"\n[... %d bytes cut ...]\n" % cut + bytes(self._tail)
