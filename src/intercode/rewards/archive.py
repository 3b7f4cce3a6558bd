"""Archives by what is in them: two of the same files differ in times, order and compression."""

from __future__ import annotations

import subprocess
import sys

from intercode.errors import OutputLimitError, SandboxError
from intercode.rewards import archive_members
from intercode.sandbox.base import Sandbox

KINDS = tuple(archive_members.READERS)


def content(sandbox: Sandbox, path: str, kind: str) -> str:
    """A digest of what is in an archive of a sandbox's; empty if there is none that can be read.

    Args:
        sandbox: Where it is.
        path: Absolute.
        kind: One of `KINDS`.

    Raises:
        SandboxError: The sandbox failed.
    """
    try:
        data = sandbox.read_file(path, archive_members.LARGEST)
    except OutputLimitError:
        return ""  # too large to look into, which is no end of the sandbox
    except OSError as error:
        if isinstance(error, SandboxError):
            raise
        return ""
    # In a process of its own, with limits: the archive is the agent's, or whoever's.
    argv = [sys.executable, "-I", archive_members.__file__, kind]
    done = subprocess.run(argv, input=data, capture_output=True, check=False)
    return done.stdout.decode().strip() if done.returncode == 0 else ""
