r"""The 2023 Bash interpreter: every action a new process in a directory that ``cd`` moves.

An action's text was pasted into a command line, as a string: it was put between double quotes after
``/bin/bash -c``, and the whole was split as a POSIX shell would. So a double quote inside the
action ends the quoting, words that follow a space outside quotes become ``$0``, ``$1``…, and a
backslash before ``"`` or ``\`` is eaten. Gold goes the same way.
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
"""The directory in which an episode begins, and in which every ``cd`` is run."""


@dataclass(frozen=True, slots=True)
class Call:
    """The engine's part of one action: a process, and where it runs."""

    argv: tuple[bytes, ...] | None
    """The process, or None: the text cannot be split, and nothing is run."""
    cwd: str
    """The directory it runs in."""
    enters: str | None = None
    """For a ``cd``: the directory of later actions, if this one exits with 0."""


def split(command: str) -> tuple[bytes, ...] | None:
    """Return the process of a command's text, or None for a text that is malformed.

    >>> split('echo "a b" c')
    (b'/bin/bash', b'-c', b'echo a', b'b c')
    >>> split('echo "') is None
    True
    """
    return split_words(f'/bin/bash -c "{command.strip()}"')


def split_words(line: str) -> tuple[bytes, ...] | None:
    """Return the process of a command line, or None for one that is malformed."""
    try:
        argv = shlex.split(line)
        words = tuple(word.encode("utf-8", "surrogateescape") for word in argv)
    except ValueError:  # unbalanced quotes; or a lone surrogate, which is not text either
        return None
    return None if any(b"\0" in word for word in words) else words


def resolve(current: str, path: str) -> str:
    """Return the directory that `path` names, seen from `current`: text only, nothing is looked up.

    >>> resolve("/testbed/dir1", "../dir2 && ls")
    '/testbed/dir2 && ls'
    """
    segments: list[str] = []
    for part in (path if path.startswith("/") else f"{current}/{path}").split("/"):
        if part == "..":
            del segments[-1:]
        elif part not in ("", "."):
            segments.append(part)
    return "/" + "/".join(segments)


Split = Callable[[str], "tuple[bytes, ...] | None"]
"""A function from a command's text to its process, or to None if the text is malformed."""


def plan(action: str, cwd: str, split: Split = split) -> Call:
    """Return the call for `action` while `cwd` is the current directory."""
    if not action.startswith("cd"):
        return Call(split(action), cwd)
    path = resolve(cwd, action.partition("cd ")[2].strip())
    return Call(split(f"cd {path}"), START, enters=path)


TIMEOUT = 10.0
"""Seconds for one action. The process was left running in 2023; here it is killed, which no
recorded observation or reward shows."""
TIMED_OUT = "Command timed out"
MALFORMED = "Malformed command"
"""The observation where the text cannot be split, or the output is not UTF-8."""
MAX_ACTION_BYTES = 120 * 1024
"""Bytes of an action: the kernel takes arguments of 128 KiB, and some words go before it."""
_NOT_STARTED = "OCI runtime exec failed: exec failed: unable to start container process: "
TOO_LONG = f"{_NOT_STARTED}argument list too long: unknown\r\n"
OUTPUT_LIMIT = 64 * 1024 * 1024
"""Bytes of an action's output. In 2023 there was no limit; this one only protects the machine."""

LIMITS = Limits(
    timeout=TIMEOUT,
    # Root of a container: reads files of mode 000, gives files away.
    capabilities=("chown", "dac_override", "fowner", "fsetid"),
)
ENVIRONMENT: Mapping[str, str] = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
}
"""The whole environment of a process, but for what `variables` adds: no LANG (messages quote with
'), no TERM, no USER. bash itself adds PWD, SHLVL (0 for a single command) and _."""
AGENT_HOST = "a1b2c3d4e5f6"
GOLD_HOST = "b2c3d4e5f6a1"
"""The names of the two containers. They differ, so that a gold which shows its environment never
agrees with itself."""


def variables(host: str, image: str) -> dict[str, str]:
    """Return the environment of a process: images also set which file system they are.

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
"""The engine waited until no process held the output any more: background jobs, too, came to
their end within the action. Only for commands with a background job: a list of processes shows the
pipe.
"""


@dataclass(frozen=True, slots=True)
class Output:
    """The output of one process."""

    text: str
    exit_code: int | None
    """None: it was not run, timed out, or its output was not text."""
    timed_out: bool = False


def run(
    sandbox: SandboxBackend,
    argv: tuple[bytes, ...] | None,
    environment: Mapping[str, str],
    cwd: str = START,
    timeout: float = TIMEOUT,
) -> Output:
    """Run a process as the engine did.

    Args:
        sandbox: The sandbox to run it in.
        argv: The process; None for text that could not be split.
        environment: Its whole environment.
        cwd: Its directory.
        timeout: Seconds.

    Raises:
        SandboxError: The sandbox failed.
    """
    if argv is None:
        return Output(MALFORMED, None)
    # `env -i`: 2023's environment holds nothing of the image's own.
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
    except OSError as error:  # of the directory: a `cd` that did more than one thing
        return Output(_no_directory(cwd, error), 126)
    if result.timed_out:
        return Output(TIMED_OUT, None, timed_out=True)
    try:
        text = as_in_container(result.stdout, argv).decode("utf-8")
    except UnicodeDecodeError:
        return Output(MALFORMED, None)
    return Output(text, result.exit_code)


def _no_directory(cwd: str, error: OSError) -> str:
    """Return the message of a container engine that could not enter a directory."""
    reason = os.strerror(error.errno or errno.ENOENT).lower()
    return (
        f"{_NOT_STARTED}chdir to cwd ({json.dumps(cwd, ensure_ascii=False)}) "
        f"set in config.json failed: {reason}: unknown\r\n"
    )


class PaperBash:
    """Runs actions as the 2023 environment did. An `Interpreter`.

    Args:
        sandbox: The sandbox to run them in; it is not closed with the interpreter.
        environment: The whole environment of a process.
        cwd: The first action's directory.
        split: Turns an action's text into a process.
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
        """Run one action in a process of its own."""
        start_time = time.monotonic()
        # Nor is it split, for minutes.
        if len(action.encode("utf-8", "surrogatepass")) > MAX_ACTION_BYTES:
            return Execution(TOO_LONG.encode(), ok=False, exit_code=126, info={"cwd": self.cwd})
        call = plan(action, self.cwd, self._split)
        output = run(self._sandbox, call.argv, self._environment, call.cwd, timeout or TIMEOUT)
        if call.enters is not None and output.exit_code == 0:
            # Literally: after `cd X && ls` no directory of that name can be entered any more.
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
    """Run a gold command: split like an action, always from ``/``, and never as a ``cd``."""
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
    """Return the output of a process as it would have been in a container.

    In a 2023 container process 1 was an idle ``bash`` on a terminal, and an action was none of its
    children: the engine put it there from outside (parent 0). In a sandbox process 1 starts the
    action, is called ``init``, and some of its entries in ``/proc`` cannot be entered. Only text
    that shows *that* is changed, and only where the command asks for processes or walks ``/proc``.
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
    """Return process 1's line with a terminal and its state, in formats that show them."""
    columns = match[1].replace(b" ?     ", b" pts/0 ", 1)
    return re.sub(rb"(?<= )[SRD]  (?= )", b"Ss+", columns, count=1) + b"/bin/bash"
