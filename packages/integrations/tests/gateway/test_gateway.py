"""The gate over the scripted server: what passes, what is refused, what is recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from gateway.doors import BODIES, KEY, TOOLS, ask, raw, said
from intercode.models.api_fields import TABLES, Name
from intercode.models.cache import ReplyCache
from intercode.models.limits import Budget, RateLimit, Retry
from intercode.models.prices import ModelPrice
from intercode.models.remote import ModelCallContext
from intercode.models.scripted import Line, Rule, script
from intercode_integrations.gateway import Gateway, GatewayPolicy, GatewaySession, Upstream
from intercode_integrations.gateway.calls import decode_answer
from intercode_integrations.gateway.gateway import FREE_COUNTS
from intercode_integrations.gateway.policy import GatewayRefusal, admit_body
from intercode_integrations.gateway.streams import StreamedAnswer
from intercode_integrations.testing import Fault, ScriptedServer, first, status
from intercode_integrations.testing.request_conversion import shell

PATHS = tuple(BODIES)
QUICK = Retry(retries=3, first_wait=0.0)
PRICE = ModelPrice(input=1.0, output=2.0)


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    rules = [Rule(shell("ls -la é"), turn=0), Rule(Line("Done: ünï."))]
    with ScriptedServer(script(rules), key=KEY) as found:
        yield found


@pytest.fixture
def seat(server: ScriptedServer) -> Iterator[GatewaySession]:
    server.exchanges.clear()
    with gate(server) as gateway, gateway.open_session() as found:
        yield found


def gate(server: ScriptedServer, terms: GatewayPolicy | None = None, **around: Any) -> Gateway:
    upstream = Upstream("openai-compatible", "any", server.url, KEY)
    kept = replace(ModelCallContext(price=PRICE, retry=QUICK), **around)
    return Gateway(upstream, call_context=kept, policy=terms or GatewayPolicy())


@pytest.mark.parametrize("path", PATHS)
def test_a_call_and_its_stream_are_recorded_alike(
    server: ScriptedServer, seat: GatewaySession, path: str
) -> None:
    for stream in (False, True):
        body = {**BODIES[path], "tools": TOOLS[path], "stream": stream}
        code, answer = ask(seat, path, body)
        assert (code, answer.startswith(b"{")) == (200, not stream)
    whole, streamed = seat.calls
    assert replace(whole, seconds=0.0) == replace(streamed, seconds=0.0, streamed=False)
    assert [(c.name, dict(c.arguments)) for c in whole.tool_calls] == [
        ("bash", {"command": "ls -la é"})
    ]
    assert whole.usage + streamed.usage == server.usage
    assert whole.cost == pytest.approx(PRICE.compute_cost(whole.usage))
    assert (whole.messages[0].content, whole.tools) == ("hi", ("bash",))


def test_the_servers_own_key_is_sent_and_the_clients_is_not(
    server: ScriptedServer, seat: GatewaySession
) -> None:
    ask(seat, PATHS[0], BODIES[PATHS[0]], headers={"X-Foo": "bar", "Cookie": "a=b"})
    (exchange,) = server.exchanges
    assert exchange.headers["authorization"] == f"Bearer {KEY}"
    assert seat.token not in json.dumps([dict(exchange.headers), dict(exchange.body)])
    assert not {"x-foo", "cookie"} & exchange.headers.keys()


HOSTED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"web_search_options": {}}),
    ("/v1/chat/completions", {"store": True}),
    ("/v1/chat/completions", {"n": 5}),
    ("/v1/chat/completions", {"bogus": 1}),
    ("/v1/chat/completions", {"tools": [{"type": "web_search_preview"}]}),
    *(
        ("/v1/responses", {"tools": [{"type": kind}]})
        for kind in ("web_search", "code_interpreter", "file_search", "mcp", "computer_use_preview")
    ),
    ("/v1/responses", {"tools": [{"type": "namespace", "tools": [{"type": "mcp"}]}]}),
    ("/v1/responses", {"store": True}),
    ("/v1/responses", {"previous_response_id": "resp_1"}),
    ("/v1/responses", {"background": True}),
    ("/v1/responses", {"include": ["file_search_call.results"]}),
    ("/v1/responses", {"input": [{"type": "item_reference", "id": "x"}]}),
    *(
        ("/v1/messages", {"tools": [{"type": kind, "name": "x"}]})
        for kind in ("web_search_20250305", "code_execution_20250522", "computer_20250124")
    ),
    ("/v1/messages", {"mcp_servers": [{"type": "url", "url": "http://x"}]}),
    ("/v1/messages", {"container": "x"}),
]
URL = "https://elsewhere.example/x.png"
REMOTE: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"type": "image_url", "image_url": {"url": URL}}),
    ("/v1/chat/completions", {"type": "file", "file": {"file_id": "x"}}),
    ("/v1/responses", {"type": "input_image", "image_url": URL}),
    ("/v1/responses", {"type": "input_image", "file_id": "x"}),
    ("/v1/responses", {"type": "input_file", "file_url": URL}),
    ("/v1/messages", {"type": "image", "source": {"type": "url", "url": URL}}),
    ("/v1/messages", {"type": "document", "source": {"type": "file", "file_id": "x"}}),
    (
        "/v1/messages",
        {
            "type": "tool_result",
            "tool_use_id": "x",
            "content": [{"type": "image", "source": {"type": "url", "url": URL}}],
        },
    ),
]


@pytest.mark.parametrize(("path", "more"), HOSTED)
def test_hosted_tools_and_stored_responses_are_refused(
    server: ScriptedServer, seat: GatewaySession, path: str, more: dict[str, Any]
) -> None:
    code, answer = ask(seat, path, {**BODIES[path], **more})
    assert code == 400, answer
    assert b"the gateway refuses it" in answer
    assert not server.exchanges


UNREADABLE: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [{"role": "assistant", "tool_calls": [5]}]}),
    ("/v1/chat/completions", {"messages": [{"role": "assistant", "tool_calls": 5}]}),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "assistant", "tool_calls": [{"function": "f"}]}]},
    ),
    ("/v1/chat/completions", {"stream": True, "stream_options": "all"}),
]


@pytest.mark.parametrize(("path", "more"), UNREADABLE)
def test_a_dialogue_that_could_not_be_recorded_is_not_passed_on(
    server: ScriptedServer, seat: GatewaySession, path: str, more: dict[str, Any]
) -> None:
    code, answer = ask(seat, path, {**BODIES[path], **more})
    assert code == 400 and b"cannot be read" in answer
    assert not server.exchanges and not seat.calls


@pytest.mark.parametrize(("path", "part"), REMOTE)
def test_remote_parts_are_refused(
    server: ScriptedServer, seat: GatewaySession, path: str, part: dict[str, Any]
) -> None:
    field = "input" if path == "/v1/responses" else "messages"
    body = {**BODIES[path], field: [{"role": "user", "content": [part]}]}
    code, answer = ask(seat, path, body)
    assert (code, server.exchanges) == (400, []), answer


def test_of_hosted_parts_only_known_ones_pass() -> None:
    every = GatewayPolicy(hosted="pass", remote=True)
    for kind in ("web_search_call", "item_reference"):
        body = {"input": [{"type": kind, "id": "x"}]}
        assert admit_body("responses", body, every)["input"] == body["input"]
    others: list[tuple[Name, str]] = [("responses", "x"), ("messages", "web_search_call")]
    for name, part in [*others, ("chat", "container")]:
        said = [{"role": "user", "content": [{"type": part}]}]
        with pytest.raises(GatewayRefusal, match="a part of type"):
            admit_body(name, {"input" if name == "responses" else "messages": said}, every)


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/messages?beta=true", {"metadata": {"user_id": "me"}, "betas": ["x"]}),
        ("/v1/messages?beta=true", {"thinking": {"type": "adaptive"}, "context_management": {}}),
        ("/v1/responses", {"store": False, "client_metadata": {"a": "b"}, "prompt_cache_key": "k"}),
        (
            "/v1/responses",
            {"include": ["reasoning.encrypted_content"], "background": None},
        ),
        ("/v1/chat/completions", {"user": "me", "n": 1, "tools": []}),
    ],
)
def test_what_agents_always_send_passes_or_is_dropped(
    server: ScriptedServer, seat: GatewaySession, path: str, more: dict[str, Any]
) -> None:
    bare = path.partition("?")[0]
    assert ask(seat, path, {**BODIES[bare], **more})[0] == 200
    (exchange,) = server.exchanges
    name = next(n for n, table in TABLES.items() if table.path == bare)
    assert not exchange.body.keys() & TABLES[name].drops
    assert exchange.body.get("store") is (False if name == "responses" else None)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/files"),
        ("GET", "/v1/files"),
        ("POST", "/v1/batches"),
        ("POST", "/v1/messages/batches"),
        ("GET", "/v1/responses/resp_1"),
        ("DELETE", "/v1/models/any"),
        ("POST", "/v1/embeddings"),
        ("POST", "/v1/messages/../files"),
        ("POST", "//v1/messages"),
        ("CONNECT", "elsewhere.example:443"),
        ("GET", "http://elsewhere.example/"),
        ("POST", "/v1/messages?user=1"),
    ],
)
def test_other_paths_are_refused(
    server: ScriptedServer, seat: GatewaySession, method: str, path: str
) -> None:
    assert ask(seat, path, BODIES["/v1/messages"], method=method)[0] in {400, 404}
    assert not server.exchanges


def test_targets_and_limits_that_no_client_means(
    seat: GatewaySession, server: ScriptedServer
) -> None:
    """An error of the seat's thread, or a wait of all other clients for ever."""
    for target in ("//[", "//[x]:y/v1/models"):
        assert ask(seat, target, method="GET")[0] in (400, 404), target
    assert ask(seat, "/v1/models//[", method="GET")[0] == 404
    for tokens in (10**400, 10**300):
        path = "/v1/chat/completions"
        assert ask(seat, path, {**BODIES[path], "max_tokens": tokens})[0] == 200
        assert server.exchanges[-1].body["max_tokens"] == 1_000_000


