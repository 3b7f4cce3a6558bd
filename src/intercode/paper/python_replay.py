"""Recorded Python runs, once more: each episode in a process of its own."""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from intercode.paper.python_regrade import default_rewards
from intercode.paper.python_session import (
    ENDED,
    LATE,
    LIMITS,
    Answer,
    PaperPython,
    Trial,
    defined,
    submitted,
)
from intercode.paper.regraded import RegradedReport, ReplayedTurn
from intercode.paper.report import Progress
from intercode.paper.results import RecordedEpisode, RecordedRun, task_of
from intercode.paper.together import together
from intercode.sandbox.base import Provider
from intercode.task import Task

_COUNT = re.compile(r"Failed \d+/\d+ Test Cases\.")
_SYNTAX = re.compile(r"\((?:<string>|<unknown>), line \d+\)")


@dataclass(slots=True)
class PythonReplayReport(RegradedReport):
    """What a replay of a Python run found."""

    python: str = ""
    """The version that it was replayed on. It was 3.9 in 2023."""


def replay_python(
    tasks: Sequence[Task],
    recorded: RecordedRun,
    provider: Provider,
    image: str | None = None,
    workers: int = 1,
    progress: Progress | None = None,
) -> PythonReplayReport:
    """Take the recorded actions in fresh processes and compare what comes out.

    Args:
        tasks: The data file that was run, in its order.
        recorded: The results.
        provider: Where sandboxes come from; `python_start.provider` has one.
        image: The image of all tasks; None: each task's own, or ``host``.
        workers: Episodes at a time.
        progress: Is told of each finished episode, from this thread.

    Raises:
        RecordError: An episode's task is not among `tasks`.
        RewardError: A task has no tests, or no function as gold.
        SandboxError, ImageError: A sandbox failed: nothing is reported of a part of a run.
    """
    started = time.monotonic()
    jobs = [(episode, _task(tasks, episode)) for episode in recorded.episodes]

    def run(episode: RecordedEpisode, task: Task) -> list[ReplayedTurn]:
        place = provider.start(image or task.image or "host", LIMITS)
        with closing(place), closing(PaperPython(place)) as session:
            return _episode(session, task, episode)

    with ThreadPoolExecutor(1, "default") as beside:
        by_default = beside.submit(default_rewards, jobs, provider, image)
        replays = together([partial(run, *job) for job in jobs], workers, progress)
    report = PythonReplayReport(python=platform.python_version())
    for (episode, _), turns, reward in zip(jobs, replays, by_default.result(), strict=True):
        report.count(episode, turns, reward, _cause)
    report.seconds = time.monotonic() - started
    return report


def _task(tasks: Sequence[Task], episode: RecordedEpisode) -> Task:
    """An episode's task, by its row: some tasks ask the same."""
    row = int(episode.task_id) if episode.task_id.isdecimal() else -1
    if 0 <= row < len(tasks) and tasks[row].query.strip() == episode.query.strip():
        return tasks[row]
    return task_of(tasks, episode)


def _episode(session: PaperPython, task: Task, episode: RecordedEpisode) -> list[ReplayedTurn]:
    """All that one episode's actions give; turns that do not count are taken all the same."""
    turns = []
    answer: Answer = task.query
    for turn in episode.turns:
        if turn.command is None:
            continue
        reward = 0.0
        kept = turn.observation or ""
        if turn.command.startswith("submit"):
            reward = session.trial(task, submitted(turn.command)).reward
            observation = str(answer)
        elif turn.command == "skip":
            observation = str(answer)
        else:
            answer = session.step(turn.command)
            observation = str(answer)
            if (name := defined(turn.command)) is not None:
                trial = session.trial(task, name)
                reward = trial.reward
                observation = told(answer, trial, kept)
        if turn.counts:
            turns.append(ReplayedTurn(turn, observation, reward))
    return turns


def told(answer: Answer, trial: Trial, recorded: str = "") -> str:
    """What the experiments told a model whose function they had just submitted.

    They had three ways to say that tests fail, one at a time: which one it was is read off what
    they said.

    Args:
        answer: What the action itself gave.
        trial: What the tests gave.
        recorded: What was told then; nothing is the way of the release.
    """
    if trial.reward == 1:
        return str(answer)
    failed = [test for test, result in trial.agent.items() if result["error"]]
    if _COUNT.match(recorded):
        return f"Failed {len(failed)}/{len(trial.agent)} Test Cases. Please try again."
    if not failed:
        return str(answer)
    if recorded.startswith("Failed Test Case: "):
        return f"Failed Test Case: {failed[0]}\nPlease try again."
    return "Test case did not pass. Please try again."


def _cause(turn: ReplayedTurn) -> str:
    """The likely cause of a mismatch, for people."""
    texts = (turn.recorded.observation or "", turn.observation)
    if any(text.endswith((LATE, ENDED)) for text in texts):
        return "time limit, or the end of the process"
    if not turn.same_reward:
        return "tests that depend on Python's version or on the order of a set"
    if any(map(_SYNTAX.search, texts)):
        return "wording of syntax errors, by Python's version"
    return "unknown"
