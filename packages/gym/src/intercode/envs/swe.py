"""The SWE environment: repository issues, resolved in a shell and scored by the project's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from intercode.datasets import load
from intercode.datasets.builtin import FOLDER, PREFIX
from intercode.envs.base import InterCodeEnv
from intercode.envs.options import EnvOptions, SweOptions
from intercode.envs.stage import SandboxStage, resolve_task_path
from intercode.envs.traits import SHELL, Dice, Traits
from intercode.errors import ImageError, TaskError
from intercode.interpreters.base import Interpreter
from intercode.interpreters.bash import open_shell
from intercode.rewards.custom import choose_reward
from intercode.rewards.gold import GoldCache
from intercode.rewards.swe import SweReward
from intercode.rewards.swe_plan import APPLY, SweGradingPlan, make_plan
from intercode.task import Dataset, Task
from intercode_sandbox import Limits, Provider, SandboxBackend
from intercode_sandbox.host_files import sha256
from intercode_sandbox.images import hide
from intercode_sandbox.images.git_repository import NO_HISTORY, is_url, prepare, refuse_links
from intercode_sandbox.network import Network

_FIELDS = {"base_commit", "FAIL_TO_PASS", "test_patch", "repository"}
"""The fields of a task's `metadata` by which SWE tasks are recognised."""


def apply_patch(patch: str) -> str:
    """Return a command that applies a unified diff."""
    end = "END"
    while end in patch.split("\n"):
        end += "_"
    return f"{APPLY} <<'{end}'\n{patch.rstrip(chr(10))}\n{end}"


