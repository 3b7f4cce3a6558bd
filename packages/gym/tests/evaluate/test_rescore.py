"""Recorded runs scored again: from the record, or by executing the recorded actions again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import intercode
from intercode.episode import Episode, NoAction, Score, Turn
from intercode.errors import InterCodeError, RecordError, TaskNotFoundError, UsageError
from intercode.evaluate import Progress, evaluate
from intercode.evaluate.episode_loop import PlayableEnv
from intercode.evaluate.manifest_diff import DriftError
from intercode.evaluate.replayed_env import NotReproducibleError, difference
from intercode.evaluate.rescore import rescore
from intercode.records import Outcome, read_manifest
from intercode.report.runs import compare, read_runs
from intercode.task import Dataset, Task

from .recorded import Make, Scripted, found, result_of

BASH = Dataset(
    [
        Task("hello", "?", gold=("echo hello",)),
        Task("file", "?", gold=("touch /root/made",)),
        Task("none", "?", gold=("true",)),
        Task("skip", "?", gold=("true",)),
        Task("raise", "?", gold=("true",)),
        Task("long", "?", gold=("echo 3",)),
        Task("date", "?", verification="true"),
        Task("random", "?", verification="true"),
        Task("slow", "?", verification="true", timeout=0.2),  # allow limit: its action sleeps
        Task("state", "?", verification="test -e /root/made"),
    ],
    name="ways",
)
ACTIONS: dict[str, list[str]] = {
    "hello": ["ls /nowhere", "cd /tmp && export A=1", "echo hello"],
    "file": ["touch made"],
    "none": [NoAction("there is no code in your reply"), "true"],
    "skip": ["touch made", "skip"],
    "long": ["echo 1", "echo 2", "echo 3", "echo 4"],
    "date": ["true", "date +%s.%N"],
    "random": ["echo $RANDOM $RANDOM"],
    "slow": ["sleep 999"],
    "state": ["touch made"],
}


def agent(task: Task) -> Scripted:
    if task.task_id == "raise":
        raise ValueError("not today")
    return Scripted(ACTIONS[task.task_id])


def bash(reward: Any = None, **options: Any) -> Make:
    return lambda: intercode.make("bash", data=BASH, max_turns=4, reward=reward, **options)


def files(task: Task, episode: Episode, sandbox: Any) -> Score:
    """How many paths were changed: of that the record knows nothing."""
    return Score(1.0 if sandbox.changes() else 0.0, {"changed": float(len(sandbox.changes()))})


def brief(task: Task, episode: Episode, sandbox: Any) -> float:
    return 1.0 / (1 + len(episode.turns))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Bash run in which everything happens once, in each of two epochs."""
    folder = tmp_path_factory.mktemp("run") / "run"
    settings = {"env": "bash", "protocol": "default", "reward": "default", "max_turns": 4}
    evaluate(BASH, agent, bash(), out=folder, epochs=2, workers=2, settings=settings)
    return folder


def _key(outcome: Outcome) -> tuple[int, str]:
    return outcome.epoch, outcome.task_id


NOT_AGAIN = {"date", "random", "slow"}


def test_the_same_reward_changes_nothing_that_can_be_done_again(made: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in made.iterdir()}
    result = rescore(made, BASH, None, bash(), out=tmp_path / "again", workers=2)
    assert {path.name: path.read_bytes() for path in made.iterdir()} == before
    assert result.ways == {"again": 12, "not reproducible": 6, "no result": 2}
    assert result.changes == [] and {r.after.task_id for r in result.lost} == NOT_AGAIN
    old, new = found(made), found(tmp_path / "again")
    assert old.keys() == new.keys()
    for key, episode in new.items():
        told = episode.metadata.pop("rescored")
        assert told["was"] == {
            "status": old[key].status,
            "score": json.loads(old[key].to_json())["score"],
        }
        if episode.task_id not in NOT_AGAIN:
            assert episode == old[key]
            continue
        assert episode.status == "error" and episode.score is None
        assert episode.metadata.pop("error_type") == NotReproducibleError.__name__
        # What was said and done is still there, and what it took.
        assert [replace(turn, reward=0.0) for turn in old[key].turns] == episode.turns
        assert episode.metadata == old[key].metadata and episode.seconds == old[key].seconds
    why = {key[1]: episode.error or "" for key, episode in new.items()}
    assert why["date"].startswith("not reproducible: turn 2 differs: recorded '")
    assert why["random"].startswith("not reproducible: turn 1 differs: recorded '")
    assert why["slow"] == "not reproducible: turn 1 ran into the time limit"
    assert "not today" in why["raise"]


