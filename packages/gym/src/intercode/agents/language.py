"""Agents that call a language model, in the way that a `PromptStrategy` defines.

`LanguageAgents` is the factory of such agents. `LimitedAgent` wraps a strategy's agent to enforce
the limits of an episode. `SelfConsistencySampler` and `BestOfSampler` wrap the model to choose
among several replies. Both work with any strategy: the dialogue continues with the chosen reply as
if it were the only reply.
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

from intercode.agents.base import Agent, WholeEpisodeAgent
from intercode.agents.conversation import (
    Conversation,
    Dialogue,
    ObservationClipper,
    PromptContext,
    StrategyPrompts,
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
from intercode.models.recording_model import RecordingModel

if TYPE_CHECKING:
    from intercode.task import Task


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """The limits of one episode, checked before every turn; None: no limit."""

    seconds: float | None = None
    """Seconds of wall time, excluding the time of waiting for other episodes."""
    tokens: int | None = None
    """Input and output tokens together."""
    cost: float | None = None
    """US dollars."""


@dataclass(frozen=True, slots=True)
class ForkSearchOptions:
    """The options of a search over forks of an episode.

    Raises:
        UsageError: `width`, `budget` or `depth` is below 1, or `start` is negative.
    """

    order: Literal["beam", "best-first"] = "beam"
    """The order in which states are expanded. ``beam``: all kept states of a turn together.
    ``best-first``: the best state of all turns next."""
    width: int = 2
    """The number of states that a beam keeps at each turn."""
    depth: int | None = None
    """The number of turns after which a branch's state is submitted; None: the environment's turn
    limit."""
    budget: int = 40
    """The maximum number of actions tried in an episode, over all branches."""
    test: str | None = None
    """An action that tests a state in a separate fork; None: the model judges."""
    start: int = 0
    """The number of turns after which best-of-n forks the episode."""

    def __post_init__(self) -> None:
        depth = 1 if self.depth is None else self.depth
        if min(self.width, self.budget, depth) < 1:
            raise UsageError("width, depth and budget of a search must be at least 1")
        if self.start < 0:
            raise UsageError(f"start of a search must be at least 0, not {self.start}")


@dataclass(frozen=True, slots=True)
class StrategyOptions:
    """The options of any strategy.

    Raises:
        UsageError: `samples`, `observation_limit` or `dialogue_limit` is below 1, or several
            samples are drawn at temperature 0.
    """

    settings: Settings = field(default_factory=Settings)
    """The model's sampling settings. Above temperature 0, the default seed is the episode's."""
    prompt: Path | None = None
    """A template whose blocks replace the strategy's blocks."""
    setting: str = ""
    """The name of the setting in prompts; empty: the name that the environment reports."""
    schema: bool = False
    """Whether prompts show the tables and columns of an SQL task (the "handicap" of 2023)."""
    context: Literal["schema"] | None = None
    """``schema``: the first prompt shows the environment's overview, which costs no turn."""
    examples: bool | None = None
    """Whether prompts include worked examples; None: the default of `PromptStrategy.examples`."""
    recap: bool | None = None
    """Whether to ask the model once more if it repeats a failed action, or submits after a failure.
    A recap of the task and the previous actions then replaces the dialogue. Only the strategies
    try-again, react and react-zero-shot support recaps. None: recaps only for models on this
    machine, because small models tend to repeat their replies."""
    observation_limit: int = 10_000
    """Maximum characters of an observation in the prompt."""
    observation_tail: bool = True
    """Whether an excerpt has the observation's head and tail. If False, only the head, as in
    2023."""
    dialogue_limit: int | None = None
    """The number of most recent messages that each request contains, in addition to the messages
    before the first reply; None: all messages."""
    samples: int = 1
    """The number of replies that are requested for each turn, and of which one is chosen."""
    choose: Literal["vote", "judge"] = "vote"
    """The way to choose a reply. ``vote``: self-consistency. ``judge``: the model judges."""
    skills: str = ""
    """The prompt's text about skills: see `intercode.agents.skills.offer`."""
    limits: EpisodeLimits = field(default_factory=EpisodeLimits)
    search: ForkSearchOptions | None = None
    """The search of a strategy that searches; None for every other strategy."""

    def __post_init__(self) -> None:
        dialogue_limit = 1 if self.dialogue_limit is None else self.dialogue_limit
        if min(self.samples, self.observation_limit, dialogue_limit) < 1:
            raise UsageError("samples and limits must be at least 1")
        if self.samples > 1 and not self.settings.temperature:
            raise UsageError("several samples at temperature 0 are identical: set --temperature")