def _truncated_patches(solution: Sequence[str], dice: Dice) -> Iterator[str]:
    """Yield the patch without its last third, a frequent mistake of models."""
    first_line, *lines = solution[0].split("\n")
    if len(lines) > 2:
        yield "\n".join([first_line, *lines[: 2 * len(lines) // 3], lines[-1]])


class SweEnv(InterCodeEnv[SandboxBackend]):
    """An environment with one persistent Bash per episode, in a repository at its base commit.

    ``docs/gym/swe.md`` lists the fields of a task, and `SweReward` defines the scoring. The
    option `reward` replaces `SweReward`. With `cache_gold`, the mutated tests
    (`intercode.rewards.mutated_tests`) are generated once per task.

    Args:
        data: A dataset, a file of tasks, or a dataset's name.
        options: All options in one object.
        **changes: Single options by name, which override `options`: see `SweOptions`.

    Raises:
        TaskError: The data is malformed. Single tasks are validated later, by `check` and `reset`,
            because a benchmark may contain tasks that this machine cannot run.
        UsageError: An option is unknown or invalid.
    """

    name: ClassVar[str] = "swe"
    Options: ClassVar[type[EnvOptions]] = SweOptions
    traits: Traits = replace(
        SHELL,
        fields=(
            *("repository", "repo", "base_commit", "directory", "test_patch", "test_files"),
            *("FAIL_TO_PASS", "PASS_TO_PASS", "runner", "python", "pytest", "test_timeout"),
        ),
        programs=("bash", "git"),
        rules=("swe",),
        briefing="You work in a shell ({setting}), in the repository of a project. Its issue is "
        "yours to resolve by changing files; tests that you do not see decide.",
        looks=("git log --oneline | head -n 3", "ls -R | head -n 12"),
        mistakes=_truncated_patches,
        wrong=("echo 42 > intercode-42.txt",),
        prediction=apply_patch,
        recognises=lambda tasks: any(_FIELDS & task.metadata.keys() for task in tasks),
    )

    def __init__(
        self,
        data: str | Path | Dataset = "swe",
        *,
        options: SweOptions | None = None,
        **changes: Any,
    ) -> None:
        options = SweOptions.merge(options, changes)
        tasks = load(data)
        stage_options = {"repositories": options.repositories, "history": options.history}
        stage = SweStage.from_options(options, self.traits, **stage_options)
        self._directory = stage.directory
        cache = GoldCache.from_option(options.cache_gold, stage.provider)
        env_reward = choose_reward(
            "swe",
            options.reward,
            lambda: SweReward(stage.open_private, stage.plan, stage.identify, cache),
        )
        super().__init__(tasks, stage, self._open_shell, env_reward, options=options)

    def solution(self, task: Task) -> list[str]:
        """Return the command that applies the first gold as a patch, and ``submit``."""
        return [*map(apply_patch, task.gold[:1]), "submit"]

    def _open_shell(self, sandbox: SandboxBackend) -> Interpreter:
        return open_shell(sandbox, self._directory(self.episode_state.task))


class SweStage(SandboxStage):
    """A stage that adds a task's repository to its image as a layer, so a reset copies nothing.

    Args:
        provider: The sandbox provider, or its name.
        image, limits, network, default_image: As in `SandboxStage`.
        repositories: A folder or URL with the repositories that tasks name but do not contain.
        history: ``none`` or ``full``: see `SweOptions`.
    """

    def __init__(
        self,
        provider: str | Provider,
        image: str | Path | None = None,
        limits: Limits | None = None,
        network: Network = False,
        default_image: str | None = None,
        repositories: str | Path | None = None,
        history: str = NO_HISTORY,
    ) -> None:
        super().__init__(provider, image, limits, network, default_image)
        self._repositories = None if repositories is None else str(repositories)
        self._history = history
        self.plan: Callable[[Task], SweGradingPlan] = lru_cache(maxsize=1)(make_plan)
        """Returns a task's grading plan, which also contains the repository's directory."""
        self._prepared_repositories: dict[tuple[str, str | None, str], tuple[str, Path]] = {}

    def directory(self, task: Task) -> str:
        """Return the repository's directory, in which the setup runs."""
        return self.plan(task).directory

    def check(self, task: Task) -> None:
        """Refuse a task with a missing repository or image.

        Raises:
            TaskError: A field is malformed, or the repository or commit is missing.
            ImageError: The image's name is invalid, or names a missing file.
        """
        self.plan(task)
        super().check(task)

    def image(self, task: Task) -> str:
        """Return the name of the task's image with its repository as a layer."""
        return f"{super().image(task)}+{self._prepare_repository(task)[1]}"

    def base(self, task: Task) -> str:
        """Return the name of the image without the repository."""
        return "+".join([super().image(task), *self.layers])

    def needs(self, task: Task) -> list[str]:
        """List the programs that the image must have.

        The Python of the tests is included, unless a command runs the tests, or the task has a
        setup, which may install Python.
        """
        plan, programs = self.plan(task), super().needs(task)
        has_own = plan.runner != "command" and not task.setup
        return [*programs, plan.python] if has_own else programs

    def digest(self, task: Task) -> str:
        """Return the digest of the content of the task's image and repository.

        Equal content has an equal digest on every machine: the digest of the repository layer, a
        tarball in this machine's cache, is not used.
        """
        self.provider.digest(self.image(task))  # this call builds the image if necessary
        base_digest = self.provider.digest(super().image(task))
        self.try_programs(task)
        text = f"{base_digest} {self._prepare_repository(task)[0]}"
        return sha256(text)

    def _prepare_repository(self, task: Task) -> tuple[str, Path]:
        commit = task.metadata.get("base_commit")
        if commit is not None and not isinstance(commit, str):
            raise TaskError(f"task {task.task_id!r}: 'metadata.base_commit' must be text")
        key = self._source(task), commit, self.directory(task)
        if key not in self._prepared_repositories:
            if not is_url(key[0]):
                hide(key[0])
            try:
                if task.folder is not None and task.metadata.get("repository") is not None:
                    refuse_links(Path(key[0]))
                self._prepared_repositories[key] = prepare(*key, self._history)
            except ImageError as error:
                raise TaskError(f"task {task.task_id!r}: its repository: {error}") from error
        return self._prepared_repositories[key]

    def _source(self, task: Task) -> str:
        """Return the path or URL of the task's repository.

        Raises:
            TaskError: A field is malformed, or no option locates the repository.
        """
        repository, name = task.metadata.get("repository"), task.metadata.get("repo")
        for text in (repository, name):
            if text is not None and (not isinstance(text, str) or not text or "\0" in text):
                raise TaskError(
                    f"task {task.task_id!r}: 'metadata.repository' and 'metadata.repo' must be text"
                )
        if repository is not None:
            if repository.startswith(PREFIX):
                return str(FOLDER / Path(repository.removeprefix(PREFIX)).name)
            return self._resolve_repository(task, repository)
        if name is None or self._repositories is None:
            raise TaskError(
                f"task {task.task_id!r} has no repository: give 'metadata.repository', or "
                "'metadata.repo' and the folder or URL of the repositories by --repositories"
            )
        if is_url(self._repositories):
            return f"{self._repositories.rstrip('/')}/{name}"
        return self._find_in_mirror(task, Path(self._repositories).expanduser(), name)

    def _resolve_repository(self, task: Task, source: str) -> str:
        """Return the path or URL in the task's ``metadata.repository``.

        Raises:
            TaskError: The path is outside the data's folder, or the task names a URL that does not
                begin with the option `repositories`. Such a URL is refused, because a fetch would
                use this machine's keys.
        """
        if not is_url(source):
            return str(resolve_task_path(task, "metadata.repository", source))
        allowed_prefix = f"{(self._repositories or '').rstrip('/')}/"
        if task.folder is None or (is_url(allowed_prefix) and source.startswith(allowed_prefix)):
            return source
        raise TaskError(
            f"task {task.task_id!r}, field 'metadata.repository': data must not make this machine "
            f"fetch {source!r} with this machine's keys: to allow it, pass a prefix of the URL by "
            "--repositories URL"
        )

    def _find_in_mirror(self, task: Task, mirror: Path, name: str) -> str:
        if name.startswith("/") or ".." in name.split("/"):
            raise TaskError(f"task {task.task_id!r}: 'metadata.repo' is not a name: {name!r}")
        names = [name.replace("/", "__"), name, name.rpartition("/")[2]]
        candidates = [mirror / f"{base}{end}" for base in names for end in ("", ".git", ".bundle")]
        for path in candidates:
            if path.exists():
                return str(path.absolute())
        raise TaskError(
            f"task {task.task_id!r}: {name!r} is not in {mirror}; clone it there, for instance as "
            f"{candidates[1].name}: git clone --mirror URL {candidates[1]}"
        )
