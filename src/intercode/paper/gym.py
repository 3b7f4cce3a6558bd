"""The 2023 semantics behind Gymnasium's interface: ``intercode.make("bash", protocol="paper")``."""

from __future__ import annotations

import threading
import weakref
from pathlib import Path
from typing import Any, ClassVar

from intercode.datasets import load
from intercode.envs.base import InterCodeEnv
from intercode.envs.options import EnvOptions
from intercode.envs.stage import SandboxStage
from intercode.episode import Episode, Score, Status
from intercode.errors import TaskError
from intercode.interpreters.base import Interpreter
from intercode.paper.bash import AGENT_HOST, PaperBash, variables
from intercode.paper.container import PaperImage, md5sum
from intercode.paper.gold import GoldRuns
from intercode.paper.limits import PaperOptions, refuse
from intercode.paper.reward import Outcome, score
from intercode.sandbox import Provider, Sandbox
from intercode.task import Dataset, Task

IMAGE = "nl2bash"
"""What tasks run in that name no image."""

_prepared: weakref.WeakKeyDictionary[Provider, dict[str, tuple[PaperImage, GoldRuns]]]
_prepared = weakref.WeakKeyDictionary()
_lock = threading.Lock()


class PaperStage(SandboxStage):
    """Starts sandboxes as the 2023 resets left containers.

    What is prepared once for an image is shared by all environments of a provider.
    """

    def image(self, task: Task) -> str:
        """The image that the task runs in."""
        return self._image or task.image or IMAGE

    def changed(self, task: Task, place: Sandbox) -> bool:
        """Never: an image is prepared once, and gold runs in the same."""
        return False

    def prepared(self, task: Task) -> tuple[PaperImage, GoldRuns]:
        """The task's image made ready, and what golds leave in it."""
        name = self.image(task)
        with _lock:
            known = _prepared.setdefault(self.provider, {})
            if name not in known:
                image = PaperImage(self.provider, name)
                known[name] = image, GoldRuns(image)
            return known[name]

    def start(self, task: Task) -> Sandbox:
        """A fresh sandbox."""
        return self.prepared(task)[0].start()


class PaperReward:
    """The 2023 reward of an episode."""

    def __init__(self, stage: PaperStage) -> None:
        self._stage = stage

    def __call__(self, task: Task, episode: Episode, sandbox: Sandbox) -> Score:
        """The score.

        Raises:
            RewardError: Gold could not be run.
            SandboxError: The sandbox died.
        """
        image, golds = self._stage.prepared(task)
        executed = (t for t in reversed(episode.turns) if t.info.get("executed", True))
        observation = next((turn.observation for turn in executed), task.query)
        agent = Outcome(image.status(sandbox), observation, lambda path: md5sum(sandbox, path))
        return score(agent, golds.outcome(task, again=episode.status == "running"))


class PaperEnv(InterCodeEnv[Sandbox]):
    """The 2023 Bash environment: a new process for each action, its reward, its quirks.

    Args:
        data: A dataset, a file of tasks, or a dataset's name.
        options: The options, as one value; its `limits` must be the defaults.
        **changes: Single options by their names.

    Raises:
        TaskError: A task has no gold, or has what 2023 knew nothing of.
        UsageError: An option makes no sense.
    """

    name: ClassVar[str] = "bash"
    Options: ClassVar[type[EnvOptions]] = PaperOptions

    def __init__(
        self,
        data: str | Path | Dataset = "bash",
        *,
        options: PaperOptions | None = None,
        **changes: Any,
    ) -> None:
        options = PaperOptions.of(options, changes)
        refuse(options.limits)
        tasks = load(data)
        for row, task in enumerate(tasks):
            _check(tasks, row, task)
        stage = PaperStage(options.sandbox, options.image)

        def interpreter(sandbox: Sandbox) -> Interpreter:
            assert self._task is not None  # there is an episode
            return PaperBash(sandbox, variables(AGENT_HOST, stage.image(self._task)))

        super().__init__(tasks, stage, interpreter, PaperReward(stage), options=options)

    def _ending(self, action: str) -> Status | None:
        if action == "skip":
            return "skipped"
        return "submitted" if action.startswith("submit") else None


def _check(tasks: Dataset, row: int, task: Task) -> None:
    where = f"{tasks.source or tasks.name}: row {row}"
    if not task.gold:
        raise TaskError(f"{where}, field 'gold': the paper protocol compares with gold")
    for field in ("setup", "files", "verification"):
        if getattr(task, field):
            raise TaskError(f"{where}, field {field!r}: the paper protocol has no such thing")
