"""Presets of the paper with models, and skills with its protocol: packages side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from external_agents.test_command_line import folder as folder, server as server
from intercode.cli.main import main
from intercode_integrations.testing import ScriptedServer


def test_a_preset_fills_what_is_not_given(server: ScriptedServer) -> None:
    server.exchanges.clear()
    name = "paper-gpt-3.5-bash-try-again"
    where = ["--model", "openai-compatible/test", "--base-url", server.url]
    assert main(["run", "--preset", name, *where, "--data", "tasks.json", "--out", "run"]) == 0
    manifest = json.loads(Path("run/run.json").read_text())
    assert manifest["agent"]["name"] == "try-again-oracle"
    assert manifest["env"]["reward_every_turn"] is True and manifest["env"]["max_turns"] == 10
    assert manifest["agent"]["language_model"]["observation_limit"] == 1000
    assert "Bourne Shell" in server.exchanges[0].body["messages"][0]["content"]
    assert len(server.exchanges) == 4, "the true reward ends an episode"
    assert main(["run", "--trust", "--locked", "run", *where[2:], "--quiet", "--out", "again"]) == 0


def test_a_skill_is_for_the_default_protocol(
    server: ScriptedServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.exchanges.clear()
    (folder / "greet").mkdir()
    (folder / "greet/SKILL.md").write_text(
        "---\nname: greet\ndescription: How to greet.\n---\nSay hello.\n"
    )
    run = ["run", "bash", "--data", "tasks.json", "--agent", "try-again", "--out", "run"]
    run += ["--model", "openai-compatible/test", "--base-url", server.url]
    assert main([*run, "--skill", "greet", "--protocol", "paper"]) == 2
    assert "the default protocol: that of" in capsys.readouterr().err
    assert not server.exchanges and not Path("run").exists()
