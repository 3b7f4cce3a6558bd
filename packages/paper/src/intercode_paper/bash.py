r"""The 2023 Bash interpreter: a new process for every action, in a directory that ``cd`` changes.

The 2023 release pasted an action's text between double quotes after ``/bin/bash -c``, and split
this command line like a POSIX shell. A double quote inside the action therefore ends the quoting.
The script for Bash ends at the first space outside quotes, and later words become the arguments
``$0``, ``$1``… of the script. The split removes a backslash before ``"`` or ``\``. Gold passes
through the same steps.
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
"""The working directory at an episode's start, and of every ``cd``."""


@dataclass(frozen=True, slots=True)
class Call:
    """The process of one action, and its working directory."""

    argv: tuple[bytes, ...] | None
    """The process's arguments; None: the text cannot be split, and no process runs."""
    cwd: str
    """The working directory of the process."""
    enters: str | None = None
    """For a ``cd``: the directory of later actions if the process exits with 0."""


def split(command: str) -> tuple[bytes, ...] | None:
    """Return the process's arguments for a command's text; None for a malformed text.

    >>> split('echo "a b" c')
    (b'/bin/bash', b'-c', b'echo a', b'b c')
    >>> split('echo "') is None
    True
    """
    return split_words(f'/bin/bash -c "{command.strip()}"')


def split_words(line: str) -> tuple[bytes, ...] | None:
    """Return the process's arguments for a command line; None for a malformed line."""
    try:
        argv = shlex.split(line)
        words = tuple(word.encode("utf-8", "surrogateescape") for word in argv)
    except ValueError:  # unbalanced quotes, or a lone surrogate that cannot be encoded
        return None
    return None if any(b"\0" in word for word in words) else words


def resolve(current: str, path: str) -> str:
    """Resolve a path against a directory textually, without access to a file system.

    >>> resolve("/testbed/dir1", "../dir2 && ls")
    '/testbed/dir2 && ls'
    """
    segments: list[str] = []
    for segment in (path if path.startswith("/") else f"{current}/{path}").split("/"):
        if segment == "..":
            del segments[-1:]
        elif segment not in ("", "."):
            segments.append(segment)
    return "/" + "/".join(segments)


Split = Callable[[str], "tuple[bytes, ...] | None"]
"""A function from a command's text to the process's arguments; None for a malformed text."""


def plan(action: str, cwd: str, split: Split = split) -> Call:
    """Return the call for an action in the current directory `cwd`."""
    if not action.startswith("cd"):
        return Call(split(action), cwd)
    path = resolve(cwd, action.partition("cd ")[2].strip())
    return Call(split(f"cd {path}"), START, enters=path)


TIMEOUT = 10.0
"""Seconds for one action. In 2023 the process continued afterwards; this interpreter kills it. No
recorded observation or reward shows the difference."""
TIMED_OUT = "Command timed out"
MALFORMED = "Malformed command"
"""The observation if the text cannot be split, or the output is not UTF-8."""
MAX_ACTION_BYTES = 120 * 1024
"""The maximum bytes of an action: the kernel's limit of an argument is 128 KiB, and the command
line has further words before the action."""
_NOT_STARTED = "OCI runtime exec failed: exec failed: unable to start container process: "
TOO_LONG = f"{_NOT_STARTED}argument list too long: unknown\r\n"
OUTPUT_LIMIT = 64 * 1024 * 1024
"""The maximum bytes of an action's output. 2023 had no limit; this limit protects the host."""

LIMITS = Limits(
    timeout=TIMEOUT,
    # Root of a container: reads files of mode 000, changes owners.
    capabilities=("chown", "dac_override", "fowner", "fsetid"),
)
ENVIRONMENT: Mapping[str, str] = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
}
"""All environment variables of a process, except those that `variables` adds. LANG (messages quote
with '), TERM and USER are unset. bash itself adds PWD, SHLVL (0 for a single command) and _."""
AGENT_HOST = "a1b2c3d4e5f6"
GOLD_HOST = "b2c3d4e5f6a1"
"""The host names of the two containers. The names differ, so a gold that prints its environment
variables never agrees with itself."""


def variables(host: str, image: str) -> dict[str, str]:
    """Return the environment variables of a process; images also set their file system's version.

    >>> variables("h", "nl2bash+/data/fs_4.tar.gz")["script"]
    'setup_nl2b_fs_4.sh'
    """
    extra = {"HOSTNAME": host}
    if match := re.search(r"fs_(\d+)", image):
        extra |= {
            "script": f"setup_nl2b_fs_{match[1]}.sh",
            "file_system_version": match[1],
        }
    return {**ENVIRONMENT, **extra}


