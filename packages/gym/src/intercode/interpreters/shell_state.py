"""The complete state of a bash shell, for a fork, and the reasons why a state cannot be saved.

The shell reports a part of its state after each action (`ShellStateReport`). This module asks for
the rest (`QUESTION`), parses the response (`UnreportedShellState`), and makes the script that
restores the state in another shell (`script`). `find_missing_state` compares the restored state
with the original, and `obstacles` lists the parts of a state that no script can restore.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from intercode.interpreters.shell import (
    ACTION,
    CONTROL,
    EPILOGUE,
    OUR_TRAPS,
    OUTPUT,
    RESET_OPTIONS,
    STATUS,
    ShellStateReport,
    quote_word,
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

# The question uses only builtins, and assigns no variable, because the shell may continue after it.
QUESTION = rb"""{ \builtin printf '\0rest\0%s\0' "${!-}"
\builtin test . -ef "${DIRSTACK-}" -a -x . || \builtin printf gone; \builtin printf '\0'
\builtin ulimit -S -a; \builtin printf '\0'; \builtin ulimit -H -a; \builtin printf '\0'
\builtin declare -F; \builtin printf '\0'
\builtin enable -n; \builtin hash -l; \builtin complete -p; \builtin printf '\0'
\builtin printf '%s\0' "${#DIRSTACK[@]}" "${DIRSTACK[@]}" "$@"; } 2>/dev/null >&199 || \builtin :
"""


@dataclass(frozen=True, slots=True)
class UnreportedShellState:
    """The response to `QUESTION`: the parts of a shell's state that its reports lack."""

    last_job: bytes
    """``$!``: the process id of the last background job; empty if no job was started."""
    gone: bool
    """Whether the working directory cannot be entered again, for instance after its removal."""
    limits: bytes
    """Commands that set the shell's resource limits."""
    attributes: bytes
    """Commands that export functions or make them read-only."""
    builtins: bytes
    """Commands that disable builtins and fill the tables of ``hash`` and ``complete``."""
    directories: tuple[bytes, ...]
    """The directory stack."""
    parameters: tuple[bytes, ...]
    """``$1``, ``$2``, …"""

    @classmethod
    def parse(cls, fields: Sequence[bytes]) -> UnreportedShellState | None:
        """Parse the fields of a shell's response; return None if the response is malformed."""
        marker_index = max((n for n, name in enumerate(fields) if name == b"rest"), default=None)
        if (
            marker_index is None
            or len(fields) < marker_index + 8
            or not fields[marker_index + 7].isdigit()
        ):
            return None
        job, gone_flag, soft_limits, hard_limits, functions, tables, count = fields[
            marker_index + 1 : marker_index + 8
        ]
        words, directories = fields[marker_index + 8 :], int(count[:6])
        return cls(
            job,
            bool(gone_flag),
            b"".join([*_limits(soft_limits, b"S"), *_limits(hard_limits, b"H")]),
            b"".join(_attributes(functions)),
            b"".join(line + b"\n" for line in tables.split(b"\n") if _TABLES.match(line)),
            tuple(words[:directories]),
            tuple(words[directories:]),
        )


_TABLES = re.compile(rb"enable -n |builtin hash -p |complete ")
_LIMIT = re.compile(rb"\((?:[^()]*, )?-([a-zA-Z])\)\s+(\d+|unlimited|hard|soft)$")


def _limits(listing: bytes, kind: bytes) -> Iterator[bytes]:
    for line in listing.split(b"\n"):
        # The size of a pipe cannot be set.
        if (match := _LIMIT.search(line)) and match[1] != b"p":
            yield b"\\builtin ulimit -%s -%s %s\n" % (kind, match[1], match[2])


def _attributes(listing: bytes) -> Iterator[bytes]:
    for line in listing.split(b"\n"):
        word, _, declaration = line.partition(b" ")
        flags, _, name = declaration.partition(b" ")
        if word == b"declare" and flags != b"-f" and name:
            yield b"\\builtin declare %s -- %s\n" % (flags, quote_word(name))


# -- the script that restores all ------------------------------------------------------------------

_VARIABLE = re.compile(rb"^declare -(\S+) ([^=\n]+)(=?)", re.MULTILINE)
_KEPT_BY_BASH = frozenset(b"BASHOPTS SHELLOPTS UID EUID PPID".split())
# These options are set elsewhere, or would end a shell. All other options are set last, because
# some of them change how bash reads the remaining script.
_UNRESTORED_OPTIONS = frozenset(b"errexit noexec onecmd posix restricted verbose xtrace".split())