def test_models_and_counts(seat: GatewaySession) -> None:
    code, answer = ask(seat, "/v1/models", method="GET")
    assert (code, [one["id"] for one in json.loads(answer)["data"]]) == (200, ["any"])
    assert ask(seat, "/v1/models/any", method="GET")[0] == 200
    assert ask(seat, "/v1/models/other", method="GET")[0] == 404
    code, answer = ask(seat, "/v1/messages/count_tokens", BODIES["/v1/messages"])
    assert (code, json.loads(answer)["input_tokens"] > 0) == (200, True)
    assert ask(seat, "/", method="HEAD", token="none")[0] == 200


def test_only_the_token_of_the_seat_is_served(server: ScriptedServer) -> None:
    with gate(server) as gateway, gateway.open_session() as one, gateway.open_session() as other:
        for token in ("", "x", other.token, KEY):
            code, answer = ask(one, PATHS[0], BODIES[PATHS[0]], token=token)
            reason = b"not the right one" if token else b"a token is needed"
            assert (code, reason in answer) == (401, True)
        assert ask(one, PATHS[0], BODIES[PATHS[0]], headers={"Host": "evil.example"})[0] == 403
        assert ask(one, PATHS[0], BODIES[PATHS[0]], headers={"Origin": "http://evil"})[0] == 403
        code, _ = ask(one, PATHS[2], BODIES[PATHS[2]], token="x", headers={"x-api-key": one.token})
        assert code == 200
        one.close()
        assert ask(one, PATHS[0], BODIES[PATHS[0]])[0] == 401
        assert ask(other, PATHS[0], BODIES[PATHS[0]])[0] == 200


