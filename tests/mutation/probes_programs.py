"""Probes of places that lack a program: an image without bash, a sandbox whose agent deletes it."""

from __future__ import annotations

import os
import tempfile
from contextlib import closing
from pathlib import Path

from intercode import make
from intercode.episode import ENDED
from intercode.errors import ImageError, SandboxError, SandboxUnavailableError
from intercode.interpreters.base import Execution, execute
from intercode.task import Dataset, Task
from intercode_sandbox.native.provider import NativeProvider

from .tools import one_of


def programs_before_episodes() -> bool:
    with tempfile.TemporaryDirectory() as name:
        for folder in ("bin", "dev", "proc", "tmp", "root"):
            (Path(name) / folder).mkdir()
        dataset = Dataset([Task("t", "q", gold=("ls",))])
        with closing(make("bash", data=dataset, image=name)) as env:
            try:
                env.reset(seed=0)
            except ImageError as error:
                found = "tried" if "cannot run 'bash'" in str(error) else "met"
            else:
                found = "begun"
    return one_of(found, holds="tried", gone="met")


class _WithoutShell:
    def execute(self, action: str, timeout: float | None = None) -> Execution:
        return Execution(b"", ok=False, info={"gone": True, "executed": False})

    def close(self) -> None:
        """End nothing."""


def shell_gone() -> bool:
    info = execute(_WithoutShell(), "ls", None).info
    return one_of("ends" if ENDED in info else "goes on", holds="ends", gone="goes on")


def calls_tried() -> bool:
    def refused(*arguments: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    before = os.memfd_create
    os.memfd_create = refused  # type: ignore[assignment]
    try:
        NativeProvider().start().close()
    except SandboxUnavailableError:
        found = "refused"
    except SandboxError as error:
        found = "refused" if "memfd_create" in str(error) else "started"
    else:
        found = "started"
    finally:
        os.memfd_create = before
    return one_of(found, holds="refused", gone="started")
