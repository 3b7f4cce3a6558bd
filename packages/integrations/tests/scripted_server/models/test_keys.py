"""Keys: where they come from, and where they never go."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from intercode.errors import ModelError, UsageError
from intercode.models import ToolCall, get_model
from intercode.models.api_keys import check_url, find
from intercode.models.scripted import Line
from intercode.secrets import hide, parse_variables
from intercode_integrations.testing import Fault, ScriptedServer
from models.conftest import KEYS
from scripted_server.models.providers import ALL, HELLO, connect

FAULTS = {
    "said back": Fault("status", 401, body='{"error": {"message": "Incorrect API key: KEY."}}'),
    "said back plainly": Fault("status", 400, body="no, KEY"),
    "in an answer": Fault("status", 200, body='{"error": {"message": "no: KEY", "code": 400}}'),
    "tried again": Fault("status", 500, body='{"detail": "KEY"}'),
    "malformed": Fault("status", 200, body="KEY"),
    "disconnect": Fault("disconnect"),
}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("case", FAULTS)
def test_a_key_is_never_shown(name: str, case: str, caplog: pytest.LogCaptureFixture) -> None:
    key = KEYS["ANTHROPIC_API_KEY" if name.startswith("anthropic") else "OPENAI_API_KEY"]
    if "completions" in name:
        key = KEYS["OPENAI_COMPATIBLE_API_KEY"]  # the server is not OpenAI's
    fault = FAULTS[case]
    body = fault.body and fault.body.replace("KEY", key)
    with (
        caplog.at_level(logging.DEBUG),
        ScriptedServer(plan=lambda _: Fault(fault.kind, fault.status, body=body)) as server,
        connect(name, server, retries=1) as model,
    ):
        with pytest.raises(ModelError) as caught:
            model.complete(HELLO)
        shown = "".join(traceback.format_exception(caught.value)) + repr(model) + repr(vars(model))
        sent = server.exchanges[0].headers
        assert any(key in value for value in sent.values()), "it was sent"
    assert key not in shown
    assert key not in caplog.text
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("name", ALL)
def test_a_key_in_a_reply_is_not_handed_on(name: str) -> None:
    provider = name.partition("/")[0]
    own = {"anthropic": "ANTHROPIC_API_KEY", "openai": "OPENAI_API_KEY"}
    key = KEYS[own.get(provider, "OPENAI_COMPATIBLE_API_KEY")]
    calls = (ToolCall(key, "bash", {"code": f"echo {key}"}),) if provider in own else ()
    with ScriptedServer(lambda _: Line(f"It is {key}!", calls)) as server:
        reply = connect(name, server).complete(HELLO)
        assert any(key in value for value in server.exchanges[0].headers.values())
    assert reply.text == "It is [key]!"
    assert [call.arguments for call in reply.tool_calls] == [{"code": "echo [key]"}] * len(calls)
    assert key not in repr(reply)


def test_no_key_is_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_COMPATIBLE_API_KEY")
    with ScriptedServer(lambda _: Line("none of them")) as server:
        assert connect("vllm/any", server).complete(HELLO).text == "none of them"


def test_a_key_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".env").write_text("OPENAI_API_KEY=sk-from-the-file\nANTHROPIC_API_KEY=sk-file\n")
    monkeypatch.delenv("OPENAI_API_KEY")
    with ScriptedServer() as server:
        connect("openai/gpt-4o", server).complete(HELLO)
    assert server.exchanges[0].headers["authorization"] == "Bearer sk-from-the-file"
    assert find("ANTHROPIC_API_KEY") == KEYS["ANTHROPIC_API_KEY"], "the environment goes before"
    assert hide("it was sk-from-the-file!") == "it was [OPENAI_API_KEY]!"


@pytest.mark.parametrize("value", ["sk-a\nb-secret", "sk-\u201csecret", "sk-\x7fsecret"])
def test_what_cannot_be_a_key(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", value)
    with pytest.raises(UsageError, match="OPENAI_API_KEY has a character") as caught:
        get_model("openai/gpt-4o")
    assert "secret" not in str(caught.value)


def test_the_key_of_openai_is_not_given_to_others() -> None:
    with ScriptedServer() as server:
        for name in ("openai-compatible/a", "vllm/a", "ollama/a", "llama.cpp/a"):
            connect(name, server).complete(HELLO)
    for exchange in server.exchanges:
        assert KEYS["OPENAI_API_KEY"] not in "".join(exchange.headers.values())


@pytest.mark.parametrize(
    "url",
    [
        "http://user:secret-word@host/v1",
        "https://secret-word@host/v1",
        "https://host/v1?key=secret-word",
        "https://host/v1#secret-word",
        "host:8000/secret-word",
        "http:///secret-word",
        "http://[secret-word",
    ],
)
def test_a_url_has_no_secret_in_it(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        get_model("vllm/any", base_url=url)
    assert "secret-word" not in str(caught.value)
    assert check_url("http://localhost:8000/v1/") == "http://localhost:8000/v1"


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("A=b", "b"),
        ("  export  A = b c  ", "b c"),
        ("A=b # no", "b"),
        ("A=b#c", "b#c"),
        ("A=", ""),
        ("A= # only this", ""),
        ("A='b # c' # no", "b # c"),
        ('A="b\\n\\"c\\" \\\\ \\$d"', 'b\n"c" \\ $d'),
        ('A="not closed', '"not closed'),
        ("A=$HOME", "$HOME"),
        ("\ufeffA=b=c", "b=c"),
        ("#A=b", None),
        ("A b", None),
        ("1A=b", None),
    ],
)
def test_lines_of_an_env_file(line: str, value: str | None) -> None:
    assert parse_variables(line).get("A") == value


@given(st.text())
def test_no_env_file_breaks_the_parser(text: str) -> None:
    assert all(name.isidentifier() for name in parse_variables(text))


@given(
    st.text(
        st.characters(codec="utf-8", exclude_characters="'\r\n\v\f\x1c\x1d\x1e\x85\u2028\u2029")
    )
)
def test_what_is_quoted_is_taken_as_it_is(value: str) -> None:
    assert parse_variables(f"X=1\nKEY='{value}'  # a key\nY=2") == {
        "X": "1",
        "KEY": value,
        "Y": "2",
    }


def test_an_env_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    (tmp_path / ".env").write_bytes(b"OPENAI_API_KEY=\xff\xfe")
    with pytest.raises(UsageError, match=r"\.env cannot be read: it is not UTF-8"):
        get_model("openai/gpt-4o")
    (tmp_path / ".env").unlink()
    (tmp_path / ".env").mkdir()
    with pytest.raises(UsageError, match="set OPENAI_API_KEY"):
        get_model("openai/gpt-4o")
