"""Another's OpenEnv server, made by `create_app`, under our runner: `intercode run openenv:URL`."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openenv.core.env_server as openenv
import pytest
import uvicorn

import intercode
from intercode.cli.main import main
from waiting import eventually

WORDS = {"train": ["red", "blue", "green"], "test": ["black", "white"]}
AGENT = Path(__file__).with_name("guessing.py")


class Guess(openenv.Action):
    word: str


class Pair(openenv.Action):
    word: str
    times: int


class Seen(openenv.Observation):
    hint: str


class Guessing(openenv.Environment[Guess, Seen, openenv.State]):
    """Half a point for the first letter, half for the word, which ends the episode."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    state = openenv.State()

    def reset(
        self, seed: Any = None, episode_id: Any = None, split: str = "", index: int = 0, **_: Any
    ) -> Seen:
        self.word, self.begun = WORDS[split][index], False
        return Seen(hint=f"It has {len(self.word)} letters.")

    def step(self, action: Any, timeout_s: Any = None, **_: Any) -> Seen:
        if action.word == "crash":
            raise RuntimeError("the environment fails")
        begins = action.word[:1] == self.word[0]
        reward = 0.5 if begins and not self.begun else 0.0
        self.begun |= begins
        done = action.word == self.word
        return Seen(hint="warm" if begins else "cold", reward=reward + done / 2, done=done)

    def list_splits(self) -> list[str]:
        return [*WORDS]

    def num_tasks(self, split: str) -> int:
        return len(WORDS[split])

    def list_tasks(self, split: str) -> list[Any]:
        return [self.get_task(split, index) for index in range(len(WORDS[split]))]

    def get_task(self, split: str, index: int) -> Any:
        return {"id": WORDS[split][index], "question": "Guess the word."}

    def get_task_range(self, split: str, start: Any = None, stop: Any = None) -> list[Any]:
        return self.list_tasks(split)[start:stop]


class Bare(openenv.Environment[Pair, Seen, openenv.State]):
    """Without tasks, and with an action of two fields."""

    state = openenv.State()

    def reset(self, seed: Any = None, episode_id: Any = None, **_: Any) -> Seen:
        return Seen(hint=f"seed {seed}")

    def step(self, action: Any, timeout_s: Any = None, **_: Any) -> Seen:
        return Seen(hint=action.word * action.times, reward=None, done=action.word == "end")


@contextmanager
def served(environment: Any, action: Any, most: int) -> Iterator[str]:
    """The address of a server."""
    app = openenv.create_app(environment, action, Seen, env_name="game", max_concurrent_envs=most)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    assert eventually(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(Guessing, Guess, 4) as url:
        yield url


def test_an_episode(url: str) -> None:
    env = intercode.make(f"openenv:{url}/game", max_turns=3)
    query, info = env.reset(task_id="test/black")
    assert (query, info["turns_left"]) == ("It has 5 letters.", 3)
    assert env.step("blue")[:4] == ("warm", 0.0, False, False)
    assert env.step("black")[:4] == ("warm", 1.0, True, False)
    with pytest.raises(intercode.EnvironmentStateError):
        env.step("black")
    env.reset(task_id="train/red")
    env.step("rot")
    assert env.step("submit")[:4] == ("", 0.5, True, False)
    env.reset(task_id="train/red")
    rewards = [env.step(word)[1:4] for word in ("a", "b", "c")]
    assert rewards == [(0.0, False, False)] * 2 + [(0.0, False, True)]
    env.reset(task_id="train/red")
    with pytest.raises(intercode.SandboxError, match="the environment fails"):
        env.step("crash")
    assert env.unwrapped.episode.score is None
    env.reset(task_id="train/red")
    assert env.step("red")[1] == 1.0
    env.close()


def test_a_run(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    asked = ["run", f"openenv:{url}", "--agent", f"{AGENT}:Guess", "--workers", "2", "--json"]
    assert main([*asked, "--split", "train", "--out", str(out)]) == 0
    assert json.loads(capsys.readouterr().out)["statistics"]["success_rate"] == 1.0
    episodes = [json.loads(line) for line in (out / "episodes.jsonl").read_text().splitlines()]
    assert {one["task_id"] for one in episodes} == {f"train/{word}" for word in WORDS["train"]}
    assert all(one["status"] == "ended" and one["env"] == "openenv" for one in episodes)
    assert main(["report", str(out)]) == 0
    assert main(["resume", "--trust", str(out)]) == 0


def test_no_tasks_and_more_fields() -> None:
    with served(Bare, Pair, 1) as url:
        env = intercode.make(f"openenv:{url}")
        assert env.reset(seed=5)[0] == "seed 5"
        text, *_, info = env.step("word")
        assert text.startswith("[not executed: an action is a JSON object") and not info["ok"]
        text, *_, info = env.step('{"word": "ab"}')
        assert text.startswith("[not executed:") and "times" in text and not info["ok"]
        assert env.step('{"word": "ab", "times": 2}')[0] == "abab"
        with pytest.raises(intercode.RewardError):
            env.step('{"word": "end", "times": 1}')
        other = intercode.make(f"openenv:{url}")
        with pytest.raises(intercode.CapacityError):
            other.reset()
        env.close()
        assert eventually(lambda: begins(other))
        other.close()


def begins(env: Any) -> bool:
    try:
        return bool(env.reset()[0])
    except intercode.CapacityError:
        return False
