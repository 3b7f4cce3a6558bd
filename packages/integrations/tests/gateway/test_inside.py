"""Attacks from within a sandbox without network, whose only way out is the gate."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing

import pytest

from gateway.doors import BODIES, KEY
from intercode.models.scripted import Line, Rule, script
from intercode_integrations.gateway import Gateway, GatewaySession, Upstream
from intercode_integrations.testing import ScriptedServer
from intercode_sandbox import Limits, SandboxBackend, get_provider
from intercode_sandbox.forwarding import SupportsForwarding

PORT = 8080
ASK = """
import json, sys, urllib.request, urllib.error
url, token, body = sys.argv[1:]
asked = urllib.request.Request(url, body.encode(), {"Authorization": "Bearer " + token})
try:
    print(urllib.request.urlopen(asked, timeout=20).read().decode())
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
except OSError as error:
    print("unreachable", error)
"""
SEEK = """
import os, re, sys
key = (sys.argv[1] + sys.argv[2]).encode()
own = str(os.getpid())
seen = 0
def look(data, where):
    global seen
    seen += 1
    if key in data:
        print("found in", where)
for pid in filter(str.isdigit, os.listdir("/proc")):
    for name in ("environ", "cmdline"):
        try:
            if pid != own: look(open(f"/proc/{pid}/{name}", "rb").read(), f"{pid} {name}")
        except OSError: pass
    if pid == own: continue
    try:
        maps, memory = open(f"/proc/{pid}/maps"), open(f"/proc/{pid}/mem", "rb", 0)
    except OSError: continue
    for begin, end in re.findall(r"^([0-9a-f]+)-([0-9a-f]+) r", maps.read(), re.M):
        try:
            memory.seek(int(begin, 16)); look(memory.read(int(end, 16) - int(begin, 16)), pid)
        except (OSError, ValueError, OverflowError): pass
for folder in ("/tmp", "/root", "/home", "/run", "/etc", "/var", "/dev/shm"):
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                path = os.path.join(place, name)
                if os.path.isfile(path): look(open(path, "rb").read(), path)
            except OSError: pass
print("looked at", seen > 0)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(script([Rule(Line("Done."))]), key=KEY) as found:
        yield found


@pytest.fixture(scope="module")
def gateway(server: ScriptedServer) -> Iterator[Gateway]:
    with Gateway(Upstream("openai-compatible", "any", server.url, KEY)) as found:
        yield found


@pytest.fixture(scope="module")
def seat(gateway: Gateway) -> Iterator[GatewaySession]:
    with gateway.open_session() as found:
        yield found


@pytest.fixture(scope="module")
def sandbox(seat: GatewaySession) -> Iterator[SandboxBackend]:
    provider = get_provider("native")
    with closing(provider.start("host", Limits(timeout=60))) as found:
        assert isinstance(found, SupportsForwarding)
        found.forward(PORT, seat.serve)
        yield found
    provider.close()


def said(sandbox: SandboxBackend, url: str, token: str, body: dict[str, object]) -> str:
    done = sandbox.exec(["python3", "-c", ASK, url, token, json.dumps(body)])
    return done.stdout.decode()


@pytest.mark.parametrize("path", BODIES)
def test_the_gate_answers(sandbox: SandboxBackend, seat: GatewaySession, path: str) -> None:
    url = f"http://127.0.0.1:{PORT}{path}"
    assert "Done." in said(sandbox, url, seat.token, {"model": "any", **BODIES[path]})
    assert seat.calls[-1].text == "Done."


def test_nothing_but_the_gate_is_reached(
    sandbox: SandboxBackend, server: ScriptedServer, seat: GatewaySession
) -> None:
    before = len(server.exchanges)
    for url in (f"{server.url}/chat/completions", "http://1.1.1.1/", "http://169.254.169.254/"):
        assert said(sandbox, url, KEY, {}).startswith("unreachable")
    assert len(server.exchanges) == before


def test_another_episodes_token_and_hosted_tools_are_refused(
    sandbox: SandboxBackend, gateway: Gateway, seat: GatewaySession
) -> None:
    url, body = f"http://127.0.0.1:{PORT}/v1/messages", {"model": "any", **BODIES["/v1/messages"]}
    with gateway.open_session() as other:
        assert said(sandbox, url, other.token, body).startswith("401")
    search = {**body, "tools": [{"type": "web_search_20250305", "name": "web_search"}]}
    assert said(sandbox, url, seat.token, search).startswith("400")


def test_no_key_is_found(sandbox: SandboxBackend, seat: GatewaySession) -> None:
    half = len(KEY) // 2
    done = sandbox.exec(["python3", "-c", SEEK, KEY[:half], KEY[half:]])
    assert done.stdout.decode().splitlines() == ["looked at True"], done
    assert KEY not in repr(seat.calls)


def test_a_key_that_the_server_repeats_is_hidden(sandbox: SandboxBackend) -> None:
    rules = script([Rule(Line(f"Your key is {KEY}."))])
    with (
        ScriptedServer(rules, key=KEY) as server,
        Gateway(Upstream("openai-compatible", "any", server.url, KEY)) as gateway,
        gateway.open_session() as seat,
    ):
        assert isinstance(sandbox, SupportsForwarding)
        sandbox.forward(PORT + 1, seat.serve)
        for stream in (False, True):
            body = {"model": "any", **BODIES["/v1/messages"], "stream": stream}
            answer = said(sandbox, f"http://127.0.0.1:{PORT + 1}/v1/messages", seat.token, body)
            assert KEY not in answer
        assert KEY not in repr(seat.calls)
