"""The whole state of a shell, for a fork: what its reports do not have, and what is not carried.

From top to bottom: the question that a shell is asked, its answer (`Rest`), the script that gives a
fresh shell this state, its comparison with the one that came about, and the obstacles.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from intercode.interpreters.shell import (
    ACTION,
    CONTROL,
    EPILOGUE,
    OPTIONS_OFF,
    OUR_TRAPS,
    OUTPUT,
    STATUS,
    Frame,
    quoted,
)
from intercode_sandbox.base import Program

CARRIED = (
    "files",
    "variables",
    "functions",
    "aliases",
    "options",
    "traps",
    "directories",
    "ulimits",
)

# Builtins only, and no name of the agent's is assigned to: the shell may go on after it.
QUESTION = rb"""{ \builtin printf '\0rest\0%s\0' "${!-}"
\builtin test . -ef "${DIRSTACK-}" -a -x . || \builtin printf gone; \builtin printf '\0'
\builtin ulimit -S -a; \builtin printf '\0'; \builtin ulimit -H -a; \builtin printf '\0'
\builtin declare -F; \builtin printf '\0'
\builtin enable -n; \builtin hash -l; \builtin complete -p; \builtin printf '\0'
\builtin printf '%s\0' "${#DIRSTACK[@]}" "${DIRSTACK[@]}" "$@"; } 2>/dev/null >&199 || \builtin :
"""


@dataclass(frozen=True, slots=True)
class Rest:
    """The answer: the parts of a shell's state that are in no report."""

    last_job: bytes
    """``$!``: the process id of the last background job, if there was one."""
    gone: bool
    """Whether its directory cannot be entered again."""
    limits: bytes
    """Commands that set its limits."""
    attributes: bytes
    """Commands that export functions, or make them readonly."""
    builtins: bytes
    """Commands that switch builtins off, and that fill its tables."""
    directories: tuple[bytes, ...]
    """The stack of directories."""
    parameters: tuple[bytes, ...]
    """``$1``, ``$2``, …"""

    @classmethod
    def of(cls, fields: Sequence[bytes]) -> Rest | None:
        """Read the fields that a shell has answered with; None: they are none."""
        last = max((n for n, name in enumerate(fields) if name == b"rest"), default=None)
        if last is None or len(fields) < last + 8 or not fields[last + 7].isdigit():
            return None
        job, gone, soft, hard, functions, tables, count = fields[last + 1 : last + 8]
        words, directories = fields[last + 8 :], int(count[:6])
        return cls(
            job,
            bool(gone),
            b"".join([*_limits(soft, b"S"), *_limits(hard, b"H")]),
            b"".join(_attributes(functions)),
            b"".join(line + b"\n" for line in tables.split(b"\n") if _TABLES.match(line)),
            tuple(words[:directories]),
            tuple(words[directories:]),
        )


_TABLES = re.compile(rb"enable -n |builtin hash -p |complete ")
_LIMIT = re.compile(rb"\((?:[^()]*, )?-([a-zA-Z])\)\s+(\d+|unlimited|hard|soft)$")


def _limits(listed: bytes, kind: bytes) -> Iterator[bytes]:
    for line in listed.split(b"\n"):
        if (found := _LIMIT.search(line)) and found[1] != b"p":  # a pipe's size cannot be set
            yield b"\\builtin ulimit -%s -%s %s\n" % (kind, found[1], found[2])


def _attributes(listed: bytes) -> Iterator[bytes]:
    for line in listed.split(b"\n"):
        word, _, rest = line.partition(b" ")
        flags, _, name = rest.partition(b" ")
        if word == b"declare" and flags != b"-f" and name:
            yield b"\\builtin declare %s -- %s\n" % (flags, quoted(name))


# -- the script that restores all ------------------------------------------------------------------

_VARIABLE = re.compile(rb"^declare -(\S+) ([^=\n]+)(=?)", re.MULTILINE)
_KEPT_BY_BASH = frozenset(b"BASHOPTS SHELLOPTS UID EUID PPID".split())
# Set elsewhere, or the end of a shell. The others come last: some change how the rest is read.
_NEVER = frozenset(b"errexit noexec onecmd posix restricted verbose xtrace".split())


