"""An environment for others than the agent's loop: tools, messages, scores of what agents left."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from intercode.calls import Tool, ToolCall
from intercode.envs.attempt import Attempt
from intercode.envs.fork import Remade
from intercode.envs.outcome import GoldOutcome, played
from intercode.envs.stage import PlaceT
from intercode.envs.tools import action_of, tools_of
from intercode.episode import Episode, Score, Turn
from intercode.errors import EnvironmentStateError, UsageError
from intercode.registry import MESSAGES
from intercode.task import Dataset, Task

Step = tuple[str, float, bool, bool, dict[str, Any]]


class Outside(Remade, Attempt[PlaceT]):
    """The part of an `InterCodeEnv` that is not the loop of one agent."""

    if TYPE_CHECKING:

        def step(self, action: str) -> Step:
            """See `InterCodeEnv`."""

    @property
    def tools(self) -> list[Tool]:
        """The tools of the environment, each with name, description and a JSON schema.

        `call` calls one; `intercode.tools` makes functions of them.
        """
        return tools_of(self.traits)

    def call(
        self, name: str, arguments: Mapping[str, Any]
    ) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take an action by calling one of the `tools`.

        A call that makes no sense (no such tool, an argument that is missing) is the model's
        mistake: a turn that is marked ``invalid``, whose observation says what is wrong.

        Args:
            name: The tool.
            arguments: Its arguments by name.

        Returns:
            Observation, reward, whether the episode was ended, whether it was truncated, info.

        Raises:
            EnvironmentStateError, SandboxError, RewardError: As `step`.
        """
        return self.step(action_of(ToolCall("", name, arguments), self.traits))

    def score(
        self,
        task: Task,
        place: PlaceT,
        *,
        output: str | None = None,
        episode: Episode | None = None,
    ) -> Score:
        """Score a place that an agent has left which worked there by itself, without `step`.

        All that runs in it is ended; then it is judged as at the end of an episode. Judging may
        change it, as verification commands and tests run there: a place is scored once.

        Args:
            task: The task.
            place: The place, opened by ``env.stage.open(task)``. The caller closes it.
            output: The agent's answer, where the reward judges one: the text that a Bash task asks
                to be printed, an SQL query (it is run in the place), a Python program, a flag.
                Without it, what asks for one is not solved.
            episode: The record of the attempt, in place of `output`, where there is one. Its turns
                and its answer count as those of an episode of this environment.

        Raises:
            UsageError: Both an output and an episode are given, or the episode is of another task;
                or the place was made from something else than the task's image.
            EnvironmentStateError: The place belongs to the running episode, or was scored before.
            SandboxError: The place was lost, and not by what ran in it.
            RewardError: It cannot be scored.
        """
        with self._calls:
            self._refuse_to_score(task, place, output, episode)
            if episode is None:
                episode = self._attempt(task, place, output)
            elif episode.status in ("running", "error"):
                episode = replace(episode, status="submitted")
            self._scored.add(place)
            return self._judge(task, episode, place)

    def messages(self, style: str = "chat") -> list[dict[str, Any]]:
        """Tell the episode so far as chat messages, for a model, for training, or for a log.

        A model that plays it may be asked for the next one. Bytes that no JSON can carry are
        replaced, and long observations shortened, save in ``plain``.

        Args:
            style: ``"chat"``: a system prompt, the task, actions as blocks of code; ``"tools"``:
                actions as calls of `tools`; ``"plain"``: query, actions and observations as they
                are.

        Returns:
            Messages as OpenAI's chat completions have them.

        Raises:
            UsageError: There is no such style.
            EnvironmentStateError: There is no episode yet.
        """
        found: list[dict[str, Any]] = MESSAGES.get(style)(self, self.episode_state.task)
        return self._said(found) if style == "plain" else found

    def outcome(self, task: Task) -> GoldOutcome:
        """Solve a task by its first gold, in a place of its own, and return what came of it.

        It is for the operator, who exports tasks: it tells the solution. Nothing of it is in any
        observation, info, message or record.

        Raises:
            TaskError: The task has no gold.
            RewardError: Gold ran into a limit, or ended its own place.
            SandboxError: The place failed.
        """
        tasks = self.dataset
        alone = Dataset([task], tasks.name, source=tasks.source, databases=tasks.databases)
        with closing(self.another(alone)) as env:
            return played(env, task)

    def _refuse_to_score(
        self, task: Task, place: PlaceT, output: str | None, episode: Episode | None
    ) -> None:
        if output is not None and episode is not None:
            raise UsageError("score takes an output or an episode, which has one, not both")
        if episode is not None and episode.task_id != task.task_id:
            raise UsageError(f"the episode is of task {episode.task_id!r}, not {task.task_id!r}")
        if place is self._place and self.episode_state.is_running:
            raise EnvironmentStateError(
                "this is the place of the running episode, which step('submit') ends and scores"
            )
        if place in self._scored:
            raise EnvironmentStateError(
                "this place was scored before, which may have changed it: start one from a "
                "snapshot of it, and score that"
            )
        if self.stage.changed(task, place):
            raise UsageError(
                f"the place was not started from {self.image(task)!r} as it is now: open it by "
                f"env.stage.open(task), so that it differs from the image by what the agent did"
            )

    def _attempt(self, task: Task, place: PlaceT, output: str | None) -> Episode:
        """Record an attempt that was made without `step`, from its answer (see `score`)."""
        turns = [] if output is None else [Turn("", output)]
        return Episode(task.task_id, task.query, self.name, turns=turns, status="submitted")