def script(
    frame: ShellStateReport, unreported_state: UnreportedShellState, initial_variables: bytes
) -> bytes:
    """Return bash source that restores the whole state in a fresh shell; errors in it are ignored.

    Args:
        frame: The shell's last report.
        unreported_state: The parts of the state that the report lacks.
        initial_variables: The variables that a fresh shell reports.
    """
    options = [option for option in frame.shell_options if option != b"expand_aliases"]
    errexit = b"e" in frame.flags
    late_options = [option for option in frame.set_options if option not in _UNRESTORED_OPTIONS]
    return b"\n".join(
        [
            b"cd -- " + quote_word(frame.directory),
            *(
                b"pushd -n -- %s >/dev/null" % quote_word(path)
                for path in unreported_state.directories[:0:-1]
            ),
            RESET_OPTIONS,
            # POSIX mode switches options of ``shopt``. Bash must read the rest of the script in the
            # mode of the original shell.
            b"set -o posix; shopt -u ${BASHOPTS//:/ }" if b"posix" in frame.set_options else b"",
            b"shopt -s " + b" ".join(options),
            *_unset_commands(initial_variables, frame.variables),
            OUR_TRAPS.sub(b"", frame.variables),
            frame.functions,
            unreported_state.attributes,
            b"\\builtin set -- " + b" ".join(map(quote_word, unreported_state.parameters)),
            b"\\builtin shopt -s expand_aliases"
            if b"expand_aliases" in frame.shell_options
            else b"",
            *(b"\\builtin set -o " + option for option in late_options),
            unreported_state.builtins,
            unreported_state.limits,
            b"\\builtin set -e" if errexit else b"\\builtin :",
            b"",
        ]
    )


def _unset_commands(initial_variables: bytes, variables: bytes) -> Iterator[bytes]:
    """Yield commands that unset variables of a fresh shell which the original shell lacks."""
    current_matches = {match[2]: match for match in _VARIABLE.finditer(variables)}
    for match in _VARIABLE.finditer(initial_variables):
        name, flags = match[2], match[1]
        is_same = (
            name in current_matches
            and current_matches[name][1] == flags
            and current_matches[name][3] == match[3]
        )
        # A variable that both shells have is unset only if it is exported and differs. Other
        # variables may have attributes that only bash can set, so they are unset only if the
        # original lacks them.
        if name not in current_matches or (b"x" in flags and not is_same) or name == b"OLDPWD":
            yield b"unset -v " + name
    for name, match in current_matches.items():
        if name in _KEPT_BY_BASH and b"x" in match[1]:
            yield b"export " + name
    if (oldpwd_match := current_matches.get(b"OLDPWD")) is None or not oldpwd_match[3]:
        yield b"unset -v OLDPWD"  # the ``cd`` of the script has set this variable


# -- the comparison --------------------------------------------------------------------------------

_VOLATILE = frozenset(
    b"BASHOPTS BASHPID BASH_ARGC BASH_ARGV BASH_ARGV0 BASH_COMMAND BASH_LINENO BASH_MONOSECONDS "
    b"BASH_SOURCE BASH_SUBSHELL COLUMNS COMP_WORDBREAKS DIRSTACK EPOCHREALTIME EPOCHSECONDS "
    b"FUNCNAME GROUPS HISTCMD LINENO LINES PIPESTATUS PPID RANDOM SECONDS SHELLOPTS SRANDOM "
    b"_".split()
)

_POSIX_OPTIONS = frozenset((b"inherit_errexit", b"shift_verbose"))
"""Options of shopt that ``set -o posix`` sets. Bash does not report all effects of POSIX mode."""


def find_missing_state(expected_frame: ShellStateReport, actual_frame: ShellStateReport) -> str:
    """Return the first part of a state, in words, that was not restored; empty if none."""
    if expected_frame.directory != actual_frame.directory:
        return "the directory"
    if (set(expected_frame.shell_options) ^ set(actual_frame.shell_options)) - _POSIX_OPTIONS:
        return "options of shopt"
    if set(expected_frame.set_options) != set(actual_frame.set_options):
        return "options of set"
    if expected_frame.functions != actual_frame.functions:
        return "functions or aliases"
    expected_lines, actual_lines = (
        _lines(frame.variables) for frame in (expected_frame, actual_frame)
    )
    for line in expected_lines.symmetric_difference(actual_lines):
        match = _VARIABLE.match(line)
        if match is None or match[2] not in _VOLATILE:
            name = line if match is None else match[2]
            return f"variables or traps ({name[:40].decode(errors='replace')})"
    return ""


def _lines(variables: bytes) -> set[bytes]:
    return set(OUR_TRAPS.sub(b"", variables).split(b"\n"))


# -- parts that cannot be saved --------------------------------------------------------------------

_OWN_DESCRIPTORS = frozenset((OUTPUT, EPILOGUE, CONTROL, ACTION, STATUS, 254, 255))


def obstacles(
    programs: Sequence[Program], shell: int | None, unreported_state: UnreportedShellState
) -> list[str]:
    """List, in words, the parts of a shell's state that cannot be saved for a fork.

    Args:
        programs: All running programs of the sandbox.
        shell: The process id of the shell.
        unreported_state: The shell's response to `QUESTION`.
    """
    reasons = [
        f"process {program.pid} ({program.name})" for program in programs if program.pid != shell
    ]
    for program in programs:
        if program.pid == shell:
            reasons += _list_redirections(program)
    if unreported_state.last_job and not reasons:
        reasons.append(
            f"the number of a background job that has ended ($! is {unreported_state.last_job!r})"
        )
    if unreported_state.gone:
        reasons.append("its directory, which cannot be entered again")
    return reasons


def _list_redirections(shell: Program) -> Iterator[str]:
    output = shell.descriptors.get(OUTPUT)
    expected_paths = {0: "/dev/null", 1: output, 2: output}
    for descriptor, path in sorted(shell.descriptors.items()):
        if descriptor not in _OWN_DESCRIPTORS and expected_paths.get(descriptor) != path:
            yield f"descriptor {descriptor} of the shell, which leads to {path}"
