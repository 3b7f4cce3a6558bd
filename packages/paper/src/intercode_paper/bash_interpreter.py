r"""The 2023 Bash interpreter: a new process for every action, in a directory that ``cd`` changes.

The 2023 release inserted the text of an action between double quotes after ``/bin/bash -c``, and
split this command line like a POSIX shell. A double quote inside the action therefore ends the
quoting. The script for Bash ends at the first space outside quotes, and later words become the
arguments ``$0``, ``$1``… of the script. The split removes a backslash before ``"`` or ``\``. The
text of gold is split in the same way.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from intercode.errors import SandboxError
from intercode.interpreters.base import Execution
from intercode_sandbox.base import Completed, Limits, SandboxBackend

START = "/"
"""The working directory at an episode's start, and of every process that runs a ``cd``."""


@dataclass(frozen=True, slots=True)
class ActionProcess:
    """The process that runs one action, and the working directories before and after."""

    argv: tuple[bytes, ...] | None
    """The arguments of the process; None: the text cannot be split, and no process runs."""
    cwd: str
    """The working directory of the process."""
    enters: str | None = None
    """The working directory of later actions if the action is a ``cd`` that exits with 0."""


def split(command: str) -> tuple[bytes, ...] | None:
    """Split an action's text into the arguments of a process; return None for a malformed text.

    >>> split('echo "a b" c')
    (b'/bin/bash', b'-c', b'echo a', b'b c')
    >>> split('echo "') is None
    True
    """
    return split_words(f'/bin/bash -c "{command.strip()}"')


def split_words(line: str) -> tuple[bytes, ...] | None:
    """Split a command line into the arguments of a process; return None for a malformed line."""
    try:
        argv = shlex.split(line)
        words = tuple(word.encode("utf-8", "surrogateescape") for word in argv)
    except ValueError:  # unbalanced quotes, or a lone surrogate that cannot be encoded
        return None
    return None if any(b"\0" in word for word in words) else words


def resolve(cwd: str, path: str) -> str:
    """Resolve a path against the directory `cwd` by its text only, without a file system.

    >>> resolve("/testbed/dir1", "../dir2 && ls")
    '/testbed/dir2 && ls'
    """
    segments: list[str] = []
    for segment in (path if path.startswith("/") else f"{cwd}/{path}").split("/"):
        if segment == "..":
            del segments[-1:]
        elif segment not in ("", "."):
            segments.append(segment)
    return "/" + "/".join(segments)


Split = Callable[[str], "tuple[bytes, ...] | None"]
"""Type of a function that splits an action's text into the arguments of a process."""


def plan(action: str, cwd: str, split: Split = split) -> ActionProcess:
    """Return the process with which to run an action in the working directory `cwd`.

    The working directory of a ``cd`` is `START`. Its argument is resolved against `cwd` first.
    """
    if not action.startswith("cd"):
        return ActionProcess(split(action), cwd)
    path = resolve(cwd, action.partition("cd ")[2].strip())
    return ActionProcess(split(f"cd {path}"), START, enters=path)


TIMEOUT = 10.0
"""Time limit of one action in seconds. In 2023 the process continued after the time limit. The
interpreter of this module kills the process. No recorded observation or reward shows the
difference."""
TIMED_OUT = "Command timed out"
MALFORMED = "Malformed command"
"""The observation if the action's text cannot be split, or the output is not UTF-8."""
MAX_ACTION_BYTES = 120 * 1024
"""The maximum bytes of an action. The kernel limits an argument to 128 KiB. The argument
of a ``cd`` also contains the current working directory."""
_NOT_STARTED = "OCI runtime exec failed: exec failed: unable to start container process: "
TOO_LONG = f"{_NOT_STARTED}argument list too long: unknown\r\n"
OUTPUT_LIMIT = 64 * 1024 * 1024
"""The maximum bytes of an action's output, to protect the host. The 2023 release had no limit."""

