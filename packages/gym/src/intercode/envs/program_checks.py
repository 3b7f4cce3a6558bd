"""Checks of the programs that an environment needs in an image, once per image before any episode.

A program may be missing. A present program may be unable to run, because it is for another
architecture, lacks its loader or libraries, or is not executable. All these are faults of the
image, not of the sandbox.
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
"""Time limit in seconds for the start of one program. The limit is generous, because on a busy
machine the first start, which reads the program from disk, is slow."""
_MAX_MESSAGE_BYTES = 300
"""Maximum bytes of a program's output in an error message."""
_READ = 4096
"""Bytes of a program's file that are read to test whether the file exists."""
_MACHINE_ERRORS = [os.strerror(n) for n in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)]
"""The kernel's messages for a lack of resources on the machine, not a fault of the image."""
_working_programs: set[tuple[str, str, tuple[str, ...]]] = set()
"""Combinations of provider class, image digest and programs that this process has verified."""


def try_programs(provider: Provider, image: str, programs: Sequence[str]) -> None:
    """Run each program once in an image, unless this process has already verified it.

    Args:
        provider: The sandbox provider.
        image: The image's name.
        programs: Absolute paths, or names that the image's ``PATH`` resolves.

    Raises:
        ImageError: A program does not run, or the image cannot be found or built.
        SandboxError: The sandbox cannot be started, or the machine lacks resources.
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
    """Run a program, and return the reason why it fails; empty if the program works.

    Raises:
        SandboxError: The machine lacks resources for the trial.
    """
    is_shell = posixpath.basename(program) == "bash"
    flags = ["--norc", "--noprofile", "-c", "echo works"] if is_shell else ["--version"]
    try:
        result = sandbox.exec([program, *flags], cwd="/", timeout=_SECONDS)
    except SandboxError:
        raise
    except OSError as error:  # some providers report a missing program by an exception
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
    # The file exists. The sandbox's process 1, which starts the program, reports the kernel's
    # messages unchanged; a shell would report other words.
    if "Exec format error" in message:
        return f"{path} is for another architecture, or no program at all ({message})"
    if "No such file or directory" in message:
        return f"{path} is there, but the loader or interpreter that it names is not ({message})"
    if "Permission denied" in message:
        return f"{path} is not executable for the image's user ({message})"
    return f"{path} fails with exit code {result.exit_code}: {message or '(no output)'}"


def _find(sandbox: SandboxBackend, program: str) -> str:
    """Return the path of a program's file; empty if the image has no such file."""
    folders = sandbox.env.get("PATH", "").split(":")
    for path in [program] if "/" in program else [f"{folder}/{program}" for folder in folders]:
        with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            try:
                sandbox.read_file(path, _READ)
            except (OutputLimitError, PermissionError):  # both errors prove that the file exists
                return path
            return path
    return ""
