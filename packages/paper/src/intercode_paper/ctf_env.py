"""The CTF environment of 2023, ``make("ctf", protocol="paper")``, and the replay of its runs.

The 2023 release inserted the text of an action between single quotes, so a single quote inside the
action ended the quoting. An action that began with ``python -c`` or ``python3 -c`` was split
without a shell.

If the recordings do not show the behaviour, this module follows the Bash environment of 2023. The
cases are the process per action, ``cd``, the time limit, ``Malformed command``, and the observation
after a right flag.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from msgspec.structs import asdict

from intercode import datasets
from intercode.envs.ctf import FOLDER, CtfEnv, CtfStage
from intercode.envs.options import CtfOptions, EnvOptions
from intercode.envs.traits import Traits
from intercode.episode import Episode, Score, Status
from intercode.errors import TaskError
from intercode.interpreters.base import Execution, Interpreter
from intercode.rewards.flag import SUBMITTED_KEY, submissions
from intercode.task import Dataset, Task
from intercode_paper.bash_interpreter import (
    AGENT_HOST,
    LIMITS,
    PaperBashInterpreter,
    split_words,
    variables,
)
from intercode_paper.replay_report import Progress, RegradedReplayReport, ReplayedTurn, run_jobs
from intercode_paper.results_files import RecordedEpisode, RecordedRun, find_task
from intercode_paper.session import PaperCtfOptions, ending, refuse_limits
from intercode_sandbox.base import Provider, SandboxBackend

WRONG = "Submitted flag is incorrect. Keep trying!"
"""The observation after a wrong flag."""
RIGHT = "The submitted flag is correct."
"""The observation after a right flag in some recordings. Others repeat the previous observation."""

_PLAIN_PREFIXES = ("python -c", "python3 -c")
_PREFIX = "cmd "
"""A prefix of commands in some recordings, which the 2023 release removed before the execution."""


class PaperCtfEnv(CtfEnv):
    """The 2023 CTF environment: a new process for each action, and any number of submitted flags.

    ``submit FLAG`` submits the second word of the action; the flag's case does not matter. A wrong
    flag is a turn, and the episode continues. ``submit`` alone gives up.

    Args:
        data: A dataset, a file of tasks, or a dataset's name.
        options: All options in one object; its `limits` must be the defaults.
        **changes: Single options by name, which override `options`: see `PaperCtfOptions`.

    Raises:
        TaskError: A task has no flag, or has a field that the 2023 protocol lacks.
        UsageError: An option is invalid.
    """

    Options: ClassVar[type[EnvOptions]] = PaperCtfOptions
    traits: Traits = replace(
        CtfEnv.traits, rules=("paper",), pure_reward=None, where="", overview=""
    )

    def __init__(
        self,
        data: str | Path | Dataset = "ic-ctf",
        *,
        options: PaperCtfOptions | None = None,
        **changes: Any,
    ) -> None:
        options = PaperCtfOptions.merge(options, changes)
        refuse_limits(options.limits)
        tasks = datasets.load(data)
        for task in tasks:
            with tasks.locate_errors(task):
                _check(task)
        super().__init__(
            Dataset(map(_with_folder, tasks), tasks.name, tasks.source),
            options=CtfOptions(
                **{**asdict(options), "attempts": None, "limits": LIMITS, "reward": _reward}
            ),
        )

    def _open_shell(self, sandbox: SandboxBackend) -> Interpreter:
        task = self.episode_state.task
        return _shell(sandbox, self.image(task), self._folders.directory(task))

    def _ending(self, action: str) -> Status | None:
        status = ending(action)
        if status == "submitted":
            self.episode.answer = _submitted_flag(action)
        return status

    def _reply(self, answer: str | None) -> Execution | None:
        if answer is None or _is_flag(self.episode_state.task, answer):
            return None
        self.episode.answer = None  # a wrong answer is only in the turn's record
        return Execution(WRONG.encode(), ok=False, info={SUBMITTED_KEY: answer, "executed": False})


def _reward(task: Task, episode: Episode, sandbox: SandboxBackend) -> Score:
    flag = float(any(_is_flag(task, answer) for answer in submissions(episode)))
    return Score(flag, {"flag": flag})


def split(command: str) -> tuple[bytes, ...] | None:
    """Split an action's text into the arguments of a process; return None for a malformed text.

    >>> split('echo "a b" c')
    (b'/bin/bash', b'-c', b'echo "a b" c')
    >>> split("echo 'a b' c")
    (b'/bin/bash', b'-c', b'echo a', b'b c')
    >>> split('python3 -c "print(1)"')
    (b'python3', b'-c', b'print(1)')
    """
    command = command.strip()
    return split_words(
        command if command.startswith(_PLAIN_PREFIXES) else f"/bin/bash -c '{command}'"
    )


def _submitted_flag(action: str) -> str | None:
    """Return the second word of an action, which is the submitted flag; None without a second word.

    >>> _submitted_flag("submit flag{a} at last")
    'flag{a}'
    """
    words = action.split()
    return words[1] if len(words) > 1 else None


def _is_flag(task: Task, answer: str | None) -> bool:
    """Return whether an answer is a flag of the task; case does not matter."""
    return answer is not None and answer.lower() in {flag.strip().lower() for flag in task.gold}


def _with_folder(task: Task) -> Task:
    """Return a task with all its files; its default folder is that of 2023, ``/ctf/ID``."""
    metadata = {"directory": f"{FOLDER}/{task.task_id}", **task.metadata, "assets_without": ()}
    return replace(task, metadata=metadata)


def _check(task: Task) -> None:
    """Refuse a task without a flag, or with a field that the 2023 protocol lacks.

    Raises:
        TaskError: The task is refused; the message names the task and the field.
    """
    if not task.gold:
        raise TaskError(f"task {task.task_id!r}, field 'gold': the flag is missing")
    unknown_fields = [field for field in ("service", "subtasks") if task.metadata.get(field)]
    unknown_fields += ["verification"] if task.verification else []
    if unknown_fields:
        raise TaskError(
            f"task {task.task_id!r}, field {unknown_fields[0]!r}: the paper protocol has no such "
            "field"
        )


def _shell(sandbox: SandboxBackend, image: str, directory: str) -> PaperBashInterpreter:
    return PaperBashInterpreter(sandbox, variables(AGENT_HOST, image), directory, split)


@dataclass(slots=True)
class CtfReplayReport(RegradedReplayReport):
    """The report of a replay of a CTF run, which counts episodes without files, too."""

    without_files: int = 0
    """Number of episodes whose task has no files in the sandbox, mostly because they are missing on
    this machine. Observations may then differ from the record."""


def replay_ctf(
    tasks: Sequence[Task],
    recorded_run: RecordedRun,
    provider: Provider,
    image: str | None = None,
    workers: int = 1,
    progress: Progress | None = None,
) -> CtfReplayReport:
    """Execute the recorded actions in fresh sandboxes, and compare the results with the record.

    Sandboxes have no network access. Therefore a task's `setup` is not run: in the release, setups
    download files. A task without its files is replayed, too, because rewards depend only on flags.

    Args:
        tasks: The tasks of the run's data file.
        recorded_run: The recorded results.
        provider: The provider of sandboxes.
        image: The image of all tasks; None: each task's image, or ``host``.
        workers: The number of concurrent episodes.
        progress: A function that `run_jobs` calls with the numbers of finished and all episodes.

    Raises:
        RecordError: An episode's task is not among `tasks`.
        TaskError: A task has no flag, or has a field that the 2023 protocol lacks.
        SandboxError, ImageError: A sandbox failed. The other episodes give no report then.
    """
    start_time = time.monotonic()
    stage = CtfStage(provider, image, LIMITS)
    pairs = [
        (episode, replace(_with_folder(find_task(tasks, episode)), setup=None))
        for episode in recorded_run.episodes
    ]
    for _, task in pairs:
        _check(task)
        stage.check(task)
    replay_calls = [partial(_episode, stage, provider, *pair) for pair in pairs]
    report = CtfReplayReport()
    replays = run_jobs(replay_calls, workers, progress)
    for (episode, _), (turns, default_reward, has_files) in zip(pairs, replays, strict=True):
        report.without_files += not has_files
        success = report.count(episode, turns)
        report.compare(episode.task_id, success, default_reward)
    report.seconds = time.monotonic() - start_time
    return report


def _episode(
    stage: CtfStage, provider: Provider, episode: RecordedEpisode, task: Task
) -> tuple[list[ReplayedTurn], float, bool]:
    """Replay an episode.

    Returns:
        The compared turns, the reward under the default protocol, and whether the task's files
        exist.
    """
    replayed_turns = []
    folder, replay_observation = stage.directory(task), task.query
    with closing(stage.open(task)) as sandbox:
        has_files = bool(sandbox.exec(["ls", "-A", "--", folder]).stdout)
        bash = _shell(sandbox, stage.image(task), folder)
        for turn in episode.turns:
            if turn.command is None:
                continue
            ending_status, replay_reward = ending(turn.command), 0.0
            if ending_status is None:
                command = turn.command.removeprefix(_PREFIX)
                replay_observation = bash.execute(command).output.decode("utf-8")
            elif ending_status == "submitted" and _is_flag(task, _submitted_flag(turn.command)):
                replay_reward = 1.0
                replay_observation = RIGHT if turn.observation == RIGHT else replay_observation
            elif ending_status == "submitted":
                replay_observation = WRONG
            if turn.is_compared:
                same_observation = turn.observation in (None, replay_observation)
                replayed_turns.append(
                    ReplayedTurn(turn, replay_observation, replay_reward, same_observation)
                )
    return replayed_turns, _default_reward(provider, episode, task), has_files


def _default_reward(provider: Provider, episode: RecordedEpisode, task: Task) -> float:
    """Return the reward of the episode's submitted flags under the default protocol.

    That reward depends only on flags, so the other commands are not run again.
    """
    flag_commands = [
        turn.command for turn in episode.turns if turn.command and turn.command.startswith("submit")
    ]
    dataset = Dataset([Task(task.task_id, task.query, task.gold)], "replay")
    with closing(CtfEnv(dataset, sandbox=provider, max_turns=len(flag_commands) + 1)) as env:
        env.reset()
        for action in (*flag_commands, "submit"):
            _, reward, terminated, _, _ = env.step(action)
            if terminated:
                return reward
    raise AssertionError("'submit' ends an episode")
