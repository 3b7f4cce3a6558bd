"""Programs as agents: what the provider needs for one."""

from __future__ import annotations

import pytest

from intercode.errors import UsageError
from intercode.evaluate.agent_setup import actors, agent_provider
from intercode.spec import RunSpec


@pytest.mark.parametrize("name", ["cli:true", "cli:pytest test_x.py::test_y"])
def test_a_command_is_an_agent_that_calls_a_model(name: str) -> None:
    """The second one is a command, and not an agent in a file."""
    assert agent_provider(name).calls_model


def test_a_command_needs_a_model_or_none() -> None:
    with pytest.raises(UsageError, match="cli:true needs --model PROVIDER/NAME, or --model none"):
        actors(RunSpec.from_layers({"env": "bash", "agent": "cli:true"}))


def test_a_program_that_acts_by_itself_needs_a_shell() -> None:
    spec = RunSpec.from_layers({"env": "sql", "agent": "cli:true", "model": "none"})
    with pytest.raises(UsageError, match="has none; choose bash or swe"):
        actors(spec)
