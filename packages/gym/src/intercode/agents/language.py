"""Agents that are language models: a strategy, a prompt and a model, made one for each episode.

Around the strategy there may be limits on an episode (`LimitedAgent`), and around the model a
choice among several replies (`SelfConsistency`, `BestOfSampler`), which work under any strategy:
the dialogue continues with the chosen reply as if it had been the only one.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from intercode.agents.base import Agent, EpisodeAgent
from intercode.agents.conversation import (
    Clip,
    Dialogue,
    Prompt,
    Scene,
    Talk,
    describe_tables,
    find_setting,
    read_overview,
)
from intercode.agents.examples import find_examples
from intercode.agents.parser import find_code
from intercode.episode import Turn
from intercode.errors import ContextLengthError, UsageError
from intercode.models.base import Message, Model, Reply, Settings, Tool
from intercode.models.local import PROVIDER as LOCAL
from intercode.models.transcript import Transcript

if TYPE_CHECKING:
    from intercode.task import Task


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """The limits of one episode, checked before every turn; None: there is none."""

    seconds: float | None = None
    """Seconds of wall time, without those in which it waited for other episodes."""
    tokens: int | None = None
    cost: float | None = None
    """In US dollars."""


@dataclass(frozen=True, slots=True)
class Search:
    """How forks of an episode are searched."""

    order: Literal["beam", "best-first"] = "beam"
    """The order of states: those of a turn together, or the best of all next."""
    width: int = 2
    """The states that a beam keeps of each turn."""
    depth: int | None = None
    """Turns of a branch, after which it is handed in as it stands; None: as the environment has."""
    budget: int = 40
    """Actions that are tried in an episode, in all branches."""
    test: str | None = None
    """An action that tests a state in a fork of its own; None: the model judges."""
    start: int = 0
    """The turn from which best-of-n branches."""

    def __post_init__(self) -> None:
        if min(self.width, self.budget, self.depth or 1) < 1 or self.start < 0:
            raise UsageError("width, depth and budget of a search must be at least 1")


@dataclass(frozen=True, slots=True)
class Options:
    """The options of any strategy."""

    settings: Settings = field(default_factory=Settings)
    """How the model samples. Above temperature 0 each episode gets a seed of its own."""
    prompt: Path | None = None
    """A template whose blocks replace the strategy's."""
    setting: str = ""
    """The name of the setting in prompts; empty: the environment's own."""
    schema: bool = False
    """For SQL: tell tables and columns (2023's "handicap")."""
    context: Literal["schema"] | None = None
    """The context that is shown at the start without a turn: the environment's overview."""
    examples: bool | None = None
    """Whether worked examples are shown; None: as `Strategy.examples` says."""
    recap: bool | None = None
    """Whether the model is asked once more when its action has failed before, or would submit after
    a failure: the task and what was tried then replace the dialogue. For try-again and react.
    None: only for models of this machine, since small ones tend to repeat themselves."""
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
    skills: str = ""
    """The offer of its skills: see `intercode.agents.skills.offer`."""
    limits: EpisodeLimits = field(default_factory=EpisodeLimits)
    search: Search | None = None
    """How a strategy that searches does it; None: no other strategy does."""

    def __post_init__(self) -> None:
        if self.samples < 1 or self.observation_limit < 1 or (self.dialogue_limit or 1) < 1:
            raise UsageError("samples and limits must be at least 1")
        if self.samples > 1 and not self.settings.temperature:
            raise UsageError("several samples at temperature 0 are identical: set --temperature")


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to act, by name. Called with a model it gives the factory of its agents."""

    name: str
    template: str
    """The prompt's, in ``prompts/``."""
    make: Callable[[Talk], Agent]
    sees_reward: bool = False
    """Whether the true reward of every turn is used: oracle feedback, named apart."""
    examples: Literal["cannot", "local", "always"] = "cannot"
    """The models that are shown worked examples, unless an option says otherwise: those of this
    machine, for which it was measured that they help, or all. ``cannot``: its prompt has no place
    for any."""
    recaps: bool = False
    """Whether it can tell a task again: see `Options.recap`."""
    searches: ClassVar[bool] = False
    """Whether several replies are tried in forks, rather than one of them chosen."""

    def shows_examples(self, asked: bool | None, model: str) -> bool:
        """Tell whether worked examples are shown.

        Args:
            asked: The option; None: it is not given.
            model: ``PROVIDER/NAME``.

        Raises:
            UsageError: They are asked for, and the strategy cannot.
        """
        if self.examples == "cannot" and asked:
            raise UsageError(f"agent {self.name} has no worked examples: omit --examples")
        if asked is not None:
            return asked
        return self.examples == "always" or (self.examples == "local" and is_local(model))

    def agent(self, talk: Talk, options: Options, allowance: Allowance) -> Agent | EpisodeAgent:
        """Make the agent of one episode."""
        agent = self.make(talk)
        return LimitedAgent(SuccessSubmitter(agent) if self.sees_reward else agent, allowance)

    def __call__(self, model: Model | str, **options: Any) -> LanguageAgents:
        """Make the factory.

        Args:
            model: A model, or its name as `intercode.models.get_model` takes it.
            options: See `Options`.

        Raises:
            UsageError: There is no such option or model.
        """
        if unknown := sorted(
            options.keys() - {option_field.name for option_field in fields(Options)}
        ):
            raise UsageError(f"agent {self.name} takes no option {unknown[0]}")
        if options.get("search") is not None and not self.searches:
            raise UsageError(f"agent {self.name} does not search: it takes no --search-…")
        if isinstance(model, str):
            from intercode.models import get_model

            model = get_model(model)
        return LanguageAgents(self, model, Options(**options))