def test_a_reward_that_looks_at_the_sandbox_gets_one(made: Path, tmp_path: Path) -> None:
    result = rescore(made, BASH, files, bash(files), out=tmp_path / "again")
    assert result.ways == {"record": 2, "again": 10, "not reproducible": 6, "no result": 2}
    scores = {key[1]: episode.score for key, episode in found(tmp_path / "again").items()}
    assert scores["file"] == Score(1.0, {"changed": 1.0})
    assert scores["hello"] == Score(0.0, {"changed": 0.0})
    assert scores["skip"] == Score(0.0)  # whatever was done before
    assert {r.after.task_id for r in result.changes} == {"hello", "none"}
    # It is a run: it can be read beside the old one, and held against it.
    runs = read_runs([made, tmp_path / "again"])
    paired = compare(runs[0].outcomes, runs[1].outcomes)
    assert paired is not None and paired.tasks == 6
    assert runs[0].coverage.planned == runs[1].coverage.planned == 20
    assert read_manifest(tmp_path / "again")["rescored"] == {
        "run": str(made),
        "reward": "files",
    }
    for old, new in zip(*(sorted(run.outcomes, key=_key) for run in runs), strict=True):
        assert (old.cost, old.tokens_in, old.seconds) == (new.cost, new.tokens_in, new.seconds)


def test_a_reward_of_the_record_starts_no_sandbox(made: Path, tmp_path: Path) -> None:
    # There is nothing that could: no environment is given, and none can be made.
    result = rescore(made, BASH, brief, out=tmp_path / "again", workers=2)
    assert result.ways == {"record": 18, "no result": 2}
    new = found(tmp_path / "again")
    assert new[0, "date"].reward == 1 / 3 and new[1, "none"].reward == 1 / 3
    assert new[0, "long"].status == "truncated" and new[0, "long"].turns[-1].reward == 0.2
    assert new[0, "skip"].reward == 0.0
    assert all(turn.reward == 0.0 for turn in new[0, "long"].turns[:-1])
    costs = {
        Outcome.from_episode(episode).cost for key, episode in new.items() if key[1] != "raise"
    }
    assert costs == {0.25}
    every = rescore(made, BASH, brief, every_turn=True)
    rewards = {e.task_id: [turn.reward for turn in e.turns] for e in every.episodes()}
    assert rewards["long"] == [1 / 2, 1 / 3, 1 / 4, 1 / 5]


def test_the_record_shows_a_reward_what_the_run_showed_it(made: Path) -> None:
    def seen_by(seen: dict[str, Any]) -> Callable[..., float]:
        def look(task: Task, episode: Episode, sandbox: Any) -> float:
            seen[f"{task.task_id} {len(episode.turns)} {episode.status}"] = (
                result_of(episode),
                sorted(episode.metadata),
                episode.env,
            )
            return 0.5

        return look

    live: dict[str, Any] = {}
    recorded: dict[str, Any] = {}
    names = ["hello", "none", "skip", "long", "file"]
    evaluate(BASH, agent, bash(seen_by(live)), tasks=names)
    rescore(made, BASH, seen_by(recorded))
    assert len(live) == 4  # a skipped one is not asked for
    assert live == {key: recorded[key] for key in live}


def test_who_looks_is_found_out(made: Path) -> None:
    def sly(task: Task, episode: Episode, sandbox: Any) -> float:
        try:
            return float(not sandbox.changes())
        except InterCodeError:
            return 1.0

    def sometimes(task: Task, episode: Episode, sandbox: Any) -> float:
        return (
            float(isinstance(sandbox, int)) if task.task_id == "file" else brief(task, episode, 0)
        )

    def built(task: Task, episode: Episode, sandbox: Any, default: Any) -> float:
        return 1.0 - default(task, episode, sandbox).value

    for looks in (sly, built):
        with pytest.raises(UsageError, match="reads the sandbox"):
            rescore(made, BASH, looks)
    result = rescore(made, BASH, sometimes, bash(sometimes))
    assert result.ways == {"record": 16, "again": 2, "no result": 2}
    assert {r.after.task_id: r.after.reward for r in result.results}["file"] == 0.0


def test_a_reward_that_fails_is_an_error_and_not_hidden(made: Path) -> None:
    def broken(task: Task, episode: Episode, sandbox: Any) -> float:
        return 1 / len(episode.turns[1:])

    result = rescore(made, BASH, broken)
    assert result.ways == {"record": 10, "failed": 8, "no result": 2}
    assert {r.after.error_type for r in result.lost} == {"RewardError"}


