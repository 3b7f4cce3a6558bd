"""The provider of external command-line agents, which act in the sandbox by themselves."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from intercode.agents import skills
from intercode.agents.registry import is_external
from intercode.envs.options import list_constructor_options
from intercode.errors import UsageError
from intercode.evaluate.agent_setup import (
    AGENT_OPTIONS,
    AgentProvider,
    PreparedAgent,
    max_concurrent_calls,
)
from intercode.registry import environment
from intercode.spec import RunSpec
from intercode_integrations.external_agents.profile import ALL_SKILLS, NO_MODEL, find_profile

if TYPE_CHECKING:
    from intercode.models import Budget
    from intercode.models.limits import RateLimit

_MODEL_OPTIONS = {"base_url", "prices", "max_cost", "max_tokens", "episode_cost", "episode_tokens"}
"""Options that only a run with a model may have."""
_OPTIONS = {"agent", "skill", "episode_seconds", "model", *_MODEL_OPTIONS}
"""Options about agents and models that external agents support."""


class ExternalAgentProvider(AgentProvider):
    """A provider of external agents, with profile, gateway and skills of a run."""

    calls_model = True

    @classmethod
    def claims(cls, name: str) -> bool:
        """Return whether an agent's name denotes a profile or a plain command."""
        return is_external(name)

    @property
    def skill_homes(self) -> tuple[str, ...]:
        """The common folder of skills, to which skills may refer, and the agent's own if any."""
        skills_folder = find_profile(self.name).home_of_skills
        return (skills.HOME, *([skills_folder] if skills_folder else []))

    def make(
        self, spec: RunSpec, budget: Budget | None, rate_limit: RateLimit | None
    ) -> PreparedAgent:
        """Make the agents of a run's spec; see `AgentProvider.make`."""
        from intercode.agents.language import EpisodeLimits
        from intercode.evaluate.spending import make_budget, retry_policy
        from intercode.models.limits import RateLimit
        from intercode.models.prices import ModelPrices
        from intercode.models.remote import ModelCallContext
        from intercode.models.upstream import serve_upstream
        from intercode_integrations.external_agents import episode_runner
        from intercode_integrations.external_agents.agent_layers import find_layer
        from intercode_integrations.gateway import Gateway

        agent_spec, agent_name = spec.agent, spec.agent.name
        has_model = spec.model.name not in (None, NO_MODEL)
        profile = find_profile(agent_name, has_model=has_model)
        options = spec.flat()
        if extra_options := [
            option for option in AGENT_OPTIONS if option in options and option not in _OPTIONS
        ]:
            raise UsageError(
                f"agent {agent_name} controls this itself: omit "
                f"{AGENT_OPTIONS[extra_options[0]].flag}"
            )
        if spec.model.name is None or (profile.needs_model and not has_model):
            alternative = "" if profile.needs_model else f", or --model {NO_MODEL}"
            raise UsageError(f"agent {agent_name} needs --model PROVIDER/NAME{alternative}")
        if not has_model and (unused_options := sorted(_MODEL_OPTIONS & options.keys())):
            raise UsageError(
                f"agent {agent_name} without a model takes no "
                f"{AGENT_OPTIONS[unused_options[0]].flag}"
            )
        _check_environment(spec)
        agent_skills = skills.read_all(spec.agent.skill)
        max_calls = spec.env.options.get("max_turns", episode_runner.CALLS)
        gateway, stack = None, ExitStack()
        if has_model:
            prices = ModelPrices(spec.model.prices)
            price = prices.find(spec.model.name)
            if agent_spec.episode_cost is not None and price is None:
                raise UsageError(f"the price of {spec.model.name} is not known: give --prices FILE")
            retry = retry_policy(spec)
            call_context = ModelCallContext(
                rate_limit or RateLimit(), budget or make_budget(spec), price=price, retry=retry
            )
            upstream = stack.enter_context(
                serve_upstream(spec.model.name, spec.model.base_url, max_concurrent_calls(spec))
            )
            gateway = Gateway(upstream, call_context=call_context, prices=prices)
            stack.callback(gateway.close)
        limits = EpisodeLimits(
            agent_spec.episode_seconds, agent_spec.episode_tokens, agent_spec.episode_cost
        )
        skill_notes = ""
        # An agent that finds skills by itself needs no offer of skills in the query.
        if profile.home_of_skills is None:
            skill_notes = skills.offer(agent_skills, readable=profile.run.skills != ALL_SKILLS)
        agents = episode_runner.ExternalAgentFactory(
            profile, gateway, spec.model.name, limits, max_calls, skill_notes
        )
        env_settings: dict[str, Any] = {"max_turns": max_calls, "ignore": profile.score.ignore}
        if needed_limits := profile.limits.to_dict():
            env_settings["limits"] = needed_limits
        if (layer_path := find_layer(profile)) is not None:
            env_settings["layers"] = [str(layer_path)]
        delay = (lambda: None) if gateway is None else gateway.delay
        return PreparedAgent(
            agents, agent_name, {}, env_settings, agent_skills, close=stack.close, delay=delay
        )


def _check_environment(spec: RunSpec) -> None:
    """Refuse an environment in which a program cannot act.

    Raises:
        UsageError: The environment has no sandbox with a shell, or uses an unsupported option.
    """
    env, agent_name = spec.env, spec.agent.name
    if "ignore" not in list_constructor_options(environment(env.name, env.protocol)):
        raise UsageError(
            f"agent {agent_name} needs a sandbox with a shell: environment {env.name!r}, protocol "
            f"{env.protocol!r}, has none; choose bash or swe"
        )
    if (sandbox := env.options.get("sandbox", "native")) != "native":
        raise UsageError(
            f"agent {agent_name} needs --sandbox native to reach its model, not {sandbox}"
        )
    if env.options.get("network"):
        raise UsageError(f"agent {agent_name} has no network except its model: omit --network")