LIMITS = Limits(
    timeout=TIMEOUT,
    # As in a container, root may access any file, and change its owner and permissions.
    capabilities=("chown", "dac_override", "fowner", "fsetid"),
)
ENVIRONMENT: Mapping[str, str] = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
}
"""All environment variables of a process, except those that `variables` adds. LANG is unset, so
messages quote with '. TERM and USER are unset, too. bash itself adds PWD, SHLVL (0 for a single
command) and _."""
AGENT_HOST = "a1b2c3d4e5f6"
GOLD_HOST = "b2c3d4e5f6a1"
"""The host names of the agent's and the gold's container. The names differed in 2023, so the output
of a gold that prints its environment variables never equals that of the agent."""


def variables(host: str, image: str) -> dict[str, str]:
    """Return all environment variables of a process.

    Args:
        host: The host name of the container.
        image: The name of the image, from which the version of its file system follows.

    >>> variables("h", "nl2bash+/data/fs_4.tar.gz")["script"]
    'setup_nl2b_fs_4.sh'
    """
    extra_variables = {"HOSTNAME": host}
    if match := re.search(r"fs_(\d+)", image):
        extra_variables |= {
            "script": f"setup_nl2b_fs_{match[1]}.sh",
            "file_system_version": match[1],
        }
    return {**ENVIRONMENT, **extra_variables}


_BACKGROUND = re.compile(rb"(?<![&<>])&(?![&>0-9])")
_WAITING_SHELL = ("/bin/bash", "-o", "pipefail", "-c", '"$@" 2>&1 | cat', "bash")
"""A shell that waits for the end of background jobs. In 2023 the container engine waited until no
process held the output any more. The shell runs only commands with a background job, because a list
of processes shows its pipe.
"""


@dataclass(frozen=True, slots=True)
class ActionOutput:
    """The output of the process that ran one action."""

    text: str
    exit_code: int | None
    """The exit code; None: the command was malformed, the time limit passed, or the output was not
    UTF-8. Without the working directory, no process runs, and the exit code is 126."""
    timed_out: bool = False


def run(
    sandbox: SandboxBackend,
    argv: tuple[bytes, ...] | None,
    environment: Mapping[str, str],
    cwd: str = START,
    timeout: float = TIMEOUT,
) -> ActionOutput:
    """Run a process, and return the output that the container engine of 2023 would have returned.

    Args:
        sandbox: The sandbox of the process.
        argv: The arguments of the process; None: the text could not be split.
        environment: All environment variables of the process.
        cwd: The working directory.
        timeout: The time limit in seconds.

    Raises:
        SandboxError: The sandbox failed.
    """
    if argv is None:
        return ActionOutput(MALFORMED, None)
    # `env -i` removes the variables of the image, which the processes of 2023 did not have.
    prefix = ["/usr/bin/env", "-i", *(f"{name}={value}" for name, value in environment.items())]
    if any(_BACKGROUND.search(word) for word in argv):
        prefix = [*_WAITING_SHELL, *prefix]
    try:
        result: Completed = sandbox.exec(
            [*prefix, *argv],
            cwd=cwd,
            timeout=timeout,
            output_limit=OUTPUT_LIMIT,
            merge_stderr=True,
        )
    except SandboxError:
        raise
    except OSError as error:
        # The working directory does not exist, because an earlier action was, for example,
        # `cd X && ls`. The whole text after `cd` became the path.
        return ActionOutput(_no_directory(cwd, error), 126)
    if result.timed_out:
        return ActionOutput(TIMED_OUT, None, timed_out=True)
    try:
        output_text = as_in_container(result.stdout, argv).decode("utf-8")
    except UnicodeDecodeError:
        return ActionOutput(MALFORMED, None)
    return ActionOutput(output_text, result.exit_code)


def _no_directory(cwd: str, error: OSError) -> str:
    """Return the message of a container engine whose process cannot enter its working directory."""
    reason = os.strerror(error.errno or errno.ENOENT).lower()
    return (
        f"{_NOT_STARTED}chdir to cwd ({json.dumps(cwd, ensure_ascii=False)}) "
        f"set in config.json failed: {reason}: unknown\r\n"
    )