def is_local(model: str) -> bool:
    """Tell whether a model, ``PROVIDER/NAME``, is one of this machine."""
    return model.startswith(f"{LOCAL}/")


class LanguageAgents:
    """Makes the agent of each episode.

    Args:
        strategy: How they act.
        model: The model that all of them talk to; it may be called from several threads.
        options: The strategy's options.
    """

    def __init__(self, strategy: Strategy, model: Model, options: Options) -> None:
        is_single = options.samples == 1 or strategy.searches
        suffix = "" if is_single else f"+{options.choose}{options.samples}"
        self.name = strategy.name + suffix
        self.needs_reward = strategy.sees_reward
        """Whether the environment must score every turn (``reward_every_turn=True``)."""
        self._strategy = strategy
        self._model = model
        examples = strategy.shows_examples(options.examples, model.name)
        recap = options.recap if options.recap is not None else is_local(model.name)
        recap = recap and strategy.recaps and not strategy.sees_reward  # that plays as in 2023
        self._options = options = replace(options, examples=examples, recap=recap)
        self._permits: AbstractContextManager[float] | None = None
        self._prompt = Prompt(strategy.template, options.prompt)

    def facts(self) -> dict[str, Any]:
        """Identify these agents, for a run's record."""
        excluded_names = ("prompt", "skills")  # these have digests
        options = {
            key: value for key, value in asdict(self._options).items() if key not in excluded_names
        }
        options["settings"] = self._options.settings.facts()
        # Left out where they say nothing new: records from before they existed compare as equal.
        examples = self._strategy.examples == "always"
        defaults = {"search": None, "context": None, "recap": False, "examples": examples}
        for name in [name for name, value in defaults.items() if options[name] == value]:
            del options[name]
        weights = getattr(self._model, "weights", None)
        identity = {"model": self._model.name} | ({"weights": weights} if weights else {})
        return {**identity, **options, "prompt": self._prompt.digest}

    def check(self, tasks: Sequence[Task]) -> None:
        """Refuse tasks without the schema that prompts are to tell.

        Raises:
            UsageError: It names the first.
        """
        if self._options.schema:
            for task in tasks:
                describe_tables(task)

    def calling(self, permits: AbstractContextManager[float]) -> LanguageAgents:
        """Return a copy whose calls to the model hold a permit each."""
        clone = copy(self)
        clone._permits = permits
        return clone

    def __call__(self, task: Task) -> Agent | EpisodeAgent:
        """Make the agent of one episode, in a shell of which no more is known."""
        return self.within(None, task)

    def within(self, env: object, task: Task) -> Agent | EpisodeAgent:
        """Make the agent of one episode in this environment.

        Raises:
            UsageError: The strategy needs the reward of every turn, and this gives none.
        """
        if self.needs_reward and not getattr(env, "reward_every_turn", False):
            raise UsageError(
                f"agent {self.name} is shown the true reward of every turn: the environment must "
                "be made with reward_every_turn=True"
            )
        options = self._options
        clip = Clip(options.observation_limit, options.observation_tail)
        setting = options.setting or find_setting(env)
        scene = Scene.of(env, task, setting=setting, schema=options.schema, skills=options.skills)
        if options.examples:
            scene = replace(scene, examples=find_examples(scene.env, scene.language))
        if options.context is not None:
            scene = replace(scene, overview=clip(read_overview(env)))
        transcript = Transcript(self._model, self._permits)
        talk = Talk(
            Dialogue(
                self._make_sampler(transcript, scene),
                _add_seed(options.settings, scene),
                limit=options.dialogue_limit,
            ),
            self._prompt,
            scene,
            transcript,
            clip,
            sees_reward=self.needs_reward,
            recaps=bool(options.recap),
        )
        return self._strategy.agent(talk, options, Allowance(transcript, options.limits))

    def _make_sampler(self, transcript: Transcript, scene: Scene) -> Model:
        if self._options.samples == 1 or self._strategy.searches:
            return transcript
        if self._options.choose == "vote":
            return SelfConsistency(transcript, self._options.samples, scene.language)
        return BestOfSampler(transcript, self._options.samples)


