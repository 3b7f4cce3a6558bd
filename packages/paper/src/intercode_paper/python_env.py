"""The Python environment of 2023, ``make("python", protocol="paper")``, and the replay of its runs.

As in 2023, the reward runs the tests in the namespace that the agent's actions have changed.
"""

from __future__ import annotations

import json
import platform
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar

from intercode import datasets
from intercode.envs.base import InterCodeEnv
from intercode.envs.options import EnvOptions
from intercode.envs.python import PythonEnv
from intercode.envs.stage import SandboxStage
from intercode.envs.traits import PYTHON, Traits
from intercode.episode import Episode, Score, Status
from intercode.errors import RewardError, TaskError
from intercode.interpreters.python import PythonInterpreter
from intercode.task import Dataset, Task
from intercode_paper.python_server import FAILED
from intercode_paper.replay_report import Progress, RegradedReplayReport, ReplayedTurn, run_jobs
from intercode_paper.results_files import RecordedEpisode, RecordedRun, find_task
from intercode_paper.session import PaperOptions, PaperStage, TextInterpreter, ending, refuse_limits
from intercode_sandbox.base import Limits, Provider, SandboxBackend

TIMEOUT = 30.0
"""The time limit, in seconds, that the client of 2023 set for one request: an action or a test."""
LIMITS = Limits(timeout=TIMEOUT, output=16 << 20)
LATE = "result expired"
"""The message of the 2023 client if a request exceeded the time limit."""
ENDED = "connection closed by peer"
"""The message of the 2023 client if the server had ended."""
Result = dict[str, str]
"""The result of executing code, by name: ``output`` and ``error``, or only ``error``."""
Answer = Result | str
"""The answer to an action: a result, or a text if the action was not executed."""
_FUNCTION = re.compile(r"def (\w+)\(")


@dataclass(frozen=True, slots=True)
class TestResults:
    """The results of a task's tests for the submitted function, and for gold: test → result."""

    agent: Mapping[str, Result]
    gold: Mapping[str, Result]

    @property
    def reward(self) -> float:
        """The share of tests with equal results in [0, 1]. Equal failures are equal results."""
        equal_count = sum(result == self.gold[test] for test, result in self.agent.items())
        return equal_count / len(self.agent)


class PaperPythonWorkspace:
    """The workspace of an episode: a Python server in a sandbox, and the client of the server.

    Args:
        sandbox: The sandbox of the server, which `close` closes.
        timeout: The time limit of one request in seconds.

    Raises:
        SandboxError: The sandbox failed.
    """

    def __init__(self, sandbox: SandboxBackend, timeout: float = TIMEOUT) -> None:
        self.sandbox = sandbox
        self._timeout = timeout
        try:
            self._python = PythonInterpreter(sandbox, prelude=_prelude())
        except BaseException:
            sandbox.close()
            raise

    def step(self, action: str) -> Answer:
        """Execute an action, and return the answer. The text of the answer is the observation.

        Raises:
            SandboxError: The sandbox failed.
        """
        return self._ask("step", action)

    def trial(self, task: Task, agent_function_name: str) -> TestResults:
        """Run the tests with the agent's function under gold's name, and then with gold.

        Gold's run starts in a new namespace, which remains for later actions.

        Args:
            task: The task.
            agent_function_name: The name of the agent's function.

        Raises:
            RewardError: Gold defines no function, or the task has no tests.
            SandboxError: The sandbox failed.
        """
        if not task.tests:
            raise RewardError(f"task {task.task_id!r} has no tests")
        self._execute(f"{gold_name(task)} = {agent_function_name}")
        agent_results = self._tests(task)
        self._ask("reset", "")
        return TestResults(agent_results, self._tests(task, task.gold[0]))

    def kill(self) -> None:
        """Do nothing, because the tests need the agent's namespace."""

    def close(self) -> None:
        """End the server, and close the sandbox. Idempotent."""
        self._python.close()
        self.sandbox.close()

    def _tests(self, task: Task, gold: str = "") -> dict[str, Result]:
        self._execute(str(task.metadata.get("test_setup_code") or ""))
        self._execute(gold)
        return {test: self._execute(test) for test in task.tests}

    def _execute(self, source: str) -> Result:
        answer = self._ask("execute", source)
        # In 2023 an answer that was a text ended the whole experiment. Here, it is a failed test.
        return answer if isinstance(answer, dict) else {"error": f"Error: {answer}"}

    def _ask(self, request: str, source: str) -> Answer:
        execution = self._python.execute(f"server.answer({request!r}, {source!r})", self._timeout)
        if execution.info.get("timed_out"):
            return FAILED + LATE
        answer = _parse_answer(execution.output.strip().rpartition(b"\n")[2])
        return FAILED + ENDED if answer is None else answer