def test_budgets_calls_models_and_sizes_are_limited(server: ScriptedServer) -> None:
    body = BODIES[PATHS[0]]
    with gate(server) as gateway, gateway.open_session(budget=Budget(max_tokens=10)) as seat:
        code, answer = ask(seat, PATHS[0], body)
        assert (code, b"budget" in answer, seat.calls[0].status) == (402, True, 402)
    terms = GatewayPolicy(models={"small": "any"}, max_calls=1, max_body=2000, max_context=500)
    with gate(server, terms) as gateway, gateway.open_session() as seat:
        assert ask(seat, PATHS[0], body)[0] == 404
        long = {**body, "model": "small", "messages": [{"role": "user", "content": "x" * 600}]}
        assert b"too long" in ask(seat, PATHS[0], long)[1]
        long["messages"] = [{"role": "user", "content": "x" * 3000}]
        assert ask(seat, PATHS[0], long)[0] == 413
        assert ask(seat, PATHS[0], {**body, "model": "small"})[0] == 200
        assert ask(seat, PATHS[0], {**body, "model": "small"})[0] == 402


@pytest.mark.parametrize("stream", [False, True])
def test_faults_before_the_first_byte_are_tried_again(stream: bool) -> None:
    faults = first(status(529), Fault("disconnect"), Fault("empty"))
    done = script([Rule(Line("Done."))])
    with (
        ScriptedServer(done, plan=faults, key=KEY) as server,
        gate(server) as gateway,
        gateway.open_session() as seat,
    ):
        code, answer = ask(seat, PATHS[2], {**BODIES[PATHS[2]], "stream": stream})
        assert (code, b"Done." in answer) == (200, True)
        (call,) = seat.calls
        assert (call.retries, call.text, call.error) == (3, "Done.", "")


