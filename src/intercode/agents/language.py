"""Agents that are language models: a strategy, a prompt and a model, made one for each episode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from intercode.agents.base import Agent
from intercode.agents.dialogue import Dialogue
from intercode.agents.ending import Bounded, EpisodeLimits, StopWhenSolved
from intercode.agents.prompt import Prompt
from intercode.agents.sampling import BestOf, SelfConsistency
from intercode.agents.scene import Scene, describe_tables
from intercode.agents.talk import Clip, Talk
from intercode.errors import UsageError
from intercode.models.base import Model, Settings
from intercode.models.transcript import Transcript

if TYPE_CHECKING:
    from intercode.task import Task


@dataclass(frozen=True, slots=True)
class Options:
    """What any strategy can be given."""

    settings: Settings = field(default_factory=Settings)
    """How the model samples. Above temperature 0 each episode gets a seed of its own."""
    prompt: Path | None = None
    """A template whose blocks replace the strategy's."""
    setting: str = ""
    """What prompts call the setting; empty: the language's name."""
    schema: bool = False
    """For SQL: tell tables and columns (2023's "handicap")."""
    observation_limit: int = 10_000
    """Characters of an observation that the model is shown."""
    observation_tail: bool = True
    """Whether they are its head and its tail, or only its head, as in 2023."""
    dialogue_limit: int | None = None
    """Messages after the first ones that are sent; None: all."""
    samples: int = 1
    """Replies for each turn, of which one is chosen."""
    choose: Literal["vote", "judge"] = "vote"
    """How: self-consistency, or best-of-n by the model's own judgement."""
    limits: EpisodeLimits = field(default_factory=EpisodeLimits)

    def __post_init__(self) -> None:
        if self.samples < 1 or self.observation_limit < 1 or (self.dialogue_limit or 1) < 1:
            raise UsageError("samples and limits must be at least 1")
        if self.samples > 1 and not self.settings.temperature:
            raise UsageError(
                "several samples of a model at temperature 0 are one and the same: "
                "give a temperature"
            )


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to act, by name. Called with a model it gives the factory of its agents."""

    name: str
    template: str
    """The prompt's, in ``prompts/``."""
    make: Callable[[Talk], Agent]
    sees_reward: bool = False
    """Whether the true reward of every turn is used: oracle feedback, named apart."""

    def __call__(self, model: Model | str, **options: Any) -> LanguageAgents:
        """The factory.

        Args:
            model: A model, or its name as `intercode.models.get_model` takes it.
            options: See `Options`.

        Raises:
            UsageError: There is no such option or model.
        """
        if unknown := sorted(options.keys() - {known.name for known in fields(Options)}):
            raise UsageError(f"agent {self.name} takes no option {unknown[0]}")
        if isinstance(model, str):
            from intercode.models import get_model

            model = get_model(model)
        return LanguageAgents(self, model, Options(**options))


class LanguageAgents:
    """Makes the agent of each episode.

    Args:
        strategy: How they act.
        model: The one that all of them talk to; it may be called from several threads.
        options: What else there is to say.
    """

    def __init__(self, strategy: Strategy, model: Model, options: Options) -> None:
        chosen = f"+{options.choose}{options.samples}" if options.samples > 1 else ""
        self.name = strategy.name + chosen
        self.needs_reward = strategy.sees_reward
        """Whether the environment must score every turn (``reward_every_turn=True``)."""
        self._strategy = strategy
        self._model = model
        self._options = options
        self._permits: AbstractContextManager[float] | None = None
        self._prompt = Prompt(strategy.template, options.prompt)

    def facts(self) -> dict[str, Any]:
        """What identifies these agents, for a run's record."""
        options = {key: value for key, value in asdict(self._options).items() if key != "prompt"}
        return {"model": self._model.name, **options, "prompt": self._prompt.digest}

    def check(self, tasks: Sequence[Task]) -> None:
        """Refuse tasks that do not have what prompts are to tell.

        Raises:
            UsageError: It names the first.
        """
        if self._options.schema:
            for task in tasks:
                describe_tables(task)

    def calling(self, permits: AbstractContextManager[float]) -> LanguageAgents:
        """The same, but each call to the model holds a permit."""
        same = copy(self)
        same._permits = permits
        return same

    def __call__(self, task: Task) -> Agent:
        """The agent of one episode, in a shell that nothing more is known of."""
        return self.within(None, task)

    def within(self, env: object, task: Task) -> Agent:
        """The agent of one episode in this environment.

        Raises:
            UsageError: The strategy needs the reward of every turn, and this gives none.
        """
        if self.needs_reward and not getattr(env, "reward_every_turn", False):
            raise UsageError(
                f"agent {self.name} is shown the true reward of every turn: the environment must "
                "be made with reward_every_turn=True"
            )
        options = self._options
        scene = Scene.of(env, task, setting=options.setting, schema=options.schema)
        transcript = Transcript(self._model, self._permits)
        talk = Talk(
            Dialogue(
                self._chosen_by(transcript, scene),
                _seeded(options.settings, scene),
                limit=options.dialogue_limit,
            ),
            self._prompt,
            scene,
            transcript,
            Clip(options.observation_limit, options.observation_tail),
            sees_reward=self.needs_reward,
        )
        agent = self._strategy.make(talk)
        if self.needs_reward:
            agent = StopWhenSolved(agent)
        return Bounded(agent, transcript, options.limits)

    def _chosen_by(self, transcript: Transcript, scene: Scene) -> Model:
        if self._options.samples == 1:
            return transcript
        if self._options.choose == "vote":
            return SelfConsistency(transcript, self._options.samples, scene.language)
        return BestOf(transcript, self._options.samples)


def _seeded(settings: Settings, scene: Scene) -> Settings:
    """With the episode's seed, so that attempts differ, also where replies are cached."""
    if not settings.temperature or settings.seed is not None or scene.seed is None:
        return settings
    return replace(settings, seed=scene.seed % 2**31)  # what all servers take