def score(trial: TestResults, function_name: str) -> Score:
    """Return the score of a submitted function. The score's detail is the ``info`` of 2023.

    Args:
        trial: The results of the tests for the submitted function, and for gold.
        function_name: The name of the submitted function.
    """
    info = {
        "submitted_function": function_name,
        "agent_obs": dict(trial.agent),
        "eval_obs": dict(trial.gold),
        "reward": trial.reward,
    }
    return Score(trial.reward, {"tests": trial.reward}, info)


def gold_name(task: Task) -> str:
    """Return the name of the first function that a task's gold defines.

    Raises:
        RewardError: Gold defines no function.
    """
    match = _FUNCTION.search(task.gold[0]) if task.gold else None
    if match is None:
        raise RewardError(f"task {task.task_id!r}, field 'gold': it defines no function")
    return match[1]


def submitted_name(action: str) -> str:
    """Return the name in an action ``submit NAME``; empty without a name.

    >>> submitted_name("submit total")
    'total'
    """
    return action.split(" ")[1] if " " in action else ""


def defined_name(action: str) -> str | None:
    """Return the name of the function that an action defines at its start; None without a function.

    The experiments of 2023 submitted this function after the action.
    """
    match = _FUNCTION.match(action)
    return match[1] if match else None


def is_error(answer: Answer) -> bool:
    """Return whether an answer reports that the action failed."""
    return isinstance(answer, str) or bool(answer["error"])


def _parse_answer(data: bytes) -> Answer | None:
    """Parse the server's answer; return None for invalid data, which an agent's code may print."""
    try:
        answer: Any = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if isinstance(answer, str):
        return answer
    if not isinstance(answer, dict) or not all(isinstance(text, str) for text in answer.values()):
        return None
    if set(answer) not in ({"error"}, {"output", "error"}):
        return None
    return {str(key): str(text) for key, text in answer.items()}


@cache
def _prelude() -> str:
    source = Path(__file__).with_name("python_server.py").read_text(encoding="utf-8")
    return f"{source}\nserver = PythonServer()\n"


class PythonStage(PaperStage[PaperPythonWorkspace]):
    """A stage that opens a new server in a new sandbox for each episode.

    Args:
        stage: The stage of the default protocol, which starts the sandboxes.
    """

    def changed(self, task: Task, workspace: PaperPythonWorkspace) -> bool:
        """Return whether the task's image has changed since the workspace was opened."""
        return self._stage.changed(task, workspace.sandbox)

    def check(self, task: Task) -> None:
        """Refuse a task that the protocol does not support.

        Raises:
            TaskError: The task has no tests or no function as gold, an unsupported field, or an
                invalid image.
            ImageError: The image of all tasks is invalid or names a missing file.
        """
        try:
            gold_name(task)
        except RewardError as error:
            raise TaskError(str(error)) from error
        if not task.tests:
            raise TaskError(f"task {task.task_id!r}, field 'tests': the paper protocol needs it")
        for field in ("setup", "files", "verification"):
            if getattr(task, field):
                raise TaskError(
                    f"task {task.task_id!r}, field {field!r}: the 2023 release has no such field"
                )
        self._stage.check(task)

    def open(self, task: Task) -> PaperPythonWorkspace:
        """Start a new server in a new sandbox."""
        return PaperPythonWorkspace(self._stage.open(task))


