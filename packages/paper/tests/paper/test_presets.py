"""The settings of the 2023 experiments, by name."""

import pytest

import intercode
from intercode.agents import registry
from intercode.cli.main import main
from intercode.errors import UsageError
from intercode.evaluate.agent_setup import actors
from intercode.spec import RunSpec, read_arguments
from intercode_paper import presets
from test_spec import parsed


def test_presets() -> None:
    preset = presets.get("paper-gpt-3.5-sql-try-again")
    assert (preset.env, preset.agent, preset.max_turns) == ("sql", "try-again-oracle", 10)
    assert (preset.observation_limit, preset.dialogue_limit) == (1000, 5)
    assert presets.get("paper-gpt-4-python-try-again").max_turns == 7
    for name in presets.names():
        assert presets.get(name).agent in registry.AGENTS
    with pytest.raises(UsageError, match="paper-gpt-4-bash-try-again"):
        presets.get("paper-gpt-5-bash-try-again")


def test_a_preset_has_its_environment() -> None:
    with pytest.raises(UsageError, match="is for bash, not for sql"):
        read_arguments(parsed("sql", "--preset", "paper-gpt-4-bash-try-again"))
    preset = read_arguments(parsed("--preset", "paper-gpt-4-bash-try-again", "--max-turns", "2"))
    assert (preset["env"], preset["agent"], preset["max_turns"]) == ("bash", "try-again-oracle", 2)
    assert RunSpec.from_layers(preset).recorded()["observation_tail"] is False


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("2022", "has no protocol '2022'; known: default, paper"),
        ("papr", "has no protocol 'papr'; did you mean 'paper'"),
    ],
)
def test_a_protocol_by_another_name(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        intercode.make("bash", protocol=name)


def test_no_schema_where_nothing_shows_it() -> None:
    options = {"env": "sql", "protocol": "paper", "agent": "try-again", "model": "local/x"}
    with pytest.raises(UsageError, match=r"--context schema: no commands list .*sql"):
        actors(RunSpec.from_layers({**options, "context": "schema"}))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("paper-none", "there is no preset"),
        ("WRONG", "there is no preset 'WRONG'; known: paper-gpt-3.5-bash-p"),
        ("papre-gpt-4-sql-try-again", "did you mean 'paper-gpt-4-sql-try-again'?"),
        ("paper-gpt-4-sql-try-again", "is for sql, not for bash"),
    ],
)
def test_a_wrong_preset(name: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "bash", "--preset", name]) == 2
    assert message in capsys.readouterr().err
