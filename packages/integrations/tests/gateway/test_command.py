"""`intercode gateway`: a process of its own, the scripted server behind it, real SDKs before it."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anthropic
import openai
import pytest

from gateway.doors import KEY
from intercode.cli.main import main
from intercode.models.api_fields import TABLES
from intercode.models.scripted import Line, Rule, script
from intercode_integrations.gateway.calls import EPISODE_ENDED
from intercode_integrations.testing import Fault, ScriptedServer
from ordinary import ordinary_user
from sources import ROOT
from waiting import PATIENCE, eventually

COMMAND = (sys.executable, "-m", "intercode.cli", "gateway")
HI: Any = [{"role": "user", "content": "hi"}]
UPSTREAM = "openai-compatible/any"


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(script([Rule(Line("Hello there."))]), key=KEY) as found:
        yield found


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    file = tmp_path / "prices.json"
    file.write_text(json.dumps({"models": {UPSTREAM: {"input": 1.0, "output": 2.0}}}))
    return file


class Gate:
    """A process, its addresses, and what it said at its end."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first, process.communicate(timeout=PATIENCE)
        self.told: dict[str, Any] = json.loads(first)
        self.env: dict[str, str] = self.told["env"]
        self.errors = ""
        self._clients = ExitStack()

    def close(self) -> None:
        """Close the clients."""
        self._clients.close()

    @property
    def token(self) -> str:
        return self.env["OPENAI_API_KEY"]

    def openai(self, key: str | None = None) -> openai.OpenAI:
        url, key = self.env["OPENAI_BASE_URL"], key or self.token
        client = openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=PATIENCE)
        return self._clients.enter_context(client)

    def anthropic(self) -> anthropic.Anthropic:
        url = self.env["ANTHROPIC_BASE_URL"]
        client = anthropic.Anthropic(
            base_url=url, api_key=self.token, max_retries=0, timeout=PATIENCE
        )
        return self._clients.enter_context(client)

    def post(self, **headers: str) -> int:
        """The status of a request that a browser might send."""
        client = HTTPConnection(urlsplit(self.told["url"]).netloc, timeout=PATIENCE)
        body = json.dumps({"model": "any", "messages": HI})
        client.request(
            "POST",
            "/v1/chat/completions",
            body,
            {"Authorization": f"Bearer {self.token}", **headers},
        )
        status = client.getresponse().status
        client.close()
        return status

    def end(self, number: signal.Signals = signal.SIGINT) -> dict[str, Any]:
        """Send a signal; what was spent."""
        self.process.send_signal(number)
        out, self.errors = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0, (out, self.errors)
        found: dict[str, Any] = json.loads(out)
        return found


