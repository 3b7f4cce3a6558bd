"""What a run says that its model took, where the server does not say it, or was not asked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from intercode.cli.main import main
from intercode.models import openai
from intercode.models.base import Answer
from intercode_integrations.testing.server import Fault, ScriptedServer

PRICES = {"models": {"openai-compatible/any": {"input": 1.0, "output": 1.0}}}
Says = pytest.CaptureFixture[str]


def run(server: ScriptedServer, out: Path, *more: str) -> int:
    model = ["--agent", "try-again", "--model", "openai-compatible/any", "--base-url", server.url]
    return main(["run", "bash", *model, "--limit", "1", "--out", str(out), "--quiet", *more])


def no_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    decode = openai.decode_chat

    def without(*arguments: Any) -> Answer:
        return replace(decode(*arguments), usage=None)

    monkeypatch.setattr(openai, "decode_chat", without)


def test_a_call_that_the_budget_refuses_is_none(tmp_path: Path, capsys: Says) -> None:
    with ScriptedServer() as server:
        assert run(server, tmp_path / "run", "--max-tokens", "20") == 1
        assert not server.exchanges
    said = capsys.readouterr().out
    assert "model: 0 calls, 0 tokens in, 0 out\n" in said
    assert "$" not in said.split("model: ")[1].splitlines()[0]


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_tokens_that_no_server_has_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Says, more: tuple[str, ...]
) -> None:
    no_usage(monkeypatch)
    with ScriptedServer() as server:
        run(server, tmp_path / "run", *more)
        calls = len(server.exchanges)
    said = capsys.readouterr().out
    if more:
        stats = json.loads(said)["statistics"]
        assert [stats[name] for name in ("tokens_in", "tokens_out", "cost")] == [None] * 3
    else:
        assert f"model: {calls} calls, tokens not reported\n" in said
        main(["show", str(tmp_path / "run"), "--messages"])
        assert "0 tokens in" not in capsys.readouterr().out


@pytest.mark.parametrize("priced", [False, True])
def test_calls_that_fail_have_no_price(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Says, priced: bool
) -> None:
    prices = tmp_path / "prices.json"
    prices.write_text(json.dumps(PRICES))
    more = ["--prices", str(prices)] if priced else []
    with ScriptedServer(plan=lambda _: Fault("status", status=400)) as server:
        assert run(server, tmp_path / "run", *more) == 1
    said = capsys.readouterr()
    assert "model: 1 call, tokens not reported\n" in said.out
    assert "$" not in said.out.split("model: ")[1].splitlines()[0]
