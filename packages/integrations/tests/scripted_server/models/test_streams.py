"""Faults in streams, as the real SDKs meet them, and the framing of events."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import anthropic
import openai
import pytest
from hypothesis import given, settings, strategies as st
from openai._streaming import SSEDecoder

from intercode_integrations.testing import (
    Fault,
    Line,
    Rule,
    ScriptedServer,
    first,
    script,
    status,
    too_many,
)
from intercode_integrations.testing.streams import frame, tokens
from waiting import eventually

ASKED: Any = {"model": "any", "messages": [{"role": "user", "content": "one two"}]}
TEXT = "a b c d e f g h"
DELTAS = {
    "chat": lambda event: event.choices[0].delta.content if event.choices else "",
    "responses": lambda event: event.delta if event.type == "response.output_text.delta" else "",
    "messages": lambda event: event.delta.text if event.type == "content_block_delta" else "",
}
Ask = Callable[[], Iterator[Any]]


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(script([Rule(Line(TEXT))])) as server:
        yield server


@pytest.fixture(scope="module")
def asks(server: ScriptedServer) -> Iterator[dict[str, Ask]]:
    """Of each protocol, to ask for a stream without a second try."""
    theirs = openai.OpenAI(api_key="x", base_url=server.url, max_retries=0)
    others = anthropic.Anthropic(api_key="x", base_url=server.root, max_retries=0)
    with theirs, others:
        yield {
            "chat": lambda: theirs.chat.completions.create(**ASKED, stream=True),
            "responses": lambda: theirs.responses.create(model="any", input="one two", stream=True),
            "messages": lambda: others.messages.create(**ASKED, max_tokens=99, stream=True),
        }


@pytest.fixture(params=DELTAS)
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def ask(server: ScriptedServer, asks: dict[str, Ask], protocol: str) -> Ask:
    server.exchanges.clear()
    return asks[protocol]


def fail(server: ScriptedServer, fault: Fault) -> None:
    """Make this the fault of every next answer."""
    server.plan = lambda number: fault


def read(ask: Ask, protocol: str) -> tuple[str, Exception | None]:
    """The text that has arrived, and the error after it."""
    said = ""
    try:
        for event in ask():
            said += DELTAS[protocol](event) or ""
    except Exception as error:  # noqa: BLE001 - either SDK's, or of the libraries below it
        return said, error
    return said, None


@pytest.mark.parametrize("kind", ["truncated", "unfinished", "malformed", "overloaded"])
def test_half_a_stream(server: ScriptedServer, ask: Ask, protocol: str, kind: Any) -> None:
    fail(server, Fault(kind))
    said, error = read(ask, protocol)
    assert said and TEXT.startswith(said)
    assert (error is None) == (
        kind == "unfinished" or (kind, protocol) == ("overloaded", "responses")
    )
    if kind == "malformed":
        assert isinstance(error, json.JSONDecodeError)
    if kind == "truncated":
        assert "without sending complete message body" in str((error and error.__cause__) or error)
    if kind == "overloaded" and protocol == "messages":
        assert isinstance(error, anthropic.APIStatusError) and "overloaded_error" in str(error)
    if kind == "overloaded" and protocol == "chat":
        assert isinstance(error, openai.APIError) and "Overloaded" in str(error)
    (exchange,) = server.exchanges
    assert not exchange.answered
    assert (exchange.usage is not None) == (kind != "overloaded"), "the model has worked"


@pytest.mark.parametrize("protocol", ["responses"], indirect=True)
def test_a_response_that_fails_says_why(server: ScriptedServer, ask: Ask) -> None:
    fail(server, Fault("overloaded"))
    *_, last = ask()
    assert (last.type, last.response.status) == ("response.failed", "failed")
    assert last.response.error.code == "server_is_overloaded"


def test_a_stream_without_events(server: ScriptedServer, ask: Ask) -> None:
    fail(server, Fault("empty"))
    assert list(ask()) == []
    assert server.exchanges[0].usage and not server.exchanges[0].answered


@pytest.mark.parametrize("fault", [too_many(3), status(529), Fault("disconnect")])
def test_no_stream_at_all(server: ScriptedServer, ask: Ask, protocol: str, fault: Fault) -> None:
    fail(server, fault)
    _, error = read(ask, protocol)
    if fault.kind == "disconnect":
        assert isinstance(error, anthropic.APIConnectionError | openai.APIConnectionError)
        return
    assert isinstance(error, anthropic.APIStatusError | openai.APIStatusError)
    assert error.status_code == fault.status
    assert error.response.headers.get("retry-after") == ("3" if fault.status == 429 else None)
    if protocol == "messages":
        kinds = {429: "rate_limit_error", 529: "overloaded_error"}
        assert error.response.json()["error"]["type"] == kinds[fault.status]


def test_a_stream_arrives_while_it_is_made(server: ScriptedServer, ask: Ask, protocol: str) -> None:
    """The second half is not sent before the first was read."""
    rest = threading.Event()
    fail(server, Fault("slow", pause=0.001, last_request=rest))
    said = ""
    for event in ask():
        said += DELTAS[protocol](event) or ""
        if said.startswith("a b"):
            rest.set()
    assert said == TEXT
    assert server.exchanges[0].answered


def test_a_whole_answer_waits_for_its_event() -> None:
    ready = threading.Event()
    with (
        ScriptedServer(plan=first(Fault("slow", last_request=ready))) as server,
        openai.OpenAI(api_key="x", base_url=server.url, max_retries=0) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        waiting = pool.submit(lambda: client.chat.completions.create(**ASKED))
        assert eventually(lambda: server.exchanges)
        assert client.chat.completions.create(**ASKED).usage, "another one does not wait"
        assert not waiting.done()
        ready.set()
        assert waiting.result().usage


def test_a_server_ends_while_a_stream_waits() -> None:
    with ScriptedServer(script([Rule(Line(TEXT))])) as server:
        server.plan = lambda number: Fault("slow", last_request=threading.Event())
        client = openai.OpenAI(api_key="x", base_url=server.url, max_retries=0)
        stream = client.chat.completions.create(**ASKED, stream=True)
        next(iter(stream))
    with client, suppress(openai.APIError):
        list(stream)  # has an end


@given(st.text(), st.none() | st.just("a.b"))
@settings(max_examples=200, deadline=None)
def test_any_text_in_an_event(text: str, name: str | None) -> None:
    """A decoder of others finds one event, with all of the text."""
    sent = frame((name, {"text": text})) + frame((None, "[DONE]"))
    found = list(SSEDecoder().iter_bytes(iter([sent])))
    assert [event.event for event in found] == [name, None]
    assert found[0].json() == {"text": text}
    assert found[1].data == "[DONE]"


@given(st.text())
def test_tokens_are_the_words_of_a_text(text: str) -> None:
    found = tokens(text)
    assert "".join(found) == text
    assert [word for part in found for word in part.split()] == text.split()
    assert len(found) == len(text.split()) or not text.split()
