"""Where SWE tasks are tried: a sandbox with the task's repository in it, at its base commit."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from intercode.envs.stage import SandboxStage
from intercode.errors import ImageError, TaskError
from intercode.rewards.swe_plan import Plan, make_plan
from intercode.sandbox.base import Limits, Provider
from intercode.sandbox.images import hide
from intercode.sandbox.images.base import BUILTIN, BUILTIN_FOLDER
from intercode.sandbox.images.repository import is_url, prepare
from intercode.task import Task


class SweStage(SandboxStage):
    """Lays a task's repository over its image; a reset copies nothing of it.

    Args:
        provider: Starts the sandboxes; or its name.
        image: The image of all tasks; None: each task's own, or ``host``.
        limits: What a sandbox may use; None: the defaults.
        network: Whether the network can be reached.
        repositories: A folder or URL with the repositories that tasks name and do not have.
        folder: Where a task's relative ``repository`` begins.
    """

    def __init__(
        self,
        provider: str | Provider,
        image: str | None = None,
        limits: Limits | None = None,
        network: bool = False,
        repositories: str | Path | None = None,
        folder: Path | None = None,
    ) -> None:
        super().__init__(provider, image, limits, network)
        self._repositories = None if repositories is None else str(repositories)
        self._folder = folder or Path.cwd()
        self.plan: Callable[[Task], Plan] = lru_cache(maxsize=1)(make_plan)
        """How a task is graded, which also says where its repository lies."""
        self._prepared: dict[tuple[str, str | None, str], tuple[str, Path]] = {}

    def directory(self, task: Task) -> str:
        """Where the repository lies; the setup runs there."""
        return self.plan(task).directory

    def check(self, task: Task) -> None:
        """Refuse a task whose repository or image is not there.

        Raises:
            TaskError: A field is malformed, or there is no such repository or commit.
            ImageError: The image's name means nothing, or names a file that is not there.
        """
        self.plan(task)
        super().check(task)

    def image(self, task: Task) -> str:
        """The image that the task runs in, its repository laid over it."""
        return f"{super().image(task)}+{self._prepare_repository(task)[1]}"

    def digest(self, task: Task) -> str:
        """What identifies that image's content: the same on every machine."""
        self.provider.digest(self.image(task))  # which builds it
        below = self.provider.digest(super().image(task))
        text = f"{below} {self._prepare_repository(task)[0]}"
        return hashlib.sha256(text.encode()).hexdigest()

    def _prepare_repository(self, task: Task) -> tuple[str, Path]:
        commit = task.metadata.get("base_commit")
        if commit is not None and not isinstance(commit, str):
            raise TaskError(f"task {task.task_id!r}: 'metadata.base_commit' must be text")
        key = self._source(task), commit, self.directory(task)
        if key not in self._prepared:
            if not is_url(key[0]):
                hide(key[0])
            try:
                self._prepared[key] = prepare(*key)
            except ImageError as error:
                raise TaskError(f"task {task.task_id!r}: its repository: {error}") from error
        return self._prepared[key]

    def _source(self, task: Task) -> str:
        """Where the repository comes from: a path or a URL."""
        given, name = task.metadata.get("repository"), task.metadata.get("repo")
        for text in (given, name):
            if text is not None and (not isinstance(text, str) or not text or "\0" in text):
                raise TaskError(
                    f"task {task.task_id!r}: 'metadata.repository' and 'metadata.repo' must be text"
                )
        if given is not None:
            if given.startswith(BUILTIN):
                return str(BUILTIN_FOLDER / Path(given[len(BUILTIN) :]).name)
            return given if is_url(given) else str(self._folder / Path(given).expanduser())
        if name is None or self._repositories is None:
            raise TaskError(
                f"task {task.task_id!r} comes without its repository: give 'metadata.repository', "
                f"or 'metadata.repo' and, with --repositories, where such repositories are"
            )
        if is_url(self._repositories):
            return f"{self._repositories.rstrip('/')}/{name}"
        return self._in_mirror(task, Path(self._repositories).expanduser(), name)

    def _in_mirror(self, task: Task, mirror: Path, name: str) -> str:
        if name.startswith("/") or ".." in name.split("/"):
            raise TaskError(f"task {task.task_id!r}: 'metadata.repo' is no name: {name!r}")
        names = [name.replace("/", "__"), name, name.rpartition("/")[2]]
        tried = [mirror / f"{base}{end}" for base in names for end in ("", ".git", ".bundle")]
        for path in tried:
            if path.exists():
                return str(path.absolute())
        raise TaskError(
            f"task {task.task_id!r}: {name!r} is not in {mirror}; clone it there, for instance as "
            f"{tried[1].name}: git clone --mirror URL {tried[1]}"
        )
