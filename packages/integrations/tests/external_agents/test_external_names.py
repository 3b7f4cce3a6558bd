"""The gym knows the names of the agents that another package of ours brings."""

from __future__ import annotations

from intercode.agents.registry import AGENTS
from intercode.registry import INTEGRATIONS
from intercode_integrations.external_agents import profile


def test_the_names_are_those_of_the_profiles() -> None:
    assert dict.fromkeys(profile.names(), INTEGRATIONS) == AGENTS.homes
