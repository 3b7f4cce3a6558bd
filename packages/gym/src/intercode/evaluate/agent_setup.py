"""The setup of the agent that a spec names, by an agent provider.

A provider makes the agents of one kind, and resolves what these agents need: options, a model,
files in the sandbox. `agent_provider` finds the provider in `PROVIDERS` by the agent's name.
`AgentProvider` itself makes agents without a model.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from intercode.agents import registry, skills
from intercode.agents.base import AgentFactory
from intercode.agents.skills import Skill
from intercode.envs.options import list_constructor_options
from intercode.errors import UsageError
from intercode.evaluate.model_rewards import model_options
from intercode.registry import INTEGRATIONS, environment
from intercode.spec import AgentSpec, ModelSpec, RunSpec, list_section_options
from intercode_sandbox.lazy_imports import LazyRegistry, missing_package_error
from intercode_sandbox.user_code import is_reference, split

if TYPE_CHECKING:
    from intercode.models import Budget
    from intercode.models.limits import RateLimit

EXTERNAL = "program"
"""The kind of agents that are third-party command lines."""
PROVIDERS = LazyRegistry(
    "kind of agent",
    {"language-model": "intercode.evaluate.language_agents:LanguageAgentProvider"},
    "intercode.agent_providers",
    {EXTERNAL: INTEGRATIONS},
)
"""Name → the `AgentProvider` class, for kinds of agents that a plain function cannot make.

If an installed package registers a provider as ``NAME``, the provider makes the agents ``NAME`` and
``NAME:REST``.
"""
AGENT_OPTIONS = {**list_section_options(ModelSpec), **list_section_options(AgentSpec)}
"""The options of an agent and of its model."""


@dataclass(frozen=True, slots=True)
class PreparedAgent:
    """An agent that is ready to act, with its options and its lifecycle callbacks."""

    factory: AgentFactory
    name: str
    """The agent's name, for the record."""
    options: dict[str, Any] = field(default_factory=dict)
    """The options that accompany the name."""
    required_options: dict[str, Any] = field(default_factory=dict)
    """Options of the environment that the agent requires."""
    skills: tuple[Skill, ...] = ()
    """The skills that the agent is offered."""
    start: Callable[[], None] = lambda: None
    """Starts the server of a local model before the first episode."""
    close: Callable[[], None] = lambda: None
    """Releases the agent's resources."""
    delay: Callable[[], tuple[float, str] | None] = lambda: None
    """Returns the seconds since the model's last answer, and a description of the delay; None: the
    agent waits for no answer."""