@pytest.mark.parametrize("path", PATHS)
def test_a_stream_that_breaks_off_is_seen_and_recorded(path: str) -> None:
    plan = first(Fault("unfinished"))
    with ScriptedServer(script([Rule(Line("one two three"))]), plan=plan, key=KEY) as server:
        budget = Budget(max_tokens=100_000)
        with gate(server) as gateway, gateway.open_session(budget=budget) as seat:
            body = json.dumps({"model": "any", **BODIES[path], "stream": True}).encode()
            with raw(seat) as client:
                client.sendall(_request(path, seat.token, body))
                assert not said(client).endswith(b"0\r\n\r\n")
            (call,) = seat.calls
            assert "last event" in call.error
            assert budget.presumed_spending.tokens > 0
            assert "last event" in str(seat.failure), "which no agent has caused"
            assert ask(seat, path, BODIES[path])[0] == 200
            assert seat.failure is None


@pytest.mark.parametrize("path", PATHS)
def test_an_error_in_a_stream_is_recorded(path: str) -> None:
    plan = first(Fault("overloaded"))
    with (
        ScriptedServer(script([Rule(Line("one two three"))]), plan=plan, key=KEY) as server,
        gate(server, retry=Retry(retries=0)) as gateway,
        gateway.open_session() as seat,
    ):
        body = json.dumps({"model": "any", **BODIES[path], "stream": True}).encode()
        with raw(seat) as client:
            client.sendall(_request(path, seat.token, body, "Connection: close\r\n"))
            assert b"verloaded" in said(client)
        (call,) = seat.calls
        assert "verloaded" in call.error and "verloaded" in str(seat.failure)


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_cut_short_is_recorded_so(stream: bool) -> None:
    with (
        ScriptedServer(script([Rule(Line("word " * 40))]), key=KEY) as server,
        gate(server) as gateway,
        gateway.open_session() as seat,
    ):
        body = {**BODIES[PATHS[1]], "max_output_tokens": 16, "stream": stream}
        assert ask(seat, PATHS[1], body)[0] == 200
        (call,) = seat.calls
        assert "max_output_tokens" in call.error
        assert call.usage.output_tokens == 16


def test_counts_are_recorded_apart_and_limited(server: ScriptedServer) -> None:
    waits: list[float] = []
    clock = iter(range(0, 10**6, 2))
    pace = RateLimit(1, clock=lambda: float(next(clock)), sleep=waits.append)
    body, path = BODIES["/v1/messages"], "/v1/messages/count_tokens"
    server.exchanges.clear()
    with gate(server, rate_limit=pace) as gateway, gateway.open_session() as seat:
        for _ in range(FREE_COUNTS):
            assert ask(seat, path, body)[0] == 200
        assert ask(seat, path, body)[0] == 429
        assert len(server.exchanges) == len(seat.calls) == FREE_COUNTS
        assert waits, "counts go at the pace of the calls"
        assert {(call.protocol, call.cost, call.error) for call in seat.calls} == {
            ("count", 0.0, "")
        }
        assert json.loads(seat.calls[0].text)["input_tokens"] > 0
        assert ask(seat, "/v1/messages", body)[0] == ask(seat, path, body)[0] == 200


