"""The provider of agents that are language models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from intercode.agents import registry, skills
from intercode.agents.language import EpisodeLimits, LanguageAgents, Options, Search, Strategy
from intercode.agents.skills import Skill
from intercode.envs.traits import traits_of
from intercode.errors import UsageError
from intercode.evaluate.actors import Actors, AgentProvider, calls_at_once, takes_layers
from intercode.evaluate.budget_spent import budget_of, patience_of
from intercode.models import Settings, get_model
from intercode.spec import RunSpec
from intercode_sandbox.user_code import is_reference, split

if TYPE_CHECKING:
    from intercode.models import Budget
    from intercode.models.limits import RateLimit
    from intercode.models.remote import RemoteModel


class LanguageAgentProvider(AgentProvider):
    """Makes the agents of a `Strategy`, with their model."""

    calls_model = True

    @classmethod
    def claims(cls, name: str) -> bool:
        """Tell whether a name is that of a strategy."""
        if name not in registry.AGENTS and not is_reference(name):
            return False
        return isinstance(registry.AGENTS.resolve(split(name, ":")[0]), Strategy)

    def make(self, spec: RunSpec, budget: Budget | None, pace: RateLimit | None) -> Actors:
        """Make the agent that a spec names: see `AgentProvider.make`."""
        strategy: Strategy = registry.AGENTS.resolve(self.name)
        offered = skills.read_all(spec.agent.skill)
        _check_context(spec)
        if spec.agent.recording is not None:
            raise UsageError(f"agent {strategy.name} takes no --recording")
        if spec.model.name is None:
            raise UsageError(f"agent {strategy.name} needs --model PROVIDER/NAME")
        model = get_model(
            spec.model.name,
            base_url=spec.model.base_url,
            cache=spec.model.cache,
            prices=spec.model.prices,
            budget=budget or budget_of(spec),
            rate_limit=pace,
            retry=patience_of(spec),
        )
        agents = _language_agents(spec, strategy, model, offered)
        asks = {"reward_every_turn": True} if agents.needs_reward else {}
        start = partial(model.start, calls_at_once(spec))
        return Actors(agents, agents.name, {}, asks, offered, start, model.close, model.delay)


def _check_context(spec: RunSpec) -> None:
    """Refuse to show what there is in an environment where nothing shows it."""
    context, env = spec.agent.context, spec.env
    traits = traits_of(env.name, env.protocol)
    if context and (traits.elsewhere or not traits.overview):
        raise UsageError(
            f"--context {context}: nothing shows what there is in environment {env.name!r}, "
            f"{env.protocol} protocol"
        )


def _language_agents(
    spec: RunSpec, strategy: Strategy, model: RemoteModel, offered: Sequence[Skill]
) -> LanguageAgents:
    told, asked = spec.agent, spec.model
    options = {
        option.name: value
        for option in fields(Options)
        if (value := getattr(told, option.name, None)) is not None
    }
    if told.prompt is not None:
        options["prompt"] = Path(told.prompt)
    named = {option.name: f"search_{option.name}" for option in fields(Search)} | _SEARCH
    search = {to: v for to, name in named.items() if (v := getattr(told, name)) is not None}
    options["search"] = Search(**search) if search else None
    # Read in a turn of its own, which not every agent has, where files can be read.
    readable = strategy.name != "single-turn" and takes_layers(spec)
    options["skills"] = skills.offer(offered, readable=readable)
    temperature = 0.0 if asked.temperature is None else asked.temperature
    return strategy(
        model,
        settings=Settings(temperature, asked.top_p, asked.reply_tokens, trace=asked.record_tokens),
        limits=EpisodeLimits(told.episode_seconds, told.episode_tokens, told.episode_cost),
        **options,
    )


_SEARCH = {"order": "search", "start": "search_from"}
"""Field of `Search` → option of a spec, of those whose names differ."""
