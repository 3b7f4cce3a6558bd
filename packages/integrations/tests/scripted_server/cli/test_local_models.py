"""Models of this machine, asked through the gateway."""

from __future__ import annotations

from pathlib import Path

from cli.test_models import Tell, path as path
from intercode.cli.main import main
from intercode.models.local import server


def test_a_program_asks_it_through_the_gateway(path: Path, capsys: Tell) -> None:
    command = 'curl -s "$OPENAI_BASE_URL/chat/completions" -H "Authorization: Bearer '
    command += '$OPENAI_API_KEY" -H "Content-Type: application/json" '
    command += """-d '{"model": "any", "messages": [{"role": "user", "content": "hello"}]}'"""
    gateway = ["gateway", "--upstream", "local/weights/small.gguf", "--record", "calls.jsonl"]
    assert main([*gateway, "--", "bash", "-c", command]) == 0
    assert not server._shared_servers
    (call,) = Path("calls.jsonl").read_text().splitlines()
    assert "echo 2" in call
