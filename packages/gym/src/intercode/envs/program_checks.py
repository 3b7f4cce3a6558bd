"""The programs that an environment needs of an image: tried once per image, before any episode.

A program may be missing, or be there and not run: for another architecture, without its loader or
libraries, not executable. Each of these is the image's fault, and no failure of a sandbox.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Sequence
from contextlib import closing, suppress

from intercode.errors import ImageError, OutputLimitError, SandboxError
from intercode_sandbox import Provider, SandboxBackend
from intercode_sandbox.base import Completed

_SECONDS = 30.0
"""The time limit of one trial: on a busy machine the first start reads the program from disk."""
_MAX_MESSAGE_BYTES = 300
"""Bytes of a program's own words in an error."""
_READ = 4096
"""Bytes that are read of a program, to tell whether it is there."""
_MACHINE_ERRORS = [os.strerror(n) for n in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)]
"""The kernel's words where the machine, and no image, lacks something."""
_working_programs: set[tuple[str, str, tuple[str, ...]]] = set()
"""Kind of provider, digest of the image, and its programs, where all of them run."""


def try_programs(provider: Provider, image: str, programs: Sequence[str]) -> None:
    """Run each program once in an image, unless this process has done so.

    Args:
        provider: Starts the sandbox.
        image: The image's name.
        programs: Names, looked up in the image's ``PATH``, or absolute paths.

    Raises:
        ImageError: A program does not run, or the image cannot be found or built.
        SandboxError: No sandbox starts.
    """
    key = type(provider).__qualname__, provider.digest(image), tuple(programs)
    if key in _working_programs or not programs:
        return
    with closing(provider.start(image)) as sandbox:
        for program in programs:
            if reason := _flaw(sandbox, program):
                raise ImageError(
                    f"the image {image!r} cannot run {program!r}, which its tasks need: {reason}. "
                    "Install a working program in the image, or name another image"
                )
    _working_programs.add(key)


def _flaw(sandbox: SandboxBackend, program: str) -> str:
    """Run a program; return the reason why it does not run."""
    is_shell = posixpath.basename(program) == "bash"
    flags = ["--norc", "--noprofile", "-c", "echo works"] if is_shell else ["--version"]
    try:
        result = sandbox.exec([program, *flags], cwd="/", timeout=_SECONDS)
    except SandboxError:
        raise
    except OSError as error:  # of a provider that reports a missing program so
        result = Completed(127, b"", str(error).encode())
    if result.timed_out:
        return f"it does not end within {_SECONDS:g} s"
    if result.ok and (not is_shell or result.stdout == b"works\n"):
        return ""
    path = _find(sandbox, program)
    if not path:
        return "the image has no such program"
    message = (result.stderr or result.stdout)[:_MAX_MESSAGE_BYTES].decode(errors="replace").strip()
    if any(words in message for words in _MACHINE_ERRORS):
        raise SandboxError(f"{program!r} could not be tested in a sandbox: {message}")
    # The kernel's words for a file that is there; a shell has other words than process 1.
    if "Exec format error" in message:
        return f"{path} is for another architecture, or no program at all ({message})"
    if "No such file or directory" in message:
        return f"{path} is there, but the loader or interpreter that it names is not ({message})"
    if "Permission denied" in message:
        return f"{path} is not executable for the image's user ({message})"
    return f"{path} fails with exit code {result.exit_code}: {message or '(no output)'}"


def _find(sandbox: SandboxBackend, program: str) -> str:
    """Return the path of a program's file, if there is one."""
    folders = sandbox.env.get("PATH", "").split(":")
    for path in [program] if "/" in program else [f"{folder}/{program}" for folder in folders]:
        with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            try:
                sandbox.read_file(path, _READ)
            except (OutputLimitError, PermissionError):  # it is there
                return path
            return path
    return ""