_BACKGROUND = re.compile(rb"(?<![&<>])&(?![&>0-9])")
_WAITING_SHELL = ("/bin/bash", "-o", "pipefail", "-c", '"$@" 2>&1 | cat', "bash")
"""A shell that waits for the end of background jobs: the container engine waited until no process
held the output any more. Only commands with a background job use this shell, since a list of
processes shows the pipe.
"""


@dataclass(frozen=True, slots=True)
class Output:
    """The output of one process."""

    text: str
    exit_code: int | None
    """None: the process was not run, timed out, or its output was not text."""
    timed_out: bool = False


def run(
    sandbox: SandboxBackend,
    argv: tuple[bytes, ...] | None,
    environment: Mapping[str, str],
    cwd: str = START,
    timeout: float = TIMEOUT,
) -> Output:
    """Run a process like the container engine of 2023.

    Args:
        sandbox: The sandbox of the process.
        argv: The process's arguments; None for text that could not be split.
        environment: All environment variables of the process.
        cwd: The working directory.
        timeout: The time limit in seconds.

    Raises:
        SandboxError: The sandbox failed.
    """
    if argv is None:
        return Output(MALFORMED, None)
    # `env -i`: the environment of 2023 has none of the image's variables.
    words = ["/usr/bin/env", "-i", *(f"{name}={value}" for name, value in environment.items())]
    if any(_BACKGROUND.search(word) for word in argv):
        words = [*_WAITING_SHELL, *words]
    try:
        result: Completed = sandbox.exec(
            [*words, *argv],
            cwd=cwd,
            timeout=timeout,
            output_limit=OUTPUT_LIMIT,
            merge_stderr=True,
        )
    except SandboxError:
        raise
    except OSError as error:  # no such directory: a previous action was more than a plain `cd`
        return Output(_no_directory(cwd, error), 126)
    if result.timed_out:
        return Output(TIMED_OUT, None, timed_out=True)
    try:
        text = as_in_container(result.stdout, argv).decode("utf-8")
    except UnicodeDecodeError:
        return Output(MALFORMED, None)
    return Output(text, result.exit_code)


def _no_directory(cwd: str, error: OSError) -> str:
    """Return the message of a container engine that cannot enter a directory."""
    reason = os.strerror(error.errno or errno.ENOENT).lower()
    return (
        f"{_NOT_STARTED}chdir to cwd ({json.dumps(cwd, ensure_ascii=False)}) "
        f"set in config.json failed: {reason}: unknown\r\n"
    )


class PaperBash:
    """An `Interpreter` with the behaviour of the 2023 environment.

    Args:
        sandbox: The sandbox of the actions, which the interpreter does not close.
        environment: All environment variables of a process.
        cwd: The first action's working directory.
        split: Converts an action's text to a process's arguments.
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
        """Run one action in a new process."""
        start_time = time.monotonic()
        # Refused before the split, which would take minutes.
        if len(action.encode("utf-8", "surrogatepass")) > MAX_ACTION_BYTES:
            return Execution(TOO_LONG.encode(), ok=False, exit_code=126, info={"cwd": self.cwd})
        call = plan(action, self.cwd, self._split)
        output = run(self._sandbox, call.argv, self._environment, call.cwd, timeout or TIMEOUT)
        if call.enters is not None and output.exit_code == 0:
            # The literal text: after `cd X && ls` no later process can enter this directory.
            self.cwd = call.enters
        return Execution(
            output.text.encode("utf-8"),
            ok=output.exit_code == 0,
            exit_code=output.exit_code,
            info={"cwd": self.cwd, "timed_out": output.timed_out},
            seconds=time.monotonic() - start_time,
        )

    def close(self) -> None:
        """Do nothing: no process outlives its action."""


def run_gold(sandbox: SandboxBackend, command: str, environment: Mapping[str, str]) -> Output:
    """Run a gold command: split like an action, always in ``/``, and never treated as a ``cd``."""
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
    """Return the output of a process as in a 2023 container.

    In a 2023 container process 1 was an idle ``bash`` on a terminal. An action was not its child:
    the engine entered the container from outside (parent 0). In a sandbox process 1 is named
    ``init``, starts the action, and some of its entries in ``/proc`` cannot be entered. The
    function changes only text that shows *this* difference, and only if the command lists processes
    or walks ``/proc``.
    """
    if b"Permission denied" in output:
        output = _DENIAL_LINES.sub(b"", output)
    if b"init" not in output:
        return output
    command = b" ".join(argv)
    if _PSTREE.search(command):
        return _TREE.sub(rb"bash\1\n", output)
    if _PS.search(command):
        return _INIT_LINE.sub(_idle_bash, output)
    return output


def _idle_bash(match: re.Match[bytes]) -> bytes:
    """Return process 1's line as ``/bin/bash``, with terminal and state in formats with both."""
    columns = match[1].replace(b" ?     ", b" pts/0 ", 1)
    return re.sub(rb"(?<= )[SRD]  (?= )", b"Ss+", columns, count=1) + b"/bin/bash"
