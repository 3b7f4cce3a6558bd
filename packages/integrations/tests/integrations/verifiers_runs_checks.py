"""A taskset of somebody else's for verifiers, by our runner."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import somebodys_sums
import verifiers.v1 as vf

import intercode
from intercode.cli.main import main
from intercode_integrations.testing import Line, ScriptedServer


def test_a_run_of_somebodys_taskset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    address = "verifiers:somebodys-sums?most=3"
    with ScriptedServer(lambda messages: Line("```text\n2\n```")) as server:
        model = ["--model", "openai-compatible/any", "--base-url", server.url]
        asked = ["run", address, "--agent", "single-turn", *model, "--json", "--out", str(out)]
        assert main(asked) == 0
    rows = [json.loads(line) for line in (out / "episodes.jsonl").read_text().splitlines()]
    assert {row["task_id"]: row["score"]["value"] for row in rows} == {"0": 0.0, "1": 1.0, "2": 0.0}
    assert rows[0]["turns"][0]["action"] == "2"
    capsys.readouterr()
    assert main(["report", str(out)]) == 0


def test_its_rewards_and_metrics_are_parts() -> None:
    env = intercode.make("verifiers:somebodys-sums")
    query, _ = env.reset(task_id="1")
    assert query == "Add.\n\n1 + 1"
    *_, info = env.step("2")
    assert info["parts"] == {"letters": 1.0, "right": 1.0}
    env.reset(task_id="1")
    assert env.step("submit")[1] == 0.0
    env.close()


class NeedsRuntime(somebodys_sums.SumTask):
    @vf.reward
    async def looks(self, runtime: vf.Runtime) -> float:
        return 1.0


class NeedsSetup(somebodys_sums.SumTask):
    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        """Prepare something."""


class Fails(somebodys_sums.SumTask):
    @vf.reward
    async def fails(self, trace: vf.Trace) -> float:
        raise OSError("the judge does not answer")


def module(name: str, kind: type, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make a module with a taskset of such tasks; return its address."""

    class Others(somebodys_sums.Sums):
        def load(self):  # type: ignore[no-untyped-def]
            return (kind(task.data, task.config) for task in super().load())

    made = ModuleType(name)
    made.__all__, made.Others = ["Others"], Others  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, made)
    made.__spec__ = somebodys_sums.__spec__
    return f"verifiers:{name}"


@pytest.mark.parametrize(
    ("kind", "lack"), [(NeedsRuntime, "a runtime"), (NeedsSetup, "its own preparation")]
)
def test_what_needs_more_than_a_reply_is_refused(
    kind: type, lack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(intercode.UsageError, match=lack):
        intercode.make(module(f"somebodys_{kind.__name__.lower()}", kind, monkeypatch))
    with pytest.raises(intercode.UsageError, match="not a taskset"):
        intercode.make("verifiers:nobodys")


def test_a_reward_that_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    env = intercode.make(module("somebodys_fails", Fails, monkeypatch))
    env.reset(task_id="0")
    with pytest.raises(intercode.RewardError, match="the judge does not answer"):
        env.step("1")
    env.close()
