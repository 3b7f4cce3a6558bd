"""The agent provider for agents that are language models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from intercode.agents import registry, skills
from intercode.agents.language import (
    EpisodeLimits,
    ForkSearchOptions,
    LanguageAgents,
    PromptStrategy,
    StrategyOptions,
)
from intercode.agents.skills import Skill
from intercode.envs.traits import find_traits
from intercode.errors import UsageError
from intercode.evaluate.agent_setup import (
    AgentProvider,
    PreparedAgent,
    max_concurrent_calls,
    takes_layers,
)
from intercode.evaluate.spending import make_budget, retry_policy
from intercode.models import Settings, get_model
from intercode.spec import RunSpec
from intercode_sandbox.user_code import is_reference, split

if TYPE_CHECKING:
    from intercode.models import Budget
    from intercode.models.limits import RateLimit
    from intercode.models.remote import RemoteModel


class LanguageAgentProvider(AgentProvider):
    """The provider that makes the agents of a `PromptStrategy`, with their model."""

    calls_model = True

    @classmethod
    def claims(cls, name: str) -> bool:
        """Return whether a name belongs to a strategy."""
        if name not in registry.AGENTS and not is_reference(name):
            return False
        return isinstance(registry.AGENTS.resolve(split(name, ":")[0]), PromptStrategy)

    def make(self, spec: RunSpec, budget: Budget | None, pace: RateLimit | None) -> PreparedAgent:
        """Make the agent that a spec names: see `AgentProvider.make`."""
        strategy: PromptStrategy = registry.AGENTS.resolve(self.name)
        offered_skills = skills.read_all(spec.agent.skill)
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
            budget=budget or make_budget(spec),
            rate_limit=pace,
            retry=retry_policy(spec),
        )
        agents = _language_agents(spec, strategy, model, offered_skills)
        reward_option = {"reward_every_turn": True} if agents.needs_reward else {}
        start = partial(model.start, max_concurrent_calls(spec))
        return PreparedAgent(
            agents, agents.name, {}, reward_option, offered_skills, start, model.close, model.delay
        )


def _check_context(spec: RunSpec) -> None:
    """Refuse ``--context`` for an environment whose contents no command lists.

    Raises:
        UsageError: The environment is remote, or its traits have no action that lists contents.
    """
    context, env = spec.agent.context, spec.env
    traits = find_traits(env.name, env.protocol)
    if context and (traits.is_remote or not traits.overview):
        raise UsageError(
            f"--context {context}: no commands list the contents of environment {env.name!r}, "
            f"{env.protocol} protocol"
        )


def _language_agents(
    spec: RunSpec, strategy: PromptStrategy, model: RemoteModel, offered_skills: Sequence[Skill]
) -> LanguageAgents:
    agent_spec, model_spec = spec.agent, spec.model
    options = {
        option.name: value
        for option in fields(StrategyOptions)
        if (value := getattr(agent_spec, option.name, None)) is not None
    }
    if agent_spec.prompt is not None:
        options["prompt"] = Path(agent_spec.prompt)
    option_names = {
        option.name: f"search_{option.name}" for option in fields(ForkSearchOptions)
    } | _SEARCH
    search = {
        field_name: option_value
        for field_name, name in option_names.items()
        if (option_value := getattr(agent_spec, name)) is not None
    }
    options["search"] = ForkSearchOptions(**search) if search else None
    # To read a skill, an agent needs a turn before its answer, which ``single-turn`` lacks, and a
    # workspace with files.
    can_read_files = strategy.name != "single-turn" and takes_layers(spec)
    options["skills"] = skills.offer(offered_skills, readable=can_read_files)
    temperature = 0.0 if model_spec.temperature is None else model_spec.temperature
    return strategy(
        model,
        settings=Settings(
            temperature, model_spec.top_p, model_spec.reply_tokens, trace=model_spec.record_tokens
        ),
        limits=EpisodeLimits(
            agent_spec.episode_seconds, agent_spec.episode_tokens, agent_spec.episode_cost
        ),
        **options,
    )


_SEARCH = {"order": "search", "start": "search_from"}
"""Field of `ForkSearchOptions` → option of a spec, for fields with another option name."""