@dataclass(frozen=True, slots=True)
class PromptStrategy:
    """A named prompting strategy. A call with a model returns a factory of agents."""

    name: str
    template: str
    """The name of the prompt's template in ``prompts/``."""
    make: Callable[[Conversation], Agent]
    sees_reward: bool = False
    """Whether the agent sees the true reward of every turn, which only an oracle can give. The
    names of such strategies end in ``-oracle``."""
    examples: Literal["cannot", "local", "always"] = "cannot"
    """The models whose prompts include worked examples by default. ``local``: models on this
    machine, for which measurements show a benefit. ``always``: all models. ``cannot``: none,
    because the prompt has no slot for examples."""
    recaps: bool = False
    """Whether the strategy supports recaps: see `StrategyOptions.recap`."""
    searches: ClassVar[bool] = False
    """Whether the strategy tries several replies in forks, instead of choosing one of them."""

    def shows_examples(self, option: bool | None, model: str) -> bool:
        """Return whether prompts include worked examples.

        Args:
            option: The option's value; None: no value.
            model: ``PROVIDER/NAME``.

        Raises:
            UsageError: The option requests examples, and the strategy supports none.
        """
        if self.examples == "cannot" and option:
            raise UsageError(f"agent {self.name} has no worked examples: omit --examples")
        if option is not None:
            return option
        return self.examples == "always" or (self.examples == "local" and is_local(model))

    def agent(
        self, talk: Conversation, options: StrategyOptions, allowance: EpisodeLimitTracker
    ) -> Agent | WholeEpisodeAgent:
        """Make the agent of one episode."""
        agent = self.make(talk)
        return LimitedAgent(SubmitOnSuccessAgent(agent) if self.sees_reward else agent, allowance)

    def __call__(self, model: Model | str, **options: Any) -> LanguageAgents:
        """Make the factory of the strategy's agents.

        Args:
            model: A model, or a name that `intercode.models.get_model` resolves.
            options: See `StrategyOptions`.

        Raises:
            UsageError: An option or the model is unknown.
        """
        if unknown := sorted(
            options.keys() - {option_field.name for option_field in fields(StrategyOptions)}
        ):
            raise UsageError(f"agent {self.name} takes no option {unknown[0]}")
        if options.get("search") is not None and not self.searches:
            raise UsageError(f"agent {self.name} does not search: it takes no --search-…")
        if isinstance(model, str):
            from intercode.models import get_model

            model = get_model(model)
        return LanguageAgents(self, model, StrategyOptions(**options))


def is_local(model: str) -> bool:
    """Return whether a model, ``PROVIDER/NAME``, runs on this machine."""
    return model.startswith(f"{LOCAL}/")


