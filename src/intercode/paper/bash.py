"""The 2023 Bash interpreter: every action a new process in a directory that ``cd`` moves."""

from __future__ import annotations

import errno
import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

from intercode.errors import SandboxError
from intercode.interpreters.base import Execution
from intercode.paper.action import START, Split, plan, split
from intercode.paper.processes import as_in_container
from intercode.sandbox.base import Completed, Limits, Sandbox

TIMEOUT = 10.0
"""Seconds for one action. The process was left running in 2023; here it is killed, which no
recorded observation or reward shows."""
TIMED_OUT = "Command timed out"
MALFORMED = "Malformed command"
"""The observation where the text cannot be split, or the output is not UTF-8."""
LONGEST = 120 * 1024
"""Bytes of an action: the kernel takes arguments of 128 KiB, and some words go before it."""
_NOT_STARTED = "OCI runtime exec failed: exec failed: unable to start container process: "
TOO_LONG = f"{_NOT_STARTED}argument list too long: unknown\r\n"
OUTPUT_LIMIT = 64 * 1024 * 1024
"""In 2023 there was none; this one only protects the machine."""

LIMITS = Limits(
    timeout=TIMEOUT,
    # Root of a container: reads files of mode 000, gives files away.
    capabilities=("chown", "dac_override", "fowner", "fsetid"),
)

ENVIRONMENT: Mapping[str, str] = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
}
"""All that a process was given, but for what `variables` adds: no LANG (messages quote with '),
no TERM, no USER. bash itself adds PWD, SHLVL (0 for a single command) and _."""

AGENT_HOST = "a1b2c3d4e5f6"
GOLD_HOST = "b2c3d4e5f6a1"
"""The names of the two containers. They differ, so that a gold which shows its environment never
agrees with itself."""


def variables(host: str, image: str) -> dict[str, str]:
    """The environment of a process: the images also set which file system they are.

    >>> variables("h", "nl2bash+/data/fs_4.tar.gz")["script"]
    'setup_nl2b_fs_4.sh'
    """
    extra = {"HOSTNAME": host}
    if found := re.search(r"fs_(\d+)", image):
        extra |= {
            "script": f"setup_nl2b_fs_{found[1]}.sh",
            "file_system_version": found[1],
        }
    return {**ENVIRONMENT, **extra}


_BACKGROUND = re.compile(rb"(?<![&<>])&(?![&>0-9])")
_WAIT_FOR_ALL = ("/bin/bash", "-o", "pipefail", "-c", '"$@" 2>&1 | cat', "bash")
"""The engine waited until nobody held the output any more: background jobs, too, came to their
end within the action. Only where a command has one, since the pipe shows in a list of processes.
"""


@dataclass(frozen=True, slots=True)
class Output:
    """What one process gave."""

    text: str
    exit_code: int | None
    """None: it was not run, timed out, or its output was not text."""
    timed_out: bool = False


def run(
    sandbox: Sandbox,
    argv: tuple[bytes, ...] | None,
    environment: Mapping[str, str],
    cwd: str = START,
    timeout: float = TIMEOUT,
) -> Output:
    """Run a process as the engine did.

    Args:
        sandbox: Where.
        argv: The process; None for text that could not be split.
        environment: All of its environment.
        cwd: Its directory.
        timeout: Seconds.

    Raises:
        SandboxError: The sandbox failed.
    """
    if argv is None:
        return Output(MALFORMED, None)
    # `env -i`: whatever the image's own environment is, 2023's holds nothing else.
    words = ["/usr/bin/env", "-i", *(f"{name}={value}" for name, value in environment.items())]
    if any(_BACKGROUND.search(word) for word in argv):
        words = [*_WAIT_FOR_ALL, *words]
    try:
        done: Completed = sandbox.exec(
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
    if done.timed_out:
        return Output(TIMED_OUT, None, timed_out=True)
    try:
        text = as_in_container(done.stdout, argv).decode("utf-8")
    except UnicodeDecodeError:
        return Output(MALFORMED, None)
    return Output(text, done.exit_code)


def _no_directory(cwd: str, error: OSError) -> str:
    """What the container engine printed when it could not enter a directory."""
    reason = os.strerror(error.errno or errno.ENOENT).lower()
    return (
        f"{_NOT_STARTED}chdir to cwd ({json.dumps(cwd, ensure_ascii=False)}) "
        f"set in config.json failed: {reason}: unknown\r\n"
    )


class PaperBash:
    """Runs actions as the 2023 environment did. An `Interpreter`.

    Args:
        sandbox: Where; it is not closed with the interpreter.
        environment: All of a process's environment.
        cwd: The first action's directory.
        split: How an action's text becomes a process.
    """

    def __init__(
        self,
        sandbox: Sandbox,
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
        started = time.monotonic()
        if len(action.encode("utf-8", "surrogatepass")) > LONGEST:  # nor is it split, for minutes
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
            seconds=time.monotonic() - started,
        )

    def close(self) -> None:
        """Nothing to do: no process outlives its action."""


def run_gold(sandbox: Sandbox, command: str, environment: Mapping[str, str]) -> Output:
    """Run a gold command: split like an action, always from ``/``, and never as a ``cd``."""
    return run(sandbox, split(command), environment)
