"""The Bash environment of 2023, ``make("bash", protocol="paper")``, and the replay of its runs."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from intercode import datasets
from intercode.envs.base import InterCodeEnv
from intercode.envs.options import EnvOptions
from intercode.envs.stage import NoWorkspaceRecipe, SandboxStage
from intercode.envs.traits import SHELL, Traits
from intercode.episode import Episode, Score, Status
from intercode.errors import TaskError
from intercode.interpreters.base import Interpreter
from intercode.task import Dataset, Task
from intercode_paper.bash_interpreter import AGENT_HOST, PaperBashInterpreter, variables
from intercode_paper.bash_reward import GoldOutcomeCache, early_score
from intercode_paper.container_images import PaperImage
from intercode_paper.replay_report import CUT, Progress, ReplayedTurn, ReplayReport, run_jobs
from intercode_paper.results_files import RecordedEpisode, RecordedRun, find_task
from intercode_paper.session import PaperOptions, ending, refuse_limits
from intercode_sandbox import Provider, SandboxBackend

IMAGE = "nl2bash"
"""The default image of tasks."""

_golds_by_provider: weakref.WeakKeyDictionary[Provider, dict[str, GoldOutcomeCache]] = (
    weakref.WeakKeyDictionary()
)
_golds_lock = threading.Lock()


def gold_runs(provider: Provider, image: str) -> GoldOutcomeCache:
    """Return the cache of golds' outcomes for an image.

    All environments with the same provider share the cache, so an image is prepared once per
    provider.
    """
    with _golds_lock:
        runs_by_image = _golds_by_provider.setdefault(provider, {})
        if image not in runs_by_image:
            runs_by_image[image] = GoldOutcomeCache(PaperImage(provider, image))
        return runs_by_image[image]


class PaperBashStage(NoWorkspaceRecipe, SandboxStage):
    """A stage whose sandboxes start in the state of a 2023 container after its first reset.

    All environments with the same provider share the preparation of an image.
    """

    DEFAULT = IMAGE

    def changed(self, task: Task, workspace: SandboxBackend) -> bool:
        """Return False: gold always runs in the same prepared image as the agent."""
        return False

    def golds(self, task: Task) -> GoldOutcomeCache:
        """Return the cache of golds' outcomes for a task's image."""
        return gold_runs(self.provider, self.image(task))

    def open(self, task: Task) -> SandboxBackend:
        """Start a fresh sandbox for a task."""
        return self.golds(task).image.start()


class PaperBashReward:
    """The 2023 reward of an episode.

    Args:
        stage: The stage with the cache of golds' outcomes.
    """

    def __init__(self, stage: PaperBashStage) -> None:
        self._stage = stage
        self._last_episode: Episode | None = None

    def __call__(self, task: Task, episode: Episode, sandbox: SandboxBackend) -> Score:
        """Score an episode by its last observation and the current state of its sandbox.

        Raises:
            RewardError: The task has no gold.
            SandboxError: The sandbox was lost, or gold's sandbox failed.
        """
        executed_turns = (
            past_turn
            for past_turn in reversed(episode.turns)
            if past_turn.info.get("executed", True)
        )
        observation = next((turn.observation for turn in executed_turns), task.query)
        is_repeat, self._last_episode = self._last_episode is episode, episode
        return self._stage.golds(task).score(task, observation, sandbox, is_repeat)


class PaperBashEnv(InterCodeEnv[SandboxBackend]):
    """The 2023 Bash environment: a new process for each action, with the 2023 reward and quirks.

    Args:
        data: A dataset, a file of tasks, or a dataset's name.
        options: All options in one object; its `limits` must be the defaults.
        **changes: Single options by name, which override `options`: see `PaperOptions`.

    Raises:
        TaskError: A task has no gold, or has a field that the 2023 protocol lacks.
        UsageError: An option is invalid.
    """

    name: ClassVar[str] = "bash"
    Options: ClassVar[type[EnvOptions]] = PaperOptions
    traits: Traits = replace(SHELL, rules=("paper",), where="", overview="")

    def __init__(
        self,
        data: str | Path | Dataset = "bash",
        *,
        options: PaperOptions | None = None,
        **changes: Any,
    ) -> None:
        options = PaperOptions.merge(options, changes)
        refuse_limits(options.limits)
        tasks = datasets.load(data)
        for task in tasks:
            _check(tasks, task)
        stage = PaperBashStage(options.sandbox, options.image, default_image=options.default_image)

        def interpreter(sandbox: SandboxBackend) -> Interpreter:
            image = stage.image(self.episode_state.task)
            return PaperBashInterpreter(sandbox, variables(AGENT_HOST, image))

        super().__init__(
            tasks,
            stage,
            interpreter,
            PaperBashReward(stage),
            options=options,
        )

    def _ending(self, action: str) -> Status | None:
        return ending(action)


def _check(tasks: Dataset, task: Task) -> None:
    location = tasks.where(task)
    if not task.gold:
        raise TaskError(f"{location}, field 'gold': the paper protocol compares with gold")
    for unsupported_field in ("setup", "files", "verification"):
        if getattr(task, unsupported_field):
            raise TaskError(
                f"{location}, field {unsupported_field!r}: the paper protocol has no such field"
            )


_OTHER_SUITES = {
    "ic_bash_react_10_turns_fs_2": (range(53), "nl2bash_fs_1"),
    "ic_bash_plan_solve_fs_2": (range(31), "nl2bash_fs_1"),
}
"""Name of a results file of the release → its rows that were recorded in the container of another
suite, and the name of that suite. Only the observations show the other container."""


def suites_by_episode(recorded_run: RecordedRun) -> dict[str, str]:
    """Return, for each episode recorded in another suite's container, the name of that suite.

    Args:
        recorded_run: The recorded results, whose file name identifies the run.

    Returns:
        Episode id → suite.
    """
    suite_rows, suite = _OTHER_SUITES.get(recorded_run.path.stem, (range(0), ""))
    task_ids = [episode.task_id for episode in recorded_run.episodes]
    return {
        task_id: suite for task_id in task_ids if task_id.isdecimal() and int(task_id) in suite_rows
    }


def replay_bash(
    tasks: Sequence[Task],
    recorded_run: RecordedRun,
    provider: Provider,
    image: str,
    workers: int = 1,
    progress: Progress | None = None,
    task_images: Mapping[str, str] | None = None,
) -> ReplayReport:
    """Execute the recorded actions in fresh sandboxes, and compare the results with the record.

    Args:
        tasks: The tasks of the run's data file, in the file's order.
        recorded_run: The recorded results.
        provider: The provider of sandboxes.
        image: The image of the run's file system.
        workers: The number of concurrent episodes.
        progress: A function that `run_jobs` calls with the numbers of finished and all episodes.
        task_images: Episode id → the image for this episode, in place of `image`.

    Raises:
        RecordError: An episode's task is not among `tasks`.
        RewardError: A task has no gold.
        SandboxError, ImageError: A sandbox failed. The other episodes give no report then.
    """
    start_time = time.monotonic()
    pairs = [(find_task(tasks, episode), episode) for episode in recorded_run.episodes]
    episode_images = [
        (task_images or {}).get(episode.task_id, image) for episode in recorded_run.episodes
    ]
    with ExitStack() as stack:
        runs_by_image = {
            image_name: GoldOutcomeCache(
                stack.enter_context(closing(PaperImage(provider, image_name)))
            )
            for image_name in dict.fromkeys(episode_images)
        }
        replay_calls = [
            partial(_episode, runs_by_image[image_name], *pair)
            for image_name, pair in zip(episode_images, pairs, strict=True)
        ]
        replays = run_jobs(replay_calls, workers, progress)
    report = _report(recorded_run.episodes, replays)
    report.seconds = time.monotonic() - start_time
    return report


@dataclass(frozen=True, slots=True)
class _BashReplayTurn(ReplayedTurn):
    early_reward: float
    """The turn's reward by the version of the reward before the release; see `early_score`."""


