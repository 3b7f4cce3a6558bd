"""A model's server that does not answer: what a run says of it, and how long it waits."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from intercode.cli.main import main
from intercode.cli.run_output import ProgressPrinter
from intercode.errors import ModelUnavailableError
from intercode.evaluate import worker
from intercode.models.base import Answer, AttemptError
from intercode.models.interrupted_calls import run_drain
from intercode.models.limits import RateLimit, Retry
from intercode.models.remote import ModelCallContext, ModelCallLimiter
from intercode.records import read_manifest
from intercode_integrations.testing.server import Fault, ScriptedServer

MODEL = ("--agent", "try-again", "--model", "openai-compatible/any")
SILENCE = Fault("slow", delay=3600.0)


def silent(*_: object) -> Fault:
    return SILENCE


def test_a_run_tells_what_it_waits_for_and_ends_by_the_options_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker, "SILENCE_SECONDS", 0.2)  # allow limit: the server is silent
    monkeypatch.setattr(Retry, "backoff", lambda *_: None)
    run = str(tmp_path / "run")
    with ScriptedServer(plan=silent) as server:
        asked = ["--base-url", server.url, "--limit", "1", "--out", run, "--quiet"]
        assert main(["run", "bash", *MODEL, *asked, "--model-timeout", "1"]) == 1
        said = capsys.readouterr()
        assert f"waiting for openai-compatible/any at {server.url}" in said.err
        assert "a try may take 1 s, see --model-timeout" in said.err
        assert "was asked once; the last time: it did not answer in time" in said.out
    assert read_manifest(Path(run))["sessions"][0]["settings"]["model_timeout"] == 1


def test_a_delay_has_the_cause_of_the_last_try() -> None:
    frame = ModelCallLimiter(
        "openai/any", "http://host", ModelCallContext(retry=Retry(retries=1, first_wait=0))
    )
    assert frame.delay() is None
    delays: list[tuple[float, str] | None] = []

    def send() -> object:
        delays.append(frame.delay())
        raise AttemptError("it did not answer in time", charged=True)

    with pytest.raises(Exception, match="was asked 2 times"):
        frame.ask(send, 1)  # type: ignore[arg-type]
    first, second = delays
    assert first is not None and "the last try" not in first[1]
    assert second is not None and "the last try: it did not answer in time" in second[1]
    assert frame.delay() is None


@pytest.mark.parametrize(
    "fault",
    [
        lambda heard: Fault("status", last_request=heard),
        lambda heard: Fault("status"),
        lambda heard: Fault("status", status=429, headers={"Retry-After": "200"}),
    ],
    ids=["in-flight", "between-attempts", "rate-limit"],
)
def test_after_an_interrupt_no_call_is_repeated(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fault: Callable[[threading.Event], Fault],
) -> None:
    """Two episodes take turns at the server: the second one does not begin its call, either."""
    heard = threading.Event()
    backoff = Retry.backoff
    monkeypatch.setattr(Retry, "backoff", lambda *a: None if backoff(*a) is None else 3600.0)
    requests: list[int] = []

    def plan(number: int) -> Fault:
        requests.append(number)
        return fault(heard)

    def tick(_: ProgressPrinter) -> None:
        if requests and not heard.is_set():
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(ProgressPrinter, "tick", tick)
    monkeypatch.setattr(ProgressPrinter, "report_interrupt", lambda *_: heard.set())
    run = ["--limit", "2", "--workers", "2", "--max-connections", "1", "--quiet"]
    with ScriptedServer(plan=plan) as server:
        asked = ["--base-url", server.url, "--out", str(tmp_path / "run")]
        assert main(["run", "bash", *MODEL, *run, *asked]) == 130
    assert requests == [0]
    said = capsys.readouterr().out
    assert "sent: the run was interrupted" in said
    assert "resume with: intercode resume" in said


def test_after_an_interrupt_calls_that_are_answered_go_on() -> None:
    frame = ModelCallLimiter("openai/any", "http://host", ModelCallContext())
    with run_drain() as drain:
        drain.interrupt()
        assert frame.ask(lambda: Answer("yes"), 1).text == "yes"
        assert frame.ask(lambda: Answer("yes"), 1).text == "yes"


def test_after_an_interrupt_no_call_waits_for_its_pace() -> None:
    frame = ModelCallLimiter(
        "openai/any", "http://host", ModelCallContext(RateLimit(requests=0.001))
    )
    with run_drain() as drain:
        assert frame.ask(lambda: Answer("yes"), 1).text == "yes"
        drain.interrupt()
        with pytest.raises(
            ModelUnavailableError, match="openai/any: not sent: the run was interrupted"
        ):
            frame.ask(lambda: Answer("yes"), 1)


def test_a_run_that_was_left_stays_interrupted_and_later_calls_do_not() -> None:
    frame = ModelCallLimiter(
        "openai/any", "http://host", ModelCallContext(retry=Retry(retries=1, first_wait=0))
    )
    asked: list[int] = []

    def send() -> Answer:
        asked.append(1)
        raise AttemptError("it failed")

    with run_drain() as drain:
        drain.interrupt()
        with pytest.raises(ModelUnavailableError, match="asked once"):
            frame.ask(send, 1)
    with pytest.raises(ModelUnavailableError, match="asked 2 times"):
        frame.ask(send, 1)
    assert len(asked) == 3