class PaperPythonEnv(InterCodeEnv[PaperPythonWorkspace]):
    """The 2023 Python environment, with its observations, reward and quirks.

    ``submit NAME`` submits the function of that name. Gold runs in the agent's session. With
    `reward_every_turn`, gold's namespace remains for the next action.

    Args:
        data: A dataset, a file of tasks, or a dataset's name.
        options: All options in one object; its `limits` must be the defaults.
        **changes: Single options by name, which override `options`: see `PaperOptions`.

    Raises:
        TaskError: A task has no tests or no function as gold, or has a field that the 2023 protocol
            lacks.
        UsageError: An option is invalid.
        ImageError: The image of all tasks is invalid.
    """

    name: ClassVar[str] = "python"
    prompt: ClassVar[str] = ">>> "
    takes_answer: ClassVar[bool] = True
    Options: ClassVar[type[EnvOptions]] = PaperOptions
    traits: Traits = replace(PYTHON, rules=("paper",), where="")

    def __init__(
        self,
        data: str | Path | Dataset = "mbpp",
        *,
        options: PaperOptions | None = None,
        **changes: Any,
    ) -> None:
        options = PaperOptions.merge(options, changes)
        refuse_limits(options.limits)
        tasks = datasets.load(data)
        provider = options.sandbox
        if isinstance(provider, str):
            provider = self.traits.provider(provider)
        stage = PythonStage(
            SandboxStage(provider, options.image, LIMITS, default_image=options.default_image)
        )
        for task in tasks:
            stage.check(task)
        super().__init__(
            tasks,
            stage,
            lambda workspace: TextInterpreter(workspace.step, is_error),
            _reward,
            options=options,
        )

    def _ending(self, action: str) -> Status | None:
        status = ending(action)
        if status == "submitted":
            self.episode.answer = submitted_name(action) or None
        return status


def _reward(task: Task, episode: Episode, workspace: PaperPythonWorkspace) -> Score:
    """Score the submitted function; without a submission, the one that the last action defined.

    Raises:
        SandboxError: The sandbox was lost.
    """
    function_name = episode.answer
    if episode.status != "submitted" and episode.turns:
        function_name = defined_name(episode.turns[-1].action)
        if function_name is None:  # the experiments of 2023 then submitted nothing
            return Score(0.0)
    return score(workspace.trial(task, function_name or ""), function_name or "")


_COUNT = re.compile(r"Failed \d+/\d+ Test Cases\.")


@dataclass(slots=True)
class PythonReplayReport(RegradedReplayReport):
    """The report of a replay of a Python run."""

    python: str = ""
    """The version of Python that executed the replay; the version of 2023 was 3.9."""


def replay_python(
    tasks: Sequence[Task],
    recorded_run: RecordedRun,
    provider: Provider,
    image: str | None = None,
    workers: int = 1,
    progress: Progress | None = None,
) -> PythonReplayReport:
    """Execute the recorded actions in new sandboxes, and compare the results with the record.

    Args:
        tasks: The tasks of the run's data file, in order.
        recorded_run: The recorded results.
        provider: The provider of sandboxes; see `intercode.interpreters.python_start.provider`.
        image: The image of all tasks; None: each task's image, or ``host``.
        workers: The number of concurrent episodes.
        progress: A function that `run_jobs` calls with the numbers of finished and all episodes.

    Raises:
        RecordError: An episode's task is not among `tasks`.
        RewardError: A task has no tests, or no function as gold.
        TaskError: A task's tests are not Python.
        SandboxError, ImageError: A sandbox failed. The other episodes give no report then.
    """
    start_time = time.monotonic()
    pairs = [(episode, _task(tasks, episode)) for episode in recorded_run.episodes]

    def run(episode: RecordedEpisode, task: Task) -> list[ReplayedTurn]:
        sandbox = provider.start(image or task.image or "host", LIMITS)
        with closing(PaperPythonWorkspace(sandbox)) as session:
            return _episode(session, task, episode)

    with ThreadPoolExecutor(1, "default") as pool:
        default_future = pool.submit(default_rewards, pairs, provider, image)
        replays = run_jobs([partial(run, *pair) for pair in pairs], workers, progress)
    report = PythonReplayReport(python=platform.python_version())
    for (episode, _), turns, default_protocol_reward in zip(
        pairs, replays, default_future.result(), strict=True
    ):
        report.compare(episode.task_id, report.count(episode, turns), default_protocol_reward)
    report.seconds = time.monotonic() - start_time
    return report


