"""A layer that a script or a command makes, in a sandbox of the image below; of any provider."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from intercode.errors import ImageError
from intercode.files import remove_tree
from intercode.sandbox.base import Limits, Sandbox
from intercode.sandbox.images import Command, Image
from intercode.sandbox.images.base import SCRIPT
from intercode.sandbox.limits import CAPABILITIES
from intercode.sandbox.native.diff import SHARED_MEMORY
from intercode.sandbox.native.snapshot import fill

_SECONDS = 600.0
_LIMITS = Limits(memory=4 << 30, disk=4 << 30, processes=1024)
"""What a package's installation needs of root."""


class Archived(Sandbox, Protocol):
    """A sandbox that can tell what it changed as `archive.write` does."""

    def archive(self, out: int) -> None:
        """Stream it into a descriptor."""


def build_script(
    start: Callable[[Image, Limits, bool], Archived],
    base: Image,
    script: bytes | Command,
    layer: Path,
) -> None:
    """Run a set-up script, or a command, in a sandbox of `base`; leave what it changed in `layer`.

    Raises:
        ImageError: It failed, or did not end in time.
    """
    if isinstance(script, Command):
        limits = replace(_LIMITS, capabilities=CAPABILITIES)
        what, command = "the command", script
    else:
        base, limits = replace(base, cwd="/", user=""), _LIMITS
        what = "the set-up script"
        command = Command(("/bin/bash", SCRIPT), script, timeout=_SECONDS)
    sandbox = start(base, limits, command.network)
    try:
        if command.script is not None:
            sandbox.write_file(SCRIPT, command.script, 0o755)
        done = sandbox.exec(command.argv, timeout=command.timeout, merge_stderr=True)
        if not done.ok:
            tail = done.stdout.decode(errors="replace")[-2000:]
            why = "did not end in time" if done.timed_out else f"exit code {done.exit_code}"
            raise ImageError(f"{what} over {base.name} failed ({why}):\n{tail}")
        sandbox.kill()
        for path, mode in fill(layer, sandbox.archive):
            # It is the image's author who wants it so, and what an engine would build.
            Path(layer, path).chmod(mode)
        remove_tree(layer / SHARED_MEMORY[1:])
        with suppress(OSError):  # something else was made in it
            (layer / SHARED_MEMORY[1:]).parent.rmdir()
    finally:
        sandbox.close()