class PaperBashInterpreter:
    """An `Interpreter` that behaves like the Bash of the 2023 environment.

    Args:
        sandbox: The sandbox in which actions run. The interpreter does not close the sandbox.
        environment: All environment variables of each process.
        cwd: The working directory of the first action.
        split: A function that splits an action's text into the arguments of a process.
    """

    def __init__(
        self,
        sandbox: SandboxBackend,
        environment: Mapping[str, str] = ENVIRONMENT,
        cwd: str = START,
        split: Split = split,
    ) -> None:
        self._sandbox = sandbox
        self._environment = environment
        self._split = split
        self.cwd = cwd

    def execute(self, action: str, timeout: float | None = None) -> Execution:
        """Run one action in a new process.

        Args:
            action: The text of the action.
            timeout: The time limit in seconds; None: `TIMEOUT`.

        Raises:
            SandboxError: The sandbox failed.
        """
        start_time = time.monotonic()
        # A long action is refused before it is split, because splitting it would take minutes.
        if len(action.encode("utf-8", "surrogatepass")) > MAX_ACTION_BYTES:
            return Execution(TOO_LONG.encode(), ok=False, exit_code=126, info={"cwd": self.cwd})
        call = plan(action, self.cwd, self._split)
        output = run(self._sandbox, call.argv, self._environment, call.cwd, timeout or TIMEOUT)
        if call.enters is not None and output.exit_code == 0:
            # The path is the literal text of the action. After `cd X && ls` no such directory
            # exists, and no later process can start.
            self.cwd = call.enters
        return Execution(
            output.text.encode("utf-8"),
            ok=output.exit_code == 0,
            exit_code=output.exit_code,
            info={"cwd": self.cwd, "timed_out": output.timed_out},
            seconds=time.monotonic() - start_time,
        )

    def close(self) -> None:
        """Do nothing, because every process ends with its action."""


def run_gold(sandbox: SandboxBackend, command: str, environment: Mapping[str, str]) -> ActionOutput:
    """Run a gold command: split like an action, but always in ``/``, and never as a ``cd``."""
    return run(sandbox, split(command), environment)


_DENIAL_LINES = re.compile(
    rb"(?m)^\w+: [^\n]*?proc/(?:tty/driver|1/(?:task/1/)?(?:fd|fdinfo|ns|map_files))/?'?: "
    rb"Permission denied\n"
)
_PS = re.compile(rb"\b(?:ps|top)\b")
_PSTREE = re.compile(rb"\bpstree\b")
_TREE = re.compile(rb"\Ainit((?:\(1\)|,1)?)[^\n]*\n(?:[ |`][^\n]*\n)*")
_INIT_LINE = re.compile(rb"(?m)^( *(?:\S+ +)*?1 +(?:\S+ +)*?)init$")


def as_in_container(output: bytes, argv: Iterable[bytes]) -> bytes:
    """Change the output of a process in a sandbox to that of a process in a 2023 container.

    In a 2023 container process 1 was an idle ``bash`` on a terminal. An action was not a child of
    process 1, because the engine started the action from outside (parent 0). In a sandbox process 1
    is named ``init``, starts the action, and has entries in ``/proc`` that cannot be entered.

    The function removes messages about these entries from the output of any command. Only in the
    output of ``ps``, ``top`` and ``pstree``, the function replaces the name ``init``.

    Args:
        output: The output of the process.
        argv: The arguments of the process.
    """
    if b"Permission denied" in output:
        output = _DENIAL_LINES.sub(b"", output)
    if b"init" not in output:
        return output
    command_line = b" ".join(argv)
    if _PSTREE.search(command_line):
        return _TREE.sub(rb"bash\1\n", output)
    if _PS.search(command_line):
        return _INIT_LINE.sub(_idle_bash, output)
    return output


def _idle_bash(match: re.Match[bytes]) -> bytes:
    """Return the line of process 1 with the name ``/bin/bash`` in place of ``init``.

    If the format has a terminal and a state, these change to ``pts/0`` and ``Ss+``.
    """
    columns = match[1].replace(b" ?     ", b" pts/0 ", 1)
    return re.sub(rb"(?<= )[SRD]  (?= )", b"Ss+", columns, count=1) + b"/bin/bash"
