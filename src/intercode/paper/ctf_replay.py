"""Recorded CTF runs, once more: the same actions and flags, in fresh sandboxes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

from intercode.envs.ctf import CtfEnv, CtfStage
from intercode.paper.bash import LIMITS, TIMED_OUT
from intercode.paper.causes import cause_of
from intercode.paper.ctf_session import PaperCtf, check, in_its_folder, shell
from intercode.paper.regraded import RegradedReport, ReplayedTurn
from intercode.paper.report import Progress
from intercode.paper.results import RecordedEpisode, RecordedRun, task_of
from intercode.paper.together import together
from intercode.sandbox.base import Provider
from intercode.task import Dataset, Task

NO_FILES = "the task's files are not here"


@dataclass(slots=True)
class CtfReplayReport(RegradedReport):
    """What a replay of a CTF run found."""

    without_files: int = 0
    """Episodes whose task has no files here, so that commands show something else."""


def replay_ctf(
    tasks: Sequence[Task],
    recorded: RecordedRun,
    provider: Provider,
    image: str | None = None,
    workers: int = 1,
    progress: Progress | None = None,
) -> CtfReplayReport:
    """Take the recorded actions in fresh sandboxes and compare what comes out.

    Nothing reaches the network. A task's `setup` is not run: in the release it fetches files.
    Tasks without their files are replayed too: rewards depend on the flags alone.

    Args:
        tasks: The data file that was run.
        recorded: The results.
        provider: Where sandboxes come from.
        image: The image of all tasks; None: each task's own, or ``host``.
        workers: Episodes at a time.
        progress: Is told of each finished episode, from this thread.

    Raises:
        RecordError: An episode's task is not among `tasks`.
        TaskError: A task has no flag, or what 2023 knew nothing of.
        SandboxError, ImageError: A sandbox failed: nothing is reported of a part of a run.
    """
    started = time.monotonic()
    stage = CtfStage(provider, image, LIMITS)
    jobs = [
        (episode, replace(in_its_folder(task_of(tasks, episode)), setup=None))
        for episode in recorded.episodes
    ]
    for _, task in jobs:
        check(task)
        stage.check(task)
    calls = [partial(_episode, stage, provider, *job) for job in jobs]
    report = CtfReplayReport()
    replays = together(calls, workers, progress)
    for (episode, _), (turns, default, has_files) in zip(jobs, replays, strict=True):
        report.without_files += not has_files
        report.count(episode, turns, default, partial(_cause, has_files=has_files))
    report.seconds = time.monotonic() - started
    return report


def _episode(
    stage: CtfStage, provider: Provider, episode: RecordedEpisode, task: Task
) -> tuple[list[ReplayedTurn], float, bool]:
    """All that an episode's actions give, its reward by default, and whether there are files."""
    turns = []
    folder = stage.directory(task)
    with closing(stage.start(task)) as sandbox:
        has_files = bool(sandbox.exec(["ls", "-A", "--", folder]).stdout)
        session = PaperCtf(task, shell(sandbox, stage.image(task), folder))
        for turn in episode.turns:
            if turn.command is None:
                continue
            reward = session.step(turn.command)
            if turn.counts:
                turns.append(ReplayedTurn(turn, session.observation, reward))
    return turns, _by_default(provider, episode, task), has_files


def _by_default(provider: Provider, episode: RecordedEpisode, task: Task) -> float:
    """The default reward of what was submitted: of it alone, as the reward looks at nothing else.

    So the commands between, which have just been run, need not be.
    """
    flags = [t.command for t in episode.turns if t.command and t.command.startswith("submit")]
    bare = Dataset([Task(task.task_id, task.query, task.gold)], "replay")
    with closing(CtfEnv(bare, sandbox=provider, max_turns=len(flags) + 1)) as env:
        env.reset()
        for action in (*flags, "submit"):
            _, reward, terminated, _, _ = env.step(action)
            if terminated:
                return reward
    raise AssertionError("'submit' ends an episode")


def _cause(turn: ReplayedTurn, has_files: bool) -> str:
    """The likely cause of a mismatch, for people."""
    command = turn.recorded.command or ""
    if not turn.same_reward:
        return "another flag"
    if command.startswith("submit"):
        return "words after a flag"
    recorded = turn.recorded.observation or ""
    if TIMED_OUT in (recorded, turn.observation):
        return "time limit"
    if not has_files:
        return NO_FILES
    return cause_of(command, recorded, turn.observation, same_observation=False, gold="")