@contextmanager
def gate(server: ScriptedServer, folder: Path, *more: object) -> Iterator[Gate]:
    options = ["--upstream", UPSTREAM, "--base-url", server.url, "--json", *map(str, more)]
    with subprocess.Popen(
        [*COMMAND, *options],
        cwd=folder,
        env={**os.environ, "OPENAI_COMPATIBLE_API_KEY": KEY},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            with closing(Gate(process)) as found:
                yield found
        finally:
            process.kill()


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What is said of wrong usage."""

    def run(*options: object) -> str:
        assert main(["gateway", "--upstream", "ollama/any", *map(str, options)]) == 2
        told = capsys.readouterr()
        assert told.out == ""
        return told.err

    return run


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_real_sdks_ask_through_it_and_each_call_is_recorded(
    server: ScriptedServer, tmp_path: Path, prices: Path
) -> None:
    server.exchanges.clear()
    record = tmp_path / "calls.jsonl"
    with gate(server, tmp_path, "--record", record, "--prices", prices, "--max-cost", 5) as found:
        chat, claude = found.openai(), found.anthropic()
        said = [
            chat.chat.completions.create(model="x", messages=HI).choices[0].message.content,
            "".join(
                chunk.choices[0].delta.content or ""
                for chunk in chat.chat.completions.create(model="x", messages=HI, stream=True)
                if chunk.choices
            ),
            chat.responses.create(model="x", input="hi").output_text,
            "".join(
                event.delta
                for event in chat.responses.create(model="x", input="hi", stream=True)
                if event.type == "response.output_text.delta"
            ),
            getattr(
                claude.messages.create(model="x", messages=HI, max_tokens=99).content[0], "text", ""
            ),
        ]
        with claude.messages.stream(model="x", messages=HI, max_tokens=99) as stream:
            said.append("".join(stream.text_stream))
        assert said == ["Hello there."] * 6
        assert len(lines(record)) == 6  # before it ends
        spent = found.end()
    calls = lines(record)
    assert [(c["protocol"], c["streamed"]) for c in calls] == [
        (name, streamed) for name in ("chat", "responses", "messages") for streamed in (False, True)
    ]
    for call in calls:
        assert call["messages"] == [{"role": "user", "content": "hi"}]
        assert call["reply"] == {"role": "assistant", "content": "Hello there."}
        assert (call["status"], call["error"]) == (200, "")
    used = server.usage
    assert (spent["calls"], spent["errors"]) == (6, 0)
    assert (spent["input_tokens"], spent["output_tokens"]) == (
        sum(e.usage.input_tokens for e in server.exchanges if e.usage),
        sum(e.usage.output_tokens for e in server.exchanges if e.usage),
    )
    assert used is not None and spent["cost"] == pytest.approx(sum(c["cost"] for c in calls))
    assert all(e.headers.get("authorization") == f"Bearer {KEY}" for e in server.exchanges)


def test_neither_key_nor_token_shows_anywhere(server: ScriptedServer, tmp_path: Path) -> None:
    record, token_file = tmp_path / "calls.jsonl", tmp_path / "token.txt"
    with gate(server, tmp_path, "--record", record, "--token-file", token_file) as found:
        token = token_file.read_text().strip()
        assert token_file.stat().st_mode & 0o777 == 0o600
        assert record.stat().st_mode & 0o777 == 0o600
        assert found.told["token_file"] == str(token_file)
        assert not {"OPENAI_API_KEY", "ANTHROPIC_API_KEY"} & found.env.keys()
        asked: Any = [{"role": "user", "content": f"my environment is {token} and {KEY}"}]
        found.openai(token).chat.completions.create(model="x", messages=asked)
        found.end()
    kept = record.read_text()
    assert "my environment is [token] and [" in kept
    for secret in (KEY, token):
        assert secret not in kept + found.errors + json.dumps(found.told)
    with gate(server, tmp_path, "--token-file", token_file) as again:  # the same token
        again.openai(token).chat.completions.create(model="x", messages=HI)
        again.end(signal.SIGTERM)


def test_a_file_of_a_token_that_others_can_read_is_refused(
    refused: Callable[..., str], tmp_path: Path
) -> None:
    file = tmp_path / "token.txt"
    file.write_text("a" * 40)
    file.chmod(0o644)
    assert "other users can read the file: chmod 600" in refused("--token-file", file)
    file.write_text("short")
    file.chmod(0o600)
    assert "at least 16 characters" in refused("--token-file", file)


def test_strangers_are_refused(server: ScriptedServer, tmp_path: Path) -> None:
    server.exchanges.clear()
    with gate(server, tmp_path) as found:
        netloc = urlsplit(found.told["url"]).netloc
        with pytest.raises(openai.AuthenticationError):
            found.openai("wrong").chat.completions.create(model="x", messages=HI)
        assert found.post(Host="evil.example") == 403
        assert found.post(Origin="https://evil.example") == 403
        assert found.post(Origin=f"http://{netloc}") == 403  # it has no pages
        assert found.post() == 200
        with pytest.raises(openai.BadRequestError, match="web_search"):
            found.openai().responses.create(
                model="x", input="hi", tools=[{"type": "web_search_preview"}]
            )
        assert found.end()["calls"] == 1
    assert len(server.exchanges) == 1
    assert "refused with status 403: web pages" in found.errors
    assert "'web_search_preview'" in found.errors


def test_limits_hold(server: ScriptedServer, tmp_path: Path, prices: Path) -> None:
    more = ("--prices", prices, "--max-cost", "0.01", "--reply-tokens", 4900)
    with gate(server, tmp_path, *more) as found:
        client = found.openai()
        client.chat.completions.create(model="x", messages=HI)
        with pytest.raises(openai.APIStatusError, match="--max-cost") as caught:
            client.chat.completions.create(model="x", messages=HI * 200)
        assert caught.value.status_code == 402
        assert (found.end()["calls"], "--max-cost" in found.errors) == (2, True)
    with gate(server, tmp_path, "--max-calls", 1, "--allow-model", "fast=any") as found:
        client = found.openai()
        assert [model.id for model in client.models.list()] == ["fast"]
        with pytest.raises(openai.NotFoundError, match="'slow' is none of fast"):
            client.chat.completions.create(model="slow", messages=HI)
        client.chat.completions.create(model="fast", messages=HI)
        with pytest.raises(openai.APIStatusError, match="the 1 calls") as caught:
            client.chat.completions.create(model="fast", messages=HI)
        assert caught.value.status_code == 402
        assert found.end()["cost"] is None  # there is no price


def test_calls_under_way_may_end_and_a_second_signal_ends_them(tmp_path: Path) -> None:
    arrived, never = threading.Event(), threading.Event()

    def plan(number: int) -> Fault | None:
        arrived.set()
        return None if number else Fault("slow", last_request=never)

    with (
        ScriptedServer(script([Rule(Line("Late."))]), plan=plan, key=KEY) as server,
        gate(server, tmp_path, "--drain", "3600", "--record", "calls.jsonl") as found,
    ):
        client = HTTPConnection(urlsplit(found.told["url"]).netloc, timeout=PATIENCE)
        body = json.dumps({"model": "any", "messages": HI})
        headers = {"Authorization": f"Bearer {found.token}"}
        client.request("POST", "/v1/chat/completions", body, headers)
        other = HTTPConnection(urlsplit(found.told["url"]).netloc, timeout=PATIENCE)

        def asked() -> int:
            other.request("POST", "/v1/chat/completions", body, headers)
            answer = other.getresponse()
            answer.read()
            return answer.status

        assert arrived.wait(PATIENCE)
        found.process.send_signal(signal.SIGINT)
        assert eventually(lambda: asked() == 503)  # no others begin
        assert found.process.poll() is None
        found.end()
        client.close()
        other.close()


def test_failing_calls_are_told_and_one_that_is_cut_off_is_recorded(tmp_path: Path) -> None:
    record = tmp_path / "calls.jsonl"
    arrived, never = threading.Event(), threading.Event()

    def plan(number: int) -> Fault | None:
        if number == 2:
            arrived.set()
        return [Fault("status", 400), Fault("status", 500), Fault("slow", last_request=never)][
            number
        ]

    with (
        ScriptedServer(script([Rule(Line("Late."))]), plan=plan, key=KEY) as server,
        gate(server, tmp_path, "--drain", "0.1", "--record", record) as found,
    ):
        assert found.post() == 400
        client = HTTPConnection(urlsplit(found.told["url"]).netloc, timeout=PATIENCE)
        body = json.dumps({"model": "any", "messages": HI})
        headers = {"Authorization": f"Bearer {found.token}"}
        client.request("POST", "/v1/chat/completions", body, headers)
        assert arrived.wait(PATIENCE)
        spent = found.end()
        client.close()
    assert (spent["calls"], spent["errors"]) == (2, 2)
    first, last = lines(record)
    assert first["messages"] == last["messages"] == HI
    assert (first["status"], last["error"]) == (400, EPISODE_ENDED)
    assert found.errors.count("answered with status 400: ") == 1
    assert found.errors.count("HTTP 500: on purpose; it is asked again in") == 1


def test_a_killed_gate_has_recorded_all_that_was_answered(
    server: ScriptedServer, tmp_path: Path
) -> None:
    record = tmp_path / "calls.jsonl"
    with gate(server, tmp_path, "--record", record) as found:
        found.openai().chat.completions.create(model="x", messages=HI)
        found.process.kill()
        found.process.wait(PATIENCE)
    assert len(lines(record)) == 1
    with record.open("a") as file:
        file.write('{"broken')
    with gate(server, tmp_path, "--record", record) as found:
        found.openai().chat.completions.create(model="x", messages=HI)
        found.end()
    first, broken, last = record.read_text().splitlines()
    assert (json.loads(first)["status"], broken, json.loads(last)["status"]) == (
        200,
        '{"broken',
        200,
    )


def test_no_call_is_made_that_the_record_has_no_room_for(
    server: ScriptedServer, refused: Callable[..., str], tmp_path: Path
) -> None:
    server.exchanges.clear()
    record = tmp_path / "calls.jsonl"
    options = ("--record", record, "--record-limit", 100)
    with gate(server, tmp_path, *options) as found:
        client = found.openai()
        client.chat.completions.create(model="x", messages=HI)
        with pytest.raises(openai.APIStatusError, match="record of calls is as long") as refusal:
            client.chat.completions.create(model="x", messages=HI)
        with pytest.raises(anthropic.APIStatusError, match="record of calls is as long"):
            found.anthropic().messages.count_tokens(model="x", messages=HI)
        spent = found.end()
    assert refusal.value.status_code == 402
    assert (spent["calls"], len(server.exchanges), len(lines(record))) == (1, 1, 1)
    assert "bytes, above the limit of 100: name another file, or raise --record-limit" in refused(
        *options
    )
    assert len(lines(record)) == 1


def test_equal_requests_are_answered_from_the_cache(server: ScriptedServer, tmp_path: Path) -> None:
    server.exchanges.clear()
    with gate(server, tmp_path, "--cache", "cache", "--cache-sampled") as found:
        for _ in range(2):
            found.openai().chat.completions.create(model="x", messages=HI)
        spent = found.end()
    assert (spent["calls"], spent["cached"], len(server.exchanges)) == (2, 1, 1)


def test_counting_tokens_is_recorded_and_is_no_call(server: ScriptedServer, tmp_path: Path) -> None:
    record = tmp_path / "calls.jsonl"
    with gate(server, tmp_path, "--record", record) as found:
        assert found.anthropic().messages.count_tokens(model="x", messages=HI).input_tokens
        spent = found.end()
    assert [call["protocol"] for call in lines(record)] == ["count"]
    assert (spent["calls"], spent["errors"]) == (0, 0)


SCRIPT = """
import os, openai
print(openai.OpenAI().chat.completions.create(
    model="x", messages=[{"role": "user", "content": "hi"}]).choices[0].message.content)
print(sorted(name for name, value in os.environ.items() if "the-real-key" in value))
print(b"the-real-key" in open(f"/proc/{os.getppid()}/environ", "rb").read())
raise SystemExit(7)
"""


def test_a_command_is_served_alone(server: ScriptedServer, tmp_path: Path) -> None:
    more = ("--base-url", server.url, "--", sys.executable, "-c", SCRIPT)
    done = subprocess.run(
        [*COMMAND, "--upstream", UPSTREAM, *more],
        cwd=tmp_path,
        env={**os.environ, "OPENAI_COMPATIBLE_API_KEY": KEY, "OTHER": f"{KEY}, too"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stdout) == (7, "Hello there.\n[]\nFalse\n"), done.stderr
    assert "1 call: 1 input and 2 output tokens, at a price that is not known" in done.stderr


LOOK = """
import os
parent = f"/proc/{os.getppid()}"
for name in ("environ", "mem", "fd"):
    try:
        os.listdir(f"{parent}/fd") if name == "fd" else open(f"{parent}/{name}", "rb")
    except PermissionError:
        print(name)
"""


def test_a_command_of_an_ordinary_user_sees_no_memory(server: ScriptedServer) -> None:
    with ordinary_user() as user:
        command = [*COMMAND, "--upstream", UPSTREAM, "--base-url", server.url, "--"]
        done = subprocess.run(
            [*user.prefix, *command, sys.executable, "-c", LOOK],
            env={**user.env, "OPENAI_COMPATIBLE_API_KEY": KEY},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    assert (done.returncode, done.stdout) == (0, "environ\nmem\nfd\n"), done.stderr


def test_wrong_usage(server: ScriptedServer, refused: Callable[..., str], tmp_path: Path) -> None:
    port = urlsplit(server.root).port
    assert f"port {port} of 127.0.0.1 is not available" in refused("--port", port)
    assert "the price of ollama/any is unknown" in refused("--max-cost", 1)
    assert "--allow-model needs a name" in refused("--allow-model", "=x")
    assert "nowhere" in refused("--record", tmp_path / "nowhere/calls.jsonl")
    assert "none-such cannot be started" in refused("--", "none-such")


def test_the_page_has_the_fields_of_the_tables() -> None:
    repository = ROOT
    page = (repository / "docs/integrations/gateway-fields.md").read_text()
    made = runpy.run_path(str(repository / "scripts/gateway-fields"))["written"](page)
    assert page == made, "run scripts/gateway-fields"
    for table in TABLES.values():
        fields = {*table.dialogue, *table.limit, *table.passes, *table.drops, *table.stored}
        fields |= {*table.hosted, *table.tools, *table.tool_drops, *table.parts, table.path}
        fields |= {field for kind in table.parts.values() for field in kind}
        assert not {field for field in fields if field not in page}