def script(frame: Frame, rest: Rest, fresh: bytes) -> bytes:
    """Return bash source that gives a fresh shell the whole state. Its errors are to be ignored.

    Args:
        frame: Its last report.
        rest: The rest of its state.
        fresh: The variables that a fresh shell reports.
    """
    options = [option for option in frame.shell_options if option != b"expand_aliases"]
    errexit = b"e" in frame.flags
    late = [option for option in frame.set_options if option not in _NEVER]
    return b"\n".join(
        [
            b"cd -- " + quoted(frame.directory),
            *(b"pushd -n -- %s >/dev/null" % quoted(path) for path in rest.directories[:0:-1]),
            OPTIONS_OFF,
            # It switches options of shopt, and how the rest is read as the source would.
            b"set -o posix; shopt -u ${BASHOPTS//:/ }" if b"posix" in frame.set_options else b"",
            b"shopt -s " + b" ".join(options),
            *_undone(fresh, frame.variables),
            OUR_TRAPS.sub(b"", frame.variables),
            frame.functions,
            rest.attributes,
            b"\\builtin set -- " + b" ".join(map(quoted, rest.parameters)),
            b"\\builtin shopt -s expand_aliases"
            if b"expand_aliases" in frame.shell_options
            else b"",
            *(b"\\builtin set -o " + option for option in late),
            rest.builtins,
            rest.limits,
            b"\\builtin set -e" if errexit else b"\\builtin :",
            b"",
        ]
    )


def _undone(fresh: bytes, variables: bytes) -> Iterator[bytes]:
    """Yield commands that take away what a fresh shell has, and the source has not any more."""
    now = {found[2]: found for found in _VARIABLE.finditer(variables)}
    for found in _VARIABLE.finditer(fresh):
        name, flags = found[2], found[1]
        same = name in now and now[name][1] == flags and now[name][3] == found[3]
        # Others have attributes that only bash can give: they are unset if they are gone.
        if name not in now or (b"x" in flags and not same) or name == b"OLDPWD":
            yield b"unset -v " + name
    for name, found in now.items():
        if name in _KEPT_BY_BASH and b"x" in found[1]:
            yield b"export " + name
    if (old := now.get(b"OLDPWD")) is None or not old[3]:
        yield b"unset -v OLDPWD"  # `cd` has set it


# -- what came about -------------------------------------------------------------------------------

_VOLATILE = frozenset(
    b"BASHOPTS BASHPID BASH_ARGC BASH_ARGV BASH_ARGV0 BASH_COMMAND BASH_LINENO BASH_MONOSECONDS "
    b"BASH_SOURCE BASH_SUBSHELL COLUMNS COMP_WORDBREAKS DIRSTACK EPOCHREALTIME EPOCHSECONDS "
    b"FUNCNAME GROUPS HISTCMD LINENO LINES PIPESTATUS PPID RANDOM SECONDS SHELLOPTS SRANDOM "
    b"_".split()
)

_OF_POSIX = frozenset((b"inherit_errexit", b"shift_verbose"))
"""Options of shopt that come with ``set -o posix``; bash does not report all of its doings."""


def lacking(wanted: Frame, found: Frame) -> str:
    """Name the first part of a state that has not come about; empty: it is all there."""
    if wanted.directory != found.directory:
        return "the directory"
    if (set(wanted.shell_options) ^ set(found.shell_options)) - _OF_POSIX:
        return "options of shopt"
    if set(wanted.set_options) != set(found.set_options):
        return "options of set"
    if wanted.functions != found.functions:
        return "functions or aliases"
    one, other = (_lines(frame.variables) for frame in (wanted, found))
    for line in one.symmetric_difference(other):
        match = _VARIABLE.match(line)
        if match is None or match[2] not in _VOLATILE:
            name = line if match is None else match[2]
            return f"variables or traps ({name[:40].decode(errors='replace')})"
    return ""


def _lines(variables: bytes) -> set[bytes]:
    return set(OUR_TRAPS.sub(b"", variables).split(b"\n"))


# -- obstacles -------------------------------------------------------------------------------------

_OURS = frozenset((OUTPUT, EPILOGUE, CONTROL, ACTION, STATUS, 254, 255))


def obstacles(programs: Sequence[Program], shell: int | None, rest: Rest) -> list[str]:
    """List what no fork can have, in words.

    Args:
        programs: All programs of the sandbox.
        shell: The process id of the shell.
        rest: The rest of its state.
    """
    found = [f"process {one.pid} ({one.name})" for one in programs if one.pid != shell]
    for one in programs:
        if one.pid == shell:
            found += _redirected(one)
    if rest.last_job and not found:
        found.append(f"the number of a background job that has ended ($! is {rest.last_job!r})")
    if rest.gone:
        found.append("its directory, which cannot be entered again")
    return found


def _redirected(shell: Program) -> Iterator[str]:
    output = shell.descriptors.get(OUTPUT)
    expected = {0: "/dev/null", 1: output, 2: output}
    for number, path in sorted(shell.descriptors.items()):
        if number not in _OURS and expected.get(number) != path:
            yield f"descriptor {number} of the shell, which leads to {path}"
