"""The settings of the 2023 experiments, by name."""

import pytest

from intercode.agents import registry
from intercode.errors import UsageError
from intercode_paper import presets


def test_presets() -> None:
    preset = presets.get("paper-gpt-3.5-sql-try-again")
    assert (preset.env, preset.agent, preset.max_turns) == ("sql", "try-again-oracle", 10)
    assert (preset.observation_limit, preset.dialogue_limit) == (1000, 5)
    assert presets.get("paper-gpt-4-python-try-again").max_turns == 7
    for name in presets.names():
        assert presets.get(name).agent in registry.AGENTS
    with pytest.raises(UsageError, match="paper-gpt-4-bash-try-again"):
        presets.get("paper-gpt-5-bash-try-again")