class LanguageAgents:
    """A factory of agents that share a strategy and a model.

    Args:
        strategy: The strategy of the agents.
        model: The model of all agents, which may be called from several threads.
        options: The strategy's options.
    """

    def __init__(self, strategy: PromptStrategy, model: Model, options: StrategyOptions) -> None:
        is_single = options.samples == 1 or strategy.searches
        suffix = "" if is_single else f"+{options.choose}{options.samples}"
        self.name = strategy.name + suffix
        self.needs_reward = strategy.sees_reward
        """Whether the environment must score every turn (``reward_every_turn=True``)."""
        self._strategy = strategy
        self._model = model
        examples = strategy.shows_examples(options.examples, model.name)
        has_recap = options.recap if options.recap is not None else is_local(model.name)
        # Strategies that see the reward repeat the experiments of 2023, which had no recaps.
        has_recap = has_recap and strategy.recaps and not strategy.sees_reward
        self._options = options = replace(options, examples=examples, recap=has_recap)
        self._permits: AbstractContextManager[float] | None = None
        self._prompt = StrategyPrompts(strategy.template, options.prompt)

    def facts(self) -> dict[str, Any]:
        """Return the identity of these agents, for a run's record."""
        excluded_names = ("prompt", "skills")  # digests of both are recorded instead
        options = {
            key: value for key, value in asdict(self._options).items() if key not in excluded_names
        }
        options["settings"] = self._options.settings.facts()
        # Defaults are omitted, so records that are older than these options compare as equal.
        examples = self._strategy.examples == "always"
        defaults = {"search": None, "context": None, "recap": False, "examples": examples}
        for name in [name for name, value in defaults.items() if options[name] == value]:
            del options[name]
        weights = getattr(self._model, "weights", None)
        identity = {"model": self._model.name} | ({"weights": weights} if weights else {})
        return {**identity, **options, "prompt": self._prompt.digest}

    def check(self, tasks: Sequence[Task]) -> None:
        """Refuse tasks without a schema, if prompts should show the schema.

        Raises:
            UsageError: A task has no schema; the message names the first such task.
        """
        if self._options.schema:
            for task in tasks:
                describe_tables(task)

    def bind_permits(self, permits: AbstractContextManager[float]) -> LanguageAgents:
        """Return a copy of the factory, whose agents enter `permits` for each call to the model."""
        clone = copy(self)
        clone._permits = permits
        return clone

    def __call__(self, task: Task) -> Agent | WholeEpisodeAgent:
        """Make the agent of one episode in a shell, for a caller that passes no environment."""
        return self.make_agent(None, task)

    def make_agent(self, env: object, task: Task) -> Agent | WholeEpisodeAgent:
        """Make the agent of one episode in this environment.

        Raises:
            UsageError: The strategy needs the reward of every turn, which the environment lacks.
        """
        if self.needs_reward and not getattr(env, "reward_every_turn", False):
            raise UsageError(
                f"agent {self.name} is shown the true reward of every turn: the environment must "
                "be made with reward_every_turn=True"
            )
        options = self._options
        clip = ObservationClipper(options.observation_limit, options.observation_tail)
        setting = options.setting or find_setting(env)
        scene = PromptContext.from_env(
            env, task, setting=setting, schema=options.schema, skills=options.skills
        )
        if options.examples:
            scene = replace(scene, examples=find_examples(scene.env, scene.language))
        if options.context is not None:
            scene = replace(scene, overview=clip(read_overview(env)))
        transcript = RecordingModel(self._model, self._permits)
        talk = Conversation(
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
        return self._strategy.agent(talk, options, EpisodeLimitTracker(transcript, options.limits))

    def _make_sampler(self, transcript: RecordingModel, scene: PromptContext) -> Model:
        if self._options.samples == 1 or self._strategy.searches:
            return transcript
        if self._options.choose == "vote":
            return SelfConsistencySampler(transcript, self._options.samples, scene.language)
        return BestOfSampler(transcript, self._options.samples)


def _add_seed(settings: Settings, scene: PromptContext) -> Settings:
    """Add the episode's seed to the sampling settings.

    With different seeds, several attempts at a task differ even if a cache stores replies.
    """
    if not settings.temperature or settings.seed is not None or scene.seed is None:
        return settings
    return replace(settings, seed=scene.seed % 2**31)  # all servers accept seeds of this range


class SubmitOnSuccessAgent:
    """An agent that submits when the true reward of the last turn is 1, as in 2023's experiments.

    Args:
        agent: The agent that acts until that turn.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def act(self, observation: str, history: Sequence[Turn]) -> str:
        """Return the agent's action, or ``submit``."""
        if history and history[-1].reward >= 1.0:
            return "submit"
        return self._agent.act(observation, history)


class EpisodeLimitTracker:
    """The limits of an episode, and the amounts used so far.

    Args:
        transcript: The record of the dialogue with the model, for the episode's metadata.
        limits: The limits.
    """

    def __init__(self, transcript: RecordingModel, limits: EpisodeLimits) -> None:
        self.transcript = transcript
        self._limits = limits
        self._start_time = time.monotonic()
        self.reached_limit: str | None = None
        """The name of the limit that ended the episode; ``context`` is the model's context length.
        None: no limit reached."""

    def leave_out(self, seconds: float) -> None:
        """Exclude seconds of waiting from the time limit."""
        self._start_time += seconds

    def is_used_up(self) -> bool:
        """Return whether a limit is reached, or was reached before.

        Raises:
            UsageError: A cost limit applies to a model whose price is unknown.
        """
        self.reached_limit = self.reached_limit or self._find_reached_limit()
        return self.reached_limit is not None

    def metadata(self) -> dict[str, Any]:
        """Return the transcript, and the name of the limit that ended the episode, if any."""
        limit_facts = {} if self.reached_limit is None else {"ended_by": self.reached_limit}
        return {"model": self.transcript.to_dict(), **limit_facts}

    def _find_reached_limit(self) -> str | None:
        """Return the name of the first limit that is reached now; None: no limit is reached."""
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
    """An agent that submits at a limit, or when the dialogue exceeds the model's context length.

    Args:
        agent: The agent that acts within the limits.
        allowance: The limits.
    """

    def __init__(self, agent: Agent, allowance: EpisodeLimitTracker) -> None:
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
                    # Without any action, the agent made no attempt. The episode is then an error,
                    # and must not count as a reward of 0.
                    raise
                self._allowance.reached_limit = "context"
        return "submit"

    def leave_out(self, seconds: float) -> None:
        """Exclude seconds of waiting from the time limit."""
        self._allowance.leave_out(seconds)

    def episode_metadata(self) -> dict[str, Any]:
        """Return the transcript, and the name of the limit that ended the episode, if any."""
        return self._allowance.metadata()


class ReplySampler:
    """A model that calls another model several times, and chooses one of the replies.

    Args:
        model: The model to call.
        samples: The number of calls. If the settings have a seed, each call has another seed.
    """

    def __init__(self, model: RecordingModel, samples: int) -> None:
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
        for sample_index in range(self._samples):
            seed = None if settings.seed is None else settings.seed + sample_index
            replies.append(self._model.complete(messages, replace(settings, seed=seed), tools))
            self._model.note(sample=sample_index)
        choice_index = self._choose(replies, messages, settings)
        self._model.note(chosen=choice_index)
        return replies[choice_index]

    def _choose(
        self, replies: Sequence[Reply], messages: Sequence[Message], settings: Settings
    ) -> int:
        """Return the index of the chosen reply."""
        raise NotImplementedError


class SelfConsistencySampler(ReplySampler):
    """A sampler that chooses the first reply with the most frequent action (Wang et al., 2022).

    Args:
        model: The model to call.
        samples: The number of calls.
        language: The language of the compared actions. The comparison ignores whitespace at the
            ends of actions.
    """

    def __init__(self, model: RecordingModel, samples: int, language: str) -> None:
        super().__init__(model, samples)
        self._language = language

    def _choose(
        self, replies: Sequence[Reply], messages: Sequence[Message], settings: Settings
    ) -> int:
        votes = [self._vote(reply) for reply in replies]
        # A reply without an action (a vote of None) wins only if no reply has an action.
        counts = Counter(vote for vote in votes if vote is not None)
        return votes.index(counts.most_common(1)[0][0]) if counts else 0

    def _vote(self, reply: Reply) -> str | None:
        if reply.tool_calls:
            return repr([(call.name, sorted(call.arguments.items())) for call in reply.tool_calls])
        code = find_code(reply.text, self._language, cut_off=reply.finish == "length")
        return None if code is None else code.strip()


class BestOfSampler(ReplySampler):
    """A sampler that chooses the reply that the model itself judges to be the best."""

    def _choose(
        self, replies: Sequence[Reply], messages: Sequence[Message], settings: Settings
    ) -> int:
        question = StrategyPrompts("judge").render("judge", candidates=[*map(_reply_text, replies)])
        verdict = self._model.complete(
            [*messages, Message("user", question)], replace(settings, temperature=0.0)
        )
        match = re.search(r"\d+", verdict.text)
        choice_index = int(match[0]) - 1 if match and len(match[0]) < 4 else 0
        return choice_index if 0 <= choice_index < len(replies) else 0


def _reply_text(reply: Reply) -> str:
    calls = [f"{call.name}({dict(call.arguments)})" for call in reply.tool_calls]
    return "\n".join([reply.text, *calls]).strip()
