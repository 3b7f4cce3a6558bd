r"""The lines of bash that run an action and report on it, kept apart from what drives them.

Every word of ours is quoted or said through ``\builtin``, so that no alias and no function of the
agent's is called in its place. A control line is short: bash reads a pipe byte by byte.
"""

from __future__ import annotations

import signal

OUTPUT, EPILOGUE, CONTROL, ACTION, STATUS = 195, 196, 197, 198, 199
"""Descriptors in the shell: a spare of its output; files to source; where it reads; its report."""
TIMEOUT_SIGNAL = int(signal.SIGRTMAX) - 1
ARGV = (
    *("bash", "--norc", "--noprofile", "-i", "+m", "+H", "+o", "history"),
    f"/proc/self/fd/{CONTROL}",
)

# `exec` without `builtin`, with which its redirections would not last.
EPILOGUE_TEXT = rb"""BASH_ARGV0=bash
{ \builtin : 200>&0; } 2>/dev/null || \exec </dev/null
{ \builtin : 200>&1; } 2>/dev/null || \exec >&195
\builtin : 200>&2 || \exec 2>&195
[[ $1 != A || -s /proc/self/fd/198 ]] || \builtin exit "${3%% *}"
case "${3#* }" in *f*) \builtin set +f ;; esac
{ \builtin printf '%s\0' '' "$2" "$1" "${3%% *}" "${3#* }" "${DIRSTACK-}" \
"$BASHOPTS" "$SHELLOPTS" /proc/[0-9]*
case "${3#* }" in *f*) \builtin set -f ;; esac
\builtin declare -p; \builtin umask -p; \builtin trap -p; \builtin printf '\0'
\builtin alias -p; \builtin declare -f; \builtin printf '\0end\0%s\0' "$2"
} 2>/dev/null >&199 || \builtin :
case "${3#* }" in *e*) \builtin set -e; \builtin return 0 ;; esac
\builtin return "${3%% *}"
"""
"""Sourced with a report's kind and number and ``$? $-`` as arguments.

What an action closed is open again in the next; what it redirected stays. A shell that can read no
further action ends. Bash writes line by line and each line wakes the reader: hence no `shopt -p`.
"""

# Traps that would fire for our own lines are reported and taken away until the next action. Of a
# `$(` without its end, bash 5.2's parser remembers that it waits for a `)`, and would read, and
# write, outside its buffer.
_COLLECT = (
    rf"\builtin trap -p DEBUG ERR RETURN>&{STATUS};\builtin trap - DEBUG ERR RETURN;"
    r"\builtin set +exv;\builtin eval ')';}>/dev/null 2>&1;"
)
_REPORT = rf"\. /proc/self/fd/{EPILOGUE}"
_SOURCE = rf"\. /proc/self/fd/{ACTION}"


def run_line(number: int) -> bytes:
    """Run the action and report it under that number."""
    return f'{_SOURCE};{{ BASH_ARGV0="$? $-";{_COLLECT}{_REPORT} A {number} "$0"\n'.encode()


def start_line(number: int, status: int) -> bytes:
    """The shell's first: make ready, source the state to restore, report."""
    exiting, told = (f'{{ {_REPORT} {kind} 0 "$? $-"; }} >/dev/null 2>&1' for kind in "XT")
    ready = f"exec {OUTPUT}>&1 {CONTROL}<&-; trap '{exiting}' EXIT; "
    ready += f"trap '{told}; trap - EXIT; exit 124' {TIMEOUT_SIGNAL}"
    restore = f'{{ {_SOURCE};BASH_ARGV0="{status} $-";{_COLLECT}'
    return f'{ready}; {restore}{_REPORT} A {number} "$0"\n'.encode()