def test_a_provider_that_cannot_be_reached_is_no_agents_failure(server: ScriptedServer) -> None:
    upstream = Upstream("openai-compatible", "any", "http://127.0.0.1:1/v1", KEY)
    with (
        Gateway(upstream, call_context=ModelCallContext(retry=QUICK)) as gateway,
        gateway.open_session() as seat,
    ):
        assert ask(seat, PATHS[0], BODIES[PATHS[0]])[0] == 503
        assert seat.failure is not None


def test_reruns_are_served_from_the_cache(server: ScriptedServer, tmp_path: Path) -> None:
    server.exchanges.clear()
    answers = []
    for _ in range(2):
        with gate(server, cache=ReplyCache(tmp_path)) as gateway, gateway.open_session() as seat:
            for stream in (False, True):
                body = {**BODIES[PATHS[0]], "temperature": 0, "stream": stream}
                answers.append(ask(seat, PATHS[0], body))
    assert answers[:2] == answers[2:]
    assert len(server.exchanges) == 2
    assert [(call.cached, call.cost) for call in seat.calls] == [(True, 0.0)] * 2


def _request(path: str, token: str, body: bytes, extra: str = "") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nx-api-key: {token}\r\n{extra}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def test_garbage_long_heads_and_slow_clients_end(server: ScriptedServer) -> None:
    short = GatewayPolicy(patience=0.3, idle=0.3)  # allow limit: these clients say no more
    with gate(server, short) as gateway, gateway.open_session() as seat:
        for sent in (b"\x00\xff garbage\r\n\r\n", b"GET / HTTP/1.1\r\nHost: " + b"x" * 70_000):
            with raw(seat) as client:
                client.sendall(sent)
                assert said(client).startswith(b"HTTP/1.1 4")
        body = json.dumps({"model": "any", **BODIES[PATHS[0]]}).encode()
        whole = _request(PATHS[0], seat.token, body)
        for cut in (0, 10, len(whole) - 1):  # it says no more: the gate ends it
            with raw(seat) as client:
                client.sendall(whole[:cut])
                assert said(client) == b""


def test_pipelined_chunked_and_old_requests_are_answered(seat: GatewaySession) -> None:
    body = json.dumps({"model": "any", **BODIES[PATHS[0]]}).encode()
    one = _request(PATHS[0], seat.token, body)
    chunks = b"".join(b"%x\r\n%s\r\n" % (1, body[i : i + 1]) for i in range(len(body)))
    head = f"POST {PATHS[0]} HTTP/1.1\r\nHost: localhost\r\nx-api-key: {seat.token}\r\n"
    chunked = f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + chunks + b"0\r\n\r\n"
    last = one.replace(b"HTTP/1.1", b"HTTP/1.0")
    with raw(seat) as client:
        client.sendall(one + chunked + last)
        assert said(client).count(b"HTTP/1.1 200") == 3
    assert len(seat.calls) == 3


@pytest.fixture(scope="module")
def streams(server: ScriptedServer) -> dict[str, tuple[bytes, dict[str, Any]]]:
    found = {}
    with gate(server) as gateway, gateway.open_session() as seat:
        for name, table in TABLES.items():
            body = {**BODIES[table.path], "tools": TOOLS[table.path]}
            if name == "chat":
                body["stream_options"] = {"include_usage": True}
            _, whole = ask(seat, table.path, body)
            _, stream = ask(seat, table.path, {**body, "stream": True})
            found[name] = stream, json.loads(whole)
    return found


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_stream_is_the_same_answer_however_it_is_cut(
    streams: dict[str, tuple[bytes, dict[str, Any]]], data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(TABLES)))
    stream, whole = streams[name]
    line = data.draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))
    stream = stream.replace(b"\n", line)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=30)))
    assembly, events = StreamedAnswer(name), []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        events += assembly.feed(stream[begin:end])
    assert assembly.is_complete
    assert b"".join(event.raw_bytes for event in events) == stream
    assert decode_answer(name, assembly.body) == decode_answer(name, whole)
