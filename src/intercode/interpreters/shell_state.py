"""What a shell reports after each action, and how a new shell is given it."""

from __future__ import annotations

import re
from dataclasses import dataclass

# What makes a shell useless or tells it apart from a new one: not carried over.
_DROPPED = frozenset(
    b"errexit noexec xtrace verbose onecmd restricted monitor history histexpand".split()
)
_OUR_TRAPS = re.compile(rb"^trap -- '\{ \\\. /proc/self/fd/\d+ .*\n", re.MULTILINE)
_DEFAULTS = re.compile(rb"^trap -- - .*\n", re.MULTILINE)  # listed by bash in POSIX mode
_PROCESS = re.compile(rb"/proc/(\d{1,9}|\[0-9]\*)")  # itself, where it was not expanded
_STATUS = re.compile(rb"\d{1,3}")

_LONGEST = 1 << 26
"""Bytes of a report; a flood on the channel costs the agent its report, and us no memory."""
_MOST_FIELDS = 100_000
"""Of a report, which has one for each process. More are a flood, and each would be an object."""
_LONGEST_OPTIONS = 1 << 12
"""Bytes of the names of all options. Each name would be an object."""
_LONGEST_PATH = 1 << 14
"""Bytes of a directory's name. Bash can be in one that is longer than what any call takes."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One report. Bytes other than flags and directory are commands that recreate a state."""

    kind: str = "A"
    """``A``: the action ended; ``X``: the shell is exiting; ``T``: it was told to."""
    status: int = 0
    flags: bytes = b""
    """``$-``."""
    directory: bytes = b""
    pids: tuple[int, ...] = ()
    """What runs in the sandbox beside process 1: the shell, background jobs, daemons."""
    shell_options: tuple[bytes, ...] = ()
    """Of ``shopt``, those that are on."""
    set_options: tuple[bytes, ...] = ()
    """Of ``set -o``, those that are on."""
    variables: bytes = b""
    """And the umask and traps."""
    functions: bytes = b""
    """And aliases before them."""
    hooks: bytes = b""
    """Traps on DEBUG, ERR and RETURN: they are set during actions only."""

    @property
    def cwd(self) -> str:
        """The shell's directory."""
        return self.directory.decode("utf-8", "surrogateescape")

    @property
    def preamble(self) -> bytes:
        """What goes before the next action: the hooks, and ``set -x`` and ``set -v`` if on."""
        tracing = bytes(flag for flag in self.flags if flag in b"xv")
        return self.hooks + (b"\\builtin set -%s\n" % tracing if tracing else b"")


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
        if len(self._buffer) > _LONGEST:
            del self._buffer[: -_LONGEST // 2]

    def take(self) -> Frame | None:
        """The report, if it is complete."""
        for number in self._numbers if self._buffer.endswith(b"\0") else ():
            end = b"\0end\0" + number + b"\0"
            if self._buffer.endswith(end):
                return self._parse(bytes(self._buffer[: -len(end)]), number)
        return None

    @staticmethod
    def _parse(data: bytes, number: bytes) -> Frame | None:
        if data.count(b"\0") > _MOST_FIELDS:
            return None
        *fields, variables, functions = data.split(b"\0")
        pids = []
        while fields and (match := _PROCESS.fullmatch(fields[-1])):
            pids.append(match[1])
            fields.pop()
        if len(fields) < 8 or fields[-7] != number or not _STATUS.fullmatch(fields[-5]):
            return None
        hooks, _, kind, status, flags, directory, shell_options, set_options = fields[-8:]
        if max(map(len, (flags, shell_options, set_options))) > _LONGEST_OPTIONS:
            return None
        return Frame(
            kind.decode(errors="replace"),
            int(status),
            flags,
            directory[:_LONGEST_PATH],
            tuple(int(pid) for pid in pids if pid.isdigit() and pid != b"1"),
            tuple(shell_options.split(b":")),
            # Switched off while the processes were listed.
            tuple(set_options.split(b":")) + ((b"noglob",) if b"f" in flags else ()),
            variables,
            functions,
            _DEFAULTS.sub(b"", hooks) if hooks.startswith(b"trap -- ") else b"",
        )


def restore_script(frame: Frame) -> bytes:
    """Bash source that gives a new shell the reported state. Its errors are to be ignored.

    What can call for a function or an alias of the agent's comes before these are there.
    """
    if not frame.variables:
        return b"\n"  # no shell goes on with an empty file
    aliases_on = b"expand_aliases" in frame.shell_options
    shell_options = [o for o in frame.shell_options if o != b"expand_aliases"]
    return b"\n".join(
        [
            b"cd -- '" + frame.directory.replace(b"'", b"'\\''") + b"'",
            b"shopt -u ${BASHOPTS//:/ }",
            b"for option in ${SHELLOPTS//:/ }; do set +o $option; done; unset option",
            *(b"set -o " + option for option in frame.set_options if option not in _DROPPED),
            b"shopt -s " + b" ".join(shell_options),
            _OUR_TRAPS.sub(b"", frame.variables),
            frame.functions,
            b"\\builtin shopt -s expand_aliases" if aliases_on else b"",
            b"",
        ]
    )