def _add_seed(settings: Settings, scene: Scene) -> Settings:
    """Add the episode's seed, so that attempts differ, also where replies are cached."""
    if not settings.temperature or settings.seed is not None or scene.seed is None:
        return settings
    return replace(settings, seed=scene.seed % 2**31)  # what all servers take


class SuccessSubmitter:
    """Submits when the true reward of the last turn is 1, as the experiments of 2023 did.

    Args:
        agent: The one that acts until then.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def act(self, observation: str, history: Sequence[Turn]) -> str:
        """Return the agent's action, or ``submit``."""
        if history and history[-1].reward >= 1.0:
            return "submit"
        return self._agent.act(observation, history)


class Allowance:
    """The limits of an episode, and what its talk with the model has taken of them.

    Args:
        transcript: Of the talk; it goes into the episode's metadata.
        limits: The limits.
    """

    def __init__(self, transcript: Transcript, limits: EpisodeLimits) -> None:
        self.transcript = transcript
        self._limits = limits
        self._start_time = time.monotonic()
        self.reached_limit: str | None = None
        """The limit that ended the episode, once one did; also ``context``."""

    def leave_out(self, seconds: float) -> None:
        """Leave seconds out that the agent was made to wait."""
        self._start_time += seconds

    def is_used_up(self) -> bool:
        """Tell whether a limit is reached, now or before."""
        self.reached_limit = self.reached_limit or self._find_reached_limit()
        return self.reached_limit is not None

    def metadata(self) -> dict[str, Any]:
        """Return the transcript, and which limit ended the episode, if one did."""
        limit_facts = {} if self.reached_limit is None else {"ended_by": self.reached_limit}
        return {"model": self.transcript.to_dict(), **limit_facts}

    def _find_reached_limit(self) -> str | None:
        """Return the limit that is reached."""
        limits, transcript = self._limits, self.transcript
        elapsed_seconds = time.monotonic() - self._start_time - transcript.wait_seconds
        if limits.seconds is not None and elapsed_seconds >= limits.seconds:
            return "seconds"
        if limits.tokens is not None and transcript.usage.total >= limits.tokens:
            return "tokens"
        if limits.cost is None:
            return None
        if transcript.cost is None:
            raise UsageError(
                f"the price of {transcript.name} is unknown: its cost cannot be limited"
            )
        return "cost" if transcript.cost >= limits.cost else None


