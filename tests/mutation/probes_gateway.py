"""Probes of the gateway: what an agent may ask of it, and what it learns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from tempfile import TemporaryDirectory
from typing import Any

from gateway.doors import BODIES, KEY, TOOLS, ask, raw, said
from intercode.json_limits import MAX_TOKENS
from intercode.models.base import Message
from intercode.models.limits import Budget
from intercode.models.scripted import Line, Rule, script
from intercode_integrations.gateway import Gateway, GatewayPolicy, GatewaySession, Upstream
from intercode_integrations.gateway.byte_quota import (
    SharedByteQuota,
    check_embedded_tokens,
    check_tokens,
)
from intercode_integrations.gateway.call_log import CallLog
from intercode_integrations.gateway.calls import Call
from intercode_integrations.gateway.episode_calls import MAX_CHARACTERS, SessionMessages
from intercode_integrations.gateway.gateway import FREE_COUNTS
from intercode_integrations.gateway.policy import GatewayRefusal, admit_body
from intercode_integrations.testing import ScriptedServer

from .tools import one_of

CHAT, RESPONSES, MESSAGES = BODIES
COUNT = "/v1/messages/count_tokens"
URL = "https://elsewhere.example/x.png"


@contextmanager
def _seat(
    terms: GatewayPolicy | None = None, **more: Any
) -> Iterator[tuple[ScriptedServer, GatewaySession]]:
    with ScriptedServer(script([Rule(Line("Done."))]), key=KEY) as server:
        upstream = Upstream("openai-compatible", "any", server.url, KEY)
        with (
            Gateway(upstream, policy=terms or GatewayPolicy()) as gateway,
            gateway.open_session(**more) as seat,
        ):
            yield server, seat


def _refuses(body: dict[str, Any]) -> bool:
    try:
        admit_body("responses", {"input": "hi", **body}, GatewayPolicy())
    except GatewayRefusal:
        return True
    return False


def gateway_paths() -> bool:
    with _seat() as (_, seat):
        return b"the gateway has no" in ask(seat, "/v1/files", BODIES[MESSAGES])[1]


def gateway_fields() -> bool:
    return _refuses({"bogus": 1})


def gateway_stored() -> bool:
    return _refuses({"store": True})


def gateway_hosted() -> bool:
    return _refuses({"tools": [{"type": "web_search"}]})


def gateway_remote() -> bool:
    image = {"type": "input_image", "image_url": URL}
    return _refuses({"input": [{"role": "user", "content": [image]}]})


def gateway_token() -> bool:
    with _seat() as (_, seat):
        return ask(seat, CHAT, BODIES[CHAT], token="wrong")[0] == 401


def gateway_closed() -> bool:
    with _seat() as (_, seat):
        seat.close()
        return ask(seat, CHAT, BODIES[CHAT])[0] == 401


def gateway_credentials() -> bool:
    with _seat() as (server, seat):
        ask(seat, CHAT, BODIES[CHAT], headers={"Cookie": "mine"})
        return "cookie" not in server.exchanges[0].headers


def _key(key: str, stream: bool) -> bool:
    with ScriptedServer(script([Rule(Line(f"It is {key}!"))])) as server:
        upstream = Upstream("openai-compatible", "any", server.url, key)
        with Gateway(upstream) as gateway, gateway.open_session() as seat:
            _, answer = ask(seat, CHAT, {**BODIES[CHAT], "stream": stream})
            return key.split()[-1].encode() not in answer


def gateway_key() -> bool:
    return _key(KEY, stream=False)


def gateway_key_in_pieces() -> bool:
    return _key("a-key-of several words", stream=True)  # a word is an event


def gateway_budget() -> bool:
    with _seat(budget=Budget(max_tokens=10)) as (_, seat):
        return ask(seat, CHAT, BODIES[CHAT])[0] == 402


def gateway_calls() -> bool:
    with _seat(GatewayPolicy(max_calls=1)) as (_, seat):
        return [ask(seat, CHAT, BODIES[CHAT])[0] for _ in range(2)] == [200, 402]


def gateway_counts() -> bool:
    with _seat() as (_, seat):
        codes = [ask(seat, COUNT, BODIES[MESSAGES])[0] for _ in range(FREE_COUNTS + 1)]
        return codes[-1] == 429


def gateway_body() -> bool:
    with _seat(GatewayPolicy(max_body=100)) as (_, seat):
        return ask(seat, CHAT, {**BODIES[CHAT], "tools": TOOLS[CHAT]})[0] == 413


def _counts_too_many(body: bytes) -> bool:
    try:
        check_embedded_tokens(json.loads(body), check_tokens(body))
    except GatewayRefusal:
        return True
    return False


def gateway_values() -> bool:
    return _counts_too_many(b'{"tools":[' + b'"",' * MAX_TOKENS + b'""]}')


def gateway_levels() -> bool:
    return _counts_too_many(b'{"tools":' + b"[" * 200 + b"]" * 200 + b"}")


def gateway_values_in_texts() -> bool:
    arguments = "[" + "[]," * MAX_TOKENS + "[]]"
    return _counts_too_many(json.dumps({"messages": [{"arguments": arguments}]}).encode())


def gateway_fragments() -> bool:
    with _seat() as (_, seat), raw(seat) as client:
        lines = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nx-api-key: {seat.token}\r\n"
        client.sendall(f"{lines}Transfer-Encoding: chunked\r\n\r\n".encode())
        client.sendall(b"1\r\n \r\n" * 11_000 + b"0\r\n\r\n")
        return b"small parts" in client.recv(65536)


def _finds_no_room(*holders: str) -> bool:
    intake = SharedByteQuota(100, 60)
    try:
        with ExitStack() as stack:
            for holder in holders:
                stack.enter_context(intake.reserve(holder, 40, 0))
    except GatewayRefusal:
        return True
    return False


def gateway_room() -> bool:
    return _finds_no_room("one", "other", "third")


def gateway_share() -> bool:
    return _finds_no_room("one", "one")


def gateway_body_without_token() -> bool:
    with _seat() as (_, seat), raw(seat) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nhi")
        return client.recv(65536).startswith(b"HTTP/1.1 413")


def gateway_dialogues_of_refused() -> bool:
    with _seat(budget=Budget(max_tokens=10)) as (_, seat):
        for _ in range(2):
            ask(seat, CHAT, BODIES[CHAT])
        return not seat.calls[-1].messages


def gateway_dialogues() -> bool:
    long = Message("user", "x" * MAX_CHARACTERS)
    dialogues = SessionMessages()
    dialogues.retain(Call("chat", CHAT, "any", (long,), text="Done."))
    return dialogues.is_full


def gateway_record_limit() -> bool:
    with (
        TemporaryDirectory() as folder,
        closing(CallLog(f"{folder}/calls.jsonl", KEY, KEY, max_bytes=100)) as journal,
    ):
        journal.write(Call("chat", CHAT, "any", (Message("user", "hi"),), text="Done."))
        return journal.is_full


def gateway_head() -> bool:
    terms = GatewayPolicy(patience=1.0)  # allow limit: without the defence, it waits for more
    with _seat(terms) as (_, seat), raw(seat) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: " + b"x" * 70_000)
        return said(client).startswith(b"HTTP/1.1 4")


def gateway_slow_client() -> bool:
    terms = GatewayPolicy(patience=0.2, idle=5.0)  # allow limit: the client says no more
    with _seat(terms) as (_, seat), raw(seat) as client:
        client.sendall(b"GET / HTTP/1.1\r\n")
        client.settimeout(3)  # allow limit: reached without the defence
        try:
            return said(client) == b""
        except TimeoutError:
            return False


def gateway_record() -> bool:
    unreadable = {"messages": [{"role": "assistant", "tool_calls": [5]}]}
    with _seat() as (_, seat):
        return b"cannot be read" in ask(seat, CHAT, unreadable)[1]


def _prints(code: str, env: dict[str, str]) -> str:
    program = f"from intercode_sandbox.native.syscalls import *\n{code}"
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout


def gateway_environment() -> bool:
    code = "hide_variables({'A_KEY'}); print(open('/proc/self/environ').read())"
    shown = _prints(code, {**os.environ, "A_KEY": "secret-1", "ANOTHER": "public-1"})
    return one_of(str("secret-1" in shown), holds="False", gone="True") and "public-1" in shown


def gateway_memory() -> bool:
    code = "hide_variables({'A_KEY'}); print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"
    return one_of(_prints(code, dict(os.environ)).strip(), holds="0", gone="1")
