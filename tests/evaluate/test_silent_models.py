"""A model's server that does not answer: what a run says of it, and how long it waits."""

from __future__ import annotations

from pathlib import Path

import pytest

from intercode.cli.main import main
from intercode.evaluate import worker
from intercode.models.base import AttemptError
from intercode.models.limits import Retry
from intercode.models.remote import Around, Frame
from intercode.records import read_manifest
from intercode.testing.server import Fault, ScriptedServer

MODEL = ("--agent", "try-again", "--model", "openai-compatible/any")
SILENCE = Fault("slow", delay=3600.0)


def silent(*_: object) -> Fault:
    return SILENCE


def test_a_run_tells_what_it_waits_for_and_ends_by_the_options_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker, "SILENT", 0.2)
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
    frame = Frame("openai/any", "http://host", Around(retry=Retry(retries=1, first_wait=0)))
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
