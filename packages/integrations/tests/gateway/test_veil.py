"""A key in pieces over several events of a stream."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from gateway.doors import BODIES, KEY, ask
from intercode.models.api_fields import TABLES, Name
from intercode.models.scripted import Line, Rule, script
from intercode_integrations.gateway import Gateway, Upstream
from intercode_integrations.gateway.secret_filter import SecretFilter
from intercode_integrations.gateway.streams import StreamedAnswer, StreamEvent
from intercode_integrations.testing import ScriptedServer
from intercode_integrations.testing.streams import frame

WITHOUT_OVERLAPS = [KEY, "abcdef"]
SECRETS = st.sampled_from([*WITHOUT_OVERLAPS, "aaaaaa", "ababab", "sk-s-sk"])
ENDS: dict[Name, dict[str, Any] | str] = {
    "chat": "[DONE]",
    "messages": {"type": "message_stop"},
    "responses": {"type": "response.completed", "response": {"output": []}},
}


def event(name: Name, place: int, piece: str) -> dict[str, Any]:
    """An event that brings a piece of one of two texts."""
    if name == "chat":
        delta: dict[str, Any] = {"content": piece}
        if place:
            delta = {"tool_calls": [{"index": place, "function": {"arguments": piece}}]}
        logprobs = {"content": [{"token": piece}]}
        return {"choices": [{"index": 0, "delta": delta, "logprobs": logprobs}]}
    if name == "messages":
        delta = {"type": "text_delta", "text": piece}
        return {"type": "content_block_delta", "index": place, "delta": delta}
    kind = "response.output_text.delta"
    return {"type": kind, "output_index": place, "delta": piece, "logprobs": [{"token": piece}]}


def texts(name: Name, raw: bytes) -> tuple[list[str], list[str]]:
    """The two texts that a client puts together, and the two by their tokens."""
    found, logged = ["", ""], ["", ""]
    for block in raw.split(b"\n\n"):
        data = json.loads(block[6:]) if block.startswith(b"data: {") else {}
        tokens = data.get("logprobs")
        if name == "chat" and data:
            delta, place = data["choices"][0]["delta"], 0
            tokens = (data["choices"][0]["logprobs"] or {}).get("content")
            if "tool_calls" in delta:
                place, piece = 1, delta["tool_calls"][0]["function"]["arguments"]
            else:
                piece = delta["content"]
        elif "delta" in data:
            place, delta = int(data.get("index", data.get("output_index", 0))), data["delta"]
            piece = delta["text"] if isinstance(delta, dict) else delta
        else:
            continue
        found[place] += piece
        # An event that has lost its tokens leaves a gap: what is on both sides is no text.
        logged[place] += "".join(one["token"] for one in tokens) if tokens else "\0"
    return found, logged


def events(raw: bytes) -> list[StreamEvent]:
    return StreamedAnswer("responses").feed(raw)


@settings(max_examples=100, deadline=None)
@given(data=st.data(), secret=SECRETS, name=st.sampled_from(sorted(TABLES)))
def test_a_key_is_hidden_however_it_is_cut(data: st.DataObject, secret: str, name: Name) -> None:
    begun = st.integers(1, len(secret)).map(lambda length: secret[:length])
    part = st.one_of(st.just(secret), begun, st.text("absk-é\\", max_size=4))
    said = ["".join(data.draw(st.lists(part, max_size=4))) for _ in range(2)]
    veil, sent, got, done = SecretFilter(secret), b"", b"", ["", ""]
    while done != said:
        open_ = [place for place in (0, 1) if done[place] != said[place]]
        place = data.draw(st.sampled_from(open_))
        piece = said[place][len(done[place]) :][: data.draw(st.integers(1, 9))]
        done[place] += piece
        raw = frame((None, event(name, place, piece)))
        sent, got = sent + raw, got + veil.filter_events(events(raw))
        waits = any(t.endswith(secret[:n]) for t in done for n in range(1, len(secret)))
        if not waits and not any(secret in text for text in done):
            assert got == sent
    last = frame((None, ENDS[name]))
    got += veil.filter_events(events(last)) + veil.flush()
    found, logged = texts(name, got)
    assert all(secret not in text for text in (*found, *logged))
    if not any(secret in text for text in said):
        assert got == sent + last
    elif secret in WITHOUT_OVERLAPS:
        assert found == [text.replace(secret, "[key]") for text in said]


@pytest.mark.parametrize("name", sorted(TABLES))
def test_an_event_waits_only_while_its_text_may_become_the_key(name: Name) -> None:
    veil = SecretFilter(KEY)
    passed = [
        veil.filter_events(events(frame((None, event(name, place, piece))))).count(b"data:")
        for place, piece in [(0, "one"), (0, " files"), (1, "x"), (0, "k-the"), (0, "y")]
    ]
    assert passed == [1, 0, 0, 0, 4]


def test_a_text_that_has_ended_waits_no_more() -> None:
    veil = SecretFilter(KEY)
    assert not veil.filter_events(events(frame((None, event("messages", 0, "files")))))
    stop = frame((None, {"type": "content_block_stop", "index": 0}))
    assert veil.filter_events(events(stop)).endswith(stop)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
def test_it_reaches_no_client(path: str, stream: bool) -> None:
    """The server sends a word an event, and writes marks as escapes."""
    key = 'a key of several "quoted" words'
    with ScriptedServer(script([Rule(Line(f"Your key is {key}!"))])) as server:
        upstream = Upstream("openai-compatible", "any", server.url, key)
        with Gateway(upstream) as gateway, gateway.open_session() as seat:
            code, answer = ask(seat, path, {**BODIES[path], "stream": stream})
            (call,) = seat.calls
    assert code == 200
    assert b"several" not in answer and b"[key]" in answer
    assert (call.text, call.error) == ("Your key is [key]!", "")
