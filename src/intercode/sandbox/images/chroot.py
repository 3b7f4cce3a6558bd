"""Running the builder's programs so that they end with us and leave no process and no mount."""

from __future__ import annotations

import os
import subprocess
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from intercode.errors import ImageError
from intercode.sandbox.images.base import SEARCH_PATH, Progress

# Killed with this process, whatever kills it; with it everything that it started (process 1 of a
# process namespace) and every file system that it mounted.
_CONTAINED = (
    *("setpriv", "--pdeathsig", "KILL"),
    *("unshare", "--mount", "--pid", "--fork", "--kill-child"),
)
_IN_ROOT = 'mount -t proc proc "$0/proc" 2>/dev/null || :; exec chroot "$0" "$@"'
_PASSED_ON = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy")
_LAST_LINES = 15


@dataclass(frozen=True, slots=True)
class Chroot:
    """A root file system that is being made. Not a sandbox: for Debian's own programs."""

    root: Path
    lock: int
    """The build's lock, which lasts for as long as a program of it lives."""
    progress: Progress

    def run(self, argv: Sequence[str]) -> None:
        """Run a program in it, as root."""
        run(["/bin/sh", "-c", _IN_ROOT, str(self.root), *argv], self.lock, self.progress)


def run(argv: Sequence[str], lock: int, progress: Progress) -> None:
    """Run a program to its end, telling each line that it prints.

    Raises:
        ImageError: It failed; the message has its last lines.
    """
    lines: deque[str] = deque(maxlen=_LAST_LINES)
    with subprocess.Popen(
        [*_CONTAINED, *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=_environment(),
        cwd="/",
        pass_fds=(lock,),
        start_new_session=True,  # Ctrl-C is for us alone; we then kill it
        encoding="utf-8",
        errors="replace",
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                lines.append(line.rstrip())
                progress(lines[-1])
        except BaseException:
            process.kill()
            process.stdout.read()  # until all of it is gone, so that its files can be removed
            raise
    if process.returncode:
        shown = "\n".join(f"  {line}" for line in lines)
        raise ImageError(f"{argv[0]} failed with exit code {process.returncode}:\n{shown}")


def _environment() -> dict[str, str]:
    passed = {name: value for name, value in os.environ.items() if name.lower() in _PASSED_ON}
    return {
        **passed,
        "PATH": SEARCH_PATH,
        "HOME": "/root",
        "LC_ALL": "C",
        "DEBIAN_FRONTEND": "noninteractive",
    }
