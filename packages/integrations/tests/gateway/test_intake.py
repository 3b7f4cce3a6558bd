"""Limits of a client of the gateway: bytes, JSON tokens, and calls that are kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.doors import BODIES, KEY, ask, raw, said
from intercode.errors import UsageError
from intercode.json_limits import MAX_DEPTH, MAX_TOKENS, count_tokens
from intercode.models.limits import Budget, Retry
from intercode.models.remote import ModelCallContext
from intercode.models.scripted import Line, Rule, script
from intercode_integrations.gateway import Gateway, GatewayPolicy, GatewaySession, Upstream
from intercode_integrations.gateway.byte_quota import (
    FREE_BODY_BYTES,
    SharedByteQuota,
    check_embedded_tokens,
)
from intercode_integrations.gateway.calls import Call
from intercode_integrations.gateway.episode_calls import (
    MAX_CHARACTERS,
    MAX_FAILED_CHARACTERS,
    SessionMessages,
)
from intercode_integrations.gateway.policy import GatewayRefusal
from intercode_integrations.testing import ScriptedServer
from waiting import eventually

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(script([Rule(Line("Done."))]), key=KEY) as found:
        yield found


@pytest.fixture
def gateway(server: ScriptedServer) -> Iterator[Gateway]:
    upstream = Upstream("openai-compatible", "any", server.url, KEY)
    with Gateway(upstream, call_context=ModelCallContext(retry=Retry(retries=0))) as found:
        yield found


def message(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi", **fields}]}


def call(arguments: str) -> dict[str, Any]:
    function = {"name": "bash", "arguments": arguments}
    return message(role="assistant", tool_calls=[{"id": "1", "function": function}])


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


MANY = "[" + "[]," * (MAX_TOKENS // 3) + "[]]"
DEEP = nested(MAX_DEPTH + 1)


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":' + MANY.encode() + b"}",
        b'{"messages":[],"tools":' + DEEP.encode() + b"}",
        b'{"messages":[{"content":[' + b'"",' * MAX_TOKENS + b'""]}]}',
        b'"' * (2 * MAX_TOKENS + 2),
        b"[" * (MAX_DEPTH + 1),
        json.dumps(call(MANY)).encode(),
        json.dumps(call(DEEP)).encode(),
        json.dumps(message(tool_calls=[call(MANY[:90_000])["messages"][0]] * 40)).encode(),
        json.dumps({"input": [{"type": "custom_tool_call", "input": MANY}]}).encode(),
    ],
    ids=lambda body: body[:20].decode(),
)
def test_a_body_of_too_many_or_too_deep_values_is_refused_unparsed(
    gateway: Gateway, server: ScriptedServer, body: bytes
) -> None:
    server.exchanges.clear()
    with gateway.open_session() as seat, raw(seat) as client:
        client.sendall(head(seat, len(body)) + body)
        assert said(client).startswith(b"HTTP/1.1 413")
        assert not seat.calls and not server.exchanges


def head(seat: GatewaySession, length: int, more: str = "") -> bytes:
    lines = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nx-api-key: {seat.token}\r\n{more}"
    return f"{lines}Connection: close\r\nContent-Length: {length}\r\n\r\n".encode()


def test_text_of_any_content_counts_as_one_token() -> None:
    for text in ("[" * 1000, ',"\\{' * 1000, "\\" * 1000, "é\U0001f600" * 1000):
        assert count_tokens(json.dumps({"text": text}, ensure_ascii=False).encode()) == 4
    assert count_tokens(json.dumps(json.loads(nested(MAX_DEPTH))).encode()) == 2 * MAX_DEPTH
    check_embedded_tokens({"messages": [{"input": "a, b"}], "input": MANY}, 1)


def test_a_message_has_the_limit_that_was_exceeded() -> None:
    with pytest.raises(UsageError, match="more than 4 JSON tokens"):
        count_tokens(b"[1,2,3,4]", limit=4)


def test_escapes_cost_no_memory_of_the_scan() -> None:
    import tracemalloc

    body = b'["' + b'\\"' * FREE_BODY_BYTES + b'"' + b'""' * 1000 + b"]"
    tracemalloc.start()
    try:
        count_tokens(body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * len(body)  # a token's own bytes at most


def test_chunks_of_a_byte_are_few(gateway: Gateway, server: ScriptedServer) -> None:
    server.exchanges.clear()
    with gateway.open_session() as seat, raw(seat) as client:
        chunked = head(seat, 0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
        client.sendall(chunked + b"1\r\n \r\n" * 11_000 + b"0\r\n\r\n")
        assert said(client).startswith(b"HTTP/1.1 413")
    assert not server.exchanges


@pytest.mark.parametrize("path", ["/", "/v1/models"])
def test_a_request_without_a_body_has_none(gateway: Gateway, path: str) -> None:
    with gateway.open_session() as seat, raw(seat) as client:
        client.sendall(head(seat, 10).replace(f"POST {CHAT}".encode(), f"GET {path}".encode()))
        client.sendall(b"0123456789")
        assert said(client).startswith(b"HTTP/1.1 413")


def test_a_length_beyond_the_limit_is_refused_before_the_body(gateway: Gateway) -> None:
    with gateway.open_session() as seat, raw(seat) as client:
        client.sendall(head(seat, gateway.policy.max_body + 1))
        assert client.recv(100).startswith(b"HTTP/1.1 413")


def test_large_bodies_wait_for_each_other_and_small_ones_for_none(server: ScriptedServer) -> None:
    upstream = Upstream("openai-compatible", "any", server.url, KEY)
    terms = GatewayPolicy(max_body=4 * FREE_BODY_BYTES)
    large = json.dumps({"model": "any", **message(content="x" * (3 * FREE_BODY_BYTES))}).encode()
    with (
        Gateway(upstream, policy=terms) as gateway,
        gateway.open_session() as one,
        gateway.open_session() as other,
    ):
        gateway.intake = SharedByteQuota(4 * FREE_BODY_BYTES, 4 * FREE_BODY_BYTES)
        with raw(one) as first, raw(other) as second:
            first.sendall(head(one, len(large)) + large[:-1])
            assert eventually(lambda: gateway.intake.reserved_bytes == len(large))
            second.sendall(head(other, len(large)) + large[: FREE_BODY_BYTES + 1000])
            assert ask(one, CHAT, BODIES[CHAT])[0] == ask(other, CHAT, BODIES[CHAT])[0] == 200
            assert gateway.intake.reserved_bytes == len(large)
            first.sendall(large[-1:])
            assert said(first).startswith(b"HTTP/1.1 200")
            second.sendall(large[FREE_BODY_BYTES + 1000 :])
            assert said(second).startswith(b"HTTP/1.1 200")
        assert gateway.intake.reserved_bytes == 0


def test_a_body_of_unknown_length_takes_the_room_of_the_longest(server: ScriptedServer) -> None:
    upstream = Upstream("openai-compatible", "any", server.url, KEY)
    with (
        Gateway(upstream, policy=GatewayPolicy(max_body=4 * FREE_BODY_BYTES)) as gateway,
        gateway.open_session() as seat,
    ):
        with raw(seat) as client:
            chunked = head(seat, 0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
            client.sendall(
                chunked + b"%x\r\n" % (2 * FREE_BODY_BYTES) + b" " * (FREE_BODY_BYTES + 1)
            )
            assert eventually(lambda: gateway.intake.reserved_bytes == 4 * FREE_BODY_BYTES)
        assert eventually(lambda: not gateway.intake.reserved_bytes)


def test_nobody_has_more_than_a_share() -> None:
    intake = SharedByteQuota(100, 50)
    with intake.reserve("one", 50, 0):
        with pytest.raises(GatewayRefusal), intake.reserve("one", 1, 0):
            pass
        with intake.reserve("other", 50, 0), pytest.raises(GatewayRefusal):  # noqa: SIM117
            with intake.reserve("third", 1, 0):
                pass
    with intake.reserve("one", 50, 0):
        assert intake.reserved_bytes == 50


def test_of_calls_without_an_answer_the_first_keeps_its_dialogue(server: ScriptedServer) -> None:
    upstream = Upstream("openai-compatible", "any", server.url, KEY)
    with Gateway(upstream) as gateway, gateway.open_session(budget=Budget(max_tokens=10)) as seat:
        for _ in range(3):
            assert ask(seat, CHAT, BODIES[CHAT])[0] == 402
        assert [len(call.messages) for call in seat.calls] == [1, 0, 0]
    with Gateway(upstream) as gateway, gateway.open_session(budget=Budget(max_tokens=10)) as seat:
        assert ask(seat, CHAT, message(content="x" * (MAX_FAILED_CHARACTERS + 1)))[0] == 402
        assert not seat.calls[0].messages


def test_a_record_has_the_dialogue_of_each_call_without_an_answer(server: ScriptedServer) -> None:
    upstream = Upstream("openai-compatible", "any", server.url, KEY)
    calls: list[Call] = []
    long = "x" * (MAX_FAILED_CHARACTERS + 1)
    with (
        Gateway(upstream) as gateway,
        gateway.open_session(budget=Budget(max_tokens=10), record=calls.append, keep=False) as seat,
    ):
        for content in ("hi", "hi", long, "hi"):
            assert ask(seat, CHAT, message(content=content))[0] == 402
        assert not seat.calls
    said = [[one.content for one in call.messages] for call in calls]
    assert said == [["hi"], ["hi"], [long], ["hi"]]


def test_a_message_that_is_sent_again_is_held_once(gateway: Gateway) -> None:
    with gateway.open_session() as seat:
        for _ in range(2):
            ask(seat, CHAT, message(content="the same words" * 100))
        first, second = (call.messages[0] for call in seat.calls)
        assert first is second


def test_a_seat_whose_dialogues_are_full_makes_no_call(
    gateway: Gateway, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("intercode_integrations.gateway.episode_calls.MAX_CHARACTERS", 100)
    server.exchanges.clear()
    with gateway.open_session() as seat:
        assert ask(seat, CHAT, message(content="x" * 100))[0] == 200
        code, answer = ask(seat, CHAT, BODIES[CHAT])
        assert (code, b"as long as can be recorded" in answer) == (402, True)
    assert len(server.exchanges) == 1
    assert not SessionMessages().is_full and MAX_CHARACTERS > 2**20


def test_errors_that_are_kept_hold_no_request() -> None:
    upstream = Upstream("openai-compatible", "any", "http://127.0.0.1:1/v1", KEY)
    around = ModelCallContext(retry=Retry(retries=0))
    with Gateway(upstream, call_context=around) as gateway, gateway.open_session() as seat:
        ask(seat, CHAT, BODIES[CHAT])
        assert seat.failure is not None and seat.refusal is not None
        for error in (seat.failure, seat.refusal):
            link: BaseException | None = error
            while link is not None:
                assert link.__traceback__ is None
                link = link.__context__
