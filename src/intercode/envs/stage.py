"""Where the tasks of an environment are tried: sandboxes with everything that a task needs."""

from __future__ import annotations

import hashlib
import json
from pathlib import PurePosixPath

from intercode.episode import decode, encode
from intercode.errors import TaskError
from intercode.sandbox import Limits, Provider, Sandbox, get_provider
from intercode.sandbox.images.resolve import check
from intercode.task import Task

SETUP_TIMEOUT = 120.0
"""Seconds that a task's setup may take."""


class SandboxStage:
    """Starts sandboxes for tasks; the agent's and gold's come out alike.

    Args:
        provider: Starts the sandboxes; or its name.
        image: The image of all tasks; None: each task's own, or ``host``.
        limits: What a sandbox may use; None: the defaults.
        network: Whether the network can be reached.
    """

    def __init__(
        self,
        provider: str | Provider,
        image: str | None = None,
        limits: Limits | None = None,
        network: bool = False,
    ) -> None:
        self.provider = get_provider(provider) if isinstance(provider, str) else provider
        self.network = network
        self._image = image
        self._limits = limits

    def image(self, task: Task) -> str:
        """The image that the task runs in."""
        return self._image or task.image or "host"

    def directory(self, task: Task) -> str:
        """Where its relative files and its setup begin; relative to the image's directory."""
        return "."

    def check(self, task: Task) -> None:
        """Refuse a task whose image there cannot be.

        Raises:
            ImageError: The name means nothing, or names a file that is not there.
        """
        check(self.image(task))

    def digest(self, task: Task) -> str:
        """What identifies that image's content."""
        return self.provider.digest(self.image(task))

    def changed(self, task: Task, place: Sandbox) -> bool:
        """Whether the image is another than the one that a sandbox was started from.

        The image ``host`` is, once a package is installed; a folder, once it is changed.
        """
        image = getattr(place, "image", None)  # not every provider's sandboxes know
        return image is not None and image.digest != self.provider.digest(self.image(task))

    def identify(self, task: Task) -> str:
        """What the state of a fresh sandbox for the task depends on, as a digest."""
        facts = [self.digest(task), task.setup, sorted(task.files.items()), task.timeout]
        facts += [repr(self._limits), self.network]
        return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()

    def start(self, task: Task) -> Sandbox:
        """A fresh sandbox in which the task's files are written and its setup has run.

        Raises:
            TaskError: The files cannot be written or the setup failed; it names the task.
            ImageError: The image cannot be found or built.
            SandboxError: The sandbox cannot be started, or died.
        """
        sandbox = self.provider.start(self.image(task), self._limits, self.network)
        try:
            self._prepare(sandbox, task)
        except BaseException:
            sandbox.close()
            raise
        return sandbox

    def _prepare(self, sandbox: Sandbox, task: Task) -> None:
        folder = self.directory(task)
        try:
            for path, content in task.files.items():
                sandbox.write_file(PurePosixPath(folder, path), encode(content))
        except OSError as error:
            raise TaskError(
                f"task {task.task_id!r}: file {path!r} cannot be written: {error}"
            ) from error
        if task.setup is None:
            return
        argv = ["/bin/bash", "--norc", "--noprofile", "-c", task.setup]
        done = sandbox.exec(argv, cwd=folder, timeout=SETUP_TIMEOUT)
        if not done.ok:
            why = "timed out" if done.timed_out else f"failed with exit code {done.exit_code}"
            said = decode(done.stderr or done.stdout).strip()[-500:]
            raise TaskError(f"task {task.task_id!r}: setup {why}: {said or '(no output)'}")
