"""What a shell reports after each action, and how a new shell is given it."""

from __future__ import annotations

import re
from dataclasses import dataclass

# What makes a shell useless or tells it apart from a new one: not carried over.
_DROPPED = re.compile(
    rb"^set -o (?:errexit|noexec|xtrace|verbose|onecmd|restricted|monitor|history|histexpand)\n",
    re.MULTILINE,
)
_OUR_TRAPS = re.compile(rb"^trap -- '\{ \. /proc/self/fd/\d+ .*\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Frame:
    """One report."""

    kind: str
    """``A``: the action ended; ``X``: the shell is exiting; ``T``: it was told to."""
    status: int
    flags: bytes
    """``$-``."""
    directory: bytes
    pids: tuple[int, ...]
    """What runs in the sandbox beside process 1 and the shell: background jobs and daemons."""
    state: bytes
    """Commands that recreate variables, functions, aliases, options, umask and traps."""

    @classmethod
    def initial(cls) -> Frame:
        """Before there was a shell."""
        return cls("A", 0, b"", b"", (), b"")

    @property
    def cwd(self) -> str:
        """The shell's directory."""
        return self.directory.decode("utf-8", "surrogateescape")

    @property
    def tracing(self) -> bytes:
        """Of ``set -x`` and ``set -v``, those that are on."""
        return bytes(flag for flag in self.flags if flag in b"xv")


class FrameReader:
    """Finds the report with the expected number in the bytes of the status channel.

    Anything else on the channel is the agent's doing and is skipped.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._numbers: tuple[bytes, ...] = ()

    def expect(self, number: int) -> None:
        """Wait for the action of that number, or for an exit, which has number 0."""
        self._buffer.clear()
        self._numbers = (b"%d" % number, b"0")

    def add(self, data: bytes) -> None:
        """Append what was read."""
        self._buffer += data

    def take(self) -> Frame | None:
        """The report, if it is complete."""
        for number in self._numbers:
            end = b"\0end\0" + number + b"\0"
            if self._buffer.endswith(end):
                return self._parse(bytes(self._buffer[: -len(end)]), number)
        return None

    @staticmethod
    def _parse(data: bytes, number: bytes) -> Frame | None:
        fields = data.split(b"\0")[-7:]
        if len(fields) < 7 or fields[0] != number or not fields[2].isdigit():
            return None
        _, kind, status, flags, directory, pids, state = fields
        numbers = (word.rpartition(b"/")[2] for word in pids.split())
        alive = tuple(int(word) for word in numbers if word.isdigit() and word != b"1")
        return Frame(kind.decode(errors="replace"), int(status), flags, directory, alive, state)


def restore_script(frame: Frame) -> bytes:
    """Bash source that gives a new shell the reported state. Its errors are to be ignored."""
    if not frame.state:
        return b""
    state = _OUR_TRAPS.sub(b"", _DROPPED.sub(b"", frame.state))
    quoted = b"'" + frame.directory.replace(b"'", b"'\\''") + b"'"
    return state + b"\n\\builtin cd -- " + quoted + b"\n"
