"""Environments whose tasks are tried elsewhere, by address: in Python and on the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

import intercode
from intercode.cli.main import main
from intercode.envs.episode_state import EpisodeState
from intercode.envs.remote import RemoteEnvironment, RemoteStepReply
from intercode.envs.traits import SHELL, Traits
from intercode.registry import SOURCES

from .toy import many, toy

LOST, REFUSED = "lose", "refuse"


class Echo(RemoteEnvironment):
    """Repeats; the reward is whether the task's word was said."""

    name: ClassVar[str] = "echo"
    traits: Traits = replace(SHELL, is_remote=True)

    @classmethod
    def tasks(cls, rest: str) -> intercode.Dataset:
        words = rest.split(",")
        return intercode.Dataset(
            [intercode.Task(word, f"Say {word}.", gold=(word,)) for word in words]
        )

    def _begin(self, task: intercode.Task, seed: int | None) -> str:
        self.word, self.said = task.task_id, ""
        return task.query

    def _take(self, action: str) -> RemoteStepReply:
        if action == LOST:
            raise intercode.SandboxError("the other end is gone")
        if action == REFUSED:
            raise intercode.SandboxUnavailableError("the other end permits nothing")
        self.said += action
        return RemoteStepReply(action, exit_code=0)

    def _submit(self, answer: str | None) -> RemoteStepReply:
        value = float(self.word in self.said)
        return RemoteStepReply("", value, parts={"said": value})


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(SOURCES._entries, "echo", Echo)
    yield


def test_its_state_is_what_any_environment_holds() -> None:
    echo, here = intercode.make("echo:red,blue"), toy(many(2))
    for env in (echo.unwrapped, here):
        state = env.episode_state  # type: ignore[attr-defined]
        assert isinstance(state, EpisodeState)
        for ask in ("episode", "task"):
            with pytest.raises(intercode.EnvironmentStateError, match="no episode yet"):
                getattr(state, ask)
        with pytest.raises(intercode.UsageError, match="options of reset are a dict, not list"):
            env.reset(options=["red"])  # type: ignore[arg-type]
        env.reset(seed=1)
        assert state.is_running and state.task.task_id == state.episode.task_id
        env.interrupt(KeyboardInterrupt())  # type: ignore[attr-defined]
        with pytest.raises(intercode.EnvironmentStateError, match="KeyboardInterrupt has inter"):
            env.step("red")


def test_five_values_and_a_record() -> None:
    env = intercode.make("echo:red,blue", max_turns=2)
    query, info = env.reset(seed=1, options={"task_id": "blue"})
    assert query == "Say blue." and info["turns_left"] == 2
    assert env.step("blue") == (
        "blue",
        0.0,
        False,
        False,
        {"task_id": "blue", "turn": 1, "turns_left": 1, "ok": True, "exit_code": 0},
    )
    _, reward, terminated, truncated, info = env.step("submit")
    assert (reward, terminated, truncated, info["parts"]) == (1.0, True, False, {"said": 1.0})
    env.reset(options={"task_id": "red"})
    env.step("blue")
    assert env.step("green")[1:4] == (0.0, False, True)
    with pytest.raises(intercode.EnvironmentStateError):
        env.step("red")
    env.reset(options={"task_id": "red"})
    with pytest.raises(intercode.SandboxError):
        env.step(LOST)
    assert env.unwrapped.episode.status == "error" and env.unwrapped.episode.score is None  # type: ignore[attr-defined]
    env.close()


def test_a_run_of_an_address(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    asked = ["run", "echo:red,blue,green", "--agent", "oracle", "--workers", "2", "--json"]
    assert main([*asked, "--out", str(out)]) == 0
    assert '"success_rate": 1.0' in capsys.readouterr().out
    options = json.loads((out / "run.json").read_text())["sessions"][0]["options"]
    assert (options["env"], options["data"]) == ("echo", "echo:red,blue,green")
    assert main(["report", str(out)]) == 0
    assert main(["resume", "--trust", str(out)]) == 0
    assert main(["run", "nothing:red"]) == 2


def test_a_permanent_refusal_is_never_a_value() -> None:
    env = intercode.make("echo:red", errors="value")
    env.reset()
    assert env.step(LOST)[4]["error"]["type"] == "SandboxError"
    env.reset()
    with pytest.raises(intercode.SandboxUnavailableError, match="permits nothing"):
        env.step(REFUSED)
