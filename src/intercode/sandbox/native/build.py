"""A set-up script of an image, run in a sandbox of the image below it; of any provider."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from intercode.errors import ImageError
from intercode.sandbox.base import Limits, Sandbox
from intercode.sandbox.images import Image
from intercode.sandbox.native.snapshot import fill

_SECONDS = 600.0
_PLACE = "/dev/shm/setup"


class Archived(Sandbox, Protocol):
    """A sandbox that can tell what it changed as `archive.write` does."""

    def archive(self, out: int) -> None:
        """Stream it into a descriptor."""


def build_script(
    start: Callable[[Image, Limits], Archived], base: Image, script: bytes, layer: Path
) -> None:
    """Run a set-up script in a sandbox of `base` and leave what it changed in `layer`.

    Raises:
        ImageError: It failed, or did not end in time.
    """
    limits = Limits(memory=4 << 30, disk=4 << 30, processes=1024)
    sandbox = start(replace(base, cwd="/"), limits)
    try:
        sandbox.write_file(_PLACE, script, 0o755)
        done = sandbox.exec(["/bin/bash", _PLACE], timeout=_SECONDS, merge_stderr=True)
        if not done.ok:
            tail = done.stdout.decode(errors="replace")[-2000:]
            why = "did not end in time" if done.timed_out else f"exit code {done.exit_code}"
            raise ImageError(f"the set-up script over {base.name} failed ({why}):\n{tail}")
        sandbox.kill()
        fill(layer, sandbox.archive)
    finally:
        sandbox.close()