def _task(tasks: Sequence[Task], episode: RecordedEpisode) -> Task:
    """Return the task of an episode, by row: several tasks have the same query."""
    row = int(episode.task_id) if episode.task_id.isdecimal() else -1
    if 0 <= row < len(tasks) and tasks[row].query.strip() == episode.query.strip():
        return tasks[row]
    return find_task(tasks, episode)


def _episode(
    session: PaperPythonWorkspace, task: Task, episode: RecordedEpisode
) -> list[ReplayedTurn]:
    """Replay one episode. Turns without a recorded reward are executed, but not returned."""
    replayed_turns = []
    answer: Answer = task.query
    for turn in episode.turns:
        if turn.command is None:
            continue
        replay_reward = 0.0
        recorded_text = turn.observation or ""
        status = ending(turn.command)
        if status is None:
            answer = session.step(turn.command)
        replay_observation = str(answer)
        if status == "submitted":
            replay_reward = session.trial(task, submitted_name(turn.command)).reward
        elif status is None and (function_name := defined_name(turn.command)) is not None:
            trial = session.trial(task, function_name)
            replay_reward = trial.reward
            replay_observation = model_observation(answer, trial, recorded_text)
        if turn.is_compared:
            same_observation = turn.observation in (None, replay_observation)
            replayed_turns.append(
                ReplayedTurn(turn, replay_observation, replay_reward, same_observation)
            )
    return replayed_turns


def model_observation(answer: Answer, trial: TestResults, recorded_text: str = "") -> str:
    """Return the text that the model received after an action that defines a function.

    After such an action, the experiments of 2023 submitted the function. At different times, the
    experiments had three wordings for failed tests. The recorded text shows which wording applied.

    Args:
        answer: The answer to the action.
        trial: The results of the tests for the function.
        recorded_text: The recorded observation; empty selects the wording of the release.
    """
    if trial.reward == 1:
        return str(answer)
    failed_tests = [test for test, result in trial.agent.items() if result["error"]]
    if _COUNT.match(recorded_text):
        return f"Failed {len(failed_tests)}/{len(trial.agent)} Test Cases. Please try again."
    if not failed_tests:
        return str(answer)
    if recorded_text.startswith("Failed Test Case: "):
        return f"Failed Test Case: {failed_tests[0]}\nPlease try again."
    return "Test case did not pass. Please try again."


def default_rewards(
    pairs: Sequence[tuple[RecordedEpisode, Task]], provider: Provider, image: str | None = None
) -> list[float]:
    """Compute the reward of each episode's last function under the default protocol.

    The last function is the one that the episode submitted or defined last. Each episode is run
    again, without its earlier submissions.

    Args:
        pairs: The episodes, each with its task.
        provider: The provider of sandboxes.
        image: The image of all tasks; None: the default of `PythonEnv`.

    Raises:
        TaskError: A task's tests are not Python.
        SandboxError: A sandbox failed.
    """
    if not pairs:
        return []
    tasks = Dataset({task.task_id: task for _, task in pairs}.values(), "replay")
    turn_limit = max(len(episode.turns) for episode, _ in pairs) + 1
    with closing(PythonEnv(tasks, image=image, sandbox=provider, max_turns=turn_limit)) as env:
        return [_default_reward(env, episode, task) for episode, task in pairs]


def _default_reward(env: PythonEnv, episode: RecordedEpisode, task: Task) -> float:
    env.reset(options={"task_id": task.task_id})
    function_name = ""
    for turn in episode.turns:
        if turn.command is None or turn.command == "skip":
            continue
        if turn.command.startswith("submit"):
            function_name = submitted_name(turn.command)
        else:
            env.step(turn.command)
            function_name = defined_name(turn.command) or function_name
    _, reward, *_ = env.step(f"submit {function_name}".strip())
    return reward