class LimitedAgent:
    """Submits what there is when a limit is reached, or the dialogue is too long for the model.

    Args:
        agent: The one that acts within the limits.
        allowance: The limits.
    """

    def __init__(self, agent: Agent, allowance: Allowance) -> None:
        self._agent = agent
        self._allowance = allowance

    def act(self, observation: str, history: Sequence[Turn]) -> str:
        """Return the agent's action, or ``submit``."""
        self._allowance.transcript.turn = len(history)
        if not self._allowance.is_used_up():
            try:
                return self._agent.act(observation, history)
            except ContextLengthError:
                if not history:
                    raise  # it has never acted: that is not an attempt, nor a reward of 0
                self._allowance.reached_limit = "context"
        return "submit"

    def leave_out(self, seconds: float) -> None:
        """Leave seconds out that it was made to wait."""
        self._allowance.leave_out(seconds)

    def episode_metadata(self) -> dict[str, Any]:
        """Return the transcript, and which limit ended the episode, if one did."""
        return self._allowance.metadata()


class Sampler:
    """A model that asks another one several times, and gives one of the replies.

    Args:
        model: The model that is asked.
        samples: How often; each time with a seed of its own.
    """

    def __init__(self, model: Transcript, samples: int) -> None:
        self.name = model.name
        self._model = model
        self._samples = samples

    def complete(
        self,
        messages: Sequence[Message],
        settings: Settings = Settings(),  # noqa: B008 - frozen
        tools: Sequence[Tool] = (),
    ) -> Reply:
        """Return the chosen reply."""
        replies = []
        for number in range(self._samples):
            seed = None if settings.seed is None else settings.seed + number
            replies.append(self._model.complete(messages, replace(settings, seed=seed), tools))
            self._model.note(sample=number)
        choice_index = self._choose(replies, messages, settings)
        self._model.note(chosen=choice_index)
        return replies[choice_index]

    def _choose(
        self, replies: Sequence[Reply], messages: Sequence[Message], settings: Settings
    ) -> int:
        """Return the number of the reply that is taken."""
        raise NotImplementedError


class SelfConsistency(Sampler):
    """Chooses the first reply whose action most samples agree on (Wang et al., 2022).

    Args:
        model: The model that is asked.
        samples: How often.
        language: Of the actions that are compared; blanks at their ends do not count.
    """

    def __init__(self, model: Transcript, samples: int, language: str) -> None:
        super().__init__(model, samples)
        self._language = language

    def _choose(
        self, replies: Sequence[Reply], messages: Sequence[Message], settings: Settings
    ) -> int:
        votes = [self._vote(reply) for reply in replies]
        # None, for a reply without an action, wins only where all have none.
        counts = Counter(vote for vote in votes if vote is not None)
        return votes.index(counts.most_common(1)[0][0]) if counts else 0

    def _vote(self, reply: Reply) -> str | None:
        if reply.tool_calls:
            return repr([(call.name, sorted(call.arguments.items())) for call in reply.tool_calls])
        code = find_code(reply.text, self._language, cut_off=reply.finish == "length")
        return None if code is None else code.strip()


class BestOfSampler(Sampler):
    """Chooses the reply that the model itself calls the best of the samples."""

    def _choose(
        self, replies: Sequence[Reply], messages: Sequence[Message], settings: Settings
    ) -> int:
        question = Prompt("judge").render("judge", candidates=[*map(_reply_text, replies)])
        verdict = self._model.complete(
            [*messages, Message("user", question)], replace(settings, temperature=0.0)
        )
        number = re.search(r"\d+", verdict.text)
        choice_index = int(number[0]) - 1 if number and len(number[0]) < 4 else 0
        return choice_index if 0 <= choice_index < len(replies) else 0


def _reply_text(reply: Reply) -> str:
    calls = [f"{call.name}({dict(call.arguments)})" for call in reply.tool_calls]
    return "\n".join([reply.text, *calls]).strip()
