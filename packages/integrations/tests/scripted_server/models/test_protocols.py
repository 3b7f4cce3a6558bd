"""The protocols over real HTTP: what is sent, what comes back, and how servers differ."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from intercode.errors import ContextLengthError, ModelError, UsageError
from intercode.models import (
    Message,
    Settings,
    Tool,
    ToolCall,
    Usage,
    anthropic,
    get_model,
    openai,
)
from intercode.models.base import Answer
from intercode.models.openai import MOST_TOKENS
from intercode.models.scripted import Line, Rule, script
from intercode_integrations.testing import ScriptedServer, server_dialects
from intercode_integrations.testing.server_dialects import DIALECTS
from models.conftest import KEYS
from scripted_server.models.providers import ALL, ANTHROPIC, CHAT, COMPLETIONS, HELLO, connect

BASH = Tool("bash", "Runs it.", {"type": "object", "properties": {"code": {"type": "string"}}})
CALL = ToolCall("call_0", "bash", {"code": "ls -la\ndate"})
DIALOGUE = (
    Message("system", "Be good."),
    Message("user", "List them."),
    Message("assistant", "I look.", (CALL,)),
    Message("tool", "a b c", call_id="call_0"),
    Message("user", "And now?"),
)
LIMIT = "max_completion_tokens"
EVERYTHING = Settings(temperature=0.5, top_p=0.9, max_tokens=77, stop=("END",), seed=3)


@pytest.mark.parametrize("name", ALL)
def test_a_reply_with_its_usage_and_cost(name: str) -> None:
    prices = {CHAT: (2.5, 10), COMPLETIONS: (1.5, 2), ANTHROPIC: (1, 5)}
    with ScriptedServer(script([Rule(Line("hello there"))])) as server:
        reply = connect(name, server).complete(HELLO)
    assert (reply.text, reply.finish, reply.retries, reply.cached) == ("hello there", "stop", 0, 0)
    assert reply.usage == server.usage == Usage(3, 2)
    assert reply.cost == pytest.approx((3 * prices[name][0] + 2 * prices[name][1]) / 1e6)
    assert reply.model == name.partition("/")[2]
    assert reply.seconds > 0


def test_what_chat_is_sent() -> None:
    with ScriptedServer() as server:
        connect(CHAT, server).complete(DIALOGUE, EVERYTHING, [BASH])
        connect("vllm/some/model", server).complete(HELLO, Settings(None, max_tokens=5))
    theirs, own = server.exchanges
    assert theirs.headers["authorization"] == f"Bearer {KEYS['OPENAI_API_KEY']}"
    assert own.headers["authorization"] == f"Bearer {KEYS['OPENAI_COMPATIBLE_API_KEY']}"
    messages = theirs.body["messages"]
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "tool", "user"]
    assert messages[2]["tool_calls"] == [
        {
            "id": "call_0",
            "type": "function",
            "function": {"name": "bash", "arguments": '{"code": "ls -la\\ndate"}'},
        }
    ]
    assert messages[3] == {"role": "tool", "tool_call_id": "call_0", "content": "a b c"}
    settings = {
        k: v for k, v in theirs.body.items() if not k.startswith(("m", "tool")) or k == LIMIT
    }
    assert settings == {
        "temperature": 0.5,
        "top_p": 0.9,
        LIMIT: 77,
        "stop": ["END"],
        "seed": 3,
    }
    assert theirs.body["tools"][0]["function"]["parameters"] == BASH.parameters
    assert theirs.body["tool_choice"] == "auto"
    assert own.body == {
        "model": "some/model",
        "max_tokens": 5,
        "messages": [{"role": "user", "content": "one two three"}],
    }


def test_what_anthropic_is_sent() -> None:
    empty = Message("assistant", " \n")
    with ScriptedServer() as server:
        connect(ANTHROPIC, server).complete([*DIALOGUE, empty], EVERYTHING, [BASH])
    (sent,) = server.exchanges
    # Its client has sent the key under one name, and later under the other.
    key = sent.headers.get("x-api-key") or sent.headers["authorization"].removeprefix("Bearer ")
    assert key == KEYS["ANTHROPIC_API_KEY"]
    body = dict(sent.body)
    messages = body.pop("messages")
    assert [m["role"] for m in messages] == ["user", "assistant", "user", "assistant"]
    assert [b["type"] for b in messages[1]["content"]] == ["text", "tool_use"]
    assert [b["type"] for b in messages[2]["content"]] == ["tool_result", "text"]
    assert messages[3]["content"][0]["text"].strip()
    assert body.pop("tools")[0]["input_schema"] == BASH.parameters
    assert body == {
        "model": "claude-haiku-4-5-20251001",
        "max_tokens": 77,
        "system": "Be good.",
        "temperature": 0.5,
        "top_p": 0.9,
        "stop_sequences": ["END"],
    }


def test_what_completions_is_sent() -> None:
    with ScriptedServer() as server:
        model = connect(COMPLETIONS, server)
        model.complete(HELLO)
        model.complete(DIALOGUE[:2])
        with pytest.raises(ModelError, match="takes no tools"):
            model.complete(HELLO, tools=[BASH])
    assert [e.body["prompt"] for e in server.exchanges] == [
        "one two three",
        "System: Be good.\n\nUser: List them.\n\nAssistant:",
    ]
    assert [e.body["max_tokens"] for e in server.exchanges] == [MOST_TOKENS] * 2
    assert [e.body.get("stop") for e in server.exchanges] == [None, ["\n\nUser:"]]


@pytest.mark.parametrize("name", ALL)
def test_a_reply_is_as_long_and_ends_where_it_is_to(name: str) -> None:
    words = " ".join(f"w{n}" for n in range(50))
    with ScriptedServer(script([Rule(Line(words))])) as server:
        model = connect(name, server)
        assert (whole := model.complete(DIALOGUE)).text == words, (
            "not 16 tokens, as servers have it"
        )
        short = model.complete(DIALOGUE, Settings(max_tokens=20))
        assert model.complete(DIALOGUE, Settings(stop=(" w3",))).text == "w0 w1 w2"
    assert (whole.finish, short.finish) == ("stop", "length")
    assert short.usage.output_tokens == 20


@pytest.mark.parametrize("name", [*DIALECTS, "anthropic"])
def test_tool_calls_of_every_server(name: str) -> None:
    line = Line("I look.", (CALL, ToolCall("call_1", "bash", {})), "tool_calls")
    dialect = name if name in DIALECTS else "openai"
    with ScriptedServer(script([Rule(line)]), dialect=dialect) as server:
        model = connect(ANTHROPIC if name == "anthropic" else "vllm/any", server)
        reply = model.complete(HELLO, tools=[BASH])
    assert reply.text == "I look."
    assert [(c.name, c.arguments) for c in reply.tool_calls] == [
        ("bash", CALL.arguments),
        ("bash", {}),
    ]
    assert len({c.call_id for c in reply.tool_calls}) == 2
    assert reply.finish == "tool_calls"
    assert reply.usage == (Usage() if name == "old llama.cpp" else server.usage)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("finish", ["stop", "length"])
def test_why_a_reply_ended(dialect: str, finish: str) -> None:
    says = dialect not in {"old llama.cpp", "calls-in-text"}
    line = Line("hello", finish=finish)  # type: ignore[arg-type]
    with ScriptedServer(script([Rule(line)]), dialect=dialect) as server:
        reply = connect("vllm/any", server).complete(HELLO)
    assert (reply.text, reply.finish) == ("hello", finish if says else "stop")


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("finish", ["length", "filter"])
def test_cut_off_and_refused(name: str, finish: str) -> None:
    line = Line("hel", finish=finish)  # type: ignore[arg-type]
    with ScriptedServer(script([Rule(line)])) as server:
        assert connect(name, server).complete(HELLO).finish == finish


@pytest.mark.parametrize("dialect", server_dialects.TOO_LONG)
def test_a_dialogue_that_is_too_long(dialect: str) -> None:
    served = dialect if dialect in DIALECTS else "openai"
    with ScriptedServer(dialect=served, context=10) as server:
        model = connect(ANTHROPIC if dialect == "anthropic" else "vllm/any", server)
        model.complete(HELLO)
        with pytest.raises(ContextLengthError, match=model.name):
            model.complete([Message("user", "word " * 20)])
    assert len(server.exchanges) == 2, "it was not tried again"


DEEP_CALL = f'{{"a": {"[" * 300}{"]" * 300}}}'
"""Arguments that nest so deep that later steps could not recurse over them."""


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"content": None}, ("", ())),
        ({"content": [{"type": "text", "text": "a"}, {"type": "x"}, "b"]}, ("ab", ())),
        ({"content": None, "tool_calls": None, "refusal": "No."}, ("No.", ())),
        ({"content": "x", "tool_calls": {"name": "f", "arguments": "{"}}, ("x", ({"_raw": "{"},))),
        (
            {"tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]},
            ("", ({"_raw": "[1]"},)),
        ),
        ({"tool_calls": [{"function": {"name": "f", "arguments": None}}]}, ("", ({},))),
        (
            {"tool_calls": [{"function": {"name": "f", "arguments": DEEP_CALL}}]},
            ("", ({"_raw": DEEP_CALL},)),
        ),
        (
            {"tool_calls": [{"function": {"name": "f", "arguments": json.loads(DEEP_CALL)}}]},
            ("", ({"_raw": DEEP_CALL},)),
        ),
        ({"content": f'{{"name": "bash", "parameters": {DEEP_CALL}}}'}, None),
        ({"content": '{"name": "bash", "parameters": {"a": 1}}'}, ("", ({"a": 1},))),
        (
            {"content": '{"name": "other", "parameters": {}}'},
            ('{"name": "other", "parameters": {}}', ()),
        ),
    ],
)
def test_odd_messages(
    message: Mapping[str, object], expected: tuple[str, tuple[object, ...]] | None
) -> None:
    def odd(payload: dict[str, object], asked: object) -> dict[str, object]:
        return payload | {"choices": [{"message": message}]}

    with ScriptedServer() as server, pytest.MonkeyPatch.context() as patch:
        patch.setitem(DIALECTS, "odd", odd)
        server.dialect = "odd"
        reply = connect("vllm/any", server).complete(HELLO, tools=[BASH])
    expected = expected or (str(message["content"]), ())
    assert (reply.text, tuple(c.arguments for c in reply.tool_calls)) == expected


@pytest.mark.parametrize("name", ALL)
def test_what_is_no_text_on_either_side(name: str) -> None:
    with ScriptedServer(lambda m: Line("\ud83d\ude00 half: \ud800")) as server:
        model = connect(name, server)
        assert model.complete([Message("user", "half: \udc80")]).text == "\U0001f600 half: \ufffd"
        assert "half: \ufffd" in str(server.exchanges[0].body)
        broken = ToolCall("c", "bash", {"code": "\ud800"})
        if name == ANTHROPIC:
            with pytest.raises(ModelError, match="half a surrogate pair"):
                model.complete([*HELLO, Message("assistant", "", (broken,)), *HELLO])


def test_tokens_that_the_provider_had_in_its_cache() -> None:
    theirs = Answer("a", usage=Usage(100, 7, 60))
    assert openai.decode_chat(server_dialects.chat(theirs)).usage == theirs.usage
    sent = server_dialects.messages(theirs)
    assert anthropic.decode(sent).usage == theirs.usage
    sent["usage"] |= {"cache_creation_input_tokens": 5, "cache_read_input_tokens": None}
    assert anthropic.decode(sent).usage == Usage(45, 7, 0)


def test_an_unknown_price_is_no_price(caplog: pytest.LogCaptureFixture) -> None:
    with ScriptedServer(script([Rule(Line("hello"))])) as server:
        reply = connect("ollama/qwen", server).complete(HELLO)
        assert (reply.cost, reply.usage) == (None, Usage(3, 1))
    assert "the price of ollama/qwen is unknown" in caplog.text


def test_anthropics_base_url_with_and_without_the_version() -> None:
    with ScriptedServer(script([Rule(Line("hello"))])) as server:
        for url in (server.root, server.url, f"{server.url}/"):
            assert get_model(ANTHROPIC, base_url=url).complete(HELLO).text == "hello"


def test_names_and_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gpt-4o", "openai/", "nobody/gpt-4o", "openai-compatible/any"):
        with pytest.raises(UsageError):
            get_model(name)
    with pytest.raises(UsageError, match=r"pip install 'intercode-gym\[litellm\]'"):
        monkeypatch.setitem(__import__("sys").modules, "litellm", None)
        get_model("litellm/mistral/mistral-large")
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(UsageError, match=r"set OPENAI_API_KEY in the environment or in \.env"):
        get_model("openai/gpt-4o")
    with ScriptedServer(key="another-key") as server:
        with pytest.raises(ModelError, match=r"anthropic/.*: HTTP 401"):
            connect(ANTHROPIC, server).complete(HELLO)
        with pytest.raises(ModelError, match="no message"):
            connect(ANTHROPIC, server).complete([])
        assert len(server.exchanges) == 1


def test_a_call_that_is_no_json_does_not_spoil_the_dialogue() -> None:
    raw = ToolCall("c", "bash", {"_raw": '{"code": "ls'})
    with ScriptedServer(dialect="llama.cpp") as server:
        connect("vllm/any", server).complete([*HELLO, Message("assistant", "", (raw,))])
    sent = server.exchanges[0].body["messages"][1]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(sent) == raw.arguments
    told = server_dialects.no_json(
        {"messages": [{"tool_calls": [{"function": {"arguments": "{"}}]}]}
    )
    assert told is not None and told[0] == 500, "as llama.cpp would have said"


def test_llama_cpp_python_has_no_tools_unless_they_are_asked_for() -> None:
    for choice, calls in (("auto", 1), (None, 0)):
        said = server_dialects.chat(Answer("", (CALL,), Usage(1, 1), "m", "tool_calls"))
        payload = server_dialects.llama_cpp_python(said, {"tool_choice": choice})
        assert len(openai.decode_chat(payload).tool_calls) == calls