class AgentProvider:
    """A factory of agents of one kind, from a spec.

    The factory also resolves what its agents need. This base class makes agents without a model.

    Args:
        name: The agent's name.
    """

    calls_model = False
    """Whether the provider's agents call a model, and therefore take a model's options."""

    def __init__(self, name: str) -> None:
        self.name = name

    @classmethod
    def claims(cls, name: str) -> bool:
        """Return whether this provider makes the agents of a name."""
        return True

    @property
    def reads_skills(self) -> bool:
        """Whether the provider's agents can be offered skills."""
        return self.calls_model or registry.AGENTS.is_foreign(self.name)

    @property
    def skill_homes(self) -> tuple[str, ...]:
        """The folders in a sandbox where the provider's agents find skills."""
        return (skills.HOME,)

    def make(self, spec: RunSpec, budget: Budget | None, pace: RateLimit | None) -> PreparedAgent:
        """Make the agent that a spec names.

        Args:
            spec: The spec.
            budget: A budget that several runs share; None: a budget for this run alone.
            pace: A rate limit that several processes share; None: a limit for this process alone.

        Raises:
            UsageError: The agent does not exist, or does not take these options.
        """
        name, recording = self.name, spec.agent.recording
        if not registry.AGENTS.is_foreign(name):
            parameters = inspect.signature(registry.AGENTS.get(name)).parameters
            if recording is None and "recording" in parameters:
                raise UsageError(f"--agent {name} needs --recording PATH")
            if recording is not None and "recording" not in parameters:
                agent_names = ", ".join(registry.list_agents_taking("recording"))
                raise UsageError(
                    f"agent {name} takes no --recording; agents with this option: {agent_names}"
                )
        offered_skills = skills.read_all(spec.agent.skill)
        if unused_options := [
            option for option in unused_model_options(spec) if option in spec.flat()
        ]:
            flag = AGENT_OPTIONS[unused_options[0]].flag
            raise UsageError(
                f"agent {name} is not a language model: it takes no {flag}; name one that is, such "
                "as --agent try-again"
            )
        options: dict[str, Any] = {} if recording is None else {"recording": Path(recording)}
        return PreparedAgent(registry.get(name, **options), name, options, skills=offered_skills)

    def layers(self, spec: RunSpec) -> list[str]:
        """Return the image layers that hold the agent's skills.

        A run's record does not have the layers among the facts of the environment. The digests of
        the skills' files are among the facts of the agent.

        Raises:
            UsageError: A skill is invalid, or the protocol is not ``default``. The protocol of 2023
                has no skills.
        """
        if spec.agent.skill and spec.env.protocol != "default":
            raise UsageError("--skill needs the default protocol: that of 2023 has no skills")
        if not spec.agent.skill or not takes_layers(spec):
            return []
        offered_skills = skills.read_all(spec.agent.skill)
        homes = dict.fromkeys(self.skill_homes)
        return [str(skill.layer(home)) for home in homes for skill in offered_skills]


def agent_provider(name: str) -> AgentProvider:
    """Return the provider of an agent.

    Of the providers that installed packages register, the function imports only the provider that
    the agent's name selects.

    Raises:
        UsageError: The agent's name refers to a file that lacks this object.
        ImportError: The provider's module, or a dependency of it, is not installed.
    """
    if registry.is_external(name):
        if EXTERNAL not in PROVIDERS:
            raise missing_package_error(f"agent {name!r}", INTEGRATIONS)
        return cast(AgentProvider, PROVIDERS.get(EXTERNAL)(name))
    builtin_names = [
        provider_name
        for provider_name in PROVIDERS.names(packages=False)
        if not PROVIDERS.is_foreign(provider_name)
    ]
    kinds: list[type[AgentProvider]] = [
        kind for kind in map(PROVIDERS.get, builtin_names) if kind.claims(name)
    ]
    head, _ = split(name, ":")
    if not kinds and is_reference(name):
        target = registry.AGENTS.resolve(head)
        kinds = [target] if isinstance(target, type) and issubclass(target, AgentProvider) else []
    elif not kinds and name not in registry.AGENTS and head in PROVIDERS:
        kinds = [PROVIDERS.get(head)]
    return next(iter(kinds), AgentProvider)(name)


def actors(
    spec: RunSpec, budget: Budget | None = None, pace: RateLimit | None = None
) -> PreparedAgent:
    """Make the agent that a spec names: see `AgentProvider.make`."""
    return agent_provider(spec.agent.name).make(spec, budget, pace)


def max_concurrent_calls(spec: RunSpec) -> int:
    """Return the maximum number of concurrent model calls of a run."""
    return spec.run_options.max_connections or spec.run_options.workers


def unused_model_options(spec: RunSpec) -> list[str]:
    """Return the names of the options that an agent without a language model does not take.

    The list omits the options that the spec's reward takes for its own model.
    """
    used_options = {"agent", "recording", "preset", "observation_tail", *model_options(spec)}
    used_options |= {"skill"} if registry.AGENTS.is_foreign(spec.agent.name) else set()
    return [name for name in AGENT_OPTIONS if name not in used_options]


def takes_layers(spec: RunSpec) -> bool:
    """Return whether the spec's environment can add an agent's files to the workspaces.

    Sandboxes take files, database sessions do not.
    """
    return "layers" in list_constructor_options(environment(spec.env.name, spec.env.protocol))