def test_it_can_be_interrupted_and_gone_on_with(made: Path, tmp_path: Path) -> None:
    calls = []
    heard = threading.Event()

    class Hears(Progress):
        def report_interrupt(self, in_flight: int) -> None:
            heard.set()

    def interrupted(task: Task, episode: Episode, sandbox: Any) -> float:
        calls.append(task.task_id)
        if len(calls) == 5:
            os.kill(os.getpid(), signal.SIGINT)
            heard.wait(60)
        return brief(task, episode, sandbox)

    interrupted.__qualname__ = "brief"
    out = tmp_path / "again"
    first = rescore(made, BASH, interrupted, out=out, progress=Hears())
    assert first.interrupted and 0 < len(first.outcomes) < 20
    second = rescore(made, BASH, brief, out=out, workers=2)
    assert not second.interrupted and second.ran == 20 - len(first.outcomes)
    third = rescore(made, BASH, brief, out=out)
    assert third.ran == 0
    whole = list(rescore(made, BASH, brief).episodes())
    assert len((out / "episodes.jsonl").read_bytes().splitlines()) == len(whole) == 20
    assert {(e.epoch, e.task_id): result_of(e) for e in whole} == {
        key: result_of(episode) for key, episode in found(out).items()
    }
    with pytest.raises(RecordError, match=r"rescored\.reward was 'brief' and is now 'files'"):
        rescore(made, BASH, files, bash(files), out=out)


def test_what_is_refused_leaves_nothing_behind(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "again"
    other = Dataset([replace(task, query="!") for task in BASH], name="ways")
    settings = {"env": "bash", "protocol": "default", "reward": "new", "max_turns": 5}
    with pytest.raises(DriftError, match=r"dataset\.digest"):
        rescore(made, other, brief, out=out)
    assert rescore(made, other, brief, accept=["dataset"]).ways["record"] == 18
    with pytest.raises(TaskNotFoundError):
        rescore(made, BASH.filter(lambda t: t.task_id != "file"), brief, accept=["dataset"])
    with pytest.raises(DriftError, match=r"env\.max_turns: recorded 4, now 5") as caught:
        rescore(made, BASH, files, bash(files), out=out, settings=lambda: settings)
    assert len(caught.value.differences) == 1  # the reward is meant to be another
    with pytest.raises(UsageError, match="the recorded run, which stays unchanged"):
        rescore(made, BASH, brief, out=made)
    with pytest.raises(UsageError, match="there is no"):
        rescore(made, BASH, "nowhere.py:score", out=out)
    assert not out.exists()
    rescore(made, BASH, brief, out=out)
    with pytest.raises(UsageError, match="is itself a rescored run, of"):
        rescore(out, BASH, brief, out=tmp_path / "third")


def test_results_that_the_run_does_not_have_are_refused(made: Path, tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "again"
    shutil.copytree(made, run)
    rescore(run, BASH, brief, out=out)
    lines = (run / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    (run / "episodes.jsonl").write_bytes(b"".join(lines[1:]))
    with pytest.raises(RecordError) as caught:
        rescore(run, BASH, brief, out=out)
    assert f"{out} has episodes that {run} does not have: " in str(caught.value)


def test_another_environment_than_the_recorded_one_is_noticed(made: Path) -> None:
    def longer() -> PlayableEnv:
        return intercode.make("bash", data=BASH, max_turns=5, reward=files)

    result = rescore(made, BASH, files, longer)
    why = {r.after.task_id: r.after.error for r in result.lost}
    assert (
        why["long"] == "not reproducible: the episode continued after turn 4; recorded: truncated"
    )

    def shorter() -> PlayableEnv:
        return intercode.make("bash", data=BASH, max_turns=2, reward=files)

    result = rescore(made, BASH, files, shorter)
    why = {r.after.task_id: r.after.error for r in result.lost}
    assert why["hello"] == (
        "not reproducible: the episode ended after 2 turns, truncated; recorded: after 3, submitted"
    )


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, ""),
        ({"seconds": 9.0, "reward": 1.0}, ""),
        ({"observation": "x" * 70 + "b"}, f"recorded '…{'x' * 20}a', now '…{'x' * 20}b'"),
        ({"exit_code": 1, "ok": False}, "exit code 0 is now 1"),
        ({"info": {"cwd": "/tmp"}}, "cwd: recorded '/root', now '/tmp'"),
        ({"info": {"cwd": "/root", "timed_out": True}}, "it ran into the time limit"),
    ],
)
def test_what_tells_two_turns_apart(change: dict[str, Any], expected: str) -> None:
    turn = Turn("ls", "x" * 70 + "a", exit_code=0, info={"cwd": "/root"})
    assert difference(turn, replace(turn, **change)) == expected