def has_same_text(recorded_text: str, replayed_text: str) -> bool:
    """Return whether an observation equals the recorded text, possibly cut to `CUT` characters."""
    return recorded_text == (replayed_text[:CUT] if len(recorded_text) == CUT else replayed_text)


def _episode(
    golds: GoldOutcomeCache, task: Task, episode: RecordedEpisode
) -> list[_BashReplayTurn]:
    """Replay one episode. Turns without a recorded reward are executed, but not returned."""
    replayed_turns: list[_BashReplayTurn] = []
    replay_observation, is_scored = task.query, False
    with closing(golds.image.start()) as sandbox:
        bash = PaperBashInterpreter(sandbox, variables(AGENT_HOST, golds.image.name))
        for turn in episode.turns:
            if turn.command is None:
                continue
            is_submission = turn.command.startswith("submit")
            if not is_submission and turn.command != "skip":
                replay_observation = bash.execute(turn.command).output.decode("utf-8")
            replay_score = Score(0.0)
            # Computed rewards are at least 0.01, so a recorded reward of 0 was not computed.
            if is_submission or turn.reward:
                replay_score, is_scored = (
                    golds.score(task, replay_observation, sandbox, is_repeat=is_scored),
                    True,
                )
            if turn.is_compared:
                same_observation = turn.observation is None or has_same_text(
                    turn.observation, replay_observation
                )
                early_reward = early_score(replay_score).value if replay_score.detail else 0.0
                replayed_turns.append(
                    _BashReplayTurn(
                        turn, replay_observation, replay_score.value, same_observation, early_reward
                    )
                )
    return replayed_turns


def _report(
    episodes: Sequence[RecordedEpisode], replays: Sequence[list[_BashReplayTurn]]
) -> ReplayReport:
    # The files do not name the version of the reward. All turns of a run have the same version: the
    # version with more equal rewards, or the released version in case of a tie.
    all_turns = [turn for turns in replays for turn in turns]
    is_early = sum(turn.recorded_turn.has_reward(turn.early_reward) for turn in all_turns) > sum(
        turn.same_reward for turn in all_turns
    )
    report = ReplayReport(version="early" if is_early else "released")
    for episode, turns in zip(episodes, replays, strict=True):
        version_turns = [
            replace(turn, reward=turn.early_reward) if is_early else turn for turn in turns
        ]
        report.count(episode, version_turns)
    return report
